"""What is elsewhere in Airflow 3.1, and not in `airflow.providers.common.compat.sdk`, which has most of such names."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def component_stats() -> Any:
    """Return the metrics of Airflow's components; tasks have others, in the SDK."""
    try:
        module = import_module("airflow.observability.stats")
    except ImportError:
        module = import_module("airflow.stats")
    return module.Stats


def dag_bag(bundle: Any) -> Any:
    """Parse the DAG files of a bundle, and return its DAGs."""
    where = {"dag_folder": bundle.path, "bundle_path": bundle.path}
    try:
        module = import_module("airflow.dag_processing.dagbag")
    except ImportError:
        # Without teams, which the name of a bundle leads to.
        return import_module("airflow.models.dagbag").BundleDagBag(**where)
    return module.BundleDagBag(**where, bundle_name=bundle.name)
