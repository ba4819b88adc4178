"""Damaged bytes, and damaged JSON: from a corpus that grows by what has a new outcome."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.support.json_nodes import at, changed, nodes

# Deep enough for every stack, and no larger than a record may be.
_MOST_BYTES = 400_000

_NUMBERS = (0, 1, 2, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30)

_VALUES: tuple[Any, ...] = (
    None, True, "", "x", 0, -1, 1.5, 1e308, *_NUMBERS, -(2**63), [], {}, [[]], {"": {}}, "\ud800", "\0", "\u202e",
    "9" * 5000, "x" * 20_000, "../x", "/etc/passwd", "9999-12-31T23:59:59.999999999Z",
)  # fmt: skip

_BYTES = tuple({number.to_bytes(size, "little") for number in _NUMBERS for size in (1, 4, 8) if number < 256**size})

_TEXTS = (b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b'"', b"[", b"{", b'{"a":', b"]", b"}", b"1e999", b"-",
          b"9" * 400, b"0." + b"1" * 60, b"NaN", b"\n", b"\x13", b"\x0b",
          b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")  # fmt: skip


def damaged(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return bytes that are like those of a corpus."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place = rng.randint(0, len(data))
        end = min(len(data), place + rng.choice((1, 2, 4, 16, 64, len(data))))
        how = rng.randrange(8)
        if how == 0 and data:
            data[min(place, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[place : place + rng.choice((0, 1, 4))] = rng.choice(_BYTES)
        elif how == 2:
            data[place:place] = rng.choice(_TEXTS)
        elif how == 3:
            del data[place:end]
        elif how == 4:
            data[place:place] = data[place:end]
        elif how == 5:
            other = rng.choice(corpus)
            start = rng.randint(0, len(other))
            data[place:end] = other[start : start + rng.choice((1, 8, 64, len(other)))]
        elif how == 6:
            data[place:end] = rng.randbytes(end - place)
        elif rng.random() < 0.2:
            # What nests, and what is many.
            part = bytes(data[place : place + rng.choice((1, 2, 4, 8))]) or rng.choice(_TEXTS)
            data[place:place] = part * (rng.choice((100, 3_000, 100_000)) // len(part) + 1)
    return bytes(data[:_MOST_BYTES])


def damaged_json(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return JSON that is like that of a corpus; rarely, other bytes."""
    if rng.random() < 0.15:
        return damaged(rng, corpus)
    try:
        plain = json.loads(rng.choice(corpus))
    except (ValueError, RecursionError):
        return damaged(rng, corpus)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if not (paths := list(nodes(plain))):
            break

        def value(plain: Any = plain, paths: Any = paths) -> Any:
            return rng.choice(_VALUES) if rng.random() < 0.5 else at(plain, rng.choice(paths))

        plain = changed(plain, rng.choice(paths), rng.choice(("set", "set", "remove", "twice")), value)
    return json.dumps(plain).encode()[:_MOST_BYTES]
