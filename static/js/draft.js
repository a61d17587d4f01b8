// What was typed into a form comes back when the page does: after a reload, a change of language, the way back, or
// a sign-in because the session had ended. It stays in this tab, and goes once the form has been taken.
//
//   <form …>{% include "includes/draft.html" %}   the note inside the form names who types: nobody is given the draft
//                                                  of somebody else

const PREFIX = "berth-draft:";
const KEPT = "input:not([type=hidden]):not([type=password]):not([type=file]), select, textarea";

const isSwitch = (field) => field.type === "checkbox" || field.type === "radio";
const stateOf = (field) => (isSwitch(field) ? field.checked : field.value);
// Radios and checkboxes share a name: each is known by its value, too.
const nameOf = (field) => (isSwitch(field) ? `${field.name}=${field.value}` : field.name);

// A browser may refuse storage, or have none left: nothing is kept then, and forms work all the same.
function attempt(work) {
  try {
    return work(window.sessionStorage);
  } catch {
    return null;
  }
}

const read = (name) => attempt((storage) => JSON.parse(storage.getItem(name))) ?? {};
const write = (name, draft) => attempt((storage) => storage.setItem(name, JSON.stringify(draft)));
const forget = (name) => attempt((storage) => storage.removeItem(name));

// Whoever signs in before the sign-in page has loaded its scripts is only known by where they come from.
function isAskedToSignIn() {
  const came = document.referrer && new URL(document.referrer).pathname;
  return document.querySelector("[data-sign-in]") !== null || came === document.documentElement.dataset.signInPage;
}

/** Settle what became of forms that were sent: who is asked to sign in still needs them, else only the way back does. */
export function startDrafts() {
  for (const name of attempt(Object.keys) ?? []) {
    if (!name.startsWith(PREFIX)) continue;
    const draft = read(name);
    if (!draft.sent) continue;
    write(name, { values: draft.values, taken: !isAskedToSignIn() });
  }
}

/** Fill the form around the note from its draft, and keep a draft of it from now on. */
export function mount(note, signal) {
  const form = note.closest("form");
  const name = `${PREFIX}${note.dataset.draft}:${location.pathname}${location.search}#${form.getAttribute("action")}`;
  const fields = () => [...form.querySelectorAll(KEPT)].filter((field) => field.name);
  const states = () => Object.fromEntries(fields().map((field) => [nameOf(field), stateOf(field)]));
  const asRendered = states();
  let sent = false;

  function fill(values) {
    for (const field of fields()) {
      const value = values[nameOf(field)];
      if (value === undefined) continue;
      if (isSwitch(field)) field.checked = value;
      else field.value = value;
    }
    form.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function keep() {
    const values = states();
    if (sent || JSON.stringify(values) !== JSON.stringify(asRendered)) write(name, { values, sent });
    else forget(name);
  }

  const { values, taken } = read(name);
  const isWayBack = performance.getEntriesByType("navigation")[0]?.type === "back_forward";
  // A form that came back with complaints has all that was typed already.
  if (values && (!taken || isWayBack) && !form.querySelector(".field-error")) {
    fill(values);
    note.hidden = JSON.stringify(states()) === JSON.stringify(asRendered);
  }
  note.querySelector("button").addEventListener("click", () => {
    fill(asRendered);
    forget(name);
    note.hidden = true;
  }, { signal });
  form.addEventListener("input", keep, { signal });
  form.addEventListener("submit", (event) => {
    sent = !event.defaultPrevented;
    keep();
  }, { signal });
  window.addEventListener("pageshow", () => { sent = false; }, { signal });
  window.addEventListener("pagehide", keep, { signal });
}
