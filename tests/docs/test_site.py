"""The site: it builds without a warning, names every parameter, and asks no other server for anything."""

from __future__ import annotations

import html
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_kafka_offsets
from scripts.messages import messages
from tests.docs.test_docs import DOCUMENTS, ROOT

PUBLIC = [name for name in airflow_kafka_offsets.__all__ if name != "__version__"]
# What a browser fetches by itself.
FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]+)\"|<link\b[^>]*\bhref=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(directory)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return directory


def test_every_public_name_has_a_place_in_the_reference() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.rst"))

    assert sorted(re.findall(r"^\.\. auto(?:class|function):: (\w+)$", pages, re.MULTILINE)) == sorted(PUBLIC)


def test_the_index_names_every_document_once() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## Begin")[2]
    listed = re.findall(r"^\* \[.+?\]\(([\w/.-]+)\)", index, re.MULTILINE)
    pages = {path.name for path in DOCUMENTS if path.parent == ROOT / "docs"} - {"index.md"}

    assert sorted(listed) == sorted(pages | {f"reference/{path.name}" for path in (ROOT / "docs").rglob("*.rst")})


def test_the_messages_are_those_of_the_source() -> None:
    found = messages()

    assert {"ConfigurationError", "RecordError", "TargetError", "VerificationError"} <= found.keys()
    assert any("set on_bad_record=DeadLetters()" in text for text in found["RecordError"])
    assert "The coverage of group … is violated: ….…" in found["VerificationError"]


@pytest.mark.long  # those above are its short siblings
def test_the_site_describes_every_parameter(site: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    for name in PUBLIC:
        ((described,),) = [
            re.findall(rf'<dt [^>]*id="airflow_kafka_offsets\.{name}">(.*?)(?=<dt [^>]*id=|\Z)', pages, re.S)
        ]
        shown = {html.unescape(found) for found in re.findall(r"<strong>(\w+)</strong>", described)}
        parameters = {
            parameter.name
            for parameter in inspect.signature(getattr(airflow_kafka_offsets, name)).parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        assert parameters - shown == set(), name


@pytest.mark.long  # it takes the same build
def test_the_site_fetches_nothing_from_other_servers(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]

    fetched = {address for page in pages for pair in FETCHED.findall(page) for address in pair if address}
    assert fetched
    assert {address for address in fetched if re.match(r"(https?:)?//", address)} == set()
    assert [style for style in styles if re.search(r"url\([\"']?(https?:)?//|@import", style)] == []
