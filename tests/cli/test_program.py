"""`kafka-offsets …`: the commands without Airflow, over a database URL and a Kafka configuration file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import cli
from airflow_kafka_offsets.cli.commands import KAFKA_OFFSETS
from airflow_kafka_offsets.cli.connections import DATABASE, DATABASE_FILE, KAFKA_CONFIG
from airflow_kafka_offsets.cli.program import main, parser
from scripts.command_reference import DOCUMENT, own_commands
from tests.support.clients import Kafka
from tests.support.command_line import DB, CommandLine, Done

Program = Callable[..., Done]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    for name in (DATABASE, DATABASE_FILE, KAFKA_CONFIG):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        status, message = 0, ""
        try:
            main(list(arguments))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            message = f"{end.code}\n" if isinstance(end.code, str) else ""
        printed = capsys.readouterr()
        return Done(status, printed.out, printed.err + message)

    return run


@pytest.fixture
def connected(
    program: Program, engine: Engine, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Program:
    """The program, with the database and the log of the test."""
    config = tmp_path / "client.properties"
    config.write_text(f"# the cluster\n\nbootstrap.servers = {kafka.bootstrap_servers}\n", encoding="utf-8")
    monkeypatch.setenv(DATABASE, engine.url.render_as_string(hide_password=False))
    monkeypatch.setenv(KAFKA_CONFIG, str(config))
    return program


@pytest.mark.server
@pytest.mark.parametrize(
    "command",
    [
        ("groups",),
        ("lag", "loader"),
        ("show", "loader"),
        ("history", "loader"),
        ("plan", "loader"),
        ("rewind", "loader", "--to-earliest"),
        ("verify", "loader", "--table", "target"),
        ("dead-letters", "list", "loader"),
        ("dead-letters", "show", "loader"),
    ],
    ids=" ".join,
)
def test_commands_print_what_they_print_in_airflow(
    command: tuple[str, ...], connected: Program, cli: CommandLine, loaded_topic: str
) -> None:
    ours = connected(*command, "--output", "json")
    airflows = cli(*command, *DB, "--output", "json")

    assert (ours.status, airflows.status) == (0, 0), ours.stderr
    first, second = ours.json, airflows.json
    for row in [*first, *second] if command[0] in ("lag", "show") else ():
        row.pop("time_lag_seconds")
    assert first == second
    assert ours.stderr == airflows.stderr


@pytest.mark.server
def test_a_rewind_is_executed_and_undone(connected: Program, loaded_topic: str) -> None:
    moved = connected(
        "rewind", "loader", "--to-earliest", "--execute", "--reason", "a bug", "--yes", "--output", "json"
    )
    assert moved.status == 0, moved.stderr
    assert connected("lag", "loader", "--output", "json").json[-1]["lag"] == 5
    undone = connected("rewind", "loader", "--undo", "--execute", "--reason", "no bug", "--yes", "--output", "json")
    assert undone.status == 0, undone.stderr
    assert connected("lag", "loader", "--output", "json").json[-1]["lag"] == 0


def last_line(code: str, directory: Path) -> str:
    """Return the last line that Python prints for some code, whose argument is the URL of a new database."""
    done = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{directory}/warehouse.db"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="a disk that is always full")
def test_data_that_cannot_be_written_are_a_line(tmp_path: Path) -> None:
    code = "from airflow_kafka_offsets.cli.program import main; main()"
    command = [sys.executable, "-c", code, "init", "--show-sql"]
    url = f"sqlite:///{tmp_path}/state.db"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, DATABASE: url}, check=False
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "kafka-offsets init: Standard output cannot be written: No space left on device"
    )
    assert "Traceback" not in done.stderr


def test_groups_and_lag_import_neither_arrow_nor_other_databases(tmp_path: Path) -> None:
    """With NumPy, Arrow is a third of the processor time of `lag`; the dialects of two databases are a fifth."""
    code = (
        "import sys; from airflow_kafka_offsets.cli.program import main; import airflow_kafka_offsets.cli.lag;"
        "main(['init', '--database', sys.argv[1]]); main(['groups', '--database', sys.argv[1]]);"
        "others = {f'sqlalchemy.dialects.{name}.base' for name in ('mysql', 'postgresql')};"
        "print(sorted(({'pyarrow', 'numpy'} | others) & set(sys.modules)))"
    )
    assert last_line(code, tmp_path) == "[]"


def test_no_command_imports_airflow_or_pyspark(tmp_path: Path) -> None:
    need_airflow = {"airflow_program", "classes", "doctor", "doctor_checks"}
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")} - need_airflow
    assert modules > {"lag", "dead_letters", "positions", "state", "target", "commands"}
    code = (
        "import sys; from importlib import import_module; from airflow_kafka_offsets.cli.program import main;"
        f"[import_module(f'airflow_kafka_offsets.cli.{{name}}') for name in {sorted(modules)}];"
        "main(['init', '--database', sys.argv[1]]); main(['groups', '--database', sys.argv[1]]);"
        "print(sorted({'airflow', 'pyspark', 'pandas'} & set(sys.modules)))"
    )
    assert last_line(code, tmp_path) == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "--database", "postgresql://loader:hunter2@db/warehouse"),
        ("groups", "--database=postgresql://loader:hunter2@db/warehouse"),
        ("groups", "--database=postgresql://loader:s3/hunter2@db/warehouse"),
        ("groups", "--database", "postgresql://loader@tenant:hunter2@db/warehouse"),
        ("groups", "--database", "postgresql://loader:s3 hunter2@db/warehouse"),
        ("groups", "--database", "postgresql://db/warehouse?password=hunter2"),
        ("groups", "--database", "postgresql://db/warehouse?pass%77ord=hunter2"),
        ("lag", "g", "--kafka-config", "sasl.password=hunter2"),
        ("lag", "g", "--kafka-config", '{"sasl.password": "hunter2"}'),
        ("lag", "g", "--sasl.password", "hunter2"),
        ("lag", "g", "--password=hunter2"),
        ("init", "--reason", "see https://me:hunter2@wiki/page"),
    ],
    ids=" ".join,
)
def test_an_argument_with_a_password_is_refused_and_not_repeated(arguments: tuple[str, ...], program: Program) -> None:
    done = program(*arguments)
    assert done.status == 2
    assert "every user of this machine can read them" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


@pytest.mark.parametrize("reason", ["password: rotated", "see https://wiki:443/space/@team", "https://wiki:443?by=a@b"])
def test_a_reason_may_be_about_passwords_and_name_a_page(reason: str, program: Program) -> None:
    done = program("abandon", "g", "--batch", "1", "--reason", reason, "--yes", "--database", "sqlite://")
    assert done.status == 1
    assert "arguments must not contain" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "g", "--dag-id", "d"), "the following arguments are required: --conn-id"),
        (("groups", "--conn-id", "nowhere"), "kafka-offsets groups: The conn_id `nowhere` isn't defined."),
        (("lag", "g", "--conn-id", "warehouse", "--kafka-conn-id=no"), "kafka-offsets lag: The conn_id `no` isn't"),
        (("replay", "g", "--batch", "1"), "replay needs --conn-id: it takes Airflow's connections"),
        (("doctor", "--conn-id", "warehouse", "--spark-conn-id", "no"), "kafka-offsets doctor: "),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_with_a_connection_of_airflow_it_is_airflows_command(
    arguments: tuple[str, ...], message: str, program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Airflow 3.1 has no commands of providers."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f"sqlite:///{tmp_path}/warehouse.db")
    assert program("init", "--conn-id", "warehouse").status == 0
    done = program(*arguments)
    assert (done.status > 0, message in done.stderr) == (True, True), done.stderr


def test_no_help_names_what_only_airflow_has() -> None:
    programs = own_commands()
    assert {name.partition(" ")[0] for name in programs if name} == {entry.name for entry in KAFKA_OFFSETS.commands}
    for name, own in programs.items():
        if not name:  # it says what needs Airflow
            continue
        assert [word for word in ("conn-id", "dag-id", "task-id", "SUPPRESS") if word in own.format_help()] == [], name


def test_the_commands_of_the_document_are_commands() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").partition("\n## Without Airflow\n")[2]
    setting, *commands = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert [name in setting for name in (DATABASE_FILE, KAFKA_CONFIG)] == [True, True]
    assert commands
    for command in commands:
        name, *arguments = command.split()
        assert name == "kafka-offsets"
        parser().parse_args(arguments)


class TestFiles:
    def test_a_url_in_a_file_is_read(self, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "url").write_text(f"sqlite:///{tmp_path}/warehouse.db\n", encoding="utf-8")
        assert program("init", "--database-file", str(tmp_path / "url")).status == 0
        monkeypatch.setenv(DATABASE_FILE, str(tmp_path / "url"))
        assert program("groups", "--output", "json").json == []

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "no 'bootstrap.servers'"),
            ("{", "is not valid JSON"),
            ("hunter2", "Line 1 of the Kafka configuration is not of the form name=value"),
            ("sasl.jaas.config=hunter2", "sasl.jaas.config (librdkafka has sasl.username and sasl.password)"),
            (json.dumps({"plugin.library.paths": "hunter2"}), "plugin.library.paths"),
        ],
    )
    def test_a_configuration_that_cannot_be_used_is_refused(
        self, text: str, message: str, program: Program, tmp_path: Path
    ) -> None:
        (tmp_path / "kafka").write_text(text, encoding="utf-8")
        done = program("lag", "g", "--database", "sqlite://", "--kafka-config", str(tmp_path / "kafka"))
        assert (done.status, message in done.stderr) == (1, True), done.stderr
        assert "hunter2" not in done.stderr

    def test_a_missing_url_configuration_or_file_is_named(self, program: Program) -> None:
        assert f"--conn-id, or a URL with --database, --database-file or {DATABASE}" in program("groups").stderr
        without_kafka = program("lag", "g", "--database", "sqlite://").stderr
        assert "connections with --conn-id and --kafka-conn-id" in without_kafka
        assert KAFKA_CONFIG in without_kafka
        assert "cannot be read: No such file" in program("groups", "--database-file", "/missing").stderr

    def test_a_url_that_cannot_be_read_is_not_repeated(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(DATABASE, "loader:hunter2@db")
        done = program("groups")
        assert (done.status, "hunter2" in done.stderr) == (1, False)
        assert "its form is dialect://" in done.stderr
