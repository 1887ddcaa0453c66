"""A vshard's content as plain arrays: what tables give and take, and what copies carry.

Apart from the table, so that whoever reads or writes copies (the controller, export) loads no compiled kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class VshardRows:
    """A vshard's content: for each table its keys [n] ascending and whole rows [n, width]."""

    keys: tuple[Int64s, ...]
    rows: tuple[Floats, ...]
