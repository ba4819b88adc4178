"""The page of versions: what it calls tested is what the tests run with, and the classifiers of the package agree."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from typing import Any

import pytest

from compat.__main__ import PAGE, recorded, with_table
from compat.cells import CELLS
from devstack.kafka_jars import KAFKA_VERSION
from devstack.postgres import PostgresServer
from devstack.versions import Servers
from tests.docs.test_docs import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def table(heading: str) -> dict[str, list[str]]:
    """Return the cells of a section's table, by the first cell of their row."""
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    section = f"\n{text}".partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.MULTILINE)
    ]
    return {name: cells for name, *cells in rows[2:]}


def version_of(name: str) -> str:
    """Return the version that is called tested."""
    return table("# Compatibility")[name][0]


def minor(full: str) -> str:
    return ".".join(full.split(".")[:2])


def test_the_versions_that_are_tested_are_those_of_the_tests() -> None:
    daily = Servers()
    ran = {("Kafka", daily.kafka[0]), ("Postgres", daily.postgres[0]), ("MariaDB", daily.mariadb[0])}
    ran.add(("Python", f"{sys.version_info.major}.{sys.version_info.minor}"))
    ran |= {("Airflow", minor(version("apache-airflow"))), ("Spark", minor(version("pyspark")))}
    for result in recorded().values():
        versions = result["versions"]
        database, number = versions["database"].split()
        keys = {"Python": "python", "Airflow": "apache-airflow", "Spark": "pyspark", "Kafka": "kafka"}
        ran |= {(name, minor(versions[key])) for name, key in keys.items()}
        ran.add((database, number.partition(".")[0] if database == "Postgres" else minor(number)))
    for name in ("Python", "Airflow", "Spark", "Kafka", "Postgres", "MariaDB", "MySQL"):
        called = re.findall(r"\d+[\d.]*", version_of(name).partition("](")[0])
        assert {(name, each) for each in called} == {each for each in ran if each[0] == name}
    assert Servers().kafka[0] == minor(KAFKA_VERSION)
    assert {name: cells[1] for name, cells in table("## Sinks").items()} == {
        "Iceberg": f"pyiceberg {minor(version('pyiceberg'))}",
        "Delta": f"deltalake {minor(version('deltalake'))}",
        "Parquet": f"obstore {minor(version('obstore'))}",
    }
    assert {cells[0] for cells in table("## Sinks").values()} <= {
        f"`{name}`" for name in PROJECT["optional-dependencies"]
    }


def test_untested_versions_have_no_classifier() -> None:
    claimed = "\n".join(PROJECT["classifiers"])

    assert re.findall(r"Python :: (3\.\d+)", claimed) == version_of("Python").split(", ")
    assert re.findall(r"^Operating System :: .*?(\w+)$", claimed, re.MULTILINE) == [version_of("Operating system")]
    assert not re.search("Beta|Production/Stable", claimed)


@pytest.mark.server
def test_postgres_is_that_of_the_tests(postgres: PostgresServer) -> None:
    with postgres.connect() as conn:
        assert Servers().postgres[0] == str(conn.info.server_version // 10_000)


def test_the_combinations_are_those_that_ran() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert with_table(page, recorded()) == page
    assert recorded().keys() <= CELLS.keys()
    assert [name for name, result in recorded().items() if result["wrong"]] == []
