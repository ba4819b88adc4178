"""What a task instance asks a replay to do."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_kafka_offsets.ledger.batch_rows import Recipe
from airflow_kafka_offsets.ledger.task_run import TaskRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay, as a task instance asks for it.

    :param scenario: the bounds that the user gave, as text: tries with the same text carry on with the same batches
    :param replace: remove what batches of the group wrote of the offsets, in the same transaction
    :param upsert: whether the sink identifies a row by a key, so that loading it again does not duplicate it
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
