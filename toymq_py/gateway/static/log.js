// Messages of a topic as they lie in its log, newest first; nothing is consumed. Dead letters are the same with reasons and a way back.

import { api } from "./api.js";
import { confirm, input, toast, unread } from "./dialogs.js";
import { button, el, fill, say } from "./dom.js";
import { ago, bytes, count, plural, time } from "./format.js";
import { errorOf, grouped, reasonOf } from "./letters.js";
import { messagePanel, ownKey, payloadSize, preview } from "./message.js";
import { Search, exports } from "./search.js";
import { states } from "./states.js";

const PAGE = 50;
/** Letters that are grouped: one page of the API. */
const GROUPED = 1000;
const NEWEST = null;
/** Seen was nothing: the page is asked for again as soon as the broker speaks of its topic. */
const FAILED = null;

/** What no other message has, though its topic was deleted and made again. */
function made(message) {
  return `${message.id} ${message.time_ms}`;
}

/** A page of the log that can be turned. */
export class LogView {
  /** @param {boolean} letters they are dead letters, and can go back */
  constructor(topicName, { letters = false, admin = true } = {}) {
    this.topicName = topicName;
    this.letters = letters;
    this.admin = admin;
    this.from = NEWEST;
    this.messages = [];
    this.open = new Set();
    this.chosen = new Set();
    this.turn = 0;
    /** Where they are and how old, while they cannot be read from here. */
    this.unasked = null;
    this.older = button("← Older", () => this.go(Math.max(this.first, this.low - PAGE)));
    this.newer = button("Newer →", () => this.go(this.low + PAGE >= this.next - PAGE ? NEWEST : this.low + PAGE));
    this.newest = button("Newest", () => this.go(NEWEST));
    this.place = el("span.muted.number", { role: "status" });
    this.target = input({ "aria-label": "Go to message id", placeholder: "Go to id", inputmode: "numeric", class: "goto" });
    this.list = el("ol.log", { "aria-label": letters ? "Dead letters" : "Messages" });
    this.problem = el("p.problem", { role: "alert", hidden: true });
    this.bulk = letters && admin ? this.#bulk() : null;
    this.search = new Search(topicName, (found) => this.#found(found));
    this.group = letters ? button("Group by reason", () => this.#toggle(), { "aria-pressed": "false" }) : null;
    this.groups = letters ? el("section.groups", { "aria-label": "Dead letters by reason", hidden: true }) : null;
    this.read = el(
      "div", {},
      el(
        "div.row.pager", {},
        el("form.row", { submit: (event) => this.#goto(event) }, this.target),
        this.search.toggle, this.place, el("span.grow"), exports(topicName, () => this.messages), this.group, this.older, this.newer, this.newest,
      ),
      this.search.element,
    );
    this.element = el("section", {}, this.read, this.groups, this.bulk, this.problem, this.list);
  }

  #bulk() {
    this.all = el("input", { type: "checkbox", "aria-label": "Choose all on this page", change: () => this.#chooseAll() });
    this.some = button("Redrive chosen", () => this.#redrive([...this.chosen]), {}, "primary");
    this.every = button("Redrive all", () => this.#redrive(null));
    this.drop = button("Discard chosen", () => this.#discard([...this.chosen]), {}, "danger-text");
    return el(
      "div.row.bulk", {}, el("label.row", {}, this.all, "All on this page"), el("span.grow"), this.drop, this.some,
      this.every,
    );
  }

  /** The topic was described anew. */
  update(topic) {
    this.topic = topic;
    for (const stamp of this.list.querySelectorAll(".entry time")) say(stamp, ago(Number(stamp.dataset.ms)));
    if (!topic) return;
    this.first = topic.described.first_id;
    this.next = topic.described.next_id;
    if (this.search.active) return;
    const moved = `${this.first} ${this.next} ${topic.old} ${JSON.stringify(topic.described.redriven ?? [])}`;
    const place = `${topic.place} ${topic.old}`;
    if (this.unasked === place) return; // another group has them, or they are away
    this.unasked = null;
    this.read.hidden = false;
    if (moved !== this.seen && (this.seen === FAILED || this.from === NEWEST || this.letters)) {
      this.seen = moved;
      this.load();
    }
  }

  go(from) {
    this.from = from;
    return this.load();
  }

  #goto(event) {
    event.preventDefault();
    const id = Number(this.target.value);
    if (!/^\d{1,15}$/.test(this.target.value.trim()) || id < this.first || id >= this.next) {
      toast(this.next > this.first ? `Ids go from ${this.first} to ${this.next - 1}.` : "There is no message.", "bad");
      return;
    }
    this.#show(id);
  }

  async load() {
    this.turn += 1;
    const { turn } = this;
    try {
      const from = this.from === NEWEST ? Math.max(this.first, this.next - PAGE) : this.from;
      const page = await api.log(this.topicName, Math.max(from, this.first), PAGE);
      if (turn !== this.turn || this.search.active) return; // another page was asked for meanwhile
      this.low = Math.max(from, page.first_id);
      this.messages = page.messages.reverse();
      this.problem.hidden = true;
      this.#draw();
      if (this.groups && !this.groups.hidden) await this.#group(turn);
    } catch (error) {
      if (turn !== this.turn) return;
      this.seen = FAILED;
      if (error.code === "MOVED" || this.topic?.old) this.unasked = `${this.topic?.place} ${this.topic?.old}`;
      this.read.hidden = this.unasked !== null;
      this.#count();
      unread(this.problem, "The messages could not be loaded.", error);
      this.problem.hidden = false;
    }
  }

  /** Show what was found, or with null the log again. */
  #found(found) {
    for (const part of [this.place, this.older, this.newer, this.newest]) part.hidden = found !== null;
    if (found === null) {
      this.load();
      return;
    }
    this.turn += 1;
    this.messages = found;
    this.problem.hidden = true;
    this.#draw();
  }

  #toggle() {
    this.groups.hidden = !this.groups.hidden;
    this.group.setAttribute("aria-pressed", String(!this.groups.hidden));
    return this.load();
  }

  async #group(turn) {
    const from = Math.max(this.first, this.next - GROUPED);
    const page = await api.log(this.topicName, from, GROUPED);
    if (turn !== this.turn) return;
    const waiting = page.messages.filter(({ id }) => !this.#redriven(id)).reverse();
    const [seen, all] = [page.messages.length, this.next - this.first];
    const partial = seen < all ? `, ${count(seen)} of ${count(all)} looked at` : "";
    const rows = grouped(waiting).map((group) => el(
      "li.row", {},
      el("b.number", {}, count(group.count)), el("span.badge.bad", { title: group.reason }, group.reason), el("span", {}, group.consumer),
      el("bdi.preview.muted", { title: group.error }, group.error), el("span.grow"),
      button(`Newest: ${count(group.newest)}`, () => this.#show(group.newest), {}, "quiet"),
    ));
    fill(this.groups, el("p.muted", {}, `${plural(waiting.length, "dead letter")} by consumer and reason${partial}`), rows.length > 0 && el("ol", {}, rows));
  }

  #show(id) {
    this.open.add(id);
    return this.go(Math.max(this.first, id - PAGE + 1));
  }

  #draw() {
    const present = new Set(this.messages.map((message) => message.id));
    for (const id of this.chosen) if (!present.has(id)) this.chosen.delete(id);
    const known = new Map([...this.list.children].map((row) => [row.dataset.made, row]));
    this.list.classList.toggle("keyless", this.messages.every((message) => ownKey(message) === undefined));
    const rows = this.messages.map((message) => {
      const row = known.get(made(message));
      return row && !this.letters ? row : this.#row(message);
    });
    fill(this.list, rows.length ? rows : el("li.empty", {}, this.search.active ? "Nothing was found so far." : this.letters ? "No dead letters. That is how it should be." : "No messages in the log."));
    const [top, bottom] = [this.messages[0], this.messages.at(-1)];
    say(this.place, top ? `${count(bottom.id)} – ${count(top.id)} of ${count(this.first)} – ${count(this.next - 1)}` : "");
    this.older.disabled = this.low <= this.first;
    this.newer.disabled = this.newest.disabled = this.from === NEWEST;
    this.#count();
  }

  #row(message) {
    const facts = this.letters ? this.#facts(message) : [];
    const number = el("span.number.id", {}, count(message.id));
    const toggle = el(
      "button.entry", { type: "button", "aria-expanded": "false" },
      number, el("time.muted.number", { "data-ms": message.time_ms, title: time(message.time_ms) }, ago(message.time_ms)),
      this.letters ? facts : el("span.key", { title: ownKey(message) }, ownKey(message) ?? ""),
      el("bdi.preview", {}, preview(message)),
      el("span.muted.number.size", {}, bytes(payloadSize(message))),
    );
    const box = this.letters && this.admin && !this.#redriven(message.id) ? this.#box(message.id) : this.letters ? el("span.box") : null;
    const row = el("li", { "data-id": message.id, "data-made": made(message) }, el("div.linebox", {}, box, toggle));
    const set = (open) => {
      toggle.setAttribute("aria-expanded", String(open));
      row.querySelector(":scope > .panel")?.remove();
      if (open) row.append(this.#panel(message));
      this.open[open ? "add" : "delete"](message.id);
    };
    toggle.addEventListener("click", () => set(toggle.getAttribute("aria-expanded") !== "true"));
    if (this.open.has(message.id)) set(true);
    return row;
  }

  #panel(message) {
    const panel = messagePanel(message);
    if (!this.letters) panel.append(states(this.topicName, message.id));
    else if (this.admin && !this.#redriven(message.id)) {
      const { id } = message;
      panel.append(el("div.row", {}, button("Redrive it", () => this.#redrive([id]), {}, "primary"), button("Discard it", () => this.#discard([id]), {}, "danger-text")));
    }
    return panel;
  }

  #facts({ id, headers = {} }) {
    const error = errorOf(headers);
    const attempts = Number(headers["toymq-attempts"]);
    return el(
      "span.facts", {},
      el("span.badge.bad", { title: reasonOf(headers) }, reasonOf(headers)),
      this.#redriven(id) && el("span.badge.good", { title: "It was sent back, or discarded." }, "settled"),
      el("span", { title: headers["toymq-consumer"] ?? "" }, headers["toymq-consumer"] ?? "?"),
      el("span.muted", {}, `id ${headers["toymq-origin-id"] ?? "?"}${attempts ? `, ${plural(attempts, "attempt")}` : ""}`),
      error !== null && el("bdi.preview", { title: error }, headers["toymq-error"] ?? ""),
    );
  }

  #redriven(id) {
    return (this.topic?.described.redriven ?? []).some(([low, high]) => low <= id && id <= high);
  }

  #box(id) {
    const box = el("input.box", { type: "checkbox", "aria-label": `Choose dead letter ${id}` });
    box.checked = this.chosen.has(id);
    box.addEventListener("change", () => {
      this.chosen[box.checked ? "add" : "delete"](id);
      this.#count();
    });
    return box;
  }

  #chooseAll() {
    for (const box of this.list.querySelectorAll("input.box")) {
      if (box.checked !== this.all.checked) box.click();
    }
  }

  #count() {
    if (!this.bulk) return;
    const elsewhere = this.unasked !== null;
    this.some.disabled = this.drop.disabled = elsewhere || this.chosen.size === 0;
    this.every.disabled = elsewhere;
    say(this.some, this.chosen.size ? `Redrive ${this.chosen.size} chosen` : "Redrive chosen");
    const boxes = [...this.list.querySelectorAll("input.box")];
    this.all.checked = boxes.length > 0 && boxes.every((box) => box.checked);
    this.all.disabled = boxes.length === 0;
    this.bulk.hidden = this.messages.length === 0;
  }

  #redrive(ids) {
    const what = ids ? plural(ids.length, "dead letter") : "every dead letter of this topic";
    return confirm({
      title: "Redrive", label: ids ? `Redrive ${ids.length}` : "Redrive all",
      lines: [`This sends ${what} back to where it came from, for the consumer that gave up on it.`],
      action: async () => {
        const { redriven } = await api.redrive(this.topicName, ids);
        this.chosen.clear();
        toast(`${plural(redriven, "dead letter")} went back.`);
        await this.#again();
      },
    });
  }

  #discard(ids) {
    return confirm({
      title: "Discard", label: `Discard ${ids.length}`, kind: "danger",
      lines: [`${plural(ids.length, "dead letter")} will wait no longer, and no redrive brings ${ids.length === 1 ? "it" : "them"} back. The records stay in the log until retention drops them.`],
      action: async () => {
        const { discarded } = await api.discard(this.topicName, ids);
        this.chosen.clear();
        toast(`${plural(discarded, "dead letter")} discarded.`);
        await this.#again();
      },
    });
  }

  /** Show anew what is shown: of a search, what was found. */
  #again() {
    if (!this.search.active) return this.load();
    return this.#found(this.search.found);
  }
}
