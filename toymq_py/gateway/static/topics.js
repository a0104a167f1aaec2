// The first page: the broker's numbers, and all topics.

import { Sparkline } from "./chart.js";
import { Cluster } from "./cluster.js";
import { toast } from "./dialogs.js";
import { button, el, say } from "./dom.js";
import { bytes, count, duration, plural, rate, sentence, time } from "./format.js";
import { createTopic } from "./forms.js";
import { List } from "./list.js";
import { Trouble, troublesOf } from "./trouble.js";
import { grouped } from "./whole.js";

const SLOW_S = 60;

const COLUMNS = [
  ["name", "Topic", (t) => t.name],
  ["place", "Place", (t) => t.place],
  ["published", "In /s", (t) => t.published.now],
  ["acked", "Acked /s", (t) => t.acked.now],
  ["backlog", "Backlog", (t) => t.backlog],
  ["lag", "Oldest unacked", (t) => t.lag],
  ["inflight", "Inflight", (t) => t.inflight],
  ["consumers", "Consumers", (t) => t.described.consumers.length],
  ["bytes", "Size", (t) => t.described.bytes],
];

const FILTERS = [
  ["all", "All", () => true],
  ["trouble", "Trouble", (t) => (t.parts ?? [t]).some((one) => troublesOf(one).length > 0)],
  ["lagging", "Lagging", (t) => t.backlog > 0 && t.described.consumers.length > 0],
  ["letters", "Dead letters", (t) => t.letters > 0],
];

/** What is said of a filter that leaves nothing. */
const NONE = {
  all: "There are no topics.", trouble: "No topic failed, is damaged or has dead letters, and no consumer is slow or has a message again and again.", lagging: "No consumer is behind.",
  letters: "There are no dead letters.",
};

/** One row. It is kept as long as its topic can be seen. */
class Row {
  constructor(name) {
    this.name = name;
    this.spark = new Sparkline();
    this.link = el("a.topicname.rowlink", { href: `#/topics/${encodeURIComponent(name)}` }, name);
    this.state = el("span.badge");
    this.cells = Object.fromEntries(COLUMNS.slice(1).map(([key]) => [key, el(`span.number.c-${key}`, { role: "cell" })]));
    this.element = el(
      "div.trow", { role: "row", click: (event) => event.target.closest("a") || (location.hash = this.link.hash) },
      el("span.c-name", { role: "cell" }, this.link, this.state),
      el("span.c-spark", { role: "cell", "aria-hidden": "true" }, this.spark.element), Object.values(this.cells),
    );
  }

  draw(topic) {
    const { state, consumers } = topic.described;
    this.link.title = this.name;
    const kind = topic.missing ? "missing" : topic.parts ? topic.word : topic.old ? "old" : topic.isLetters ? "dead letters" : "";
    const word = state !== "ok" ? state : topic.described.lost ? "lost" : kind;
    say(this.state, word);
    this.state.className = `badge ${state === "failed" ? "bad" : state === "degraded" || topic.described.lost || topic.letters || topic.old ? "warn" : ""}`;
    this.state.title = topic.described.as_of_ms ? `As of ${time(topic.described.as_of_ms)}` : "";
    this.state.hidden = !word;
    say(this.cells.place, topic.place.replace(/(group|worker) /g, ""));
    this.cells.place.title = topic.place;
    const rated = !topic.old || topic.parts?.some((part) => !part.old);
    say(this.cells.published, rated ? rate(topic.published.now) : "–");
    say(this.cells.acked, rated && consumers.length ? rate(topic.acked.now) : "–");
    say(this.cells.backlog, count(topic.backlog));
    say(this.cells.lag, consumers.length && topic.backlog ? duration(topic.lag) : "–");
    say(this.cells.inflight, count(topic.inflight));
    say(this.cells.consumers, count(consumers.length));
    say(this.cells.bytes, bytes(topic.described.bytes));
    if (topic.missing) for (const [key, cell] of Object.entries(this.cells)) if (key !== "place") say(cell, "–");
    for (const [key, cell] of Object.entries(this.cells)) cell.classList.toggle("zero", ["0", "–"].includes(cell.textContent) && !["bytes", "place"].includes(key));
    this.cells.lag.classList.toggle("slow", topic.lag >= SLOW_S && !topic.isLetters);
    this.spark.draw(topic.published);
  }
}

