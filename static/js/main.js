// The page's only entry: finds what the page uses and loads just those modules.

import * as live from "./live.js";
import { startClock } from "./countdown.js";
import { startCopy } from "./copy.js";
import { startDialogs } from "./dialog.js";
import { startDrafts } from "./draft.js";
import { startMoments } from "./moment.js";
import { startTheme } from "./theme.js";
import { startToasts } from "./toast.js";

const PARTS = [
  ["[data-chart]", () => import("./chart.js")],
  ["[data-map]", () => import("./map.js")],
  ["[data-calendar]", () => import("./calendar.js")],
  ["[data-slices]", () => import("./slices.js")],
  ["[data-terminal]", () => import("./terminal.js")],
  ["[data-terminal-watch]", () => import("./terminal-watch.js")],
  ["[data-job-log]", () => import("./job-log.js")],
  ["[data-sorted-table]", () => import("./sorted-table.js")],
  ["form[data-quote-url]", () => import("./request-form.js")],
  ["[data-browser-zone], [data-browser-zone-offer]", () => import("./zone.js")],
  ["[data-changes-in-s]", () => import("./announcements.js")],
  ["[data-search]", () => import("./search.js")],
  ["[data-reads-into]", () => import("./read-file.js")],
  ["[data-passkey]", () => import("./passkey.js")],
  ["[data-draft]", () => import("./draft.js")],
];

const running = new WeakMap();

/** Mount every part inside `root` once; a part that is mounted again first loses its old listeners. Resolves when all are. */
function mountAll(root = document) {
  const loads = [];
  for (const [selector, load] of PARTS) {
    const found = [...root.querySelectorAll(selector)].filter((el) => !el.dataset.mounted);
    if (!found.length) continue;
    found.forEach((el) => { el.dataset.mounted = "yes"; });
    loads.push(load().then((part) => found.forEach((el) => {
      running.get(el)?.abort();
      const life = new AbortController();
      running.set(el, life);
      part.mount(el, life.signal);
    })));
  }
  live.scan();
  return Promise.allSettled(loads);
}

startTheme();
startDialogs();
startDrafts();
startCopy();
startClock();
startToasts();
startMoments();
// The socket answers with one snapshot of each topic, and a silent node sends nothing after it: whoever is not there
// when it comes never hears of it.
mountAll().then(live.start);
document.addEventListener("htmx:after:swap", () => {
  live.show();
  mountAll();
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-close]");
  if (button) button.closest(button.dataset.close)?.remove();
});
