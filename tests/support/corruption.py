"""Bytes that are no longer what a producer wrote."""

from __future__ import annotations

import random


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
