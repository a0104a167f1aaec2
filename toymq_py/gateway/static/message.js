// One message on the screen. All of it comes from strangers: it is text here, isolated from the direction of what is around it.

import { toast } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { bytes, plural, time } from "./format.js";
import { errorOf, tracebackOf } from "./letters.js";

const PREVIEW_CHARS = 200;
const TEXT_CHARS = 65_536;
const HEX_BYTES = 4096;
/** Levels; what nests deeper would be mostly blanks. */
const INDENT_MAX = 32;
/** Headers of dead letters that are unix milliseconds. */
const MOMENTS = new Set(["toymq-failed-at", "toymq-first-delivered", "toymq-last-delivered"]);

/** The key that the publisher gave: a dead letter, and what came back from there, have keys of the broker's. */
export function ownKey({ key, headers = {} }) {
  const moved = (key?.startsWith("dlq:") && "toymq-origin-id" in headers) || (key?.startsWith("redrive:") && "toymq-redrives" in headers);
  const own = moved ? headers["toymq-origin-key"] : key;
  return own?.startsWith("~seq~") ? undefined : own;
}

/** When it was published; of a dead letter, whose record is younger, that of the message, and when it died. */
function moments({ key = "", headers = {}, time_ms: stored }) {
  const [, id, published] = /^dlq:.*:(\d+):(\d+):\d+$/.exec(key) ?? [];
  if (id === undefined || id !== headers["toymq-origin-id"]) return `Published ${time(stored)}`;
  return `Published ${time(Math.floor(Number(published) / 1e6))}, died ${time(stored)}`;
}

/** The payload's bytes. */
function payloadBytes(message) {
  if (message.payload_base64 === undefined) return new TextEncoder().encode(message.payload);
  return Uint8Array.from(atob(message.payload_base64), (character) => character.charCodeAt(0));
}

/** How many bytes the payload has. */
export function payloadSize(message) {
  if (message.payload_base64 === undefined) return payloadBytes(message).length;
  return Math.floor((message.payload_base64.length * 3) / 4) - (/=*$/.exec(message.payload_base64)[0].length || 0);
}

/** Its beginning, in one line. */
export function preview(message) {
  const text = message.payload ?? hexLine(payloadBytes({ payload_base64: message.payload_base64.slice(0, 64) }));
  return text.length > PREVIEW_CHARS ? `${text.slice(0, PREVIEW_CHARS)}…` : text;
}

function hexLine(data) {
  return [...data].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** Offset, sixteen bytes, and what of them is printable ASCII. */
function hexDump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = data.slice(at, at + 16);
    const text = [...row].map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hexLine(row).padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

/** JSON with a line for each member. Its own text, not what a parser makes of it: that rounds numbers, and drops a name's first value. */
export function indented({ payload }) {
  if (payload === undefined || !/^\s*[[{"\d-]/.test(payload)) return null;
  try {
    JSON.parse(payload);
  } catch {
    return null;
  }
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, INDENT_MAX))}`;
  return payload.replace(/"(?:[^"\\]+|\\.)*"|\[\s*\]|\{\s*\}|[[\]{},:]|\s+/g, (token) => {
    if (token[0] === '"') return token;
    const text = token.replace(/\s+/g, "");
    if (text === ",") return `,${line()}`;
    if (text === ":") return ": ";
    if (text === "[" || text === "{") {
      depth += 1;
      return text + line();
    }
    if (text === "]" || text === "}") {
      depth -= 1;
      return line() + text;
    }
    return text;
  });
}

function readable(name, value) {
  if (!MOMENTS.has(name) || !/^\d{1,15}$/.test(value)) return value;
  return el("time", { title: `${value} ms` }, time(Number(value)));
}

/** Everything there is to a message: payload in three forms, headers. */
export function messagePanel(message) {
  const json = indented(message);
  const forms = new Map();
  if (json !== null) forms.set("JSON", () => json);
  if (message.payload !== undefined) forms.set("Text", () => message.payload);
  forms.set("Hex", (whole) => hexDump(whole ? payloadBytes(message) : payloadBytes(message).slice(0, HEX_BYTES)));
  const size = payloadSize(message);
  const content = el("pre.payload", { tabindex: 0, "aria-label": "Payload" });
  const more = el("button.quiet", { type: "button", click: () => show(shown, true) }, `Show all ${bytes(size)}`);
  let shown = "";
  const tabs = [...forms.keys()].map((name) => el("button", { type: "button", "aria-pressed": "false", click: () => show(name, false) }, name));
  function show(name, whole) {
    shown = name;
    for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.textContent === name));
    const text = forms.get(name)(whole);
    const cut = !whole && (name === "Hex" ? size > HEX_BYTES : text.length > TEXT_CHARS);
    content.textContent = whole ? text : text.slice(0, TEXT_CHARS);
    content.classList.toggle("wrap", name !== "Hex");
    more.hidden = !cut;
    if (size === 0) fill(content, el("i.muted", {}, "empty"));
  }
  const copy = el("button.quiet", {
    type: "button",
    async click() {
      try {
        await navigator.clipboard.writeText(forms.get(shown)(true));
        toast("Copied.");
      } catch {
        toast("This browser does not let the page copy.", "bad");
      }
    },
  }, "Copy");
  const traceback = tracebackOf(message.headers ?? {});
  const headers = Object.entries(message.headers ?? {}).filter(([name]) => traceback === null || name !== "toymq-traceback");
  const own = ownKey(message);
  const key = own === undefined ? [] : [el("dt", {}, "Idempotency key"), el("dd", {}, own)];
  const element = el(
    "div.panel", {},
    el("div.row", {}, el("div.segmented", { role: "group", "aria-label": "Show the payload as" }, tabs), el("span.muted.number", {}, bytes(size)), el("span.grow"), copy),
    content, more,
    traceback !== null && el("pre.payload.wrap", { tabindex: 0, "aria-label": "Traceback" }, `${traceback}\n${errorOf(message.headers) ?? ""}`),
    el("p.muted.number", {}, moments(message)),
    (key.length > 0 || headers.length > 0) && el(
      "dl.pairs", { "aria-label": key.length > 0 ? "Key and headers" : plural(headers.length, "header") },
      key, headers.map(([name, value]) => [el("dt", {}, name), el("dd", {}, readable(name, value))]),
    ),
  );
  show([...forms.keys()][0], false);
  return element;
}
