// A table of choices that sorts by its columns and hides what is too small.
//
//   <table data-sorted-table> with <th data-sort="price"> and <tr data-price="1.45">; "" is unknown and comes last
//   <input data-least-memory="#flavor-table"> hides the rows whose data-memory is below so many GB

import { gettext } from "./i18n.js";

// Makers count in decimal gigabytes: a slice of "20 GB" has 20,096 MiB, some have a little less than 20 GiB.
const MIB_OF_GB = 1e9 / 2 ** 20;

function sortBy(table, head, key, isDown) {
  const body = table.tBodies[0];
  const known = (row) => row.dataset[key] !== "";
  const rows = [...body.rows].sort((a, b) => {
    if (known(a) !== known(b)) return known(a) ? -1 : 1;
    return (Number(a.dataset[key]) - Number(b.dataset[key])) * (isDown ? -1 : 1);
  });
  body.append(...rows);
  table.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
}

/** Make each head with data-sort a button; a second press turns the order around. */
function addButtons(table, signal) {
  table.querySelectorAll("th[data-sort]").forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sortBy(table, head, head.dataset.sort, head.getAttribute("aria-sort") === "ascending"), { signal });
  });
}

function narrow(table, field) {
  const least = Number(field.value) * MIB_OF_GB;
  const rows = [...table.tBodies[0].rows];
  rows.forEach((row) => {
    // What is chosen stays in sight, also where it is too small.
    row.hidden = Number(row.dataset.memory) < least && !row.querySelector(":checked");
  });
  const shown = rows.filter((row) => !row.hidden).length;
  const said = document.querySelector("[data-shown-of]");
  if (said) said.textContent = shown === rows.length ? "" : gettext("{n} of {all} sizes fit", { n: shown, all: rows.length });
}

export function mount(table, signal) {
  addButtons(table, signal);
  const field = document.querySelector("[data-least-memory]");
  if (!field) return;
  field.form.addEventListener("input", () => narrow(table, field), { signal });
  narrow(table, field);
}
