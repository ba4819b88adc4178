"""Prints the size of the package: lines of code and functions of each sub-package, and the longest and most branched
functions. Fails if the package is over its limits. Run by `make size`.

A line of code has a token that is neither a comment nor part of a docstring. Imports count, and so does each line of a
text that spans several.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "airflow_kafka_offsets"
LIMIT = 26_000
LIMIT_PER_FUNCTION = 12

_SHOWN = 10
_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)


class Function(NamedTuple):
    """A function or method. A function inside of it is a part of it."""

    lines: int
    branches: int
    place: str


class Size(NamedTuple):
    """The lines of code of a module, and its functions."""

    lines: int
    functions: list[Function]


def size_of(source: str, path: str) -> Size:
    """Return the size of the module with this source text."""
    tree = ast.parse(source)
    code = _code_lines(source, tree)
    return Size(len(code), [_measured(node, code, path) for node in _functions(tree)])


def report(packages: dict[str, list[Size]]) -> Iterator[str]:
    """Return the lines of the report.

    :param packages: the sizes of the modules of each sub-package
    """
    yield f"{'':16} {'lines':>7} {'functions':>10} {'lines/function':>15}"
    total = _sum(size for modules in packages.values() for size in modules)
    sums = sorted(((name, _sum(modules)) for name, modules in packages.items()), key=lambda row: -row[1].lines)
    for name, size in [*sums, ("total", total), ("limit", Size(LIMIT, []))]:
        each = size.lines / len(size.functions) if size.functions else LIMIT_PER_FUNCTION
        yield f"{name:16} {size.lines:7,} {len(size.functions) or '':10} {each:15.1f}"
    for title, key in (("longest", lambda row: row.lines), ("most branched", lambda row: row.branches)):
        yield f"\n{title} functions\n{'lines':>7} {'branches':>10}"
        for row in sorted(total.functions, key=key, reverse=True)[:_SHOWN]:
            yield f"{row.lines:7} {row.branches:10}  {row.place}"


def over_limits(packages: dict[str, list[Size]]) -> bool:
    """Return whether the package has more lines of code, or longer functions on average, than it may have."""
    total = _sum(size for modules in packages.values() for size in modules)
    return total.lines > LIMIT or total.lines >= LIMIT_PER_FUNCTION * len(total.functions)


def _sum(sizes: Iterable[Size]) -> Size:
    modules = list(sizes)
    return Size(sum(size.lines for size in modules), [function for size in modules for function in size.functions])


def _code_lines(source: str, tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(_lines(node.body[0]))
    return lines


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            yield from _functions(node)


def _measured(node: ast.FunctionDef | ast.AsyncFunctionDef, code: set[int], path: str) -> Function:
    branches = sum(
        len(inner.values) - 1 if isinstance(inner, ast.BoolOp) else isinstance(inner, _BRANCHES)
        for inner in ast.walk(node)
    )
    return Function(len(code.intersection(_lines(node))), branches, f"{path}:{node.lineno} {node.name}")


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def main() -> int:
    """Print the report; return 1 if the package is over its limits."""
    packages: defaultdict[str, list[Size]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE)
        name = own.parts[0] if len(own.parts) > 1 else "(top)"
        packages[name].append(size_of(path.read_text(encoding="utf-8"), str(own)))
    print("\n".join(report(packages)))
    return int(over_limits(packages))


if __name__ == "__main__":
    sys.exit(main())
