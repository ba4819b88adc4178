"""The staging directory of one attempt to stage a batch: data files, small JSON notes next to them, and the manifest.

A directory holds `part-*.arrow` (rows), `dead-*.arrow` (dead letters of a slice), `slice-*.json` (a slice that was read
to its end), `progress-*.json` (a slice that is being read), `failure-*.json` (why a task or the driver failed),
`refused.json` (records that a target which commits externally refused), `kafka-config` (a half of the secrets of a job,
see `spark.job`) and, once everything else is complete, `manifest.json`, which names the accepted files
(`staging.manifest`): Spark's driver writes it last. The name of a file that is being written begins with a dot.
`loading.staging_area` creates and removes directories.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyarrow import fs

from airflow_kafka_offsets.core.libraries import require_library

# These stores show an object once it is complete, and copy it to rename it.
_OBJECT_STORES = {"s3", "gcs", "abfs"}

# An object store answers a request in tens of milliseconds, and many at once just as quickly.
_READS_AT_ONCE = 32


class StagingDirectory:
    """A directory on the local file system, HDFS or an object store.

    :param uri: an absolute path, or a URI that `pyarrow.fs.FileSystem.from_uri` knows
    :raises ConfigurationError: it is on HDFS, and what reaches HDFS is not installed
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.filesystem, path = _open(uri)
        self.path = path.rstrip("/")

    def child(self, name: str) -> StagingDirectory:
        """Open a directory below this one."""
        return StagingDirectory(self.child_uri(name))

    def sibling(self, name: str) -> StagingDirectory:
        """Open another directory beside this one."""
        return StagingDirectory(self._uri(f"{self._base.rpartition('/')[0]}/{name}"))

    def child_uri(self, name: str) -> str:
        """Return the URI of a directory below this one."""
        return self._uri(f"{self._base}/{name}")

    @property
    def _base(self) -> str:
        """The URI without the options of the file system, which come after a question mark."""
        return self.uri.partition("?")[0].rstrip("/")

    def _uri(self, base: str) -> str:
        """Return the URI of another directory in the same file system."""
        _, mark, options = self.uri.partition("?")
        return f"{base}{mark}{options}"

    @property
    def name(self) -> str:
        """The last part of its path."""
        return str(self.path.rpartition("/")[2])

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def create(self) -> None:
        """Create the directory; on a local file system only its owner can read it."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            os.mkdir(self.path, mode=0o700)
        else:
            self.filesystem.create_dir(self.path)

    def remove(self) -> None:
        """Remove the directory and all its files, if it exists."""
        if self.filesystem.get_file_info(self.path).type != fs.FileType.NotFound:
            self.filesystem.delete_dir(self.path)

    def file(self, name: str) -> str:
        """Return the path of a file in the directory.

        :raises ValueError: the name leads out of the directory
        """
        if not name or "/" in name or "\\" in name or name in (".", ".."):
            raise ValueError(f"{name!r} is not the name of a file in the staging directory")
        return f"{self.path}/{name}"

    def write_text(self, name: str, text: str) -> None:
        """Write a new file. A reader sees all of it or nothing, even if the writer is killed."""
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
        """Write a file that may exist. On HDFS, where renaming cannot replace a file, a reader may see half of it."""
        if self.is_local:
            self.write_text(name, text)
        else:
            self._write(self.file(name), text)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file that nobody reads before it is named elsewhere."""
        with self.filesystem.open_output_stream(self.file(name)) as stream:
            stream.write(content)

    def _write(self, path: str, text: str) -> None:
        with self.filesystem.open_output_stream(path) as stream:
            stream.write(text.encode())

    def read_text(self, name: str, most: int | None = None) -> str:
        """Read a file.

        :param most: bytes
        :raises FileNotFoundError: the file does not exist
        :raises ValueError: it has more bytes, or is no text
        """
        with self.filesystem.open_input_stream(self.file(name)) as stream:
            text: bytes = stream.read(None if most is None else most + 1)
        if most is not None and len(text) > most:
            raise ValueError(f"{name} has more than {most:,} bytes")
        return text.decode()

    def read_texts(self, names: Collection[str]) -> dict[str, str]:
        """Read many small files at once.

        :return: their texts by name, in the order of the names
        :raises FileNotFoundError: one of the files does not exist
        """
        with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="staging-read") as pool:
            return dict(zip(names, pool.map(self.read_text, names), strict=True))

    def holds(self, name: str, size: int | None = None) -> bool:
        """Return whether a file exists, and has the size with which it was written."""
        info = self.filesystem.get_file_info(self.file(name))
        return bool(info.type == fs.FileType.File and (size is None or info.size == size))

    def notes(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Read the JSON files whose names start with a prefix, in the order of their names."""
        return map(json.loads, self.read_texts(self.find(prefix)).values())

    def find(self, prefix: str = "") -> dict[str, int]:
        """Return the JSON files that are completely written, in the order of their names; no file is opened.

        :return: names, with the time of the last write in nanoseconds since 1970; 0 if the store does not say
        """
        infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        files = sorted((str(info.base_name), info.mtime_ns or 0) for info in infos)
        return {
            name: written_ns
            for name, written_ns in files
            if name.startswith(prefix) and name.endswith(".json") and not name.startswith(".")
        }


def _open(uri: str) -> tuple[fs.FileSystem, str]:
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
        return filesystem, str(path)
    except OSError as error:
        reason = str(error).partition("\n")[0]
        # libhdfs is a part of Hadoop, in Java, which pyarrow does not include.
        if not uri.startswith("hdfs://") or re.search("load lib(jvm|hdfs)", reason) is None:
            raise
        libraries = f"hdfs-native, or Hadoop's libhdfs with JAVA_HOME, HADOOP_HOME and CLASSPATH ({reason})"
        require_library(uri, "hdfs_native", "hdfs", library=libraries)
    from airflow_kafka_offsets.staging.hdfs import open_hdfs

    return open_hdfs(uri)
