"""Which failures Airflow retries: the class of the error decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryDecision, RetryPolicy

from airflow_kafka_offsets.exceptions import FencedError, KafkaOffsetsError

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaOffsetsRetryPolicy(RetryPolicy):
    """Fails a task at once if a retry cannot help, as after data loss or a record that cannot be decoded; retries it
    otherwise.

    The operators of this package have it unless they are given another one. How often and after which delay a task is
    retried is still decided by the task (`retries`, `retry_delay`, …).
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the class of the error, see `airflow_kafka_offsets.exceptions`; Airflow decides about other errors.

        One of these is a missing connection: Airflow raises the same error if its API or a secrets backend is down.
        """
        if not isinstance(exception, KafkaOffsetsError) or isinstance(exception, FencedError):
            # A newer try is running if this one was fenced, and decides what becomes of the task.
            return RetryDecision.default()
        name = type(exception).__name__
        if exception.retriable:
            return RetryDecision.retry(reason=f"{name}: the next try carries on where this one stopped")
        return RetryDecision.fail(reason=f"{name}: a retry cannot help; see the error for what to do")

    def serialize(self) -> dict[str, Any]:
        """Return the parameters: none."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> KafkaOffsetsRetryPolicy:
        """Return the policy that was serialized."""
        return cls()
