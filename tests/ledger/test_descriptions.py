"""Texts that say what happened, in databases whose encoding lacks characters of them: no load stops for one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import Gap, Position
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.session import codec_of
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.exceptions import GroupBusyError, LedgerError
from airflow_kafka_offsets.ledger.batch_rows import Recipe, TaskRun
from airflow_kafka_offsets.ledger.batches import abandon, captured_targets, record_plan
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, RewindPreview
from devstack.mariadb import MariaDbServer
from devstack.postgres import PostgresServer
from tests.support.ledgers import CLUSTER, FIRST_LOAD, GROUP, MINUTE, NEXT_LOAD, T0, T1, written

pytestmark = pytest.mark.server

# A character of every plane and kind: of Latin-1 and not, of two UTF-16 units, half of such a pair, a control, NUL.
TEXT = "é Łódź → 日本 😀 \udc80 \x07 \x00"

OWNER = TaskRun(f"run {TEXT}", f"dag {TEXT}", "ładuj" * 50, -1, 1, triggered_by=TEXT)


@pytest.fixture(autouse=True)
def _without_logs() -> Iterator[None]:
    """Processes that share the tests send what is logged to each other, as UTF-8."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer, mariadb: MariaDbServer) -> Iterator[dict[str, str]]:
    made = {}
    for encoding in ("LATIN1", "WIN1250", "EUC_JP", "SQL_ASCII", "UTF8"):
        name = f"described_{encoding.lower()}"
        with postgres.connect() as conn:
            conn.execute(
                f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 STRATEGY FILE_COPY"
                " LC_COLLATE 'C' LC_CTYPE 'C'".encode()
            )
        made[encoding] = postgres.url(name)
    mariadb.execute("CREATE DATABASE described CHARACTER SET latin1 COLLATE latin1_swedish_ci")
    yield made | {"mariadb": mariadb.url("described")}
    for url in made.values():
        postgres.drop_database(sa.make_url(url).database or "")
    mariadb.drop_database("described")


@pytest.fixture(params=["LATIN1", "WIN1250", "EUC_JP", "SQL_ASCII", "UTF8", "LATIN1 by psycopg2", "mariadb"])
def ledger(databases: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Ledger]:
    encoding, _, driver = request.param.partition(" by ")
    engine = sa.create_engine(databases[encoding].replace("+psycopg:", f"+{driver or 'psycopg'}:"))
    made = Ledger(engine)
    initialize(made)
    yield made
    made.tables.metadata.drop_all(engine)
    engine.dispose()


def write_nothing(conn: Connection) -> int:
    return 0


def texts_of(engine: Engine, table: sa.Table) -> list[str]:
    """The texts of a table, but for names, states and the like."""
    with engine.connect() as conn:
        return [
            value
            for row in conn.execute(sa.select(table)).mappings()
            for value in row.values()
            if isinstance(value, str) and ("→" in value or "\\u2192" in value)
        ]


def test_every_text_that_describes_is_stored(ledger: Ledger) -> None:
    tables, recipe = ledger.tables, Recipe("target", TEXT, "fingerprint")
    held = claim_group(ledger, GROUP, OWNER, cluster_id=CLUSTER, lease=MINUTE)
    gaps = (Gap(*T0, 0, 0, "expired", TEXT),)
    batch = record_plan(held, Plan(FIRST_LOAD.ranges, gaps=gaps), recipe, 0)
    assert batch is not None
    commit_batch(held, replace(batch, gaps=()), written({}, write_nothing))
    dead_letter = {"batch_id": batch.batch_id, "topic": "orders", "partition": 0, "consumer_group": GROUP}
    with ledger.engine.begin() as conn:
        letters = [dead_letter | {"offset_value": offset, "error": TEXT} for offset in range(2)]
        conn.execute(tables.dead_letters.insert(), letters)
    assert len(texts_of(ledger.engine, tables.dead_letters)) == 2
    dropped = DeadLetterFilter(GROUP)
    assert drop_dead_letters(dropped, engine=ledger.engine, tables=tables, who=TEXT, reason=TEXT) == 2
    assert len(texts_of(ledger.engine, tables.dead_letters)) == 2
    following = record_plan(held, NEXT_LOAD, recipe, 0)
    assert following is not None
    abandon(held, following, TEXT)
    assert len(texts_of(ledger.engine, tables.offset_gaps)) == 1
    # The DAG, the run, the user and the transform of both batches, and why one was abandoned.
    assert len(texts_of(ledger.engine, tables.offset_batches)) == 2 * 4 + 1
    assert len(texts_of(ledger.engine, tables.consumer_groups)) == 1


