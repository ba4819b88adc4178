"""The staging directory of one attempt: small JSON notes beside the data files.

A directory holds `part-*.arrow` (rows), `dead-*.arrow` (records of a slice that do not decode), `slice-*.json` (a slice
read to its end), `progress-*.json` (a slice being read), `failure-*.json` (why a task or the driver gave up) and, when
everything else is there, `manifest.json`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs


class StagingDirectory:
    """A directory on the local file system, HDFS or an object store.

    :param uri: an absolute path, or a URI that `pyarrow.fs.FileSystem.from_uri` knows
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.filesystem, path = fs.FileSystem.from_uri(uri)
        self.path = path.rstrip("/")

    def child(self, name: str) -> StagingDirectory:
        """Open a directory below this one."""
        return StagingDirectory(self.child_uri(name))

    def child_uri(self, name: str) -> str:
        """Return the URI of a directory below this one."""
        # What follows a question mark are options of the file system, and no part of the path.
        base, mark, options = self.uri.partition("?")
        return f"{base.rstrip('/')}/{name}{mark}{options}"

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def create(self) -> None:
        """Create it, readable by its owner alone where the store knows owners."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            os.mkdir(self.path, mode=0o700)
        else:
            self.filesystem.create_dir(self.path)

    def remove(self) -> None:
        """Remove it with all it holds; a directory that is gone already is as good."""
        if self.filesystem.get_file_info(self.path).type != fs.FileType.NotFound:
            self.filesystem.delete_dir(self.path)

    def file(self, name: str) -> str:
        """The path of a file in the directory.

        :raises ValueError: the name leads out of the directory
        """
        if not name or "/" in name or "\\" in name or name in (".", ".."):
            raise ValueError(f"{name!r} is not the name of a file in the staging directory")
        return f"{self.path}/{name}"

    def write_text(self, name: str, text: str) -> None:
        """Write a whole file: readers see the old one or the new one, never half of it."""
        if not self.is_local:  # Object stores show an object when it is complete.
            with self.filesystem.open_output_stream(self.file(name)) as stream:
                stream.write(text.encode())
            return
        unfinished = self.file(f".{name}.{uuid.uuid4().hex}")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, self.file(name))

    def read_text(self, name: str) -> str:
        """
        :raises FileNotFoundError: there is no such file
        """
        with self.filesystem.open_input_stream(self.file(name)) as stream:
            text: bytes = stream.read()
        return text.decode()

    def exists(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(self.file(name)).type == fs.FileType.File)

    def holds(self, name: str, size: int) -> bool:
        """Whether a file is there, and of the size it was written with."""
        info = self.filesystem.get_file_info(self.file(name))
        return bool(info.type == fs.FileType.File and info.size == size)

    def record_batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """What an Arrow file holds.

        :raises ValueError: the name leads out of the directory; names come from a manifest, which is only a file, too
        """
        with self.filesystem.open_input_file(self.file(name)) as stream, pa.ipc.open_file(stream) as reader:
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)

    def notes(self, prefix: str) -> Iterator[dict[str, Any]]:
        """The JSON files whose names start with a prefix."""
        selector = fs.FileSelector(self.path, allow_not_found=True)
        for info in sorted(self.filesystem.get_file_info(selector), key=lambda info: str(info.base_name)):
            if info.base_name.startswith(prefix) and info.base_name.endswith(".json"):
                yield json.loads(self.read_text(info.base_name))
