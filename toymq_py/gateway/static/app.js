// The page: which view stands where, banners, theme, keys, login.

import { AmqpView } from "./amqp.js";
import { access, api } from "./api.js";
import { BrokerView } from "./broker.js";
import { alone } from "./cluster.js";
import { ConnectionsView } from "./connections.js";
import { ConsumersView } from "./consumers.js";
import { Refusal, ask, field, input, toast } from "./dialogs.js";
import { button, el, fill, say } from "./dom.js";
import { bytes, plural, sentence, time } from "./format.js";
import { Store } from "./store.js";
import { TopicView } from "./topic.js";
import { TopicsView } from "./topics.js";
import { WholeView, partsOf } from "./whole.js";

const store = new Store();
const session = { admin: true, name: null, amqp: false };
const main = document.getElementById("main");
const part = (id) => document.getElementById(id);
let view = null;
let topics = null;
let drawn = false;

// -- which view

/** Parts of the page beside the topics, by their address. A token without admin is not shown what it may not see. */
const PLACES = [
  { hash: "#/", label: "Topics", may: () => true },
  { hash: "#/consumers", label: "Consumers", may: () => true, make: (filter) => new ConsumersView(store, filter) },
  { hash: "#/connections", label: "Connections", may: () => session.admin, make: () => new ConnectionsView() },
  { hash: "#/amqp", label: "AMQP", may: () => session.admin && session.amqp, make: (list) => new AmqpView(list) },
  { hash: "#/broker", label: "Broker", may: () => true, make: () => new BrokerView(store, session) },
];

function places(address) {
  const here = PLACES.find(({ hash }) => hash === address) ?? PLACES[0];
  fill(part("places"), PLACES.filter(({ may }) => may()).map((place) =>
    el("a", { href: place.hash, "aria-current": place === here ? "page" : null }, place.label)));
  return here.may() ? here : PLACES[0];
}

function route() {
  const [, place, name, tab = ""] = /^#\/(topics)\/([^/]+)(?:\/(messages|dead-letters))?$/.exec(location.hash) ?? [];
  view?.hiddenNow();
  topics ??= new TopicsView(store, session);
  const moved = view !== null;
  const [, address, filter] = /^(#\/\w*)(?:\/([\w-]+))?$/.exec(location.hash) ?? [];
  const { make } = places(address);
  const topic = place && decoded(name);
  view = topic ? (isWhole(topic) ? new WholeView(store, session, topic) : new TopicView(store, session, topic, tab)) : make ? make(filter) : topics;
  if (address === "#/filter") topics.list.only(filter);
  fill(main, view.element);
  document.title = view === topics ? "toymq" : `${view.title} · toymq`;
  if (moved) main.focus({ preventScroll: true });
  if (view !== topics) scrollTo(0, 0);
  view.shownNow();
}

/** Whether a name is that of a partitioned topic, as far as is known yet. */
function isWhole(name) {
  return !store.topics.has(name) && partsOf(store, name).length > 0;
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return null; // a % that begins nothing
  }
}

function draw() {
  if (drawn || document.hidden) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    if (view instanceof TopicView && isWhole(view.name)) route(); // it was opened before the topics were known
    else view?.update();
    banners();
  });
}

// -- what is wrong

/** Each banner is made once and stays while it is true: it is read aloud when it comes, not every second. */
const shown = new Map();

function banner(key, kind, text, more = null) {
  const known = shown.get(key);
  if (!text) {
    known?.remove();
    shown.delete(key);
  } else if (!known || known.dataset.text !== text) {
    const made = el(`div.banner.${kind}`, { "data-text": text, "data-key": key }, el("span", {}, text), more);
    if (known) known.replaceWith(made);
    else part("banners").append(made);
    shown.set(key, made);
  }
}

function show(filter) {
  return button("Show them", () => {
    location.hash = "#/";
    topics.list.only(filter);
  }, {}, "quiet");
}

function named(list) {
  const some = list.slice(0, 3).map((topic) => topic.name).join(", ");
  return list.length > 3 ? `${some} and ${list.length - 3} more` : some;
}

function banners() {
  if (!store.stats) return;
  const all = [...store.topics.values()];
  const failed = all.filter((topic) => topic.described.state === "failed");
  const degraded = all.filter((topic) => topic.described.state === "degraded");
  const { disk_low: low, limits } = store.stats;
  const full = low ? `The disk is low: below ${bytes(limits.min_free_bytes)} free, publishing is refused. Reading and acking go on.`
    : `The disk is full, or nearly: below ${bytes(limits.max_payload)} free. What does not fit is refused. Reading goes on.`;
  banner("disk", "bad", store.diskFull && full);
  banner("away", "bad", store.away.length && `${sentence(store.away.map(({ place }) => place).join(", "))} ${store.away.length === 1 ? "does" : "do"} not answer: what is shown of the topics there is old, or missing.`, el("a", { href: "#/" }, "What to do"));
  banner("alone", "warn", alone(store.stats.cluster));
  banner("failed", "bad", failed.length && `${plural(failed.length, "topic")} failed: ${named(failed)}. Publishing there is refused until the broker is restarted.`, show("trouble"));
  banner("degraded", "warn", degraded.length && `${plural(degraded.length, "topic")} degraded: ${named(degraded)}. Part of the log or of the consumers' state cannot be read.`, show("trouble"));
}

