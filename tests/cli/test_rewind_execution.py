"""`kafka-offsets rewind --execute`: a preview as it was shown, replaced rows, undo, open batches, the
history.
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from airflow_kafka_offsets.exceptions import FencedError
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.operators.positions import KafkaRewindOperator
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from tests.support.airflow_runs import airflow_uri
from tests.support.clients import produce
from tests.support.command_line import DB, Done, Terminal, kafka_connection, leave_open
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.rewind_commands import Rewinds, assert_rows_once
from tests.support.task_context import task_context
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server


def test_r33_a_preview_whose_positions_moved_is_a_conflict(rewinds: Rewinds, tmp_path: Path) -> None:
    saved = tmp_path / "preview.json"
    saved.write_text(rewinds("rewind", "--to-offset", "50", "--output", "json").stdout)
    rewinds.loader(rewinds.topic)

    done = rewinds("rewind", "--preview", str(saved), "--execute")

    assert done.status == 1
    assert f"{rewinds.topic}[0]: position 100 in the preview, position 200 now" in done.stderr
    assert rewinds.position == 200


def test_a_saved_preview_is_executed_as_it_was_shown(rewinds: Rewinds, kafka: KafkaBroker, tmp_path: Path) -> None:
    saved = tmp_path / "preview.json"
    saved.write_text(rewinds("rewind", "--to-latest", "--output", "json").stdout)
    produce(kafka, rewinds.topic, names(200, 10))

    assert rewinds("rewind", "--preview", str(saved), "--execute").status == 0
    assert rewinds.position == 200


def test_a_saved_preview_of_another_group_is_refused(rewinds: Rewinds, tmp_path: Path) -> None:
    saved = tmp_path / "preview.json"
    saved.write_text(rewinds("rewind", "--to-offset", "50", "--output", "json").stdout)

    done = rewinds.airflow("rewind", "other", *DB, "--preview", str(saved), "--execute", "--reason", "x")

    assert (done.status, done.stdout) == (1, "")
    assert "The saved preview is of group 'loader', not of 'other'" in done.stderr
    assert rewinds.position == 100
    assert rows(rewinds.loader.engine, "SELECT group_id FROM consumer_groups") == [("loader",)]


@pytest.mark.parametrize("saved", [False, True])
def test_a_rewind_is_executed_only_if_the_user_confirms_what_it_does(
    rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved: bool
) -> None:
    scenario: tuple[str, ...] = ("--to-offset", "40")
    if saved:
        (tmp_path / "preview.json").write_text(rewinds("rewind", *scenario, "--output", "json").stdout)
        scenario = ("--preview", str(tmp_path / "preview.json"))
    command = ("rewind", "loader", *DB, *scenario, "--execute")

    monkeypatch.setattr(sys, "stdin", Terminal("no"))
    without_reason = rewinds.airflow(*command)
    declined = rewinds.airflow(*command, "--reason", "a bug")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    not_asked = rewinds.airflow(*command, "--reason", "a bug")
    assert rewinds.position == 100
    monkeypatch.setattr(sys, "stdin", Terminal("yes"))
    confirmed = rewinds.airflow(*command, "--reason", "a bug")

    assert (without_reason.status, without_reason.stdout) == (2, "")
    assert "--reason" in without_reason.stderr
    assert (not_asked.status, not_asked.stdout) == (2, "")
    assert "add --yes" in not_asked.stderr
    assert declined.status == 1
    assert declined.stderr.splitlines()[-1].endswith("Not confirmed: nothing was changed")
    assert confirmed.status == 0
    for done in (declined, confirmed):
        assert "60" in done.stdout
        says, _, _ = done.stderr.partition("Continue? [y/N] ")
        assert "1 position will change: 60 offsets are read again, 0 were never loaded and are skipped" in says
        assert "Rows stay in 'target': the next load duplicates those of the offsets that are read again" in says
        assert "--replace target removes them" in says
    assert rewinds.position == 40


def test_replace_and_load_again_leave_every_record_once(rewinds: Rewinds) -> None:
    done = rewinds("rewind", "--to-offset", "40", "--replace", "target", "--execute")

    assert "60 rows and 0 dead letters were removed" in done.stderr
    assert rows(rewinds.loader.engine, "SELECT count(*) FROM target") == [(40,)]
    assert rewinds.loader(rewinds.topic).records == 160
    loaded = rows(rewinds.loader.engine, "SELECT _kafka_offset FROM target ORDER BY 1")
    assert [offset for (offset,) in loaded] == list(range(200))
    verify("loader", sink=SqlTable("target"), engine=rewinds.loader.engine, kafka_config=rewinds.loader.config)


def test_a_preview_refuses_what_its_execution_would(rewinds: Rewinds) -> None:
    elsewhere = rewinds("rewind", "--to-offset", "40", "--replace", "targte")
    not_open = rewinds("rewind", "--to-offset", "40", "--abandon", "7")

    assert (elsewhere.status, elsewhere.stdout) == (1, "")
    assert "Batch 1 of group 'loader' loaded offsets to replace into 'target', not into 'targte'" in elsewhere.stderr
    assert (not_open.status, not_open.stdout) == (1, "")
    assert "Batch 7 of group 'loader' is not open" in not_open.stderr


def test_a_preview_counts_the_rows_of_a_renamed_table(rewinds: Rewinds) -> None:
    with rewinds.loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE target RENAME TO renamed")

    preview = rewinds("rewind", "--to-offset", "40", "--replace", "renamed")

    assert preview.status == 0
    assert "Of the offsets that are read again, 60 rows and 0 dead letters are removed from 'renamed'" in preview.stderr


def test_replace_that_was_forgotten_is_made_good(rewinds: Rewinds) -> None:
    rewinds("rewind", "--to-offset", "50", "--execute")
    again = ("rewind", "--to-current", "--replace", "target")

    assert "0 positions would change: 50 offsets are read again" in rewinds(*again).stderr
    done = rewinds(*again, "--execute")

    assert done.status == 0
    assert "50 offsets are read again" in done.stderr
    assert "Of the offsets that are read again, 50 rows and 0 dead letters are removed from 'target'" in done.stderr
    assert "50 rows and 0 dead letters were removed" in done.stderr
    rewinds.loader(rewinds.topic)
    assert_rows_once(rewinds.loader, 200)


def test_undo_takes_the_last_rewind_back_and_loads_nothing_twice(rewinds: Rewinds) -> None:
    rewinds("rewind", "--to-earliest", "--execute")
    assert rewinds.position == 0

    assert rewinds("rewind", "--undo", "--execute").status == 0

    assert rewinds.position == 100
    rewinds.loader(rewinds.topic)
    assert_rows_once(rewinds.loader, 200)


def test_an_undo_after_a_load_is_refused_and_names_the_way(rewinds: Rewinds) -> None:
    rewinds("rewind", "--to-earliest", "--execute")
    rewinds.loader(rewinds.topic)

    done = rewinds("rewind", "--undo", "--execute")

    assert done.status == 1
    assert "rewind to-batch 2" in done.stderr
    assert rewinds.position == 200


def test_the_history_says_who_and_why(rewinds: Rewinds) -> None:
    rewinds("rewind", "--shift-by", "-10", "--execute", "--who", "alice", "--reason", "late schema")

    newest = rewinds("history", "--output", "json").json[0]

    assert (newest["kind"], newest["scenario"], newest["who"], newest["reason"]) == (
        "rewind",
        "shift-by -10",
        "alice",
        "late schema",
    )
    # A name is a claim: who the process runs as, and who is logged in to the database, is not.
    engine = rewinds.loader.engine
    assert newest["os_user"] == current_user()
    assert newest["database_user"] == (engine.url.username if engine.dialect.name == "postgresql" else None)
    assert newest["triggered_by"] is None
    assert f"alice ({current_user()})" in rewinds("history", "--output", "plain").stdout


def test_the_history_says_who_triggered_a_rewind_in_airflow(rewinds: Rewinds) -> None:
    rewind = KafkaRewindOperator(task_id="rewind", group_id="loader", scenario="to-earliest", conn_id="warehouse")

    rewind.execute(task_context("rewind", run_id="manual", triggered_by="ana"))

    newest = rewinds("history", "--output", "json").json[0]
    assert (newest["who"], newest["triggered_by"]) == ("dag 'dag' task 'rewind' run 'manual'", "ana")
    assert "run 'manual', triggered by ana" in rewinds("history", "--output", "plain").stdout


def test_abandoned_batch_names_the_user_of_the_rewind(rewinds: Rewinds) -> None:
    leave_open(rewinds.loader, rewinds.topic)
    rewind = KafkaRewindOperator(
        task_id="rewind",
        group_id="loader",
        scenario="to-current",
        conn_id="warehouse",
        abandon_open_batch=True,
    )

    rewind.execute(task_context("rewind", triggered_by="ana"))

    rewound, abandoned = rewinds("history", "--output", "json").json[:2]
    assert (rewound["kind"], rewound["scenario"], abandoned["state"]) == ("rewind", "to-current", "abandoned")
    assert "abandoned by dag 'dag' task 'rewind' run 'run', triggered by ana" in abandoned["reason"]


def test_r31_an_open_batch_is_named_and_once_abandoned_never_commits(rewinds: Rewinds) -> None:
    execute = ("rewind", "--to-offset", "50", "--replace", "target", "--execute")
    refused: list[Done] = []
    abandoned: list[Done] = []

    class RewoundMeanwhile(InlineLauncher):
        """Stages all of batch 2; the load that is about to commit it loses it then."""

        def __call__(self, job: StageJob) -> None:
            super().__call__(job)
            refused.append(rewinds(*execute))
            assert rewinds.position == 100
            refused.append(rewinds(*execute, "--abandon", "3"))
            abandoned.append(rewinds(*execute, "--abandon", "2", "--reason", "it hangs"))

    with pytest.raises(FencedError):
        Loader(rewinds.loader.kafka, rewinds.loader.engine, RewoundMeanwhile())(rewinds.topic)

    assert [(one.status, one.stdout) for one in refused] == [(1, "")] * 2
    assert "has the open batch 2, " in refused[0].stderr
    assert "has the open batch 2, which is not batch 3" in refused[1].stderr
    assert abandoned[0].status == 0, abandoned[0].stderr
    assert rewinds.position == 50
    assert rows(rewinds.loader.engine, "SELECT state FROM offset_batches ORDER BY batch_id") == [
        ("committed",),
        ("abandoned",),
        ("committed",),
    ]
    rewinds.loader(rewinds.topic)
    assert_rows_once(rewinds.loader, 200)
    verify("loader", sink=SqlTable("target"), engine=rewinds.loader.engine, kafka_config=rewinds.loader.config)


def test_a_batch_is_abandoned_where_no_position_changes(rewinds: Rewinds) -> None:
    leave_open(rewinds.loader, rewinds.topic)
    nowhere = ("rewind", "--to-offset", "100", "--execute", "--abandon")

    wrong = rewinds(*nowhere, "77")
    done = rewinds(*nowhere, "2", "--reason", "it hangs")

    assert (wrong.status, wrong.stdout) == (1, "")
    assert "Batch 77 of group 'loader' cannot be abandoned: the group has no such batch" in wrong.stderr
    for number, why in (("77", "the group has no such batch"), ("1", "it is committed")):
        alone = rewinds.airflow("abandon", "loader", *DB, "--batch", number, "--reason", "it hangs", "--yes")
        (line,) = alone.stderr.splitlines()
        assert f"Batch {number} of group 'loader' cannot be abandoned: {why}" in line
    assert done.status == 0
    assert "No position was to be changed; batch 2 is abandoned" in done.stderr
    assert rows(rewinds.loader.engine, "SELECT batch_id, state FROM offset_batches ORDER BY batch_id") == [
        (1, "committed"),
        (2, "abandoned"),
    ]


def test_a_user_without_a_name_is_told_by_number(rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)

    assert rewinds("rewind", "--to-offset", "50", "--execute").status == 0

    found = rows(rewinds.loader.engine, "SELECT who FROM offset_batches WHERE kind = 'rewind'")
    assert found == [(f"uid {2**31 - 7}@{socket.gethostname()}",)]


@pytest.mark.broker
def test_the_real_airflow_command_previews_executes_and_fails(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic()
    produce(kafka, name, names(0, 100))
    postgres_loader(name)
    connections = {"kafka_default": kafka_connection(kafka), "warehouse": airflow_uri(postgres_loader.engine)}
    common = ("kafka-offsets", "rewind", "loader", "--conn-id", "warehouse")
    with WarmAirflowHome(dags=tmp_path, connections=connections) as home:
        preview = home.run(*common, "--to-offset", "50", "--output", "json")
        (tmp_path / "preview.json").write_text(preview.stdout)
        execute = (*common, "--preview", str(tmp_path / "preview.json"), "--execute", "--reason", "a test", "--yes")
        executed = home.run(*execute, "--replace", "target")
        again = home.run(*execute)

    assert json.loads(preview.stdout)["offsets_reread"] == 50
    assert executed.returncode == 0, executed.stderr
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.splitlines()[-1].startswith("kafka-offsets rewind: ")
    assert "were rewound since this preview was made" in again.stderr.splitlines()[-1]
    assert positions(postgres_loader.engine) == {(name, 0): 50}
    postgres_loader(name)
    assert_rows_once(postgres_loader, 100)
