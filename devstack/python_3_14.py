"""CPython 3.14, which few machines have, for a cell of `make compat`: a build of python-build-standalone that a module
of Go's has, file by file.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from devstack.maven import fetched_once
from devstack.paths import BUILD

VERSION = "3.14.6"
_MODULE = f"github.com/kluctl/go-embed-python@v0.0.0-{VERSION}-20260610-1"
_SUM = "h1:oGUS7++Wm3LgxUfD6AmJgKbKQD2wdQFO9PzyJv6T+E4="
"""As Go's checksum database has it."""


def python_3_14() -> Path:
    """Return the interpreter. A missing one is fetched.

    :raises RuntimeError: `go` is missing, could not fetch it, or fetched another one than the recorded
    """
    return fetched_once(f"python-{VERSION}", _fetch) / "bin" / "python3.14"


def _fetch(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("go is needed to fetch Python 3.14")
    with tempfile.TemporaryDirectory(dir=BUILD) as cache:
        env = os.environ | {"GOMODCACHE": cache, "GOFLAGS": "-modcacherw"}
        command = (go, "mod", "download", "-json", _MODULE)
        done = subprocess.run(command, cwd=cache, env=env, capture_output=True, text=True, timeout=300)
        fetched = json.loads(done.stdout or "{}")
        if done.returncode != 0:
            raise RuntimeError(f"go could not fetch {_MODULE}: {fetched.get('Error') or done.stderr}")
        if fetched["Sum"] != _SUM:
            raise RuntimeError(f"{_MODULE} is not as recorded; its checksum is {fetched['Sum']}")
        packed = Path(fetched["Dir"]) / "python" / "internal" / "data" / "linux-amd64"
        for file in json.loads((packed / "files.json").read_text())["files"]:
            _unpack(packed, folder, file["name"], file.get("symlink"))


def _unpack(packed: Path, folder: Path, name: str, link: str | None) -> None:
    source, file = packed / name, folder / name
    if link is not None:
        file.symlink_to(link)
    elif source.is_dir():
        file.mkdir(exist_ok=True)
    else:
        zipped = source.with_name(f"{source.name}.gz")
        file.write_bytes(gzip.decompress(zipped.read_bytes()) if zipped.exists() else source.read_bytes())
        file.chmod(0o755 if name.startswith("bin/") else 0o644)
