// The settings of a topic: those in force, each with where it comes from, and the fields in which they are changed.

import { api } from "./api.js";
import { Refusal, ask, field, input, toast, unread } from "./dialogs.js";
import { el, fill, say } from "./dom.js";
import { count, exactBytes, exactDuration, parseBytes, parseDuration } from "./format.js";

const WORDS = { parse: (text) => text, format: String };
const COUNT = { parse: (text) => (/^\s*\d{1,16}\s*$/.test(text) ? Number(text) : NaN), format: String };
const TIME = { parse: parseDuration, format: exactDuration };
const SIZE = { parse: parseBytes, format: exactBytes };

const SETTINGS = [
  ["visibility", TIME, "Visibility timeout", "How long a delivered message is leased: 30s, 5m; a bare number is seconds, here and below"],
  ["max_attempts", COUNT, "Attempts", "Failed attempts before a message is a dead letter; 0 is for ever"],
  ["ttl", TIME, "Time to live", "A message that is not delivered so long after its publish is dropped: 1h, 7d"],
  ["nack_backoff_min", TIME, "Backoff, at first", "Pause before a redelivery: 100ms"],
  ["nack_backoff_max", TIME, "Backoff, at most", "It doubles up to this: 30s"],
  ["retain_acked_for", TIME, "Keep acked messages", "How long they stay in the log: 24h"],
  ["retain_max_age", TIME, "Drop messages after", "Acked or not: 30d"],
  ["retain_max_bytes", SIZE, "Log size at most", "Oldest segments go first: 1GiB"],
  ["tier_local_bytes", SIZE, "Log size on the disk at most", "With --tier, older segments are in the bucket alone: 10GiB"],
  ["tier_local_age", TIME, "Move to the bucket after", "With --tier: from then on it is in the bucket alone: 7d"],
  ["backlog_max_messages", COUNT, "Backlog at most, messages", "What is not acked yet"],
  ["backlog_max_bytes", SIZE, "Backlog at most, bytes", "What is not acked yet: 256MiB"],
  ["when_full", WORDS, "When the backlog is full", "", ["reject", "drop-oldest"]],
  ["dedupe_keys", COUNT, "Dedupe keys", "How many of the newest keys are remembered"],
];

const KINDS = new Map(SETTINGS.map(([name, kind]) => [name, kind]));

/** A value as it is written, "no limit" for none. */
function shown(name, value, from = "") {
  if (value === null) return from === "partitions" ? "differs" : "no limit";
  if (name === "max_attempts" && value === 0) return "for ever";
  const kind = KINDS.get(name) ?? WORDS;
  return kind === COUNT ? count(value) : kind.format(value);
}

async function settingsOf(topicName) {
  const { settings } = await api.settings(topicName);
  return new Map(settings.map((each) => [each.setting, each]));
}

const FROM = { topic: () => "set here", option: (name) => `option ${name} of the broker`, default: () => "default", "dead letters": () => "of dead letters", partitions: () => "by partition" };

/** Whether a setting was made for the topic, or for some of its partitions. */
function isOwn({ from }) {
  return from === "topic" || from === "partitions";
}

/** Between two questions that have no answer. */
const AGAIN_MS = 10_000;

/** The card: all settings that hold, those that were set here first. */
export class Settings {
  constructor(topicName) {
    this.topicName = topicName;
    this.list = el("dl.pairs.settings");
    this.problem = el("p.muted", { role: "status", hidden: true });
    this.element = el("div", {}, this.problem, this.list);
  }

  /** The topic was described anew, with these settings of its own. `place`: the group that has it, which alone can be asked. */
  update(own, place = "") {
    const set = JSON.stringify([own, place]);
    if (set === this.set || (set === this.unanswered && Date.now() < this.again)) return;
    this.set = set;
    this.#read(set);
  }

  async #read(set) {
    try {
      const inForce = await settingsOf(this.topicName);
      if (set !== this.set) return; // they were changed meanwhile
      this.problem.hidden = true;
      const all = [...inForce].sort(([, a], [, b]) => isOwn(b) - isOwn(a));
      fill(this.list, all.map(([name, { value, from }]) =>
        [el("dt", {}, name), el("dd.number", {}, el(isOwn({ from }) ? "b" : "span", {}, shown(name, value, from)), " ", el("span.muted", {}, (FROM[from] ?? String)(name)))]));
    } catch (error) {
      if (set !== this.set) return;
      this.set = null;
      this.unanswered = set;
      this.again = error.code === "MOVED" ? Infinity : Date.now() + AGAIN_MS;
      unread(this.problem, "The settings could not be read.", error);
      this.problem.hidden = false;
    }
  }
}

/** The fields of a form, and the changes in it. `inForce` has what holds, by setting, where the broker said it. */
export function settingsFields(settings, inForce = new Map()) {
  const controls = new Map();
  const fields = SETTINGS.map(([name, kind, label, hint, words]) => {
    const unset = inForce.has(name) ? `default: ${shown(name, inForce.get(name).default)}` : "default";
    const control = words
      ? el("select", { name }, el("option", { value: "" }, unset), words.map((word) => el("option", { value: word }, word)))
      : input({ name, placeholder: unset });
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

export async function editSettings(topic) {
  const inForce = await settingsOf(topic.name).catch(() => new Map());
  const { fields, changes } = settingsFields(topic.described.settings, inForce);
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
