"""A real MySQL, as a child process that listens on a TCP port."""

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from devstack import debian
from devstack.mariadb import MariaDbServer
from devstack.mariadb_programs import Programs
from devstack.paths import BUILD
from devstack.versions import MYSQL_VERSION, mysql_home

# The program is linked to it; newer systems have renamed it.
_LIBRARY = ("libaio1", "libaio1t64")


class MySqlServer(MariaDbServer):
    """MySQL, as :class:`MariaDbServer` is MariaDB: with the same user, and with the same tests.

    :raises RuntimeError: it cannot be fetched
    """

    _own_settings: ClassVar[Mapping[str, str]] = {
        "mysqlx": "OFF",
        # It is OFF as its authors ship it: rows would go by INSERT.
        "local-infile": "ON",
        "sync-binlog": "0",
        "max-allowed-packet": "16M",
        "log-error-verbosity": "2",
    }

    def _find_programs(self, version: str | None) -> Programs:
        home, libraries = mysql_home(), BUILD / "libaio"
        debian.unpack(_LIBRARY, libraries)
        for folder in debian.library_folders(libraries):
            # As Debian has called it since; the program asks for the old name.
            for renamed in folder.glob("libaio.so.1t64"):
                if not (old := folder / "libaio.so.1").exists():
                    old.symlink_to(renamed.name)
        return Programs(home / "bin" / "mysqld", home / "share", debian.library_folders(libraries))

    def _initialise(self) -> None:
        """Copy the data of a new server, which takes MySQL nine seconds to make, and create the user at the start."""
        template = BUILD / f"mysql-{MYSQL_VERSION}-data"
        with (BUILD / f"{template.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here, then finds the template
            if not template.exists():
                self._make(template)
        shutil.copytree(template, self._data)
        (self._data / "auto.cnf").unlink()  # the id of the server
        user = f"'{self.user}'@'%'"
        statements = self.directory / "user.sql"
        statements.touch(0o600)
        statements.write_text(
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {user} WITH GRANT OPTION;\n"
            "DROP USER IF EXISTS 'root'@'localhost';\n"  # it has no password
        )
        self.process.command.append(f"--init-file={statements}")
        self._initialised = True

    def _make(self, template: Path) -> None:
        partial = Path(tempfile.mkdtemp(prefix=template.name, dir=BUILD))
        command = [argument for argument in self._command if not argument.startswith("--datadir=")]
        command += ["--initialize-insecure", f"--datadir={partial}", f"--secure-file-priv={self.directory}"]
        done = subprocess.run(
            command, cwd=self.directory, env=self._programs.environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            shutil.rmtree(partial, ignore_errors=True)
            raise RuntimeError(f"MySQL's data could not be made (status {done.returncode}):\n{done.stderr}")
        partial.rename(template)
