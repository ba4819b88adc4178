"""What a text may do where it is shown: nothing but be read. Records and state tables contain what others wrote."""

from __future__ import annotations

import shlex
import unicodedata

# Words of Persian and of Indian languages have joiners, and text of East Asia its own spaces.
_JOINERS = "\u200c\u200d"


def printable(text: str, keep: str = "") -> str:
    r"""Return a text whose characters are all visible: what controls a terminal or the direction of text, breaks lines,
    or is half a character is escaped, such as `\x1b`, as Python's `repr` does.

    :param keep: characters that stay as they are, such as line breaks
    """
    return text if text.isprintable() else "".join(char if _is_shown(char, keep) else _escaped(char) for char in text)


def command_line(*words: str) -> str:
    """Return a command of this package for people to copy: a shell takes each of its words as one, whatever it has."""
    return shell_words("kafka-offsets", *words)


def shell_words(*words: str) -> str:
    """Return options of a command for people to copy, as `command_line` does."""
    return printable(shlex.join(words))


def _is_shown(char: str, keep: str) -> bool:
    return char.isprintable() or char in keep or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
