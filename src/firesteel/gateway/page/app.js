// The frame: who is signed in, the live state, and which view is open.

import { ApiError, follow, forgetKey, get, saveKey, savedKey } from "./api.js";
import { attribute, h, message, put, show } from "./dom.js";

const VIEWS = [
  ["now", "Now", true], ["curves", "Curves", false], ["requests", "Requests", false], ["logs", "Logs", false],
  ["fits", "What fits", false], ["try", "Try it", true], ["runs", "Runs", false],
];
const HIDDEN_MS = 30_000;
const POLL_MS = 5000;
const MAX_EVENTS = 30;

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
const link = document.getElementById("link");
const lost = document.getElementById("lost");
const problem = document.getElementById("problem");
const leave = document.getElementById("leave");

const app = {
  role: null, // "admin", "inference" or null: not known yet
  state: null,
  events: [], // what the gateway said lately, newest first
  listeners: new Set(),
  get: (name) => app.state?.models.find((model) => model.name === name),
  redraw: () => changed(),
  open: (view, params = {}) => { location.hash = `${view}?${new URLSearchParams(params)}`; },
};

let stream = null;
let poll = null;
let current = null;
let views = new Map();
let countdown = null;

// --- live state ---

function connect() {
  disconnect();
  stream = follow("/api/events", {
    up() { app.events = []; enter("admin"); setLink("live"); }, // the gateway tells again what happened lately
    event: receive,
    down(error, pause) { setLost(error, pause); },
    refused(error) {
      if (error.status === 403) enterInference();
      else askForKey(error.status === 401 && savedKey() ? error.message : "");
    },
  });
}

function disconnect() {
  stream?.stop();
  clearTimeout(poll);
  clearInterval(countdown);
  stream = poll = null;
}

function receive(name, data) {
  if (name === ":") return;
  const event = JSON.parse(data);
  if (name === "state") setState(event);
  else if (name === "model") {
    const at = app.state.models.findIndex((model) => model.name === event.name);
    if (at >= 0) app.state.models[at] = event;
    changed();
  } else if (name === "gateway") {
    Object.assign(app.state, { ...event, models: app.state.models });
    changed();
  } else if (name === "missed" || name === "changed") {
    get("/api/state").then(setState, () => {});
  } else {
    if (name !== "news") remember(name, event);
    else if (app.get(event.model)) Object.assign(app.get(event.model), { doing: event.words, eta_s: event.eta_s });
    for (const listener of app.listeners) listener(name, event);
    if (name !== "alert") changed();
  }
}

function remember(name, event) {
  if (name === "failed") return; // a note has said it already, with the reason in full
  const said = event.words ?? event.text ?? `${event.model} was ${name} in ${event.seconds} s`;
  const text = !event.model || said.includes(event.model) ? said : `${event.model}: ${said}`;
  if (app.events.some((each) => text === `alert: ${each.text}`)) return;
  const kind = text.startsWith(`${event.model} did not load`) ? "failed" : name;
  app.events.unshift({ at: event.at ?? Date.now() / 1000, kind, text, id: (app.lastEvent = (app.lastEvent ?? 0) + 1) });
  app.events.length = Math.min(app.events.length, MAX_EVENTS);
}

function setState(state) {
  app.state = state;
  if (state.version) put(document.getElementById("version"), state.version);
  changed();
}

let isDrawing = false;
/** Many events, one drawing. */
function changed() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    show(problem, app.state?.problem);
    put(problem, app.state?.problem ? `The service file has a mistake, and its last good version stays in use. ${app.state.problem}` : "");
    if (app.state) current?.update?.(app.state);
  });
}

function setLink(text) {
  clearInterval(countdown);
  put(link, text);
  link.className = text === "live" ? "good" : "";
  show(lost, false);
  document.body.classList.remove("stale");
}

function setLost(error, pause_ms) {
  clearInterval(countdown);
  let left = Math.ceil(pause_ms / 1000);
  put(link, "not connected");
  link.className = "bad";
  show(lost, true);
  document.body.classList.add("stale");
  const tell = () => put(lost, `Connection lost: ${error.message} What you see is the last that was known. Trying again in ${Math.max(0, left--)} s.`);
  tell();
  countdown = setInterval(tell, 1000);
  if (!app.state) put(main.querySelector(".message") ?? main, "The gateway does not answer yet.");
}

