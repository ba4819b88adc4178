"""The site of the documents, which `make docs` builds. The pages are plain Markdown, so that they can also be read in
the repository.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

import airflow_kafka_offsets
from airflow_kafka_offsets import (
    KafkaBatchOperator,
    KafkaLagEventTrigger,
    KafkaLagSensor,
    KafkaLagTrigger,
    LoadOptions,
    Pipeline,
)
from airflow_kafka_offsets.core.shared_docs import complete_docs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from scripts.messages import as_rst  # noqa: E402 - the folder is not installed

SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]

project = "airflow-kafka-offsets"
author = "The airflow-kafka-offsets founders"
copyright = "the airflow-kafka-offsets founders. Apache License 2.0"  # noqa: A001 - Sphinx's own name
release = version = airflow_kafka_offsets.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["benchmarks"]
# Headings have the anchors that they have in the repository.
myst_heading_anchors = 4
# Lexers do not know every dialect of the snippets.
suppress_warnings = ["misc.highlighting_failure"]

# Docstrings have Markdown's single backticks.
default_role = "literal"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": False}
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"airflow-kafka-offsets {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["copy.css"]
html_js_files = ["copy.js"]
html_theme_options = {"source_repository": SOURCE, "source_branch": "main", "source_directory": "docs/"}

_KIND = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_PAGE = re.compile(r"^\* \[(.+?)\]\(([\w/-]+)\.(?:md|rst)\)", re.MULTILINE)
_OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)(#[\w-]+)?\)")


def _navigation(index: str) -> str:
    """Return the navigation: the lists of pages in the index, which readers of the repository follow by hand."""
    trees = []
    for kind, pages in _KIND.findall(index):
        entries = "\n".join(f"{title} <{page}>" for title, page in _PAGE.findall(pages))
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {kind}\n\n{entries}\n```\n")
    return "\n" + "\n".join(trees)


def _source_read(_: Sphinx, page: str, source: list[str]) -> None:
    # What is not a page of the site is in the repository.
    source[0] = _OUTSIDE.sub(lambda link: f"]({SOURCE}/blob/main/{link[1]}{link[2] or ''})", source[0])
    if page == "index":
        source[0] += _navigation(source[0])
    if page == "commands":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\ncommands/*\n```\n"
    if page == "reference/messages":
        source[0] += as_rst()


# These are below the operators, whose module completes docstrings.
_COMPLETED = {
    KafkaBatchOperator: (Pipeline, LoadOptions),
    KafkaLagSensor: (KafkaLagTrigger, KafkaLagEventTrigger),
}


def setup(app: Sphinx) -> None:
    """Connect the functions of this file with the build."""
    for described, others in _COMPLETED.items():
        for other in others:
            complete_docs(described)(other)
    app.connect("source-read", _source_read)
