// What a page asks the broker for again and again while it is shown.

import { words } from "./dialogs.js";
import { el, say } from "./dom.js";

/** Asks every `everyMs`, and at once by `now`, as for a search. An answer that a later question has overtaken is dropped. */
export class Polling {
  /** `failed` begins what `problem` says when there is no answer. */
  constructor(ask, draw, failed, everyMs) {
    this.ask = ask;
    this.draw = draw;
    this.failed = failed;
    this.everyMs = everyMs;
    this.asked = 0;
    this.problem = el("p.problem", { role: "alert", hidden: true });
  }

  start() {
    this.shown = true;
    return this.now();
  }

  stop() {
    this.shown = false;
    clearTimeout(this.timer);
  }

  async now() {
    clearTimeout(this.timer);
    const number = (this.asked += 1);
    try {
      if (!document.hidden) {
        const answer = await this.ask();
        if (number !== this.asked) return;
        this.problem.hidden = true;
        this.draw(answer);
      }
    } catch (error) {
      if (number !== this.asked) return;
      say(this.problem, `${this.failed} ${words(error)}`);
      this.problem.hidden = false;
    }
    if (this.shown) this.timer = setTimeout(() => this.now(), this.everyMs);
  }
}
