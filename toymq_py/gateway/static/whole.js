// A partitioned topic: one row of the list, and a page of its own with its partitions.

import { api } from "./api.js";
import { confirmByName, toast } from "./dialogs.js";
import { button, el, say } from "./dom.js";
import { bytes, count, duration, plural, sentence } from "./format.js";
import { publish } from "./forms.js";
import { Settings, editSettings } from "./settings.js";
import { SAMPLES, Series } from "./store.js";

const PART = /^(.+)#(\d+)(\.dlq)?$/;

/** The partitioned topic that a partition is of, with the .dlq of dead letters; null of any other topic. */
export function wholeOf(name) {
  const [, whole, , letters = ""] = PART.exec(name) ?? [];
  return whole ? whole + letters : null;
}

/** The number of a partition. */
export function numberOf(name) {
  return Number(PART.exec(name)?.[2]);
}

/** The page of a topic, or a part of it. */
function hrefOf(name, tab = "") {
  return `#/topics/${encodeURIComponent(name)}${tab && `/${tab}`}`;
}

/** The settings of their own that have the same value in all. */
function common([first, ...others]) {
  return Object.fromEntries(Object.entries(first).filter(([name, value]) => others.every((other) => other[name] === value)));
}

function summed(all, of) {
  const parts = all.filter((part) => !part.old);
  const values = new Float32Array(SAMPLES);
  for (let i = 0; i < SAMPLES; i += 1) values[i] = parts.reduce((sum, part) => sum + of(part).values[i], 0);
  return new Series(values);
}

/** "group a, b": what has partitions; "" where there are not several. */
function placesOf(parts) {
  const [kind] = parts[0].place.split(" ");
  const names = new Set(parts.map((part) => part.place.slice(kind.length + 1)));
  return `${kind} ${[...names].sort().join(", ")}`.trim();
}

/** Partitions as one topic, as far as the list looks at one. */
export class Whole {
  constructor(name, parts) {
    this.name = name;
    this.parts = parts.sort((one, two) => numberOf(one.name) - numberOf(two.name));
    const total = (of) => parts.reduce((sum, part) => sum + of(part), 0);
    this.isLetters = name.endsWith(".dlq");
    this.published = summed(parts, (part) => part.published);
    this.acked = summed(parts, (part) => part.acked);
    this.letters = total((part) => part.letters);
    this.inflight = total((part) => part.inflight);
    this.lag = Math.max(...parts.map((part) => part.lag));
    this.old = parts.some((part) => part.old);
    this.missing = parts.every((part) => part.missing);
    this.place = placesOf(parts);
    this.consumers = this.#consumers();
    const known = this.missing ? parts : parts.filter((part) => !part.missing);
    const states = parts.map((part) => part.described.state);
    this.described = {
      state: ["failed", "degraded"].find((state) => states.includes(state)) ?? "ok",
      lost: total((part) => part.described.lost), bytes: total((part) => part.described.bytes),
      messages: total((part) => part.described.messages), consumers: this.consumers,
      settings: common(known.map((part) => part.described.settings)),
    };
    this.backlog = this.consumers.length ? Math.max(...this.consumers.map((consumer) => consumer.backlog)) : total((part) => part.backlog);
  }

  /** How many partitions there are, and how many of them are not known as they are. */
  get word() {
    const old = this.parts.filter((part) => part.old).length;
    return `${plural(this.parts.length, "partition")}${old ? `, ${count(old)} old or missing` : ""}`;
  }

  /** What is in it, for one who is about to remove it. */
  get contents() {
    const unknown = this.parts.filter((part) => part.missing).length;
    const those = unknown === 1 ? "those of a partition that does not answer" : `those of ${plural(unknown, "partition")} that do not answer`;
    return `${plural(this.described.messages, "message")}${unknown ? ` and ${those}` : ""}`;
  }

  #consumers() {
    const found = new Map();
    for (const part of this.parts) {
      for (const { consumer, mode, backlog, inflight, sessions } of part.described.consumers) {
        const known = found.get(consumer) ?? { consumer, mode, backlog: 0, inflight: 0, sessions: 0 };
        found.set(consumer, { ...known, backlog: known.backlog + backlog, inflight: known.inflight + inflight, sessions: Math.max(known.sessions, sessions) });
      }
    }
    return [...found.values()];
  }
}

/** Topics with the partitions of each partitioned one as one. */
export function grouped(topics) {
  const wholes = new Map();
  const others = [];
  for (const topic of topics) {
    const name = wholeOf(topic.name);
    if (name) wholes.set(name, [...(wholes.get(name) ?? []), topic]);
    else others.push(topic);
  }
  return [...others, ...[...wholes].map(([name, parts]) => new Whole(name, parts))];
}

/** The partitions of a topic that the store knows. */
export function partsOf(store, name) {
  return [...store.topics.values()].filter((topic) => wholeOf(topic.name) === name);
}

/** Rows that stay as long as what they are about. */
class Rows {
  constructor(heads) {
    this.heads = heads;
    this.known = new Map();
    this.body = el("tbody");
    const columns = heads.map((head, i) => el(i === 0 ? "th" : "th.number", { scope: "col" }, head));
    this.element = el("div.scroller", {}, el("table.consumers", {}, el("thead", {}, el("tr", {}, columns)), this.body));
  }

