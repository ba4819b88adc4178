"""List the messages of the errors of the package, as the site shows them: by class, from the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "airflow_kafka_offsets"

_SHORTEST = 25


def messages() -> dict[str, list[str]]:
    """Return the messages of each class of errors, with an ellipsis for what depends on the load."""
    classes = [node for node in _tree(PACKAGE / "exceptions.py").body if isinstance(node, ast.ClassDef)]
    known = {node.name for node in classes}
    found: dict[str, set[str]] = defaultdict(set)
    for node in classes:
        # Those that have their words by themselves.
        returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
        found[node.name] = {text for each in returned if (text := _text(each))}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and node.args and (name := _name(node.func)) in known:
                found[name] |= {text} if (text := _text(node.args[0])) else set()
    return {name: sorted(texts) for name, texts in sorted(found.items()) if texts}


def as_rst() -> str:
    """Return the messages as sections of a page."""
    lines = []
    for name, texts in messages().items():
        lines += ["", name, "-" * len(name), "", *(f"* ``{text.replace('`', chr(39))}``" for text in texts)]
    return "\n".join([*lines, ""])


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


def _text(node: ast.expr) -> str:
    """Return a message; empty where it has next to no words of its own."""
    text = re.sub(r"\s+", " ", "".join(_texts(node))).strip()
    return text if len(text.replace("…", "")) >= _SHORTEST else ""


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield str(part.value) if isinstance(part, ast.Constant) else "…"
    elif isinstance(node, ast.BinOp):
        yield from _texts(node.left)
        yield from _texts(node.right)
    else:
        yield "…"
