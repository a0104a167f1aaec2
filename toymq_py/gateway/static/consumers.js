// The consumers of all topics: how far behind, how old, since when slow, whether their keys wait, and whether anything takes their messages.

import { el, say } from "./dom.js";
import { ago, count, duration, time } from "./format.js";
import { List } from "./list.js";

/** A message with so many attempts is worth a look: a quarter of the default. */
export const ATTEMPTS_NOTED = 5;

const COLUMNS = [
  ["name", "Consumer", (c) => `${c.consumer}\n${c.topic}`],
  ["lag", "Backlog", (c) => c.backlog],
  ["oldest", "Oldest unacked", (c) => c.age],
  ["slow", "Slow since", (c) => c.slow_since_ms ?? Infinity],
  ["inflight", "Inflight", (c) => c.inflight],
  ["again", "Redelivered", (c) => c.redelivered_total],
  ["attempts", "Most attempts", (c) => c.attempts_max],
  ["taken", "Attached", (c) => c.sessions],
];
const FILTERS = [
  ["all", "All", () => true],
  ["slow", "Slow", (c) => c.slow_since_ms !== null && !c.stuck],
  ["stuck", "Keys wait", (c) => c.stuck],
  ["detached", "Nothing attached", (c) => c.detached],
  ["again", "Redelivering", (c) => c.attempts_max >= ATTEMPTS_NOTED],
];
const NONE = {
  all: "There are no consumers.", slow: "No consumer has left a message unacked for more than a minute.",
  stuck: "No consumer has messages that wait behind retried ones of the same keys.", detached: "Something takes the messages of every consumer that is slow.", again: `No message that is not acked has had ${ATTEMPTS_NOTED} attempts.`,
};

/** A consumer as the broker describes it, with its topic and what follows from both. */
export function consumersOf(topic, some = topic.described.consumers) {
  return some.map((consumer) => {
    const { inflight, retrying } = consumer;
    const slow = consumer.backlog && !topic.old ? consumer.slow_since_ms : null; // it is looked at every ten seconds
    const detached = slow !== null && !consumer.sessions && !inflight; // one that asks now and then is not slow in between
    return {
      ...consumer, topic: topic.name, old: topic.old, age: topic.age(consumer.oldest_unacked_at_ms), slow_since_ms: slow,
      stuck: slow !== null && !detached && consumer.mode === "keyed" && consumer.ready > 0 && retrying > 0 && inflight <= retrying, // more workers would get nothing
      detached,
    };
  });
}

class Row {
  constructor({ topic, consumer }) {
    this.link = el("a.topicname.rowlink", { href: `#/topics/${encodeURIComponent(topic)}`, title: `${consumer} of ${topic}` }, el("bdi", {}, consumer));
    this.badges = el("span.badge", { hidden: true });
    this.cells = Object.fromEntries(COLUMNS.slice(1).map(([key, label]) => [key, el(`span.number.c-${key}`, { role: "cell", "data-label": label })]));
    this.element = el(
      "div.trow", { role: "row", click: (event) => event.target.closest("a") || (location.hash = this.link.hash) },
      el("span.c-name", { role: "cell" }, el("span.named", {}, this.link, el("span.muted.of", {}, "of ", el("bdi", {}, topic))), this.badges), Object.values(this.cells),
    );
  }

  draw(c) {
    const { cells } = this;
    const word = c.old ? "old" : c.paused ? "paused" : c.stuck ? "keys wait" : c.mode === "exclusive" ? "" : c.mode;
    say(this.badges, word);
    this.badges.hidden = !word;
    say(cells.lag, count(c.backlog));
    say(cells.oldest, c.backlog ? duration(c.age) : "–");
    say(cells.slow, c.slow_since_ms === null ? "–" : ago(c.slow_since_ms));
    cells.slow.title = c.slow_since_ms === null ? "" : time(c.slow_since_ms);
    say(cells.inflight, count(c.inflight));
    say(cells.again, count(c.redelivered_total));
    say(cells.attempts, count(c.attempts_max));
    cells.attempts.title = c.attempts_max ? `Message ${c.attempts_max_id}` : "";
    say(cells.taken, c.sessions ? count(c.sessions) : c.inflight ? "by requests" : c.detached ? "nothing" : "–");
    for (const cell of Object.values(cells)) cell.classList.toggle("zero", ["0", "–"].includes(cell.textContent));
    cells.slow.classList.toggle("slow", c.slow_since_ms !== null);
    cells.taken.classList.toggle("slow", c.detached);
    cells.attempts.classList.toggle("slow", c.attempts_max >= ATTEMPTS_NOTED);
  }
}

export class ConsumersView {
  /** @param {string} filter the key of the one that is shown first */
  constructor(store, filter = "all") {
    this.store = store;
    this.title = "Consumers";
    this.list = new List({
      label: "Consumers", kind: "people", columns: COLUMNS, filters: FILTERS, none: NONE, nouns: ["consumer", "consumers"], sort: "lag", down: true,
      textOf: (c) => `${c.consumer}\n${c.topic}`.toLowerCase(), keyOf: (c) => `${c.topic}\n${c.consumer}`, makeRow: (c) => new Row(c),
    });
    this.list.filter = FILTERS.some(([key]) => key === filter) ? filter : "all";
    this.search = this.list.search;
    this.element = el("div", {}, el("h1", {}, "Consumers"), this.list.element);
  }

  shownNow() {
    this.list.shownNow();
    this.update();
  }

  hiddenNow() {
    this.list.hiddenNow();
  }

  update() {
    const { store } = this;
    if (!store.stats) return;
    const consumers = [...store.topics.values()].flatMap((topic) => consumersOf(topic));
    const old = consumers.filter((consumer) => consumer.old).length;
    this.list.note = [old && `${count(old)} of them old`, store.without].filter(Boolean).join(", ");
    this.list.draw(consumers);
  }
}
