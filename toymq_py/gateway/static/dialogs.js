// Questions that stand in front of the page, and short words that pass. The browser's own <dialog> keeps the focus inside.

import { ApiError } from "./api.js";
import { el, fill, say } from "./dom.js";

const TOAST_MS = 6000;
const TOASTS_MAX = 3;

let numbered = 0;

/** An id for a label. */
function fresh() {
  numbered += 1;
  return `n${numbered}`;
}

/** A word about what was done, or could not be. Gone by itself, or at a click. */
export function toast(text, kind = "good") {
  const box = document.getElementById("toasts");
  const shown = el(`div.toast.${kind}`, { click: () => shown.remove() }, text);
  while (box.children.length >= TOASTS_MAX) box.firstChild.remove();
  box.append(shown);
  setTimeout(() => shown.remove(), kind === "bad" ? 2 * TOAST_MS : TOAST_MS);
}

/** What an error says to people. */
export function words(error) {
  if (!(error instanceof ApiError)) throw error;
  return `${error.code}: ${error.message}`;
}

/** Where a topic of another group is looked at: that group's gateway, over the protocol of this page where it has both. */
function elsewhere(error) {
  const [, addresses, group] = (error.code === "MOVED" && /^(.*?) \(group ([^)]+)\)/.exec(error.message)) || [];
  const gateways = addresses?.match(/https?:\/\/\S+/g) ?? [];
  const href = gateways.find((each) => each.startsWith(location.protocol)) ?? gateways[0];
  return href ? { group, href: `${href}${location.hash}` } : null;
}

/** Say what could not be read, and why, or where it is. */
export function unread(element, what, error) {
  const place = elsewhere(error);
  if (place && element.querySelector("a")?.href === place.href) return; // it may have the focus
  if (place) fill(element, `${what} The topic is in group ${place.group}: `, el("a", { href: place.href }, "open it there"), ".");
  else say(element, `${what} ${words(error)}`);
}

/**
 * A form in front of the page.
 * @param {object} what `action` is done with the form; when it throws an ApiError that is shown and the form stays. Without
 *   `label` there is nothing to do but close it.
 * @returns {Promise<boolean>} whether it was done
 */
export function ask({ title, body, label, action, kind = "primary", wide = false, closable = true, ready = () => true }) {
  return new Promise((resolve) => {
    let done = false;
    const id = fresh();
    const problem = el("p.problem", { role: "alert", hidden: true });
    const submit = label ? el(`button.${kind}`, { type: "submit" }, label) : null;
    const form = el(
      "form", { novalidate: true },
      el("h2", { id }, title),
      el("div.fields", {}, body),
      problem,
      el("div.actions", {}, closable && el("button", { type: "button", click: () => dialog.close() }, label ? "Cancel" : "Close"), submit),
    );
    const dialog = el(`dialog${wide ? ".wide" : ""}`, { "aria-labelledby": id }, form);
    const check = () => submit && (submit.disabled = !ready(form));
    form.addEventListener("input", check);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!submit || submit.disabled) return;
      submit.disabled = true;
      problem.hidden = true;
      try {
        await action(form);
        done = true;
        dialog.close();
      } catch (error) {
        say(problem, error instanceof Refusal ? error.message : words(error));
        problem.hidden = false;
      } finally {
        check();
      }
    });
    dialog.addEventListener("cancel", (event) => closable || event.preventDefault());
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    dialog.addEventListener("pointerdown", (event) => event.target === dialog && closable && dialog.close());
    document.body.append(dialog);
    check();
    dialog.showModal();
    form.querySelector("[autofocus]")?.focus();
  });
}

/** Something in a form that the broker need not be asked about. */
export class Refusal extends Error {}

/** A label over an input, and what there is to say of it. */
export function field(label, input, hint = "") {
  input.id ||= fresh();
  if (hint) input.setAttribute("aria-describedby", `${input.id}-hint`);
  return el("div.field", {}, el("label", { for: input.id }, label), input, hint && el("small.muted", { id: `${input.id}-hint` }, hint));
}

export function input(attributes = {}) {
  return el("input", { type: "text", autocomplete: "off", spellcheck: "false", autocapitalize: "off", ...attributes });
}

/** A question that is only answered by typing a name. */
export function confirmByName({ title, lines, name, label, action }) {
  const typed = input({ autofocus: true, name: "name" });
  const question = el("span", {}, "Type ", el("code.name", {}, name), " to confirm");
  const made = field("", typed);
  fill(made.querySelector("label"), question);
  return ask({
    title, label, action, kind: "danger", ready: () => typed.value === name,
    body: [...lines.map((line) => el("p", {}, line)), made],
  });
}

/** A question that a button answers. */
export function confirm({ title, lines, label, action, kind = "primary" }) {
  return ask({ title, label, action, kind, body: lines.map((line) => el("p", {}, line)) });
}
