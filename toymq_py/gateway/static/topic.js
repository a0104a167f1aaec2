// One topic: what goes in and out, who consumes it, its messages, its dead letters.

import { api } from "./api.js";
import { Chart, Sparkline } from "./chart.js";
import { confirmByName, toast } from "./dialogs.js";
import { button, el, fill, say } from "./dom.js";
import { bytes, count, duration, plural, rate, sentence, time } from "./format.js";
import { publish, seek } from "./forms.js";
import { HOUR_S, Hour, OF_TOPIC } from "./hour.js";
import { LogView } from "./log.js";
import { Settings, editSettings } from "./settings.js";
import { wholeOf } from "./whole.js";

/** One consumer in the table. */
class ConsumerRow {
  constructor(name, view) {
    this.spark = new Sparkline("out");
    this.cells = Object.fromEntries(["lag", "age", "rate", "inflight", "ready", "scheduled", "acked", "sessions"].map((key) => [key, el("td.number")]));
    this.badges = el("span.badges");
    const { rate: acks, ...rest } = this.cells;
    const labels = { lag: "Backlog", age: "Oldest unacked", inflight: "Inflight", ready: "Ready", scheduled: "Scheduled", acked: "Last acked", sessions: "Sessions" };
    for (const [key, label] of Object.entries(labels)) rest[key].dataset.label = label;
    acks.dataset.label = "Acked /s";
    this.acts = view.session.admin ? [
      button("Move", () => seek(view.topic, name), { "aria-label": `Move ${name}` }, "quiet"),
      button("Forget", () => view.forget(name), { "aria-label": `Forget ${name}` }, "quiet"),
    ] : [];
    this.element = el(
      "tr", {},
      el("th", { scope: "row" }, el("bdi.name", { title: name }, name), this.badges),
      rest.lag, rest.age, el("td.sparkcell", {}, this.spark.element), acks, rest.inflight, rest.ready, rest.scheduled, rest.acked, rest.sessions,
      view.session.admin && el("td.rowactions", {}, this.acts),
    );
  }

  draw(consumer, series, age, elsewhere) {
    const { cells } = this;
    for (const act of this.acts) act.disabled = elsewhere;
    say(cells.lag, count(consumer.backlog));
    say(cells.age, consumer.backlog ? duration(age) : "–");
    say(cells.rate, rate(series.now));
    say(cells.inflight, count(consumer.inflight));
    say(cells.ready, count(consumer.ready));
    say(cells.scheduled, count(consumer.scheduled));
    say(cells.acked, consumer.has_acked ? count(consumer.last_acked) : "–");
    say(cells.sessions, count(consumer.sessions));
    for (const cell of Object.values(cells)) cell.classList.toggle("zero", cell.textContent === "0" || cell.textContent === "–");
    cells.age.classList.toggle("slow", consumer.backlog > 0 && age >= 60);
    const badges = [consumer.mode !== "exclusive" && consumer.mode, consumer.paused && "paused", consumer.retrying > 0 && `${count(consumer.retrying)} retrying`, consumer.backlog > 0 && !consumer.sessions && !consumer.inflight && "nothing attached"].filter(Boolean);
    if (this.badges.textContent !== badges.join("")) fill(this.badges, badges.map((word) => el("span.badge", {}, word)));
    this.spark.draw(series);
  }
}

