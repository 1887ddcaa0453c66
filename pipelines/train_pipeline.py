"""Two steps of a Kubeflow pipeline: rows, and a model trained on them.

Run it twice: the second run of a family starts with the plan that the first one ended with. Neither step is cached:
training has effects, and what it learnt from past runs is not among its inputs.
"""

from kfp import dsl

from trimtab.kfp_components.sample import sample_rows
from trimtab.kfp_components.train import train_dlrm


@dsl.pipeline(name="trimtab-train", description="Make sample rows and train a model on them.")  # type: ignore[untyped-decorator]
def train_pipeline(
    count: int = 100_000, seed: int = 1, model: str = "dlrm", epochs: int = 1, batch_size: int = 1024,
    embedding_dim: int = 16, max_cpu: str = "", max_memory: str = "", mode: str = "auto", job_name: str = "train",
) -> str:  # fmt: skip
    """Rows, then training; returns the run's id.

    Args:
        count: sample rows to make.
        seed: of the rows, the shuffle and every draw.
        model: a built-in model's name, or MODULE:FUNCTION.
        epochs: passes over the training rows.
        batch_size: rows per batch.
        embedding_dim: width of the built-in models' embeddings.
        max_cpu: cores that the plan shares out, such as 1500m.
        max_memory: memory that the plan shares out, such as 4Gi.
        mode: auto, advise or fixed.
        job_name: the family of runs that it joins.
    """
    rows = sample_rows(count=count, seed=seed).set_caching_options(False)
    trained = train_dlrm(
        rows=rows.outputs["rows"], model=model, epochs=epochs, batch_size=batch_size, embedding_dim=embedding_dim,
        max_cpu=max_cpu, max_memory=max_memory, mode=mode, job_name=job_name, seed=seed,
    )  # fmt: skip
    trained.set_caching_options(False)
    return trained.outputs["run_id"]  # type: ignore[no-any-return]
