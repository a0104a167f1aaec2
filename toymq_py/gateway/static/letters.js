// Why messages died, as their dead letters tell it. All of it comes from strangers; here it becomes values, and elsewhere text.

/** Given up without a reason of anyone's: the type of the error says more, where there is one. */
const OWN_REASONS = new Set(["max-attempts", "rejected"]);

/** "ValueError: no such template", or null. */
export function errorOf(headers) {
  return [headers["toymq-error-type"], headers["toymq-error"]].filter(Boolean).join(": ") || null;
}

/** What letters that failed alike have in common. */
export function reasonOf(headers) {
  const reason = headers["toymq-reason"] ?? "no reason given";
  const type = headers["toymq-error-type"];
  if (!type) return reason;
  return OWN_REASONS.has(reason) ? type : `${reason} (${type})`;
}

/** The innermost lines, or null. */
export function tracebackOf(headers) {
  try {
    const text = JSON.parse(headers["toymq-traceback"] ?? "null");
    return typeof text === "string" ? text : null;
  } catch {
    return null;
  }
}

/** Letters, newest first, counted by consumer and reason; the most frequent first. */
export function grouped(messages) {
  const groups = new Map();
  for (const { id, headers = {} } of messages) {
    const consumer = headers["toymq-consumer"] ?? "?";
    const reason = reasonOf(headers);
    const key = JSON.stringify([consumer, reason]);
    const group = groups.get(key);
    if (group) group.count += 1;
    else groups.set(key, { consumer, reason, count: 1, newest: id, error: headers["toymq-error"] ?? "" });
  }
  return [...groups.values()].sort((a, b) => b.count - a.count);
}
