"""Libraries that extras of the package install."""

from __future__ import annotations

from importlib.util import find_spec

from airflow_kafka_offsets.exceptions import ConfigurationError


def require_library(what: str, module: str, extra: str, *, library: str = "", executors: str = "") -> None:
    """Refuse to go on without a library.

    :param what: needs it, as the beginning of the message
    :param extra: of this package, which installs it
    :param library: its name, if that is not the module's
    :param executors: the libraries that Spark's executors need, if these are fewer than the extra has
    :raises ConfigurationError: it is not installed
    """
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None  # the package that the module is in
    if found is None:
        raise ConfigurationError(
            f"{what} needs {library or module}: install the extra 'airflow-kafka-offsets[{extra}]' on the worker, and "
            f"{executors or 'the same'} where Spark's executors run"
        )
