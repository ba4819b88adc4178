"""Files on a local file system or an object store: written as a stream, read anywhere, and copied by the store.

Options have the names of the Rust library `object_store`, as delta-rs takes them too: `aws_access_key_id`,
`aws_region`, …
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from airflow_kafka_offsets.core.addresses import is_local, local_path
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_NOTHING = "nothing is read or written there"

# Options of the client for HTTP; obstore takes them apart.
_CLIENT = {"allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "user_agent"}

# Options of delta-rs that say how a commit is made; this client decides it with each write.
_COMMITS = {"conditional_put", "copy_if_not_exists", "s3_allow_unsafe_rename", "s3_locking_provider"}


class FoundFile(NamedTuple):
    """A file in a listing.

    :param path: below the URI of the files
    :param modified: seconds since 1970
    """

    path: str
    bytes: int
    modified: float


class ObjectFiles:
    """The files below a URI.

    :param uri: an absolute path, or a URI such as `s3://bucket/path`
    :param options: of the store; may hold secrets
    :raises ConfigurationError: there is no such kind of store, or an option is wrong
    """

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        self.store = _open(uri, options)
        self._root = Path(local_path(uri)) if is_local(uri) else None

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for writing. It is there when the block ends; where the block raises, it never is, and its upload
        is aborted.

        :raises TargetError: a link leads to somewhere else
        """
        import obstore

        self.refuse_outside(path)
        with obstore.open_writer(self.store, path) as writer:
            yield cast("BinaryIO", _Sink(writer))

    def open(self, path: str) -> pa.PythonFile:
        """Open a file for reading.

        :raises FileNotFoundError: there is no such file
        :raises TargetError: it is a link to somewhere else
        """
        import obstore

        self.refuse_outside(path)
        return pa.PythonFile(_Source(obstore.open_reader(self.store, path)), mode="r")

    def is_inside(self, path: str) -> bool:
        """Return whether a file is below the URI, and not a link to somewhere else."""
        return self._root is None or is_below(self._root, self._root / path)

    def refuse_outside(self, path: str) -> None:
        """Refuse a path that leads to somewhere else, by a link.

        :raises TargetError: it does
        """
        if self._root is not None:
            refuse_link(path, self._root / path, self._root)

    def size(self, path: str) -> int | None:
        """Return the size of a file; None where there is none."""
        try:
            return self.store.head(path)["size"]
        except FileNotFoundError:
            return None

    def copy(self, path: str, to: str) -> None:
        """Copy a file, in an object store on the server. It appears whole; what has the name is replaced.

        :raises TargetError: a link leads to somewhere else
        """
        self.refuse_outside(path)
        self.refuse_outside(to)
        if self._root is None:
            self.store.copy(path, to)
            return
        # Not by the store: where the file was copied before, it leaves a temporary link behind.
        source, target = Path(path), Path(to)
        temporary = f".{target.name}.{uuid.uuid4().hex}"
        with opened(self._root, source.parent) as of, opened(self._root, target.parent, create=True) as into:
            try:
                _link(source.name, of, temporary, into)
                if not stat.S_ISREG(os.stat(temporary, dir_fd=into, follow_symlinks=False).st_mode):
                    raise TargetError(f"{path!r} is no file: {_NOTHING}")
                os.replace(temporary, target.name, src_dir_fd=into, dst_dir_fd=into)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=into)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there.

        :raises TargetError: a link leads to somewhere else
        """
        self.refuse_outside(path)
        if self._root is not None:
            remove_below(self._root, path)
            return
        with suppress(FileNotFoundError):
            self.store.delete(path)

    def directories(self, prefix: str = "") -> list[str]:
        """Return the paths of the directories in a directory.

        :param prefix: its path
        """
        return [path.rstrip("/") for path in self.store.list_with_delimiter(prefix)["common_prefixes"]]

    def refuse_links(self, prefix: str) -> None:
        """Refuse a directory that leads to somewhere else, itself or by a link in it.

        :param prefix: its path
        :raises TargetError: it does
        """
        if self._root is None:
            return
        self.refuse_outside(prefix)
        with suppress(FileNotFoundError), os.scandir(self._root / prefix) as entries:
            for entry in entries:
                if entry.is_symlink():
                    self.refuse_outside(f"{prefix}/{entry.name}")

    def find(self, prefix: str, after: str | None = None) -> Iterator[FoundFile]:
        """Yield the files of a directory and of those below it, in the order of their paths.

        :param prefix: the path of the directory
        :param after: a path; only files after it are wanted
        """
        found = [file for chunk in self.store.list(prefix, offset=after) for file in chunk]
        for file in sorted(found, key=lambda file: file["path"]):
            yield FoundFile(file["path"], file["size"], file["last_modified"].timestamp())


class Nowhere:
    """Files that are written for a trial, and kept nowhere."""

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for writing."""
        yield cast("BinaryIO", _Sink(self))

    def write(self, content: Any) -> None:
        """Forget what is written."""

    def remove(self, path: str) -> None:
        """Do nothing."""


