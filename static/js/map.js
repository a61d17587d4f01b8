// The cluster map: nodes, their devices and every slice drawn to scale, with live water levels.
//
// Static shape, from the page's <script type="application/json" id="map-data">:
//   {nodes: [{name, state, state_text, url, model, note, devices: [
//     {uuid, index, model, memory_mib, grid, mode, note, blocked, slots: [
//       {lease, start, size, kind, tone, label, title, mine, url}]}]}]}
// `grid` is the number of slices (any scale for shares, for instance 1000); frames carry the utilisation.

import { gettext, memory, number } from "./i18n.js";
import { setLevel } from "./slices.js";

const SVG = "http://www.w3.org/2000/svg";
const PATTERNS = { stranded: "#pat-hatch", reserved: "#pat-hatch", cleaning: "#pat-dots", blocked: "#pat-cross" };
// A slice is drawn 100 units wide: browsers rasterise tiny user units coarsely.
const UNIT = 100;
const TONES = { online: "good", stale: "warn", draining: "warn", maintenance: "warn" };

function html(tag, className, text) {
  const el = document.createElement(tag);
  if (className) el.className = className;
  if (text !== undefined && text !== null) el.textContent = text;
  return el;
}

function svg(tag, attributes) {
  const el = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) el.setAttribute(name, value);
  return el;
}

function slice(slot) {
  const kind = slot.kind ?? "lease";
  const group = svg("g", { class: `slice kind-${kind} slice-${slot.tone ?? 1}${slot.mine ? " is-mine" : ""}`, "data-start": slot.start });
  if (slot.lease) group.dataset.lease = slot.lease;
  group.dataset.tip = slot.title ?? slot.label ?? "";
  const hold = slot.url ? svg("a", { href: slot.url, "aria-label": group.dataset.tip, tabindex: "-1" }) : group;
  const place = { x: slot.start * UNIT, width: slot.size * UNIT };
  hold.append(svg("rect", { class: "slice-base", y: 0, height: 100, ...place }));
  if (kind === "lease") {
    hold.append(svg("rect", { class: "slice-level", y: 0, height: 100, ...place }));
    hold.append(svg("rect", { class: "slice-edge", y: 90, height: 10, ...place }));
  }
  if (hold !== group) group.append(hold);
  if (PATTERNS[kind]) group.append(svg("use", { class: "pattern", href: PATTERNS[kind], height: 100, ...place }));
  return group;
}

function device(fact) {
  const box = html("div", "map-device");
  box.dataset.uuid = fact.uuid;
  const caption = html("div", "caption");
  caption.append(html("b", "", `${fact.index} · ${fact.model}`), html("span", "now", fact.blocked ? fact.note : ""));
  const outer = svg("svg", { class: "slices", role: "group", tabindex: "-1", "aria-label": words(fact) });
  const inner = svg("svg", { viewBox: `0 0 ${fact.grid * UNIT} 100`, width: "100%", height: "100%", preserveAspectRatio: "none" });
  const slots = fact.slots ?? [];
  inner.append(...slots.map(slice));
  for (const slot of slots) {
    if (slot.start) inner.append(svg("line", { class: "gap", x1: slot.start * UNIT, x2: slot.start * UNIT, y1: 0, y2: 100 }));
  }
  outer.append(inner);
  if (fact.blocked) outer.append(svg("use", { class: "pattern is-blocked", href: "#pat-cross", width: "100%", height: "100%" }));
  box.append(caption, outer);
  return box;
}

function words(fact) {
  const used = (fact.slots ?? []).filter((s) => (s.kind ?? "lease") === "lease");
  const names = used.map((s) => s.label).filter(Boolean).join(", ");
  return gettext("Device {index}, {model}, {memory}: {count} in use. {names}", {
    index: fact.index, model: fact.model, memory: memory(fact.memory_mib) ?? "", count: used.length, names,
  });
}

function node(fact) {
  const box = html("section", `card map-node is-${fact.state}`);
  box.dataset.node = fact.name;
  const head = html("header");
  const title = html("h3");
  if (fact.url) { const link = html("a", "", fact.name); link.href = fact.url; title.append(link); } else title.textContent = fact.name;
  head.append(title, html("span", `state tone-${TONES[fact.state] ?? "bad"}`, fact.state_text ?? fact.state));
  if (fact.note) head.append(html("span", "sub", fact.note));
  const grid = html("div", "map-devices");
  grid.append(...fact.devices.map(device));
  box.append(head, grid);
  return box;
}

function placeOf(box, lease, start, size) {
  const named = [...box.querySelectorAll(`.kind-lease[data-lease="${CSS.escape(lease)}"]`)];
  if (named.length) return named.find((g) => Number(g.dataset.start) === start) ?? named[0];
  // Leases out of sight carry another name here, so only their position tells them; a share (size 0) has none.
  return size ? box.querySelector(`.kind-lease:not([data-lease])[data-start="${start}"]`) : null;
}

function showDevice(box, seen, unknown) {
  const now = box.querySelector(".now");
  const parts = [number(seen.util) === null ? unknown : `${number(seen.util)} %`];
  if (number(seen.temp) !== null) parts.push(`${number(seen.temp)} °C`);
  if (number(seen.power_w) !== null) parts.push(`${number(seen.power_w)} W`);
  now.textContent = parts.join(" · ");
  for (const [lease, start, size, util] of seen.slots ?? []) {
    const group = placeOf(box, String(lease), Number(start), size);
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
  const tip = html("div", "map-tip");
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

/** Draw one `[data-map]` from its JSON and keep it live.
 *  When a frame shows that other leases hold slices, `map:changed` asks the page for new JSON; it is drawn after the swap.
 */
export function mount(map, signal) {
  const unknown = map.dataset.textUnknown;
  let drawn = "";
  let boxes = new Map();
  let held = null;

  function draw() {
    const text = document.getElementById(map.dataset.map)?.textContent || '{"nodes": []}';
    if (text === drawn) return;
    drawn = text;
    map.replaceChildren(...JSON.parse(text).nodes.map(node));
    map.classList.toggle("is-large", map.children.length > 16);
    boxes = new Map([...map.querySelectorAll(".map-device")].map((box) => [box.dataset.uuid, box]));
    map.querySelector(".map-device > .slices")?.setAttribute("tabindex", "0");
  }

  function frame({ detail }) {
    const leases = [];
    for (const [name, seen] of Object.entries(detail.data.nodes ?? {})) {
      map.querySelector(`[data-node="${CSS.escape(name)}"]`)?.classList.toggle("is-offline", seen.state === "offline");
      for (const [uuid, facts] of Object.entries(seen.devices ?? {})) {
        if (boxes.has(uuid)) showDevice(boxes.get(uuid), facts, unknown);
        (facts.slots ?? []).forEach(([lease, start]) => leases.push(`${uuid}:${lease}:${start}`));
      }
    }
    const now = leases.sort().join(" ");
    if (held !== null && held !== now) map.dispatchEvent(new CustomEvent("map:changed", { bubbles: true }));
    held = now;
  }

  draw();
  map.addEventListener("live:frame", frame, { signal });
  document.addEventListener("htmx:after:swap", draw, { signal });
  keyboard(map, signal);
  tips(map, unknown, signal);
}
