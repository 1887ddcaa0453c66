"""Sample rows as a Kubeflow component, so that a first pipeline needs no data of one's own.

Annotations are evaluated by KFP, so this module does without `from __future__ import annotations`.
"""

from kfp import dsl
from kfp.dsl import Dataset, Output

from trimtab.kfp_components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator]
def sample_rows(rows: Output[Dataset], count: int = 100_000, seed: int = 1) -> int:
    """Write Criteo-shaped rows with a planted signal.

    Args:
        rows: the written Parquet file.
        count: how many rows.
        seed: the same seed writes the same rows.

    Returns:
        How many rows were written.
    """
    from pathlib import Path

    from trimtab.kfp_components.run import make_sample

    rows.path = rows.path + ".parquet"  # the ending tells the format
    make_sample(count, seed, Path(rows.path))
    rows.metadata["rows"], rows.metadata["seed"] = count, seed
    return count
