// The hour that the broker keeps, of itself or of a topic: what goes in and out, what waits, how old it is, dead letters.

import { Chart } from "./chart.js";
import { unread } from "./dialogs.js";
import { el, fill, say } from "./dom.js";
import { count, duration } from "./format.js";
import { Series } from "./store.js";

export const HOUR_S = 3600;
const whole = (value) => (Number.isInteger(value) ? count(value) : value.toFixed(1));

const WAITING = [
  { label: "Backlog", columns: [["backlog", "Backlog", "mid"]], format: whole, unit: "" },
  { label: "Oldest unacked", columns: [["oldest_s", "Oldest unacked", "warn"]], format: duration, unit: "" },
  { label: "Dead letters", columns: [["letters", "Dead letters", "bad"]], format: whole, unit: "" },
];
export const OF_TOPIC = [{ label: "Rates", columns: [["published", "Published", "in"], ["acked", "Acked, all consumers", "out"]] }, ...WAITING];
export const OF_BROKER = [
  { label: "Rates", columns: [["published", "Published", "in"], ["delivered", "Delivered", "mid"], ["acked", "Acked", "out"], ["redelivered", "Redelivered", "bad"]] },
  ...WAITING,
];

export class Hour {
  /** @param read asks the broker: `numbers` by column, null where it keeps none, and `step_s` */
  constructor(read, charts) {
    this.read = read;
    this.charts = charts;
    this.drawn = [];
    this.note = el("p.muted", { role: "status" }, "Loading the last hour.");
    this.grid = el("div.hours", {});
    this.element = el("div", {}, this.note, this.grid);
  }

  start() {
    this.shown = true;
    this.#look();
  }

  stop() {
    this.shown = false;
    clearTimeout(this.timer);
  }

  async #look() {
    clearTimeout(this.timer);
    let waitS = 10;
    try {
      if (!document.hidden) {
        const { step_s: stepS, numbers } = await this.read();
        waitS = stepS;
        say(this.note, numbers ? "" : "The broker keeps no history of this topic yet: it begins within ten seconds, unless a thousand others are busier.");
        if (numbers) this.#draw(numbers, stepS);
      }
    } catch (error) {
      unread(this.note, "The history could not be read.", error);
    }
    this.note.hidden = !this.note.textContent;
    if (this.shown) this.timer = setTimeout(() => this.#look(), waitS * 1000);
  }

  #draw(numbers, stepS) {
    if (!this.drawn.length) {
      const samples = HOUR_S / stepS;
      this.drawn = this.charts.map(({ label, columns, ...options }) =>
        new Chart(columns.map(([, name, tone]) => [name, tone]), { label: `${label}, the last hour`, samples, stepS, bridged: 0, ...options }));
      fill(this.grid, this.drawn.map((chart) => chart.element));
    }
    this.charts.forEach(({ columns }, i) =>
      this.drawn[i].draw(...columns.map(([column]) => new HourSeries(Float32Array.from(numbers[column], (value) => value ?? NaN)))));
  }
}

/** The number of now is the newest one: each is a mean already. */
class HourSeries extends Series {
  get now() {
    return this.values.at(-1);
  }
}
