// Live line chart of a lease: the last five minutes, unknown seconds drawn as gaps.
//
// History rows and frames are [unix seconds, util or null, memory in MiB or null].

import { gettext, memory, number, timeOfDay } from "./i18n.js";
import { colour, wash } from "./palette.js";

const SUMMARY_EVERY_MS = 10000;
let library = null;

function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = new URL("../vendor/uplot/uPlot.min.css", import.meta.url).href;
    const script = document.createElement("script");
    script.src = new URL("../vendor/uplot/uPlot.iife.min.js", import.meta.url).href;
    script.addEventListener("load", () => resolve(window.uPlot));
    script.addEventListener("error", reject);
    document.head.append(sheet, script);
  });
  return library;
}

/** The samples of the last `windowS` seconds; a missing second becomes an explicit unknown. */
export class Ring {
  constructor(windowS) {
    this.windowS = windowS;
    this.rows = [];
  }

  replace(rows) {
    this.rows = [];
    rows.forEach((row) => this.push(row));
  }

  push([at, util, mib]) {
    const second = Math.floor(at);
    const last = this.rows.at(-1)?.[0] ?? second - 1;
    if (second < last) return;
    if (second === last) this.rows.pop();
    else if (second - last > 2) this.rows.push([last + 1, null, null]);
    this.rows.push([second, util ?? null, mib ?? null]);
    while (this.rows.length && this.rows[0][0] < second - this.windowS) this.rows.shift();
  }

  columns(index) {
    return [this.rows.map((r) => r[0]), ...index.map((i) => this.rows.map((r) => r[i]))];
  }
}

const KINDS = {
  util: { column: 1, scale: "y", token: "--accent", label: () => gettext("Utilisation"), text: (v) => `${number(v)} %` },
  memory: { column: 2, scale: "mib", token: "--slice-2", label: () => gettext("Memory"), text: memory },
};

function axis(values, side, scale) {
  const ink = colour("--ink-3");
  const grid = { stroke: colour("--line"), width: 1, show: side !== 1 };
  return { scale, side, stroke: ink, font: "12px system-ui, sans-serif", size: side === 2 ? 28 : 56, grid, ticks: { show: false }, values };
}

function options(figure, kinds, box) {
  const top = Number(figure.dataset.memoryMib) || null;
  const axes = [{ ...axis((_u, ticks) => ticks.map((t) => timeOfDay(new Date(t * 1000))), 2, "x"), space: 90 }, axis((_u, ticks) => ticks.map((t) => `${t} %`), 3, "y")];
  if (kinds.includes(KINDS.memory)) axes.push(axis((_u, ticks) => ticks.map(memory), 1, "mib"));
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: true }, y: { range: [0, 100] }, mib: { range: (_u, _min, max) => [0, top ?? Math.max(1024, max * 1.2)] } },
    axes,
    series: [{}, ...kinds.map((kind) => ({
      scale: kind.scale, label: kind.label(), stroke: colour(kind.token), width: 2, spanGaps: false, points: { show: false },
      dash: kind === KINDS.memory ? [6, 4] : undefined, fill: kind === KINDS.util ? wash(kind.token, 0.12) : undefined,
    }))],
  };
}

function describe(rows, kinds, unknown) {
  return kinds.map((kind) => {
    const known = rows.map((r) => r[kind.column]).filter((v) => v !== null);
    if (!known.length) return `${kind.label()}: ${unknown}`;
    const mean = known.reduce((a, b) => a + b, 0) / known.length;
    return gettext("{what}: now {now}, mean {mean}, highest {top}", {
      what: kind.label(), now: rows.at(-1)[kind.column] === null ? unknown : kind.text(rows.at(-1)[kind.column]),
      mean: kind.text(mean), top: kind.text(Math.max(...known)),
    });
  }).join(" · ");
}

/** Turn one `[data-chart]` figure into a live chart. */
export function mount(figure, signal) {
  const box = figure.querySelector(".chart-plot");
  const now = figure.querySelector("[data-chart-now]");
  const summary = figure.querySelector("[data-chart-summary]");
  const unknown = figure.dataset.textUnknown;
  const kinds = figure.dataset.series.split(",").map((name) => KINDS[name.trim()]).filter(Boolean);
  const ring = new Ring(Number(figure.dataset.windowS) || 300);
  let plot = null;
  let told = 0;

  function draw() {
    const columns = ring.columns(kinds.map((k) => k.column));
    plot?.setData(columns, false);
    const end = ring.rows.at(-1)?.[0] ?? Math.floor(Date.now() / 1000);
    plot?.setScale("x", { min: end - ring.windowS, max: end });
    if (!ring.rows.length) return;
    const value = ring.rows.at(-1)[kinds[0].column];
    now.textContent = value === null ? unknown : kinds[0].text(value);
    if (Date.now() - told < SUMMARY_EVERY_MS) return;
    told = Date.now();
    summary.textContent = describe(ring.rows, kinds, unknown);
    box.setAttribute("aria-label", summary.textContent);
  }

  async function build() {
    const UPlot = await loadLibrary();
    plot?.destroy();
    box.replaceChildren();
    plot = new UPlot(options(figure, kinds, box), ring.columns(kinds.map((k) => k.column)), box);
    draw();
  }

  figure.addEventListener("live:frame", ({ detail }) => {
    if (detail.data.history) ring.replace(detail.data.history);
    if ("util" in detail.data) ring.push([Date.parse(detail.at) / 1000, detail.data.util, detail.data.memory_used_mib]);
    draw();
  }, { signal });
  document.addEventListener("theme:change", () => { if (figure.isConnected) build(); }, { signal });
  const sizes = new ResizeObserver(() => plot?.setSize({ width: box.clientWidth, height: box.clientHeight }));
  sizes.observe(box);
  signal.addEventListener("abort", () => sizes.disconnect());
  build().catch(() => { summary.textContent = gettext("The chart could not be drawn; the figures above stay live."); });
}
