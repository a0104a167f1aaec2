// The broker itself: its hour, disk and memory, limits, cluster, webhooks, alerts, tokens, and the options in force with their sources.

import { api } from "./api.js";
import { Cluster } from "./cluster.js";
import { el, fill, say } from "./dom.js";
import { ago, bytes, count, duration, exactDuration, plural, time } from "./format.js";
import { HOUR_S, Hour, OF_BROKER } from "./hour.js";
import { Polling } from "./polling.js";
import { Table } from "./table.js";

const EVERY_MS = 5000;
const SOON_MS = 14 * 86_400_000;
const LIMITS = { connections: ["Connections", count], topics: ["Topics", count], held_bytes: ["Held in memory for connections", bytes] };

/** How much of something is used, as a bar and in words. */
function meter(label, used, max, text) {
  const share = max > 0 ? used / max : 0;
  return el(
    "div.meter", {}, el("div.row", {}, el("span", {}, label), el("span.grow"), el("span.number", {}, text)),
    max > 0 && el("meter", { min: 0, max: 1, value: Math.min(share, 1), high: 0.9, optimum: 0, "aria-label": label }),
  );
}

const texts = (list) => (list.length ? list.join(", ") : "–");

export class BrokerView {
  constructor(store, session) {
    this.store = store;
    this.session = session;
    this.title = "Broker";
    this.hour = new Hour(async () => {
      const { step_s, broker } = await api.history(HOUR_S);
      return { step_s, numbers: broker };
    }, OF_BROKER);
    this.polling = new Polling(() => Promise.all([api.broker(), api.webhooks(), api.alerts()]), (answer) => this.#draw(...answer), "The broker could not be described.", EVERY_MS);
    this.facts = Object.fromEntries(["Version", "Process", "Up for", "Sync, p99", "Loop late by", "The broker's clock"].map((label) => [label, el("dd.number")]));
    this.room = el("div.meters", {});
    this.part = el("p.muted", { hidden: true });
    this.cluster = new Cluster();
    this.webhooks = new Table("Webhooks", [["Webhook"], ["Topic", "texts"], ["URL", "texts"], ["Signed", "texts"], ["Waiting", "number"], ["Inflight", "number"], ["State", "texts"]], "There are none. toymqctl webhooks set NAME TOPIC URL makes one, or PUT /v1/webhooks/NAME.");
    this.alerts = new Table("Alerts", [["Alert"], ["When", "texts"], ["Topic", "texts"], ["Goes to", "texts"], ["State", "texts"]], "There are none. toymqctl alerts set NAME makes one.");
    this.tokens = new Table("Tokens", [["Token"], ["Admin", "texts"], ["Publishes to", "texts"], ["Subscribes to", "texts"], ["Expires", "texts"]], "This broker has no auth file: whatever reaches it may do everything.");
    this.options = new Table("Options", [["Option"], ["Value", "texts"], ["From", "texts"], ["What it is", "texts.help"]], "No option matches.");
    this.search = el("input", {
      type: "search", placeholder: "Search options", "aria-label": "Search options", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false", input: () => this.#options(),
    });
    this.wanted = "set";
    this.spans = [["set", "Set here"], ["all", "All"]].map(([key, label]) => el("button", { type: "button", "aria-pressed": String(key === "set"), click: () => this.#which(key) }, label));
    this.element = el(
      "div", {}, el("h1", {}, "Broker"), this.part, this.polling.problem,
      el("div.overview.broker", {},
        el("section.card", { "aria-label": "The last hour" }, el("h2", {}, "The last hour"), this.hour.element),
        el("section.card", { "aria-label": "Numbers" }, el("dl.facts", {}, Object.entries(this.facts).map(([label, value]) => el("div", {}, el("dt.muted", {}, label), value))), this.room)),
      this.cluster.element,
      session.admin && [
        el("section.card", {}, el("h2", {}, "Webhooks"), this.webhooks.element),
        el("section.card", {}, el("h2", {}, "Alerts"), this.alerts.element),
        el("section.card", {}, el("h2", {}, "Tokens"), this.tokens.element),
        el("section.card", {}, el("h2", {}, "Options"), el("div.row.tools", {}, this.search, el("div.segmented", { role: "group", "aria-label": "Which options" }, this.spans)), this.options.element),
      ],
    );
  }

  shownNow() {
    this.hour.start();
    this.update();
    if (this.session.admin) this.polling.start();
  }

  hiddenNow() {
    this.hour.stop();
    this.polling.stop();
  }

  update() {
    const { stats } = this.store;
    if (!stats) return;
    const { facts } = this;
    say(facts.Version, `toymq ${stats.version}`);
    say(facts["Up for"], duration(Math.floor(stats.uptime_s)));
    say(facts["Sync, p99"], stats.fsync_total ? `${duration(stats.fsync_p99_s)}${stats.fsync === "always" ? "" : `, ${stats.fsync}`}` : "–");
    say(facts["Loop late by"], duration(stats.loop_lag_s));
    say(facts["The broker's clock"], time(stats.time_ms));
    this.cluster.draw(stats.cluster, this.store.away);
    this.#hooks();
    if (!this.session.admin) fill(this.room, meter("Disk free", 0, 0, bytes(stats.disk_free_bytes)), meter("Memory", 0, 0, bytes(stats.rss_bytes)));
  }

  #draw(described, { webhooks }, { alerts }) {
    const { disk, memory, limits } = described;
    say(this.facts.Process, `${described.pid}, Python ${described.python}, ${described.compiled ? "compiled" : "from source"}`);
    say(this.part, described.part ? `${described.part.startsWith("group") ? "The last hour, process" : "Process"}, disk, memory, limits, webhooks, alerts and options are those of ${described.part}. Its gateway is asked; the others have pages of their own.` : "");
    this.part.hidden = !described.part;
    fill(
      this.room,
      meter("Logs on the disk", disk.log_bytes, disk.log_bytes + disk.free_bytes, `${bytes(disk.log_bytes)}, ${bytes(disk.free_bytes)} free`),
      el("p.muted", {}, disk.min_free_bytes ? `Below ${bytes(disk.min_free_bytes)} free, publishing is refused.` : "No space is kept free: publishing goes on until the disk is full."),
      meter("Memory", memory.resident_bytes, memory.max_bytes, memory.max_bytes ? `${bytes(memory.resident_bytes)} of ${bytes(memory.max_bytes)}` : bytes(memory.resident_bytes)),
      limits.map(({ limit, used, max, refused_total: refused }) => {
        const [label, shown] = LIMITS[limit] ?? [limit, count];
        return meter(label, used, max, `${shown(used)} of ${shown(max)}${refused ? `, ${plural(refused, "refusal")}` : ""}`);
      }),
    );
    this.hooks = webhooks;
    this.#hooks();
    this.alerts.draw(alerts.map(alertRow));
    this.tokens.draw((described.tokens ?? []).map((token) => [
      el("bdi", {}, token.name), token.admin ? "yes" : "–", texts(token.publish), texts(token.subscribe), expiry(token, this.store.stats?.time_ms ?? Date.now()),
    ]));
    const all = JSON.stringify(described.options);
    if (all !== this.known) {
      this.known = all;
      this.all = described.options;
      this.#options();
    }
  }

  #hooks() {
    const rows = (this.hooks ?? []).map((hook) => this.#webhook(hook));
    const texts = JSON.stringify(rows.map((row) => row.map((cell) => cell.textContent ?? cell)));
    if (texts !== this.drawn || !rows.length) this.webhooks.draw(rows); // a text that is being marked stays
    this.drawn = texts;
  }

  /** A webhook is a consumer: what waits for it, over all topics of its pattern, is on the page already. */
  #webhook({ name, topic, url, secret, failure, letters }) {
    const parts = [...this.store.topics.values()].flatMap((one) => one.described.consumers.filter(({ consumer }) => consumer === `webhook.${name}`));
    const sum = (key) => parts.reduce((total, part) => total + part[key], 0);
    const waiting = sum("backlog") + sum("scheduled");
    const dead = letters ? [plural(letters, "dead letter"), " since the start"].join("") : "";
    const text = [failure ? `fails: ${failure}` : waiting ? "pushes" : dead ? "" : "has pushed everything", dead].filter(Boolean).join("; ");
    const state = failure || dead ? el("span.slow", { title: text }, text) : text;
    return [el("bdi", {}, name), topic, url, secret ? "yes" : "no", count(waiting), count(sum("inflight")), state];
  }

  #which(key) {
    this.wanted = key;
    this.spans.forEach((button, i) => button.setAttribute("aria-pressed", String((i === 0) === (key === "set"))));
    this.#options();
  }

  #options() {
    const text = this.search.value.trim().toLowerCase().replaceAll("-", "_");
    const found = (this.all ?? []).filter(({ option, from, help }) =>
      (text ? option.includes(text) || help.toLowerCase().includes(text) : this.wanted === "all" || from !== "default"));
    say(this.options.none, text ? "No option matches." : "No option is set: all have their defaults.");
    this.options.draw(found.map(({ option, value, from, help }) => [el("code", {}, option), value ?? "–", from, help]));
  }
}

