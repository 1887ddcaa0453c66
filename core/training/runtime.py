"""TensorFlow as a small, CPU-bound guest of a worker process.

A worker often owns less than one core. TensorFlow's default of one thread per core in two pools costs such a worker
more in wake-ups than it gains, and the pools can't be changed once the first operation ran; so every process of this
room calls `configure_tensorflow` before anything else. Arrays cross into TensorFlow by DLPack, without a copy.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes: TensorFlow aborts the whole process on a DLPack tensor that is not so aligned


def configure_tensorflow(threads: int = 1) -> Any:
    """Imports TensorFlow and Keras (on TensorFlow) with `threads` threads and returns the tensorflow module.

    Once the first operation has run the number of threads stays as it is.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import tensorflow as tf

    pools = tf.config.threading
    if pools.get_intra_op_parallelism_threads() != threads or pools.get_inter_op_parallelism_threads() != 1:
        try:
            pools.set_intra_op_parallelism_threads(threads)
            pools.set_inter_op_parallelism_threads(1)
        except RuntimeError:  # already running: the first call of the process has decided
            warnings.warn(f"TensorFlow already runs; it keeps its threads instead of {threads}", stacklevel=2)
    return tf


def is_shareable(array: np.ndarray) -> bool:
    """Whether TensorFlow can use `array`'s memory as it is."""
    return bool(
        array.size and array.ctypes.data % ALIGNMENT == 0 and array.flags.writeable and array.flags.c_contiguous
    )


def as_tensor(tf: Any, array: np.ndarray) -> Any:
    """`array` as a tensor: its own memory by DLPack where possible, else a copy.

    The tensor aliases the array: do not write to the array before every result computed from it has been read.
    """
    if is_shareable(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.constant(array)


def aligned_zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Zeros whose memory TensorFlow can share."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
