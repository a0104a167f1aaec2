// The API, as far as the page calls it. Every answer that is no success is an ApiError with the wire's code.

/** A refusal, or (code UNREACHABLE) no answer at all. */
export class ApiError extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** Tells "login" when a token is needed or no longer known. */
export const access = new EventTarget();

const TIMEOUT_MS = 30_000;
const LOOK_MS = 5000;

async function call(method, path, { query = {}, body, headers = {}, timeoutMs = TIMEOUT_MS } = {}) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined)).toString();
  let response;
  try {
    response = await fetch(asked ? `${path}?${asked}` : path, { method, body, headers, cache: "no-store", signal: AbortSignal.timeout(timeoutMs) });
  } catch {
    const unsure = method === "GET" ? "" : " What was asked for may have happened or not.";
    throw new ApiError(0, "UNREACHABLE", `The broker does not answer.${unsure}`);
  }
  if (response.status === 204) return null;
  const json = /[/+]json\b/.test(response.headers.get("content-type") ?? "");
  const answer = json ? await response.json() : { code: String(response.status), detail: response.statusText };
  if (response.ok) return answer;
  if (response.status === 401 && path !== "/v1/login") access.dispatchEvent(new Event("login"));
  throw new ApiError(response.status, answer.code, answer.detail);
}

const json = (body) => ({ body: JSON.stringify(body), headers: { "content-type": "application/json" } });
const part = encodeURIComponent;

/** What a change of all partitions needs: their number; nothing for another topic. */
async function meant(topic) {
  const { partitions } = await call("GET", `/v1/topics/${part(topic)}`);
  return { partitions };
}

/** Text as the bytes of its UTF-8, the only form in which fetch sends a header that is not ASCII. */
function headerText(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

export const api = {
  who: () => call("GET", "/v1/login", { timeoutMs: LOOK_MS }),
  login: (token) => call("POST", "/v1/login", json({ token })),
  logout: () => call("DELETE", "/v1/login"),
  create: (topic, settings) => call("PUT", `/v1/topics/${part(topic)}`, json(settings)),
  configure: async (topic, settings) => call("PATCH", `/v1/topics/${part(topic)}`, { ...json(settings), query: await meant(topic) }),
  remove: async (topic) => call("DELETE", `/v1/topics/${part(topic)}`, { query: await meant(topic) }),
  purge: (topic) => call("POST", `/v1/topics/${part(topic)}:purge`),
  redrive: (topic, ids) => call("POST", `/v1/topics/${part(topic)}:redrive`, json(ids ? { ids } : {})),
  seek: (topic, consumer, target) => call("PUT", `/v1/topics/${part(topic)}/consumers/${part(consumer)}`, json({ seek: target })),
  forget: (topic, consumer) => call("DELETE", `/v1/topics/${part(topic)}/consumers/${part(consumer)}`),
  connections: (max, search, protocol) => call("GET", "/v1/connections", { query: { max, search, protocol } }),
  exchanges: (max, skip, search) => call("GET", "/v1/exchanges", { query: { max, skip, search } }),
  queues: (max, skip, search) => call("GET", "/v1/queues", { query: { max, skip, search } }),
  bindings: (max, skip, search) => call("GET", "/v1/bindings", { query: { max, skip, search } }),
  disconnect: (connection) => call("DELETE", `/v1/connections/${part(connection)}`),
  settings: (topic) => call("GET", `/v1/topics/${part(topic)}/settings`),
  broker: () => call("GET", "/v1/broker"),
  alerts: () => call("GET", "/v1/alerts"),
  webhooks: () => call("GET", "/v1/webhooks"),
  history: (lastS, topics) => call("GET", "/v1/history", { query: { last_s: lastS, topics } }),
  topicHistory: (topic, lastS) => call("GET", `/v1/topics/${part(topic)}/history`, { query: { last_s: lastS } }),
  discard: (topic, ids) => call("POST", `/v1/topics/${part(topic)}:discard`, json({ ids })),
  search: (topic, query) => call("GET", `/v1/topics/${part(topic)}/messages:search`, { query }),
  message: (topic, id) => call("GET", `/v1/topics/${part(topic)}/messages/${id}`),
  log: (topic, from, max) => call("GET", `/v1/topics/${part(topic)}/log`, { query: { from, max } }),
  publish(topic, payload, { key, route, delay, ttl, headers }) {
    const sent = { "content-type": "application/octet-stream" };
    if (key) sent["idempotency-key"] = key;
    if (route) sent["x-route"] = route;
    if (delay) sent["x-delay-ms"] = String(delay);
    if (ttl) sent["x-ttl-ms"] = String(ttl);
    for (const [name, value] of headers) sent[`x-header-${name}`] = headerText(value);
    return call("POST", `/v1/topics/${part(topic)}/messages`, { body: payload, headers: sent });
  },
};

export const EVENTS = "/v1/events";
