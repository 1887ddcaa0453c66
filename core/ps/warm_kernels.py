"""A process that imports every kernel module, which compiles what the cache lacks.

Kernels are declared with explicit signatures, so importing them is compiling them: no call with made-up data can miss
one. Training's kernel module is named as text, because the parameter server's room may not import a higher one.
"""

from __future__ import annotations

import importlib

MODULES = ("trimtab.core.ps.kernels", "trimtab.core.ps.update_kernels", "trimtab.core.training.kernels")


def main() -> None:
    """Import them all."""
    for module in MODULES:
        importlib.import_module(module)


if __name__ == "__main__":
    main()
