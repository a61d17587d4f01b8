// The browser's time zone, for those who have none yet and for those who travel.
//
//   <input type="hidden" name="zone" data-browser-zone>                 sent along with a sign-in
//   <p data-browser-zone-offer="#id_time_zone" hidden>… <button>…       shown where the chosen one is another

const NAME = Intl.DateTimeFormat().resolvedOptions().timeZone || "";

/** Fill the field, or offer the browser's zone for a list of zones. */
export function mount(el, signal) {
  if (el.matches("input")) { el.value = NAME; return; }
  const list = document.querySelector(el.dataset.browserZoneOffer);
  const words = el.querySelector("[data-text]");
  if (!NAME || list.value === NAME || ![...list.options].some((option) => option.value === NAME)) return;
  words.textContent = words.dataset.text.replace("{zone}", NAME);
  el.hidden = false;
  el.querySelector("button").addEventListener("click", () => { list.value = NAME; el.hidden = true; }, { signal });
}
