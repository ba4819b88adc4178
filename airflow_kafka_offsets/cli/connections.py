"""Where a command finds the database, Kafka and Spark: in Airflow's connections, or in a database URL and a Kafka
configuration, from files and environment variables. What a command runs with is `args.connections`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.spark.job import Launcher

DATABASE = "KAFKA_OFFSETS_DATABASE"
"""The environment variable of the database URL."""

DATABASE_FILE = "KAFKA_OFFSETS_DATABASE_FILE"
"""The environment variable of the path of a file that holds the database URL."""

KAFKA_CONFIG = "KAFKA_OFFSETS_KAFKA_CONFIG"
"""The environment variable of the path of the Kafka configuration, or of the configuration itself as JSON."""

_NO_SECRETS = (
    "arguments must not contain secrets: every user of this machine can read them, and shells store them. Use the "
    f"environment variable {DATABASE} or --database-file for a database URL with a password, and a file for "
    "--kafka-config"
)

_PASSWORD_IN_URL = re.compile(r"://[^/?#\s]*:[^/?#\s]*@")

_SECRET_PROPERTY = re.compile(
    r"(password|passwd|passphrase|secret|jaas\.config|key\.pem|user\.info|oauthbearer\.config)[\"']?\s*[=:]",
    re.IGNORECASE,
)

_SECRET_OPTION = re.compile(r"--[\w.-]*(password|passwd|passphrase|secret|token)\b", re.IGNORECASE)

_FREE_TEXT = ("--reason", "--who")


def refuse_secrets(arguments: list[str]) -> None:
    """Raise an error if an argument contains a password. Its message does not repeat the argument.

    :raises ConfigurationError: one does
    """
    option = ""
    for argument in arguments:
        if argument.startswith("--"):
            option = argument.partition("=")[0]
        if (
            _PASSWORD_IN_URL.search(argument)
            or _SECRET_OPTION.match(argument)
            or (option not in _FREE_TEXT and _SECRET_PROPERTY.search(argument))
            or (option == "--database" and _has_password(argument.removeprefix("--database=")))
        ):
            raise ConfigurationError(f"{option or 'An argument'} contains a password, and {_NO_SECRETS}")


def _has_password(database: str) -> bool:
    """Return whether SQLAlchemy finds a password in a text: it takes one with a slash or a blank, too."""
    import sqlalchemy as sa

    try:
        url = sa.make_url(database)
    except (sa.exc.ArgumentError, ValueError):
        return False
    return url.password is not None or any(_SECRET_PROPERTY.search(f"{name}=") for name in url.query)


class AirflowConnections:
    """Airflow's connections, whose ids are arguments.

    :ivar database: what names the database, for messages
    :cvar doctor: how `doctor` is called, for messages
    """

    doctor = "'kafka-offsets doctor' with the same --conn-id, --schema and --prefix"

    def __init__(self, args: Namespace) -> None:
        self._args = args
        conn_id = getattr(args, "conn_id", None)
        self.database = "the connection of --conn-id" if conn_id is None else f"connection {conn_id!r}"

    def describe(self, error: Exception) -> str | None:
        """Return what an error of Airflow's says, and what to do; None for any other error."""
        from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

        if isinstance(error, AirflowNotFoundException):
            ids = [
                name
                for name, value in vars(self._args).items()
                if name.endswith("conn_id") and f"`{value}`" in str(error)
            ]
            by = f" by {' or '.join('--' + name.replace('_', '-') for name in ids)}" if ids else ""
            return f"{error}. Name another connection{by}, or add this one: 'airflow connections add'"
        return str(error) if isinstance(error, AirflowException) else None

    def open_database(self) -> AbstractContextManager[Engine]:
        """Open the database with the state tables for a block."""
        from airflow_kafka_offsets.hooks.connections import open_database

        return open_database(self._args.conn_id)

    @property
    def names_kafka(self) -> bool:
        """Whether the arguments name a cluster, where a command can do without."""
        return self._args.kafka_conn_id is not None

    def kafka_config(self, fallback: str | None = None) -> dict[str, Any]:
        """Return the librdkafka configuration.

        :param fallback: the connection, where the arguments name none
        """
        from airflow_kafka_offsets.hooks.connections import kafka_config

        conn_id = self._args.kafka_conn_id or fallback
        # The argument has a default where there is no fallback.
        assert conn_id is not None
        return kafka_config(conn_id)

    def kafka_configs(self) -> dict[str, Callable[[], Mapping[str, Any]]]:
        """Return what reads the librdkafka configuration of each cluster that the arguments name, by its name for
        messages.
        """
        from airflow_kafka_offsets.hooks.connections import kafka_config

        conn_ids = self._args.kafka_conn_id or ["kafka_default"]
        return {f"Connection {conn_id!r}": partial(kafka_config, conn_id) for conn_id in conn_ids}

    def launcher(self, conn_id: str, conf: Mapping[str, Any] | None, name: str) -> Launcher:
        """Return the launcher of Spark; see `hooks.connections.make_launcher`."""
        from airflow_kafka_offsets.hooks.connections import make_launcher

        return make_launcher(conn_id, conf=conf, name=name)


