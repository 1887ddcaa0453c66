"""The `trimtab` command: options, exit codes, and one clear line when something cannot be used.

It stands on the top floor and imports each room only inside the sub-command that needs it, so that `trimtab --help`
answers at once. Exit codes are a promise: 0 done, 1 the job failed, 2 bad input, 130 interrupted. With `--json`,
stdout carries exactly one JSON object whatever happens (also for bad input: the same keys, null where nothing is
known); everything else goes to stderr.
"""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from trimtab import __version__
from trimtab.core.cli_display import say
from trimtab.core.cli_jobs import COMMANDS
from trimtab.core.cli_options import whole
from trimtab.core.errors import BadInput, Interrupted, TrimtabError

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_DATA_REMEDY = "give a path, glob, directory or URL of rows"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
             invoke_without_command=True)
@click.version_option(__version__, message="trimtab %(version)s")
@click.pass_context
def trimtab(context: click.Context) -> None:  # fmt: skip
    """Train recommendation models with parameter servers, every batch exactly once.

    Start with `trimtab data sample --rows 100000 --out rows.parquet`, then `trimtab train --data rows.parquet`.
    """
    _help_when_alone(context)


@trimtab.command(short_help="Train a model with parameter servers and workers on this machine.")
@click.option("--data", required=True, metavar="PATH|GLOB|DIR|URL", help="Rows: Criteo TSV, CSV, Parquet or TFRecord.")
@click.option("--columns", metavar="FILE", help="YAML or JSON that names the columns' roles [default: detected].")
@click.option("--model", default="dlrm", show_default=True, metavar="NAME|MODULE:FUNCTION",
              help="dlrm, wide_deep, deepfm, xdeepfm, dcn, or your function that returns a compiled Keras model.")
@whole("--epochs", 1, "Passes over the training rows.", default="1")
@whole("--batch-size", 1, "Rows per batch.", default="1024")
@whole("--workers", 1, "Workers [default: chosen].")
@whole("--ps", 1, "Parameter servers [default: chosen].")
@click.option("--max-cpu", metavar="CORES", help="Cores that the plan shares out among all processes "
              "[default: the machine's].")
@click.option("--max-memory", metavar="QUANTITY", help="Memory that the plan shares out, such as 4Gi "
              "[default: 75 % of what is free].")
@whole("--max-workers", 1, "Most workers at any time.")
@whole("--max-ps", 1, "Most parameter servers at any time.")
@click.option("--mode", default="auto", show_default=True, metavar="auto|advise|fixed",
              help="What may happen to the plan while the job runs: change it, only say what would pay, nothing.")
@click.option("--objective", default="balanced", show_default=True, metavar="balanced|fastest|cheapest",
              help="What a better plan is: as fast as pays, as fast as the caps allow, or as cheap as possible.")
@click.option("--budget", metavar="MONEY", help="Most that the job may cost: dearer plans are not chosen.")
@click.option("--deadline", metavar="TIME", help="The job should end so long after its start, such as 45m or 2h.")
@click.option("--core-hour-price", metavar="MONEY", help="Price of a core for an hour [default: 0.04].")
@click.option("--gib-hour-price", metavar="MONEY", help="Price of a GiB of memory for an hour [default: 0.005].")
@click.option("--currency", metavar="NAME", help="Of the prices [default: $].")
@click.option("--learning-rate", metavar="X", help="Overrides the compiled optimizer's.")
@click.option("--job-name", default="train", show_default=True, metavar="NAME", help="The family of runs it joins.")
@click.option("--job-dir", metavar="DIR", help="Where the job's files go, new or empty [default: under TRIMTAB_HOME].")
@click.option("--checkpoint-dir", metavar="PATH|URL", help="Where checkpoints go, each run's in a folder of its own "
              "[default: in the job's directory].")
@click.option("--init-from", metavar="RUN|CHECKPOINT", help="Start with the rows of a run (id or directory) or of a "
              "checkpoint (path or URL), as a new job.")
@click.option("--validation", default="0.1", show_default=True, metavar="FRACTION|PATH",
              help="Share of rows held out, or the path of other rows.")
