"""Measurements as a bar chart in SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.measured import ARROW, PACKAGE, SMALL, SQL, START, TRANSFORM, Measured

_WIDTH, _LABELS, _BARS = 960, 250, 430
_ROW, _BAR, _GAP, _TOP = 24, 16, 44, 58
_INK, _PALE = "#1f2328", "#59636e"
_OURS, _OTHERS, _LIMITS = "#0b62c4", "#8c959f", "#d0d7de"


def chart(results: Sequence[Measured], subtitle: str) -> str:
    """Return a chart of rows per second, with a panel for each data set that is large enough.

    :param subtitle: the machine and the number of rounds
    """
    panels = [measured for measured in results if measured.dataset.records > SMALL]
    parts = [
        _text(16, 26, "Rows per second into Postgres", size=17, weight="600"),
        _text(16, 44, subtitle, fill=_PALE),
    ]
    y = _TOP
    for measured in panels:
        parts += _panel(measured, y)
        y += _GAP + _ROW * len(_contenders_of(measured))
    height = y + 34
    parts.append(
        _text(
            16,
            y + 18,
            f"Whole loads. The pale end of a bar: without the time of a load of {SMALL:,} records.",
            fill=_PALE,
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif">\n'
        # A white background: the text would be invisible on a dark page.
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _contenders_of(measured: Measured) -> list[str]:
    return [name for name in measured.names if name != START]


def _panel(measured: Measured, y: int) -> Iterator[str]:
    names = _contenders_of(measured)
    scale = _BARS / max(measured.rate(name, with_start=False) for name in names)
    yield _text(16, y + 24, measured.dataset.title, size=14, weight="600")
    for row, name in enumerate(names):
        top = y + 34 + row * _ROW
        whole, without = (measured.rate(name, with_start=start) for start in (True, False))
        colour = _OURS if name in (PACKAGE, SQL, ARROW, TRANSFORM) else _LIMITS if name.startswith("limit") else _OTHERS
        yield _text(_LABELS - 8, top + 13, name, anchor="end")
        yield _bar(top, without * scale, colour, opacity=0.35)
        yield _bar(top, whole * scale, colour)
        label = f"{whole:,.0f}"
        if without != whole:
            label += f" ({without:,.0f})"
        if name != PACKAGE:
            label += f"   package: {measured.ratio(PACKAGE, name):.1f}x"
        yield _text(round(_LABELS + without * scale) + 6, top + 13, label, fill=_PALE)


def _bar(top: int, width: float, colour: str, *, opacity: float = 1.0) -> str:
    return (
        f'<rect x="{_LABELS}" y="{top}" width="{max(width, 1):.1f}" height="{_BAR}" fill="{colour}" '
        f'opacity="{opacity}"/>'
    )


def _text(
    x: int, y: int, words: str, *, size: int = 12, weight: str = "400", fill: str = _INK, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
