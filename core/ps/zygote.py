"""The process that parameter servers are forked from: `python -m trimtab.core.ps.zygote`.

Everything a parameter server imports is here once, its compiled kernels included; nothing is started, so no thread is
lost in a fork. It reads requests from standard input, which the cluster holds (`core/wire/forks.py`).
"""

from __future__ import annotations

import sys

from trimtab.core.ps import kernels, update_kernels
from trimtab.core.ps.main import main
from trimtab.core.wire.forks import serve_forks

LOADED = (kernels, update_kernels)  # declared with signatures: importing them has loaded the compiled code

if __name__ == "__main__":
    sys.exit(serve_forks(main))
