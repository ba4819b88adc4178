"""Run cells, record what held, and write the table of docs/compatibility.md.

make compat                                   all cells
make compat CELLS="oldest postgres-14"        these
make compat CELLS="oldest --check"            without a record
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compat.cells import CELLS
from compat.environments import python_of, spark_home
from devstack.paths import REPOSITORY

RESULTS = Path(__file__).resolve().parent / "results.json"
PAGE = REPOSITORY / "docs" / "compatibility.md"
BEGIN, END = "<!-- cells -->", "<!-- end of cells -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compat", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--table", action="store_true", help="only write the table from the recorded results")
    parser.add_argument("--check", action="store_true", help="record nothing, and leave the table as it is")
    arguments = parser.parse_args()
    if unknown := [asked for asked in arguments.cells if not _named(asked)]:
        parser.error(f"there is no cell {', '.join(unknown)}; there are {', '.join(CELLS)}")
    names = dict.fromkeys(name for asked in arguments.cells for name in _named(asked)) or CELLS
    failed = [] if arguments.table else [name for name in names if not _run(name, record=not arguments.check)]
    if not arguments.check:
        PAGE.write_text(with_table(PAGE.read_text(), recorded()))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _named(asked: str) -> list[str]:
    """Return the cell of a name, or those with a server."""
    return [asked] if asked in CELLS else [name for name, cell in CELLS.items() if asked in cell.servers]


def recorded() -> dict[str, Any]:
    """Return the recorded results by cell."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def _run(name: str, *, record: bool) -> bool:
    cell = CELLS[name]
    print(f"{name}: {cell}", flush=True)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        try:
            python = str(python_of(name, cell.environment)) if cell.environment else sys.executable
            env = dict(os.environ)
            if cell.spark_home is not None:
                home = spark_home(cell.spark_home)
                # The worker's own PySpark has to be that of Spark, which reads what it pickles.
                env |= {"SPARK_HOME": str(home), "PYTHONPATH": str(home.parent)}
        except RuntimeError as error:
            print(f"  NO   {error}", flush=True)
            return False
        command = [python, "-m", "compat.program", *cell.servers, "--spark", cell.spark, "--result", file.name]
        status = subprocess.run(command, cwd=REPOSITORY, env=env).returncode
        result = json.loads(Path(file.name).read_text() or "{}")
    if not result:
        return False
    print(f"  {result['seconds']} s, {result['cpu']} s of processor, {result['versions']}", flush=True)
    if record:
        held = recorded() | {name: {"on": f"{datetime.now(UTC):%Y-%m-%d}"} | result}
        RESULTS.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
    return status == 0


def with_table(page: str, results: dict[str, Any]) -> str:
    """Return the page with the table of the cells between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = ["| cell | Python | Airflow | Spark | SQLAlchemy | Kafka | database | holds |", "|" + "---|" * 8]
    for name in CELLS:
        if (result := results.get(name)) is not None:
            versions = result["versions"]
            what = ("python", "apache-airflow", "pyspark", "sqlalchemy", "kafka", "database")
            holds = "yes" if not result["wrong"] else f"no: {result['wrong'].split(':')[0]}"
            rows.append(f"| {name} | {' | '.join(versions[each] for each in what)} | {holds} |")
    return f"{before}{BEGIN}\n" + "\n".join(rows) + f"\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
