"""What machines of others read of this repository: hooks, workflows, templates and containers say what is so."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]

GITHUB = sorted((ROOT / ".github").rglob("*.yml"))


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def commands(target: str) -> set[str]:
    """What `make` would run for a target, without the set-up."""
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if line.startswith(".venv/bin/")}


def test_hooks_run_what_make_lint_and_make_types_run() -> None:
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {shlex.join(shlex.split(hook["entry"])) for hook in repository["hooks"]}
    expected = {
        # Of the files of the commit: the format is made, not only checked, and files that are left out stay left out.
        command.replace(" --check .", "").replace("ruff check .", "ruff check --force-exclude")
        for command in commands("lint") | commands("types")
    }
    assert hooks == expected


def test_files_for_github_are_yaml_whose_commands_exist() -> None:
    assert len(GITHUB) == 6
    for path in GITHUB:
        assert isinstance(parsed(path), dict), path
        for target in re.findall(r"make ([a-z-]+)", path.read_text(encoding="utf-8")):
            assert target in targets(), f"{path}: make {target}"


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflows_have_few_rights_a_time_limit_and_pinned_actions(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 40
        for step in job["steps"]:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step.get("uses", f"actions/none@{'0' * 40}"))


def test_the_workflow_of_changes_runs_what_decides() -> None:
    job = parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]
    assert job["steps"][-1]["run"] == ".ci/run"
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_every_machine_has_the_python_and_java_of_the_tests() -> None:
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r'(?:python|java)-version: "([^"]+)"', text) == ["3.11", "17"], path
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    assert container["image"].partition(":")[2].startswith("3.11-")
    assert [feature["version"] for feature in container["features"].values()] == ["17"]
    assert container["postCreateCommand"] == "make setup"


def test_reports_of_faults_ask_for_the_output_of_doctor() -> None:
    body = parsed(ROOT / ".github/ISSUE_TEMPLATE/bug.yml")["body"]
    required = {field["id"] for field in body if field.get("validations", {}).get("required")}
    assert required == {"happened", "doctor"}
