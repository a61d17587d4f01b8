// News of the leases of one's teams, wherever one is in the portal.

import { gettext } from "./i18n.js";

const SHOWN_MS = 8000;
const NEWS = {
  "lease.active": ["circle-check", "good", () => gettext("A lease is active")],
  "lease.interrupted": ["plug-connected", "warn", () => gettext("A lease was interrupted")],
  "lease.failed": ["circle-x", "bad", () => gettext("A lease failed")],
  "lease.ended": ["check", "quiet", () => gettext("A lease has ended; its receipt is ready")],
  "request.rejected": ["circle-x", "bad", () => gettext("A request was rejected")],
};
const MOST_AT_ONCE = 3;
const SVG = "http://www.w3.org/2000/svg";

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", new URL(`../icons.svg#${name}`, import.meta.url).href);
  svg.append(use);
  return svg;
}

/** Show one short message for a while; it waits while pointed at. */
export function toast(text, { tone = "info", icon: name = "info-circle", url = "" } = {}) {
  const box = document.getElementById("toasts");
  if (!box) return;
  const note = document.createElement("div");
  note.className = `toast-note tone-${tone}`;
  const words = document.createElement(url ? "a" : "span");
  if (url) words.href = url;
  words.textContent = text;
  const body = document.createElement("span");
  body.append(words);
  const close = document.createElement("button");
  close.type = "button";
  close.className = "close-mark";
  close.setAttribute("aria-label", box.dataset.closeLabel || "Close");
  close.append(icon("x"));
  close.addEventListener("click", () => note.remove());
  note.append(icon(name), body, close);
  box.append(note);
  let timer = setTimeout(() => note.remove(), SHOWN_MS);
  note.addEventListener("pointerenter", () => clearTimeout(timer));
  note.addEventListener("pointerleave", () => { timer = setTimeout(() => note.remove(), SHOWN_MS / 2); });
}

function addressOf({ lease, request }) {
  const { leaseUrl, requestUrl } = document.body.dataset;
  if (lease && leaseUrl) return leaseUrl.replace("UID", encodeURIComponent(lease));
  return request && requestUrl ? requestUrl.replace("UID", encodeURIComponent(request)) : "";
}

function isShown({ lease, request }) {
  const shown = [...document.querySelectorAll("[data-refresh-on]")].flatMap((el) => el.dataset.refreshOn.split(/\s+/));
  return shown.includes(`lease:${lease}`) || shown.includes(`request:${request}`);
}

/** Tell of events in one's teams, unless the page already shows that object; a flood stays a few lines. */
export function startToasts() {
  document.addEventListener("live:event", ({ detail }) => {
    const news = NEWS[detail.event];
    const box = document.getElementById("toasts");
    if (!news || isShown(detail) || box.children.length >= MOST_AT_ONCE) return;
    toast(`${news[2]()} · ${detail.team}`, { icon: news[0], tone: news[1], url: addressOf(detail) });
  });
}
