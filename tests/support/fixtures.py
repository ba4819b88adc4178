"""Fixtures for loads: a Spark session, databases, a log in memory, and loaders that use them."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import URL, Engine

from airflow_kafka_offsets.database.session import unify_sessions
from airflow_kafka_offsets.kafka import admin
from airflow_kafka_offsets.spark import isolation
from tests.support import warm_children
from tests.support.clients import Kafka
from tests.support.inline import InlineLauncher
from tests.support.loads import CountingLauncher, Loader
from tests.support.memory_log import MemoryLog

# Modules whose matrices run on one database every day, by the beginnings of their names: of three functions one on
# Postgres, and two on SQLite, which takes half the time; all on both in `make soak`. The ledger and planning run on
# both every day.
_ONE_DATABASE_A_DAY = (
    "cli/",
    "dead_letters/",
    "docs/test_runbook",
    "kafka/test_kafka_transactions",
    "kafka/test_offset_order",
    "loading/test_bad_kafka",
    "loading/test_bounds_of_loads",
    "loading/test_changed_logs",
    "loading/test_clean_up",
    "loading/test_crash_sweep",
    "loading/test_damaged_files",
    "loading/test_dead_letter",
    "loading/test_double_loads",
    "loading/test_launchers",
    "loading/test_load",
    "loading/test_mirror",
    "loading/test_new_fields",
    "loading/test_older_ledger",
    "loading/test_protobuf_loads",
    "loading/test_races",
    "loading/test_recreated_keys",
    "loading/test_staged_again",
    "loading/test_starts",
    "loading/test_transforms",
    "replaying/",
    "rewinding/",
    "sensors/",
    "sinks/test_fan_out",
    "sinks/test_function_sink",
    "sinks/test_upsert_faults",
    "sinks/test_upsert_operations",
    "sinks/test_upsert_targets",
    "verification/",
)

# Of these, modules and tests that run on Postgres every day: about sessions that meet, and processes that die within a
# transaction, or of which SQLite shows less.
_POSTGRES_EVERY_DAY = (
    "cli/test_doctor_rights",
    "dead_letters/test_replay_crash",
    "loading/test_crash_sweep",
    "loading/test_new_fields.py::test_a_field_of_an_older_schema_that_a_transform_passes_on_is_a_column_of_the_target",
    "loading/test_new_fields.py::test_a_field_of_an_older_schema_that_cannot_be_a_column_makes_records_with_it_bad",
    "loading/test_races",
    "replaying/test_replay_crash",
    "replaying/test_replay_fencing",
    "rewinding/test_rewind_crash",
    "rewinding/test_rewind_races",
    "sinks/test_function_sink.py::test_a_statement_that_failed_cannot_be_ignored",
    "verification/test_coverage",
    "verification/test_loads_meanwhile",
)

# Modules whose matrices have MariaDB as well, by the beginning of their names: every day, or in `make soak`. The
# longest beginning decides; in all others, tests of two databases say enough.
_EVERY_DAY, _IN_SOAK = True, False
_MARIADB = {
    "cli/test_group_changes": _IN_SOAK,
    "ledger/test_hostile_rows": _EVERY_DAY,
    "loading/test_crash_sweep": _IN_SOAK,
    "loading/test_load": _IN_SOAK,
    "loading/test_prefetch": _IN_SOAK,
    "loading/test_races": _IN_SOAK,
    "loading/test_recovery": _IN_SOAK,
    "loading/test_refused_rows": _IN_SOAK,
    "loading/test_refused_values": _IN_SOAK,
    "loading/test_round_trips": _IN_SOAK,
    "loading/test_values": _IN_SOAK,
    "replaying/": _IN_SOAK,
    "rewinding/": _IN_SOAK,
    "sinks/test_unused_tables": _EVERY_DAY,
    "sinks/test_upsert": _IN_SOAK,
    "verification/": _IN_SOAK,
}


_MARIADB_FIXTURES = {"mariadb", "mariadb_database", "mariadb_engine"}

# Tests in these modules whose statements or messages are those of Postgres and SQLite.
_NOT_ON_MARIADB = {
    "test_a_key_may_be_the_origin_itself",
    "test_a_row_that_another_refuses_is_an_error",
    "test_a_row_that_the_database_refuses_is_traced_to_its_record",
    "test_a_table_without_the_unique_key_is_refused_before_reading_with_the_statement_that_makes_it",
    "test_an_index_of_some_rows_or_without_uniqueness_is_no_key",
    "test_an_open_batch_can_be_abandoned_alone",
    "test_it_is_known_by_every_name",
}


# What of a matrix runs every day, by a pattern of the ids: the values of each axis, but not with all of the others; of
# steps, types and targets, where each takes seconds, some. `make soak` runs the whole.
_OF_EVERY_DAY = {
    "cli/test_program.py::test_commands_print_what_they_print_in_airflow": "groups|verify|show|rewind",
    "cli/test_rewind.py::test_bad_input_is_one_line_and_changes_nothing": (
        "--to-batch|--to-offset|to-datetime-2026|---to-earliest|nobody|exactly"
    ),
    "cli/test_rewind.py::test_each_scenario_moves_the_position_where_its_preview_says": "R03|R07|R14|to-batch",
    "cli/test_targets_of_tasks.py": "^(?!(delta|parquet)$)",
    "dead_letters/test_published.py": "^(?!before)",
    "dead_letters/test_replay.py::test_filter_selects_dead_letters": "of1|of3",
    "dead_letters/test_retention.py::test_retention_must_be_a_duration": "P30D|wrong",
    "docs/test_duckdb_sink.py": "after",
    "formats/test_schema_limits.py::TestCompiler": "^(?!True-extensions|False-reserved)",
    "formats/test_schema_limits.py::test_schema_within_the_limits_has_columns": "schema[0123567]$",
    "hooks/test_one_application.py::test_three_batches": "None-SparkSubmitLauncher",
    "hooks/test_spark_application.py::TestCancel::test_stops_the_job_of_another_thread": "2$",
    "hooks/test_spark_application.py::TestEnd::test_between_jobs_the_next_job_starts_another": (
        "kill-socket|context-mailbox"
    ),
    "hooks/test_spark_application.py::TestEnd::test_within_a_job_is_its_error": "1-dies|2-raises",
    "hooks/test_spark_application.py::test_the_application_ends_when_the_worker_is_killed": (
        "hangs-mailbox|is_staged-socket"
    ),
    "ledger/test_hostile_rows.py::test_the_other_groups_are_shown": "^(?!psycopg2)",
    "ledger/test_rights.py": (
        r"^(?!(SELECT|INSERT|UPDATE|DELETE|USAGE) ON)| ON (target|state\.(offset_gaps|erased_offsets))$"
    ),
    "loading/test_crash_sweep.py::test_a_load_that_is_killed_is_finished_by_the_next_try": (
        "while a slice|slices are staged-retry|after the manifest|inside|COMMIT-retry"
    ),
    "loading/test_crash_sweep_of_sinks.py": "(elsewhere|positions|delta|two tables)-inside the transaction",
    "loading/test_damaged_files.py::test_in_a_later_try": "flip-dead|swap-rows|cut-rows|remove-dead",
    "loading/test_damaged_files.py::test_in_the_try_that_staged_them": "flip-rows|swap-dead|cut-dead|remove-rows",
    "loading/test_older_ledger.py::test_every_group_of_a_table_finds_an_older_backup": "table|iceberg-ext",
    "loading/test_races.py::test_a_try_that_wakes_after_a_later_one_changes_nothing": "the ranges|inside",
    "loading/test_refused_values.py::test_refused_values_of_each_type_are_dead_letters": (
        "INET|JSONB|UNIQUE|nul|CHECK|place|word|mood"
    ),
    "loading/test_refused_values.py::test_wherever_they_are": "postgresql-bad[024]|sqlite-bad[135]",
    "loading/test_reused_numbers.py::test_a_group_goes_on_after_everything_that_has_a_number": "table|delta|iceberg$",
    "loading/test_reused_numbers.py::test_a_lost_number_that_anything_but_a_load_uses_again_is_found": (
        "^rewind-|-table"
    ),
    "loading/test_reused_numbers.py::test_a_lost_replay_of_dead_letters_is_found_in_an_external_target": (
        "^(rewind|replay)-delta|^(rewind_and_replace|load)-iceberg"
    ),
    "loading/test_round_trips.py::test_values_come_through": "postgresql|sqlite-small-json$",
    "plugin/test_hostile_rows.py": "^(?!mariadb)",
    "replaying/test_replay_crash.py::test_killed_at_any_point_and_tried_again": (
        "while a slice|marked|inside|COMMIT-replace"
    ),
    "rewinding/test_moved_positions.py::test_positions_move_and_the_next_load_reads_on_from_there": (
        "replace|shift-back-add"
    ),
    "rewinding/test_rewind_races.py::test_a_load_that_has_planned_from_old_positions_plans_anew": (
        "plans-replace|recorded-add"
    ),
    "rewinding/test_rewind_races.py::test_a_load_whose_batch_is_abandoned_writes_nothing": "slice is read-alone|marked",
    "rewinding/test_rewind_races.py::test_while_its_batch_is_open_positions_stay": "slice is read|marked",
    "sinks/delta/test_foreign_commits.py::test_between_batches": "append|compact",
    "sinks/delta/test_foreign_commits.py::test_files_that_are_compacted_while_rows_to_remove_are_looked_for": (
        "replay-[135]|rewind-[246]"
    ),
    "sinks/delta/test_foreign_commits.py::test_in_the_moment_of_a_replay_that_replaces": "append|compact",
    "sinks/iceberg/test_iceberg_files.py::test_rows_are_partitioned_and_read_back": r"\(\)|day|bucket|truncate",
    "sinks/iceberg/test_iceberg_foreign_writers.py": "^(?!sql|.*-sql)|sql-compact_without_arrow",
    "sinks/iceberg/test_iceberg_foreign_writers.py::test_rows_in_compacted_files_are_replaced_and_the_others_stay": (
        "compact$|^sql"
    ),
    "sinks/iceberg/test_iceberg_operations.py": "^(?!sql)",
    "sinks/iceberg/test_iceberg_upsert.py": "^(?!sql)|sql-replace",
    "sinks/lake/test_external_commits.py": (
        "^[a-z]+$|None-iceberg|before-delta|after-iceberg|delta-after|iceberg-before|parquet-before"
    ),
    "sinks/lake/test_object_store.py::test_loads_and_replays": "DeltaTable-before|ParquetFiles-after",
    "sinks/lake/test_refused_values.py": "^(?!iceberg sql)",
    "sinks/test_encodings.py::test_topics_in_another_character_set_can_be_verified": "latin1|utf16",
    "sinks/test_encodings.py::test_values_are_the_same": "psycopg-binary-default|psycopg2-text-encoding",
    "sinks/test_fan_out.py::test_a_crash_and_a_retry_write_once": "inside|COMMIT",
    "sinks/test_fan_out_operations.py::test_verify_names_the_branch_with_the_violation": "large",
    "sinks/test_hidden_values.py::test_a_long_value_is_in_no_message": "append-psycopg-|upsert-psycopg2-",
    "sinks/test_mysql_load.py::test_a_record_that_a_trigger_refuses_is_named": "load-10$|insert-3000",
    "sinks/test_mysql_load.py::test_a_record_whose_generated_column_cannot_be_computed_is_bad": (
        "load.*-append|insert.*-upsert"
    ),
    "sinks/test_mysql_load.py::test_a_refused_row_is_named_and_all_others_are_written": (
        "load-(?!infinity|text that is no)|insert-(infinity|text that is no)"
    ),
    "sinks/test_mysql_load.py::test_a_row_that_is_too_large_for_a_page_is_bad": "load-append|insert-upsert",
    "sinks/test_postgres_copy.py::test_texts_that_a_type_does_not_read_are_bad": "bad[02]-append|bad[13]-upsert",
    "sinks/test_second_sink.py": "^(?!archive$)",
    "sinks/test_upsert_operations.py::test_a_target_may_have_any_name": "again|offset_batches|ranked",
    "sinks/test_values_in_mariadb.py::test_no_value_is_changed_silently": (
        r"^load.*-(bigint|decimal.*|bit.*|set.*|.*(unsigned|null.*|text))$"
        r"|^insert.*-(double|varchar.*|binary\(3\)|datetime\(6\)|enum.*)$"
    ),
    "sinks/test_values_in_postgres.py::test_no_value_is_changed_silently": (
        r"^copy|-(smallint|real|numeric\(10,2\)|boolean|varchar\(3\)|bytea|date|timestamp\(3\))$"
    ),
    "spark/test_isolation.py::test_a_fatal_record_is_bad_and_its_neighbours_are_decoded": (
        "segfault|loop|allocate|panic"
    ),
    "system/test_devstack.py::test_server_and_its_files_are_gone_after_a_sigkill_of_the_starter": "^Kafka|group",
}

# Matrices whose cases differ in a value: which of them run every day, in turn. "x--x" is for a last axis of two values:
# all cases of the other axes, each with one of them.
_IN_TURN = {
    "cli/test_targets_of_tasks.py::TestArguments::test_one_target_is_named": "x-",
    "database/test_messages.py::TestPostgres::test_messages_of_copy_name_the_column_without_the_value": "x--",
    "formats/test_json_bad_records.py::TestFirstBadRecord::test_the_first_of_several_bad_records_is_named": "x-",
    "formats/test_schema_limits.py::test_schema_bomb_harms_no_record_of_another_schema": "x-",
    "kafka/test_offset_order.py::test_a_load_of_records_that_lie_about_their_offsets_fails": "x--x",
    "kafka/test_rights.py::test_the_rights_of_a_line_suffice": "x-",
    "kafka/test_rights.py::test_without_any_of_them_an_error_names_it": "x-",
    "ledger/test_altered_targets.py::TestAlteredTarget::test_altered_column_is_named": "x-",
    "ledger/test_init_command.py::TestPrintedStatements::test_odd_names_stay_names": "x--x-xx-",
    "loading/test_double_loads.py::test_a_group_under_another_name_is_refused": "x-",
    "loading/test_double_loads.py::test_what_a_group_loads_is_not_replayed_into_it": "x-",
    "loading/test_double_loads.py::test_what_a_replay_appended_is_not_loaded_into_it": "x-",
    "loading/test_transforms.py::test_a_transform_decides_the_rows_and_not_the_positions": "x-",
    "rewinding/test_erased_records.py::test_they_stay_erased": "x-",
    "rewinding/test_rewound_once.py::TestCrash::test_in_the_middle_it_leaves_nothing": "x-",
    "sinks/iceberg/test_iceberg_upsert_types.py::test_a_row_is_found_by_its_key": "x--",
    "sinks/lake/test_foreign_changes.py::test_rows_are_loaded_right_or_refused": "x--x",
    "sinks/lake/test_long_texts.py::test_a_small_file_of_long_texts_is_read_in_parts": "x--x",
    "sinks/test_encodings.py::test_a_reason_that_the_database_cannot_hold_is_escaped": "x--x",
    "sinks/test_encodings.py::test_unencodable_text_is_refused_with_its_offset": "x-",
    "sinks/test_encodings.py::test_where_it_holds_all_characters_they_are_there": "x--x",
    "spark/test_room.py::test_texts_of_a_schema_are_in_memory_for_few_rows_at_once": "x--",
    "system/test_fuzz.py::test_what_reads_bytes_of_others_refuses_damaged_ones": "x-",
    "verification/test_dead_letter_batches.py::test_lost_and_duplicated_rows_are_violations": "x-",
}

# Modules and classes whose functions are each about one behaviour that all kinds of the matrix have: kinds of lake
# tables that share `sinks/lake`, catalogs of one table, drivers of one database, formats that share
# `formats/registry_format`. Of the cases that are left of a function, one runs every day: of the first function the
# first, of the next one the second. The tests of values, of columns and of what other writers did run with all kinds.
_ONE_KIND_A_DAY = (
    "cli/test_targets_of_tasks.py::test_",
    "formats/test_schema_limits.py::TestManyVersions",
    "formats/test_schema_limits.py::TestUnknownIds",
    "ledger/test_hostile_rows.py::test_of_a_text_of_any_length_the_beginning_is_read",
    "ledger/test_hostile_rows.py::test_the_names_of_many_added_columns_are_kept",
    "loading/test_recreated_keys.py",
    "sinks/iceberg/test_iceberg_columns.py::test_a_snapshot_names_group_batch_and_ranges",
    "sinks/iceberg/test_iceberg_columns.py::test_files_are_staged_again_where_others_added_columns_first",
    "sinks/iceberg/test_iceberg_expired.py",
    "sinks/iceberg/test_iceberg_other_tables.py",
    "sinks/iceberg/test_iceberg_upsert.py",
    "sinks/lake/test_changed_tables.py::test_a_writer_that_commits_without_a_pause_is_outlasted",
    "sinks/lake/test_external_commits.py",
    "sinks/lake/test_lost_tables.py",
    "sinks/lake/test_refused_values.py",
    "sinks/lake/test_zombies.py",
    "sinks/test_dropped_rows.py",
)


def _is_of_every_day(item: pytest.Item, cases: Counter[str]) -> bool:
    nodeid, _, ids = item.nodeid.removeprefix("tests/").removesuffix("]").partition("[")
    patterns = [pattern for name, pattern in _OF_EVERY_DAY.items() if nodeid == name or nodeid.startswith(f"{name}::")]
    turns = _IN_TURN.get(nodeid, "x")
    has_turn = turns[cases[nodeid] % len(turns)] == "x"
    cases[nodeid] += 1
    return not ids or (has_turn and all(re.search(pattern, ids) for pattern in patterns))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    everything = list(items)
    items.clear()
    tests = Path(__file__).parents[1]
    modules = (name.partition(".py")[0] for name in (*_OF_EVERY_DAY, *_IN_TURN))
    listed_modules = (name.partition(".py")[0] for name in (*_ONE_DATABASE_A_DAY, *_POSTGRES_EVERY_DAY))
    of_one_kind = (name.partition(".py")[0] for name in _ONE_KIND_A_DAY)
    for name in (*listed_modules, *_MARIADB, *modules, *of_one_kind):
        assert any(tests.glob(f"{name}*")), f"no module of tests begins with {name}"
    cases: Counter[str] = Counter()
    for item in everything:
        module = f"{item.path.parent.name}/{item.path.stem}"
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("engine") == "mariadb":
            listed = max(filter(module.startswith, _MARIADB), key=len, default=None)
            if listed is None or item.originalname in _NOT_ON_MARIADB:  # type: ignore[attr-defined]
                continue
            if _MARIADB[listed] is _IN_SOAK:
                item.add_marker(pytest.mark.long)
        if parameters.get("engine") == "mariadb" or _MARIADB_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.mysql)
        items.append(item)
        if not _is_of_every_day(item, cases):
            item.add_marker(pytest.mark.long)
    _share_databases(items)
    _share_kinds(items)
    items.sort(key=_server_of_few)


def _share_databases(items: list[pytest.Item]) -> None:
    """Leave the cases of one database to `make soak`: for one function of a module those of SQLite, for the next two
    those of Postgres.
    """
    twins: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        module = f"{item.path.parent.name}/{item.path.stem}"
        engine = item.callspec.params.get("engine") if hasattr(item, "callspec") else None
        if module.startswith(_ONE_DATABASE_A_DAY) and engine in ("postgresql", "sqlite"):
            twins[item.nodeid.replace(engine, "*", 1)][engine] = item
    functions: dict[str, dict[str, int]] = defaultdict(dict)
    for pair in twins.values():
        sqlite = pair.get("sqlite")
        postgres = pair.get("postgresql")
        if sqlite is None:
            continue
        name = sqlite.nodeid.removeprefix("tests/").partition("[")[0]
        numbers = functions[name.partition("::")[0]]
        has_turn = numbers.setdefault(name, len(numbers)) % 3 and not name.startswith(_POSTGRES_EVERY_DAY)
        if postgres is None or postgres.get_closest_marker("long") or not has_turn:
            sqlite.add_marker(pytest.mark.long)
        else:
            # Its turn among the cases of a matrix was counted for Postgres.
            sqlite.own_markers[:] = [mark for mark in sqlite.own_markers if mark.name != "long"]
            postgres.add_marker(pytest.mark.long)


def _share_kinds(items: list[pytest.Item]) -> None:
    """Leave all kinds but one of a function to `make soak`."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.removeprefix("tests/").partition("[")[0]
        if name.startswith(_ONE_KIND_A_DAY) and not item.get_closest_marker("long"):
            functions[name].append(item)
    numbers: Counter[str] = Counter()
    for name, cases in functions.items():
        module = name.partition("::")[0]
        if len(cases) > 1:
            kept = cases[numbers[module] % len(cases)]
            numbers[module] += 1
            for item in cases:
                if item is not kept:
                    item.add_marker(pytest.mark.long)


# Fixtures that take seconds to start, and that few tests need. These tests come first: of the workers that share the
# tests, the one that begins has them all, and the others start no such server. MariaDB's come last.
_SERVERS_OF_FEW = ("spark_connect", "secured_kafka", "spark_cluster", "spark")
# What a module imports if its tests run commands of Airflow's, which one process of a session forks.
_FORKS_AIRFLOW = ("WarmAirflowHome", "airflow_runs")


def _server_of_few(item: pytest.Item) -> int:
    """Return a number that is the same for tests with the same server, and their order."""
    for number, name in enumerate(_SERVERS_OF_FEW):
        if name in getattr(item, "fixturenames", ()):
            return number
    module = getattr(item, "module", None)
    forks = any(hasattr(module, name) for name in _FORKS_AIRFLOW)
    if forks:
        return len(_SERVERS_OF_FEW)
    return len(_SERVERS_OF_FEW) + (2 if "mariadb" in getattr(item, "fixturenames", ()) else 1)


@pytest.fixture(scope="session", autouse=True)
def _warm_children() -> Iterator[None]:
    """Fork the child processes that decode records, but where these are the subject: `tests/spark`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "subprocess", warm_children.subprocess_of_children)
        yield
    warm_children.stop_server()


@pytest.fixture
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A log in memory; the session's broker for a test that is marked `broker`, and for loads with Spark, which reads
    in processes of its own.

    A module whose matrix is not about the broker has it for its `kafka`.
    """
    if request.node.get_closest_marker("broker") or "spark" in request.fixturenames:
        kafka: Kafka = request.getfixturevalue("broker")
        return kafka
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def unknown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a topic that the broker does not know be unknown at once: there is no other broker that may know it."""
    monkeypatch.setattr(admin, "_UNKNOWN_GRACE_SECONDS", 0.0)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session for all tests that do not test how Spark is launched."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "WARN")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    # Its farewell would be logged after the log is closed.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()


@pytest.fixture
def launcher(spark: SparkSession) -> CountingLauncher:
    return CountingLauncher(spark)


_compiled: dict[URL, Engine] = {}


def new_engine(url: str) -> Engine:
    """Return an engine that shares what SQLAlchemy has compiled with the others of its server: each test has a database
    of its own, and to compile all statements anew would be a sixth of its time.
    """
    made = sa.create_engine(url, hide_parameters=True)
    first = _compiled.setdefault(made.url.set(database=""), made)
    # A dialect of MySQL knows its database.
    if made.dialect.name != "mysql" and getattr(first.dialect, "server_version_info", None) is not None:
        made.dialect = made.pool._dialect = first.dialect
        made._compiled_cache = first._compiled_cache
    return made


@pytest.fixture(params=["postgresql", "sqlite", "mariadb"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An empty database of each kind."""
    if request.param != "sqlite":
        url = request.getfixturevalue("database" if request.param == "postgresql" else "mariadb_database")
    else:
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/warehouse.db"
    made = new_engine(url)
    yield made
    made.dispose()


# A module of one kind of database has `engine = fixtures.sqlite_engine`, or one of the others below.
@pytest.fixture
def sqlite_engine(tmp_path: Path) -> Iterator[Engine]:
    made = new_engine(f"sqlite:///{tmp_path}/warehouse.db")
    yield made
    made.dispose()


@pytest.fixture
def postgres_engine(database: str) -> Iterator[Engine]:
    made = new_engine(database)
    yield made
    made.dispose()


@pytest.fixture
def mariadb_engine(mariadb_database: str) -> Iterator[Engine]:
    """An empty database of MariaDB, with the sessions that every ledger has."""
    made = new_engine(mariadb_database)
    unify_sessions(made)
    yield made
    made.dispose()


@pytest.fixture
def loader(kafka: Kafka, engine: Engine, launcher: CountingLauncher) -> Loader:
    return Loader(kafka, engine, launcher)


@pytest.fixture
def postgres_loader(kafka: Kafka, postgres_engine: Engine, launcher: CountingLauncher) -> Loader:
    return Loader(kafka, postgres_engine, launcher)


@pytest.fixture
def inline_loader(kafka: Kafka, engine: Engine) -> Loader:
    """For what Spark has no part in: its work is done in this process."""
    return Loader(kafka, engine, InlineLauncher())
