"""Which failures Airflow tries again: the error's own type decides."""

import inspect

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowNotFoundException

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
from airflow_kafka_offsets.operators import retry_policy
from airflow_kafka_offsets.operators.retry_policy import ASKED, ending_retries, retry_cannot_help

KINDS = sorted(
    (kind for kind in vars(exceptions).values() if inspect.isclass(kind) and issubclass(kind, KafkaOffsetsError)),
    key=lambda kind: kind.__name__,
)


asked = pytest.mark.skipif(not ASKED, reason="Airflow 3.1 and 3.2 have no retry policies")


def decided(error: BaseException) -> str:
    return KafkaOffsetsRetryPolicy().evaluate(error, try_number=1, max_tries=3).action.name


def raised(error: BaseException) -> BaseException:
    """Return what the method `execute` of an operator raises, for an Airflow without policies."""

    def execute(self: object, context: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry_policy, "ASKED", False)
        method = ending_retries(execute)
    with pytest.raises(type(error) if isinstance(error, KeyboardInterrupt) else Exception) as caught:
        method(None, {})
    return caught.value


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not FencedError], ids=lambda kind: kind.__name__)
def test_a_class_is_tried_again_exactly_if_it_is_retriable(kind: type[KafkaOffsetsError]) -> None:
    error = kind.__new__(kind)
    assert retry_cannot_help(error) is not kind.retriable
    if ASKED:
        assert decided(error) == ("RETRY" if kind.retriable else "FAIL")


@asked
def test_the_cases_that_matter_most() -> None:
    assert decided(DataLossError("gone")) == "FAIL"
    assert decided(RecordError("bad", topic="t", partition=0, offset=3)) == "FAIL"
    assert decided(KafkaUnavailableError("no answer in time")) == "RETRY"
    assert decided(DatabaseUnavailableError("no room")) == "RETRY"


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
    assert raised(error) is error
    if ASKED:
        assert decided(error) == "DEFAULT"


def test_without_policies_the_error_says_what_a_retry_cannot_help() -> None:
    failed = raised(DataLossError("gone"))
    assert (type(failed), str(failed)) == (AirflowFailException, "DataLossError: gone")
    assert isinstance(raised(KafkaUnavailableError("no answer")), KafkaUnavailableError)


@asked
def test_a_decision_says_why() -> None:
    decision = KafkaOffsetsRetryPolicy().evaluate(DataLossError("gone"), 1, 3)
    assert decision.reason == "DataLossError: a retry cannot help; see the error for what to do"


def test_retry_policy_survives_serialization() -> None:
    assert isinstance(
        KafkaOffsetsRetryPolicy.deserialize(KafkaOffsetsRetryPolicy().serialize()), KafkaOffsetsRetryPolicy
    )


@asked
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
