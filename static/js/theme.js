// Light, dark or as the system. The choice is a cookie that the server reads, so no page flashes.

const YEAR_S = 31536000;

function choose(theme) {
  const root = document.documentElement;
  if (theme === "auto") root.removeAttribute("data-bs-theme");
  else root.setAttribute("data-bs-theme", theme);
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `berth_theme=${theme}; Path=/; Max-Age=${theme === "auto" ? 0 : YEAR_S}; SameSite=Lax${secure}`;
  document.querySelectorAll("[data-choose-theme]").forEach((button) => {
    button.setAttribute("aria-pressed", String(button.dataset.chooseTheme === theme));
  });
  document.dispatchEvent(new CustomEvent("theme:change"));
}

/** Listen to the theme switch, and pass on a change of the system's own theme. */
export function startTheme() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-choose-theme]");
    if (button) choose(button.dataset.chooseTheme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    document.dispatchEvent(new CustomEvent("theme:change"));
  });
}
