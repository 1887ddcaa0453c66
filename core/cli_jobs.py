"""The commands about jobs that run by themselves: how one stands, what it says, stop it, tidy up.

Only the options stand here; each command imports what it needs when it is called, so that help answers at once. Every
one of them works for any job of this machine, whoever started it and from which shell.
"""

from __future__ import annotations

import click

from trimtab.core.cli_options import whole


@click.command(short_help="Show how a job stands: progress, pods, checkpoint, what is wrong.")
@click.argument("job", metavar="JOB")
@click.option("--watch", is_flag=True, help="Show it again and again until the job has ended, or Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object on stdout; with --watch one a line.")
def status(job: str, watch: bool, as_json: bool) -> int:
    """Show how JOB stands: its progress, its pods, its checkpoint, and what is wrong with it.

    JOB is a run's id, the beginning of one, or a job's directory. A job that has ended, or whose controller is out of
    reach, is shown by what lies in its directory.
    """
    from trimtab.core import cli_status

    return cli_status.run(job, watch=watch, as_json=as_json)


@click.command(short_help="Show what a job's processes have said.")
@click.argument("job", metavar="JOB")
@click.argument("pod", metavar="[POD]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on showing new lines until the job has ended, or Ctrl-C.")
@whole("--last", 1, "Only so many lines of each process to begin with.", short="-n")
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON object on stdout; with -f one a line.")
def logs(job: str, pod: str | None, follow: bool, last: int | None, as_json: bool) -> int:
    """Show what the processes of JOB have said: POD's alone, or all of them.

    JOB is a run's id, the beginning of one, or a job's directory. POD is a pod's name, the beginning of one (worker-0),
    or `controller`, for a job that was submitted.
    """
    from trimtab.core import cli_logs

    return cli_logs.logs(job, pod, follow=follow, last=last, as_json=as_json)


@click.command(short_help="Show what has happened to a job.")
@click.argument("job", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on showing new ones until the job has ended, or Ctrl-C.")
@whole("--last", 1, "Only so many to begin with.", short="-n")
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON object on stdout; with -f one a line.")
def events(job: str, follow: bool, last: int | None, as_json: bool) -> int:
    """Show what has happened to JOB: minutes and seconds since its start, the kind of event, and what it was.

    JOB is a run's id, the beginning of one, or a job's directory.
    """
    from trimtab.core import cli_logs

    return cli_logs.events(job, follow=follow, last=last, as_json=as_json)


@click.command(short_help="Stop a running job, with a last checkpoint, and wait until it has ended.")
@click.argument("job", metavar="JOB")
@click.option("--now", is_flag=True, help="Without a last checkpoint: what was done since the one before is lost.")
@click.option("--json", "as_json", is_flag=True, help="Print how it ended as one JSON object on stdout.")
def stop(job: str, now: bool, as_json: bool) -> int:
    """Stop JOB, with a last checkpoint, and wait until it has ended. `trimtab resume` goes on with it.

    JOB is a run's id, the beginning of one, or a job's directory. Ctrl-C ends the waiting only.
    """
    from trimtab.core import cli_stop

    return cli_stop.stop(job, now=now, as_json=as_json)


@click.command(short_help="Write a checkpoint of a running job now, and wait until it is committed.")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print how the job stands then as one JSON object on stdout.")
def checkpoint(job: str, as_json: bool) -> int:
    """Write a checkpoint of JOB now, and wait until it is committed; says how many batches it holds.

    JOB is a run's id, the beginning of one, or a job's directory. Ctrl-C ends the waiting only.
    """
    from trimtab.core import cli_stop

    return cli_stop.checkpoint(job, as_json=as_json)


@click.group(short_help="List this machine's jobs; remove old ones.", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON object on stdout.")
@click.pass_context
def jobs(context: click.Context, as_json: bool) -> int:
    """List the jobs under TRIMTAB_HOME, the last one first: state, age, progress, plan."""
    if context.invoked_subcommand is not None:
        return 0
    from trimtab.core import cli_list

    return cli_list.jobs(as_json=as_json)


@jobs.command(short_help="Remove the directories of jobs that ended long ago.")
@click.option("--older-than", required=True, metavar="TIME", help="Only jobs that ended so long ago, such as 30d.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what went as one JSON object on stdout.")
@click.pass_context
def prune(context: click.Context, older_than: str, dry_run: bool, as_json: bool) -> int:
    """Remove the directories of jobs under TRIMTAB_HOME that ended long ago, with their checkpoints. Asks nothing.

    A job that runs stays, and so does one whose record no store has yet, or whose checkpoint another job needs. Jobs
    that were started with --job-dir elsewhere are not touched.
    """
    from trimtab.core import cli_list

    above = context.parent.params.get("as_json", False) if context.parent is not None else False
    return cli_list.prune(older_than, dry_run=dry_run, as_json=as_json or above)


COMMANDS = (status, logs, events, stop, checkpoint, jobs)
