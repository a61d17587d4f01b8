// Search from anywhere: Ctrl-K or / opens it, arrows walk through what was found, Enter goes there.

/** Return the place after a step through `count` links from `at` (-1: none yet), round the ends. */
export function stepped(at, step, count) {
  if (!count) return -1;
  if (at < 0) return step > 0 ? 0 : count - 1;
  return (at + step + count) % count;
}

function isTyping(el) {
  return el.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(el.tagName) || el.closest(".xterm");
}

export function mount(dialog, signal) {
  const input = dialog.querySelector("input");
  const form = dialog.querySelector("form");
  const links = () => [...dialog.querySelectorAll("#search-results a")];
  const open = () => {
    dialog.showModal();
    input.select();
    input.dispatchEvent(new CustomEvent("search:now", { bubbles: true }));
  };
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open-search]");
    if (!opener) return;
    event.preventDefault();
    open();
  }, { signal });
  document.addEventListener("keydown", (event) => {
    const isChord = (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "k";
    const isSlash = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.target.closest(".xterm") || !(isChord || (isSlash && !isTyping(event.target)))) return;
    if (document.querySelector("dialog[open]")) return;
    event.preventDefault();
    open();
  }, { signal });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = links();
    all[stepped(all.indexOf(document.activeElement), step, all.length)]?.focus();
  }, { signal });
  form.addEventListener("submit", (event) => {
    const [first] = links();
    if (!first) return;
    event.preventDefault();
    first.click();
  }, { signal });
}
