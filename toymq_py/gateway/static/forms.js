// The longer forms: a topic, a message to publish, where a consumer goes on.

import { api } from "./api.js";
import { Refusal, ask, field, input, toast } from "./dialogs.js";
import { button, el } from "./dom.js";
import { parseDuration } from "./format.js";
import { settingsFields } from "./settings.js";

/** What else could not stand in a path; the broker knows the rest. */
const NAME = /^[A-Za-z0-9_][A-Za-z0-9._-]*$/;

export function createTopic() {
  const name = input({ name: "topic", autofocus: true, maxlength: 200, placeholder: "orders.created" });
  const partitions = input({ name: "partitions", inputmode: "numeric", maxlength: 4, placeholder: "none" });
  const { fields, changes } = settingsFields({});
  return ask({
    title: "New topic", label: "Create topic", wide: true, ready: () => name.value.trim() !== "",
    body: [field("Name", name, "Letters, digits, . _ and -"), field("Partitions", partitions, "How many topics it is divided into, for good; empty for one that is not"), el("details", {}, el("summary", {}, "Settings"), fields)],
    async action() {
      const topic = name.value.trim();
      if (!NAME.test(topic)) throw new Refusal("A name is letters, digits, . _ and -, and does not begin with . or -");
      const many = partitions.value.trim();
      if (!/^\d*$/.test(many)) throw new Refusal(`${many} is not a number of partitions.`);
      await api.create(topic, many ? { ...changes(), partitions: Number(many) } : changes());
      toast(`${topic} is there.`);
      location.hash = `#/topics/${encodeURIComponent(topic)}`;
    },
  });
}

export function publish(topic) {
  const payload = el("textarea", { name: "payload", rows: 8, autofocus: true, spellcheck: "false" });
  const key = input({ name: "key", maxlength: 512 });
  const route = topic.parts ? input({ name: "route", maxlength: 512 }) : null;
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
        route && field("Route", route, "The same route goes to the same partition"),
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
      const options = { key: key.value.trim(), route: route?.value.trim(), headers, delay: 0, ttl: 0 };
      for (const [name, control] of [["delay", delay], ["ttl", ttl]]) {
        if (control.value.trim()) options[name] = parseDuration(control.value);
        if (Number.isNaN(options[name])) throw new Refusal(`${control.value} is not a time: 500ms, 30s, 5m, 1h, 7d, or seconds.`);
      }
      if (ttl.value.trim() && !options.ttl) throw new Refusal("With no time to live nothing would be delivered: leave it empty for no limit.");
      const receipt = await api.publish(topic.name, payload.value, options);
      toast(receipt.duplicate ? `Message ${receipt.id} has this key already: nothing was added.` : `Message ${receipt.id}${route ? ` of partition ${receipt.partition}` : ""} is on stable storage.`);
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
