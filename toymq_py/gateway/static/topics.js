// All topics in one list: only the rows that can be seen exist, so that five thousand of them cost what twenty cost.

import { Sparkline } from "./chart.js";
import { Cluster } from "./cluster.js";
import { toast } from "./dialogs.js";
import { button, el, fill, say } from "./dom.js";
import { bytes, count, duration, plural, rate } from "./format.js";
import { createTopic } from "./forms.js";

const OVERSCAN = 6;
const SLOW_S = 60;

const COLUMNS = [
  ["name", "Topic", (t) => t.name],
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
  ["trouble", "Trouble", (t) => t.trouble],
  ["lagging", "Lagging", (t) => t.backlog > 0 && t.described.consumers.length > 0],
  ["letters", "Dead letters", (t) => t.letters > 0],
];

/** What is said of a filter that leaves nothing. */
const NONE = {
  all: "There are no topics.", trouble: "No topic failed, is degraded, lost messages or has dead letters.", lagging: "No consumer is behind.",
  letters: "There are no dead letters.",
};

/** One row. It is kept as long as its topic can be seen. */
class Row {
  constructor(name) {
    this.name = name;
    this.spark = new Sparkline();
    this.link = el("a.topicname", { href: `#/topics/${encodeURIComponent(name)}` }, name);
    this.state = el("span.badge");
    this.cells = Object.fromEntries(COLUMNS.slice(1).map(([key]) => [key, el(`span.number.c-${key}`, { role: "cell" })]));
    const { published, ...rest } = this.cells;
    this.element = el(
      "div.trow", { role: "row", click: (event) => event.target.closest("a") || (location.hash = this.link.hash) },
      el("span.c-name", { role: "cell" }, this.link, this.state),
      el("span.c-spark", { role: "cell", "aria-hidden": "true" }, this.spark.element), published, Object.values(rest),
    );
  }

