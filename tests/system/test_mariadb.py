"""MariaDB for the tests: found or fetched, and kept over restarts; where it cannot be had, the reason is known."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest

from devstack import debian, mariadb_programs
from devstack.mariadb import MariaDbServer
from devstack.mariadb_programs import fetch_programs, find_programs


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without MariaDB, and without a package manager."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mariadb_programs, "_FOLDERS", ())
    monkeypatch.setattr(mariadb_programs, "_HOME", tmp_path / "mariadb")
    monkeypatch.setattr(debian, "BUILD", tmp_path)


class TestPrograms:
    def test_without_them_the_reason_is_named(self, nothing: None) -> None:
        for look in (find_programs, fetch_programs, MariaDbServer):
            with pytest.raises(RuntimeError, match=r"there is no MariaDB: .*apt-get install mariadb-server-core"):
                look()

    def test_installed_programs_come_first(self, nothing: None, tmp_path: Path) -> None:
        share, server = tmp_path / "usr/share/mysql", tmp_path / "usr/sbin/mariadbd"
        for folder in (share, server.parent):
            folder.mkdir(parents=True)
        (share / "mysql_system_tables.sql").touch()
        server.touch(0o755)
        (tmp_path / "mariadbd").symlink_to(server)

        assert find_programs() == (server, share, ())

    def test_a_failed_download_leaves_nothing(self, nothing: None, tmp_path: Path) -> None:
        for name, script in (("apt-get", "echo 'Inst mariadb-server-core (1)'; [ $1 = install ]"), ("dpkg", "exit 1")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)

        with pytest.raises(RuntimeError, match="`apt-get download mariadb-server-core` failed"):
            fetch_programs()

        assert not list(tmp_path.glob("mariadb-*"))
        assert not (tmp_path / "mariadb").exists()


@pytest.mark.server
class TestServer:
    def test_server_keeps_rows_and_port_over_restart_and_kill(self, mariadb: MariaDbServer) -> None:
        with MariaDbServer() as server:
            port = server.port
            server.create_database("kept")
            server.execute("CREATE TABLE kept.number (n INT)")
            server.restart()
            server.execute("INSERT INTO kept.number VALUES (1)")
            server.kill()
            server.start()
            assert (server.execute("SELECT n FROM kept.number"), server.port) == (((1,),), port)

    @pytest.mark.parametrize("login", [("tester", "wrong"), ("root", ""), ("", "")])
    def test_server_requires_the_password(self, mariadb: MariaDbServer, login: tuple[str, str]) -> None:
        with pytest.raises(pymysql.OperationalError, match="Access denied"):
            pymysql.connect(host="127.0.0.1", port=mariadb.port, user=login[0], password=login[1])

    def test_a_database_with_an_open_transaction_is_dropped(self, mariadb: MariaDbServer) -> None:
        mariadb.create_database("busy")
        with mariadb.connect("busy") as held, held.cursor() as cursor:
            cursor.execute("CREATE TABLE number (n INT) ENGINE = InnoDB")
            held.begin()
            cursor.execute("INSERT INTO number VALUES (1)")
            mariadb.drop_database("busy")
            assert ("busy",) not in mariadb.execute("SHOW DATABASES")
            held._force_close()