@whole("--seed", 0, "Decides shuffle, split and every draw.", default="0")
@whole("--embedding-dim", 1, "Width of the built-in models' embeddings.", default="16")
@whole("--metrics-port", 0, "Serve figures of the running job here, on this machine only, for Prometheus; 0: any.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout.")
def train(as_json: bool, **options: Any) -> int:  # fmt: skip
    """Train a model with parameter servers and workers on this machine.

    Every batch of every epoch is applied exactly once. Ends with a table of what came out, and exit code 0 (done),
    1 (the job failed), 2 (bad input) or 130 (interrupted).
    """
    from trimtab.core import cli_train

    spec = cli_train.spec_from_options(options)
    return cli_train.run(spec, as_json=as_json, metrics_port=options["metrics_port"])


@trimtab.command(short_help="Say what a job would start with, and what that would bring; start nothing.")
@click.option("--what-if", "what_if", multiple=True, metavar="workers=N,ps=N,...",
              help="Predict this plan beside it; also worker_cpu, ps_cpu and batch_size. May be given again.")
@click.option("--picture", metavar="FILE", help="Draw the front of cost and throughput there, as .png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as one JSON object on stdout.")
def plan(what_if: tuple[str, ...], picture: str | None, as_json: bool, **options: Any) -> int:  # fmt: skip
    """Say what a job with these options would start with and why, and what that would bring. Nothing is started.

    Shows the first plan, the front of cost and throughput, time and cost of the whole job, and what each rests on.
    Takes the options of `train`.
    """
    from trimtab.core import cli_plan, cli_train

    return cli_plan.run(cli_train.spec_from_options(options), what_if, picture, as_json=as_json)


plan.params[:0] = [option for option in train.params if option.name != "as_json"]


@trimtab.command(short_help="Start a job that goes on when this shell ends.")
@click.option("--json", "as_json", is_flag=True, help="Print the run's id and where it lies as one JSON object.")
def submit(as_json: bool, **options: Any) -> int:
    """Start a job that outlives this shell, and print its run's id on stdout once it has begun.

    Takes the options of `train`; bad input is found before anything begins. `trimtab status` shows how the job stands,
    `trimtab logs` what it says, `trimtab stop` ends it.
    """
    from trimtab.core import cli_submit, cli_train

    spec = cli_train.spec_from_options(options)
    return cli_submit.run(spec, as_json=as_json, metrics_port=options["metrics_port"])


submit.params[:0] = [option for option in train.params if option.name != "as_json"]


@trimtab.command(short_help="Go on with a job that was killed, stopped or failed.")
@click.argument("job", metavar="JOB")
@click.option("--detach", is_flag=True, help="Let it go on when this shell ends, and print its run's id.")
@whole("--metrics-port", 0, "As for `train`.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout.")
def resume(job: str, detach: bool, metrics_port: int | None, as_json: bool) -> int:
    """Go on with JOB (a run's id, or its directory) after a kill, a restart of the machine, Ctrl-C or a failure.

    It stays the same run, and what its last checkpoint or snapshots hold is not trained again. Ends as `train` does,
    or, with --detach, begins as `submit` does.
    """
    if detach:
        from trimtab.core import cli_submit

        return cli_submit.resume(job, as_json=as_json, metrics_port=metrics_port)
    from trimtab.core import cli_resume

    return cli_resume.run(job, as_json=as_json, metrics_port=metrics_port)


for _command in COMMANDS:
    trimtab.add_command(_command)


@trimtab.group(short_help="Make sample rows; look at what is in a file.", invoke_without_command=True)
@click.pass_context
def data(context: click.Context) -> None:
    """Make sample rows; look at what is in a file."""
    _help_when_alone(context)


@data.command()
@whole("--rows", 1, "Rows to write.", required=True)
@click.option("--out", required=True, metavar="PATH", help="Written by its ending: .parquet .tsv .csv .tfrecord, "
              "and .tsv.gz or .csv.gz.")
@whole("--seed", 0, "The same seed writes the same rows.", default="0")
def sample(rows: int, out: str, seed: int) -> None:  # fmt: skip
    """Write Criteo-shaped rows with a planted signal."""
    from trimtab.core import cli_data

    cli_data.sample(rows, out, seed)