function link() {
  const { live, lost, heardAt } = store;
  const was = document.body.classList.contains("stale");
  document.body.classList.toggle("stale", lost);
  say(part("link"), live ? "live" : lost ? "not connected" : "connecting");
  part("link").className = `link ${live ? "live" : lost ? "dead" : ""}`;
  const since = heardAt ? `What is shown is from ${time(heardAt)}. ` : "";
  banner("link", "bad", lost && `The broker does not answer. ${since}The page tries again by itself.`);
  if (live && was) toast("The broker is back.");
}

// -- who looks

let asking = false;

async function login() {
  if (asking) return;
  asking = true;
  store.close();
  say(part("link"), "not logged in");
  part("link").className = "link";
  banner("link", "", "");
  const token = input({ type: "password", name: "token", autofocus: true, autocomplete: "current-password" });
  await ask({
    title: "Log in", label: "Log in", closable: false, ready: () => token.value !== "",
    body: [el("p", {}, "This broker wants a token."), field("Token", token, "It is not kept: a cookie that no script can read stands for it, for 12 hours at most.")],
    async action() {
      if (!/^[!-~]+$/.test(token.value)) throw new Refusal("A token is ASCII without spaces.");
      await api.login(token.value);
    },
  });
  asking = false;
  location.reload(); // as who one is decides what is on the page
}

async function logout() {
  await api.logout();
  location.reload();
}

// -- light and dark

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };

function theme(chosen) {
  document.documentElement.dataset.theme = chosen;
  say(part("theme"), THEMES[chosen]);
  part("theme").setAttribute("aria-label", `Theme: ${THEMES[chosen]}`);
}

function remembered() {
  try {
    return localStorage.getItem("theme") in THEMES ? localStorage.getItem("theme") : "auto";
  } catch {
    return "auto"; // a browser that keeps nothing
  }
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const chosen = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  theme(chosen);
  try {
    localStorage.setItem("theme", chosen);
  } catch {
    // it holds until the page is closed
  }
}

// -- keys

const KEYS = [
  ["/", "search the list, or the messages"], ["↑ ↓", "move through the list"], ["Enter", "open"], ["Escape", "back; close what is open"],
  ["n", "new topic"], ["p", "publish to the topic that is open"], ["?", "this help"],
];

function help() {
  return ask({ title: "Keys", body: el("dl.keys", {}, KEYS.flatMap(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])) });
}

/** Put the cursor into the search of this view, or into that of the topics, before the next key comes: it belongs there. */
function search() {
  if (!view.search) {
    history.pushState(null, "", "#/"); // a new location.hash would change the view only after this event
    route();
  }
  const field = view.search;
  field.focus();
  field.select();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (view !== topics) location.hash = "#/";
    return;
  }
  if (typing) return;
  const primary = () => view.element.querySelector("button.primary:not(.bulk *)")?.click();
  const actions = { "/": search, "?": help, n: () => view === topics && primary(), p: () => view !== topics && primary() };
  if (event.key === "ArrowDown" && view.list && (event.target === document.body || event.target === main)) {
    event.preventDefault();
    if (view.list.shown.length) view.list.focus(0);
  } else if (Object.hasOwn(actions, event.key)) {
    event.preventDefault();
    actions[event.key]();
  }
}

// -- begin

async function begin() {
  theme(remembered());
  part("theme").addEventListener("click", nextTheme);
  part("help").addEventListener("click", help);
  part("logout").addEventListener("click", logout);
  access.addEventListener("login", login);
  store.addEventListener("login", login);
  try {
    const who = await api.who();
    Object.assign(session, who);
    part("logout").hidden = !who.required;
    say(part("who"), who.name ?? "");
    if (session.admin) session.amqp = (await api.exchanges(1)).served;
  } catch (error) {
    if (error.status === 401) {
      login();
      return;
    }
  }
  store.addEventListener("update", draw);
  store.addEventListener("link", link);
  document.addEventListener("visibilitychange", draw);
  document.addEventListener("keydown", press);
  addEventListener("hashchange", route);
  route();
  link();
  store.open();
}

begin();