  draw(rows) {
    const names = new Set(rows.map(([name]) => name));
    for (const [name, row] of this.known) {
      if (names.has(name)) continue;
      row.element.remove();
      this.known.delete(name);
    }
    for (const [name, first, ...texts] of rows) {
      let row = this.known.get(name);
      if (!row) {
        const cells = texts.map((text) => (typeof text === "string" ? el("span") : el("a", { href: text.href, title: text.title })));
        const columns = cells.map((cell, i) => el("td.number", { "data-label": this.heads[i + 1] }, cell));
        row = { cells, element: el("tr", {}, el("th", { scope: "row" }, first), columns) };
        this.known.set(name, row);
        this.body.append(row.element);
      }
      texts.forEach((text, i) => say(row.cells[i], text.text ?? text));
    }
    this.element.hidden = rows.length === 0;
  }
}

export class WholeView {
  constructor(store, session, name) {
    this.store = store;
    this.name = name;
    this.title = name;
    this.isLetters = name.endsWith(".dlq");
    this.badge = el("span.badge");
    [this.kind] = partsOf(store, name)[0].place.split(" ");
    this.partitions = new Rows(["Partition", ...(this.kind ? [sentence(this.kind)] : []), this.isLetters ? "Dead letters" : "Messages", "Backlog", "Oldest unacked", "Inflight", "Size", ...(this.isLetters ? [] : ["Dead letters"])]);
    this.consumers = new Rows(["Consumer", "Mode", "Backlog", "Inflight", "Sessions"]);
    this.unconsumed = el("p.empty", { hidden: true }, "Nothing consumes this topic yet.");
    this.settings = new Settings(name);
    const { admin } = session;
    this.element = el(
      "div", {},
      el(
        "div.row.head", {},
        el("nav.crumbs", { "aria-label": "Where this is" }, el("a", { href: "#/" }, "Topics"), el("span.muted", { "aria-hidden": "true" }, " / ")),
        el("h1", {}, el("bdi", { title: name }, name)), this.badge, el("span.grow"),
        el(
          "div.row.acts", {},
          admin && !this.isLetters && button("Delete", () => this.#remove(), {}, "quiet.danger-text"),
          admin && button("Purge", () => this.#purge(), {}, "quiet"),
          admin && button("Settings", () => editSettings(new Whole(name, this.#parts())), {}),
          !this.isLetters && button("Publish", () => publish(new Whole(name, this.#parts())), {}, "primary"),
        ),
      ),
      el(
        "section.card", {}, el("h2", {}, "Partitions"),
        el("p.muted", {}, this.isLetters ? "Each partition has its own dead letters: its number opens them." : "Each partition has its own messages and dead letters: their numbers open them."),
        this.partitions.element,
      ),
      el("section.card", {}, el("h2", {}, "Consumers"), this.consumers.element, this.unconsumed),
      el("section.card", {}, el("h2", {}, "Settings"), this.settings.element),
    );
  }

  #parts() {
    return partsOf(this.store, this.name);
  }

  shownNow() {
    this.update();
  }

  hiddenNow() {}

  update() {
    const parts = this.#parts();
    if (!parts.length) {
      say(this.badge, plural(0, "partition"));
      return;
    }
    const whole = new Whole(this.name, parts);
    say(this.badge, whole.word);
    this.badge.classList.toggle("warn", whole.old);
    this.partitions.draw(whole.parts.map((part) => {
      const shown = (text) => (part.missing ? "–" : text);
      return [
        part.name, el("a", { href: hrefOf(part.name) }, part.name), ...(this.kind ? [`${part.place.slice(this.kind.length + 1)}${part.missing ? ", missing" : part.old ? ", old" : ""}`] : []),
        this.#opens(part.name, "messages", shown(count(this.isLetters ? part.letters : part.described.messages))), shown(count(part.backlog)),
        part.described.consumers.length && part.backlog ? duration(part.lag) : "–", shown(count(part.inflight)), shown(bytes(part.described.bytes)),
        ...(this.isLetters ? [] : [this.#opens(part.name, "dead-letters", shown(count(this.store.topics.get(`${part.name}.dlq`)?.letters ?? 0)))]),
      ];
    }));
    this.consumers.draw(whole.consumers.map(({ consumer, mode, backlog, inflight, sessions }) => [consumer, consumer, mode, count(backlog), count(inflight), count(sessions)]));
    this.unconsumed.hidden = whole.consumers.length > 0;
    this.settings.update(whole.parts.map((part) => [part.described.settings, part.old]));
  }

  /** A number that leads to what it counts. */
  #opens(name, tab, text) {
    const what = tab === "dead-letters" || this.isLetters ? "Dead letters" : "Messages";
    return { text, href: hrefOf(name, tab), title: `${what} of ${name}` };
  }

  #purge() {
    const { contents } = new Whole(this.name, this.#parts());
    return confirmByName({
      title: "Purge topic", name: this.name, label: "Purge",
      lines: [`All partitions are emptied: ${contents} are dropped, for every consumer. Nothing brings them back.`],
      action: async () => {
        await api.purge(this.name);
        toast(`${this.name} is empty.`);
      },
    });
  }

  #remove() {
    const { contents } = new Whole(this.name, this.#parts());
    return confirmByName({
      title: "Delete topic", name: this.name, label: "Delete topic",
      lines: [`All partitions go, with ${contents}, their dead letters, consumers and settings. Nothing brings them back.`],
      action: async () => {
        await api.remove(this.name);
        toast(`${this.name} is gone.`);
        location.hash = "#/";
      },
    });
  }
}
