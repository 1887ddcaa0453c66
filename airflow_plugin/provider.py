"""What Airflow is told about the package: it finds this function by the entry point `apache_airflow_provider`.

Every Airflow process calls it, so it is a page of words and imports nothing.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's page, in the form of Airflow's provider_info.schema.json."""
    return {
        "package-name": "trimtab",
        "name": "trimtab",
        "description": "Right-sized parameter-server training of deep recommendation models",
        "operators": [{"integration-name": "trimtab", "python-modules": ["trimtab.airflow_plugin.operators"]}],
    }
