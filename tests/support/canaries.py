"""Canaries: values that must be found nowhere, and the places where they are looked for."""

from __future__ import annotations

import base64
import contextlib
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa
from sqlalchemy.engine import Engine

_PAUSE_SECONDS = 0.05


class Canaries(dict[str, str]):
    """Values by what they are, each of its own."""

    def __init__(self, *names: str) -> None:
        # Without a part in common: a compressed text has what it repeats only once.
        super().__init__({name: uuid.uuid4().hex for name in names})
        self._forms = {name: list(_forms(value.encode())) for name, value in self.items()}

    def without(self, *names: str) -> Canaries:
        """The others."""
        some = Canaries()
        some.update({name: value for name, value in self.items() if name not in names})
        some._forms = {name: self._forms[name] for name in some}
        return some

    def in_text(self, content: str | bytes) -> list[str]:
        """The names of the canaries that are in a text or in bytes: as they are, in hexadecimal digits, or in
        base64.
        """
        content = content.encode(errors="surrogateescape") if isinstance(content, str) else content
        return [name for name, forms in self._forms.items() if any(form in content for form in forms)]

    def in_files(self, directory: Path, *, but: Iterable[str] = ()) -> dict[str, list[str]]:
        """The files below a directory that hold canaries, and which.

        :param but: patterns of names that are left out
        """
        found = {}
        # Files and directories come and go while they are looked at.
        for file in (Path(folder, name) for folder, _, names in os.walk(directory) for name in names):
            with contextlib.suppress(OSError):
                if file.is_file() and not any(file.match(pattern) for pattern in but):
                    found[str(file)] = self.in_text(file.read_bytes())
        return {name: names for name, names in found.items() if names}

    def in_tables(self, engine: Engine, but: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
        """The tables of a Postgres database that hold canaries, in any column, and which.

        :param but: columns that are left out, by table; all of a table if there are none
        """
        found = {}
        quoted = engine.dialect.identifier_preparer.quote
        with engine.connect() as conn:
            for name in sa.inspect(conn).get_table_names():
                columns = list(but.get(name, [""]))
                if not columns:
                    continue
                query = sa.text(f"SELECT (to_jsonb(t) - CAST(:columns AS text[]))::text FROM {quoted(name)} t")
                texts = conn.execute(query, {"columns": columns}).scalars()
                found[name] = self.in_text("\n".join(texts))
        return {name: names for name, names in found.items() if names}

    def in_sqlite(self, path: Path) -> tuple[list[str], str]:
        """The canaries in a database of SQLite, and its whole content."""
        with contextlib.closing(sqlite3.connect(path)) as conn:
            dump = "\n".join(conn.iterdump())
        return self.in_text(dump), dump


def _forms(value: bytes) -> Iterator[bytes]:
    yield value
    yield value.hex().encode()
    # Base64 of a longer text: three bytes are four dead letters, wherever the value begins.
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value)
        yield encoded[4 if before else 0 : -4]


class Watch:
    """Looks, as long as the block lasts, at the arguments and environments of all processes, and at directories.

    :param canaries: what must not be found
    :param directories: with the names of files to leave out
    """

    def __init__(self, canaries: Canaries, directories: Mapping[Path, Iterable[str]]) -> None:
        self.found: set[tuple[str, str]] = set()
        self.commands: set[str] = set()
        self._canaries, self._directories = canaries, directories
        # A process keeps its environment until it executes another program, with other arguments.
        self._known: set[tuple[str, bytes]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            # Processes come and go while they are looked at.
            with contextlib.suppress(OSError):
                arguments = (process / "cmdline").read_bytes()
                if (process.name, arguments) in self._known:
                    continue
                self._known.add((process.name, arguments))
                text = arguments.decode(errors="replace").replace("\0", " ")
                self.commands.add(text)
                for place, content in (("arguments", arguments), ("environment", (process / "environ").read_bytes())):
                    self.found |= {(name, f"{place} of {text[:200]}") for name in self._canaries.in_text(content)}
        for directory, but in self._directories.items():
            for file, names in self._canaries.in_files(directory, but=but).items():
                self.found |= {(name, file) for name in names}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(_PAUSE_SECONDS)
