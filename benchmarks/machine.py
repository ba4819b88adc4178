"""The machine and the versions of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from devstack.kafka_jars import KAFKA_VERSION
from devstack.paths import REPOSITORY
from devstack.postgres import PostgresServer

WRITTEN = REPOSITORY / "docs" / "benchmarks"
"""The folder of the stored measurements."""

_PACKAGES = (
    "apache-airflow",
    "apache-airflow-providers-apache-kafka",
    "confluent-kafka",
    "psycopg",
    "pyarrow",
    "pyspark",
)


def in_short() -> str:
    return f"{_processor()}, {os.cpu_count()} cores"


def describe(postgres: PostgresServer) -> dict[str, str]:
    with postgres.connect() as conn:
        (server,) = conn.execute("SHOW server_version").fetchone() or ("?",)
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "postgres": f"{server}, fsync on",
        **{name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    # On Linux the name is only here.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
