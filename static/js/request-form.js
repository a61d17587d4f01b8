// The request form: fields follow the chosen flavor, the quote follows every change.
//
//   <form data-quote-url="/requests/quote/" data-quote-target="#quote">
//   The URL is fetched by GET with the form's fields and answers with an HTML fragment.

import { gettext } from "./i18n.js";

const PAUSE_MS = 250;

function showFields(form) {
  const mode = form.querySelector("input[data-mode]:checked")?.dataset.mode ?? "";
  form.querySelectorAll("[data-show-for]").forEach((el) => {
    const shown = el.dataset.showFor.split(/\s+/).includes(mode);
    el.hidden = !shown;
    el.querySelectorAll("input, select, textarea").forEach((field) => { field.disabled = !shown; });
  });
}

function markChips(form) {
  form.querySelectorAll("[data-fill]").forEach((chip) => {
    const field = form.querySelector(chip.dataset.fill);
    chip.setAttribute("aria-pressed", String(field?.value === chip.dataset.value));
  });
}

// Whoever goes on to another form, a job's, brings along what they chose here.
function carry(form) {
  form.querySelectorAll("a[data-carries]").forEach((link) => {
    const given = new FormData(form);
    const address = new URL(link.href);
    link.dataset.carries.split(/\s+/).forEach((name) => { if (given.get(name)) address.searchParams.set(name, given.get(name)); });
    link.href = address.href;
  });
}

// Beside the button the price stays in sight, wherever the quote has scrolled to.
function showPrice(form, target) {
  const price = target.querySelector(".stat-value");
  form.querySelectorAll("[data-quote-price]").forEach((shown) => { shown.innerHTML = price?.innerHTML ?? ""; });
}

function fields(form) {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (name !== "csrfmiddlewaretoken" && typeof value === "string") query.append(name, value);
  }
  return query;
}

/** Wire one form; the latest answer wins and an older one never overwrites it. */
export function mount(form, signal) {
  const target = document.querySelector(form.dataset.quoteTarget);
  let timer = 0;
  let running = null;

  async function quote() {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    target.setAttribute("aria-busy", "true");
    try {
      const url = `${form.dataset.quoteUrl}?${fields(form)}`;
      const answer = await fetch(url, { signal: mine.signal, headers: { "HX-Request": "true" }, credentials: "same-origin" });
      const text = await answer.text();
      if (mine.signal.aborted) return;
      // A refusal (4xx) is also a fragment that says what to change; only a broken server has none.
      if (answer.status >= 500 || answer.redirected) throw new Error(String(answer.status));
      target.innerHTML = text;
      showPrice(form, target);
      window.htmx?.process(target);
    } catch (error) {
      if (error.name !== "AbortError") target.textContent = gettext("The price is unknown just now. You can still send the request.");
    } finally {
      if (running === mine) target.removeAttribute("aria-busy");
    }
  }

  function changed() {
    showFields(form);
    markChips(form);
    carry(form);
    clearTimeout(timer);
    timer = setTimeout(quote, PAUSE_MS);
  }

  target.classList.add("is-live");
  target.setAttribute("aria-live", "polite");
  form.addEventListener("input", changed, { signal });
  form.addEventListener("change", changed, { signal });
  document.addEventListener("click", (event) => {
    const chip = event.target.closest("[data-fill]");
    if (!chip || (chip.form !== form && !form.contains(chip) && !target.contains(chip))) return;
    chip.dataset.fill.split(/\s*,\s*/).forEach((selector, at) => fill(form, selector, chip.dataset.value.split("|")[at]));
    changed();
  }, { signal });
  showFields(form);
  markChips(form);
  carry(form);
  quote();
}

function fill(form, selector, value) {
  const field = form.querySelector(selector);
  if (!field) return;
  // What an offer sets must be seen, also where it stands in a closed section.
  if (value) field.closest("details")?.setAttribute("open", "");
  if (field.type === "radio") {
    const card = form.querySelector(`input[name="${CSS.escape(field.name)}"][value="${CSS.escape(value)}"]`);
    if (card) card.checked = true;
  } else if (field.type === "checkbox") field.checked = value === "1";
  else field.value = value ?? "";
  // What an offer chooses must not hide in a closed section.
  if (value) field.closest("details")?.setAttribute("open", "");
}
