"""The examples of docs/transforms.md are parts of the example DAGs, which other tests run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TEXT = (ROOT / "docs" / "transforms.md").read_text(encoding="utf-8")

SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def statements(text: str) -> list[str]:
    return [ast.dump(statement) for statement in ast.walk(ast.parse(text)) if isinstance(statement, ast.stmt)]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.splitlines()[0])
def test_documented_transform_is_part_of_an_example(snippet: str) -> None:
    examples = (statements(path.read_text(encoding="utf-8")) for path in (ROOT / "example_dags").glob("*.py"))
    assert any(set(statements(snippet)) <= set(example) for example in examples)


def test_each_way_has_one() -> None:
    for word in ("transform=Sql(", "transform=ArrowTransform(", 'transform="order_transforms.', "@task.kafka_batch("):
        assert sum(word in snippet for snippet in SNIPPETS) == 1
