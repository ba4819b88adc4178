"""The ACLs that `SECURITY.md` lists are measured: with them all of a line works, and without any of them an error names
it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.core.instants import CommittedBy
from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.exceptions import ConfigurationError, MirrorError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.producer import Outgoing, send
from airflow_kafka_offsets.lag.measure import measure_lag
from airflow_kafka_offsets.lag.report import LagQuestion
from airflow_kafka_offsets.lag.thresholds import LagWatch
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.after_commit import mirror_stored
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.secured_kafka import SecuredKafka
from devstack.topics import create_topic
from tests.support.clients import commit_to_kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, names
from tests.support.replays import Replayer

pytestmark = pytest.mark.server

SECURITY = Path(__file__).resolve().parents[2] / "SECURITY.md"

USER, GROUP = "User:loader", "consumer group in Kafka"


class Right(NamedTuple):
    """An ACL of the table, on the topic or on the group of a test."""

    operation: str
    kind: str

    def __str__(self) -> str:
        return f"{self.operation} on the {self.kind}"


def table() -> dict[str, list[Right]]:
    """Return the lines of the table, by what they are for."""
    section = SECURITY.read_text(encoding="utf-8").partition("## Rights in Kafka")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!for \|)(.+) \| (.+) \|$", section, re.MULTILINE)
    kinds = {"topics": "topic", GROUP: "group"}
    return {
        purpose: [Right(operation, kinds[on]) for operation, on in re.findall(r"(\w+) on the ([\w ]+?)(?:;|$)", rights)]
        for purpose, rights in rows
    }


@dataclass
class SecuredLoader(Loader):
    """Loads as a user whom ACLs restrict."""

    login: Mapping[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.login)

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.config)


class Trial(NamedTuple):
    """What a line of the table is tried with: a topic and a group that no ACL names yet."""

    loader: SecuredLoader
    topic: str
    group: str

    @property
    def tps(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, 0)]


def load(trial: Trial) -> None:
    loader = trial.loader
    loader(trial.topic)
    Replayer(loader)(trial.topic, {trial.topic: {0: (0, 2)}}, sink=SqlTable("elsewhere"))
    verify("loader", sink=SqlTable("target"), engine=loader.engine, kafka_config=loader.config)


def look(trial: Trial) -> None:
    loader = trial.loader
    question = LagQuestion("loader", {trial.topic: None}, times=True)
    report = measure_lag(Ledger(loader.engine), loader.cluster, question, new_group=True)
    # The group's partitions have errors, or its lag is known: what a sensor makes of it.
    assert LagWatch(group_id="loader", conn_id="warehouse", min_lag=3).judge(report).met
    preview_rewind(
        "loader",
        Scenario.of("to-earliest"),
        engine=loader.engine,
        kafka_config=loader.config,
        scope={trial.topic: None},
        new_group=True,
    )


def headroom(trial: Trial) -> None:
    loader = trial.loader
    question = LagQuestion("loader", {trial.topic: None}, times=True)
    report = measure_lag(Ledger(loader.engine), loader.cluster, question, new_group=True)
    assert LagWatch(group_id="loader", conn_id="warehouse", min_headroom=timedelta(days=400)).judge(report).met


def import_commits(trial: Trial) -> None:
    preview = preview_rewind(
        "loader",
        Scenario.of("import", trial.group),
        engine=trial.loader.engine,
        kafka_config=trial.loader.config,
        scope={trial.topic: None},
    )
    assert [partition.new_offset for partition in preview.partitions] == [1]


def load_after_commits(trial: Trial) -> None:
    assert trial.loader(trial.topic, start=CommittedBy(trial.group)).rows == 2


def mirror(trial: Trial) -> None:
    at = Position(2, None, None)
    mirror_stored(trial.loader.cluster, trial.group, lambda: dict.fromkeys(trial.tps, at))


def write(trial: Trial) -> None:
    assert send(trial.loader.config, trial.topic, [Outgoing(None, b"{}", (), ())], ("left-out", b"")) == 0


ACTIONS: dict[str, Callable[[Trial], None]] = {
    "loads": load,
    "rewinds": look,
    "the headroom": headroom,
    "`import`": import_commits,
    "first runs": load_after_commits,
    "`DeadLetters.topic`": write,
    "`Coordination.mirror_to`": mirror,
}


def action(purpose: str) -> Callable[[Trial], None]:
    return next(action for beginning, action in ACTIONS.items() if purpose.startswith(beginning))


@pytest.fixture
def trial(secured_kafka: SecuredKafka, tmp_path: Path) -> Trial:
    topic, group = f"orders-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create_topic(secured_kafka.bootstrap_servers, topic, 1)
    produce(secured_kafka, topic, names(0, 3))
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    login = secured_kafka.sasl("loader", "loader-secret")
    return Trial(SecuredLoader(secured_kafka, engine, InlineLauncher(), login), topic, group)


@pytest.fixture
def committed(secured_kafka: SecuredKafka, trial: Trial) -> None:
    """Offset 1 is committed to the group of the test, as another user would."""
    commit_to_kafka(secured_kafka, trial.group, trial.topic, {0: 1})


@pytest.fixture
def allow(secured_kafka: SecuredKafka, trial: Trial) -> Callable[[Right], None]:
    """Adds an ACL for the user of the test."""
    resources = {"topic": trial.topic, "group": trial.group}
    return lambda right: secured_kafka.allow(USER, right.operation, right.kind, resources[right.kind])


LACKING = [(purpose, right) for purpose, rights in table().items() for right in rights]


def test_every_line_of_the_table_is_tried() -> None:
    assert [len(rights) for rights in table().values()] == [1, 1, 2, 2, 2, 1, 2]
    assert {action(purpose) for purpose in table()} == set(ACTIONS.values())


@pytest.mark.parametrize("purpose", table())
@pytest.mark.usefixtures("committed")
def test_the_rights_of_a_line_suffice(trial: Trial, allow: Callable[[Right], None], purpose: str) -> None:
    for right in table()[purpose]:
        allow(right)
    action(purpose)(trial)


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize(("purpose", "lacking"), LACKING, ids=map(str, (f"{one[0][:12]} {one[1]}" for one in LACKING)))
def test_without_any_of_them_an_error_names_it(
    trial: Trial, allow: Callable[[Right], None], purpose: str, lacking: Right
) -> None:
    for right in table()[purpose]:
        if right != lacking:
            allow(right)
    if lacking == Right("Read", "topic"):
        allow(Right("Describe", "topic"))

    with pytest.raises((ConfigurationError, MirrorError)) as raised:
        action(purpose)(trial)

    assert not raised.value.retriable
    if isinstance(raised.value, MirrorError):
        assert f"ACL: {lacking}" in str(raised.value)
    else:
        name = trial.topic if lacking.kind == "topic" else trial.group
        assert f"user 'loader' needs the ACL {lacking.operation} on {lacking.kind} {name!r}" in str(raised.value)
