// Confirm dialogs are <dialog> elements: focus trap, Escape and inert background come from the browser.

import { gettext } from "./i18n.js";

function element(tag, className, text) {
  const el = document.createElement(tag);
  if (className) el.className = className;
  if (text) el.textContent = text;
  return el;
}

/** Ask a yes-or-no question; resolves to true only for the confirming button. */
export function confirmed(question) {
  const dialog = element("dialog", "dialog");
  const form = element("form");
  form.method = "dialog";
  const actions = element("div", "dialog-actions");
  const keep = element("button", "btn", gettext("Cancel"));
  const go = element("button", "btn btn-primary", gettext("Continue"));
  keep.value = "no";
  go.value = "yes";
  actions.append(keep, go);
  form.append(element("p", "", question), actions);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    }, { once: true });
  });
}

async function guard(event) {
  const form = event.target;
  if (!form.dataset.confirm || form.dataset.confirmed) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (!(await confirmed(form.dataset.confirm))) return;
  form.dataset.confirmed = "yes";
  form.requestSubmit(event.submitter);
}

function markBusy(event) {
  if (event.defaultPrevented || event.target.method !== "post") return;
  // After this turn, so that the button's own name and value are still sent.
  setTimeout(() => event.submitter?.setAttribute("aria-busy", "true"));
}

/** Wire openers, closers, clicks on the backdrop and `data-confirm` forms. */
export function startDialogs() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open-dialog]");
    if (opener) document.getElementById(opener.dataset.openDialog)?.showModal();
    if (event.target.closest("[data-close-dialog]")) event.target.closest("dialog")?.close();
    if (event.target.matches("dialog.dialog[open]")) dismissOutside(event);
  });
  document.addEventListener("submit", guard, true);
  document.addEventListener("submit", markBusy);
  addEventListener("pageshow", () => {
    document.querySelectorAll('button[aria-busy="true"]').forEach((b) => b.removeAttribute("aria-busy"));
  });
  document.addEventListener("htmx:confirm", (event) => {
    event.preventDefault();
    confirmed(event.detail.ctx.confirm).then((yes) => (yes ? event.detail.issueRequest() : event.detail.dropRequest()));
  });
}

function dismissOutside(event) {
  const box = event.target.getBoundingClientRect();
  const inside = event.clientX >= box.left && event.clientX <= box.right
    && event.clientY >= box.top && event.clientY <= box.bottom;
  if (!inside && event.detail > 0) event.target.close();
}
