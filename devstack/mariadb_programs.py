"""MariaDB's programs: those of this machine, or of Debian's packages, which are unpacked and not installed.

Where neither is to be had, the tests that need MariaDB are skipped, and say why.
"""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from devstack import debian
from devstack.paths import BUILD

_PACKAGE = "mariadb-server-core"

_HOME = BUILD / "mariadb"

# Debian's servers are not on the PATH of every user.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")

# Of the folder in which the system's tables are described.
_SHARE = ("share/mysql", "share/mariadb")
_SYSTEM_TABLES = "mysql_system_tables.sql"


class Programs(NamedTuple):
    """Where MariaDB is.

    :param server: the program `mariadbd`
    :param share: the folder with its messages and the statements that create the system's tables
    :param libraries: folders of shared libraries that the system lacks
    """

    server: Path
    share: Path
    libraries: tuple[Path, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which the server runs."""
        folders = [*map(str, self.libraries), os.environ.get("LD_LIBRARY_PATH", "")]
        return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


def find_programs() -> Programs:
    """Return MariaDB's programs, of the machine or as the set-up has fetched them.

    :raises RuntimeError: there are none
    """
    found = shutil.which("mariadbd", path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS]))
    if found is not None:
        server = Path(found).resolve()
        if (share := _share(server.parent.parent)) is not None:
            return Programs(server, share)
    usr = _HOME / "usr"
    if (share := _share(usr)) is not None:
        return Programs(usr / "sbin" / "mariadbd", share, debian.library_folders(_HOME))
    raise RuntimeError(
        f"there is no MariaDB: mariadbd is not on PATH, and the set-up could not fetch Debian's package {_PACKAGE}; "
        "install MariaDB's server (Debian, Ubuntu: apt-get install mariadb-server-core; macOS: brew install mariadb), "
        "or run `make setup` again"
    )


def fetch_programs() -> Programs:
    """Return MariaDB's programs; download and unpack Debian's packages where the machine has none.

    :raises RuntimeError: they cannot be had here
    """
    try:
        return find_programs()
    except RuntimeError:
        if not debian.can_unpack():
            raise
    debian.unpack((_PACKAGE,), _HOME)
    return find_programs()


def _share(prefix: Path) -> Path | None:
    return next((prefix / name for name in _SHARE if (prefix / name / _SYSTEM_TABLES).exists()), None)
