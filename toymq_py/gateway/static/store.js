// What the broker says of itself once a second, and the rates that follow from it. Nothing here is kept anywhere else.

import { EVENTS, api } from "./api.js";
import { sentence } from "./format.js";

/** A second each. */
export const SAMPLES = 90;
const SILENCE_MS = 8000;
const RETRY_MS = 1000;
const RETRY_MS_MAX = 5000;
/** The rate that is shown is the mean of so many samples, or no digit would stand still. */
const SMOOTH = 3;

/** Numbers at equal distances in time, the newest last; NaN where nothing is known. */
export class Series {
  constructor(values = new Float32Array(SAMPLES).fill(NaN)) {
    this.values = values;
  }

  push(value) {
    this.values.copyWithin(0, 1);
    this.values[this.values.length - 1] = value;
  }

  /** Fill what was not seen from what the broker kept: a number each `stepS` seconds, the last of them `agoS` seconds old. */
  fill(kept, stepS, agoS) {
    for (let i = 0; i < this.values.length; i += 1) {
      const back = Math.floor((this.values.length - 1 - i - agoS) / stepS);
      if (Number.isNaN(this.values[i]) && back >= 0) this.values[i] = kept[kept.length - 1 - back] ?? NaN;
    }
  }

  get now() {
    const last = this.values.subarray(this.values.length - SMOOTH).filter((value) => !Number.isNaN(value));
    const mean = last.reduce((sum, value) => sum + value, 0) / (last.length || 1);
    return mean < 0.05 ? 0 : mean;
  }

  get top() {
    return this.values.reduce((top, value) => (value > top ? value : top), 0);
  }
}

/** A topic of which nothing is known but its name. */
const UNKNOWN = {
  state: "ok", lost: 0, bytes: 0, segments: 0, messages: 0, first_id: 0, next_id: 0, expired_total: 0, dead_lettered_total: 0, dropped_total: 0, settings: {},
};

export class Topic {
  constructor(described) {
    this.name = described.topic;
    this.isLetters = this.name.endsWith(".dlq");
    this.published = new Series();
    this.acked = new Series();
    this.consumers = new Map();
    this.nowMs = 0;
    this.take(described, 0);
  }

  /** A new description, `seconds` after the one before; 0 when nobody knows. */
  take(described, seconds) {
    const before = this.described;
    if (before && this.old) seconds = 0; // what happened meanwhile did not happen in this second
    if (described.as_of_ms === null) described = { ...UNKNOWN, ...described };
    const steps = before && seconds > 0 ? Math.max(described.next_id - before.next_id, 0) : 0;
    this.described = described;
    this.sample(seconds ? steps / seconds : NaN, this.#acks(before, described, seconds));
    this.oldestMs = null;
    this.inflight = 0;
    const alone = described.consumers.length ? {} : described; // what waits without a consumer; an older node does not say it
    this.backlog = alone.backlog ?? 0;
    this.scheduled = alone.scheduled ?? 0;
    for (const consumer of described.consumers) {
      this.backlog = Math.max(this.backlog, consumer.backlog);
      const at = consumer.oldest_unacked_at_ms;
      if (at !== null) this.oldestMs = Math.min(this.oldestMs ?? at, at);
      this.inflight += consumer.inflight;
      this.scheduled = Math.max(this.scheduled, consumer.scheduled);
    }
  }

  /** What has it does not answer: its figures are of a while ago, or there are none. */
  get old() {
    return this.described.as_of_ms !== undefined;
  }

  get missing() {
    return this.described.as_of_ms === null;
  }

  /** The group or worker that has it, "" where there are not several. */
  get place() {
    const { group, worker } = this.described;
    return group !== undefined ? `group ${group}` : worker !== undefined ? `worker ${worker}` : "";
  }

  /** How long ago something was, on the broker's clock; of old figures, at their time. */
  age(ms) {
    return ms === null ? 0 : Math.max((this.described.as_of_ms ?? this.nowMs) - ms, 0) / 1000;
  }

  get lag() {
    return this.age(this.oldestMs);
  }

  #acks(before, described, seconds) {
    let total = 0;
    const seen = new Set();
    const earlier = new Map(before?.consumers.map((consumer) => [consumer.consumer, consumer.acked_total]));
    for (const consumer of described.consumers) {
      const name = consumer.consumer;
      seen.add(name);
      const known = earlier.get(name);
      const acked = known === undefined || !seconds ? NaN : Math.max(consumer.acked_total - known, 0) / seconds;
      if (!this.consumers.has(name)) this.consumers.set(name, new Series());
      this.consumers.get(name).push(acked);
      if (acked) total += acked;
    }
    for (const name of this.consumers.keys()) if (!seen.has(name)) this.consumers.delete(name);
    return seconds ? total : NaN;
  }

  /** A second in which nothing happened to it. */
  rest() {
    const none = this.old ? NaN : 0;
    this.sample(none, none);
    for (const series of this.consumers.values()) series.push(none);
  }

  sample(published, acked) {
    this.published.push(published);
    this.acked.push(acked);
  }

  /** How many dead letters did not go back yet; 0 of any other topic. */
  get letters() {
    return this.isLetters ? this.described.letters ?? 0 : 0;
  }

