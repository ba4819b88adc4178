"""`make release-check` finds what must not be released."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.release_check import changelog_faults, licence_faults, version_faults


def component(name: str, *licences: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "licenses": [{"license": licence} for licence in licences]}


@pytest.mark.parametrize(
    ("changelog", "faulty"),
    [
        ("# Changelog\n\n## 0.2.0 - 2026-12-01\n\n## 0.1.0 - 2026-11-25\n", False),
        ("# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n", True),
        ("# Changelog\n\n## 0.2.0\n", True),
        ("# Changelog\n\n## 0.20.0 - 2026-12-01\n", True),
        ("# Changelog\n", True),
    ],
)
def test_the_changelog_begins_with_the_version_and_its_date(changelog: str, faulty: bool) -> None:
    assert bool(changelog_faults(changelog, "0.2.0")) is faulty


def test_documents_install_the_version_that_is_released() -> None:
    documents = [
        ("a.md", 'pip install "airflow-kafka-offsets[spark]==0.2.0" apache-airflow==3.3.0'),
        ("b.md", "pip install airflow-kafka-offsets==0.1.0"),
        ("c.md", "pip install dist/airflow_kafka_offsets-0.1.9-py3-none-any.whl"),
    ]
    assert version_faults(documents, "0.2.0") == [
        "b.md names version 0.1.0 of the package",
        "c.md names version 0.1.9 of the package",
    ]


def test_each_licence_is_known_and_those_with_conditions_have_been_looked_at() -> None:
    components: list[dict[str, Any]] = [
        component("good", {"id": "Apache-2.0"}),
        {"name": "expression", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        component("certifi", {"id": "MPL-2.0"}),
        component("protobuf"),
        component("silent"),
        component("copyleft", {"name": "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"}),
        component("affero", {"id": "AGPL-3.0-only"}),
        component("shared source", {"id": "BUSL-1.1"}),
    ]
    assert [fault.partition(":")[0] for fault in licence_faults(components)] == [
        "silent",
        "copyleft",
        "affero",
        "shared source",
    ]
