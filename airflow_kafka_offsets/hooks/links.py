"""Links from a task to the pages of the web interface. A task stores them in XCom when it ends, and Airflow shows
these.

DAG files import this module: what is not needed to name a link is imported where it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

PAGES = "kafka-offsets"
"""The prefix of the pages' URLs, below that of Airflow."""


class _PageLink(BaseOperatorLink):
    """A link to a page of the group of a task."""

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """Return the URL for a rendered operator or sensor; an empty text where there is no such page, or its database
        is not named.
        """
        from airflow.providers.common.compat.sdk import conf

        sink = getattr(operator, "sink", None)
        conn_id = sink.conn_id if sink is not None else getattr(operator, "conn_id", None)
        # A mapped task whose parameters do not fit has no operator yet.
        found = None if conn_id is None else self.find(operator)
        if found is None:
            return ""
        page, parameters = found
        query = {"conn_id": conn_id, "group": operator.group_id}
        query |= {name: value for name, value in vars(operator.state_tables).items() if value}
        base = conf.get("api", "base_url", fallback="") or ""
        return f"{base.rstrip('/')}/{PAGES}/{page}?{urlencode(query | parameters)}"

    def find(self, operator: Any) -> tuple[str, dict[str, Any]] | None:
        """Return the name of the page, with its parameters besides the group; None where there is none."""
        raise NotImplementedError


class GroupLink(_PageLink):
    """The page of the group: its partitions, batches and history."""

    name = "Group"
    xcom_key = "kafka_offsets_group"

    def find(self, operator: Any) -> tuple[str, dict[str, Any]] | None:
        return "group", {}


class BatchLink(_PageLink):
    """The page of the last batch that a load or a replay worked on, whether it was committed or not, or of what a
    rewind moved.
    """

    name = "Batch"
    xcom_key = "kafka_offsets_batch"

    def find(self, operator: Any) -> tuple[str, dict[str, Any]] | None:
        return None if (batch := operator.last_batch) is None else ("batch", {"batch": batch})


class RewindLink(_PageLink):
    """The form that rewinds the group: to the state before what a load has committed, or with the undo of a rewind,
    chosen.
    """

    name = "Rewind"
    xcom_key = "kafka_offsets_rewind"

    def find(self, operator: Any) -> tuple[str, dict[str, Any]] | None:
        return ("rewind", getattr(operator, "rewind_choice", {})) if rewinds_are_on() else None


def rewinds_are_on() -> bool:
    """Return whether the deployment wants rewinds in the web interface."""
    from airflow.providers.common.compat.sdk import conf

    return bool(conf.getboolean("kafka_offsets", "rewind_in_web_interface", fallback=True))
