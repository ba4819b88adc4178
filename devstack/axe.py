"""axe-core, which checks pages by the rules of WCAG: fetched from npm, once, for the tests in a browser."""

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

from devstack.maven import fetched_once
from devstack.paths import REPOSITORY

_DIGEST = REPOSITORY / "constraints" / "axe-core.sha256"


def axe_script() -> str:
    """Return the text of axe-core's script.

    :raises RuntimeError: npm is missing, could not fetch it, or fetched another one than the recorded
    """
    return (fetched_once("axe-core", _fetch) / "package" / "axe.min.js").read_text()


def _fetch(folder: Path) -> None:
    digest, name = _DIGEST.read_text().split()
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is needed to fetch axe-core")
    wanted = name.removesuffix(".tgz").replace("axe-core-", "axe-core@")
    done = subprocess.run([npm, "pack", "--silent", wanted], cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"npm could not fetch {wanted}: {done.stderr}")
    archive = folder / name
    if hashlib.sha256(archive.read_bytes()).hexdigest() != digest:
        raise RuntimeError(f"{name} is not as recorded in {_DIGEST.relative_to(REPOSITORY)}")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
