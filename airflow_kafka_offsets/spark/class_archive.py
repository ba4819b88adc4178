"""An archive of the classes that Spark's driver loads: a JVM that finds them there need not read, check and link each of them.

Java calls it class data sharing (https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). A JVM writes the archive as it
ends, which takes some seconds: worth it only where other loads follow. So not the first load on a machine writes it, which in a container of
its own is also the last one, but the second. A JVM takes no archive of another Java or of other jars, and goes on without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

# A JVM that is killed while it writes, or finds no space, leaves no archive. What failed so often will fail again.
_ATTEMPTS = 3

# Of a Java or a Spark that is gone: archives that are in use have the time of their last use.
_UNUSED_SECONDS = 30 * 86_400.0

# Options of Java by which users share classes themselves, or do not share them.
_OWN = re.compile(r"-Xshare|SharedArchiveFile|ArchiveClassesAtExit|AutoCreateSharedArchive|-XX:AOT")

# What a JVM says of classes that cannot be in an archive, or of an archive that it does not take.
_QUIET = "-Xlog:cds*=off -Xlog:class+path*=off"


class ClassArchive:
    """The archive of the classes of one kind of application on this machine.

    :param directory: of all archives. A JVM runs what it finds there: it is used only if nobody else can write into it
    :param kind: what the classes depend on, such as the version of Java and the class path
    """

    def __init__(self, directory: Path, kind: Iterable[str]) -> None:
        key = hashlib.sha256("\0".join(kind).encode()).hexdigest()[:16]
        self._directory = directory
        self._file = directory / f"{key}.jsa"
        self._attempts = directory / f"{key}.attempts"
        self._partial: Path | None = None

    @property
    def is_written(self) -> bool:
        """Whether the JVM that got the last options writes the archive."""
        return self._partial is not None

    def java_options(self) -> str:
        """Return the options of a JVM that reads the archive, or writes it as it ends; "" for one that does neither."""
        self._partial = None
        try:
            return self._java_options()
        except (OSError, ValueError) as error:
            log.debug("No archive of classes is used in %s: %s", self._directory, error)
            return ""

    def _java_options(self) -> str:
        """Do the same.

        :raises OSError: the directory cannot be used
        :raises ValueError: a file in it was changed, or its path would be more than one option
        """
        if re.search(r"""[\s"'\\]""", str(self._directory)):
            raise ValueError("its path has spaces, quotes or backslashes")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = self._directory.stat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise PermissionError("others may write there")
        if self._file.exists():
            os.utime(self._file)
            return f"-XX:SharedArchiveFile={self._file} {_QUIET}"
        attempts = int(self._attempts.read_text(encoding="ascii")) if self._attempts.exists() else -1
        if attempts >= _ATTEMPTS:
            return ""
        self._attempts.write_text(str(attempts + 1), encoding="ascii")
        if attempts < 0:
            return ""
        self._partial = self._directory / f"{uuid.uuid4().hex}.partial"
        return f"-XX:ArchiveClassesAtExit={self._partial} {_QUIET}"

    def end(self, *, is_complete: bool) -> None:
        """Let other JVMs read what one has written, and remove what nobody has used for long.

        :param is_complete: whether the JVM ended by itself
        """
        partial, self._partial = self._partial, None
        if partial is None:
            return
        try:
            if is_complete and partial.exists():
                partial.rename(self._file)
            else:
                partial.unlink(missing_ok=True)
            long_ago = time.time() - _UNUSED_SECONDS
            for file in self._directory.iterdir():
                if file.stat().st_mtime < long_ago:
                    file.unlink(missing_ok=True)
        except OSError as error:
            # Another process may remove the same files.
            log.debug("An archive of classes was not kept in %s: %s", self._directory, error)


def has_own_options(options: Iterable[str]) -> bool:
    """Return whether options of Java share classes in a way of their own, or not at all."""
    return any(map(_OWN.search, options))
