// Every <time data-time> and running cost on the page, moved by one timer.

import { moment, number, relative, span } from "./i18n.js";

function showTime(el, now) {
  const at = new Date(el.getAttribute("datetime"));
  if (Number.isNaN(at.getTime())) return;
  const mode = el.dataset.time;
  const left = (at.getTime() - now) / 1000;
  if (mode === "countdown") {
    el.textContent = span(left);
    el.classList.toggle("is-soon", left > 0 && left <= Number(el.dataset.warnS || 600));
    el.classList.toggle("is-over", left <= 0);
  } else if (mode === "elapsed") el.textContent = span(-left);
  else if (mode === "moment") el.textContent = moment(at);
  else el.textContent = relative(at, now);
  if (!el.title) el.title = `${moment(at)} (${document.documentElement.dataset.zone ?? ""})`;
}

function showCost(el, now) {
  const since = Date.parse(el.dataset.since);
  const until = el.dataset.until ? Date.parse(el.dataset.until) : Infinity;
  const hours = Math.max(0, Math.min(now, until) - since) / 3600000;
  const amount = Number(el.dataset.base) + Number(el.dataset.perHour) * hours;
  const shown = number(amount, 2);
  if (shown !== null) el.firstElementChild.textContent = shown;
}

function tick() {
  const now = Date.now();
  document.querySelectorAll("time[data-time]").forEach((el) => showTime(el, now));
  document.querySelectorAll("[data-cost]").forEach((el) => showCost(el, now));
}

/** Begin to tick, once a second on the second; a hidden page does not. */
export function startClock() {
  tick();
  const next = () => {
    if (!document.hidden) tick();
    setTimeout(next, 1000 - (Date.now() % 1000));
  };
  next();
  document.addEventListener("htmx:after:swap", tick);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
}
