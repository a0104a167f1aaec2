// The longer forms: a topic and its settings, a message to publish, where a consumer goes on.

import { api } from "./api.js";
import { Refusal, ask, field, input, toast } from "./dialogs.js";
import { button, el } from "./dom.js";
import { exactBytes, exactDuration, parseBytes, parseDuration } from "./format.js";

const WORDS = { parse: (text) => text, format: String };
const COUNT = { parse: (text) => (/^\s*\d{1,16}\s*$/.test(text) ? Number(text) : NaN), format: String };
const TIME = { parse: parseDuration, format: exactDuration };
const SIZE = { parse: parseBytes, format: exactBytes };

const SETTINGS = [
  ["visibility", TIME, "Visibility timeout", "How long a delivered message is leased: 30s, 5m; a bare number is seconds, here and below"],
  ["max_attempts", COUNT, "Attempts", "Deliveries before a message is a dead letter; 0 is for ever"],
  ["ttl", TIME, "Time to live", "A message that is not delivered so long after its publish is dropped: 1h, 7d"],
  ["nack_backoff_min", TIME, "Backoff, at first", "Pause before a redelivery: 100ms"],
  ["nack_backoff_max", TIME, "Backoff, at most", "It doubles up to this: 30s"],
  ["retain_acked_for", TIME, "Keep acked messages", "How long they stay in the log: 24h"],
  ["retain_max_age", TIME, "Drop messages after", "Acked or not: 30d"],
  ["retain_max_bytes", SIZE, "Log size at most", "Oldest segments go first: 1GiB"],
  ["backlog_max_messages", COUNT, "Backlog at most, messages", "What is not acked yet"],
  ["backlog_max_bytes", SIZE, "Backlog at most, bytes", "What is not acked yet: 256MiB"],
  ["when_full", WORDS, "When the backlog is full", "", ["reject", "drop-oldest"]],
  ["dedupe_keys", COUNT, "Dedupe keys", "How many of the newest keys are remembered"],
];

/** What else could not stand in a path; the broker knows the rest. */
const NAME = /^[A-Za-z0-9_][A-Za-z0-9._-]*$/;

function settingsFields(settings) {
  const controls = new Map();
  const fields = SETTINGS.map(([name, kind, label, hint, words]) => {
    const control = words
      ? el("select", { name }, el("option", { value: "" }, "default"), words.map((word) => el("option", { value: word }, word)))
      : input({ name, placeholder: "default" });
    if (settings[name] !== undefined) control.value = kind.format(settings[name]);
    controls.set(name, control);
    return field(label, control, hint);
  });
  const changes = () => {
    const changed = {};
    for (const [name, kind, label] of SETTINGS) {
      const text = controls.get(name).value.trim();
      const value = text === "" ? null : kind.parse(text);
      if (typeof value === "number" && Number.isNaN(value)) throw new Refusal(`${label}: ${text} is not a value it takes.`);
      if (value !== (settings[name] ?? null)) changed[name] = value;
    }
    return changed;
  };
  return { fields: el("div.grid2", {}, fields), changes };
}

export function createTopic() {
  const name = input({ name: "topic", autofocus: true, maxlength: 200, placeholder: "orders.created" });
  const { fields, changes } = settingsFields({});
  return ask({
    title: "New topic", label: "Create topic", wide: true, ready: () => name.value.trim() !== "",
    body: [field("Name", name, "Letters, digits, . _ and -"), el("details", {}, el("summary", {}, "Settings"), fields)],
    async action() {
      const topic = name.value.trim();
      if (!NAME.test(topic)) throw new Refusal("A name is letters, digits, . _ and -, and does not begin with . or -");
      await api.create(topic, changes());
      toast(`${topic} is there.`);
      location.hash = `#/topics/${encodeURIComponent(topic)}`;
    },
  });
}

export function editSettings(topic) {
  const { fields, changes } = settingsFields(topic.described.settings);
  return ask({
    title: `Settings of ${topic.name}`, label: "Save settings", wide: true,
    body: [el("p.muted", {}, "An empty field is the broker's default."), fields],
    async action() {
      const changed = changes();
      if (!Object.keys(changed).length) throw new Refusal("Nothing is changed yet.");
      await api.configure(topic.name, changed);
      toast(`${topic.name} has its new settings.`);
    },
  });
}

