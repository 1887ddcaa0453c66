"""The Airflow DAG: parsing it is light, and two runs in a row (`dag.test()`) train a model each."""

import json
import os
import shutil
import subprocess
import sys

import pytest

ROWS = 6000
RUN_TWICE = """
import importlib.util, json, sys

spec = importlib.util.spec_from_file_location("copied_dag", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
dag = module.sample_and_train
found = []
for _ in range(2):
    run = dag.test(run_conf=json.loads(sys.argv[2]))
    tasks = {task.task_id: task for task in run.get_task_instances()}
    found.append({"state": str(run.state), "result": tasks["train"].xcom_pull(task_ids="train")})
with open(sys.argv[3], "w") as out:
    json.dump(found, out)
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """The environment of an Airflow of its own."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    return {
        **os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "TRIMTAB_HOME": str(home / "jobs_home"),
    }  # fmt: skip


def test_parsing_the_dag_loads_nothing_heavy(airflow):
    code = "import sys, trimtab.pipelines.train_dag; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=airflow)
    assert found.returncode == 0, found.stderr
    loaded = set(found.stdout.splitlines()[-1].split())
    assert "airflow" in loaded
    assert loaded & {"tensorflow", "keras", "mlflow", "kfp", "numpy", "numba", "pyarrow", "grpc"} == set()


@pytest.mark.slow
def test_two_runs_in_a_row_train_a_model_each(airflow, repository, tmp_path):
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    found = subprocess.run(migrate, capture_output=True, text=True, env=airflow, timeout=200)
    assert found.returncode == 0, found.stderr[-3000:]
    copied = shutil.copy(repository / "pipelines" / "train_dag.py", airflow["AIRFLOW__CORE__DAGS_FOLDER"])
    conf = {
        "folder": str(tmp_path / "rows"), "count": ROWS, "batch_size": 512, "embedding_dim": 4, "max_cpu": "1500m",
        "max_memory": "4Gi",
    }  # fmt: skip
    command = [sys.executable, "-c", RUN_TWICE, copied, json.dumps(conf), str(tmp_path / "found.json")]
    found = subprocess.run(command, capture_output=True, text=True, env=airflow, timeout=500)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    runs = json.loads((tmp_path / "found.json").read_text())
    assert [run["state"] for run in runs] == ["success", "success"], found.stdout[-3000:]
    results = [run["result"] for run in runs]
    for result in results:
        assert result["state"] == "finished"
        assert result["batches_applied"] == result["batches_expected"] > 0
        assert result["rows_applied"] == ROWS * 9 // 10
        assert "training" in found.stdout, "the task's log has the job's progress"
    cold, warm = (result["warm_start"] for result in results)
    assert cold["runs"] == []
    assert [run["run_id"] for run in warm["runs"]] == [results[0]["run_id"]]
    assert results[1]["plans"][0]["plan"] == results[0]["plans"][-1]["plan"]