// An inference key sees its own models, in the list that all clients have.
async function enterInference() {
  try {
    const { data } = await get("/v1/models");
    const models = data.filter((row) => !row.alias_of).map((row) => ({
      name: row.id, phase: row.state, context: row.context, engine: row.engine, pinned: row.pinned, why: row.why ?? null,
      planned_bytes: row.plan?.bytes ?? null, evicts: [], aliases: [],
    }));
    enter("inference");
    setLink("live");
    setState({ models, memory: null, waiting: null, queue: [] });
  } catch (error) {
    if (error.status === 401) return askForKey(error.message);
    setLost(error, POLL_MS);
  }
  poll = setTimeout(enterInference, POLL_MS);
}

// --- signing in ---

function enter(role) {
  if (app.role === role) return;
  app.role = role;
  show(leave, Boolean(savedKey()));
  tabs.replaceChildren(...VIEWS.filter(([, , isForAll]) => isForAll || role === "admin").map(([name, title]) => h("a", { href: `#${name}` }, title)));
  views = new Map();
  current = null;
  route();
}

function askForKey(text) {
  disconnect();
  Object.assign(app, { role: null, state: null, events: [] });
  current = null;
  tabs.replaceChildren();
  setLink("not signed in");
  show(leave, false);
  const key = h("input", { id: "key", type: "password", name: "key", autocomplete: "current-password", required: true, spellcheck: "false" });
  const kept = h("input", { type: "checkbox", name: "kept" });
  const error = h("p", { class: "message bad", role: "alert", hidden: !text }, text);
  const form = h("form", { class: "login panel" },
    h("h1", {}, "Sign in"),
    h("p", {}, "This gateway asks for a key. An admin key steers it; an inference key shows and uses its own models."),
    h("label", { class: "field" }, h("span", {}, "Key"), key),
    h("label", { class: "check" }, kept, h("span", {}, "Keep it on this device")),
    error,
    h("button", { class: "primary" }, "Sign in"),
    h("p", { class: "small" }, "On the machine itself: ", h("code", {}, "firesteel serve key add me --admin"), " creates one."));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    saveKey(key.value.trim(), kept.checked);
    put(link, "connecting");
    connect();
  });
  main.replaceChildren(form);
  key.focus();
}

leave.addEventListener("click", () => { forgetKey(); askForKey(""); });

// --- views ---

async function route() {
  if (!app.role) return;
  const [name, query] = location.hash.slice(1).split("?");
  const known = VIEWS.find(([view, , isForAll]) => view === name && (isForAll || app.role === "admin")) ?? VIEWS[0];
  for (const tab of tabs.children) attribute(tab, "aria-current", tab.getAttribute("href") === `#${known[0]}` ? "page" : null);
  document.title = `${known[1]} · firesteel`;
  if (!views.has(known[0])) {
    try {
      const module = await import(`./${known[0]}.js`);
      views.set(known[0], module.create(app));
    } catch (error) {
      current?.hide?.();
      current = null;
      main.replaceChildren(message("bad", `This view could not be loaded: ${error.message}`));
      return;
    }
  }
  const view = views.get(known[0]);
  if (current !== view) {
    current?.hide?.();
    current = view;
    main.replaceChildren(view.node);
    window.scrollTo(0, 0);
  }
  view.show?.(Object.fromEntries(new URLSearchParams(query ?? "")));
  if (app.state) view.update?.(app.state);
}

window.addEventListener("hashchange", route);

// A hidden page needs no stream, and a browser has only six connections for one server.
let hiding = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => { if (app.role) { disconnect(); current?.hide?.(); put(link, "paused"); } }, HIDDEN_MS);
  else if (app.role && !stream && !poll) { connect(); route(); }
});

main.replaceChildren(h("p", { class: "message" }, "Connecting to the gateway …"));
connect();
export { ApiError };
