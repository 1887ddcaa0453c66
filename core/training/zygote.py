"""The process that workers are forked from: `python -m trimtab.core.training.zygote`.

TensorFlow is imported and its environment set as `configure_tensorflow` does, and no operation is run: a fork after
one hangs at its own first. Threads of TensorFlow's pools are made at that first operation, so each worker still
chooses their number. The user's code is not imported: it may start threads, open files or run operations.
"""

from __future__ import annotations

import importlib
import os

from trimtab.core.training.runtime import configure_tensorflow
from trimtab.core.wire.forks import serve_forks

ALSO = ("trimtab.core.training.kernels", "keras_rs", "trimtab.core.training.models")


def serve() -> int:
    """Import what a worker needs, and fork workers until told to end."""
    configure_tensorflow()
    from trimtab.core.training.worker import main

    for module in ALSO:
        importlib.import_module(module)
    return serve_forks(main)


if __name__ == "__main__":
    exit_code = serve()
    os._exit(exit_code)  # nothing to take down