  /** The topic that its dead letters are of. */
  get origin() {
    return this.isLetters ? this.name.slice(0, -".dlq".length) : this.name;
  }
}

/** What is counted of the broker, and its name in the history. */
const TOTALS = { publish_total: "published", deliver_total: "delivered", ack_total: "acked", redeliver_total: "redelivered" };

/** Tells "update" once a second, "link" when the broker goes or comes, "login" when a token is needed. */
export class Store extends EventTarget {
  constructor() {
    super();
    this.topics = new Map();
    this.stats = null;
    this.rates = Object.fromEntries(Object.keys(TOTALS).map((name) => [name, new Series()]));
    /** The group or worker that says all this, and those that do not answer it. */
    this.here = "";
    this.away = [];
    this.live = false;
    this.lost = false;
    this.heardAt = 0;
    this.wanted = false;
    this.retryMs = RETRY_MS;
  }

  /** Publishing is refused, or a message of the largest size would be: a disk may be full without a mark to stop at. */
  get diskFull() {
    const { disk_low: low, disk_free_bytes: free, limits } = this.stats;
    return low || free < limits.max_payload;
  }

  /** What is said of numbers that are of all: "" or "without group b". */
  get without() {
    return this.away.length ? `without ${this.away.map(({ place }) => place).join(", ")}` : "";
  }

  /** What is said of a topic that nothing was heard of. The names of groups' topics are known without them. */
  get unheard() {
    const workers = this.away.map(({ place }) => place).filter((place) => place.startsWith("worker "));
    return workers.length ? `${sentence(workers.join(", "))} ${workers.length === 1 ? "does" : "do"} not answer, and may have a topic of this name.` : "There is no topic of this name.";
  }

  /** Whether another group has a topic: only its own page can do something with it. */
  isElsewhere(topic) {
    return topic.described.group !== undefined && topic.place !== this.here;
  }

  open() {
    this.wanted = true;
    this.#connect();
  }

  close() {
    this.wanted = false;
    this.#disconnect();
  }

  #connect() {
    this.#disconnect();
    const source = (this.source = new EventSource(EVENTS));
    source.addEventListener("snapshot", (event) => this.#take(JSON.parse(event.data), true));
    source.addEventListener("change", (event) => this.#take(JSON.parse(event.data), false));
    source.addEventListener("error", () => this.#lost());
    this.#watch();
  }

  #disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** A broker that is stopped keeps its sockets: silence is the only sign of it. */
  #watch() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#lost(), SILENCE_MS);
  }

  async #lost() {
    this.#disconnect();
    this.live = false;
    if (!this.lost) {
      this.lost = true;
      this.dispatchEvent(new Event("link"));
    }
    try {
      await api.who();
    } catch (error) {
      if (error.status === 401) {
        this.dispatchEvent(new Event("login"));
        return;
      }
    }
    if (!this.wanted || this.source) return;
    this.timer = setTimeout(() => this.#connect(), this.retryMs);
    this.retryMs = Math.min(this.retryMs * 1.5, RETRY_MS_MAX);
  }

  #take({ now_ms: nowMs, stats, topics, gone, here = "", away = [] }, whole) {
    const before = this.stats;
    const { without } = this;
    Object.assign(this, { here, away });
    const seconds = before && without === this.without && stats.uptime_s > before.uptime_s ? stats.uptime_s - before.uptime_s : 0;
    for (const name of Object.keys(TOTALS)) this.rates[name].push(seconds ? Math.max(stats[name] - before[name], 0) / seconds : NaN);
    const changed = new Set();
    for (const described of topics) {
      const name = described.topic;
      changed.add(name);
      const known = this.topics.get(name);
      if (known) known.take(described, seconds);
      else this.topics.set(name, new Topic(described));
    }
    for (const name of gone) this.topics.delete(name);
    for (const [name, topic] of this.topics) {
      if (changed.has(name)) continue;
      if (whole) this.topics.delete(name);
      else topic.rest();
    }
    for (const topic of this.topics.values()) topic.nowMs = nowMs;
    this.stats = stats;
    this.heardAt = Date.now();
    this.retryMs = RETRY_MS;
    this.#watch();
    if (!this.live) {
      this.live = true;
      this.lost = false;
      this.dispatchEvent(new Event("link"));
    }
    this.dispatchEvent(new Event("update"));
    if (!before) this.#fill();
  }

  /** The lines of a page that was just opened begin with what the broker kept. Without it they begin empty. */
  async #fill() {
    let kept;
    try {
      kept = await api.history(SAMPLES + 10, true);
    } catch {
      return;
    }
    const agoS = Math.max(this.stats.time_ms - kept.last_ms, 0) / 1000;
    // A group keeps the hour of its own part, and what is counted here is of all groups.
    for (const [name, column] of Object.entries(kept.part ? {} : TOTALS)) this.rates[name].fill(kept.broker[column], kept.step_s, agoS);
    for (const [name, numbers] of Object.entries(kept.topics)) {
      const topic = this.topics.get(name);
      topic?.published.fill(numbers.published, kept.step_s, agoS);
      topic?.acked.fill(numbers.acked, kept.step_s, agoS);
    }
    this.dispatchEvent(new Event("update"));
  }
}
