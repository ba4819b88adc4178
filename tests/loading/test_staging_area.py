"""The directories of attempts: where they are, and which are removed."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from airflow_kafka_offsets.core.attempts import attempt_name
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.loading.staging_area import create_directory, remove_attempt, staging_root
from airflow_kafka_offsets.staging.manifest import MANIFEST
from tests.support.staged import RANGE, batch


class TestWhatIsDeleted:
    @pytest.mark.parametrize("spelled", ["{}", "{}/", "file://{}"])
    def test_the_directory_of_an_attempt(self, tmp_path: Path, spelled: str) -> None:
        staging_dir = spelled.format(tmp_path)
        directory = create_directory(attempt_name("", batch(RANGE).batch_id), staging_dir)
        directory.write_text(MANIFEST, "{}")
        remove_attempt(1, directory.uri, staging_dir)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "named",
        [
            "{root}",
            "{root}/",
            "{root}/..",
            "{root}/precious",
            "{root}/batch-1-0f",
            "{root}/batch-2-" + "0f" * 16,
            "{root}/precious/batch-1-" + "0f" * 16,
            "{root}/../other/batch-1-" + "0f" * 16,
            "{other}/batch-1-" + "0f" * 16,
            "{root}/batch-1-" + "aa" * 16,
            "{root}/batch-1-" + "0f" * 16 + "/",
            "{root}/batch-1-" + "0f" * 16 + "\n",
            "s3://bucket/batch-1-" + "0f" * 16,
            "nosuch://bucket/batch-1-" + "0f" * 16,
        ],
    )
    def test_other_paths_are_not_deleted(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str) -> None:
        root, other = tmp_path / "root", tmp_path / "other"
        for parent in (root, root / "precious", other):
            for name in ("batch-1-" + "0f" * 16, "batch-2-" + "0f" * 16, "batch-1-0f"):
                (parent / name).mkdir(parents=True)
        (root / ("batch-1-" + "aa" * 16)).symlink_to(root / ("batch-2-" + "0f" * 16))
        before = sorted(tmp_path.rglob("*"))
        uri = named.format(root=root, other=other)
        remove_attempt(1, uri, str(root))
        assert sorted(tmp_path.rglob("*")) == before
        (message,) = caplog.messages
        assert f"The staging directory {printable(uri)} of batch 1 is not removed" in message


class TestTheDirectoryOfAUser:
    @pytest.fixture(autouse=True)
    def of_this_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def test_a_user_without_a_name_has_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unnamed(uid: int) -> NoReturn:
            raise KeyError(f"getpwuid(): uid not found: {uid}")

        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", unnamed)
        root = Path(staging_root(None).path)
        assert root.parent == tmp_path
        assert stat.S_IMODE(root.stat().st_mode) == 0o700

    def test_one_that_others_may_write_to_is_refused(self) -> None:
        Path(staging_root(None).path).chmod(0o777)
        with pytest.raises(ConfigurationError, match="belongs to another user, or others may write to it"):
            staging_root(None)


def test_test_session_has_a_staging_directory_to_itself() -> None:
    # A child process has the variable; without it all sessions of a user share one, and each load looks at what they
    # left.
    assert staging_root(None).path.startswith(os.environ["TMPDIR"])
    assert os.environ["TMPDIR"] != os.environ["PYTEST_DEBUG_TEMPROOT"]
