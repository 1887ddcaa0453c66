"""Which store a person's jobs go to: the one place that says so.

MLflow's import takes seconds and much memory, so it happens here and when the store is opened, not when a command or
the controller is loaded. Callers hand this function on as it is, and the store is opened in the thread that uses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.core.history.mlflow.store import MlflowHistory


def open_history(home: Path) -> MlflowHistory:
    """The store of past jobs: MLFLOW_TRACKING_URI, or SQLite in `home`.

    Args:
        home: TRIMTAB_HOME.

    Raises:
        HistoryAway: it cannot be opened.
    """
    from trimtab.core.history.mlflow.store import MlflowHistory

    return MlflowHistory(None, home)
