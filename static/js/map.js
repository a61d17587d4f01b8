// The cluster map, live: water levels, keyboard and tips over the picture that map-draw.js draws.
// Only nodes in view are moved, so that 512 devices cost no more than a screenful.

import { number } from "./i18n.js";
import { node } from "./map-draw.js";
import { setLevel } from "./slices.js";

const MANY_NODES = 16;
const FIRST_WAIT_MS = 2000;
const LONGEST_WAIT_MS = 30000;
// What a page says of a cordoned or sleeping node that speaks, and of one that never did; frames know none of the words.
const AS_LIVE = { draining: "online", asleep: "online", never: "offline" };

/** The parts of one device that move, found once. */
function movingParts(box) {
  const groups = [...box.querySelectorAll(".kind-lease")];
  const named = new Map();
  const unnamed = new Map();
  for (const group of groups) {
    const { lease, start } = group.dataset;
    if (!lease) unnamed.set(Number(start), group);
    else named.set(`${lease}@${start}`, group).set(lease, named.get(lease) ?? group);
  }
  return { now: box.querySelector(".now"), named, unnamed };
}

function placeOf(parts, lease, start, size) {
  // Leases out of sight carry another name here, so only their position tells them; a share (size 0) has none.
  return parts.named.get(`${lease}@${start}`) ?? parts.named.get(lease) ?? (size ? parts.unnamed.get(start) : undefined);
}

function showDevice(parts, seen, unknown) {
  const words = [number(seen.util) === null ? unknown : `${number(seen.util)} %`];
  if (number(seen.temp) !== null) words.push(`${number(seen.temp)} °C`);
  if (number(seen.power_w) !== null) words.push(`${number(seen.power_w)} W`);
  if (!("stays" in parts.now.dataset)) parts.now.textContent = words.join(" · ");
  for (const [lease, start, size, util] of seen.slots ?? []) {
    const group = placeOf(parts, String(lease), Number(start), size);
    if (group) setLevel(group, util);
  }
}

function keyboard(map, signal) {
  // One tab stop for the whole map; arrows move between devices, Enter follows the first lease of one's own.
  const stops = () => [...map.querySelectorAll(".map-device > .slices")];
  map.addEventListener("keydown", (event) => {
    const all = stops();
    const at = all.indexOf(event.target.closest(".map-device > .slices"));
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (at < 0) return;
    if (event.key === "Enter") { all[at].querySelector("a")?.dispatchEvent(new MouseEvent("click", { bubbles: true })); return; }
    if (!step || !all[at + step]) return;
    event.preventDefault();
    all[at].setAttribute("tabindex", "-1");
    all[at + step].setAttribute("tabindex", "0");
    all[at + step].focus();
  }, { signal });
}

function tips(map, unknown, signal) {
  const tip = document.createElement("div");
  tip.className = "map-tip";
  tip.hidden = true;
  document.body.append(tip);
  map.addEventListener("pointermove", (event) => {
    const group = event.target.closest?.("[data-tip]");
    tip.hidden = !group || !group.dataset.tip;
    if (tip.hidden) return;
    const util = group.dataset.util === undefined ? "" : `\n${group.dataset.util === "unknown" ? unknown : `${group.dataset.util} %`}`;
    tip.textContent = group.dataset.tip + util;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  }, { signal });
  map.addEventListener("pointerleave", () => { tip.hidden = true; }, { signal });
  signal.addEventListener("abort", () => tip.remove());
}

function heldBy(nodes) {
  const held = [];
  for (const [name, seen] of Object.entries(nodes)) {
    held.push(`${name}:${seen.state}`);
    for (const [uuid, facts] of Object.entries(seen.devices ?? {})) {
      for (const [lease, start] of facts.slots ?? []) held.push(`${uuid}:${lease}:${start}`);
    }
  }
  return held.sort().join(" ");
}

/** Whether the page says something else of a node than the frames do. */
function isOutdated(drawnNodes, nodes) {
  return drawnNodes.some(({ name, state }) => nodes[name] && nodes[name].state !== (AS_LIVE[state] ?? state));
}

/** Draw one `[data-map]` from its JSON and keep it live.
 *  When a frame shows that other leases hold slices, or another state of a node than is drawn, `map:changed` asks
 *  the page for new JSON; it is drawn after the swap. The page reads rows and frames do not, so one may know of a
 *  silence before the other: it is asked again, ever more slowly, until both agree.
 */
export function mount(map, signal) {
  const unknown = map.dataset.textUnknown;
  const inView = new Set();
  let drawn = "";
  let nodes = [];
  let timer = 0;
  let wait = FIRST_WAIT_MS;
  let cards = new Map();
  let latest = {};
  let held = null;
  const watcher = new IntersectionObserver((changes) => changes.forEach(({ target, isIntersecting }) => {
    if (isIntersecting) inView.add(target.dataset.node); else inView.delete(target.dataset.node);
    if (isIntersecting) showNode(target.dataset.node);
  }), { rootMargin: "200px" });

  function draw() {
    const text = document.getElementById(map.dataset.map)?.textContent || '{"nodes": []}';
    if (text === drawn) return;
    drawn = text;
    watcher.disconnect();
    inView.clear();
    nodes = JSON.parse(text).nodes;
    map.replaceChildren(...nodes.map(node));
    map.classList.toggle("is-large", map.children.length > MANY_NODES);
    map.querySelector(".map-device > .slices")?.setAttribute("tabindex", "0");
    cards = new Map([...map.querySelectorAll(".map-node")].map((card) => {
      const devices = [...card.querySelectorAll(".map-device")].map((box) => [box.dataset.uuid, movingParts(box)]);
      watcher.observe(card);
      return [card.dataset.node, { card, devices: new Map(devices) }];
    }));
    agree();
  }

  function showNode(name) {
    const seen = latest[name];
    const place = cards.get(name);
    if (!seen || !place) return;
    place.card.classList.toggle("is-offline", seen.state === "offline");
    for (const [uuid, facts] of Object.entries(seen.devices ?? {})) {
      const parts = place.devices.get(uuid);
      if (parts) showDevice(parts, facts, unknown);
    }
  }

  function ask() {
    map.dispatchEvent(new CustomEvent("map:changed", { bubbles: true }));
  }

  function agree() {
    if (!isOutdated(nodes, latest)) { clearTimeout(timer); timer = 0; wait = FIRST_WAIT_MS; return; }
    if (timer) return;
    ask();
    timer = setTimeout(() => { timer = 0; agree(); }, wait);
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
  }

  function frame({ detail }) {
    latest = detail.data.nodes ?? {};
    inView.forEach(showNode);
    const now = heldBy(latest);
    if (held !== null && held !== now) ask();
    held = now;
    agree();
  }

  draw();
  map.addEventListener("live:frame", frame, { signal });
  document.addEventListener("htmx:after:swap", draw, { signal });
  // Without a connection the last frame is no news; what the page says then stands.
  document.addEventListener("live:state", ({ detail }) => { if (detail.state !== "open") latest = {}; }, { signal });
  signal.addEventListener("abort", () => { watcher.disconnect(); clearTimeout(timer); });
  keyboard(map, signal);
  tips(map, unknown, signal);
}
