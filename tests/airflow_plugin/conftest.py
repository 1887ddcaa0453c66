"""Airflow with a home of its own: its import would otherwise make one in the user's."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def operators(tmp_path_factory):
    """The operators' module; Airflow's own set-up (database, logging) is left out."""
    with pytest.MonkeyPatch.context() as patch:  # only while Airflow is imported: other tests start real ones
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
        patch.setenv("_AIRFLOW__AS_LIBRARY", "1")
        from trimtab.airflow_plugin import operators
    return operators
