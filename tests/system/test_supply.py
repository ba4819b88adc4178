"""What the set-up installs is what was recorded: of every package and jar, the digest."""

import re
from pathlib import Path

import pytest

from devstack.kafka_jars import KAFKA_JARS
from devstack.paths import REPOSITORY

CONSTRAINTS = REPOSITORY / "constraints"


@pytest.mark.parametrize("name", ["dev.txt", "lowest.txt", "build.txt", "uv.txt", "spark-4.1.txt"])
def test_every_package_that_is_installed_has_a_version_and_a_digest(name: str) -> None:
    lines = re.sub(r"\\\n\s*", "", (CONSTRAINTS / name).read_text()).splitlines()
    requirements = [line for line in lines if not line.startswith("#")]
    assert requirements
    assert [line for line in requirements if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_the_set_up_requires_the_digests() -> None:
    script = (REPOSITORY / "scripts" / "bootstrap.sh").read_text().replace("\\\n", " ")
    installs = [line for line in script.splitlines() if "pip install" in line]
    assert len(installs) == 3
    # This package itself is the third, with nothing that it depends on but what builds it.
    (own,) = [line for line in installs if "--require-hashes" not in line]
    assert "--no-deps" in own
    assert "--build-constraints constraints/build.txt -e ." in own


class TestJars:
    @pytest.fixture
    def fetched(self, tmp_path: Path) -> Path:
        for jar in KAFKA_JARS.fetched().glob("*.jar"):
            (tmp_path / jar.name).symlink_to(jar)
        return tmp_path

    def test_recorded_jars_pass(self, fetched: Path) -> None:
        KAFKA_JARS.check(fetched)

    def test_one_that_was_changed_is_refused(self, fetched: Path) -> None:
        jar = next(fetched.glob("kafka-clients-*.jar"))
        content = jar.read_bytes()
        jar.unlink()
        jar.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(RuntimeError, match=rf"^{re.escape(jar.name)}: not as recorded in constraints/"):
            KAFKA_JARS.check(fetched)

    def test_one_more_or_one_less_is_refused(self, fetched: Path) -> None:
        next(fetched.glob("zstd-jni-*.jar")).unlink()
        (fetched / "another.jar").write_bytes(b"")
        with pytest.raises(RuntimeError, match=r"^another\.jar, zstd-jni-[\d.-]+\.jar: not as recorded"):
            KAFKA_JARS.check(fetched)
