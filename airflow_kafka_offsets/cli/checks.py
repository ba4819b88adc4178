"""How `doctor` runs its checks, and what it may print of them. The checks are in `doctor_checks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.cli.command import describe_error
from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.exceptions import KafkaOffsetsError

Result = Literal["ok", "failed", "skipped"]

_SECRET_WORDS = ("password", "secret", "token", "passphrase", "key.pem", "jaas")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, and how to mend what failed."""

    check: str
    result: Result
    found: str
    fix: str | None = None


class CheckFailedError(Exception):
    """A check failed.

    :param fix: what to do about it
    """

    def __init__(self, found: str, fix: str) -> None:
        self.fix = fix
        super().__init__(found)


class CheckSkipped(Exception):  # noqa: N818 - nothing is wrong
    """A check cannot be made, or there is nothing to check; the message says why."""


class Checks:
    """Runs checks one after another, and collects their findings. No check ends the command, and no finding contains a secret.

    :param conn_ids: the connections whose secrets are masked
    """

    def __init__(self, conn_ids: tuple[str, ...]) -> None:
        self.findings: list[Finding] = []
        self._secrets = [secret for conn_id in conn_ids for secret in _secrets(conn_id)]

    def run(self, check: str, look: Callable[[], str], fix: str) -> bool:
        """Run a check, and return whether it is ok.

        :param look: returns what it found, or raises
        :param fix: what the user can do if it fails, unless the failure has a better answer
        """
        self.findings.append(self._finding(check, look, fix))
        return self.findings[-1].result == "ok"

    def skip(self, reason: str, *checks: str) -> None:
        """Report checks that cannot be made."""
        self.findings += [Finding(check, "skipped", reason) for check in checks]

    def _finding(self, check: str, look: Callable[[], str], fix: str) -> Finding:
        try:
            return Finding(check, "ok", self._without_secrets(look()))
        except CheckSkipped as reason:
            return Finding(check, "skipped", str(reason))
        except CheckFailedError as error:
            return Finding(check, "failed", self._without_secrets(str(error)), error.fix)
        except DBAPIError as error:
            # Not as other commands report it: they refer the user to doctor.
            return Finding(check, "failed", self._without_secrets(f"the database says: {database_message(error)}"), fix)
        except (AirflowException, KafkaOffsetsError, SQLAlchemyError, ImportError) as error:
            return Finding(check, "failed", self._without_secrets(describe_error(error)), fix)
        except Exception as error:
            # The message of an unexpected error may contain anything.
            return Finding(
                check, "failed", f"an unexpected error: {type(error).__module__}.{type(error).__name__}", fix
            )

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


def _secrets(conn_id: str) -> Iterator[str]:
    """Yield the values of a connection that are secret, by their names."""
    try:
        connection = BaseHook.get_connection(conn_id)
    except Exception:
        return
    if connection.password:
        yield connection.password
    for key, value in connection.extra_dejson.items():
        if isinstance(value, str) and value and any(word in key.lower() for word in _SECRET_WORDS):
            yield value
