// Lines of the last minute and a half, drawn by hand as SVG.

import { el, say, svg } from "./dom.js";
import { rate } from "./format.js";
import { SAMPLES } from "./store.js";

const HEIGHT = 100;
// A line has a width: it must not be cut at its edges.
const CEILING = 3;
const FLOOR = 98;

/** Draw a series between 0 and `top` as a line and the area below it, from the first known sample on. */
function trace(values, top, line, area) {
  let d = "";
  let first = 0;
  if (Number.isNaN(values[SAMPLES - 2])) return; // one sample is no line
  for (let i = 0; i < values.length; i += 1) {
    if (Number.isNaN(values[i])) continue;
    if (!d) first = i;
    d += `${d ? "L" : "M"}${i} ${(FLOOR - (values[i] / top) * (FLOOR - CEILING)).toFixed(1)}`;
  }
  line.setAttribute("d", d);
  area.setAttribute("d", d && `${d}V${HEIGHT}H${first}Z`);
}

function frame(kind) {
  return svg("svg", {
    class: kind, viewBox: `0 0 ${SAMPLES - 1} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false",
  });
}

/** A small line without scale: the number beside it says the rest. */
export class Sparkline {
  constructor(tone = "in") {
    this.line = svg("path", { class: `line ${tone}` });
    this.area = svg("path", { class: `area ${tone}` });
    this.element = frame("spark");
    this.element.append(this.area, this.line);
  }

  draw(series) {
    trace(series.values, Math.max(1, series.top), this.line, this.area);
  }
}

/** Two lines with a scale, and the numbers under the pointer. */
export class Chart {
  constructor(names) {
    this.names = names;
    this.lines = names.map(([, tone]) => svg("path", { class: `line ${tone}` }));
    this.areas = names.map(([, tone]) => svg("path", { class: `area ${tone}` }));
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg = frame("chart");
    for (const y of [CEILING, (CEILING + FLOOR) / 2, FLOOR]) this.svg.append(svg("line", { class: "grid", x1: 0, x2: SAMPLES - 1, y1: y, y2: y }));
    this.svg.append(...this.areas, ...this.lines, this.cursor);
    this.top = el("span.scale.top");
    this.middle = el("span.scale.middle");
    this.legend = names.map(([label, tone]) => {
      const value = el("b.number");
      return { value, element: el("span.legend", {}, el(`i.swatch.${tone}`), `${label} `, value, " /s") };
    });
    this.when = el("span.number");
    this.element = el(
      "figure.chartbox", {},
      el("figcaption", {}, this.legend.map((item) => item.element)),
      el("div.plot", { pointermove: (event) => this.#point(event), pointerleave: () => this.#point(null) }, this.svg, this.top, this.middle),
      el("div.axis.muted", {}, el("span", {}, `${SAMPLES} s ago`), this.when, el("span", {}, "now")),
    );
    this.at = null;
  }

  #point(event) {
    if (event) {
      const box = this.svg.getBoundingClientRect();
      this.at = Math.max(0, Math.min(SAMPLES - 1, Math.round(((event.clientX - box.left) / box.width) * (SAMPLES - 1))));
      this.cursor.setAttribute("x1", this.at);
      this.cursor.setAttribute("x2", this.at);
    } else {
      this.at = null;
    }
    this.cursor.setAttribute("visibility", event ? "visible" : "hidden");
    if (this.series) this.#label();
  }

  #label() {
    this.series.forEach((series, i) => say(this.legend[i].value, rate(this.at === null ? series.now : series.values[this.at] || 0)));
    say(this.when, this.at === null ? "" : `${SAMPLES - 1 - this.at} s ago`);
  }

  draw(...series) {
    this.series = series;
    const top = roundUp(Math.max(...series.map((one) => one.top)));
    series.forEach((one, i) => trace(one.values, top, this.lines[i], this.areas[i]));
    say(this.top, rate(top));
    say(this.middle, rate(top / 2));
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
