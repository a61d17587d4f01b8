// Announcements begin and end by themselves: ask again at the instant the server named, in seconds from then.

const LONGEST_S = 86400;
const GRACE_S = 1;

/** Refresh the element when what it shows changes by itself. */
export function mount(el, signal) {
  let timer = 0;
  const arm = () => {
    clearTimeout(timer);
    const seconds = Number(el.dataset.changesInS);
    if (!el.dataset.changesInS || !Number.isFinite(seconds) || seconds > LONGEST_S) return;
    timer = setTimeout(() => el.dispatchEvent(new CustomEvent("live:refresh")), (seconds + GRACE_S) * 1000);
  };
  const watcher = new MutationObserver(arm);
  watcher.observe(el, { attributes: true, attributeFilter: ["data-changes-in-s"] });
  signal.addEventListener("abort", () => { watcher.disconnect(); clearTimeout(timer); });
  arm();
}
