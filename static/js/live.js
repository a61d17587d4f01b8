// One WebSocket per page. Elements say what they watch; frames come back to them as DOM events.
//
//   <div data-live-topic="lease:12 me">       gets `live:frame` with detail {topic, seq, at, data, isSnapshot}
//   <div data-live-field="util">              inside it: shows that figure of the frame
//   <section data-refresh-on="lease:12">      gets `live:refresh` when an event names the object, and once whenever the
//                                             socket has opened: what happened since the page was made is not told again
//   <section data-refresh-on="intake">         the same when a pause of intake begins or ends
//
// The document gets `live:event` (detail: the event) and `live:state` (detail: {state}).

import { gettext } from "./i18n.js";
import { showFields } from "./live-fields.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const PING_MS = 20000;
const BURST_MS = 80;
const BETWEEN_FETCHES_MS = 1000;
const SILENCE_MS = 45000;
const AGAIN_MS = 2000;
// What concerns everybody and names nothing, by the word for it in data-refresh-on.
const CHANGED = { announcements: "announcement.changed", intake: "intake.changed" };
const RARE = Object.keys(CHANGED);
const FINAL_CODES = new Map([[4401, "denied"], [4403, "denied"]]);

let socket = null;
let state = "idle";
let attempts = 0;
let wasOpen = false;
let opens = 0;
let heardAt = 0;
let retryTimer = 0;
const wanted = new Set(["me"]);
const lastSeq = new Map();
const lastData = new Map();

function topicsOf(el, name = "liveTopic") {
  return (el.dataset[name] || "").split(/\s+/).filter(Boolean);
}

function setState(next) {
  if (next === state) return;
  state = next;
  for (const el of document.querySelectorAll("[data-live-indicator]")) {
    el.dataset.state = state;
    el.textContent = el.getAttribute(`data-text-${state}`) ?? state;
  }
  const banner = document.querySelector("[data-live-banner]");
  if (banner) banner.hidden = !["reconnecting", "offline", "denied"].includes(state) || !wasOpen;
  const title = document.querySelector("[data-live-banner-title]");
  if (title) title.textContent = state === "denied" ? gettext("Sign in again to see live figures") : gettext("Reconnecting…");
  document.dispatchEvent(new CustomEvent("live:state", { detail: { state } }));
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function deliver(message, isSnapshot) {
  // A frame that was overtaken by a newer one is dropped; a snapshot starts the count anew.
  if (!isSnapshot && message.seq <= (lastSeq.get(message.topic) ?? -1)) return;
  lastSeq.set(message.topic, message.seq);
  lastData.set(message.topic, message.data ?? {});
  const detail = { topic: message.topic, seq: message.seq, at: message.at, data: message.data ?? {}, isSnapshot };
  for (const el of document.querySelectorAll("[data-live-topic]")) {
    if (!topicsOf(el).includes(message.topic)) continue;
    showFields(el, detail.data);
    el.dispatchEvent(new CustomEvent("live:frame", { detail, bubbles: true }));
  }
  // From here on every event reaches this page. What came before, while it was made and sent, is fetched; but for
  // what is too rare to ask for twice on every page: that of a gap is fetched.
  if (isSnapshot && message.topic === "me") refresh((topics) => opens > 1 || !topics.every((t) => RARE.includes(t)));
}

function tell(event) {
  document.dispatchEvent(new CustomEvent("live:event", { detail: event }));
  const [rare] = RARE.filter((topic) => event.event === CHANGED[topic]);
  if (rare) { refresh((topics) => topics.includes(rare)); return; }
  const named = [`lease:${event.lease}`, `request:${event.request}`, `team:${event.team}`, "me"];
  refresh((topics) => topics.some((t) => named.includes(t)));
}

const due = new Set();
const fetchedAt = new WeakMap();
function refresh(matches) {
  for (const el of document.querySelectorAll("[data-refresh-on]")) {
    if (!matches(topicsOf(el, "refreshOn")) || due.has(el)) continue;
    due.add(el);
    // Events come in bursts (grant, prepare, active): one fetch answers for all of them, and a busy team
    // costs at most one fetch in a while.
    const wait = Math.max(BURST_MS, BETWEEN_FETCHES_MS - (Date.now() - (fetchedAt.get(el) ?? 0)));
    setTimeout(() => {
      due.delete(el);
      fetchedAt.set(el, Date.now());
      if (el.isConnected) el.dispatchEvent(new CustomEvent("live:refresh"));
    }, wait);
  }
}

function receive(text) {
  heardAt = Date.now();
  let message;
  try { message = JSON.parse(text); } catch { return; }
  if (!message || typeof message !== "object") return;
  if (message.type === "snapshot" || message.type === "frame") deliver(message, message.type === "snapshot");
  else if (message.type === "event") tell(message);
  else if (message.type === "error") {
    if (message.code === "unavailable") setTimeout(() => send({ op: "subscribe", topics: [...wanted] }), AGAIN_MS);
    document.dispatchEvent(new CustomEvent("live:error", { detail: message }));
  }
}

function opened() {
  attempts = 0;
  opens += 1;
  wasOpen = true;
  heardAt = Date.now();
  lastSeq.clear();
  send({ op: "subscribe", topics: [...wanted] });
  setState("open");
}

function closed(event) {
  socket = null;
  const final = FINAL_CODES.get(event.code);
  if (final) { setState(final); return; }
  setState(navigator.onLine === false ? "offline" : "reconnecting");
  const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** attempts) * (event.code === 4429 ? 4 : 1);
  attempts += 1;
  // Half fixed, half random, so that many browsers do not come back in the same instant.
  retryTimer = setTimeout(connect, wait / 2 + Math.random() * (wait / 2));
}

function connect() {
  clearTimeout(retryTimer);
  if (socket) return;
  const address = new URL(document.body.dataset.live, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(address);
  socket.addEventListener("open", opened);
  socket.addEventListener("message", (event) => receive(event.data));
  socket.addEventListener("close", closed);
}

function watch() {
  if (socket?.readyState !== WebSocket.OPEN) return;
  if (Date.now() - heardAt > SILENCE_MS) socket.close();
  else send({ op: "ping" });
}

/** Bring the subscriptions in line with the elements on the page. */
export function scan() {
  const now = new Set(["me"]);
  document.querySelectorAll("[data-live-topic]").forEach((el) => topicsOf(el).forEach((t) => now.add(t)));
  const added = [...now].filter((t) => !wanted.has(t));
  const gone = [...wanted].filter((t) => !now.has(t));
  added.forEach((t) => wanted.add(t));
  gone.forEach((t) => { wanted.delete(t); lastSeq.delete(t); lastData.delete(t); });
  if (added.length) send({ op: "subscribe", topics: added });
  if (gone.length) send({ op: "unsubscribe", topics: gone });
}

/** Show the last known figures in what a refresh has just put into the page, so that none blinks. */
export function show() {
  for (const el of document.querySelectorAll("[data-live-topic]")) {
    topicsOf(el).forEach((topic) => { if (lastData.has(topic)) showFields(el, lastData.get(topic)); });
  }
}

/** Ask for a fresh snapshot of a topic that is already watched. */
export function ask(topic) {
  send({ op: "subscribe", topics: [topic] });
}

/** Open the socket where the page is signed in; does nothing otherwise. */
export function start() {
  if (!document.body.dataset.live) return;
  connect();
  setInterval(watch, PING_MS);
  addEventListener("online", () => { if (!socket) { attempts = 0; connect(); } });
  addEventListener("offline", () => setState("offline"));
}
