"""The ranges of dependencies in pyproject.toml, and the versions that `make lowest` tests."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from devstack.spark_services import SERVICE_EXTRAS

ROOT = Path(__file__).parents[2]

# By package: the last version with a vulnerability that is known, and which one it is. Airflow is none of them: a
# deployment chooses its version, and this package does not keep it from being upgraded.
VULNERABLE = {
    "apache-airflow-providers-apache-spark": ("4.1.2", "CVE-2023-40195"),
    "httpx": ("0.22.0", "CVE-2021-41945"),
    "protobuf": ("6.33.4", "CVE-2026-0994"),
    "pyarrow": ("23.0.0", "CVE-2026-25087"),
    "pymysql": ("1.1.3", "TLS that is asked for is not required"),
    "pyspark": ("3.5.1", "CVE-2025-55039"),
    "pyyaml": ("5.3.1", "CVE-2020-14343"),
    "sqlalchemy": ("1.2.17", "CVE-2019-7548"),
}


def requirements() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # What services need is not among the lowest versions.
    extras = [listed for name, listed in project["optional-dependencies"].items() if name not in SERVICE_EXTRAS]
    for listed in (project["dependencies"], *extras):
        yield from map(Requirement, listed)


def test_no_range_holds_a_version_that_is_known_to_be_vulnerable() -> None:
    found = {}
    for requirement in requirements():
        if requirement.name in VULNERABLE:
            last, name = VULNERABLE[requirement.name]
            found[requirement.name] = name if requirement.specifier.contains(last) else None

    assert found == dict.fromkeys(VULNERABLE)


def test_the_lower_bounds_are_the_versions_that_are_tested() -> None:
    tested = dict(re.findall(r"^([a-z0-9-]+)==(\S+) ", (ROOT / "constraints" / "lowest.txt").read_text(), re.M))
    bounds = {
        requirement.name: (part.version, tested[requirement.name])
        for requirement in requirements()
        for part in requirement.specifier
        if part.operator in (">=", "==")
    }

    assert {name for name, (bound, version) in bounds.items() if Version(bound) != Version(version)} == set()


def test_an_unstable_library_is_no_exact_pin() -> None:
    """Another package could not be installed beside this one, and a fix of it not at all."""
    pins = [str(each) for each in requirements() for part in each.specifier if part.operator == "=="]

    assert [pin for pin in pins if "==0." in pin] == []
