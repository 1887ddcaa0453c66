"""Kubernetes quantities, by the whole grammar and nothing else.

Plans end up in pod specs, so the one notation for cores and bytes is Kubernetes'. Lenient parsers read '129e6' as
exabytes or accept 'NaN' (case 28); this one follows `apimachinery/pkg/api/resource`: an optional sign, digits with an
optional point, then one of the suffixes or a decimal exponent. Values finer than the unit (1 milli-core, 1 byte) are
rounded up, as Kubernetes does.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from trimtab.core.errors import BadInput

_GRAMMAR = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]+)|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?")
_SUFFIX = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18), "Ki": Decimal(2**10),
    "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
_LARGEST = Decimal(2**63 - 1)
_REMEDY = "give a Kubernetes quantity such as '500m', '2', '512Mi' or '1.5Gi'"


def parse_quantity(text: str, field: str = "quantity") -> Decimal:
    """The exact value of a quantity such as '1.5Gi', '100m', '1e3' or '12E'.

    Raises:
        BadInput: the text is not in the grammar, or its value is beyond Kubernetes' 2**63 - 1.
    """
    match = _GRAMMAR.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BadInput(field, text, _REMEDY)
    sign, digits, exponent, suffix = match.groups()
    if exponent is not None and len(exponent) > 4:
        raise BadInput(field, text, "the exponent is out of range; " + _REMEDY)
    value = Decimal(digits) * (Decimal(f"1{exponent}") if exponent else _SUFFIX.get(suffix, Decimal(1)))
    if value > _LARGEST:
        raise BadInput(field, text, "the value is beyond 2^63 - 1; " + _REMEDY)
    return -value if sign == "-" else value


def parse_cpu(text: str | int | float, field: str = "cpu") -> float:
    """Cores as a float with milli-core resolution, rounded up; must be positive."""
    value = parse_quantity(str(text), field)
    milli = (value * 1000).to_integral_value(ROUND_CEILING)
    if milli <= 0:
        raise BadInput(field, text, "cores must be more than 0")
    return float(milli) / 1000


def parse_memory(text: str | int, field: str = "memory") -> int:
    """Bytes, rounded up; must be positive."""
    value = int(parse_quantity(str(text), field).to_integral_value(ROUND_CEILING))
    if value <= 0:
        raise BadInput(field, text, "memory must be more than 0 bytes")
    return value


def parse_duration(text: str | int | float, field: str = "duration") -> float:
    """Seconds of '90', '90s', '45m', '2h', '1.5h' or '1h30m'; must be positive.

    Raises:
        BadInput: the text is not such a time.
    """
    match = _DURATION.fullmatch(str(text).strip())
    parts = [float(one or 0) for one in match.groups()] if match and any(match.groups()) else []
    total = sum(value * unit for value, unit in zip(parts, (86400, 3600, 60, 1), strict=True)) if parts else 0.0
    if not 0 < total < 1e9:
        raise BadInput(field, text, "give a time such as 90s, 45m, 1h30m or 30d")
    return total


def format_cpu(cores: float) -> str:
    """Cores in Kubernetes' canonical form: '2' or '1500m'."""
    milli = int(Decimal(str(cores)).scaleb(3).to_integral_value(ROUND_CEILING))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def format_memory(memory_bytes: int) -> str:
    """Bytes in the largest binary suffix that is exact: '1536Mi', '2Gi', '1000'."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIX[suffix])
        if memory_bytes >= unit and memory_bytes % unit == 0:
            return f"{memory_bytes // unit}{suffix}"
    return str(memory_bytes)
