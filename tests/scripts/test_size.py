"""`make size`: what counts as code, and what as a branch."""

from __future__ import annotations

from scripts.size import Function, Size, over_limits, report, size_of

SOURCE = '''\
"""A module.

Its documentation has two paragraphs.
"""

import os  # an import is code

NAMES = """one

three"""


class Shop:
    """A class."""

    open = True

    def sell(self, orders):
        """Sell."""
        # A comment.
        def price(order):
            return order or 1

        for order in orders:
            if order and price(order):
                yield from (one for one in order)


async def close(
    shop,
):
    return shop.open if shop else None
'''


def test_size_counts_imports_and_texts_but_not_blank_lines_comments_and_docstrings() -> None:
    assert size_of(SOURCE, "shop.py") == Size(
        lines=1 + 3 + 2 + 6 + 4,
        functions=[Function(6, 5, "shop.py:18 sell"), Function(4, 1, "shop.py:29 close")],
    )


def test_the_report_has_each_sub_package_the_total_and_the_longest_functions() -> None:
    size = size_of(SOURCE, "shop.py")
    lines = [line.split() for line in report({"small": [size], "large": [size, size]})]
    assert [line for line in lines if line and line[0] in ("large", "small", "total")] == [
        ["large", "32", "4", "8.0"],
        ["small", "16", "2", "8.0"],
        ["total", "48", "6", "8.0"],
    ]
    assert ["6", "5", "shop.py:18", "sell"] in lines


def test_a_package_is_over_its_limits_with_too_many_lines_or_too_long_functions() -> None:
    short, long = Function(1, 0, "short"), Function(30, 0, "long")
    assert not over_limits({"shop": [Size(26_000, [short] * 3_000)]})
    assert over_limits({"shop": [Size(26_001, [short] * 3_000)]})
    assert over_limits({"shop": [Size(30, [long]), Size(4, [short])]})
