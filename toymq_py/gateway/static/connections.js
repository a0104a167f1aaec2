// Who is connected: name, address, protocol, subscriptions, bytes a second; an admin closes one.

import { api } from "./api.js";
import { ask, toast } from "./dialogs.js";
import { button, el, fill, say } from "./dom.js";
import { ago, bytes, count, plural, time } from "./format.js";
import { Polling } from "./polling.js";

const EVERY_MS = 2000;
const SHOWN = 200;
const SUBSCRIPTIONS_SHOWN = 3;
const TEXTS = ["Protocol", "Address", "Subscriptions"];
const COLUMNS = ["Connection", ...TEXTS, "Inflight", "Received /s", "Sent /s", "Since"];

/** The kind of a column's cells: texts to the left, numbers to the right. */
const kind = (label) => (TEXTS.includes(label) ? "texts" : "number");

/** What a connection is called and its id, for where the name is cut. */
export const wholeName = ({ name, connection }) => (name ? `${name}, ${connection}` : connection);

/** A subscription, and with mode=single the topics whose messages it gets. */
const told = ({ topic, consumer, active_in }) =>
  `${topic} as ${consumer}${active_in == null ? "" : active_in.length ? ` (active in ${active_in.join(" ")})` : " (not active)"}`;

class Row {
  constructor(connection, view) {
    this.name = el("span.name");
    this.own = el("span.badge", { hidden: true });
    this.cells = Object.fromEntries(COLUMNS.slice(1).map((label) => [label, el(`td.${kind(label)}`, { "data-label": label })]));
    const id = connection.connection;
    this.close = button("Close", () => view.disconnect(connection), { "aria-label": `Close ${id}` }, "quiet");
    this.element = el("tr", {}, el("th", { scope: "row" }, this.name, this.own), Object.values(this.cells), el("td.rowactions", {}, this.close));
  }

  draw(connection, before, seconds) {
    const { cells } = this;
    say(this.name, connection.name ?? connection.connection);
    this.name.title = wholeName(connection);
    say(this.own, connection.own ? "this page" : "");
    this.own.hidden = !connection.own;
    this.close.hidden = connection.own;
    say(cells.Protocol, `${connection.protocol}${connection.tls ? ", TLS" : ""}`);
    say(cells.Address, [connection.address ?? "Unix socket", connection.token].filter(Boolean).join(", token "));
    const some = connection.subscriptions.slice(0, SUBSCRIPTIONS_SHOWN).map(told);
    const more = connection.subscriptions_total - some.length;
    cells.Subscriptions.title = connection.subscriptions.map(told).join("\n");
    const lacks = connection.lacks.length ? ` (without ${connection.lacks.join(", ")})` : "";
    say(cells.Subscriptions, (some.length ? some.join(", ") + (more > 0 ? ` and ${count(more)} more` : "") : "–") + lacks);
    say(cells.Inflight, count(connection.inflight));
    say(cells["Received /s"], perSecond(connection.received_bytes, before?.received_bytes, seconds));
    say(cells["Sent /s"], perSecond(connection.sent_bytes, before?.sent_bytes, seconds));
    say(cells.Since, ago(connection.since_ms));
    cells.Since.title = time(connection.since_ms);
  }
}

/** Bytes a second between two readings; "–" before the second one, and where the kernel does not count. */
function perSecond(now, before, seconds) {
  return Number.isInteger(now) && Number.isInteger(before) && seconds > 0 ? bytes(Math.max(Math.round((now - before) / seconds), 0)) : "–";
}

export class ConnectionsView {
  constructor() {
    this.title = "Connections";
    this.rows = new Map();
    this.before = new Map();
    this.readAt = 0;
    this.search = el("input", {
      type: "search", placeholder: "Search connections", "aria-label": "Search connections", "aria-keyshortcuts": "/", autocomplete: "off",
      spellcheck: "false", maxlength: 100, input: () => this.polling.now(),
    });
    this.total = el("span.muted.number", { role: "status" });
    this.polling = new Polling(() => api.connections(SHOWN, this.search.value.trim() || undefined), (answer) => this.#draw(answer), "The connections could not be read.", EVERY_MS);
    this.body = el("tbody");
    const heads = [...COLUMNS.map((label, i) => el(i ? `th.${kind(label)}` : "th", { scope: "col" }, label)), el("th", { scope: "col" }, el("span.hidden", {}, "Actions"))];
    this.table = el("div.scroller", { tabindex: 0, role: "region", "aria-label": "Connections" }, el("table.consumers.listing", {}, el("thead", {}, el("tr", {}, heads)), this.body));
    this.none = el("div.empty", { hidden: true }, "No connection matches.");
    this.element = el("div", {}, el("h1", {}, "Connections"), el("div.row.tools", {}, this.search, this.total), this.polling.problem, el("section.card", {}, this.table, this.none));
  }

  shownNow() {
    this.polling.start();
  }

  hiddenNow() {
    this.polling.stop();
  }

  update() {}

  #draw({ open, more, part, connections }) {
    const now = performance.now();
    const seconds = this.readAt ? (now - this.readAt) / 1000 : 0;
    this.readAt = now;
    const found = connections.map((connection) => {
      const id = connection.connection;
      if (!this.rows.has(id)) this.rows.set(id, new Row(connection, this));
      const row = this.rows.get(id);
      row.draw(connection, this.before.get(id), seconds);
      return row.element;
    });
    this.before = new Map(connections.map((connection) => [connection.connection, connection]));
    for (const id of this.rows.keys()) if (!this.before.has(id)) this.rows.delete(id);
    if (found.some((element, i) => this.body.children[i] !== element) || this.body.children.length !== found.length) this.#place(found);
    const all = plural(open, "connection") + (part ? `, of ${part} alone` : "");
    say(this.total, more || connections.length < open ? `${count(connections.length)} of ${all}` : all);
    this.table.hidden = found.length === 0;
    this.none.hidden = found.length > 0;
  }

  /** The focus stays where it is: what holds it is moved around, not out. */
  #place(found) {
    const focused = document.activeElement;
    fill(this.body, found);
    if (this.body.contains(focused)) focused.focus({ preventScroll: true });
  }

  disconnect({ connection, name, address }) {
    return ask({
      title: `Close ${name ?? connection}`, label: "Close connection", kind: "danger",
      body: [
        el("p", {}, `The connection ${connection}${address ? ` from ${address}` : ""} ends now. What it holds and has not acked is delivered again.`),
        el("p", {}, "A client that reconnects by itself comes back. To keep it out, take its token away."),
      ],
      action: async () => {
        await api.disconnect(connection);
        toast(`${name ?? connection} is closed.`);
        this.polling.now();
      },
    });
  }
}
