// What one message is to each consumer of its topic.

import { api } from "./api.js";
import { words } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { plural } from "./format.js";

const WORDS = {
  acked: ["acked", "good"], inflight: ["in flight", "warn"], ready: ["waits", ""], scheduled: ["waits for its time", ""], dying: ["becomes a dead letter", "bad"],
  dead: ["a dead letter", "bad"], acked_or_dead: ["acked, or a dead letter", ""],
};
const SHOWN = 50;

function line({ consumer, state, attempts, failure, letter }) {
  const [word, tone] = WORDS[state] ?? [state, ""];
  const why = failure && [failure.reason, failure.error_type, failure.error].filter(Boolean).join(": ");
  return el(
    "li.row", {}, el("bdi.name", { title: consumer }, consumer), el(tone ? `span.badge.${tone}` : "span.badge", {}, word),
    letter && el("a", { href: `#/topics/${encodeURIComponent(letter.topic)}/messages` }, `${letter.topic} ${letter.id}`), letter?.settled && el("span.muted", {}, "settled"),
    attempts > 0 && el("span.muted.number", {}, plural(attempts, "attempt")), why && el("bdi.muted", { title: why }, `last failure: ${why}`),
  );
}

/** A list that fills itself. */
export function states(topicName, id) {
  const element = el("div.states", { "aria-label": "At each consumer", role: "group" }, el("span.muted", {}, "Asking what it is to each consumer."));
  api.message(topicName, id).then(
    ({ consumers }) => {
      const lines = consumers.slice(0, SHOWN).map(line);
      const more = consumers.length - lines.length;
      fill(element, lines.length ? [el("ul", {}, lines), more > 0 && el("span.muted", {}, `and ${plural(more, "more consumer")}`)] : el("span.muted", {}, "No consumer has this topic."));
    },
    (error) => fill(element, el("span.muted", {}, `What it is to each consumer could not be read. ${words(error)}`)),
  );
  return element;
}
