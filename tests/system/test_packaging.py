"""What is published: what the metadata claims, and that wheel and sdist work in an environment of their own."""

from __future__ import annotations

import email
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import airflow_kafka_offsets
from devstack.paths import REPOSITORY

PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_lowest_version_of_python_that_is_claimed_is_required() -> None:
    """`tests.docs.test_compatibility` compares those that are claimed with those that ran."""
    claimed = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_a_typed_package_says_so_in_its_folder() -> None:
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert Path(airflow_kafka_offsets.__file__).with_name("py.typed").exists()


def test_a_package_that_claims_a_license_has_its_text() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text(encoding="utf-8")


def test_links_of_the_readme_work_in_the_package_index_too() -> None:
    targets = re.findall(r"\]\(([^)]+)\)|^\[[^\]]+\]: (\S+)$", README, re.MULTILINE)
    links = [first or second for first, second in targets]
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    # Pictures are those of another host, which serves files as they are.
    ours = [link.removeprefix(f"{SOURCE}/blob/main/") for link in links if link.startswith(f"{SOURCE}/blob/main/")]
    assert len(ours) > 10
    assert [path for path in ours if not (REPOSITORY / path.partition("#")[0]).exists()] == []


class Installed:
    """The wheel in an environment of its own, with Airflow and no extra."""

    def __init__(self, directory: Path) -> None:
        self.uv = REPOSITORY / ".build" / "tools" / "bin" / "uv"
        self.environment = os.environ | {
            "AIRFLOW_HOME": str(directory / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "example_dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        self.environment.pop("PYTHONPATH", None)
        self.directory = directory
        build = ("--build-constraint", REPOSITORY / "constraints" / "build.txt", "--out-dir", directory / "dist")
        self.run(self.uv, "build", *build, REPOSITORY)
        (self.wheel,) = (directory / "dist").glob("*.whl")
        (self.sdist,) = (directory / "dist").glob("*.tar.gz")
        self.bin = directory / "venv" / "bin"
        self.run(self.uv, "venv", "--python", sys.executable, directory / "venv")
        constraints = REPOSITORY / "constraints"
        self.run(
            *(self.uv, "pip", "install", "--python", self.bin / "python", "--constraint", constraints / "dev.txt"),
            *("--build-constraint", constraints / "build.txt", self.wheel),
        )

    def run(self, *command: str | Path) -> str:
        """Return what a command prints. It runs outside of the repository, so that only what is installed is found."""
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=1200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.mark.long
class TestInstalled:
    def test_the_metadata_has_the_readme(self, installed: Installed) -> None:
        with zipfile.ZipFile(installed.wheel) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = email.message_from_bytes(wheel.read(name))
        assert metadata["Description-Content-Type"] == "text/markdown"
        payload = metadata.get_payload(decode=True)
        assert isinstance(payload, bytes)
        assert payload.decode().strip() == README.strip()

    def test_the_sdist_has_what_builds_it(self, installed: Installed) -> None:
        with tarfile.open(installed.sdist) as sdist:
            names = {name.partition("/")[2] for name in sdist.getnames()}
        assert {"README.md", "LICENSE", "pyproject.toml"} <= names
        again = installed.directory / "from-sdist"
        build = ("--build-constraint", REPOSITORY / "constraints" / "build.txt", "--out-dir", again)
        installed.run(installed.uv, "build", "--wheel", *build, installed.sdist)
        assert [path.name for path in again.glob("*.whl")] == [installed.wheel.name]

    def test_airflow_knows_the_provider(self, installed: Installed) -> None:
        text = installed.run(
            installed.bin / "airflow", "providers", "get", "airflow-kafka-offsets", "--output", "plain"
        )
        assert airflow_kafka_offsets.__version__ in text

    def test_every_public_name_is_imported_without_an_extra(self, installed: Installed) -> None:
        code = (
            "import airflow_kafka_offsets as p; [getattr(p, name) for name in p.__all__]; print(p.__file__);"
            "import importlib.util; print(importlib.util.find_spec('datafusion'))"
        )
        *_, path, extra = installed.run(installed.bin / "python", "-c", code).splitlines()
        assert Path(path).is_relative_to(installed.directory)
        assert extra == "None"

    def test_the_examples_are_dags(self, installed: Installed) -> None:
        installed.run(installed.bin / "airflow", "db", "migrate")
        errors = installed.run(installed.bin / "airflow", "dags", "list-import-errors", "--local", "--output", "plain")
        assert "example_dags" not in errors
        dags = installed.run(installed.bin / "airflow", "dags", "list", "--local", "--output", "plain")
        assert "load_orders" in dags

    def test_the_program_runs(self, installed: Installed) -> None:
        assert "groups" in installed.run(installed.bin / "kafka-offsets", "--help")

    def test_the_pip_step_of_the_image_brings_spark(self, installed: Installed) -> None:
        dockerfile = (REPOSITORY / "docs" / "examples" / "Dockerfile").read_text(encoding="utf-8")
        step = dockerfile.partition("\nRUN pip install ")[2].partition("\nRUN ")[0]
        (tag,) = re.findall(r"apache/airflow:([\d.]+)-", dockerfile)
        given = shlex.split(step.replace("\\\n", " ").replace("${AIRFLOW_VERSION}", tag))
        wanted = [re.sub(r"^/tmp/.*\.whl", str(installed.wheel), each) for each in given if not each.startswith("--")]
        constraint = ("--constraint", REPOSITORY / "constraints" / "dev.txt")
        installed.run(installed.uv, "pip", "install", "--python", installed.bin / "python", *constraint, *wanted)
        installed.run(installed.bin / "python", "-c", "import pyspark, psycopg, pgpq, airflow_kafka_offsets")