export function publish(topic) {
  const payload = el("textarea", { name: "payload", rows: 8, autofocus: true, spellcheck: "false" });
  const key = input({ name: "key", maxlength: 512 });
  const delay = input({ name: "delay", placeholder: "none" });
  const ttl = input({ name: "ttl", placeholder: "none" });
  const rows = el("div.headers");
  const add = () => {
    const row = el(
      "div.headerrow", {},
      input({ "aria-label": "Header name", placeholder: "name" }), input({ "aria-label": "Header value", placeholder: "value" }),
      el("button.quiet", { type: "button", "aria-label": "Remove this header", click: () => row.remove() }, "×"),
    );
    rows.append(row);
    return row;
  };
  return ask({
    title: `Publish to ${topic.name}`, label: "Publish", wide: true,
    body: [
      field("Payload", payload),
      el(
        "div.grid3", {},
        field("Key", key, "The same key again is a duplicate"),
        field("Delay", delay, "5m, or seconds: not delivered before"),
        field("Time to live", ttl, "1h, or seconds: dropped when not delivered by then"),
      ),
      el("fieldset", {}, el("legend", {}, "Headers"), rows, button("Add a header", () => add().firstChild.focus())),
    ],
    async action() {
      const headers = [...rows.children].map((row) => [...row.querySelectorAll("input")].map((one) => one.value.trim()));
      for (const [name] of headers) {
        if (!/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)) throw new Refusal(`“${name}” cannot be the name of a header.`);
      }
      if (new Set(headers.map(([name]) => name.toLowerCase())).size < headers.length) throw new Refusal("A header stands twice.");
      const options = { key: key.value.trim(), headers, delay: 0, ttl: 0 };
      for (const [name, control] of [["delay", delay], ["ttl", ttl]]) {
        if (control.value.trim()) options[name] = parseDuration(control.value);
        if (Number.isNaN(options[name])) throw new Refusal(`${control.value} is not a time: 500ms, 30s, 5m, 1h, 7d, or seconds.`);
      }
      if (ttl.value.trim() && !options.ttl) throw new Refusal("With no time to live nothing would be delivered: leave it empty for no limit.");
      const receipt = await api.publish(topic.name, payload.value, options);
      toast(receipt.duplicate ? `Message ${receipt.id} has this key already: nothing was added.` : `Message ${receipt.id} is on stable storage.`);
    },
  });
}

export function seek(topic, consumer) {
  const where = el(
    "select", { name: "where", autofocus: true },
    el("option", { value: "earliest" }, "Earliest: everything again"), el("option", { value: "latest" }, "Latest: skip what is there"),
    el("option", { value: "id" }, "A message id"), el("option", { value: "time" }, "A time"),
  );
  const id = input({ name: "id", inputmode: "numeric", value: topic.described.first_id });
  const at = el("input", { type: "datetime-local", name: "time", step: 1 });
  const idField = field("Message id", id, `From ${topic.described.first_id} to ${topic.described.next_id}`);
  const timeField = field("Time", at, "The first message published then or later");
  const show = () => {
    idField.hidden = where.value !== "id";
    timeField.hidden = where.value !== "time";
  };
  where.addEventListener("change", show);
  show();
  return ask({
    title: `Move ${consumer}`, label: "Move consumer", kind: "danger",
    body: [
      el("p", {}, "Its leases, attempts and acks above the new place are forgotten, and its subscriptions end."),
      field("It goes on at", where), idField, timeField,
    ],
    async action() {
      let target = where.value;
      if (target === "id") target = id.value.trim();
      if (target === "time") {
        const ms = new Date(at.value).getTime();
        if (Number.isNaN(ms)) throw new Refusal("Choose a time.");
        target = `@${ms}`;
      }
      await api.seek(topic.name, consumer, target);
      toast(`${consumer} was moved.`);
    },
  });
}
