"""What the plots draw: their script in Node, with stand-ins for the page and for the library that draws."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from airflow_kafka_offsets.plugin.rendering import static_file

# 2026-11-26 23:59:40 in Berlin, an hour ahead of UTC
EVENING = 1_795_733_980

PAGE = """
const plots = [], box = { dataset: { zone: ZONE }, clientWidth: 390, replaceChildren() {}, append() {} };
const element = () => ({ hidden: false, setAttribute() {}, clientWidth: 380,
  append(child) { this.firstChild = child; } });
global.document = { getElementById: (id) => (id === "plots" ? box : element()), createElement: element,
  addEventListener() {}, documentElement: {} };
global.getComputedStyle = () => ({ getPropertyValue: (name) => name });
global.ResizeObserver = class { observe() {} };
global.fetch = async () => ({ ok: true, text: async () => JSON.stringify(HISTORY) });
global.uPlot = class { constructor(options, data, figure) { plots.push({ options, data, figure }); } };
SCRIPT
const drawn = ({ options }) => {
  const words = [];
  const ctx = { save() {}, restore() {}, setLineDash() {}, beginPath() {}, moveTo() {}, lineTo() {}, stroke() {},
    measureText: (text) => ({ width: text.length * 6 }), fillText: (...at) => words.push(at) };
  options.plugins[0].hooks.draw({ ctx, bbox: { left: 0, top: 0, width: 300, height: 100 }, valToPos: (at) => at });
  return words;
};
global.devicePixelRatio = 1;
setTimeout(() => console.log(JSON.stringify(plots.map(({ options, data, figure }) => ({
  title: figure.firstChild.textContent,
  series: options.series.slice(1).map(({ label, stroke, dash }) => [label, stroke, dash ?? null]),
  batch: options.series[0].value(null, data[0][0], 0, 0),
  times: STEPS.map((step) => options.axes[0].values(null, [EVENING, EVENING + 20], 0, 0, step)),
  words: drawn({ options }),
  values: options.axes[1].values(null, [0, 0.25, 40, 60, 90, 7200]),
})))), 0);
"""


def plots(zone: str = "UTC", marks: Sequence[tuple[int, str]] = (), **point: Any) -> dict[str, Any]:
    """Return what is drawn of two batches, by title."""
    known = {"batch": 7, "records": 5, "rows": 5, "dead_letters": 0, "stage": 1.5, "commit": 0.5, "delay": 3.0, **point}
    points = [{"at": at, **known} for at in (EVENING, EVENING + 20)]
    script = PAGE.replace("ZONE", json.dumps(zone)).replace("STEPS", "[10, 60, 86400]")
    script = script.replace(
        "HISTORY",
        json.dumps({"points": points, "marks": [{"at": at, "kind": "gap", "text": text} for at, text in marks]}),
    ).replace("EVENING", str(EVENING))
    script = script.replace("SCRIPT", static_file("plots.js").decode())
    node = shutil.which("node")
    assert node is not None, "apt-get install npm"
    done = subprocess.run([node, "-"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return {plot["title"]: plot for plot in json.loads(done.stdout)}


def test_batches_within_a_minute_have_seconds_on_the_axis_in_airflows_time_zone() -> None:
    utc, berlin = plots("UTC"), plots("Europe/Berlin")

    found = utc["Duration of stage and commit"]
    assert found["times"] == [["22:59:40", "23:00:00"], ["22:59", "23:00"], ["Nov 26", "Nov 26"]]
    assert found["batch"] == "7, 2026-11-26 22:59:40"
    assert found["values"] == ["0s", "250ms", "40s", "1m", "1m 30s", "2h"]
    assert berlin["Duration of stage and commit"]["times"][0] == ["23:59:40", "Nov 27"]


def test_records_and_rows_are_told_apart_where_they_are_the_same() -> None:
    records, rows, _ = plots()["Rows and records of each batch"]["series"]

    assert (records[0], rows[0]) == ("records", "rows")
    assert records[1] != rows[1]
    assert (records[2], rows[2]) == (None, [7, 5])


def test_the_words_of_marks_do_not_cover_each_other_and_stay_in_the_plot() -> None:
    marks = [(100, "gap: 12 offsets"), (180, "rewind 14"), (185, "rewind 15"), (290, "rewind 16")]

    found = plots(marks=marks)["Duration of stage and commit"]

    # There is no room for the third on either line; the last is to the left of its mark, with an arrow to it.
    assert found["words"] == [["gap: 12 offsets", 104, 11], ["rewind 14", 184, 24], ["rewind 16 →", 220, 11]]


def test_what_is_not_known_has_no_empty_legend() -> None:
    found = plots(stage=None, commit=None, delay=None, dead_letters=None)

    assert [*found] == ["Rows and records of each batch"]
    assert [label for label, *_ in found["Rows and records of each batch"]["series"]] == ["records", "rows"]
