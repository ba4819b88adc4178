"""What Spark says when it replays dead letters with a transform of DataFrames is what it says when it loads."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import StagingError, TransformError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark.failures import report_failure
from airflow_kafka_offsets.spark.job import StageJob
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory
from tests.support.verifying import LEFT_OUT

pytestmark = [pytest.mark.server, pytest.mark.parametrize("engine", ["sqlite"], indirect=True)]


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


class Failing(InlineLauncher):
    """A Spark whose application fails, as Py4J says it.

    :param report: what a task has left in the staging directory
    """

    def __init__(self, report: TransformError | None) -> None:
        super().__init__()
        self.report = report

    def __call__(self, job: StageJob) -> None:
        if self.report is not None:
            report_failure(job, self.report)
        raise RuntimeError("An error occurred while calling o42.collect.\n: Job aborted\n\tat org.apache.spark")


@pytest.mark.parametrize(
    ("report", "expected", "message"),
    [
        (None, StagingError, "^Spark did not stage batch 2: : Job aborted$"),
        (TransformError("of the user"), TransformError, "^of the user$"),
    ],
)
def test_error_is_the_report_of_a_task_or_the_line_of_the_cause(
    inline_loader: Loader,
    topic: TopicFactory,
    report: TransformError | None,
    expected: type[Exception],
    message: str,
) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [b"{"])
    loader(name, value_format=Json("id BIGINT"), **LEFT_OUT)
    pipeline = loader.pipeline([name], transform="tests.loading.test_transforms.twice")
    with pytest.raises(expected, match=message):
        replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=loader.engine, launcher=Failing(report))
