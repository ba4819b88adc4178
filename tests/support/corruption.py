"""Bytes that are no longer what a producer wrote."""

from __future__ import annotations

import random

from hypothesis import strategies as st


def corrupted(datum: bytes, chance: random.Random) -> bytes:
    changed = bytearray(datum)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place, length = chance.randrange(len(changed) + 1), chance.randrange(1, 4)
        how = chance.choice(["cut", "grow", "insert", "drop", "change", "extreme"])
        if how == "cut":
            del changed[place:]
        elif how == "grow":
            changed += chance.randbytes(length)
        elif how == "insert":
            changed[place:place] = chance.randbytes(length)
        elif how == "drop":
            del changed[place : place + length]
        else:
            changed[place : place + 1] = (
                chance.randbytes(1) if how == "change" else bytes([chance.choice([0, 1, 127, 128, 255])])
            )
    return bytes(changed)


@st.composite
def mutated(draw: st.DrawFn, datum: bytes) -> bytes:
    """Bytes with one change, for tests that shrink it."""
    place, junk = draw(st.integers(0, len(datum))), draw(st.binary(min_size=1, max_size=3))
    changed = [
        datum[:place],
        datum[:place] + junk + datum[place:],
        datum[:place] + junk + datum[place + len(junk) :],
        datum[:place] + datum[place + 1 :],
    ]
    return draw(st.sampled_from(changed))
