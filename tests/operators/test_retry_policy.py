"""Which failures Airflow tries again: the error's own type decides."""

import inspect

import pytest
from airflow.sdk import RetryAction
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_kafka_offsets import (
    KafkaBatchOperator,
    KafkaOffsetsRetryPolicy,
    KafkaVerifyOperator,
    Raw,
    SqlTable,
    exceptions,
)
from airflow_kafka_offsets.exceptions import (
    DatabaseUnavailableError,
    DataLossError,
    FencedError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    RecordError,
)

KINDS = sorted(
    (kind for kind in vars(exceptions).values() if inspect.isclass(kind) and issubclass(kind, KafkaOffsetsError)),
    key=lambda kind: kind.__name__,
)


def decided(error: BaseException) -> RetryAction:
    return KafkaOffsetsRetryPolicy().evaluate(error, try_number=1, max_tries=3).action


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not FencedError], ids=lambda kind: kind.__name__)
def test_a_class_is_tried_again_exactly_if_it_is_retriable(kind: type[KafkaOffsetsError]) -> None:
    error = kind.__new__(kind)
    assert decided(error) is (RetryAction.RETRY if kind.retriable else RetryAction.FAIL)


def test_the_cases_that_matter_most() -> None:
    assert decided(DataLossError("gone")) is RetryAction.FAIL
    assert decided(RecordError("bad", topic="t", partition=0, offset=3)) is RetryAction.FAIL
    assert decided(KafkaUnavailableError("no answer in time")) is RetryAction.RETRY
    assert decided(DatabaseUnavailableError("no room")) is RetryAction.RETRY


@pytest.mark.parametrize(
    "error",
    [
        ValueError("of somebody else"),
        KeyboardInterrupt(),
        FencedError("overtaken"),
        AirflowNotFoundException("The conn_id `warehouse` isn't defined"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_exceptions_are_left_to_airflow(error: BaseException) -> None:
    assert decided(error) is RetryAction.DEFAULT


def test_a_decision_says_why() -> None:
    decision = KafkaOffsetsRetryPolicy().evaluate(DataLossError("gone"), 1, 3)
    assert decision.reason == "DataLossError: a retry cannot help; see the error for what to do"


def test_retry_policy_survives_serialization() -> None:
    assert isinstance(
        KafkaOffsetsRetryPolicy.deserialize(KafkaOffsetsRetryPolicy().serialize()), KafkaOffsetsRetryPolicy
    )


def test_operators_have_it_unless_they_are_given_another() -> None:
    class Mine(KafkaOffsetsRetryPolicy):
        """A user's own."""

    load = {
        "task_id": "load",
        "group_id": "g",
        "topics": ["t"],
        "value_format": Raw(),
        "sink": SqlTable("t", conn_id="c"),
    }
    assert type(KafkaBatchOperator(**load).retry_policy) is KafkaOffsetsRetryPolicy  # type: ignore[arg-type]
    assert type(KafkaBatchOperator(**load, retry_policy=Mine()).retry_policy) is Mine  # type: ignore[arg-type]
    assert (
        type(KafkaVerifyOperator(task_id="v", group_id="g", sink=SqlTable("t", conn_id="c")).retry_policy)
        is KafkaOffsetsRetryPolicy
    )
