"""A real Airflow, command line and all components, with a temporary AIRFLOW_HOME and a SQLite metadata database."""

import base64
import configparser
import contextlib
import fcntl
import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol, Self

from devstack.paths import BUILD, environment
from devstack.process import ServerProcess, free_port, wait_until

USER = "admin"
_START_TIMEOUT = 180.0
_AIRFLOW = str(Path(sys.executable).with_name("airflow"))
_KAFKA_OFFSETS = "kafka-offsets"

# Airflow 3.1 does not: the program of this package has its commands, with Airflow's connections, too.
TAKES_COMMANDS_OF_PROVIDERS = not importlib.metadata.version("apache-airflow").startswith("3.1.")


def command_line(*arguments: str) -> list[str]:
    """Return the program that has a command of `airflow`, and its arguments."""
    if arguments[0] == _KAFKA_OFFSETS and not TAKES_COMMANDS_OF_PROVIDERS:
        return [str(Path(sys.executable).with_name(_KAFKA_OFFSETS)), *arguments[1:]]
    return [_AIRFLOW, *arguments]


class Command(Protocol):
    """A command of a home: what :class:`subprocess.Popen` has, and a process forked in its place needs."""

    pid: int
    stdout: IO[str] | None
    stderr: IO[str] | None

    def wait(self) -> int: ...