export class TopicView {
  constructor(store, session, name, tab) {
    this.store = store;
    this.session = session;
    this.name = name;
    this.title = name;
    this.tab = tab;
    this.consumers = new Map();
    this.chart = new Chart([["Published", "in"], ["Acked, all consumers", "out"]]);
    this.hour = new Hour(() => api.topicHistory(name, HOUR_S), OF_TOPIC);
    this.hour.element.hidden = true;
    this.spans = [["live", "90 s"], ["hour", "1 hour"]].map(([key, label]) =>
      el("button", { type: "button", "aria-pressed": String(key === "live"), click: () => this.#span(key) }, label));
    this.state = el("span.badge", { hidden: true });
    this.place = el("span.badge", { hidden: true });
    this.facts = Object.fromEntries(
      ["Backlog", "Messages", "Ids", "On disk", "Scheduled", "Expired", "Dead letters", "Dropped", "Lost"].map((label) => [label, el("dd.number")]));
    this.settings = new Settings(name);
    this.rows = el("tbody");
    this.unconsumed = el("p.empty", { hidden: true });
    this.isLetters = name.endsWith(".dlq");
    this.lettersName = this.isLetters ? name : `${name}.dlq`;
    const href = `#/topics/${encodeURIComponent(name)}`;
    this.tabs = [["", "Overview"], ["messages", this.isLetters ? "Dead letters" : "Messages"], ...(this.isLetters ? [] : [["dead-letters", "Dead letters"]])].map(
      ([key, label]) => ({ key, label, element: el("a", { href: key ? `${href}/${key}` : href, "aria-current": key === tab ? "page" : null }, label) }));
    this.absent = el("h1");
    this.gone = el("div.empty", { hidden: true }, this.absent, el("p", {}, el("a", { href: "#/" }, "All topics")));
    this.problem = el("p.problem", { hidden: true });
    this.log = null;
    if (tab === "messages") this.log = new LogView(name, { letters: this.isLetters, admin: session.admin });
    if (tab === "dead-letters") this.log = new LogView(this.lettersName, { letters: true, admin: session.admin });
    this.none = el("p.empty", { hidden: true }, "No dead letters. That is how it should be.");
    this.shell = el("div", {}, this.#head(), el("nav.tabs", { "aria-label": "Parts of the topic" }, this.tabs.map((one) => one.element)), this.problem,
      this.log ? [this.none, this.log.element] : this.#overview());
    this.element = el("div", {}, this.gone, this.shell);
  }

  #head() {
    const { admin } = this.session;
    const whole = wholeOf(this.name);
    const slash = () => el("span.muted", { "aria-hidden": "true" }, " / ");
    this.acts = el(
      "div.row.acts", {},
      admin && !(whole && !this.isLetters) && button("Delete", () => this.remove(), {}, "quiet.danger-text"), // partitions go as a whole
      admin && button("Purge", () => this.purge(), {}, "quiet"),
      admin && button("Settings", () => this.topic && editSettings(this.topic), {}),
      !this.isLetters && button("Publish", () => this.topic && publish(this.topic), {}, "primary"),
    );
    return el(
      "div.row.head", {},
      el("nav.crumbs", { "aria-label": "Where this is" }, el("a", { href: "#/" }, "Topics"), slash(), whole && [el("a", { href: `#/topics/${encodeURIComponent(whole)}`, title: "All its partitions" }, whole), slash()]),
      el("h1", {}, el("bdi", { title: this.name }, this.name)), this.state, this.place, el("span.grow"), this.acts,
    );
  }

  #overview() {
    const columns = ["Consumer", "Backlog", "Oldest unacked", "", "Acked /s", "Inflight", "Ready", "Scheduled", "Last acked", "Sessions"];
    const labels = columns.map((label, i) => el(i === 0 ? "th" : "th.number", { scope: "col" }, label || el("span.hidden", {}, "Acked, a line")));
    this.people = el(
      "div.scroller", {},
      el("table.consumers", {}, el("thead", {}, el("tr", {}, labels, this.session.admin && el("th", { scope: "col" }, el("span.hidden", {}, "Actions")))), this.rows),
    );
    return [
      el("div.overview", {},
        el("section.card.rates", { "aria-label": "Rates" }, el("div.segmented", { role: "group", "aria-label": "How far back" }, this.spans), this.chart.element, this.hour.element),
        el("section.card", { "aria-label": "Numbers" }, el("dl.facts", {}, Object.entries(this.facts).map(([label, value]) => el("div", {}, el("dt.muted", {}, label), value))))),
      el("section.card", {}, el("h2", {}, "Consumers"), this.people, this.unconsumed),
      el("section.card", {}, el("h2", {}, "Settings"), this.settings.element),
    ];
  }

  get topic() {
    return this.store.topics.get(this.name);
  }

  /** Where a search of this view is typed; of messages, it is opened by that. */
  get search() {
    return this.log && !this.log.element.hidden && !this.log.read.hidden && this.topic ? this.log.search.opened() : null;
  }

  shownNow() {
    this.update();
  }

  hiddenNow() {
    this.hour.stop();
  }

  #span(key) {
    this.spans.forEach((button, i) => button.setAttribute("aria-pressed", String((i === 1) === (key === "hour"))));
    this.chart.element.hidden = key === "hour";
    this.hour.element.hidden = key !== "hour";
    if (key === "hour") this.hour.start();
    else this.hour.stop();
  }

  update() {
    if (!this.store.stats) return;
    const { topic } = this;
    const absent = !topic || topic.missing;
    this.gone.hidden = !absent;
    this.shell.hidden = absent;
    if (absent) {
      say(this.absent, topic ? `${sentence(topic.place)} has this topic, and does not answer.` : this.store.unheard);
      return;
    }
    for (const act of this.acts.children) act.disabled = this.store.isElsewhere(topic);
    const { described } = topic;
    this.state.hidden = described.state === "ok";
    this.state.className = `badge ${described.state === "failed" ? "bad" : "warn"}`;
    say(this.state, described.state);
    this.place.hidden = !topic.place;
    say(this.place, topic.place);
    const trouble = {
      failed: `This topic failed${described.problem ? `: ${described.problem}` : ": a write or sync went wrong"}. Publishing is refused until the broker is restarted.`,
      degraded: described.lost || !described.offsets_problem
        ? `Part of the log cannot be read: ${plural(described.lost, "message")} lost. toymq verify says where.`
        : "The consumers' state was damaged. Until the next restart, a consumer that is not listed begins at the first message.",
    }[described.state];
    const old = topic.old && `${sentence(topic.place)}, which has this topic, does not answer: this is how it was at ${time(described.as_of_ms)}.`;
    this.problem.hidden = !(old || trouble);
    if (old || trouble) say(this.problem, old || trouble);
    this.problem.classList.toggle("warn", !old && described.state === "degraded");
    const letters = this.store.topics.get(this.lettersName);
    const waiting = letters?.letters ?? 0;
    for (const { key, label, element } of this.tabs) {
      const many = key === "messages" ? (this.isLetters ? topic.letters : described.messages) : key === "dead-letters" ? waiting : 0;
      say(element, many ? `${label} ${count(many)}` : label);
    }
    if (this.log) {
      const shown = this.store.topics.get(this.log.topicName);
      this.none.hidden = Boolean(shown);
      this.log.element.hidden = !shown;
      this.log.update(shown);
    } else {
      this.#overviewNow(topic, waiting);
    }
  }

  #overviewNow(topic, waiting) {
    const { described } = topic;
    this.chart.draw(topic.published, topic.acked);
    const { facts } = this;
    const readers = described.stream && !described.consumers.length;
    say(facts.Backlog, readers ? "–" : count(topic.backlog));
    say(this.unconsumed, readers ? "A stream: each reader of AMQP has a position of its own, and nothing waits for it." : "Nothing consumes this topic yet.");
    say(facts.Messages, count(described.messages));
    say(facts.Ids, described.messages ? `${count(described.first_id)} – ${count(described.next_id - 1)}` : "–");
    say(facts["On disk"], `${bytes(described.bytes)} in ${plural(described.segments, "segment")}`);
    say(facts.Scheduled, count(topic.scheduled));
    say(facts.Expired, count(described.expired_total));
    say(facts["Dead letters"], `${count(waiting)}${described.dead_lettered_total ? ` (${count(described.dead_lettered_total)} since start)` : ""}`);
    say(facts.Dropped, count(described.dropped_total));
    say(facts.Lost, count(described.lost));
    facts.Lost.classList.toggle("slow", described.lost > 0);
    const names = new Set();
    const elsewhere = this.store.isElsewhere(topic);
    for (const consumer of described.consumers) {
      names.add(consumer.consumer);
      let row = this.consumers.get(consumer.consumer);
      if (!row) {
        row = new ConsumerRow(consumer.consumer, this);
        this.consumers.set(consumer.consumer, row);
        this.rows.append(row.element);
      }
      row.draw(consumer, topic.consumers.get(consumer.consumer), topic.age(consumer.oldest_unacked_at_ms), elsewhere);
    }
    for (const [name, row] of this.consumers) {
      if (names.has(name)) continue;
      row.element.remove();
      this.consumers.delete(name);
    }
    this.people.hidden = names.size === 0;
    this.unconsumed.hidden = names.size > 0;
    this.settings.update(described.settings, `${topic.place} ${topic.old}`);
  }

  forget(name) {
    return confirmByName({
      title: `Forget ${name}`, name, label: "Forget consumer",
      lines: [`What ${name} has acked is forgotten, and its subscriptions end. A consumer of this name begins anew.`],
      action: async () => {
        await api.forget(this.name, name);
        toast(`${name} is forgotten.`);
      },
    });
  }

  purge() {
    return confirmByName({
      title: "Purge topic", name: this.name, label: "Purge",
      lines: [`All ${plural(this.topic?.described.messages ?? 0, "message")} of this topic are dropped, for every consumer. Ids go on from where they were. Nothing brings them back.`],
      action: async () => {
        await api.purge(this.name);
        toast(`${this.name} is empty.`);
      },
    });
  }

  remove() {
    return confirmByName({
      title: "Delete topic", name: this.name, label: "Delete topic",
      lines: [`The topic goes, with ${plural(this.topic?.described.messages ?? 0, "message")}, its consumers and its settings. Nothing brings it back.`],
      action: async () => {
        await api.remove(this.name);
        toast(`${this.name} is gone.`);
        location.hash = "#/";
      },
    });
  }
}
