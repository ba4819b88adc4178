"""Checks that a release could be made of this checkout, and writes what it would be: `make release-check`.

It builds wheel and sdist, checks what the package index would show, installs the wheel with its extras, and lists
what comes with it as a software bill of materials (CycloneDX), with the licences. `dist/` has the results.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from devstack.spark_services import SERVICE_EXTRAS

ROOT = Path(__file__).parents[1]

DIST, PLACE = ROOT / "dist", ROOT / ".build" / "release"

COPYLEFT = {
    "certifi": "MPL: only for its own files",
    "docutils": "public domain but for tools that nothing here uses",
    "pathspec": "MPL: only for its own files",
    "psycopg": "LGPL: a library of the extra postgres",
    "psycopg-binary": "LGPL: a library of the extra postgres",
    "psycopg2-binary": "LGPL: a library of Airflow's Postgres provider",
    "text-unidecode": "GPL or Artistic License: the latter, by way of Airflow",
}
"""Packages whose licence sets conditions on those who distribute them, and why that is no obstacle."""

UNSAID = {
    "antlr4-python3-runtime": "BSD-3-Clause",
    "hdfs-native": "Apache-2.0",
    "openlineage_sql": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "pysocks": "BSD-3-Clause",
}
"""The licences of packages whose metadata name none."""

_SETS_CONDITIONS = re.compile(r"GPL|General Public|MPL|Mozilla|EPL|Eclipse|CDDL|EUPL|SSPL|BUSL|Proprietary|Commercial")


def changelog_faults(changelog: str, version: str) -> list[str]:
    """Return why a changelog is not that of a version: its first section must be of it, with a date."""
    sections = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    if sections and re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", sections[0]):
        return []
    return [f"The first section of CHANGELOG.md is {sections[:1]}, not '{version} - YEAR-MONTH-DAY'"]


def version_faults(documents: Iterable[tuple[str, str]], version: str) -> list[str]:
    """Return the places of documents that install another version.

    :param documents: names and texts
    """
    return [
        f"{name} names version {other} of the package"
        for name, text in documents
        for other in re.findall(r"airflow[-_]kafka[-_]offsets(?:\[[^\]]*\])?(?:==|-)(\d+\.\d+\.\d+)", text)
        if other != version
    ]


def licence_faults(components: Iterable[dict[str, Any]]) -> list[str]:
    """Return the packages whose licence is not known, or sets conditions that nobody has looked at.

    :param components: of a CycloneDX bill of materials
    """
    faults = []
    for component in components:
        name, licences = component["name"], component.get("licenses", [])
        texts = [
            each.get("expression") or each["license"].get("id") or each["license"].get("name") for each in licences
        ]
        key = name.lower()
        if not texts and key not in UNSAID:
            faults.append(f"{name}: no licence")
        if key not in COPYLEFT and any(_SETS_CONDITIONS.search(text) for text in texts):
            faults.append(f"{name}: {', '.join(texts)}")
    return faults


def run(*command: str | Path) -> str:
    """Run a command in the root of the checkout, and return what it prints."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(name: str, *requirements: str | Path, python: str = sys.executable) -> Path:
    """Make an environment, and return the directory of its programs."""
    run("uv", "venv", "--clear", "--python", python, PLACE / name)
    programs = PLACE / name / "bin"
    run("uv", "pip", "install", "--python", programs / "python", *requirements)
    return programs


def main() -> int:
    """Make the files of a release, say what is wrong, and return 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unreleased", action="store_true", help='accept a changelog that says "Unreleased"')
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shutil.rmtree(DIST, ignore_errors=True)

    print("building wheel and sdist")
    build = ROOT / "constraints" / "build.txt"
    run("uv", "build", "--build-constraint", build, "--require-build-hashes", "--out-dir", DIST)
    files = sorted(path for path in DIST.iterdir() if path.suffix in (".whl", ".gz"))
    (wheel,) = (path for path in files if path.suffix == ".whl")
    version = wheel.name.split("-")[1]

    print("checking what the package index would show")
    tools = environment("tools", "--require-hashes", "-r", ROOT / "constraints" / "release.txt")
    run(tools / "twine", "check", "--strict", *files)

    # Those of services bring hundreds of packages, in versions that fit constraints/services.txt.
    extras = ",".join(name for name in project["optional-dependencies"] if name not in SERVICE_EXTRAS)
    pythons = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    faults = []
    for python in reversed(pythons):
        print(f"installing the wheel with its extras for Python {python}, as constraints/dev.txt pins them")
        installed = environment(
            *(f"python{python}", "--constraint", ROOT / "constraints" / "dev.txt", "--build-constraint", build),
            f"airflow-kafka-offsets[{extras}] @ {wheel.as_uri()}",
            python=python,
        )
        run("uv", "pip", "check", "--python", installed / "python")
        if (said := run(installed / "kafka-offsets", "--version").strip()) != f"kafka-offsets {version}":
            faults.append(f"The program of the wheel of {version} says {said!r}")

    print("listing what comes with it")
    bill = DIST / f"airflow_kafka_offsets-{version}.cdx.json"
    run(
        tools / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "-o", bill, installed / "python"
    )
    components = json.loads(bill.read_text(encoding="utf-8"))["components"]

    documents = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in ROOT.glob("docs/**/*.md")]
    documents += [(name, (ROOT / name).read_text(encoding="utf-8")) for name in ("README.md", "CONTRIBUTING.md")]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    faults += [
        *([] if args.unreleased and "## Unreleased" in changelog else changelog_faults(changelog, version)),
        *version_faults(documents, version),
        *licence_faults(components),
    ]
    for fault in faults:
        print(f"  {fault}")
    print(f"{wheel.name}: {len(components)} packages, {len(faults) or 'no'} fault{'s' * (len(faults) != 1)}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
