"""The words that ask for the same job once more: read back by the command they are the same job."""

import pytest

from trimtab.core import cli, cli_train
from trimtab.core.domain.asked import asked_words
from trimtab.core.domain.job import JobSpec, Mode, Objective
from trimtab.core.domain.plan import Limits, Prices

CAPS = Limits(1.5, 3 * 2**30, 4, 2)
SPECS = [
    JobSpec("rows.parquet"),
    JobSpec("a b'c.csv", columns="c.yaml", model="my.models:make", epochs=3, batch_size=256, workers=2, ps=1,
            limits=Limits(cpu=1.5), mode=Mode.ADVISE, objective=Objective.FASTEST, learning_rate=0.05, job_name="daily",
            validation="other.csv", seed=7, embedding_dim=8, prices=Prices(0.031, 0.0044, "EUR"),
            checkpoint_dir="memory://copies", init_from="20261130-201758-0a1b2c", budget=2.5, deadline_seconds=5400.0),
    JobSpec("x", budget=3.0, deadline_seconds=90.5, validation=0.25, prices=Prices(1.0, 1.0, "$")),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=["defaults", "everything", "fractions"])
def test_the_command_reads_its_own_words(spec):
    words = asked_words(spec, CAPS)
    with cli.train.make_context("train", list(words)) as context:
        options = {name: value for name, value in context.params.items() if name != "as_json"}
    again = cli_train.spec_from_options(options)
    assert again == JobSpec(**{name: getattr(spec, name) for name in spec.__dataclass_fields__} | {"limits": CAPS})


def test_a_plain_job_has_a_short_command():
    words = asked_words(JobSpec("rows.parquet"), Limits())
    assert words == (
        "--data", "rows.parquet", "--model", "dlrm", "--epochs", "1", "--batch-size", "1024", "--mode", "auto",
        "--objective", "balanced", "--job-name", "train",
    )  # fmt: skip


def test_every_option_of_a_job_is_said():
    """An option that is added later must be added here too; the job's directory must be new each time."""
    said = set(asked_words(SPECS[1], CAPS)[::2])
    known = {name for option in cli.train.params for name in option.opts if name.startswith("--")}
    assert known - said == {"--job-dir", "--json", "--metrics-port"}, "these are not of the job"