class _Sink(io.RawIOBase):
    """A writer in the form in which Arrow wants files. Whoever opened the writer closes it."""

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._writer, self._written = writer, 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        self._writer.write(content)
        size = memoryview(content).nbytes
        self._written += size
        return size

    def tell(self) -> int:
        return self._written


class _Source(io.RawIOBase):
    """A reader in the form in which Arrow wants files."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> Any:
        return self._reader.read() if size < 0 else self._reader.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())


def is_below(root: Path | str, path: Path | str) -> bool:
    """Return whether a file of this machine is below a directory, wherever links lead."""
    return Path(path).resolve().is_relative_to(Path(root).resolve())


def refuse_link(name: str, path: Path | str, root: Path | str) -> None:
    """Refuse a file of this machine that is not below a directory.

    :param name: of the file, for the message
    :raises TargetError: a link leads to somewhere else
    """
    if not is_below(root, path):
        raise TargetError(f"{name!r} leads out of {root}, by a link: {_NOTHING}")


@contextmanager
def opened(root: Path | str, directory: Path, *, create: bool = False) -> Iterator[int]:
    """Open a directory of this machine, and yield its handle. Nobody can put a link in its place, then, or in that of
    one above it.

    :param root: where it is; links may lead there
    :param directory: its path below the root
    :param create: whether to make what is missing
    :raises FileNotFoundError: it is not there
    :raises TargetError: one of the path is a link, or no directory, or leads upwards
    """
    if directory.is_absolute() or ".." in directory.parts:
        raise TargetError(f"{directory} is not below {root}: {_NOTHING}")
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in directory.parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            except NotADirectoryError:
                raise TargetError(f"{name!r} of {root}/{directory} is a link, or no directory: {_NOTHING}") from None
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def remove_below(root: Path | str, path: Path | str) -> None:
    """Remove a file of this machine, if it is there.

    :param path: below the root; see `opened`
    :raises TargetError: a link is on its path
    """
    path = Path(path)
    with suppress(FileNotFoundError), opened(root, path.parent) as directory:
        os.unlink(path.name, dir_fd=directory)


def _link(name: str, of: int, new: str, into: int) -> None:
    try:
        os.link(name, new, src_dir_fd=of, dst_dir_fd=into, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        with (
            open(name, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, dir_fd=of)) as source,
            open(new, "xb", opener=lambda path, flags: os.open(path, flags, dir_fd=into)) as target,
        ):
            shutil.copyfileobj(source, target)


def _open(uri: str, options: Mapping[str, Any]) -> ObjectStore:
    from obstore.store import LocalStore, from_url

    if is_local(uri):
        return LocalStore(local_path(uri), mkdir=True)
    plain, client = dict[str, Any](), dict[str, Any]()
    for name, value in options.items():
        bare = name.lower().removeprefix("aws_")
        if bare in _CLIENT:
            client[bare] = _as_bool(value)
        elif bare not in _COMMITS:
            plain[name.lower()] = value
    try:
        return from_url(uri, config=plain, client_options=client)  # type: ignore[call-overload, no-any-return]
    except BaseException as error:
        # The library panics at an option that it does not know; its message may quote others.
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise
        raise ConfigurationError(
            f"{uri!r} cannot be opened with the options {', '.join(sorted([*plain, *client]))}: "
            f"{type(error).__name__}. Use the options of the library object_store, such as aws_region"
        ) from None


def _as_bool(value: Any) -> Any:
    return {"true": True, "false": False}.get(str(value).lower(), value)
