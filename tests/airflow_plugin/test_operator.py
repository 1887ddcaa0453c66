"""The operator around a stand-in for the job; tests/pipelines runs a real one in a DAG."""

import configparser
import json
import sys
import threading
from pathlib import Path

import pytest

from trimtab.airflow_plugin.command import OPTIONS
from trimtab.airflow_plugin.naming import family_of
from trimtab.airflow_plugin.provider import get_provider_info

RESULT = {"run_id": "r1", "state": "finished", "auc": 0.7, "warm_start": None, "error": None}
# A job that says what it got, waits to be stopped if it shall, and ends as it is told.
JOB = """
import json, os, signal, sys
code, result, waits = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "waits"
def stopped(number, frame):
    print(json.dumps({"run_id": "r1", "state": "stopped", "error": None}))
    sys.stdout.flush()
    os._exit(130)
signal.signal(signal.SIGTERM, stopped)
print("home", os.environ.get("TRIMTAB_HOME"), file=sys.stderr, flush=True)
print("training", file=sys.stderr, flush=True)
if waits:
    signal.pause()
print("noise")
print(result)
sys.exit(code)
"""


@pytest.fixture
def task(operators, monkeypatch):
    """Makes an operator whose job is the stand-in; `given` holds the options that it was started with."""
    given = {}

    def make(code=0, result=RESULT, waits=False, **options):
        def command(asked, grace_seconds):
            given.update(asked)
            said = json.dumps(result) if result else ""
            job = [sys.executable, "-c", JOB, str(code), said, "waits" if waits else "-"]
            return [sys.executable, "-m", "trimtab.airflow_plugin.keeper", f"{grace_seconds:g}", *job]

        monkeypatch.setattr(operators, "keeper_command", command)
        options = {"data": "rows.csv", **options}
        return operators.TrimtabTrainOperator(task_id="train", **options), given

    return make


def test_the_result_is_what_the_task_returns_and_the_log_has_the_progress(task, capsys):
    operator, given = task(environment={"TRIMTAB_HOME": "/jobs"}, workers=2)
    assert operator.execute({}) == RESULT
    said = capsys.readouterr().out  # where Airflow's logger writes outside of a task
    assert all(line in said for line in ("home /jobs", "training", "run r1: auc 0.7, warm start None"))
    assert "stopping the job in order" not in said
    assert (given["data"], given["workers"], given["job_name"]) == ("rows.csv", 2, family_of(operator.dag_id, "train"))


@pytest.mark.parametrize(
    ("code", "result", "kind", "words"),
    [
        (2, {"run_id": None, "error": "--data: 'x': no file"}, "AirflowFailException", "--data: 'x': no file"),
        (1, {"run_id": "r1", "error": "worker 1 ended"}, "AirflowException", "run r1 failed: worker 1 ended"),
        (1, None, "AirflowException", "its process ended with exit code 1"),
    ],
)
def test_only_bad_input_is_not_tried_again(task, code, result, kind, words):
    from airflow.sdk.exceptions import AirflowException

    operator, _ = task(code=code, result=result)
    with pytest.raises(AirflowException, match=words) as caught:
        operator.execute({})
    assert type(caught.value).__name__ == kind


def test_on_kill_stops_the_job_in_order(task, capsys):
    from airflow.sdk.exceptions import AirflowException

    operator, _ = task(waits=True)
    ended = []

    def run():
        with pytest.raises(AirflowException, match="run r1 was stopped"):
            operator.execute({})
        ended.append(operator._process.returncode)

    thread = threading.Thread(target=run)
    seen = threading.Event()
    operator._log_lines = _telling(operator._log_lines, seen)
    thread.start()
    assert seen.wait(60)
    operator.on_kill()
    thread.join(60)
    assert ended == [130]
    assert "stopping the job in order" in capsys.readouterr().out


def _telling(read, seen):
    """`read`, and `seen` is set when the job has said its first line."""

    def both(process):
        first = process.stderr.readline()
        assert first
        seen.set()
        read(process)

    return both


def test_a_task_that_was_killed_before_its_job_began_ends(task):
    from airflow.sdk.exceptions import AirflowException

    operator, _ = task(waits=True)
    operator.on_kill()
    with pytest.raises(AirflowException, match=r"was stopped|ended with exit code"):
        operator.execute({})
    assert operator._process.returncode in (130, 143)


def test_an_exception_in_the_task_stops_the_job(task, monkeypatch, operators):
    """Airflow's execution_timeout raises wherever the task is."""
    operator, _ = task(waits=True)
    wait, interrupted = operators.subprocess.Popen.wait, []

    def interrupt_once(self, timeout=None):
        if not interrupted:
            interrupted.append(self)
            raise TimeoutError("task timed out")
        return wait(self, timeout)

    monkeypatch.setattr(operators.subprocess.Popen, "wait", interrupt_once)
    with pytest.raises(TimeoutError):
        operator.execute({})
    assert interrupted[0].returncode in (130, 143)


def test_options_are_templates(operators):
    fields = operators.TrimtabTrainOperator.template_fields
    assert set(fields) == {*OPTIONS, "environment"}
    operator = operators.TrimtabTrainOperator(
        task_id="t", data="{{ params.rows }}", max_cpu="{{ params.cpu }}", environment={"HOME": "{{ params.home }}"}
    )
    operator.render_template_fields({"params": {"rows": "a.csv", "cpu": None, "home": "/h"}})
    assert (operator.data, operator.max_cpu, operator.environment) == ("a.csv", "None", {"HOME": "/h"})


def test_airflow_finds_the_provider_and_can_read_its_page(operators, repository):
    import airflow
    import jsonschema

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    page = get_provider_info()
    jsonschema.validate(page, schema)
    assert page["operators"][0]["python-modules"] == [operators.__name__]
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg")
    points = setup["options.entry_points"]["apache_airflow_provider"].split()
    assert points == ["provider_info", "=", f"{get_provider_info.__module__}:{get_provider_info.__name__}"]
    assert page["package-name"] == setup["metadata"]["name"]
