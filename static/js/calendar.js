// The calendar: a click on a free time opens the request form with that start.
//
//   <div data-calendar data-since="…" data-until="…" data-step-s="900" data-book="/requests/new/">
//   The same is reached without a pointer by the links at the top.

/** Return the start that a click at this part (0 to 1) of the time shown means, or null when it is over. */
export function startAt(part, since, until, stepS, now) {
  const step = stepS * 1000;
  const at = since + Math.floor((part * (until - since)) / step) * step;
  return at > now ? new Date(at) : null;
}

/** Wire one calendar. */
export function mount(root, signal) {
  const since = Date.parse(root.dataset.since);
  const until = Date.parse(root.dataset.until);
  root.addEventListener("click", (event) => {
    const lane = event.target.closest(".cal-lanes.is-free");
    if (!lane || event.target.closest(".cal-bar")) return;
    const box = lane.getBoundingClientRect();
    const at = startAt((event.clientX - box.left) / box.width, since, until, Number(root.dataset.stepS), Date.now());
    if (at) window.location.assign(`${root.dataset.book}?starts_at=${encodeURIComponent(at.toISOString())}`);
  }, { signal });
}
