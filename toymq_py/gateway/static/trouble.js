// What is wrong now, where it is, and what to do about it: at most two lines of a kind, the others as a number.

import { ATTEMPTS_NOTED, consumersOf } from "./consumers.js";
import { el, fill, say } from "./dom.js";
import { bytes, count, duration, plural } from "./format.js";

/** So many of a kind have a line of their own; more are one line, which leads to all of them. */
const LINES_MAX = 2;

const page = (name, tab = "") => `#/topics/${encodeURIComponent(name)}${tab}`;
const since = (ms, nowMs) => duration(Math.max(Math.floor((nowMs - ms) / 1000), 0));

/** What makes a worker answer again; of a group its `why` says it, and of several each process is in the log. */
function revived({ place = "", pid } = {}) {
  if (!place.startsWith("worker ")) return place ? "" : "The broker's log says why. ";
  if (!pid) return "It has ended, and is started again: the broker's log says why. ";
  return `If process ${pid} stands still, which the broker's log says then, kill -9 ${pid} on the broker's machine ends it: what had OK is kept, and it is started again. `;
}

/** A kind: its word, its tone, what is said of one and of many, where they are, what to do. */
const KINDS = {
  disk: {
    word: "disk", tone: "bad", where: () => ["#/broker", "Disk"],
    one: ({ free, low }) => (low ? `is low: ${bytes(free)} are free, and publishing is refused.` : `gets low: ${bytes(free)} are free.`),
    todo: ({ largest }) => (largest ? `Free space: the largest topic is ${largest.name} with ${bytes(largest.described.bytes)}; keep it for a shorter time, or purge it.` : "Free space."),
  },
  away: {
    word: "no answer", tone: "bad", where: ({ place }) => ["#/filter/trouble", place], one: ({ why }) => `${why.replaceAll("`", "")}.`, many: (n, items) => `${items.map(({ place }) => place).join(", ")} do not answer.`,
    all: "#/filter/trouble", todo: (item) => `${revived(item)}Until it answers, its topics are shown with old figures or with none, and the rates of all are without it.`,
  },
  failed: {
    word: "failed", tone: "bad", where: (topic) => [page(topic.name), topic.name], one: () => "refuses publishes: a write or sync went wrong.",
    many: (n) => `${plural(n, "topic")} refuse publishes: a write or sync went wrong.`, all: "#/filter/trouble",
    todo: () => "Look at the disk and the broker's log, then restart the broker: it recovers what is on the disk.",
  },
  damaged: {
    word: "damaged", tone: "bad", where: (topic) => [page(topic.name), topic.name],
    one: (topic) => (topic.described.lost ? `has lost ${plural(topic.described.lost, "message")}.` : "is degraded: a part of it cannot be read."),
    many: (n) => `${plural(n, "topic")} are damaged.`, all: "#/filter/trouble", todo: () => "Run toymq verify: it says what is damaged, and what toymq repair would do.",
  },
  detached: {
    word: "nothing attached", tone: "bad", where: (c) => [page(c.topic), `${c.consumer} of ${c.topic}`],
    one: (c, nowMs) => `has ${plural(c.backlog, "message")} that nothing takes, the oldest for ${since(c.oldest_unacked_at_ms, nowMs)}.`,
    many: (n) => `${plural(n, "consumer")} have messages that nothing takes.`, all: "#/consumers/detached",
    todo: (c) => (c ? "Start its workers. If it is no longer used, forget it: it keeps messages on the disk." : "Start their workers. Forget those that are no longer used: they keep messages on the disk."),
  },
  slow: {
    word: "lag", tone: "warn", where: (c) => [page(c.topic), `${c.consumer} of ${c.topic}`],
    one: (c, nowMs) => `is slow since ${since(c.slow_since_ms, nowMs)} ago: ${plural(c.backlog, "message")}, the oldest due for ${since(c.oldest_unacked_at_ms, nowMs)}.`,
    many: (n) => `${plural(n, "consumer")} are slow.`, all: "#/consumers/slow",
    todo: (c) => (c?.paused ? "Its sessions are paused: resume them." : "Start more workers, or look for what takes long in their log."),
  },
  stuck: {
    word: "keys wait", tone: "warn", where: (c) => [page(c.topic, "/messages"), `${c.consumer} of ${c.topic}`],
    one: (c) => `has ${plural(c.ready, "message")} that ${c.ready === 1 ? "waits" : "wait"} behind ${count(c.retrying)} of the same keys that ${c.retrying === 1 ? "is" : "are"} retried (most often: id ${c.attempts_max_id}, ${plural(c.attempts_max, "attempt")}).`,
    many: (n) => `${plural(n, "consumer")} have messages that wait behind retried ones of the same keys.`, all: "#/consumers/stuck",
    todo: () => "More workers do not help. Read the message and its last error, then mend its handler or give it up: toymqctl nack --dead.",
  },
  again: {
    word: "redelivered", tone: "warn", where: (c) => [page(c.topic, "/messages"), `${c.consumer} of ${c.topic}`],
    one: (c) => `has had one message (id ${c.attempts_max_id}) ${count(c.attempts_max)} times without an ack.`,
    many: (n) => `${plural(n, "consumer")} have had ${ATTEMPTS_NOTED} attempts or more at a message without an ack.`, all: "#/consumers/again",
    todo: () => "Read the message and its failures. Where handling takes longer than the visibility timeout, raise that.",
  },
  letters: {
    word: "dead letters", tone: "warn", where: (topic) => [page(topic.name, "/messages"), topic.origin],
    one: (topic) => `has ${plural(topic.letters, "dead letter")}.`, many: (n, items) => `${plural(items.reduce((sum, topic) => sum + topic.letters, 0), "dead letter")} of ${plural(n, "topic")} wait.`,
    all: "#/filter/letters", todo: () => "Read why they failed, mend the cause, then send them back with Redrive.",
  },
};