def test_a_run_is_found_again_by_what_is_stored_of_it(ledger: Ledger) -> None:
    held = claim_group(ledger, GROUP, OWNER, cluster_id=CLUSTER, lease=MINUTE)
    assert record_plan(held, FIRST_LOAD, Recipe("target", None, "fingerprint"), 0) is not None
    # A later try takes over at once, and any other run waits, however much of its name is the same.
    again = claim_group(ledger, GROUP, replace(OWNER, try_number=2), cluster_id=CLUSTER, lease=MINUTE)
    assert captured_targets(again) == {T0: 10, T1: 7}
    for other in (replace(OWNER, run_id=f"{OWNER.run_id} 2"), replace(OWNER, task_id="ładuj" * 49 + "ładuć")):
        with pytest.raises(GroupBusyError, match="is being loaded by dag"):
            claim_group(ledger, GROUP, other, cluster_id=CLUSTER, lease=MINUTE)
        assert captured_targets(replace(again, owner=other)) is None


def test_a_task_instance_rewinds_once_whatever_its_scenario_and_author_are_called(ledger: Ledger) -> None:
    skipping = PartitionRewind(*T0, 0, 20, None, Position(10, None), skipped=((0, 10),))
    preview = RewindPreview(GROUP, CLUSTER, None, f"to-group {TEXT}", "rewind", (skipping,))

    def rewind() -> RewindResult:
        return execute_rewind(preview, engine=ledger.engine, tables=ledger.tables, run=OWNER, who=TEXT, reason=TEXT)

    assert rewind() == rewind() == RewindResult(1, 1)
    assert len(texts_of(ledger.engine, ledger.tables.offset_gaps)) == 1
    # The DAG, the run, the user, the scenario, the author and the reason.
    assert len(texts_of(ledger.engine, ledger.tables.offset_batches)) == 6


@pytest.mark.parametrize("ledger", ["LATIN1"], indirect=True)
def test_what_the_encoding_has_stays_as_it_is(ledger: Ledger) -> None:
    claim_group(ledger, GROUP, TaskRun(TEXT), cluster_id=CLUSTER, lease=MINUTE)
    with ledger.connect() as conn:
        owner = conn.scalar(sa.select(ledger.tables.consumer_groups.c.lease_owner))
    assert owner == "process é \\u0141\xf3d\\u017a \\u2192 \\u65e5\\u672c \\U0001f600 \\udc80 \x07 \\x00"


@pytest.mark.parametrize("ledger", ["LATIN1"], indirect=True)
def test_a_name_that_the_encoding_lacks_is_refused_with_the_reason(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"equivalent in encoding.*Choose names"), translated_errors("Failed"):
        claim_group(ledger, "łódź", OWNER, cluster_id=CLUSTER, lease=MINUTE)


def test_the_database_has_every_character_of_the_codec_of_its_encoding(postgres: PostgresServer) -> None:
    encodings = [f"LATIN{n}" for n in range(1, 11)] + [f"ISO_8859_{n}" for n in range(5, 9)]
    encodings += [f"WIN{n}" for n in (866, 874, *range(1250, 1259))] + ["KOI8R", "EUC_JP", "JOHAB", "SQL_ASCII"]
    with postgres.connect() as conn:
        for encoding in encodings:
            codec = codec_of(encoding)
            text = "".join(byte for n in range(1, 256) if (byte := bytes([n]).decode(codec, "ignore")))
            conn.execute("SELECT convert_to(%s, %s)", (text, encoding))


def test_nothing_but_ascii_is_written_where_the_driver_does_not_name_the_encoding() -> None:
    assert codec_of(None) == "ascii"
