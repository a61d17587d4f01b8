// News of one's own leases, wherever one is in the portal.

import { gettext } from "./i18n.js";

const SHOWN_MS = 8000;
const NEWS = {
  "lease.active": ["circle-check", "good", () => gettext("Your lease is active.")],
  "lease.warned": ["alert-triangle", "warn", () => gettext("Your lease ends soon.")],
  "lease.interrupted": ["plug-connected", "warn", () => gettext("Your lease was interrupted.")],
  "lease.failed": ["circle-x", "bad", () => gettext("Your lease failed.")],
  "lease.ended": ["check", "quiet", () => gettext("Your lease has ended; the receipt is ready.")],
  "request.rejected": ["circle-x", "bad", () => gettext("Your request was rejected.")],
  "request.granted": ["circle-check", "good", () => gettext("Your request was granted.")],
};
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
  while (box.children.length > 4) box.firstElementChild.remove();
  let timer = setTimeout(() => note.remove(), SHOWN_MS);
  note.addEventListener("pointerenter", () => clearTimeout(timer));
  note.addEventListener("pointerleave", () => { timer = setTimeout(() => note.remove(), SHOWN_MS / 2); });
}

/** Tell of events that concern the signed-in person, unless the page already shows that object. */
export function startToasts() {
  document.addEventListener("live:event", ({ detail }) => {
    const news = NEWS[detail.event];
    const here = document.querySelector(`[data-refresh-on~="lease:${CSS.escape(detail.lease ?? "")}"]`);
    if (!news || (here && detail.lease)) return;
    toast(news[2](), { icon: news[0], tone: news[1], url: detail.url ?? "" });
  });
}
