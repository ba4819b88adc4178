"""HDFS by the package hdfs-native, which speaks its protocol without Java, as a file system of pyarrow's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from hdfs_native.fsspec import HdfsFileSystem
from pyarrow import fs

from airflow_kafka_offsets.exceptions import ConfigurationError


def _as_os_error(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose errors are those of every other file system: hdfs-native raises a RuntimeError for what the
    NameNode refuses, as in safe mode.
    """

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except RuntimeError as error:
            raise OSError(str(error)) from error

    return called


class _Hdfs(HdfsFileSystem):
    """A file system whose directories only their owner can read."""

    info = _as_os_error(HdfsFileSystem.info)
    ls = _as_os_error(HdfsFileSystem.ls)
    mv = _as_os_error(HdfsFileSystem.mv)
    rm = _as_os_error(HdfsFileSystem.rm)
    _open = _as_os_error(HdfsFileSystem._open)

    @_as_os_error
    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        super().mkdir(path, create_parents, permission=0o700)

    def _convert_file_status(self, file_status: Any) -> dict[str, Any]:
        info: dict[str, Any] = super()._convert_file_status(file_status)
        # The name by which pyarrow looks for it.
        return info | {"mtime": info["modification_time"] / 1000}


def open_hdfs(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI, and the path in it.

    :raises ConfigurationError: the URI has options
    """
    parts = urlsplit(uri)
    if parts.query:
        raise ConfigurationError(
            f"{uri}: hdfs-native takes no options of a URI. Set the variable HADOOP_USER_NAME and the files in "
            "HADOOP_CONF_DIR, or install Hadoop's libhdfs"
        )
    # Names of name services have upper case letters.
    host, _, port = parts.netloc.partition(":")
    return fs.PyFileSystem(fs.FSSpecHandler(_Hdfs(host or None, int(port) if port else None))), parts.path
