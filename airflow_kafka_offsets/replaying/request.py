"""What a replay is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_kafka_offsets.ledger.batch_rows import Recipe
from airflow_kafka_offsets.ledger.task_run import TaskRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a task instance replays.

    :param scenario: the bounds as the user gave them, as text: they say whether an earlier try was about the same
    :param replace: remove what batches of the group left of the offsets, in the same transaction
    :param upsert: the sink knows a row by a key, so that it is there once however often it is loaded
    :param reason: for the history
    :param who: for the history
    """

    group_id: str
    owner: TaskRun
    scenario: str
    recipe: Recipe
    replace: bool = False
    upsert: bool = False
    reason: str | None = None
    who: str | None = None

    @property
    def target(self) -> str:
        return self.recipe.target_table
