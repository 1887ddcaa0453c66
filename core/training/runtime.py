"""TensorFlow as a small, CPU-bound guest of a worker process.

A worker often owns less than one core. TensorFlow's default of one thread per core in two pools costs such a worker
more in wake-ups than it gains, and the pools can't be changed once the first operation ran; so every process of this
room calls `configure_tensorflow` before anything else. Arrays cross into TensorFlow by DLPack, without a copy.

Two more settings were measured on the DLRM step: oneDNN's kernels (TensorFlow leaves them off on older CPUs; 10.4 to
8.0 CPU milliseconds on one of those) and keeping freed memory (each step's results are large enough for malloc to
give them back to the system and fault them in again: 840 page faults and 3 of 15 milliseconds per step).
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
ALIGNMENT = 64  # bytes: TensorFlow aborts the whole process on a DLPack tensor that is not so aligned


def configure_tensorflow(threads: int = 1) -> Any:
    """Imports TensorFlow and Keras (on TensorFlow) with `threads` threads and returns the tensorflow module.

    Once the first operation has run the number of threads stays as it is.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    _keep_freed_memory()
    import tensorflow as tf

    pools = tf.config.threading
    if pools.get_intra_op_parallelism_threads() != threads or pools.get_inter_op_parallelism_threads() != 1:
        try:
            pools.set_intra_op_parallelism_threads(threads)
            pools.set_inter_op_parallelism_threads(1)
        except RuntimeError:  # already running: the first call of the process has decided
            warnings.warn(f"TensorFlow already runs; it keeps its threads instead of {threads}", stacklevel=2)
    return tf


def _keep_freed_memory() -> None:
    """Tells glibc to reuse freed memory; elsewhere nothing happens."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
    mallopt(_M_TRIM_THRESHOLD, 512 * 2**20)


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


def flat_call(concrete: Any) -> Callable[..., list[Any]]:
    """`concrete` (flat tensors in, a flat list out) without the check of every argument against its signature.

    That check is Python and costs a step 2 of 15 milliseconds; the arguments are made by one caller, always alike, and
    TensorFlow's runtime still refuses another type or number of them.
    """
    function: Any = getattr(concrete, "inference_fn", None)
    if not hasattr(function, "call_flat"):  # another TensorFlow
        return lambda *tensors: list(concrete(*tensors))
    captured = list(concrete.captured_inputs)
    return lambda *tensors: list(function.call_flat(*tensors, *captured))


def aligned_zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Zeros whose memory TensorFlow can share."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.ctypes.data % ALIGNMENT)
