"""`train_dlrm`: one training job as a typed Kubeflow component.

The inputs are those of `trimtab train`; what is left out has the command's default ("" or 0: chosen, because KFP's
local runner cannot hand on a number that is None). KFP takes the body's text and runs it elsewhere, so it only calls
into the installed package; it also evaluates the annotations, so this module does without `from __future__ import
annotations`. Never cache it: it trains, and what it knows of past runs is not among its inputs.
"""

from typing import NamedTuple, Optional

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output

from trimtab.kfp_components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def train_dlrm(
    trained_model: Output[Model],
    metrics: Output[Metrics],
    report: Output[HTML],
    rows: Optional[Input[Dataset]] = None,  # noqa: UP045 (KFP does not know `X | None`)
    data: str = "",
    columns: str = "",
    model: str = "dlrm",
    epochs: int = 1,
    batch_size: int = 1024,
    workers: int = 0,
    ps: int = 0,
    max_cpu: str = "",
    max_memory: str = "",
    max_workers: int = 0,
    max_ps: int = 0,
    mode: str = "auto",
    objective: str = "balanced",
    budget: float = 0.0,
    deadline: str = "",
    core_hour_price: float = 0.0,
    gib_hour_price: float = 0.0,
    currency: str = "",
    learning_rate: float = 0.0,
    job_name: str = "train",
    validation: str = "0.1",
    seed: int = 0,
    embedding_dim: int = 16,
    checkpoint_dir: str = "",
    init_from: str = "",
) -> NamedTuple(  # type: ignore[valid-type]
    "TrainOutputs",
    [("run_id", str), ("state", str), ("complete", bool), ("warm_from", list), ("note", str), ("plan", dict)],
):
    """Train a recommendation model with parameter servers, every batch exactly once.

    Args:
        trained_model: the trained model as a plain Keras model (`model.keras`, `signature.json`, `predict.py`).
        metrics: AUC, log loss, throughput and counts; only finite ones.
        report: the job's page.
        rows: rows of an earlier step; or leave it out and give `data`.
        data: path, glob, directory or URL of rows.
        columns: path of a YAML or JSON file that names the columns' roles.
        model: a built-in model's name, or MODULE:FUNCTION.
        epochs: passes over the training rows.
        batch_size: rows per batch.
        workers: to start with in mode auto, to keep in mode fixed; 0: chosen.
        ps: parameter servers, likewise.
        max_cpu: cores that the plan shares out, such as 1500m.
        max_memory: memory that the plan shares out, such as 4Gi.
        max_workers: most workers at any time.
        max_ps: most parameter servers at any time.
        mode: auto, advise or fixed.
        objective: balanced, fastest or cheapest.
        budget: most money that the job may cost; 0: no limit.
        deadline: the job should end so long after its start, such as 45m.
        core_hour_price: price of a core for an hour; 0: the default.
        gib_hour_price: price of a GiB of memory for an hour; 0: the default.
        currency: of the prices.
        learning_rate: overrides the compiled optimizer's; 0: keep it.
        job_name: the family of runs that it joins.
        validation: share of rows held out, or the path of other rows.
        seed: decides shuffle, split and every draw.
        embedding_dim: width of the built-in models' embeddings.
        checkpoint_dir: path or URL for checkpoints, each run's in a folder of its own; it should outlive the pod.
        init_from: a checkpoint (path or URL of a run's folder or of a manifest) whose rows the job starts with.

    Returns:
        run_id, state, complete (every batch applied once or skipped), warm_from (past runs that the first plan rests
        on), note (the same as a sentence) and plan (the last one).
    """
    import logging
    from pathlib import Path

    from trimtab.kfp_components.outputs import metrics_of, outputs_of
    from trimtab.kfp_components.run import run_job

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    report.path = report.path + ".html"
    options = {
        "data": rows.path if rows is not None else data, "columns": columns, "model": model, "epochs": epochs,
        "batch_size": batch_size, "workers": workers, "ps": ps, "max_cpu": max_cpu, "max_memory": max_memory,
        "max_workers": max_workers, "max_ps": max_ps, "mode": mode, "objective": objective,
        "budget": budget, "deadline": deadline, "core_hour_price": core_hour_price, "gib_hour_price": gib_hour_price,
        "currency": currency, "learning_rate": learning_rate, "job_name": job_name, "validation": validation,
        "seed": seed, "embedding_dim": embedding_dim, "checkpoint_dir": checkpoint_dir, "init_from": init_from,
    }  # fmt: skip
    result = run_job(options, Path(trained_model.path), Path(report.path))
    kept, dropped = metrics_of(result)
    for name, value in kept.items():
        metrics.log_metric(name, value)
    if dropped:
        metrics.metadata["not_finite"] = ", ".join(dropped)
    trained_model.framework = "keras"
    trained_model.metadata["run_id"] = result["run_id"]
    return tuple(outputs_of(result))
