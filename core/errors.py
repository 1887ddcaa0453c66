"""One tree of errors for the whole product.

A person who runs a job meets these messages, not tracebacks, so each says three things: which field, which value,
and what would be right. The command line maps the branches to exit codes (2 for `BadInput`, 1 for the rest), which is
why nothing outside this tree may be raised on purpose by library code.
"""

from __future__ import annotations


class TrimtabError(Exception):
    """Root of every error that trimtab raises on purpose."""


class BadInput(TrimtabError):
    """Something the caller gave cannot be used; found before anything is started where it can be known.

    Args:
        field: the option, column, file or attribute at fault, as the caller wrote it (``--batch-size``).
        value: what was given; shown with ``repr`` unless it is a plain word or number.
        remedy: what would be right, as a clause ("give a whole number of at least 1").
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field}: {_shown(value)}: {remedy}")


class DataError(BadInput):
    """Rows that cannot be read: the field names the file, and where possible the row or byte offset."""


class ModelError(BadInput):
    """A model that cannot be trained here: unknown, not a functional Keras model, or with an unsupported part."""


class JobFailed(TrimtabError):
    """A job that was started and could not be finished; the message holds the reason a person can act on."""


class Interrupted(TrimtabError):
    """The caller stopped the job (Ctrl-C, SIGTERM).

    Attributes:
        outcome: the stopped job's result as a dictionary, where the job had begun; else None.
    """

    outcome: dict[str, object] | None = None


class WireError(TrimtabError):
    """A peer sent something that the protocol does not allow; the connection is closed, the process goes on."""


class Refused(WireError):
    """A peer refused: wrong secret, job, version or term. Trying again without change is useless."""


class StaleState(TrimtabError):
    """A compare-and-swap on the state document met a newer version: read again, decide again."""


class CorruptCopy(TrimtabError):
    """A copy or manifest whose length, checksum or version is wrong; it is void as a whole."""


def _shown(value: object) -> str:
    """`value` for an error message, shortened to one readable piece."""
    plain = f"'{value}'" if isinstance(value, str) and value.isprintable() else repr(value)
    text = str(value) if isinstance(value, int | float) else plain
    return text if len(text) <= 200 else text[:197] + "..."
