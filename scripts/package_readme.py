"""The README as the package index gets it: links lead to the repository, because the index has no other file."""

from __future__ import annotations

import re

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")


def with_absolute_links(text: str, source: str) -> str:
    """Return a document of the top folder with absolute links.

    :param source: the URL of the repository
    """

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({source}/{kind}/main/{link[3]})"

    return _LINK.sub(absolute, text)
