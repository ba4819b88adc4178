"""The staging directory of one attempt: small JSON notes beside the data files.

A directory holds `part-*.arrow` (rows), `dead-*.arrow` (records of a slice that do not decode), `slice-*.json` (a slice
read to its end), `progress-*.json` (a slice being read), `failure-*.json` (why a task or the driver failed) and, when
everything else is there, `manifest.json`. Names that begin with a dot are of files that are being written.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

# These show an object when it is complete, and move one by copying it.
_OBJECT_STORES = {"s3", "gcs", "abfs"}

# An object store answers in tens of milliseconds, whatever else it is asked.
_READS_AT_ONCE = 32


class FoundFile(NamedTuple):
    """A file of a directory.

    :param written_ns: when it was last written, in nanoseconds since 1970; 0 where the store does not say
    """

    name: str
    written_ns: int


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
        """Write a whole file that is not there yet: readers see all of it or nothing, also where the writer is killed."""
        if self.filesystem.type_name in _OBJECT_STORES:
            self._write(self.file(name), text)
            return
        unfinished = self.file(f".{name}.{uuid.uuid4().hex}")
        self._write(unfinished, text)
        if self.is_local:
            os.replace(unfinished, self.file(name))
        else:
            self.filesystem.move(unfinished, self.file(name))

    def write_again(self, name: str, text: str) -> None:
        """Write a file that may be there already. On HDFS, which moves no file over another, a reader may see half of it."""
        if self.is_local:
            self.write_text(name, text)
        else:
            self._write(self.file(name), text)

    def _write(self, path: str, text: str) -> None:
        with self.filesystem.open_output_stream(path) as stream:
            stream.write(text.encode())

    def read_text(self, name: str) -> str:
        """
        :raises FileNotFoundError: there is no such file
        """
        with self.filesystem.open_input_stream(self.file(name)) as stream:
            text: bytes = stream.read()
        return text.decode()

    def read_texts(self, names: Collection[str]) -> dict[str, str]:
        """Read many small files at once.

        :return: their texts by name, in the order of the names
        :raises FileNotFoundError: one of them is not there
        """
        with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="staging-read") as pool:
            return dict(zip(names, pool.map(self.read_text, names), strict=True))

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
        """Read the JSON files whose names start with a prefix, in the order of their names."""
        texts = self.read_texts([found.name for found in self.find(prefix, ".json")])
        return map(json.loads, texts.values())

    def find(self, prefix: str, suffix: str) -> list[FoundFile]:
        """List the files of these names that are completely written, by name; no file is opened."""
        infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        names = ((str(info.base_name), info.mtime_ns or 0) for info in infos)
        return sorted(
            FoundFile(name, written_ns)
            for name, written_ns in names
            if name.startswith(prefix) and name.endswith(suffix) and not name.startswith(".")
        )
