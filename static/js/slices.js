// Water levels of a slice bar that the server drew: utilisation of each lease in its place.

/** Set the level of one slice; unknown empties it and says so in the title. */
export function setLevel(group, util) {
  const level = group.querySelector(".slice-level");
  if (!level) return;
  const known = util !== null && util !== undefined;
  const height = known ? Math.min(100, Math.max(0, util)) : 0;
  level.style.height = `${height}px`;
  level.style.y = `${100 - height}px`;
  group.dataset.util = known ? String(Math.round(util)) : "unknown";
}

// A share has no position of its own: where a bar shows a single lease, the figure is that lease's.
function only(bar) {
  const groups = bar.querySelectorAll(".kind-lease");
  return groups.length === 1 ? groups[0] : null;
}

/** Watch frames of a lease (`slots`) or of a node (`devices`) for the device in `data-slices`. */
export function mount(bar, signal) {
  const uuid = bar.dataset.slices;
  bar.addEventListener("live:frame", ({ detail }) => {
    const own = (detail.data.slots ?? []).filter((s) => !uuid || s.device === uuid).map((s) => [s.start, s.util]);
    const nodes = Object.values(detail.data.nodes ?? {}).map((n) => n.devices?.[uuid]).filter(Boolean);
    const seen = nodes.flatMap((d) => d.slots.map(([, start, , util]) => [start, util]));
    for (const [start, util] of [...own, ...seen]) {
      const group = bar.querySelector(`.kind-lease[data-start="${Number(start)}"]`) ?? only(bar);
      if (group) setLevel(group, util);
    }
  }, { signal });
}
