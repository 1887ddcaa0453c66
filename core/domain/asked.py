"""What a caller asked for, as the words of a command: so that a report can say how to run the same job again.

Only what is not the default is said, but for the options that a reader looks for first. Caps are said as they held, for
another machine would resolve open ones differently. The job's directory is left out: it must be new each time.
"""

from __future__ import annotations

from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.domain.quantities import format_cpu, format_memory


def asked_words(spec: JobSpec, limits: Limits) -> tuple[str, ...]:
    """The words behind `trimtab train` that ask for the same job.

    Args:
        spec: as asked for. limits: the caps as they held.
    """
    usual = JobSpec(data=spec.data)
    pairs: list[tuple[str, object]] = [
        ("--data", spec.data), ("--columns", spec.columns), ("--model", spec.model), ("--epochs", spec.epochs),
        ("--batch-size", spec.batch_size), ("--workers", spec.workers), ("--ps", spec.ps),
        ("--max-cpu", None if limits.cpu is None else format_cpu(limits.cpu)),
        ("--max-memory", None if limits.memory_bytes is None else format_memory(limits.memory_bytes)),
        ("--max-workers", limits.workers), ("--max-ps", limits.ps), ("--mode", spec.mode),
        ("--objective", spec.objective), ("--budget", spec.budget),
        ("--deadline", None if spec.deadline_seconds is None else f"{_number(spec.deadline_seconds)}s"),
        ("--core-hour-price", _unless(spec.prices.core_hour, usual.prices.core_hour)),
        ("--gib-hour-price", _unless(spec.prices.gib_hour, usual.prices.gib_hour)),
        ("--currency", _unless(spec.prices.currency, usual.prices.currency)),
        ("--learning-rate", spec.learning_rate), ("--job-name", spec.job_name),
        ("--checkpoint-dir", spec.checkpoint_dir), ("--init-from", spec.init_from),
        ("--validation", _unless(spec.validation, usual.validation)), ("--seed", _unless(spec.seed, usual.seed)),
        ("--embedding-dim", _unless(spec.embedding_dim, usual.embedding_dim)),
    ]  # fmt: skip
    return tuple(word for name, value in pairs if value is not None for word in (name, _number(value)))


def _unless(value: object, usual: object) -> object:
    return None if value == usual else value


def _number(value: object) -> str:
    """A float without a needless '.0', all else as it is written."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)
