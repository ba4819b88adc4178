"""Spark properties that hold secrets, and go to the application with its jobs (`jobs`), never on a command line; and
the properties that protect the traffic of Spark's processes.

In its logs and event logs, Spark redacts the properties that match `spark.redaction.regex`; `REDACTION` matches those
of this module. DAG files import it: it must stay light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_offsets.core.options import Options, ruled
from airflow_kafka_offsets.core.parameters import NAME, Rule, or_none
from airflow_kafka_offsets.exceptions import ConfigurationError

# The names of Spark's own `spark.redaction.regex`, Hadoop's `hadoop.security.sensitive-config-keys`, Iceberg's REST
# catalogs and the clouds. Java reads it, too. Airflow masks what follows a word such as "secret" in the command that it
# logs: without the brackets, that would be the next option.
REDACTION = (
    "(?i)secre[t]|passw|passphrase|pass$|[a-z]_pwd$|jdbc[.]pwd$|token|credential$|authorization$|cookie$|api[._-]?key"
    "|(access|account|private)[._-]?key|[._-]key$|[.]auth$|[.]sas[.]|obs[.][as]k$"
    "|jaas[._-]config$|connection[._-](string|uri)"
)

# Names of classes, files and settings that are about a secret, and hold none.
_WORDS = ("provider", "providers", "path", "file", "class", "type", "enabled", "interval", "regex", "renewal", "ratio")
_ABOUT = re.compile(
    rf"([._-](?i:{'|'.join(_WORDS)}|timeout)|{'|'.join(map(str.title, _WORDS))}|Timeout"
    "|(?i:idempotency|request)_?(?i:token))$"
)

_HIDDEN = "***"

_PAIR = re.compile(r"([^\s=]+)=(\S+)")


@dataclass(frozen=True, repr=False)
class Spark(Options):
    """How an operator starts Spark.

    :param conn_id: connection of the Spark provider, of type `spark` or `spark_connect`, or of a service (templated)
    :param conf: Spark properties (templated)
    :param options: what a service's own request takes besides the application (templated)
    """

    conn_id: str = field(default="spark_default", metadata=ruled(NAME, templated=True))
    # Rendered, they may hold secrets.
    conf: Mapping[str, Any] | None = field(
        default=None,
        repr=False,
        metadata=ruled(
            or_none(Rule("a dictionary of properties", lambda value: isinstance(value, Mapping))), templated=True
        ),
    )
    options: Mapping[str, Any] | None = field(
        default=None,
        repr=False,
        metadata=ruled(or_none(Rule("a dictionary", lambda value: isinstance(value, Mapping))), templated=True),
    )

    def serialize(self) -> dict[str, Any]:
        """Return all fields, for the Rendered Templates tab, without the values of properties that hold secrets: they
        may come from anywhere, and Airflow masks only what it knows.
        """
        return {name: _without_secrets(value) for name, value in super().serialize().items()}


def split_secrets(conf: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the properties that may be seen, and those that hold secrets."""
    secrets = {name: str(value) for name, value in conf.items() if _is_secret(name)}
    return {name: value for name, value in conf.items() if name not in secrets}, secrets


def refuse_literal_secrets(spark: Spark) -> None:
    """Refuse a secret that is written in a DAG file, which whoever may see the code of DAGs could read.

    :param spark: before it is rendered
    :raises ConfigurationError: names the property, not its value
    """
    _refuse_literals(spark.conf, "Spark.conf")
    _refuse_literals(spark.options, "Spark.options")


def _refuse_literals(given: object, path: str) -> None:
    inner = given.items() if isinstance(given, Mapping) else enumerate(given) if isinstance(given, list) else ()
    for name, value in inner:
        place = f"{path}[{name!r}]"
        if isinstance(value, str) and "{{" not in value and _is_secret(str(name)):
            raise ConfigurationError(
                f"{place} holds a secret, which every user who may see the DAG could read. Take it from a connection, "
                "as in '{{ conn.lake.password }}': as a property of Spark.conf it then reaches Spark over a private "
                "channel"
            )
        _refuse_literals(value, place)


def _without_secrets(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _HIDDEN if _is_secret(str(name)) else _without_secrets(value) for name, value in given.items()}
    if isinstance(given, list):
        return [*map(_without_secrets, given)]
    if isinstance(given, str):  # such as arguments of spark-submit
        return _PAIR.sub(lambda pair: f"{pair[1]}={_HIDDEN}" if _is_secret(pair[1]) else pair[0], given)
    return given


def weakness(master: str, properties: Mapping[str, Any]) -> str | None:
    """Return which properties a cluster lacks to protect the traffic between driver and executors, as a sentence; None
    if it lacks none.

    The traffic has Spark's properties, the code of tasks, and rows: https://spark.apache.org/docs/latest/security.html
    """
    on = {name for name, value in properties.items() if str(value).lower() == "true"}
    lacking = []
    if master.startswith("local"):
        return None
    if "spark.authenticate" not in on:
        lacking.append("spark.authenticate")
    if not on & {"spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled"}:
        lacking.append("spark.network.crypto.enabled (or spark.ssl.rpc.enabled)")
    if not lacking:
        return None
    return (
        f"The traffic between the driver and the executors of {master} is unprotected, including secrets of "
        f"Spark.conf: set {' and '.join(lacking)} to true in spark-defaults.conf, here and on the workers"
    )


def read_defaults(text: str) -> dict[str, str]:
    """Return the properties of a file in the form of spark-defaults.conf: a name, blanks, = or :, and a value."""
    lines = (line.strip() for line in text.splitlines())
    found = (re.match(r"([^\s=:]+)\s*[=:]?\s*(.*)", line) for line in lines if line and not line.startswith(("#", "!")))
    return {match[1]: match[2] for match in found if match is not None}


def _is_secret(name: str) -> bool:
    return re.search(REDACTION, name) is not None and _ABOUT.search(name) is None
