"""The names of attempts to stage a batch: their directories in the staging directory, and in the storage of a table."""

from __future__ import annotations

import hashlib
from secrets import token_hex


def attempt_name(installation: str, batch_id: int) -> str:
    """Return a new name, which cannot be guessed.

    :param installation: the unique name of the state tables
    """
    random = token_hex(8)
    return f"batch-{batch_id}-{random}{_seal(installation, batch_id, random)}"


def is_attempt(name: str, installation: str, batch_id: int) -> bool:
    """Return whether a name is one that these state tables gave to an attempt of a batch.

    A storage may have directories of other state tables, whose batches have the same numbers.
    """
    prefix, random, seal = name[:-32], name[-32:-16], name[-16:]
    return (prefix, seal) == (f"batch-{batch_id}-", _seal(installation, batch_id, random))


def _seal(installation: str, batch_id: int, random: str) -> str:
    return hashlib.sha256(f"{installation} {batch_id} {random}".encode()).hexdigest()[:16]