class AirflowHome:
    """A temporary AIRFLOW_HOME. The constructor writes its configuration, `with` creates its database.

    :param dags: the folder with DAG files; None is an empty one
    :param connections: the value of ``AIRFLOW_CONN_…`` (a URI or JSON) by connection id
    :param config: Airflow settings by ``section.option``; they override those for tests
    :param env: more environment variables of every Airflow process
    :param prefix: the path below which the web interface and the API are served, such as ``/team/airflow``
    """

    def __init__(
        self,
        *,
        dags: Path | None = None,
        connections: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        prefix: str = "",
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-airflow-"))
        self.port, self.prefix = free_port(), prefix
        self.password = secrets.token_urlsafe(9)
        self.components: list[ServerProcess] = []
        self._commands: list[Command] = []
        # A developer's variables for another Airflow must have no effect here.
        inherited = {name: value for name, value in environment().items() if not name.startswith("AIRFLOW_")}
        self.env: dict[str, str] = {
            **inherited,
            "AIRFLOW_HOME": str(self.directory),
            "NO_COLOR": "1",
            **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in (connections or {}).items()},
            **(env or {}),
        }
        if dags is None:
            dags = self.directory / "dags"
            dags.mkdir()
        self._write_configuration(dags.resolve(), config or {})

    @property
    def url(self) -> str:
        """The URL of the web interface and the API, after :meth:`start`."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def migrate(self) -> None:
        """Copy a migrated database. It is created once for each version, because that takes seconds."""
        # With the tables of FAB's auth manager.
        versions = (importlib.metadata.version(f"apache-airflow-{name}") for name in ("core", "providers-fab"))
        template = BUILD / f"airflow-{'-'.join(versions)}.db"
        own = self.directory / "airflow.db"
        if not template.exists():
            BUILD.mkdir(exist_ok=True)
            with (BUILD / "airflow.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here, then finds the template
                if not template.exists():
                    done = self.run("db", "migrate")
                    if done.returncode != 0:
                        raise RuntimeError(f"airflow db migrate failed:\n{done.stdout}{done.stderr}")
                    partial = template.with_suffix(".partial")
                    # A process that was forked ends without a checkpoint: its pages are in the write-ahead log yet.
                    with contextlib.closing(sqlite3.connect(own)) as migrated:
                        migrated.execute("VACUUM INTO ?", [str(partial)])
                    partial.rename(template)
                    return
        # What an earlier reader of an empty database has left would be taken for a part of the copy.
        for log in ("-wal", "-shm"):
            own.with_name(own.name + log).unlink(missing_ok=True)
        shutil.copyfile(template, own)

    def run(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run the ``airflow`` command to its end, and return its status and output. A failure raises nothing.

        :raises subprocess.TimeoutExpired: it took longer than ``timeout`` seconds, and was killed with its children
        """
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            process = self.popen(*arguments, stdout=stdout, stderr=stderr)
            try:
                status = process.wait(timeout)
            except BaseException:
                _kill_group(process)
                raise
            printed = []
            for file in (stdout, stderr):
                file.seek(0)
                printed.append(file.read())
        return subprocess.CompletedProcess(["airflow", *arguments], status, *printed)

    def popen(
        self, *arguments: str, stdout: int | IO[Any] | None = None, stderr: int | IO[Any] | None = None
    ) -> subprocess.Popen[str]:
        """Start the ``airflow`` command as the leader of a new process group, for tests that kill it.

        :meth:`close` kills the rest of the group. There is no supervisor: a test may kill the command and watch the
        Spark application that the command has started.

        :param stdout: as for :class:`subprocess.Popen`; None is ours
        :param stderr: likewise
        """
        process = subprocess.Popen(
            command_line(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env=self.env,
            cwd=self.directory,
            start_new_session=True,
        )
        self._commands.append(process)
        return process

    def start(self) -> None:
        """Start all components, as ``airflow standalone`` does, and wait until each reports that it is healthy.

        `airflow standalone` itself would make scheduler and triggerer serve logs on all network interfaces. Only the
        commands of the components have an option to switch that off.
        """
        for name, options in {
            "api-server": [],
            "scheduler": ["--skip-serve-logs"],
            "dag-processor": [],
            "triggerer": ["--skip-serve-logs"],
        }.items():
            log = self.directory / f"{name}.log"
            component = ServerProcess(
                f"airflow {name}", [_AIRFLOW, name, *options], log=log, env=self.env, scratch=self.directory
            )
            self.components.append(component.start())
        wait_until(self._healthy, _START_TIMEOUT, "Airflow's components to be healthy", details=self._log_tails)

    def close(self) -> None:
        """Stop all processes of this home, and remove it."""
        for component in self.components:
            component.signal(signal.SIGTERM)
        for component in self.components:
            component.stop(timeout=10)
        for command in self._commands:
            _kill_group(command)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.migrate()
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_configuration(self, dags: Path, overrides: Mapping[str, str]) -> None:
        """Write an airflow.cfg: without one, each component would generate secrets that the others do not accept."""
        passwords = self.directory / "passwords.json"
        passwords.touch(0o600)
        passwords.write_text(json.dumps({USER: self.password}))
        settings = {
            "core.dags_folder": str(dags),
            "core.load_examples": "False",
            "core.executor": "LocalExecutor",
            "core.parallelism": "4",
            "core.dags_are_paused_at_creation": "False",
            "core.fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "core.simple_auth_manager_users": f"{USER}:admin",
            "core.simple_auth_manager_passwords_file": str(passwords),
            "core.execution_api_server_url": f"{self.url}/execution/",
            "core.plugins_folder": str(self.directory / "plugins"),
            "database.sql_alchemy_conn": f"sqlite:///{self.directory}/airflow.db",
            "logging.base_log_folder": str(self.directory / "logs"),
            "logging.colored_console_log": "False",
            "usage_data_collection.enabled": "False",
            "api.host": "127.0.0.1",
            "api.port": str(self.port),
            "api.base_url": self.url,
            "api.workers": "1",
            "api.secret_key": secrets.token_urlsafe(32),
            "api_auth.jwt_secret": secrets.token_urlsafe(48),
            # A changed DAG file or a finished task is noticed within seconds.
            "workers.min_heartbeat_interval": "1",
            "scheduler.scheduler_idle_sleep_time": "0.5",
            "dag_processor.refresh_interval": "5",
            "dag_processor.min_file_process_interval": "5",
            "dag_processor.parsing_processes": "1",
        } | dict(overrides)
        parser = configparser.RawConfigParser()
        for name, value in settings.items():
            section, option = name.split(".")
            if not parser.has_section(section):
                parser.add_section(section)
            parser.set(section, option, value)
        path = self.directory / "airflow.cfg"
        path.touch(0o600)
        with path.open("w") as file:
            parser.write(file)

    def _healthy(self) -> bool:
        for component in self.components:
            if not component.running:
                raise RuntimeError(f"{component.name} ended\n{component.log_tail()}")
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=5) as response:
                health = json.load(response)
        except (OSError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health[part]["status"] == "healthy" for part in parts)

    def _log_tails(self) -> str:
        return "\n".join(component.log_tail(15) for component in self.components)


def _kill_group(process: Command) -> None:
    """Send SIGKILL to a process group that may outlive its leader."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
