"""Fails if a line of a Markdown file is longer than 120 columns. Run by `make lint`.

A row of a table cannot be broken, nor can a URL at the end of a line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LIMIT = 120

_URL = re.compile(r"\S*https?://\S+$")


def is_too_long(line: str) -> bool:
    """Return whether a line is longer than it may be."""
    return len(_URL.sub("", line)) > LIMIT and not line.lstrip().startswith("|")


def main() -> int:
    """Print the places of long lines; return 1 if there are any."""
    files = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.splitlines()
    places = [
        f"{name}:{number}: {len(line)} columns"
        for name in files
        for number, line in enumerate(Path(name).read_text(encoding="utf-8").splitlines(), 1)
        if is_too_long(line)
    ]
    print("\n".join(places), end="\n" * bool(places))
    return int(bool(places))


if __name__ == "__main__":
    sys.exit(main())