class FileConnections:
    """Files and environment variables, in place of Airflow's connections."""

    database = "the database URL"
    doctor = "'kafka-offsets doctor --conn-id CONN_ID', with a connection of Airflow's to this database,"

    def __init__(self, args: Namespace) -> None:
        self._args = args

    def describe(self, error: Exception) -> None:
        return None

    def open_database(self) -> AbstractContextManager[Engine]:
        from airflow_kafka_offsets.hooks.connections import open_url

        return open_url(self._url())

    @property
    def names_kafka(self) -> bool:
        return self._args.kafka_config is not None

    def kafka_config(self, fallback: str | None = None) -> dict[str, Any]:
        from airflow_kafka_offsets.kafka.config import check_config

        given = self._args.kafka_config or os.environ.get(KAFKA_CONFIG)
        if not given:
            raise ConfigurationError(
                "No Kafka configuration was given: name Airflow's connections with --conn-id and --kafka-conn-id, or a "
                f"file with --kafka-config or in {KAFKA_CONFIG}"
            )
        if given.lstrip().startswith("{"):
            where, text = KAFKA_CONFIG, given
        else:
            where, text = given, read_text(given)
        try:
            return check_config(parse_config(text))
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error

    def kafka_configs(self) -> dict[str, Callable[[], Mapping[str, Any]]]:
        return {"The Kafka configuration": self.kafka_config}

    def launcher(self, conn_id: str, conf: Mapping[str, Any] | None, name: str) -> Launcher:
        raise ConfigurationError(
            "This needs Spark, which Airflow's connections name: name one of them, with --spark-conn-id"
        )

    def _url(self) -> str:
        """Return the database URL: that of the arguments, or else of the environment.

        :raises ConfigurationError: there is none
        """
        url, path = self._args.database, self._args.database_file
        if url is None and path is None:
            url, path = os.environ.get(DATABASE), os.environ.get(DATABASE_FILE)
        if url and path:
            raise ConfigurationError(
                f"There are two database URLs: give either --database or --database-file, and set either {DATABASE} or "
                f"{DATABASE_FILE}"
            )
        url = url or (read_text(path).strip() if path else "")
        if not url:
            raise ConfigurationError(
                "No database was given: name Airflow's connection with --conn-id, or a URL with --database, "
                f"--database-file or {DATABASE}"
            )
        return url


Connections = AirflowConnections | FileConnections


def parse_config(text: str) -> dict[str, Any]:
    """Return the properties of a Kafka configuration: a JSON object, or lines of `name=value` as in
    `client.properties`.

    :raises ConfigurationError: it is neither
    """
    if text.lstrip().startswith("{"):
        try:
            config = json.loads(text)
        except ValueError as error:
            # The message has a position, and nothing of the text.
            raise ConfigurationError(f"The Kafka configuration is not valid JSON: {error}") from None
        return dict(config)
    config = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not name.strip():
            raise ConfigurationError(f"Line {number} of the Kafka configuration is not of the form name=value")
        config[name.strip()] = value.strip()
    if java := sorted(name for name in config if name in _OF_JAVA):
        raise ConfigurationError(
            f"The Kafka configuration sets {', '.join(f'{name} (librdkafka has {_OF_JAVA[name]})' for name in java)}: "
            "the names are those of librdkafka, not of the Java client"
        )
    return config


_OF_JAVA = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.password": "ssl.ca.location, a PEM file",
    "ssl.truststore.type": "ssl.ca.location, a PEM file",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.type": "ssl.certificate.location and ssl.key.location",
    "sasl.login.callback.handler.class": "sasl.oauthbearer.method=oidc",
}


def read_text(path: str) -> str:
    """Return the text of a file; `-` is standard input.

    :raises ConfigurationError: it cannot be read
    """
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # The message of a decoder has bytes of the file.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"File {path!r} cannot be read: {reason}") from None
