// What clients of AMQP declared, and their connections: exchanges, bindings, queues, channels; searched, a page at a time.

import { api } from "./api.js";
import { wholeName } from "./connections.js";
import { button, el, say } from "./dom.js";
import { ago, count, plural, time } from "./format.js";
import { Polling } from "./polling.js";
import { Table } from "./table.js";

const EVERY_MS = 5000;
const SHOWN = 100;
const ARGUMENTS_SHOWN = 300;

/** Arguments as a client wrote them, without the braces. */
function written(given) {
  const text = Object.entries(given).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join(", ");
  return text.length > ARGUMENTS_SHOWN ? `${text.slice(0, ARGUMENTS_SHOWN)}…` : text || "–";
}

const host = (vhost) => vhost !== "/" && el("span.muted", {}, `vhost ${vhost}`);
const named = (name, vhost) => [el("span.name", { title: name }, name || "(default)"), host(vhost)];
const marks = (given) => Object.entries(given).filter(([, is]) => is).map(([word]) => word).join(", ") || "–";
const toTopic = ({ name, topic, vhost }) => [el("a.topicname", { href: `#/topics/${encodeURIComponent(topic)}`, title: name }, name), " ", host(vhost)];

/** How one channel goes: what it consumes, what the client has not acked, what is not confirmed to it. */
function channel({ channel: number, mode, consumers, prefetch, channel_prefetch, unacked, unconfirmed }) {
  const parts = [mode, consumers && plural(consumers, "consumer"), prefetch && `prefetch ${count(prefetch)}`, channel_prefetch && `of the channel ${count(channel_prefetch)}`];
  const owed = [unacked && `${count(unacked)} unacked`, unconfirmed && `${count(unconfirmed)} unconfirmed`];
  return el("li", {}, `${number}: ${[...parts, ...owed].filter(Boolean).join(", ") || "idle"}`);
}

const LISTS = {
  exchanges: {
    label: "Exchanges", one: "exchange", none: "No exchange matches.", ask: api.exchanges,
    heads: [["Exchange"], ["Type", "texts"], ["Features", "texts"], ["Alternate", "texts"], ["Bindings", "number"], ["Arguments", "texts"]],
    row: (each) => [
      named(each.name, each.vhost), each.type, marks({ durable: each.durable, "auto-delete": each.auto_delete, internal: each.internal, predeclared: each.predeclared }),
      typeof each.alternate === "string" ? each.alternate : "–", count(each.bindings), written(each.arguments),
    ],
  },
  bindings: {
    label: "Bindings", one: "binding", none: "No binding matches. A message to the default exchange goes to the queue of its routing key.", ask: api.bindings,
    heads: [["Source"], ["Destination", "texts"], ["Kind", "texts"], ["Routing key", "texts"], ["Arguments", "texts"]],
    row: ({ vhost, source, queue, exchange, routing_key, arguments: given }) => [named(source, vhost), queue ?? exchange, queue === null ? "exchange" : "queue", routing_key || "–", written(given)],
  },
  queues: {
    label: "Queues", one: "queue", none: "No queue matches.", ask: api.queues,
    heads: [["Queue"], ["Features", "texts"], ["Ready", "number"], ["Consumers", "number"], ["Arguments", "texts"]],
    row: (each) => [
      toTopic(each), marks({
        durable: each.durable, exclusive: each.exclusive, "auto-delete": each.auto_delete,
        "stream: each reader has its own position": each.arguments["x-queue-type"] === "stream",
      }),
      count(each.ready), count(each.consumers), written(each.arguments),
    ],
  },
  connections: {
    label: "Connections", one: "connection", none: "No connection of AMQP matches.", ask: async (max, skip, search) => {
      const { open, more, connections } = await api.connections(max, search, "amqp");
      return { total: open, more: false, beyond: more, connections };
    },
    heads: [["Connection"], ["Address", "texts"], ["Channels", "texts"], ["Unacked", "number"], ["Since", "number"]],
    row: (each) => [
      el("span.name", { title: wholeName(each) }, each.name ?? each.connection),
      [each.address ?? "Unix socket", each.tls && "TLS", each.token && `token ${each.token}`].filter(Boolean).join(", "),
      each.channels.length ? el("ul.channels", {}, each.channels.map(channel)) : "–", count(each.inflight), el("span", { title: time(each.since_ms) }, ago(each.since_ms)),
    ],
  },
};

export class AmqpView {
  constructor(list) {
    this.kind = Object.hasOwn(LISTS, list ?? "") ? list : "exchanges";
    const { label, heads, none } = LISTS[this.kind];
    this.title = `${label} · AMQP`;
    this.skip = 0;
    this.search = el("input", {
      type: "search", placeholder: `Search ${label.toLowerCase()}`, "aria-label": `Search ${label.toLowerCase()}`, "aria-keyshortcuts": "/", autocomplete: "off",
      spellcheck: "false", maxlength: this.kind === "connections" ? 100 : 255, input: () => this.#go(0),
    });
    this.total = el("span.muted.number", { role: "status" });
    this.polling = new Polling(() => LISTS[this.kind].ask(SHOWN, this.skip, this.search.value.trim() || undefined), (answer) => this.#draw(answer), `The ${this.kind} could not be read.`, EVERY_MS);
    this.table = new Table(label, heads, none);
    this.earlier = button("Previous", () => this.#go(Math.max(this.skip - SHOWN, 0)));
    this.later = button("Next", () => this.#go(this.skip + SHOWN));
    this.pager = el("div.row.pager", { hidden: true }, this.earlier, this.later);
    const tabs = Object.entries(LISTS).map(([kind, { label: words }]) => el("a", { href: `#/amqp/${kind}`, "aria-current": kind === this.kind ? "page" : null }, words));
    this.element = el(
      "div", {}, el("h1", {}, "AMQP"), el("nav.tabs", { "aria-label": "AMQP" }, tabs), this.polling.problem,
      el("div.row.tools", {}, this.search, this.total), el("section.card", {}, this.table.element, this.pager),
    );
  }

  shownNow() {
    this.polling.start();
  }

  hiddenNow() {
    this.polling.stop();
  }

  update() {}

  #go(skip) {
    this.skip = skip;
    return this.polling.now();
  }

  #draw(answer) {
    const { one, row } = LISTS[this.kind];
    const found = answer[this.kind];
    const all = plural(answer.total, one);
    const range = this.skip || answer.more ? `${count(this.skip + 1)} to ${count(this.skip + found.length)} of ${all}` : `${count(found.length)} of ${all}`;
    say(this.total, found.length === answer.total && !answer.beyond ? all : range);
    const text = JSON.stringify(found);
    if (text !== this.text) {
      this.text = text;
      this.table.draw(found.map(row));
    }
    this.earlier.hidden = this.skip === 0;
    this.later.hidden = !answer.more;
    this.pager.hidden = this.earlier.hidden && this.later.hidden;
  }
}
