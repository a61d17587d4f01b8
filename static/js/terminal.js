// The page of a lease's terminals: its tabs, the keys that phones lack, and tickets for the gateways.
//
// The names of shells are kept with the browser's tab, so that a reload finds its shells again.

import { gettext } from "./i18n.js";
import { Tab } from "./terminal-tab.js";

const KEYS = {
  Escape: "\x1b", Tab: "\t", ArrowUp: "\x1b[A", ArrowDown: "\x1b[B", ArrowLeft: "\x1b[D", ArrowRight: "\x1b[C",
};

/** The page: its tabs, which one is seen, and what is kept for a reload. */
class TerminalPage {
  constructor(root) {
    this.root = root;
    this.panes = root.querySelector("[data-terminal-panes]");
    this.list = root.querySelector("[data-terminal-tabs]");
    this.status = root.querySelector("[data-terminal-state]");
    this.gateways = JSON.parse(root.dataset.gateways);
    this.first = Math.floor(Math.random() * this.gateways.length);
    this.key = `berth-terminals-${root.dataset.lease}`;
    this.tabs = [];
    this.current = null;
    this.isControl = false;
  }

  start(signal) {
    const kept = JSON.parse(sessionStorage.getItem(this.key) ?? "[]");
    for (const name of kept.length ? kept : [""]) this.add(name);
    this.select(this.tabs[0]);
    const on = (selector, act) => this.root.querySelector(selector).addEventListener("click", act, { signal });
    on("[data-terminal-new]", () => this.select(this.add()));
    on("[data-terminal-close]", () => this.close(this.current));
    for (const button of this.root.querySelectorAll("[data-key]")) {
      button.addEventListener("click", () => this.press(button.dataset.key), { signal });
    }
    const observer = new ResizeObserver(() => this.fitCurrent());
    observer.observe(this.panes);
    signal.addEventListener("abort", () => observer.disconnect());
  }

  add(name = "") {
    const tab = new Tab(this, name);
    this.tabs.push(tab);
    this.current ??= tab;
    this.refresh();
    if (tab === this.current) this.fitCurrent();
    tab.connect();
    return tab;
  }

  select(tab) {
    this.current = tab;
    this.refresh();
    this.fitCurrent();
    tab.term.focus();
  }

  close(tab) {
    const at = this.tabs.indexOf(tab);
    if (at < 0) return;
    this.tabs.splice(at, 1);
    tab.hangUp();
    this.remember();
    if (!this.tabs.length) this.current = null;
    this.select(this.tabs[Math.max(0, at - 1)] ?? this.add());
  }

  press(key) {
    if (key === "Control") this.isControl = !this.isControl;
    else if (this.current) this.current.type(KEYS[key]);
    this.root.querySelector("[data-key=Control]").setAttribute("aria-pressed", String(this.isControl));
    this.current?.term.focus();
  }

  /** A letter after the button Ctrl is that control character. */
  withControl(text) {
    if (!this.isControl || text.length !== 1) return text;
    this.press("Control");
    const code = text.toUpperCase().charCodeAt(0);
    return code >= 64 && code < 96 ? String.fromCharCode(code - 64) : text;
  }

  fitCurrent() {
    if (this.current && this.panes.clientHeight) this.current.fit.fit();
  }

  remember() {
    sessionStorage.setItem(this.key, JSON.stringify(this.tabs.map((tab) => tab.name).filter(Boolean)));
  }

  refresh() {
    this.list.replaceChildren(...(this.tabs.length < 2 ? [] : this.tabs.map((tab, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = tab === this.current ? "btn btn-sm btn-primary" : "btn btn-sm";
      button.setAttribute("role", "tab");
      button.setAttribute("aria-selected", String(tab === this.current));
      button.textContent = String(index + 1);
      button.addEventListener("click", () => this.select(tab));
      return button;
    })));
    this.tabs.forEach((tab, index) => {
      tab.pane.hidden = tab !== this.current;
      tab.pane.setAttribute("aria-label", gettext("Terminal {n}", { n: index + 1 }));
    });
    const words = {
      connecting: gettext("Connecting…"), open: gettext("Connected"), reconnecting: gettext("Reconnecting…"),
    };
    const tab = this.current;
    this.root.dataset.state = tab?.state ?? "";
    this.status.textContent = tab ? (words[tab.state] ?? tab.said) : "";
  }
}

/** Called by main.js for the element of the terminal. */
export function mount(root, signal) {
  new TerminalPage(root).start(signal);
}