const AMOUNTS = { messages: (value) => plural(value, "message"), ms: exactDuration, bytes };

/** A rule, and where it fires, in the words of toymqctl alerts. */
function alertRow({ name, when, topic, threshold, unit, for_ms: forMs, url, to, firing, troubles, beyond, failure }) {
  const amount = AMOUNTS[unit] ?? count;
  const fires = troubles.filter((trouble) => trouble.firing).map((trouble) => trouble.topic ?? "the disk");
  const pending = troubles.length + beyond - firing;
  const title = [...fires, failure && `The last notice was not taken: ${failure}`].filter(Boolean).join("\n");
  const words = [firing ? `${count(firing)} firing: ${fires.slice(0, 3).join(", ")}${firing > 3 ? " and more" : ""}` : "ok", pending && `${count(pending)} pending`, failure && `fails: ${failure}`];
  return [
    el("bdi", {}, name), `${when} ${unit === "bytes" ? "at most" : "at least"} ${amount(threshold)}${forMs ? ` for ${exactDuration(forMs)}` : ""}`, topic ?? "–", url ?? `topic ${to}`,
    el(firing || failure ? "span.slow" : "span", { title }, words.filter(Boolean).join(", ")),
  ];
}

function expiry({ expires_ms: at, expired }, nowMs) {
  if (at === null) return "never";
  if (expired) return el("span.slow", { title: time(at) }, `expired ${ago(at)}`);
  const left = `in ${duration(Math.floor((at - nowMs) / 1000))}`;
  return el(at - nowMs < SOON_MS ? "span.slow" : "span", { title: time(at) }, left);
}
