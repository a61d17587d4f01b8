// One terminal of a lease: an xterm and a socket. docs/terminal.md describes what is said on the socket.
//
// A socket that is lost is opened anew with the name of its shell: for a minute the node keeps the shell and shows what
// it showed last.

import { confirmed } from "./dialog.js";
import { gettext } from "./i18n.js";

const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5000;
const KEPT_MS = 60000;
const ACK_BYTES = 128 * 1024;
const SHOWN_OF_PASTE = 600;
const MOST_MESSAGE = 256 * 1024;

/** Why a terminal ended, in words. */
export function reason(code, detail) {
  const told = {
    lease_over: gettext("The lease is over, and its terminal with it."),
    signed_out: gettext("You are signed out. Sign in again to open a terminal."),
    not_allowed: gettext("You may not use this terminal any more."),
    taken_over: gettext("This terminal was opened in another window."),
    exited: gettext("The shell has ended."),
    hung_up: gettext("The shell has ended."),
    not_open_here: gettext("The node does not have this lease open yet. Try again in a moment."),
    too_many_terminals: gettext("There are too many terminals in this lease. End some of them."),
    agent_stopped: gettext("The node's agent restarted, and its shells ended. Open a new one."),
    no_account: gettext("The node has no account for you. Ask an operator."),
  }[code];
  return told ?? (detail || gettext("The terminal was closed ({code}).", { code }));
}

/** A ticket, or a sentence on why there is none; neither where the portal cannot be reached now. */
export async function askTicket(root) {
  try {
    const answer = await fetch(root.dataset.ticketUrl, {
      method: "POST", headers: { "X-CSRFToken": root.dataset.csrf, Accept: "application/json" }, redirect: "manual",
    });
    if (answer.ok) return await answer.json();
    const told = await answer.json().catch(() => ({}));
    if (answer.type === "opaqueredirect" || (answer.status === 403 && !told.detail)) return { refusal: reason("signed_out") };
    if (answer.status >= 500 || answer.status === 429) return {};
    return { refusal: told.detail || reason("not_allowed") };
  } catch {
    return {};
  }
}

/** One tab: an xterm, the socket behind it, and the shell's name. */
export class Tab {
  constructor(page, name = "") {
    this.page = page;
    this.name = name;
    this.state = "connecting";
    this.said = "";
    this.isOver = false;
    this.attempts = 0;
    this.lostAt = 0;
    this.unacked = 0;
    this.pane = document.createElement("div");
    this.pane.className = "terminal-pane";
    this.pane.setAttribute("role", "tabpanel");
    page.panes.append(this.pane);
    this.term = new window.Terminal({
      cursorBlink: false, fontSize: 14, lineHeight: 1.2, scrollback: 5000, allowProposedApi: false, screenReaderMode: false,
      fontFamily: "ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace",
      theme: { background: "#111418", foreground: "#e6e9ee" },
    });
    this.fit = new window.FitAddon.FitAddon();
    this.term.loadAddon(this.fit);
    this.term.open(this.pane);
    this.term.attachCustomKeyEventHandler((event) => this.onKey(event));
    this.term.onData((text) => this.type(page.withControl(text)));
    this.term.onBinary((text) => this.send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
    this.term.onResize(({ rows, cols }) => this.say({ op: "resize", rows, columns: cols }));
    this.pane.addEventListener("paste", (event) => this.onPaste(event), true);
  }

  get isOpen() { return this.socket?.readyState === WebSocket.OPEN && this.state === "open"; }

  say(word) { if (this.isOpen) this.socket.send(JSON.stringify(word)); }

  send(bytes) {
    if (!this.isOpen) return;
    for (let at = 0; at < bytes.length; at += MOST_MESSAGE) this.socket.send(bytes.subarray(at, at + MOST_MESSAGE));
  }

  type(text) { this.send(new TextEncoder().encode(text)); }

  onKey(event) {
    if (event.type !== "keydown" || !event.ctrlKey || !event.shiftKey || event.code !== "KeyC") return true;
    event.preventDefault();
    navigator.clipboard?.writeText(this.term.getSelection());
    return false;
  }

  async onPaste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const lines = text.replace(/[\r\n]+$/, "").split(/\r\n|\r|\n/).length;
    if (lines < 2) return;
    event.preventDefault();
    event.stopPropagation();
    const shown = text.length > SHOWN_OF_PASTE ? `${text.slice(0, SHOWN_OF_PASTE)}…` : text;
    const question = gettext("Paste {n} lines into the terminal? The shell may run each of them at once.", { n: lines });
    if (await confirmed(`${question}\n\n${shown}`)) this.term.paste(text);
    this.term.focus();
  }

  show(state, said = "") {
    this.state = state;
    this.said = said;
    this.page.refresh();
  }

  end(said) {
    this.isOver = true;
    this.name = "";
    this.show("over", said);
    this.term.write(`\r\n\x1b[2m${said}\x1b[0m\r\n`);
    this.page.remember();
  }

  /** Ask for a ticket and open a socket; a lost one is tried again for as long as the shell is kept. */
  async connect() {
    if (this.isOver) return;
    this.show(this.attempts ? "reconnecting" : "connecting");
    const told = await askTicket(this.page.root);
    if (told.refusal) { this.end(told.refusal); return; }
    if (!told.ticket) { this.again(); return; }
    const { gateways } = this.page;
    const socket = new WebSocket(gateways[(this.page.first + this.attempts) % gateways.length]);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.why = null;
    socket.onopen = () => {
      const { rows, cols } = this.term;
      socket.send(JSON.stringify({ ticket: told.ticket, rows, columns: cols, terminal: this.name }));
    };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.hear(JSON.parse(data));
      else this.draw(new Uint8Array(data));
    };
    socket.onclose = () => { if (this.socket === socket) this.closed(); };
  }

  hear(word) {
    if (word.op === "opened") {
      if (word.is_former) this.term.reset();
      else if (this.name) this.term.write(`\r\n\x1b[2m${gettext("The former shell is gone; this is a new one.")}\x1b[0m\r\n`);
      this.name = word.terminal;
      this.attempts = this.unacked = this.lostAt = 0;
      this.show("open");
      this.page.remember();
      this.page.fitCurrent();
      const { rows, cols } = this.term;
      this.say({ op: "resize", rows, columns: cols });
    } else if (word.op === "end") this.why = word;
    else if (word.op === "exit") this.status = word.status;
  }

  draw(bytes) {
    this.term.write(bytes, () => {
      this.unacked += bytes.length;
      if (this.unacked < ACK_BYTES) return;
      this.say({ op: "ack", bytes: this.unacked });
      this.unacked = 0;
    });
  }

  closed() {
    const code = this.why?.code;
    if (!code || ["node_away", "unavailable", "restart", "bad_ticket", "not_open_here"].includes(code)) {
      this.again();
    } else if (code === "exited" && this.status) {
      this.end(gettext("The shell has ended with status {status}.", { status: this.status }));
    } else this.end(reason(code, this.why.detail));
  }

  again() {
    this.lostAt ||= Date.now();
    if (Date.now() - this.lostAt > KEPT_MS) { this.end(gettext("The terminal cannot be reached. Open a new one in a while.")); return; }
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(this.attempts, 8)) * (0.5 + Math.random() / 2);
    this.attempts += 1;
    this.show("reconnecting");
    setTimeout(() => this.connect(), wait);
  }

  hangUp() {
    this.say({ op: "hang_up" });
    this.isOver = true;
    this.name = "";
    this.socket?.close();
    this.term.dispose();
    this.pane.remove();
  }
}