@data.command()
@click.argument("path")
@click.option("--columns", metavar="FILE", help="YAML or JSON that names the columns' roles [default: detected].")
@click.option("--json", "as_json", is_flag=True, help="Print the description as one JSON object on stdout.")
def describe(path: str, columns: str | None, as_json: bool) -> None:
    """Show the columns, their roles and a few figures of the rows at PATH."""
    from trimtab.core import cli_data

    cli_data.describe(path, columns, as_json=as_json)


@trimtab.command(short_help="Write a finished run's model as a plain Keras model.")
@click.argument("run", metavar="RUN")
@click.option("--out", required=True, metavar="DIR", help="Where the files go; a new or an empty directory.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON object on stdout.")
def export(run: str, out: str, as_json: bool) -> int:
    """Write the model of RUN (a run's id, or its directory) as a plain Keras model that loads without trimtab.

    It has one input per column and gives the scores of the job's own evaluation.
    """
    from trimtab.core import cli_export

    return cli_export.run(run, out, as_json=as_json)


@trimtab.command(short_help="Show past runs: when, how fast, which plans, from what they started warm.")
@click.option("--job-name", metavar="NAME", help="Only runs of this family [default: all].")
@whole("--limit", 1, "Runs to show, the last ones.", default="20")
@click.option("--json", "as_json", is_flag=True, help="Print the runs as one JSON object on stdout.")
def history(job_name: str | None, limit: int, as_json: bool) -> int:
    """Show past runs, the last one first. Records that a store has not taken yet are delivered first."""
    from trimtab.core import cli_history

    return cli_history.history(job_name, limit, as_json=as_json)


@trimtab.command(short_help="Say why a run's plan changed: each decision, predicted beside measured.")
@click.argument("run", metavar="RUN_ID")
@click.option("--html", metavar="FILE", help="Also write the report page there.")
@click.option("--json", "as_json", is_flag=True, help="Print the report's data as one JSON object on stdout.")
def explain(run: str, html: str | None, as_json: bool) -> int:
    """Say why the plan of RUN_ID (a run's id, or its directory) changed: reasons, candidates, what was measured then.

    A run that still trains is explained as far as it has come.
    """
    from trimtab.core import cli_explain

    return cli_explain.run(run, html, as_json=as_json)


@trimtab.command(short_help="Fit a law of throughput to a table of yours; predict other configurations.")
@click.argument("table", metavar="TABLE.csv")
@click.option("--predict", metavar="FILE", help="CSV with configurations to predict: workers, ps, and what else the "
              "table varies; - reads stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as one JSON object on stdout.")
def fit(table: str, predict: str | None, as_json: bool) -> int:  # fmt: skip
    """Fit a law of throughput to the measurements in TABLE.csv (- reads stdin), and predict other configurations.

    Needed columns: workers, ps, throughput (samples per second of the whole job). Optional: worker_cpu, ps_cpu (cores
    per pod), batch_size (rows per step of one worker), worker_cpu_seconds, ps_cpu_seconds (CPU seconds per step of one
    worker: of its process, and of all parameter servers together). In any order; several rows of one configuration are
    repeats, other columns are not looked at. Shows the law, its coefficients, which of them the table cannot tell, and
    how far off each candidate was for configurations that its fit did not see.
    """
    from trimtab.core import cli_fit

    return cli_fit.run(table, predict, as_json=as_json)


@trimtab.group(short_help="Look at a job's parameter servers.", invoke_without_command=True)
@click.pass_context
def ps(context: click.Context) -> None:
    """Look at a job's parameter servers."""
    _help_when_alone(context)


@ps.command(short_help="Show rows, bytes and traffic, and the hottest vshards.")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as one JSON object on stdout.")
def stats(job: str, as_json: bool) -> int:
    """Show rows, bytes and traffic of JOB's parameter servers and tables, and its hottest vshards.

    JOB is a run's id, the beginning of one, or a job's directory. A job that runs is shown as it was a moment ago, one
    that has ended as it was then.
    """
    from trimtab.core import cli_ps

    return cli_ps.stats(job, as_json=as_json)


