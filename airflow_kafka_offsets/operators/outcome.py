"""What a load or a replay reports to Airflow: in XCom, and with the events of its assets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.ledger.overview import read_task_result
from airflow_kafka_offsets.ledger.tables import Ledger

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.core.offsets import Span, TopicPartition
    from airflow_kafka_offsets.ledger.batch_rows import TaskRun
    from airflow_kafka_offsets.loading.context import LoadResult
    from airflow_kafka_offsets.loading.pipeline import Pipeline


def outcome(engine: Engine, pipeline: Pipeline, result: LoadResult, run: TaskRun, *, kind: str) -> dict[str, Any]:
    """Return what a task instance did in all its tries, as values that JSON can hold.

    :param engine: the database of the history
    :param result: of this try
    :param kind: `load` or `replay`
    :return: `group_id`, `target`, `ranges`, `batches` (ids), `records`, `rows`, `dead_letters` and `complete`. `ranges`
        has the start and the end of each partition by topic, as the parameter `offsets` of `KafkaReplayOperator` takes
        them; it is None where there are more than `task_results.MOST` of them. `batches` has the last ones, as many at
        most
    """
    what = f"The history of group {pipeline.group_id!r} could not be read"
    with translated_errors(what, "Run the task again: what is committed is not loaded again."):
        done = read_task_result(
            Ledger(engine, pipeline.tables), pipeline.group_id, run, kind, next(iter(result.batches), None)
        )
    return {
        "group_id": pipeline.group_id,
        "target": pipeline.sink.name,
        "ranges": None if done.ranges is None else _by_topic(done.ranges),
        "batches": list(done.batches),
        "records": done.records,
        "rows": done.rows,
        "dead_letters": done.dead_letters,
        "complete": result.complete,
    }


def _by_topic(ranges: dict[TopicPartition, Span]) -> dict[str, dict[str, list[int]]]:
    by_topic: dict[str, dict[str, list[int]]] = {}
    for tp, span in ranges.items():
        by_topic.setdefault(tp.topic, {})[str(tp.partition)] = list(span)
    return by_topic
