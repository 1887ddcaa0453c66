"""Two tasks of an Airflow DAG: rows, and a model trained on them. Copy it into the DAGs folder, or import `train_dag`.

Trigger it twice: the second run starts with the plan that the first one ended with. Parsing it loads neither TensorFlow
nor MLflow; both stay in the job's own processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from trimtab.airflow_plugin.operators import TrimtabTrainOperator


@task
def make_rows(folder: str, count: int | str, seed: int | str) -> str:
    """Write Criteo-shaped sample rows, once, to a folder ("": under TRIMTAB_HOME); returns their path."""
    from trimtab.core.controller.places import home
    from trimtab.core.data.sample import write_sample

    path = (Path(folder) if folder else home() / "cache" / "sample") / f"sample_{count}_{seed}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_sample(str(path), int(count), int(seed))
    return str(path)


@dag(
    dag_id="trimtab_train", schedule=None, catchup=False, tags=["trimtab"],
    params={
        "folder": "", "count": 100_000, "seed": 1, "epochs": 1, "batch_size": 1024,
        "embedding_dim": 16, "max_cpu": None, "max_memory": None,
    },
)  # fmt: skip
def train_dag() -> Any:
    """Make sample rows and train a model on them."""
    rows = make_rows("{{ params.folder }}", "{{ params.count }}", "{{ params.seed }}")
    TrimtabTrainOperator(
        task_id="train",
        data=rows,
        epochs="{{ params.epochs }}",
        batch_size="{{ params.batch_size }}",
        embedding_dim="{{ params.embedding_dim }}",
        max_cpu="{{ params.max_cpu }}",
        max_memory="{{ params.max_memory }}",
        seed="{{ params.seed }}",
    )


sample_and_train = train_dag()

if __name__ == "__main__":  # all tasks here and now, without a scheduler
    sample_and_train.test()
