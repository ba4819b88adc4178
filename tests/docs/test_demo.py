"""`make demo`, as a newcomer runs it. It takes a minute; `make soak` runs it, and the other examples run every day."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.server, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_proves_what_it_claims() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-8000:]
    claims = [line for line in run.stdout.splitlines() if line.startswith(("yes", "NO"))]
    assert claims == [
        "yes  The second run added 50,000 rows, exactly the 50,000 new events",
        "yes  The table still has 250,000 rows, and Spark was not started",
        "yes  Offsets 0 up to the position are in the table, each exactly once",
    ]
