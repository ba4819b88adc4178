"""The dashboard and the alerts: they parse, and every metric in them is one that the package emits."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from airflow_kafka_offsets.hooks.metrics import emit_commit, emit_lag, emit_poll
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.loading.context import Commit
from devstack.paths import BUILD, REPOSITORY

DASHBOARDS = REPOSITORY / "dashboards"
METRIC = re.compile(r"\bairflow_kafka_offsets_\w+")


class Recorder:
    """Airflow's metrics as the StatsD exporter of Prometheus names them, with their labels."""

    def __init__(self) -> None:
        self.labels: dict[str, set[str]] = {}

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> None:
        self._add(stat, tags)

    def incr(self, stat: str, count: int | None = None, *, tags: dict[str, Any] | None = None) -> None:
        self._add(stat, tags)

    def timing(self, stat: str, dt: timedelta, *, tags: dict[str, Any] | None = None) -> None:
        # A timer is a summary.
        self._add(f"{stat}_sum", tags)
        self._add(f"{stat}_count", tags)

    def _add(self, stat: str, tags: dict[str, Any] | None) -> None:
        self.labels[f"airflow_{stat.replace('.', '_')}"] = set(tags or {})


@pytest.fixture(scope="module")
def emitted() -> dict[str, set[str]]:
    """Every metric that the package emits, and its labels."""
    stats, second = Recorder(), timedelta(seconds=1)
    partition = PartitionLag(
        "orders",
        0,
        position=1,
        beginning=0,
        end=2,
        lag=1,
        lost=0,
        time_lag=second,
        delay=second,
        headroom=1,
        headroom_time=second,
    )
    emit_lag(stats, "loader", LagReport((partition,)))
    emit_commit(stats, Commit("loader", "load", {"orders": 1}, {"orders": 1}, 1, second))
    emit_poll(stats, "kafka_default", 1, 1.0)
    return stats.labels


def fields(value: Any, path: str = "") -> dict[str, Any]:
    """Return the values in a JSON document that have no parts, by path."""
    if not isinstance(value, (dict, list)):
        return {path: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {}
    for name, part in parts:
        found |= fields(part, f"{path}.{name}" if path else str(name))
    return found


def panels() -> list[dict[str, Any]]:
    board = json.loads((DASHBOARDS / "kafka-offsets.json").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = board["panels"]
    return found


def expressions() -> list[str]:
    rules = yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))
    of_alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return [*(target["expr"] for panel in panels() for target in panel["targets"]), *of_alerts]


def test_dashboards_have_exactly_the_emitted_metrics(emitted: dict[str, set[str]]) -> None:
    used = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert used == set(emitted)


def test_dashboards_group_by_existing_labels(emitted: dict[str, set[str]]) -> None:
    for expression in expressions():
        labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        labels |= set(re.findall(r"[{,]\s*(\w+)=~?", expression))
        for name in METRIC.findall(expression):
            assert labels <= emitted[name], expression


def test_the_documented_metrics_are_those_that_are_emitted(emitted: dict[str, set[str]]) -> None:
    text = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8").partition("\n## Web interface\n")[0]
    documented = {f"airflow_{name.replace('.', '_')}" for name in re.findall(r"`(kafka_offsets\.[\w.]+)`", text)}
    assert documented == {re.sub(r"_(sum|count)$", "", name) for name in emitted}


def test_the_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        position = panel["gridPos"]
        cells = {
            (position["x"] + column, position["y"] + row)
            for column in range(position["w"])
            for row in range(position["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(column for column, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_grafanas_own_types_know_every_field_of_the_dashboard() -> None:
    """What they do not know, such as a misspelt option, is lost when a dashboard is read into them and written
    again.
    """
    register_default_plugins()
    board = json.loads((DASHBOARDS / "kafka-offsets.json").read_text(encoding="utf-8"))
    written = fields(json.loads(JSONEncoder().encode(Dashboard.from_json(board))))

    expected = fields(board)
    # Grafana exports it, though it is no part of its types.
    del expected["templating.list.1.definition"]
    assert {name: written.get(name, "lost") for name in expected} == expected


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    rules = yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        assert {"summary", "description"} == set(rule["annotations"]), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prometheus' own tool: that of the machine, or else that of Debian's package, which is unpacked and not
    installed.
    """
    if (installed := shutil.which("promtool")) is not None:
        return installed
    own = BUILD / "promtool"
    if not own.exists():
        if shutil.which("apt-get") is None:
            pytest.skip("there is neither promtool nor apt-get")
        directory = tmp_path_factory.mktemp("debian")
        # apt's own user must be able to write there.
        directory.chmod(0o777)
        subprocess.run(["apt-get", "download", "prometheus"], cwd=directory, check=True, capture_output=True)
        (package,) = directory.glob("*.deb")
        subprocess.run(["dpkg", "-x", package, directory / "prometheus"], check=True)
        # Its other files have links to packages that are not there.
        partial = shutil.copy(directory / "prometheus" / "usr" / "bin" / "promtool", BUILD / "promtool.partial")
        Path(partial).rename(own)
    return str(own)


@pytest.mark.long
class TestPromtool:
    @pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
    def test_the_alerts_load_and_fire_when_they_should(self, promtool: str, arguments: tuple[str, ...]) -> None:
        done = subprocess.run([promtool, *arguments], cwd=DASHBOARDS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_prometheus_parses_every_expression_of_the_dashboard(self, promtool: str, tmp_path: Path) -> None:
        rules = [
            {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m").replace("$group", ".*")}
            for number, expression in enumerate(expressions())
        ]
        (tmp_path / "rules.yml").write_text(yaml.dump({"groups": [{"name": "panels", "rules": rules}]}))
        done = subprocess.run([promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
