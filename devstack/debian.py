"""Programs and libraries of Debian's packages, which are unpacked and not installed.

`apt-get` verifies what it downloads by the signatures of the distribution.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from devstack.paths import BUILD


def can_unpack() -> bool:
    """Return whether this machine has the tools."""
    return all(map(shutil.which, ("apt-get", "dpkg")))


def unpack(names: tuple[str, ...], home: Path) -> None:
    """Download a package and those it needs that are not installed, and unpack them into a folder, once.

    :param names: of the package: the first that the distribution knows
    :raises RuntimeError: they cannot be had here
    """
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here, then finds them
        if not home.exists():
            _fetch(names, home)


def library_folders(home: Path) -> tuple[Path, ...]:
    """Return the folders of shared libraries of unpacked packages."""
    return (*home.glob("usr/lib/*-linux-gnu"), *home.glob("lib/*-linux-gnu"))


def _fetch(names: tuple[str, ...], home: Path) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=BUILD))
    try:
        packages = _missing(names)
        if not packages and os.geteuid() == 0:
            _run("apt-get", "update")
            packages = _missing(names)
        if not packages:
            raise RuntimeError(f"apt-get knows no package {' or '.join(names)}: it cannot be fetched")
        archives, unpacked = partial / "archives", partial / "unpacked"
        archives.mkdir()
        _run("apt-get", "download", *packages, folder=archives)
        for archive in sorted(archives.glob("*.deb")):
            _run("dpkg", "--extract", str(archive), str(unpacked))
        unpacked.chmod(0o755)
        unpacked.rename(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _missing(names: tuple[str, ...]) -> list[str]:
    """Return the package and those it needs that are not installed; empty where apt-get does not know it."""
    for name in names:
        command = ["apt-get", "install", "--simulate", "--no-install-recommends", name]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
        if found := re.findall(r"^Inst (\S+)", done.stdout, re.MULTILINE):
            return found
    return []


def _run(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise RuntimeError(
            f"`{' '.join(command)}` failed, and the packages cannot be fetched:\n{done.stdout}{done.stderr}"
        )
