"""What users import, what it costs them, and what Airflow is told."""

import dataclasses
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

import airflow_kafka_offsets
from airflow_kafka_offsets.get_provider_info import get_provider_info

HEAVY = {"airflow", "confluent_kafka", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy", "sqlglot"}


def imported_by(code: str) -> set[str]:
    """The packages that a fresh interpreter holds after some code."""
    report = "\nimport json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_public_names_are_these() -> None:
    assert sorted(airflow_kafka_offsets.__all__) == [
        "ArrowTransform",
        "Avro",
        "BatchBounds",
        "Branch",
        "CommittedBy",
        "Coordination",
        "DeadLetterFilter",
        "DeadLetters",
        "DeltaTable",
        "ExtraColumns",
        "FunctionSink",
        "Header",
        "IcebergTable",
        "Json",
        "JsonSchema",
        "KafkaBatchOperator",
        "KafkaLagEventTrigger",
        "KafkaLagSensor",
        "KafkaLagTrigger",
        "KafkaOffsetsRetryPolicy",
        "KafkaReplayOperator",
        "KafkaReplayPlanOperator",
        "KafkaRewindOperator",
        "KafkaVerifyOperator",
        "Limits",
        "LoadOptions",
        "LoadResult",
        "OffsetBounds",
        "ParquetFiles",
        "Pipeline",
        "Protobuf",
        "Raw",
        "Reading",
        "RewindPreview",
        "RewindResult",
        "Scenario",
        "SessionLauncher",
        "Spark",
        "Sql",
        "SqlTable",
        "Staging",
        "StateTables",
        "Text",
        "TimeBounds",
        "__version__",
        "abandon_batch",
        "drop_dead_letters",
        "execute_rewind",
        "kafka_batch_task",
        "load",
        "parse_scope",
        "preview_rewind",
        "replay",
        "replay_dead_letters",
        "verify",
    ]


@pytest.mark.parametrize("name", airflow_kafka_offsets.__all__)
def test_every_public_name_is_there(name: str) -> None:
    first = getattr(airflow_kafka_offsets, name)

    assert first is not None
    # A submodule of the same name would take its place once it is imported.
    assert getattr(airflow_kafka_offsets, name) is first
    assert name == "__version__" or not isinstance(first, ModuleType)


def test_the_public_names_are_what_dir_shows() -> None:
    assert dir(airflow_kafka_offsets) == sorted(airflow_kafka_offsets.__all__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'airflow_kafka_offsets' has no attribute 'Nothing'"):
        airflow_kafka_offsets.Nothing  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import airflow_kafka_offsets",
        "from airflow_kafka_offsets.get_provider_info import get_provider_info; get_provider_info()",
        "from airflow_kafka_offsets import Json, Raw; Json('id BIGINT'), Raw(headers=True)",
        "from airflow_kafka_offsets import SqlTable; SqlTable('orders').name",
        "from airflow_kafka_offsets import IcebergTable; IcebergTable('shop.orders').name, IcebergTable('shop.orders', "
        "{'type': 'rest'}).name",
        "from airflow_kafka_offsets import CommittedBy, exceptions; from airflow_kafka_offsets.core import offsets, "
        "parameters, planning",
    ],
)
def test_package_imports_nothing_heavy(code: str) -> None:
    assert imported_by(code) & HEAVY == set()


def test_constructors_take_only_what_a_user_gives() -> None:
    """Every parameter is described; what the package adds to these objects is none."""
    for name in airflow_kafka_offsets.__all__:
        public = getattr(airflow_kafka_offsets, name)
        if not isinstance(public, type) or not dataclasses.is_dataclass(public):
            continue
        described = set(re.findall(r":ivar (\w+):", public.__doc__ or ""))
        for base in public.__mro__:
            described |= set(re.findall(r":ivar (\w+):", base.__doc__ or ""))
        assert described.isdisjoint(inspect.signature(public).parameters), name


# The other names come from `load`, `replay` and `verify`, or are given to these by scripts.
OF_A_DAG_FILE = {name for name in airflow_kafka_offsets.__all__ if name.startswith("Kafka")} | {
    *(
        "Avro",
        "BatchBounds",
        "CommittedBy",
        "Coordination",
        "DeadLetters",
        "DeltaTable",
        "ExtraColumns",
        "IcebergTable",
        "Json",
        "JsonSchema",
        "Limits",
        "OffsetBounds",
        "Protobuf",
        "Raw",
        "Reading",
        "Spark",
        "SqlTable",
        "Staging",
        "StateTables",
        "TimeBounds",
    )
}


def test_imports_of_a_dag_file_bring_only_airflow() -> None:
    with_airflow = imported_by("import airflow.sdk, airflow.triggers.base")
    names = ", ".join(sorted(OF_A_DAG_FILE))
    code = f"import airflow.sdk, airflow.triggers.base; from airflow_kafka_offsets import {names}"
    assert (imported_by(code) - with_airflow) & HEAVY == set()


@pytest.fixture(scope="module")
def info() -> dict[str, Any]:
    return get_provider_info()


def test_the_provider_info_is_what_airflows_schema_asks_for(info: dict[str, Any]) -> None:
    spec = importlib.util.find_spec("airflow")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    schema = json.loads(Path(spec.submodule_search_locations[0], "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)


def test_airflow_finds_the_provider_info_by_its_entry_point() -> None:
    (found,) = [
        one for one in entry_points(group="apache_airflow_provider") if one.value.startswith("airflow_kafka_offsets.")
    ]
    assert found.load() is get_provider_info


def test_the_provider_has_the_packages_name_and_version(info: dict[str, Any]) -> None:
    assert info["package-name"] == "airflow-kafka-offsets"
    assert info["versions"] == [airflow_kafka_offsets.__version__]


def test_every_module_that_airflow_is_told_of_exists(info: dict[str, Any]) -> None:
    told = [
        name
        for kind in ("operators", "hooks", "sensors", "triggers")
        for entry in info.get(kind, [])
        for name in entry["python-modules"]
    ]
    assert told
    assert [name for name in told if importlib.util.find_spec(name) is None] == []


def test_every_part_belongs_to_an_integration_that_is_declared(info: dict[str, Any]) -> None:
    declared = {entry["integration-name"] for entry in info["integrations"]}
    used = {entry["integration-name"] for kind in ("operators", "hooks") for entry in info[kind]}
    assert used == declared
