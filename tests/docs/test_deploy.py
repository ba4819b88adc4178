"""What docs/deploy.md says about an image, mapped tasks and tests of a DAG."""

from __future__ import annotations

import re
from typing import Any

import pytest

import airflow_kafka_offsets
from tests.docs.test_docs import ROOT, python_snippet
from tests.support.warm_airflow import WarmAirflowHome

GUIDE = "docs/deploy.md"
DOCKERFILE = (ROOT / "docs" / "examples" / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_has_the_tested_versions() -> None:
    (airflow,) = re.findall(r"^FROM apache/airflow:([\d.]+)-python3\.11$", DOCKERFILE, re.MULTILINE)
    pinned = (ROOT / "constraints" / "dev.txt").read_text(encoding="utf-8")
    wheel = f"airflow_kafka_offsets-{airflow_kafka_offsets.__version__}-py3-none-any.whl"

    assert f"\napache-airflow=={airflow} " in pinned
    assert "openjdk-17-jre-headless" in DOCKERFILE
    assert set(re.findall(r"airflow_kafka_offsets-[\w.-]+\.whl", DOCKERFILE)) == {wheel}
    assert wheel in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_mapped_load_of_the_guide_has_a_group_and_a_table_each() -> None:
    namespace: dict[str, Any] = {}
    exec(python_snippet("from datetime import datetime", GUIDE), namespace)

    (task,) = namespace["dag"].tasks
    given = task.expand_input.value
    assert [each["group_id"] for each in given] == ["orders_de", "orders_fr", "orders_us"]
    assert len({each["sink"].name for each in given}) == 3


@pytest.mark.server
def test_the_unit_test_of_the_guide_passes() -> None:
    with WarmAirflowHome() as home:
        (home.directory / "dags" / "readme.py").write_text(python_snippet("from datetime import datetime"))
        run = home.run_code(f"{python_snippet('from airflow.dag_processing', GUIDE)}\ntest_dag_files_can_be_imported()")

    assert run.returncode == 0, run.stderr[-3000:]
