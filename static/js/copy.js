// Copy buttons: `data-copy="text"`, or the <code> beside the button when it is empty.

async function put(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  // Plain http on a lab network has no clipboard API; the old command still works there.
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("copy refused");
}

async function copied(button) {
  const text = button.dataset.copy || button.parentElement.querySelector("code")?.textContent.trim() || "";
  await put(text);
  const use = button.querySelector("use");
  const icon = use?.getAttribute("href");
  use?.setAttribute("href", icon.replace(/#.*/, "#check"));
  button.classList.add("is-done");
  button.setAttribute("aria-label", button.dataset.done || "Copied");
  setTimeout(() => {
    button.classList.remove("is-done");
    use?.setAttribute("href", icon);
  }, 1600);
}

/** Listen to every copy button, also those that arrive later. */
export function startCopy() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button && !button.classList.contains("is-done")) copied(button).catch(() => selectBeside(button));
  });
}

function selectBeside(button) {
  const code = button.parentElement.querySelector("code, span");
  if (code) getSelection().selectAllChildren(code);
}
