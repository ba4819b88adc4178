"""The environments of the cells: made by uv in the cache, once for what they are made from."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from compat.cells import LOWEST, PYTHON_3_14, Environment
from devstack.paths import BUILD, REPOSITORY
from devstack.python_3_14 import python_3_14
from devstack.spark_services import SERVICE_EXTRAS

_STORED = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
# What Airflow's own constraints are about.
_CORE = ("apache-airflow-providers-fab", "apache-airflow-providers-openlineage")


def python_of(name: str, environment: Environment) -> Path:
    """Return the Python of an environment, which is made where it is missing or older than its constraints.

    :raises RuntimeError: it cannot be made; the message ends with uv's output
    """
    if environment.constraints == LOWEST:
        # As `make lowest` makes it, and uses it.
        _run("scripts/bootstrap.sh", "lowest")
        return BUILD / "lowest" / "bin" / "python"
    home = BUILD / f"compat-{name}"
    python, stamp = home / "bin" / "python", home / "made-from"
    listed = REPOSITORY / (environment.constraints or "pyproject.toml")
    state = hashlib.sha256(repr((environment, str(home))).encode() + listed.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == state:
        return python
    shutil.rmtree(home, ignore_errors=True)
    _uv("venv", "--clear", "--python", _interpreter(environment.python), str(home))
    if environment.constraints is None:
        listed = _resolve(home, environment)
    instead = home / "instead.txt"
    instead.write_text("\n".join(environment.instead))
    install = ("pip", "install", "--python", str(python), "--no-deps")
    builds = ("--build-constraints", "constraints/build.txt")
    _uv(*install, *builds, *_STORED, "--overrides", str(instead), "-r", str(listed))
    _uv(*install, *builds, "-e", ".", *environment.more)
    _uv("pip", "check", "--python", str(python))
    stamp.write_text(state)
    return python


def spark_home(version: str) -> Path:
    """Return the folder of a PySpark by itself.

    :raises RuntimeError: it cannot be installed; the message ends with uv's output
    """
    home = BUILD / f"compat-pyspark-{version}"
    if not home.exists():
        builds = ("--build-constraints", "constraints/build.txt", *_STORED)
        partial = home.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _uv(
            "pip",
            "install",
            "--python",
            sys.executable,
            "--no-deps",
            *builds,
            "--target",
            str(partial),
            f"pyspark=={version}",
        )
        partial.rename(home)
    return home / "pyspark"


def _interpreter(python: str) -> str:
    return str(python_3_14() if python == PYTHON_3_14 else Path(python).expanduser())


def _resolve(home: Path, environment: Environment) -> Path:
    """Resolve Airflow with the dependencies of its time, and everything else under that."""
    core, asked, listed = home / "core.txt", home / "core.in", home / "listed.txt"
    asked.write_text("\n".join((*environment.pins, *_CORE)))
    compile_ = ("pip", "compile", "--no-annotate", "--python-version", environment.python)
    date = ("--exclude-newer", environment.until) if environment.until else ()
    _uv(*compile_, *date, str(asked), "-o", str(core))
    # The extra `mysql` needs a release that closed a vulnerability, newer than Airflow 3.1.
    core.write_text("\n".join(line for line in core.read_text().splitlines() if not line.startswith("cryptography==")))
    named = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = [part for name in named if name not in SERVICE_EXTRAS for part in ("--extra", name)]
    _uv(*compile_, "-c", str(core), "pyproject.toml", *extras, "--group", "dev", "-o", str(listed))
    return listed


def _uv(*arguments: str) -> None:
    own = BUILD / "tools" / "bin" / "uv"
    _run(str(own) if own.exists() else "uv", "--quiet", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
