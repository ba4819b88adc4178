"""Airflow connections of type `mysql`, to MySQL or MariaDB: through PyMySQL, without the hook of the MySQL provider.

That hook is made for mysqlclient, and SqlTable needs a driver that reports each warning of the server and sends rows
without a file. The provider need not be installed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.addresses import is_this_machine
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

_PORT = 3306

_TLS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_verify_cert", "ssl_verify_identity")

_OTHERS = ("unix_socket", "connect_timeout", "read_timeout", "write_timeout")

# Keys of the provider that mean nothing here: which client, which cursor; every session has utf8mb4, and reads no file.
_IGNORED = ("client", "charset", "cursor", "local_infile")

_OF_SSL = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}


def mysql_engine(connection: Any) -> Engine:
    """Return the engine of a connection.

    :param connection: of Airflow
    :raises ConfigurationError: PyMySQL is not installed, or the extra has a key that is not known
    """
    import sqlalchemy as sa

    try:
        import pymysql  # noqa: F401 - SQLAlchemy imports it
    except ImportError:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} leads to MySQL or MariaDB, for which PyMySQL is needed: pip install "
            "'airflow-kafka-offsets[mysql]'"
        ) from None
    url = sa.URL.create(
        "mysql+pymysql",
        connection.login,
        connection.password,
        connection.host or "localhost",
        connection.port or _PORT,
        connection.schema,
    )
    # Error messages must not show the values of rows.
    return sa.create_engine(url, hide_parameters=True, connect_args=_arguments(connection))


def _arguments(connection: Any) -> dict[str, Any]:
    """Return the driver's arguments in the extra of a connection, which is data: only known keys are passed on."""
    extra = {name: value for name, value in connection.extra_dejson.items() if name not in _IGNORED}
    # As the provider has them: an object, or its text.
    tls = extra.pop("ssl", None) or {}
    tls = json.loads(tls) if isinstance(tls, str) else tls
    unknown = [f"ssl.{name}" for name in tls if name not in _OF_SSL]
    extra = {_OF_SSL[name]: value for name, value in tls.items() if name in _OF_SSL} | extra
    unknown += [name for name in extra if name not in (*_TLS, *_OTHERS)]
    if unknown:
        raise ConfigurationError(
            f"The extra of connection {connection.conn_id!r} has {first_few(map(repr, sorted(unknown)))}, which means "
            f"nothing to PyMySQL; it may have {', '.join((*_TLS, *_OTHERS))}"
        )
    if extra.get("ssl_ca") and "ssl_verify_identity" not in extra:
        # PyMySQL would accept a certificate of any host.
        extra["ssl_verify_identity"] = True
    return extra


def mysql_weakness(driver_connection: Any) -> str | None:
    """Return why a connection of PyMySQL is not safe, as a sentence; None where it is, and for other drivers."""
    is_encrypted, host = getattr(driver_connection, "_secure", None), getattr(driver_connection, "host", "")
    if is_encrypted is not False or is_this_machine(host):
        return None
    return f"the rows and the positions cross the network to {host} in plain text; add 'ssl_ca' to its extra"