/** What is wrong with a topic, as pairs of a kind and what it is about. */
export function troublesOf(topic) {
  if (topic.old) return [["away", null]];
  const { state, lost } = topic.described;
  const found = [];
  if (state === "failed") found.push(["failed", topic]);
  else if (state !== "ok" || lost) found.push(["damaged", topic]);
  if (topic.letters) found.push(["letters", topic]);
  if (topic.isLetters) return found;
  for (const each of topic.described.consumers) {
    if (each.slow_since_ms === null && each.attempts_max < ATTEMPTS_NOTED) continue;
    const [c] = consumersOf(topic, [each]);
    if (c.slow_since_ms !== null) found.push([c.detached ? "detached" : c.stuck ? "stuck" : "slow", c]);
    if (c.attempts_max >= ATTEMPTS_NOTED) found.push(["again", c]);
  }
  return found;
}

function troubles(store) {
  const found = new Map(Object.keys(KINDS).map((kind) => [kind, []]));
  const { disk_free_bytes: free, limits } = store.stats;
  const topics = [...store.topics.values()];
  if (store.diskFull || free < 2 * limits.min_free_bytes) {
    const largest = topics.reduce((most, topic) => (topic.described.bytes > (most?.described.bytes ?? 0) ? topic : most), null);
    found.get("disk").push({ free, low: store.diskFull, largest });
  }
  found.get("away").push(...store.away);
  for (const topic of topics) {
    if (!topic.old) for (const [kind, about] of troublesOf(topic)) found.get(kind).push(about);
  }
  return found;
}

class Line {
  constructor(kind) {
    this.kind = KINDS[kind];
    this.link = el("a");
    this.text = el("span");
    this.todo = el("span.muted");
    this.element = el("li", {}, el(`span.badge.${this.kind.tone}`, {}, this.kind.word), el("span", {}, this.link, " ", this.text, " ", this.todo));
  }

  draw(href, place, text, todo) {
    if (this.link.getAttribute("href") !== href) this.link.setAttribute("href", href);
    say(this.link, place);
    say(this.text, text);
    say(this.todo, todo);
  }
}

export class Trouble {
  constructor(store) {
    this.store = store;
    this.lines = new Map();
    this.list = el("ul", {});
    this.element = el("section.card.troubles", { "aria-label": "Trouble", hidden: true }, el("h2", {}, "Trouble"), this.list);
  }

  draw() {
    const nowMs = this.store.stats.time_ms;
    const wanted = new Map();
    for (const [name, items] of troubles(this.store)) {
      const kind = KINDS[name];
      if (items.length > LINES_MAX) wanted.set(name, [name, kind.all, "Show them:", kind.many(items.length, items), kind.todo()]);
      else for (const item of items) {
        const [href, place] = kind.where(item);
        wanted.set(`${name} ${place}`, [name, href, place, kind.one(item, nowMs), kind.todo(item)]);
      }
    }
    for (const key of this.lines.keys()) if (!wanted.has(key)) this.lines.delete(key);
    const elements = [...wanted].map(([key, [name, ...texts]]) => {
      if (!this.lines.has(key)) this.lines.set(key, new Line(name));
      this.lines.get(key).draw(...texts);
      return this.lines.get(key).element;
    });
    if (elements.length !== this.list.children.length || elements.some((element, i) => this.list.children[i] !== element)) this.#place(elements);
    this.element.hidden = elements.length === 0;
  }

  /** The focus stays where it is. */
  #place(elements) {
    const focused = document.activeElement;
    fill(this.list, elements);
    if (this.list.contains(focused)) focused.focus({ preventScroll: true });
  }
}
