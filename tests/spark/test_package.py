"""The files that travel with a job."""

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import airflow_kafka_offsets
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import temporary_directory, write_application, write_package
from airflow_kafka_offsets.staging.rows import TargetColumns

ROOT = Path(airflow_kafka_offsets.__file__).parent

JOB = StageJob(
    batch_id=1,
    group_id="orders_loader",
    tasks=((Slice(0, "orders", 0, 0, 10),),),
    kafka_config={"bootstrap.servers": "broker:9092", "sasl.password": "5ecret"},
    isolation_level="read_committed",
    record_format=Json("id BIGINT"),
    columns=row_columns(Json("id INT")),
    transform=None,
    target=TargetColumns("orders", None),
    fingerprint="f00d",
    staging_uri="/nowhere",
    connections={"registry": {"url": "https://registry", "bearer.auth.token": "5ecret"}},
)


class TestApplication:
    def test_only_its_owner_can_enter_its_directory(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        write_application(tmp_path)
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700

    def test_application_stages_the_jobs_of_its_socket(self, tmp_path: Path) -> None:
        application, package = write_application(tmp_path)
        code = (
            "import runpy, sys\n"
            "from airflow_kafka_offsets.spark import driver\n"
            "driver.main = lambda arguments: print('jobs of', *arguments) or 7\n"
            "sys.argv = ['application.py', '/jobs']\n"
            f"runpy.run_path({str(application)!r}, run_name='__main__')\n"
        )
        done = run(code, package)
        assert done.returncode == 7
        assert done.stdout == "jobs of /jobs\n"

    def test_application_of_a_service_without_py_files_adds_the_package_itself(self, tmp_path: Path) -> None:
        application, package = write_application(tmp_path)
        code = (
            "import runpy, sys, types\n"
            "context = types.SimpleNamespace(addPyFile=lambda file: sys.path.insert(0, file))\n"
            "spark = types.SimpleNamespace(getOrCreate=lambda: context)\n"
            "sys.modules['pyspark'] = types.SimpleNamespace(SparkContext=spark)\n"
            f"sys.argv = ['application.py', '/mailbox', 'token', 'own.zip', {str(package)!r}]\n"
            "sys.path[:] = [path for path in sys.path if not path.endswith('.zip')]\n"
            "stub = types.SimpleNamespace(main=lambda arguments: print(*sys.path[:2], *arguments))\n"
            "sys.modules['airflow_kafka_offsets.spark.driver'] = stub\n"
            f"runpy.run_path({str(application)!r}, run_name='__main__')\n"
        )
        done = run(code, package)
        assert (done.returncode, done.stdout) == (0, f"{package} own.zip /mailbox token\n")


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def run(code: str, archive: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the package in the archive."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.defpath, "PYTHONPATH": str(archive)},
        cwd=archive.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("package") / "airflow_kafka_offsets.zip")


@pytest.fixture(scope="module")
def modules(archive: Path) -> dict[str, str | None]:
    """What a fresh interpreter holds after the Spark part of the archive: modules with their files."""
    names = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in contents(archive)
        if name.startswith("airflow_kafka_offsets/spark/") and name.endswith(".py")
    ]
    code = (
        "import importlib, json, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print(json.dumps({n: getattr(m, '__file__', None) for n, m in sys.modules.items()}))"
    )
    done = run(code, archive)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, str | None] = json.loads(done.stdout)
    assert set(names) <= set(loaded)
    return loaded


class TestPackage:
    def test_all_of_this_package_comes_from_the_archive(self, modules: dict[str, str | None], archive: Path) -> None:
        ours = {name: file for name, file in modules.items() if name.split(".")[0] == "airflow_kafka_offsets"}
        assert "airflow_kafka_offsets.spark.driver" in ours
        assert all(file and file.startswith(f"{archive}/") for file in ours.values()), ours

    @pytest.mark.parametrize("absent", ["airflow", "sqlalchemy", "sqlglot", "pyspark"])
    def test_package_imports_only_what_executors_have(self, modules: dict[str, str | None], absent: str) -> None:
        assert [name for name in modules if name.split(".")[0] == absent] == []

    def test_the_same_package_gives_the_same_bytes(
        self, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tomorrow = time.time() + 86_400
        monkeypatch.setattr(time, "time", lambda: tomorrow)
        assert write_package(tmp_path / "again.zip").read_bytes() == archive.read_bytes()

    def test_package_is_compressed(self, archive: Path) -> None:
        with zipfile.ZipFile(archive) as opened:
            sources = sum(info.file_size for info in opened.infolist())
        assert archive.stat().st_size < sources / 2

    def test_package_holds_exactly_the_modules(self, archive: Path) -> None:
        """Half of it would hide the other half from a transform that imports it."""
        assert contents(archive) == {
            str(path.relative_to(ROOT.parent)): path.read_bytes() for path in ROOT.rglob("*.py")
        }


class TestTemporaryDirectories:
    DAYS_AGO = time.time() - 2 * 86_400

    @pytest.fixture
    def left(self, tmp_path: Path) -> Path:
        """The directory of a process that was killed, in which a file is."""

        def work() -> None:
            with temporary_directory(str(tmp_path)) as directory:
                (directory / "application.py").touch()
                os.kill(os.getpid(), signal.SIGKILL)

        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
        worker.join()
        (left,) = tmp_path.iterdir()
        os.utime(left, (self.DAYS_AGO, self.DAYS_AGO))
        return left

    def created(self, tmp_path: Path) -> Path:
        with temporary_directory(str(tmp_path)) as directory:
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            return directory

    def test_that_of_a_killed_process_is_removed(self, tmp_path: Path, left: Path) -> None:
        self.created(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_that_of_a_running_process_stays(self, tmp_path: Path) -> None:
        with temporary_directory(str(tmp_path)) as running:
            os.utime(running, (self.DAYS_AGO, self.DAYS_AGO))
            assert self.created(tmp_path) != running
            assert list(tmp_path.iterdir()) == [running]
        assert list(tmp_path.iterdir()) == []

    def test_a_young_one_stays(self, tmp_path: Path, left: Path) -> None:
        os.utime(left)
        self.created(tmp_path)
        assert list(tmp_path.iterdir()) == [left]

    def test_what_a_link_leads_to_stays(self, tmp_path: Path) -> None:
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "file").touch()
        os.utime(precious, (self.DAYS_AGO, self.DAYS_AGO))
        (tmp_path / "kafka-offsets-job-link").symlink_to(precious)
        self.created(tmp_path)
        assert (precious / "file").exists()
