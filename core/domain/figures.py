"""Numbers that leave the house are finite.

NaN breaks an MLflow run page, Infinity is stored as 1.8e308, and either makes a KFP metric or a JSON document void
(cases 42, 47). So every room that hands figures on sieves them here, and says what it left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def finite(figures: Mapping[str, object]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The finite numbers of `figures` as floats, and the names of the numbers that are not finite.

    What is no number (text, None, a flag) belongs to neither: it is no figure. A whole number beyond a float's range
    counts as not finite.
    """
    kept: dict[str, float] = {}
    dropped: list[str] = []
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            kept[name] = number
        else:
            dropped.append(name)
    return kept, tuple(dropped)
