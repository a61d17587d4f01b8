// The page of somebody who watches the terminals of a lease by its holder's leave. docs/terminal.md says what is said.
//
// Nothing is typed here, and the gateway would take nothing. Where the terminal is shown by no gateway just now, all of
// them are asked in turn for as long as the page is open.

import { gettext } from "./i18n.js";
import { askTicket, reason } from "./terminal-tab.js";

const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 3000;
const ACK_BYTES = 128 * 1024;
const FOR_NOW = ["not_shown", "behind", "node_away", "unavailable", "restart", "bad_ticket"];

/** Called by main.js for the element of the watched terminal. */
export function mount(root, signal) {
  const status = root.querySelector("[data-terminal-state]");
  const gateways = JSON.parse(root.dataset.gateways);
  const term = new window.Terminal({
    cursorBlink: false, disableStdin: true, fontSize: 14, lineHeight: 1.2, scrollback: 5000, allowProposedApi: false,
    fontFamily: "ui-monospace, 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace",
    theme: { background: "#111418", foreground: "#e6e9ee" },
  });
  term.open(root.querySelector("[data-terminal-panes]"));
  let tries = 0;
  let socket = null;

  function say(state, text) {
    root.dataset.state = state;
    status.textContent = text;
  }

  async function connect() {
    if (signal.aborted) return;
    const told = await askTicket(root);
    if (told.refusal) { say("over", told.refusal); return; }
    if (!told.ticket) { again(); return; }
    let why = "";
    let unacked = 0;
    const mine = new WebSocket(gateways[tries % gateways.length]);
    socket = mine;
    mine.binaryType = "arraybuffer";
    mine.onopen = () => mine.send(JSON.stringify({ ticket: told.ticket }));
    mine.onmessage = ({ data }) => {
      if (typeof data !== "string") {
        const bytes = new Uint8Array(data);
        term.write(bytes, () => {
          unacked += bytes.length;
          if (unacked < ACK_BYTES || mine.readyState !== WebSocket.OPEN) return;
          mine.send(JSON.stringify({ op: "ack", bytes: unacked }));
          unacked = 0;
        });
        return;
      }
      const word = JSON.parse(data);
      if (word.op === "opened") {
        term.reset();
        tries = 0;
        say("open", gettext("You are watching"));
      }
      if (word.op === "opened" || word.op === "resize") term.resize(word.columns, word.rows);
      if (word.op === "end") why = word.code;
    };
    mine.onclose = () => {
      if (socket !== mine) return;
      if (why && !FOR_NOW.includes(why)) say("over", reason(why, ""));
      else again(why);
    };
  }

  function again(why = "") {
    tries += 1;
    say("waiting", why === "not_shown" ? gettext("No terminal is open there just now.") : gettext("Reconnecting…"));
    // Each gateway is asked before the page waits longer.
    const round = Math.floor(tries / gateways.length);
    setTimeout(connect, Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(round, 8)) * (0.5 + Math.random() / 2));
  }

  signal.addEventListener("abort", () => { socket?.close(); term.dispose(); });
  connect();
}