/** A number of the whole broker with its line. */
class Tile {
  constructor(label, tone) {
    this.value = el("b.number");
    this.more = el("span.muted.number");
    this.spark = tone ? new Sparkline(tone) : null;
    this.element = el("div.tile", {}, el("span.muted", {}, label), el("span.big", {}, this.value, this.more), this.spark?.element ?? null);
  }

  draw(text, more = "", series = null) {
    say(this.value, text);
    say(this.more, more);
    if (series) this.spark.draw(series);
  }
}

export class TopicsView {
  constructor(store, session) {
    this.store = store;
    this.session = session;
    this.title = "Topics";
    this.tiles = {
      publish: new Tile("Published", "in"), deliver: new Tile("Delivered", "mid"), ack: new Tile("Acked", "out"),
      redeliver: new Tile("Redelivered", "bad"), fsync: new Tile("Sync, p99"), disk: new Tile("Disk free"), links: new Tile("Sessions"),
    };
    this.list = new List({
      label: "Topics", kind: "topics", columns: COLUMNS, filters: FILTERS, none: NONE, nouns: ["topic", "topics"],
      heads: [el("span.c-spark", { role: "columnheader" }, el("span.hidden", {}, "Published, a line"))],
      textOf: (topic) => topic.name.toLowerCase(), keyOf: (topic) => topic.name, makeRow: (topic) => new Row(topic.name),
      actions: [session.admin && button("New topic", createTopic, {}, "primary")],
    });
    this.search = this.list.search;
    this.start = this.#start();
    this.cluster = new Cluster();
    this.trouble = new Trouble(store);
    this.element = el("div", {}, el("h1.hidden", {}, "Topics"), el("section.tiles", { "aria-label": "The broker" }, Object.values(this.tiles).map((tile) => tile.element)), this.cluster.element, this.trouble.element, this.start, this.list.element);
  }

  shownNow() {
    this.list.shownNow();
    this.update();
  }

  hiddenNow() {
    this.list.hiddenNow();
  }

  #start() {
    const line = `curl -d 'hello' ${location.origin}/v1/topics/greetings/messages`;
    const copy = button("Copy", async () => {
      try {
        await navigator.clipboard.writeText(line);
        toast("Copied.");
      } catch {
        toast("This browser does not let the page copy.", "bad");
      }
    });
    return el(
      "section.start", { hidden: true },
      el("h2", {}, "Nothing here yet"),
      el("p", {}, "The broker runs and waits for its first message. Send one; the topic is made on the way:"),
      el("div.copyline", {}, el("pre", { tabindex: 0 }, line), copy),
      el("p.muted", {}, "It appears here by itself. ", el("a", { href: "/docs" }, "What else the broker speaks"), "."),
      this.session.admin && button("Make a topic by hand", createTopic),
    );
  }

  update() {
    const { store } = this;
    if (!store.stats) return;
    this.#numbers(store.stats, store.rates);
    const empty = store.topics.size === 0 && store.away.length === 0;
    this.start.hidden = !empty;
    this.list.element.hidden = empty;
    this.trouble.draw();
    const topics = grouped(store.topics.values());
    const old = topics.filter((topic) => topic.old).length;
    const [kind] = topics.find((topic) => topic.place)?.place.split(" ") ?? [];
    const unlisted = !old || kind === "worker"; // the names of a group's topics are known, of a worker's those of partitions alone
    this.list.note = [old && `${count(old)} of them old or missing`, unlisted && store.without].filter(Boolean).join(", ");
    this.list.table.classList.toggle("placed", kind !== undefined);
    if (kind) say(this.list.heads[1].firstChild, sentence(kind));
    this.list.draw(topics);
  }

  #numbers(stats, rates) {
    const { publish, deliver, ack, redeliver, fsync, disk, links } = this.tiles;
    const each = `/s ${this.store.without}`.trim();
    publish.draw(rate(rates.publish_total.now), each, rates.publish_total);
    deliver.draw(rate(rates.deliver_total.now), each, rates.deliver_total);
    ack.draw(rate(rates.ack_total.now), each, rates.ack_total);
    redeliver.draw(rate(rates.redeliver_total.now), `/s, ${count(stats.redeliver_total)} in all`, rates.redeliver_total);
    fsync.draw(stats.fsync_total ? duration(stats.fsync_p99_s) : "–", stats.fsync === "always" ? "" : stats.fsync);
    disk.draw(bytes(stats.disk_free_bytes));
    disk.element.classList.toggle("warn", this.store.diskFull);
    links.draw(count(stats.connections), `· up ${duration(Math.floor(stats.uptime_s))}`);
    this.cluster.draw(stats.cluster, this.store.away);
  }
}
