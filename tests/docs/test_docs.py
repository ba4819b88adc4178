"""What the documents tell a reader to type works: every snippet, every command, every link."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_kafka_offsets"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/commands/*.md")])
REPOSITORY = "https://github.com/airflow-kafka-offsets/airflow-kafka-offsets"
RAW = REPOSITORY.replace("github.com", "raw.githubusercontent.com")
SCRIPT = "import sqlalchemy"
"""The beginning of the script without Airflow in docs/loads.md."""
SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [code for found, code in SNIPPET.findall(text) if found == language]


def python_snippet(beginning: str, document: str = "README.md") -> str:
    (code,) = (code for code in snippets(document, "python") if code.startswith(beginning))
    return code


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text)
    of_the_repository = re.findall(rf"{REPOSITORY}/blob/main/([^)#\s]+)|{RAW}/main/([^)#?\s]+)", text)

    assert [link for link in links if not (document.parent / link).exists()] == []
    assert [link for pair in of_the_repository for link in pair if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist_and_explain_themselves(document: Path) -> None:
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^  make ([a-z-]+)", told, re.MULTILINE))

    assert set(re.findall(r"\bmake ([a-z]+)`|^make ([a-z]+)$", document.read_text(encoding="utf-8"))) <= {
        pair for target in targets for pair in ((target, ""), ("", target))
    }


def test_paths_in_the_documents_exist() -> None:
    named = {
        path
        for document in DOCUMENTS
        for path in re.findall(
            r"`((?:airflow_kafka_offsets|docs|example_dags|constraints)/[\w./-]*)`", document.read_text("utf-8")
        )
    }

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_modules_of_the_map_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    the_map = text.partition("\n## The map\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", the_map))

    assert len(named) > 50
    assert [path for path in sorted(named) if not any((at / path).exists() for at in (ROOT, PACKAGE))] == []


def test_all_shell_snippets_are_known_here() -> None:
    """A new command in a document needs a test, and its place in this list.

    Those of the runbook, of backfills, of dead letters and of the tutorial have both in test_runbook.py,
    test_backfill.py, tests/cli/test_dead_letters_in_docs.py and test_tutorial.py, which run all of them.
    """
    others = [path for path in DOCUMENTS if path.name not in ("runbook.md", "backfill.md", "tutorial.md")]
    assert {code.strip() for path in others for code in snippets(str(path.relative_to(ROOT)), "sh")} == {
        "make demo\nmake test",
        "pip install '.[spark,postgres]'",
        "kafka-offsets init --conn-id warehouse",
        # tests/cli/test_archive_classes.py
        "kafka-offsets archive-classes",
        # tests/cli/test_program.py
        "export KAFKA_OFFSETS_DATABASE_FILE=~/.warehouse-url KAFKA_OFFSETS_KAFKA_CONFIG=~/client.properties\n"
        "kafka-offsets groups\n"
        "kafka-offsets lag orders_loader",
        "kafka-offsets init --conn-id warehouse --show-sql --grant-to loader",
        # test_guides.py
        "kafka-offsets lag orders_loader --conn-id warehouse\n"
        "kafka-offsets verify orders_loader --conn-id warehouse --table orders --kafka-conn-id kafka_default",
        "kafka-offsets lag orders_loader --conn-id warehouse --output json",
        "kafka-offsets import orders_loader --conn-id warehouse --from-group old-job",
        "kafka-offsets rewind new_group --conn-id warehouse --topic orders --to-group old_group --new-group "
        "\\\n    --execute --reason 'a new table'",
        # tests/cli/test_group_changes.py
        "kafka-offsets groups rename orders_loader shop_loader --conn-id warehouse\n"
        "kafka-offsets groups delete old_loader --conn-id warehouse",
        # test_spark_connect_example.py
        "airflow connections add spark_remote --conn-type spark_connect --conn-host spark.example.com "
        "--conn-port 15002 "
        "\\\n    --conn-login airflow --conn-password TOKEN --conn-extra '{\"use_ssl\": true}'",
        # tests/cli/test_targets_of_tasks.py
        "kafka-offsets verify orders_loader --conn-id warehouse --dag-id load_orders --task-id load_orders\n"
        "kafka-offsets rewind orders_loader --conn-id warehouse --to-batch 2 --execute --replace \\\n"
        "    --dag-id load_orders --task-id load_orders --reason 'wrong amounts'\n"
        "kafka-offsets replay orders_loader --conn-id warehouse --batch 2 --replace --dag-id load_orders "
        "--task-id load_orders \\\n    --reason 'wrong amounts'",
    }


def test_the_extras_of_the_install_command_exist() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (command,) = (code for code in snippets("README.md", "sh") if code.startswith("pip install"))
    ((directory, extras),) = re.findall(r"'([\w.-]+)\[([\w,]+)\]'", command)

    assert directory == "."
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert snippets("docs/tutorial.md", "sh")[0].startswith(command)
    table = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split("| extra |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)`", table)) == set(project["optional-dependencies"])


def test_the_dag_of_the_readme_is_a_dag(tmp_path: Path) -> None:
    (tmp_path / "readme.py").write_text(python_snippet("from datetime import datetime"), encoding="utf-8")

    with WarmAirflowHome(dags=tmp_path) as home:
        listed = home.run("dags", "list", "--local", "--output", "plain")
        errors = home.run("dags", "list-import-errors", "--local", "--output", "plain")

    assert "load_orders" in listed.stdout, listed.stderr
    assert errors.returncode == 0, errors.stdout


def test_the_asset_of_the_guide_watches_lag() -> None:
    namespace: dict[str, Any] = {}
    exec(python_snippet("from datetime import timedelta", "docs/loads.md"), namespace)

    (watcher,) = namespace["orders"].watchers
    _, parameters = watcher.trigger.serialize()
    assert (parameters["group_id"], parameters["min_lag"]) == ("orders_loader", 100_000)


def test_the_figures_of_the_documents_are_those_of_a_run() -> None:
    run = json.loads((ROOT / "docs" / "benchmarks" / "compare.json").read_text(encoding="utf-8"))
    seconds = {
        (name, f"{one['records']:,}"): f"{statistics.median(rounds):.1f}"
        for one in run["datasets"]
        if one["dataset"] == "orders"
        for name, rounds in one["seconds"].items()
    }
    speed = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    section = speed.partition("\n## Whole loads of orders\n")[2].partition("\n## ")[0]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Speed\n")[2].partition("\n## ")[0]
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*", section, re.M)
    ]

    assert {
        (name, records): told for name, *cells in rows for records, told in zip(header[1:], cells, strict=True)
    }.items() <= seconds.items()
    assert len(rows) > 4
    assert run["machine"]["processor"] in section
    assert run["machine"]["processor"] in readme
    assert re.findall(r"([\d.]+) s\b", readme) == [
        seconds[name, "5,000,000"] for name in ("this package", "hand-written Spark", "ConsumeFromTopicOperator")
    ]


@pytest.mark.long
def test_the_script_without_airflow_loads(tmp_path: Path) -> None:
    # A broker of its own: other examples have a topic of this name, too.
    with KafkaBroker() as kafka:
        produce_orders(kafka.bootstrap_servers, "orders", 1000)
        code = python_snippet(SCRIPT, "docs/loads.md").replace("localhost:9092", kafka.bootstrap_servers)
        (tmp_path / "script.py").write_text(code, encoding="utf-8")

        run = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
        )

    assert run.returncode == 0, run.stderr[-5000:]
    assert run.stdout.splitlines()[-1] == "1000"


def test_queries_of_the_documents_run(database: str) -> None:
    engine = sa.create_engine(database)
    initialize(Ledger(engine))
    queries = snippets("docs/state-tables.md", "sql")
    with engine.connect() as conn:
        for query in queries:
            conn.execute(sa.text(query))
    engine.dispose()

    assert len(queries) == 2


def test_every_state_table_is_explained() -> None:
    text = (ROOT / "docs" / "state-tables.md").read_text(encoding="utf-8")
    text = text.partition("\n## The tables\n")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(Tables().metadata.tables)
