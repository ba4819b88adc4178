"use strict";
// Plots of the history of a group.
(() => {
  const box = document.getElementById("plots");
  let history = null;
  let plots = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const span = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
    for (const [place, [unit, size]] of units.slice(0, 3).entries()) {
      if (seconds < size) continue;
      const [smaller, length] = units[place + 1];
      const rest = Math.floor((seconds % size) / length);
      return `${Math.floor(seconds / size)}${unit}${rest ? ` ${rest}${smaller}` : ""}`;
    }
    return seconds > 0 && seconds < 1 ? `${Math.round(seconds * 1000)}ms` : `${+seconds.toFixed(1)}s`;
  };
  const whole = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
  const line = (label, key, stroke, write, dash) => ({ label, key, stroke, write, dash });
  const HEIGHT = 190;
  const SECONDS = [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];
  // As everywhere on the page: in Airflow's time zone, which may be that of no browser.
  const zone = box.dataset.zone || undefined;
  const instant = (at) => new Date(at * 1000).toLocaleString("sv", { timeZone: zone });
  const clock = (at, step) => {
    const time = instant(at).slice(11);
    if (step < 86400 && time !== "00:00:00") return time.slice(0, step < 60 ? 8 : 5);
    return new Date(at * 1000).toLocaleDateString("en", { day: "numeric", month: "short", timeZone: zone });
  };
  const KINDS = [
    { title: "Rows and records of each batch", axis: (v) => compact.format(v), series: [
      line("records", "records", "--plot-1", whole), line("rows", "rows", "--plot-2", whole, [7, 5]), line("dead letters", "dead_letters", "--plot-3", whole) ] },
    { title: "Duration of stage and commit", axis: span, incrs: SECONDS, series: [
      line("stage", "stage", "--plot-1", span), line("commit", "commit", "--plot-2", span) ] },
    { title: "Delay: commit minus newest record", axis: span, incrs: SECONDS, series: [line("delay", "delay", "--plot-1", span)] },
  ];

  // Gaps and rewinds as vertical lines, with what they are in words where there is room.
  const marks = () => ({
    hooks: { draw: (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.lineWidth = devicePixelRatio;
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      const right = bbox.left + bbox.width;
      const free = [bbox.left, bbox.left];  // where the words of each of two lines end
      for (const mark of history.marks) {
        const x = Math.round(plot.valToPos(mark.at, "x", true));
        if (x < bbox.left || x > right) continue;
        ctx.strokeStyle = ctx.fillStyle = color(mark.kind === "gap" ? "--critical" : "--warning");
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        const widthOf = (text) => ctx.measureText(text).width + 8 * devicePixelRatio;
        const isRight = x + widthOf(mark.text) < right;
        const text = isRight ? mark.text : `${mark.text} →`;  // to its line
        const width = widthOf(text);
        const start = isRight ? x : x - width;
        const row = free.findIndex((end) => start >= end);
        if (row < 0) continue;
        ctx.textAlign = "left";  // uPlot leaves that of its axes
        ctx.fillText(text, start + 4 * devicePixelRatio, bbox.top + (11 + 13 * row) * devicePixelRatio);
        free[row] = start + width;
      }
      ctx.restore();
    } },
  });

  const draw = () => {
    for (const plot of plots) plot.destroy();
    plots = [];
    box.replaceChildren();
    const points = history.points;
    document.getElementById("no-plots").hidden = points.length >= 2;
    if (points.length < 2) return;
    const kinds = KINDS.map(({ title, axis, incrs, series }) => {
      const known = series.filter(({ key }) => points.some((point) => point[key] !== null));
      return { title, axis, incrs, series: known };
    }).filter(({ series }) => series.length > 0);
    // The width of a figure depends on how many there are.
    const figures = kinds.map(({ title }) => {
      const figure = document.createElement("figure");
      figure.setAttribute("role", "img");
      figure.setAttribute("aria-label", `${title}; the table of batches has the numbers`);
      figure.append(document.createElement("figcaption"));
      figure.firstChild.textContent = title;
      box.append(figure);
      return figure;
    });
    // Without a pointer the legend has the last batch.
    const last = (plot) => {
      if (plot.legend.idx === null || plot.legend.idx === undefined) plot.setLegend({ idx: points.length - 1 }, false);
    };
    const line = { stroke: color("--line"), width: 1 };
    const axis = { stroke: color("--faint"), grid: line, ticks: line, font: "11px system-ui, sans-serif" };
    plots = kinds.map((kind, number) => {
      const options = {
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), zone),
        width: figures[number].clientWidth,
        height: HEIGHT,
        plugins: [marks(), { hooks: { ready: last, setLegend: last } }],
        cursor: { sync: { key: "history" }, points: { size: 7 } },
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.4 : 1] } },
        axes: [
          { ...axis, space: 60, values: (_, splits, __, ___, step) => splits.map((at) => clock(at, step)) },
          { ...axis, size: 56, incrs: kind.incrs, values: (_, values) => values.map(kind.axis) },
        ],
        series: [
          { label: "batch", value: (_, at, __, index) => (points[index] ? `${points[index].batch}, ${instant(at)}` : "–") },
          // Rows are drawn after records, dashed: where both are the same, both are seen.
          ...kind.series.map(({ label, key, stroke, write, dash }) => ({ label, stroke: color(stroke), width: 2, dash, points: { show: points.length < 60, size: 5 }, spanGaps: true, value: (_, value) => write(value) })),
        ],
      };
      const values = kind.series.map(({ key }) => points.map((point) => point[key]));
      return new uPlot(options, [points.map((point) => point.at), ...values], figures[number]);
    });
  };

  const load = async () => {
    const answer = await fetch(box.dataset.url);
    if (!answer.ok) return;
    const text = await answer.text();
    if (history !== null && text === history.text) return;
    history = { ...JSON.parse(text), text };
    draw();
  };
  document.addEventListener("theme", () => history !== null && draw());
  document.addEventListener("refreshed", load);
  let width = box.clientWidth;
  new ResizeObserver(() => {
    if (history === null || box.clientWidth === width) return;
    width = box.clientWidth;
    for (const plot of plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: HEIGHT });
  }).observe(box);
  load();
})();
