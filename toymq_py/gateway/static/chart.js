// Lines of the last minutes or of an hour, drawn by hand as SVG.

import { el, say, svg } from "./dom.js";
import { duration, rate } from "./format.js";
import { SAMPLES } from "./store.js";

const HEIGHT = 100;
// A line has a width: it must not be cut at its edges.
const CEILING = 3;
const FLOOR = 98;
/** So many unknown seconds are bridged: between what the broker kept and what the page has seen lie up to ten. */
const BRIDGED = 12;

/** Draw a series between 0 and `top` as lines and the areas below them; what is unknown for longer than `bridged` is a gap. */
function trace(values, top, line, area, bridged = BRIDGED) {
  const parts = [];
  let last = -Infinity;
  for (let i = 0; i < values.length; i += 1) {
    if (Number.isNaN(values[i])) continue;
    if (i - last > bridged + 1) parts.push([]);
    parts.at(-1).push(`${i} ${(FLOOR - (values[i] / top) * (FLOOR - CEILING)).toFixed(1)}`);
    last = i;
  }
  const lines = parts.filter((points) => points.length > 1); // one sample is no line
  line.setAttribute("d", lines.map((points) => `M${points.join("L")}`).join(""));
  area.setAttribute("d", lines.map((points) => `M${points.join("L")}V${HEIGHT}H${points[0].split(" ")[0]}Z`).join(""));
}

function ago(seconds) {
  return seconds ? `${seconds < 120 ? `${seconds} s` : duration(seconds)} ago` : "now";
}

function frame(kind, samples) {
  return svg("svg", {
    class: kind, viewBox: `0 0 ${samples - 1} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false",
  });
}

/** A small line without scale: the number beside it says the rest. */
export class Sparkline {
  constructor(tone = "in") {
    this.line = svg("path", { class: `line ${tone}` });
    this.area = svg("path", { class: `area ${tone}` });
    this.element = frame("spark", SAMPLES);
    this.element.append(this.area, this.line);
  }

  draw(series) {
    trace(series.values, Math.max(1, series.top), this.line, this.area);
  }
}

/** Lines with a scale, and the numbers of a moment: under the pointer, or chosen by the arrow keys. */
export class Chart {
  /**
   * @param names pairs of a label and a tone, a pair for each line
   * @param {string} label what the chart shows, for screen readers
   * @param format of a number, `unit` behind it
   * @param {number} stepS seconds between two samples
   */
  constructor(names, { label = "Rates", samples = SAMPLES, stepS = 1, format = rate, unit = "/s", bridged = BRIDGED } = {}) {
    Object.assign(this, { names, label, samples, stepS, format, unit, bridged, at: null });
    this.lines = names.map(([, tone]) => svg("path", { class: `line ${tone}` }));
    this.areas = names.map(([, tone]) => svg("path", { class: `area ${tone}` }));
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg = frame("chart", samples);
    for (const y of [CEILING, (CEILING + FLOOR) / 2, FLOOR]) this.svg.append(svg("line", { class: "grid", x1: 0, x2: samples - 1, y1: y, y2: y }));
    this.svg.append(...this.areas, ...this.lines, this.cursor);
    this.top = el("span.scale.top");
    this.middle = el("span.scale.middle");
    this.legend = names.map(([name, tone]) => {
      const value = el("b.number");
      return { value, element: el("span.legend", {}, el(`i.swatch.${tone}`), `${name} `, value, unit && ` ${unit}`) };
    });
    this.when = el("span.number");
    this.plot = el(
      "div.plot", {
        tabindex: 0, role: "slider", "aria-label": `${label}, at a time`, "aria-valuemin": 0, "aria-valuemax": samples - 1,
        pointermove: (event) => this.#point(event), pointerleave: () => this.#look(null), blur: () => this.#look(null), keydown: (event) => this.#key(event),
      }, this.svg, this.top, this.middle,
    );
    this.element = el(
      "figure.chartbox", {},
      el("figcaption", {}, this.legend.map((item) => item.element)), this.plot,
      el("div.axis.muted", {}, el("span", {}, ago(samples * stepS)), this.when, el("span", {}, "now")),
    );
  }

  #ago(at) {
    return ago((this.samples - 1 - at) * this.stepS);
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    this.#look(Math.max(0, Math.min(this.samples - 1, Math.round(((event.clientX - box.left) / box.width) * (this.samples - 1)))));
  }

  #key(event) {
    const last = this.samples - 1;
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.#look(Math.max(0, Math.min(last, (this.at ?? last) + step)));
  }

  #look(at) {
    this.at = at;
    if (at !== null) {
      this.cursor.setAttribute("x1", at);
      this.cursor.setAttribute("x2", at);
    }
    this.cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (this.series) this.#label();
  }

  #label() {
    const texts = this.series.map((series) => {
      const value = this.at === null ? series.now : series.values[this.at];
      return Number.isNaN(value) ? "–" : this.format(value);
    });
    texts.forEach((text, i) => say(this.legend[i].value, text));
    say(this.when, this.at === null ? "" : this.#ago(this.at));
    const at = this.at ?? this.samples - 1;
    this.plot.setAttribute("aria-valuenow", at);
    this.plot.setAttribute("aria-valuetext", `${this.#ago(at)}: ${this.names.map(([name], i) => `${name} ${texts[i]} ${this.unit}`.trim()).join(", ")}`);
  }

  draw(...series) {
    this.series = series;
    const top = roundUp(Math.max(...series.map((one) => one.top)));
    series.forEach((one, i) => trace(one.values, top, this.lines[i], this.areas[i], this.bridged));
    say(this.top, this.format(top));
    say(this.middle, this.format(top / 2));
    this.#label();
  }
}

/** The next 1, 2, 5, 10, …: a scale that does not jump with each sample. */
function roundUp(value) {
  let step = 1;
  while (step < 1e12) {
    for (const factor of [1, 2, 5]) if (value <= step * factor) return step * factor;
    step *= 10;
  }
  return value;
}