@trimtab.command(short_help="Show past runs in MLflow's pages, until Ctrl-C.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="NAME", help="Where the server listens.")
@whole("--port", 1, "At which port.", default="5000")
def ui(host: str, port: int) -> int:
    """Serve MLflow's pages on this machine and print the address of trimtab's runs. Ctrl-C ends it."""
    from trimtab.core import cli_history

    return cli_history.ui(host, port)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave with its exit code.

    Args:
        arguments: as typed, without the program's name; None: those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        # Without click's standalone mode, so that its errors become one line in our words; it returns help's exit code.
        code = trimtab.main(given, prog_name="trimtab", standalone_mode=False)
    except BadInput as error:
        code = _refuse(error, as_json)
    except click.ClickException as error:
        code = _refuse(_in_our_words(error, given), as_json)
    except (Interrupted, KeyboardInterrupt, click.Abort) as error:
        outcome = error.outcome if isinstance(error, Interrupted) else None
        code = _give_up("stopped", str(error) or "interrupted", as_json, INTERRUPTED, outcome)
    except TrimtabError as error:
        code = _give_up("failed", str(error), as_json, FAILED)
    except Exception as error:
        if as_json:
            _print_failure("failed", f"{type(error).__name__}: {error}")
        raise  # a fault of ours: the traceback is what a report of it needs
    raise SystemExit(code if isinstance(code, int) else DONE)


def _refuse(error: BadInput, as_json: bool) -> int:
    if as_json:
        detail = {"field": error.field, "value": str(error.value), "remedy": error.remedy}
        _print_failure("failed", _one_line(str(error)), detail)
    say(f"trimtab: {_one_line(str(error))}", err=True)
    return BAD_INPUT


def _give_up(state: str, message: str, as_json: bool, code: int, outcome: dict[str, object] | None = None) -> int:
    if as_json and outcome is not None:
        say(json.dumps(outcome, allow_nan=False))
    elif as_json:
        _print_failure(state, _one_line(message))
    job_dir = outcome.get("job_dir") if outcome is not None else None
    resume = f"trimtab resume {shlex.quote(str(job_dir))}"
    record = f"; its record is in {job_dir}, and `{resume}` goes on" if job_dir else ""
    say(f"trimtab: {_one_line(message)}{record}", err=True)
    return code


def _print_failure(state: str, message: str, bad_input: dict[str, str] | None = None) -> None:
    from trimtab.core.controller.result import no_result
    from trimtab.core.domain.job import JobState

    say(json.dumps(no_result(JobState(state), message, bad_input), allow_nan=False))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _help_when_alone(context: click.Context) -> None:
    """A group called without a command shows what it has."""
    if context.invoked_subcommand is None:
        say(context.get_help())


def _in_our_words(error: click.ClickException, given: list[str]) -> BadInput:
    """Click's complaint as field, value and remedy; a near name is offered for a mistyped one."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command if context is not None else None
    if isinstance(error, click.NoSuchOption):
        known = [name for parameter in command.params for name in parameter.opts] if command else []
        return BadInput("option", error.option_name, _did_you_mean(error.option_name, known, context))
    if isinstance(error, click.MissingParameter):
        name = error.param.opts[0] if error.param is not None else "argument"
        remedy = _DATA_REMEDY if name in ("--data", "path") else f"it is needed; {_help_hint(context)}"
        return BadInput(name, "", remedy)
    if isinstance(error, click.BadOptionUsage):
        return BadInput(error.option_name, "", f"it needs a value; {_help_hint(context)}")
    unknown = error.message.split("'")[1::2] if error.message.startswith("No such command") else []
    if unknown and isinstance(command, click.Group):
        return BadInput("command", unknown[0], _did_you_mean(unknown[0], list(command.commands), context))
    return BadInput("command line", " ".join(given), f"{error.format_message().rstrip('.')}; {_help_hint(context)}")


def _did_you_mean(typed: str, known: list[str], context: click.Context | None) -> str:
    near = difflib.get_close_matches(typed, known, n=1, cutoff=0.5)
    return f"there is no such name; {f'did you mean {near[0]}?' if near else _help_hint(context)}"


def _help_hint(context: click.Context | None) -> str:
    return f"see `{context.command_path if context else 'trimtab'} --help`"


if __name__ == "__main__":
    main()
