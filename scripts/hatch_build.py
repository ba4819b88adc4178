"""What hatchling asks when it builds the package: the README of its metadata."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Sets `readme`, see `package_readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        # The folder is not on the path of the process that builds.
        with_absolute_links = runpy.run_path(str(root / "scripts" / "package_readme.py"))["with_absolute_links"]
        text = with_absolute_links((root / "README.md").read_text(encoding="utf-8"), metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
