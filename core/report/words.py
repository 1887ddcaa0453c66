"""How numbers, times and plans are written, in one place, so that page, picture and terminal say the same.

U+202F stands between thousands and before % and k, U+00A0 before other units, U+2212 is the minus. What is not known,
not finite or not a number is a dash, never a zero: a record may come from another version or a broken clock.
"""

from __future__ import annotations

import math
import re
from unicodedata import category

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Range

THIN, NO_BREAK, UNKNOWN = "\u202f", "\u00a0", "–"


def known(value: object) -> float | None:
    """`value` as a finite float, or None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def one_line(text: str) -> str:
    """`text` on one line without control signs: a reason may hold what a log said, and a terminal would obey it.

    Our own narrow and no-break spaces stay.
    """
    kept = (" " if category(sign)[0] == "C" or sign in "\u2028\u2029" else sign for sign in text)
    return re.sub(" {2,}", " ", "".join(kept)).strip(" ")


def whole(number: float | None) -> str:
    """A count with thin spaces between thousands; a dash when not known."""
    found = known(number)
    return UNKNOWN if found is None else f"{round(found):,}".replace(",", THIN).replace("-", "\u2212")


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: '45 s', '41 min', '2 h 5 min'; a dash when not known."""
    found = known(seconds)
    if found is None or found < 0:
        return UNKNOWN
    if found < 60:
        return f"{math.ceil(found)}{NO_BREAK}s"
    minutes = math.ceil(found / 60)
    if minutes < 60:
        return f"{minutes}{NO_BREAK}min"
    hours, rest = divmod(minutes, 60)
    return f"{hours}{NO_BREAK}h" + (f" {rest}{NO_BREAK}min" if rest else "")


def exact_duration(seconds: float | None) -> str:
    """Seconds to the second: '41 min 12 s', '1 h 2 min'; tenths below ten seconds."""
    found = known(seconds)
    if found is None or found < 0:
        return UNKNOWN
    if found < 9.95:
        return f"{found:.1f}{NO_BREAK}s"
    hours, rest = divmod(round(found), 3600)
    if hours:
        return f"{hours}{NO_BREAK}h" + (f" {rest // 60}{NO_BREAK}min" if rest >= 60 else "")
    minutes, rest = divmod(rest, 60)
    if not minutes:
        return f"{rest}{NO_BREAK}s"
    return f"{minutes}{NO_BREAK}min" + (f" {rest}{NO_BREAK}s" if rest else "")


def clock(seconds: float | None) -> str:
    """Time since the job's start as on a clock: '0:41', '1:02:03'; a dash when not known."""
    found = known(seconds)
    if found is None or found < 0:
        return UNKNOWN
    hours, rest = divmod(math.floor(found + 1e-9), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def age(seconds: float | None) -> str:
    """How long ago something ended: '3 h ago'; a clock that went back is 'just now'."""
    found = known(seconds)
    if found is None:
        return UNKNOWN
    if found < 90:
        return "just now"
    if found < 5400:
        return f"{whole(found / 60)}{NO_BREAK}min ago"
    return f"{whole(found / 3600)}{NO_BREAK}h ago" if found < 129600 else f"{whole(found / 86400)}{NO_BREAK}days ago"


def samples(throughput: float | None) -> str:
    """Samples per second without the unit: '185 k', '34.2 k', '940'."""
    found = known(throughput)
    if found is None:
        return UNKNOWN
    if abs(found) < 999.5:
        return whole(found)
    return (whole(found / 1e3) if abs(found) >= 99_950 else f"{found / 1e3:.1f}".replace("-", "\u2212")) + f"{THIN}k"


def bounds(prediction: Range | None) -> str:
    """The bounds of a prediction: '31.0–37.2 k'; empty where there are none."""
    low, high = (None, None) if prediction is None else (known(prediction.low), known(prediction.high))
    if low is None or high is None:
        return ""
    first, last = samples(low), samples(high)
    k = f"{THIN}k"
    return f"{first.removesuffix(k)}–{last}" if first.endswith(k) and last.endswith(k) else f"{first}–{last}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of 0..1 in percent."""
    found = _points(share)
    return UNKNOWN if found is None else f"{found:.{digits}f}{THIN}%".replace("-", "\u2212")


def signed(share: float | None) -> str:
    """A relative change: '+71 %', '−4 %', '±0 %'; gains rounded down, losses up, as every promise here."""
    found = _points(share)
    if found is None:
        return UNKNOWN
    points = round(found, 6)
    if points == 0:
        return f"±0{THIN}%"
    return f"{'+' if points > 0 else chr(0x2212)}{abs(math.floor(points)):,}{THIN}%".replace(",", THIN)


def _points(share: float | None) -> float | None:
    found = known(share)
    return None if found is None else known(100 * found)


def money(amount: float | None, currency: str) -> str:
    """An amount: two decimals from 1 on, two significant digits below, so that a minute's cost is not '0.00'."""
    found = known(amount)
    if found is None:
        return UNKNOWN
    digits = 2 if abs(found) >= 1 or found == 0 else min(8, 1 - math.floor(math.log10(abs(found))))
    text = "0" if found == 0 else f"{found:,.{digits}f}".replace(",", THIN).replace("-", "\u2212")
    return f"{currency}{text}" if len(currency) == 1 else f"{text}{NO_BREAK}{currency}".rstrip()


def gib(memory_bytes: float | None) -> str:
    """Bytes in GiB with three significant digits at most: '1.5 GiB'."""
    found = known(memory_bytes)
    return UNKNOWN if found is None else f"{found / 2**30:.3g}{NO_BREAK}GiB"


def cores(number: float | None) -> str:
    """Cores without trailing zeros: '0.75', '12'."""
    found = known(number)
    return UNKNOWN if found is None else f"{round(found, 3):g}"


def plan_text(plan: Plan | None) -> str:
    """`workers × cores + PSs × cores`; a dash for no plan."""
    if plan is None:
        return UNKNOWN
    worker, ps = plan.worker, plan.ps
    return f"{worker.replicas} × {cores(worker.cpu)} + {ps.replicas} × {cores(ps.cpu)}"


def plural(number: float | None, word: str) -> str:
    """'1 plan change', '2 plan changes', '– plan changes'."""
    return f"{whole(number)} {word}{'' if known(number) == 1 else 's'}"
