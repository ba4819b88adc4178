"""Which failures Airflow tries again: decided by the error's own type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryDecision, RetryPolicy

from airflow_kafka_offsets.exceptions import FencedError, KafkaOffsetsError

if TYPE_CHECKING:
    from airflow.sdk import Context


class KafkaOffsetsRetryPolicy(RetryPolicy):
    """Fails a task at once where no retry can help, such as data loss or a record that does not decode; retries the rest.

    The operators of this package have it unless they are given another one. How often and after which delay a task is
    retried is still the task's (`retries`, `retry_delay`, …).
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the error's class, see `airflow_kafka_offsets.exceptions`; errors of others are left to Airflow.

        So is a connection that is not found: Airflow says the same where its API or a secrets backend did not answer.
        """
        if not isinstance(exception, KafkaOffsetsError) or isinstance(exception, FencedError):
            # A newer try is at work where this one was fenced: what becomes of the task is that one's to say.
            return RetryDecision.default()
        name = type(exception).__name__
        if exception.retriable:
            return RetryDecision.retry(reason=f"{name}: the next try carries on where this one stopped")
        return RetryDecision.fail(reason=f"{name}: running the task again changes nothing; the error says what does")

    def serialize(self) -> dict[str, Any]:
        """It has no parameters."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> KafkaOffsetsRetryPolicy:
        """The counterpart of `serialize`."""
        return cls()