  draw(topic, index, height) {
    this.element.style.transform = `translateY(${index * height}px)`;
    this.element.setAttribute("aria-rowindex", index + 2);
    const { state, consumers } = topic.described;
    this.link.title = this.name;
    const word = state !== "ok" ? state : topic.described.lost ? "lost" : topic.isLetters ? "dead letters" : "";
    say(this.state, word);
    this.state.className = `badge ${state === "failed" ? "bad" : topic.trouble ? "warn" : ""}`;
    this.state.hidden = !word;
    say(this.cells.published, rate(topic.published.now));
    say(this.cells.acked, consumers.length ? rate(topic.acked.now) : "–");
    say(this.cells.backlog, count(topic.backlog));
    say(this.cells.lag, consumers.length ? duration(topic.lag) : "–");
    say(this.cells.inflight, count(topic.inflight));
    say(this.cells.consumers, count(consumers.length));
    say(this.cells.bytes, bytes(topic.described.bytes));
    for (const [key, cell] of Object.entries(this.cells)) cell.classList.toggle("zero", ["0", "–"].includes(cell.textContent) && key !== "bytes");
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
    this.rows = new Map();
    this.shown = [];
    this.sort = "name";
    this.down = false;
    this.filter = "all";
    this.tiles = {
      publish: new Tile("Published", "in"), deliver: new Tile("Delivered", "mid"), ack: new Tile("Acked", "out"),
      redeliver: new Tile("Redelivered", "bad"), fsync: new Tile("Sync, p99"), disk: new Tile("Disk free"), links: new Tile("Sessions"),
    };
    this.search = el("input", {
      type: "search", placeholder: "Search topics", "aria-label": "Search topics", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false",
      input: () => this.update(), keydown: (event) => event.key === "Escape" && this.#clear(event),
    });
    this.filters = FILTERS.map(([key, label]) => el("button", { type: "button", "aria-pressed": "false", click: () => this.#filter(key) }, label));
    this.heads = COLUMNS.map(([key, label]) =>
      el(`span.c-${key}`, { role: "columnheader", "aria-sort": "none" }, el("button", { type: "button", click: () => this.#sort(key) }, label)));
    const head = el("div.thead", { role: "row", "aria-rowindex": 1 }, this.heads[0], el("span.c-spark", { role: "columnheader" }, el("span.hidden", {}, "Published, a line")), this.heads.slice(1));
    this.body = el("div.tbody", { role: "rowgroup" });
    this.table = el("div.table", { role: "table", "aria-label": "Topics" }, el("div.headgroup", { role: "rowgroup" }, head), this.body);
    this.none = el("div.empty", { hidden: true });
    this.total = el("span.muted.number", { role: "status" });
    this.create = session.admin ? button("New topic", createTopic, {}, "primary") : null;
    this.list = el(
      "section", {},
      el("div.row.tools", {}, this.search, el("div.segmented", { role: "group", "aria-label": "Show" }, this.filters), this.total, el("span.grow"), this.create),
      this.table, this.none,
    );
    this.start = this.#start();
    this.cluster = new Cluster();
    this.element = el("div", {}, el("h1.hidden", {}, "Topics"), el("section.tiles", { "aria-label": "The broker" }, Object.values(this.tiles).map((tile) => tile.element)), this.cluster.element, this.start, this.list);
    this.element.addEventListener("keydown", (event) => this.#arrows(event));
    this.onscroll = () => this.#window();
  }

  shownNow() {
    addEventListener("scroll", this.onscroll, { passive: true });
    addEventListener("resize", this.onscroll);
    this.update();
    if (this.scroll) scrollTo(0, this.scroll);
  }

  hiddenNow() {
    this.scroll = scrollY;
    removeEventListener("scroll", this.onscroll);
    removeEventListener("resize", this.onscroll);
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

  #clear(event) {
    event.stopPropagation();
    if (this.search.value) {
      this.search.value = "";
      this.update();
    } else {
      this.search.blur();
    }
  }

  #filter(key) {
    this.filter = key;
    this.update();
  }

  /** Show the topics of one filter, for a banner that names them. */
  only(key) {
    this.search.value = "";
    this.#filter(key);
  }

  #sort(key) {
    this.down = this.sort === key ? !this.down : key !== "name";
    this.sort = key;
    this.update();
  }

  #arrows(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    const inSearch = event.target === this.search;
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey || (inSearch && event.key !== "ArrowDown") || !this.shown.length) return;
    const at = this.shown.findIndex((topic) => topic.name === this.focused());
    if (at < 0 && !inSearch) return;
    event.preventDefault();
    this.focus(Math.max(0, Math.min(this.shown.length - 1, at < 0 ? 0 : at + step)));
  }

  focused() {
    return document.activeElement?.classList.contains("topicname") ? document.activeElement.textContent : null;
  }

  focus(index) {
    const top = this.body.getBoundingClientRect().top + scrollY + index * this.height;
    const margin = 2 * this.height + 4; // behind it is the head of the page, and that of the list
    if (top - margin < scrollY) scrollTo(0, top - margin);
    else if (top + margin + this.height > scrollY + innerHeight) scrollTo(0, top + margin + this.height - innerHeight);
    this.#window();
    this.rows.get(this.shown[index].name)?.link.focus({ preventScroll: true });
  }

  update() {
    const { store } = this;
    if (!store.stats) return;
    this.#numbers(store.stats, store.rates);
    const empty = store.topics.size === 0;
    this.start.hidden = !empty;
    this.list.hidden = empty;
    const text = this.search.value.trim().toLowerCase();
    const [, , wanted] = FILTERS.find(([key]) => key === this.filter);
    const [, , by] = COLUMNS.find(([key]) => key === this.sort);
    const found = [...store.topics.values()].filter((topic) => wanted(topic) && topic.name.toLowerCase().includes(text));
    const keyed = found.map((topic) => [by(topic), topic]);
    keyed.sort(([a, one], [b, two]) => (a < b ? -1 : a > b ? 1 : one.name < two.name ? -1 : 1));
    this.shown = keyed.map(([, topic]) => topic);
    if (this.down) this.shown.reverse();
    COLUMNS.forEach(([key], i) => {
      this.heads[i].setAttribute("aria-sort", key === this.sort ? (this.down ? "descending" : "ascending") : "none");
    });
    FILTERS.forEach(([key, label, one], i) => {
      const many = key === "all" ? 0 : [...store.topics.values()].filter(one).length;
      say(this.filters[i], many ? `${label} ${count(many)}` : label);
      this.filters[i].setAttribute("aria-pressed", String(key === this.filter));
    });
    say(this.total, found.length === store.topics.size ? plural(found.length, "topic") : `${count(found.length)} of ${plural(store.topics.size, "topic")}`);
    this.table.setAttribute("aria-rowcount", found.length + 1);
    this.none.hidden = found.length > 0;
    this.table.hidden = found.length === 0;
    if (!found.length) fill(this.none, text ? `No topic matches “${this.search.value.trim()}”.` : NONE[this.filter]);
    this.#window();
  }

  #numbers(stats, rates) {
    const { publish, deliver, ack, redeliver, fsync, disk, links } = this.tiles;
    publish.draw(rate(rates.publish_total.now), "/s", rates.publish_total);
    deliver.draw(rate(rates.deliver_total.now), "/s", rates.deliver_total);
    ack.draw(rate(rates.ack_total.now), "/s", rates.ack_total);
    redeliver.draw(rate(rates.redeliver_total.now), `/s, ${count(stats.redeliver_total)} in all`, rates.redeliver_total);
    fsync.draw(stats.fsync_total ? duration(stats.fsync_p99_s) : "–", stats.fsync === "always" ? "" : stats.fsync);
    disk.draw(bytes(stats.disk_free_bytes));
    disk.element.classList.toggle("warn", this.store.diskFull);
    links.draw(count(stats.connections), `· up ${duration(Math.floor(stats.uptime_s))}`);
    this.cluster.draw(stats.cluster);
  }

  /** Make the rows that can be seen, drop the others; the one with the focus stays. */
  #window() {
    this.height = Number.parseFloat(getComputedStyle(this.table).getPropertyValue("--row")) || 44;
    this.body.style.height = `${this.shown.length * this.height}px`;
    const top = this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / this.height) - OVERSCAN);
    const last = Math.min(this.shown.length, Math.ceil((innerHeight - top) / this.height) + OVERSCAN);
    const keep = this.focused();
    const indices = [];
    for (let i = first; i < last; i += 1) indices.push(i);
    const kept = keep ? this.shown.findIndex((topic) => topic.name === keep) : -1;
    if (kept >= 0 && kept < first) indices.unshift(kept);
    else if (kept >= last) indices.push(kept);
    const seen = new Set(indices.map((i) => this.shown[i].name));
    for (const [name, row] of this.rows) {
      if (seen.has(name)) continue;
      row.element.remove();
      this.rows.delete(name);
    }
    let next = this.body.firstChild;
    for (const i of indices) {
      const row = this.#draw(i);
      if (row.element === next) next = next.nextSibling;
      else this.body.insertBefore(row.element, next); // the order of reading is that of the eyes
    }
    if (kept >= 0 && this.focused() !== keep) this.rows.get(keep).link.focus({ preventScroll: true });
  }

  #draw(index) {
    const topic = this.shown[index];
    if (!this.rows.has(topic.name)) this.rows.set(topic.name, new Row(topic.name));
    const row = this.rows.get(topic.name);
    row.draw(topic, index, this.height);
    return row;
  }
}
