"""The context of a task, as far as the operators of this package read it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from airflow.sdk.execution_time.context import OutletEventAccessors

if TYPE_CHECKING:
    from airflow.sdk import Context


def task_context(task_id: str = "task", *, run_id: str = "run", triggered_by: str | None = None) -> Context:
    """The context of the first try of a task of `dag`.

    :param triggered_by: the user who triggered the run
    """
    instance = SimpleNamespace(dag_id="dag", task_id=task_id, run_id=run_id, map_index=-1, try_number=1)
    dag_run = SimpleNamespace(triggering_user_name=triggered_by)
    return cast("Context", {"ti": instance, "dag_run": dag_run, "outlet_events": OutletEventAccessors()})
