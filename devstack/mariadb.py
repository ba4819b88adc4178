"""A real MariaDB, as a child process that listens on a TCP port; its programs are those that
`devstack.mariadb_programs` finds, or of a given version.
"""

import contextlib
import os
import secrets
import subprocess
import tempfile
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import pymysql

from devstack.mariadb_programs import Programs, find_programs
from devstack.process import ServerProcess, free_port
from devstack.server import Server
from devstack.versions import Servers, mariadb_home

_START_TIMEOUT = 60.0

_SYSTEM_TABLES = ("*_system_tables.sql", "*_performance_tables.sql", "*_system_tables_data.sql", "*_sp_bootstrap.sql")


class MariaDbServer(Server):
    """MariaDB on a free port of 127.0.0.1, with its data in a temporary directory.

    Starting it after a stop or kill keeps port and data. Leaving the context removes them. The user ``tester`` may do
    everything, and logs in with a password. What the server does not set by itself is as its authors ship it: its
    default character set is latin1, its default isolation level REPEATABLE READ.

    :param version: one of `devstack.versions`; None is that of the machine
    :param settings: server settings by MariaDB's names; they override those for tests
    :raises RuntimeError: this machine has no MariaDB
    """

    user = "tester"
    # Those that no other server of its kind has.
    _own_settings: ClassVar[Mapping[str, str]] = {"log-warnings": "1"}

    def __init__(self, *, version: str | None = None, settings: dict[str, str] | None = None) -> None:
        self._programs = self._find_programs(version)
        self.port = free_port()
        self.password = secrets.token_urlsafe(12)
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-mariadb-"))
        self._data = self.directory / "data"
        self._initialised = False
        options = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.directory / "mariadb.sock"),
            "pid-file": str(self.directory / "mariadb.pid"),
            "tmpdir": str(self.directory),
            "skip-name-resolve": "1",
            # No test cuts the power: after a SIGKILL the operating system still has what was written.
            "innodb-flush-log-at-trx-commit": "2",
            "innodb-buffer-pool-size": "128M",
            **self._own_settings,
        } | (settings or {})
        self.process = ServerProcess(
            "mariadb",
            [*self._command, *(f"--{name}={value}" for name, value in options.items())],
            log=self.directory / "mariadb.log",
            env=self._programs.environment,
            scratch=self.directory,
        )

    def _find_programs(self, version: str | None) -> Programs:
        if version in (None, Servers().mariadb[0]):
            return find_programs()
        home = mariadb_home(str(version))
        return Programs(home / "bin" / "mariadbd", home / "share")

    @property
    def _command(self) -> list[str]:
        folders = [f"--datadir={self._data}", f"--lc-messages-dir={self._programs.share}"]
        # It refuses to run as root unless asked to.
        user = ["--user=root"] if os.geteuid() == 0 else []
        return [str(self._programs.server), "--no-defaults", *user, *folders, f"--plugin-dir={self.directory}"]

    def start(self) -> Self:
        """Start, and wait until MariaDB accepts a connection. After a kill this includes its recovery."""
        if not self._initialised:
            self._initialise()
        self.process.start()

        def answers() -> bool:
            try:
                self.connect().close()
            except pymysql.OperationalError:
                return False
            return True

        self.process.wait_until(answers, _START_TIMEOUT, "MariaDB's first answer")
        return self

    def connect(self, database: str | None = None) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        """Open a new connection, which commits each statement."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.user,
            password=self.password,
            database=database,
            autocommit=True,
            connect_timeout=5,
        )

    def execute(self, statement: str, database: str | None = None) -> tuple[tuple[object, ...], ...]:
        """Run a statement over a connection of its own, and return the rows of its result."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    def create_database(self, name: str) -> str:
        """Create an empty database, and return its :meth:`url`."""
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, and end its sessions, whose transactions would keep it."""
        for (session,) in self.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"):
            with contextlib.suppress(pymysql.OperationalError):  # it has ended
                self.execute(f"KILL CONNECTION {session}")
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def url(self, database: str = "") -> str:
        """Return the SQLAlchemy URL, with the password."""
        return f"mysql+pymysql://{self._address}/{database}"

    def airflow_uri(self, database: str = "") -> str:
        """Return the value of an ``AIRFLOW_CONN_…`` variable, with the password."""
        return f"mysql://{self._address}/{database}"

    @property
    def _address(self) -> str:
        return f"{self.user}:{urllib.parse.quote(self.password, safe='')}@127.0.0.1:{self.port}"

    def _initialise(self) -> None:
        self._data.mkdir()
        scripts = [next(self._programs.share.glob(name)).read_text() for name in _SYSTEM_TABLES]
        user = f"'{self.user}'@'%'"
        statements = [
            # The server reads a statement a line.
            "CREATE DATABASE mysql;\nUSE mysql;\nSET @skip_auth_anonymous = 1;\nSET @auth_root_socket = NULL;",
            *scripts,
            # They have no password.
            "DELETE FROM global_priv WHERE user = 'root';",
            f"FLUSH PRIVILEGES;\nCREATE USER {user} IDENTIFIED BY '{self.password}';",
            f"GRANT ALL PRIVILEGES ON *.* TO {user} WITH GRANT OPTION;\n",
        ]
        done = subprocess.run(
            [*self._command, "--bootstrap", "--default-storage-engine=InnoDB", "--innodb-flush-log-at-trx-commit=0"],
            input="\n".join(statements),
            cwd=self.directory,
            env=self._programs.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0 or "ERROR" in done.stderr:
            raise RuntimeError(
                f"MariaDB's data could not be made (status {done.returncode}):\n{done.stdout}{done.stderr}"
            )
        self._initialised = True
