// Search of a topic's log: what is looked for, how far the broker has looked, and what is shown as a file.

import { api } from "./api.js";
import { Refusal, input, toast } from "./dialogs.js";
import { button, el, say } from "./dom.js";
import { count, plural } from "./format.js";
import { ownKey } from "./message.js";

/** Messages that are shown of one search; a narrower one finds others. */
const SHOWN_MAX = 500;
const FIELDS = [
  ["text", "Text", "part of the payload, key or a header"], ["key", "Key", "the whole idempotency key"],
  ["header", "Header", "name, or name:value"],
];
const TIMES = [["since_ms", "From"], ["until_ms", "Until"]];

export class Search {
  /** @param shown is called when there is something new to show: what was found, or null when the search ended */
  constructor(topicName, shown) {
    this.topicName = topicName;
    this.shown = shown;
    this.controls = new Map([
      ...FIELDS.map(([name, label, hint]) => [name, input({ name, placeholder: hint, "aria-label": label, maxlength: 200 })]),
      ...TIMES.map(([name, label]) => [name, el("input", { type: "datetime-local", name, step: 1, "aria-label": label })]),
    ]);
    const labels = new Map([...FIELDS, ...TIMES].map(([name, label]) => [name, label]));
    this.status = el("span.muted.number", { role: "status" });
    this.further = button("Look further", () => this.#look(), {}, "primary");
    this.end = button("End search", () => this.stop(), {}, "quiet");
    this.form = el(
      "form.search", { hidden: true, novalidate: true, role: "search", "aria-label": "Messages", submit: (event) => this.#begin(event) },
      [...this.controls].map(([name, control]) => el("label", {}, el("span", {}, labels.get(name)), control)),
      el("button.primary", { type: "submit" }, "Search"),
    );
    this.progress = el("div.row.progress", { hidden: true }, this.status, this.further, this.end);
    this.toggle = button("Search", () => this.#toggle(), { "aria-expanded": "false", "aria-keyshortcuts": "/" });
    this.element = el("div", {}, this.form, this.progress);
    this.found = null;
  }

  /** Whether what is shown is what was found. */
  get active() {
    return this.found !== null;
  }

  #toggle() {
    if (this.form.hidden) this.opened().focus();
    else this.#close();
  }

  /** Open the form. Returns: its first field. */
  opened() {
    this.form.hidden = false;
    this.toggle.setAttribute("aria-expanded", "true");
    return this.form.querySelector("input");
  }

  #close() {
    this.form.hidden = true;
    this.toggle.setAttribute("aria-expanded", "false");
    if (this.active) this.stop();
  }

  async #begin(event) {
    event.preventDefault();
    const query = {};
    for (const [name, control] of this.controls) {
      if (!control.value.trim()) continue;
      query[name] = name.endsWith("_ms") ? new Date(control.value).getTime() : control.value.trim();
    }
    if (!Object.keys(query).length) {
      toast("Say what to look for.", "bad");
      return;
    }
    this.query = query;
    this.found = [];
    this.looked = 0;
    this.next = undefined;
    await this.#look();
  }

  async #look() {
    const { query } = this;
    const answer = await this.#ask();
    if (query !== this.query || answer === null) return; // another search was begun meanwhile
    this.found.push(...answer.messages);
    this.looked += answer.looked;
    this.next = answer.next;
    const full = this.found.length >= SHOWN_MAX;
    const where = answer.next === null ? "That is all there is." : full ? "No more are shown: look for something narrower." : `Down to id ${count(answer.looked_down_to)}; the oldest is ${count(answer.first_id)}.`;
    say(this.status, `${plural(this.found.length, "message")} found, ${plural(this.looked, "message")} looked at. ${where}`);
    this.further.hidden = answer.next === null || full;
    this.progress.hidden = false;
    this.shown(this.found);
  }

  async #ask() {
    try {
      return await api.search(this.topicName, { ...this.query, before: this.next ?? undefined });
    } catch (error) {
      if (error instanceof Refusal || !error.code) throw error;
      toast(`The search failed. ${error.code}: ${error.message}`, "bad");
      return null;
    }
  }

  stop() {
    this.query = null;
    this.found = null;
    this.progress.hidden = true;
    this.shown(null);
  }
}

const COLUMNS = ["topic", "id", "time", "key", "headers", "payload", "payload_base64"];

/** A cell of a CSV file. A spreadsheet would run what begins like a formula: that gets an apostrophe. */
function cell(value) {
  const text = value === undefined ? "" : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csv(messages) {
  const rows = messages.map((message) => {
    const headers = message.headers && JSON.stringify(message.headers);
    return [message.topic, message.id, new Date(message.time_ms).toISOString(), ownKey(message), headers, message.payload, message.payload_base64];
  });
  return [COLUMNS, ...rows].map((row) => row.map(cell).join(",")).join("\r\n");
}

/** Give messages to the viewer as a file. */
function save(topicName, messages, kind) {
  const text = kind === "csv" ? `${csv(messages)}\r\n` : messages.map((message) => `${JSON.stringify(message)}\n`).join("");
  const url = URL.createObjectURL(new Blob([text], { type: kind === "csv" ? "text/csv" : "application/x-ndjson" }));
  const link = el("a", { href: url, download: `${topicName}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Buttons that save what is shown. */
export function exports(topicName, messages) {
  return ["ndjson", "csv"].map((kind) => button(kind.toUpperCase(), () => save(topicName, messages(), kind), { "aria-label": `Save what is shown as ${kind.toUpperCase()}` }, "quiet"));
}
