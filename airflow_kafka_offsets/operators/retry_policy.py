"""Which failures Airflow retries: the class of the error decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_offsets.exceptions import FencedError, KafkaOffsetsError

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryDecision, RetryPolicy
else:
    try:
        from airflow.sdk import RetryDecision, RetryPolicy
    except ImportError:
        # Airflow 3.1 and 3.2 ask nobody: see `ending_retries`.
        RetryPolicy = object

ASKED = RetryPolicy is not object
"""Whether Airflow asks a policy."""


def retry_cannot_help(error: BaseException) -> bool:
    """Return whether an error would come again in each try. A newer try is running if this one was fenced, and decides
    what becomes of the task.
    """
    return isinstance(error, KafkaOffsetsError) and not isinstance(error, FencedError) and not error.retriable


def ending_retries(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of an operator that a run calls. For an Airflow without policies, an error that a retry cannot
    help becomes one with which Airflow fails a task at once.
    """
    if ASKED:
        return method

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except KafkaOffsetsError as error:
            if retry_cannot_help(error):
                raise AirflowFailException(f"{type(error).__name__}: {error}") from None
            raise

    return called


class KafkaOffsetsRetryPolicy(RetryPolicy):
    """Fails a task at once if a retry cannot help, as after data loss or a record that cannot be decoded; retries it
    otherwise.

    The operators of this package have it unless they are given another one; Airflow 3.1 and 3.2 know no policies, and
    the operators fail there at once for the same errors. How often and after which delay a task is
    retried is still decided by the task (`retries`, `retry_delay`, …).
    """

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the class of the error, see `airflow_kafka_offsets.exceptions`; Airflow decides about other errors.

        One of these is a missing connection: Airflow raises the same error if its API or a secrets backend is down.
        """
        name = type(exception).__name__
        if retry_cannot_help(exception):
            return RetryDecision.fail(reason=f"{name}: a retry cannot help; see the error for what to do")
        if not isinstance(exception, KafkaOffsetsError) or isinstance(exception, FencedError):
            return RetryDecision.default()
        return RetryDecision.retry(reason=f"{name}: the next try carries on where this one stopped")

    def serialize(self) -> dict[str, Any]:
        """Return the parameters: none."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> KafkaOffsetsRetryPolicy:
        """Return the policy that was serialized."""
        return cls()
