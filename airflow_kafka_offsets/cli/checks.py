"""How `doctor` runs and reports its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.cli.command import reported_errors
from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.exceptions import KafkaOffsetsError

Result = Literal["ok", "failed", "skipped"]

_SECRET_WORDS = ("password", "secret", "token", "passphrase", "key.pem", "jaas")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and how to put it right where it failed."""

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
    """A check cannot be made, or has nothing to look at; the message says why."""


class Checks:
    """Runs checks one after another, and keeps what they found. None of them ends the command, and none tells a secret.

    :param conn_ids: the connections whose secrets must not be told
    """

    def __init__(self, conn_ids: tuple[str, ...]) -> None:
        self.findings: list[Finding] = []
        self._secrets = [secret for conn_id in conn_ids for secret in _secrets(conn_id)]

    def run(self, check: str, look: Callable[[], str], fix: str) -> bool:
        """Make one check.

        :param look: returns what it found, or raises
        :param fix: what to do where it fails, unless the failure knows better
        :return: whether it is ok
        """
        finding = self._look(check, look, fix)
        self.findings.append(finding)
        return finding.result == "ok"

    def _look(self, check: str, look: Callable[[], str], fix: str) -> Finding:
        try:
            return Finding(check, "ok", self._without_secrets(look()))
        except CheckSkipped as reason:
            return Finding(check, "skipped", str(reason))
        except CheckFailedError as error:
            return Finding(check, "failed", self._without_secrets(str(error)), error.fix)
        except DBAPIError as error:
            # Not as other commands tell it: they send the user here.
            return Finding(check, "failed", self._without_secrets(f"the database says: {database_message(error)}"), fix)
        except (AirflowException, KafkaOffsetsError, SQLAlchemyError, ImportError) as error:
            return Finding(check, "failed", self._without_secrets(reported_errors(error)), fix)
        except Exception as error:
            # What an error that nobody foresaw says may hold anything.
            name = f"{type(error).__module__}.{type(error).__name__}"
            return Finding(check, "failed", f"an error that was not foreseen: {name}", fix)

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


def _secrets(conn_id: str) -> Iterator[str]:
    """What of a connection must not be told, as far as it can be known."""
    try:
        connection = BaseHook.get_connection(conn_id)
    except Exception:
        return
    if connection.password:
        yield connection.password
    for key, value in connection.extra_dejson.items():
        if isinstance(value, str) and value and any(word in key.lower() for word in _SECRET_WORDS):
            yield value
