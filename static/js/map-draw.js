// The still picture of the cluster map: nodes, their devices and every slice, to scale.
//
// Static shape, from the page's <script type="application/json" id="map-data">:
//   {nodes: [{name, state, state_text, url, model, note, devices: [
//     {uuid, index, model, memory_mib, grid, mode, note, blocked, slots: [
//       {lease, start, size, kind, tone, label, title, mine, url}]}]}]}
// `grid` is the number of slices (any scale for shares, for instance 1000).

import { gettext, memory } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";
const PATTERNS = { stranded: "#pat-hatch", reserved: "#pat-hatch", cleaning: "#pat-dots", blocked: "#pat-cross" };
// A slice is drawn 100 units wide: browsers rasterise tiny user units coarsely.
const UNIT = 100;
const TONES = { online: "good", never: "info", asleep: "info", stale: "warn", draining: "warn", maintenance: "warn" };

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

function device(fact, isMixed) {
  const box = html("div", "map-device");
  box.dataset.uuid = fact.uuid;
  const caption = html("div", "caption");
  const now = html("span", "now", fact.blocked ? fact.note : "");
  // Why a device takes nothing matters more than how warm it is.
  if (fact.blocked && fact.note) now.dataset.stays = "";
  caption.append(html("b", "", isMixed ? `#${fact.index} · ${fact.model}` : `#${fact.index}`), now);
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

/** One node as a card with its devices. */
export function node(fact) {
  const box = html("section", `card map-node is-${fact.state}`);
  box.dataset.node = fact.name;
  const head = html("header");
  const title = html("h3");
  if (fact.url) { const link = html("a", "", fact.name); link.href = fact.url; title.append(link); } else title.textContent = fact.name;
  head.append(title, html("span", `state tone-${TONES[fact.state] ?? "bad"}`, fact.state_text ?? fact.state));
  if (fact.note) head.append(html("span", "sub", fact.note));
  const grid = html("div", "map-devices");
  // The card says the model once when all its devices are of one.
  const isMixed = new Set(fact.devices.map((d) => d.model)).size > 1 || !fact.note;
  grid.append(...fact.devices.map((one) => device(one, isMixed)));
  box.append(head, grid);
  return box;
}
