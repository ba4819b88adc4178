"""What `SparkHook` needs of the official provider's SparkSubmitHook beside its documented parameters."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher

PROVIDER = "apache-airflow-providers-apache-spark"


@pytest.fixture(autouse=True)
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"deploy-mode": "client", "spark-binary": "spark3-submit"}
    connection = {"conn_type": "spark", "host": "local[2]", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


def changed(what: str) -> str:
    return f"{PROVIDER} {version(PROVIDER)}: {what}; see SparkHook in airflow_kafka_offsets/hooks/spark_hook.py"


@pytest.mark.parametrize("attribute", ["_connection", "_conf", "_submit_sp"])
def test_the_hook_has_the_attribute(attribute: str) -> None:
    assert hasattr(SparkSubmitHook(conn_id="spark_default"), attribute), changed(
        f"the hook has no {attribute} any more"
    )


def test_the_connection_is_resolved_when_the_hook_is_made() -> None:
    resolved = SparkSubmitHook(conn_id="spark_default")._connection
    found = {key: resolved.get(key) for key in ("master", "deploy_mode", "spark_binary")}
    expected = {"master": "local[2]", "deploy_mode": "client", "spark_binary": "spark3-submit"}
    assert found == expected, changed("_connection has other keys")


def test_properties_that_are_set_later_reach_the_command() -> None:
    hook = SparkSubmitHook(conn_id="spark_default")
    hook._conf = {"spark.of.this.test": "1"}
    command = hook._build_spark_submit_command("application.py")
    assert "spark.of.this.test=1" in command, changed("_conf is no part of the command")


def test_the_process_is_kept_while_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    submit = tmp_path / "spark3-submit"
    submit.write_text(f"#!{sys.executable}\n")
    submit.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    hook = SparkSubmitHook(conn_id="spark_default")
    before = hook._submit_sp
    assert before is None
    hook.submit("application.py")
    assert isinstance(hook._submit_sp, subprocess.Popen), changed("_submit_sp is no process")
    assert hook._submit_sp.stdout is not None
    hook._submit_sp.wait()
    hook._submit_sp.stdout.close()


def test_the_environment_is_an_argument_of_submit() -> None:
    parameters = inspect.signature(SparkSubmitHook.submit).parameters
    assert any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()), changed("submit takes no env")


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, {"spark.log.level": "WARN", "spark.pyspark.python": sys.executable}),
        ({"spark.log.level": "INFO"}, {"spark.log.level": "INFO", "spark.pyspark.python": sys.executable}),
    ],
)
def test_properties_of_the_users_own_go_over_those_of_this_package(
    conf: dict[str, str], expected: dict[str, str]
) -> None:
    hook = SparkSubmitLauncher("spark_default", conf=conf)._make_hook()
    command = hook._build_spark_submit_command("application.py")
    assert [f"{name}={value}" in command for name, value in expected.items()] == [True, True]
    assert [hook.resolved[name] for name in ("master", "deploy_mode", "spark_binary")] == [
        "local[2]",
        "client",
        "spark3-submit",
    ]
