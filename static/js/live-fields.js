// Figures of a frame in the elements that ask for them by `data-live-field`; unknown is said, never shown as zero.

import { gettext, memory, number } from "./i18n.js";

function percent(value) {
  return number(value) === null ? null : `${number(value)} %`;
}

const fields = {
  util: percent,
  sm: percent,
  tensor: percent,
  bandwidth: percent,
  memory_used_mib: memory,
  memory_mib: memory,
  power_w: (v) => (number(v) === null ? null : `${number(v)} W`),
};

/** Show what the data says in the slots inside an element, and in the element itself. */
export function showFields(el, data) {
  const slots = [...el.querySelectorAll("[data-live-field]")];
  if (el.dataset.liveField) slots.push(el);
  for (const slot of slots) {
    const name = slot.dataset.liveField;
    if (name.startsWith("sources.")) {
      const source = data.sources?.[name.slice("sources.".length)] ?? "";
      slot.textContent = source === "estimate" ? gettext("estimated") : source;
      continue;
    }
    if (!(name in data)) continue;
    const text = (fields[name] ?? ((v) => (v === null ? null : String(v))))(data[name]);
    slot.textContent = text ?? gettext("unknown");
    slot.classList.toggle("is-unknown", text === null);
    const box = slot.closest("[data-known-only]");
    if (box) box.hidden = text === null;
    if (slot.tagName === "PROGRESS") slot.value = data[name] ?? 0;
  }
}
