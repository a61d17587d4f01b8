// The moment something on the page changes its state: said once to whoever listens, and followed where it leads.
//
//   <span data-say>Active</span>                               its text is said, and lit, when a refresh has changed it
//   <section data-go-to="/leases/x/" data-go-to-text="…">…      came with a refresh: the page moves on after a moment
//
// Nobody is moved while they do something: a key, a touch, a click or a scroll keeps the page, and a note with the link
// says where it would have gone.

import { toast } from "./toast.js";

const MOMENT_MS = 1800;
const RECENT_MS = 4000;
const MARKS = ["keydown", "pointerdown", "wheel", "touchmove"];
const FIELDS = "input:not([type=hidden]), textarea, select, [contenteditable], dialog[open], dialog[open] *";

let touchedAt = -Infinity;
let said = [];
let leaving = 0;

function words() {
  return [...document.querySelectorAll("[data-say]")].map((el) => el.textContent.replace(/\s+/g, " ").trim());
}

/** Say a text to assistive technology, politely. */
function say(text) {
  const box = document.getElementById("announcer");
  if (box) box.textContent = text;
}

function isBusy() {
  return performance.now() - touchedAt < RECENT_MS
    || Boolean(document.activeElement?.matches(FIELDS))
    || Boolean(document.querySelector("dialog[open]"))
    || !(getSelection()?.isCollapsed ?? true);
}

function tellInstead(target) {
  toast(target.dataset.goToText, { tone: "good", icon: "circle-check", url: target.dataset.goTo });
}

function stay() {
  touchedAt = performance.now();
  if (!leaving) return;
  clearTimeout(leaving);
  leaving = 0;
  const target = document.querySelector("[data-go-to]");
  target?.classList.remove("is-leaving");
  if (target) tellInstead(target);
}

function follow() {
  const target = document.querySelector("[data-go-to]");
  if (!target || target.dataset.goToSeen || leaving) return;
  target.dataset.goToSeen = "yes";
  if (isBusy()) { tellInstead(target); return; }
  target.classList.add("is-leaving");
  // Replaced, not added: going back from there must not lead here, from where one is sent there again.
  leaving = setTimeout(() => location.replace(target.dataset.goTo), MOMENT_MS);
}

function swapped() {
  const now = words();
  const changed = now.filter((text, index) => text !== said[index]);
  document.querySelectorAll("[data-say]").forEach((el, index) => el.classList.toggle("is-new", now[index] !== said[index]));
  if (changed.length) say(changed.join(". "));
  said = now;
  follow();
}

/** Watch what refreshes change on this page. */
export function startMoments() {
  said = words();
  for (const mark of MARKS) addEventListener(mark, stay, { passive: true, capture: true });
  document.addEventListener("htmx:after:swap", swapped);
}
