// Moves the samples of the style sheet: the same DOM events as the socket brings, from a sine wave.

const HISTORY_S = 280;
const SLEEP_FROM = 120;

function wave(second, phase = 0) {
  // A stretch without samples shows how unknown looks.
  if (phase === 0 && second % 280 > SLEEP_FROM && second % 280 < SLEEP_FROM + 25) return null;
  return Math.max(0, Math.min(100, 55 + 35 * Math.sin(second / 17 + phase) + 8 * Math.sin(second / 3 + phase)));
}

function emit(el, data) {
  const detail = { topic: "design", seq: 0, at: new Date().toISOString(), data, isSnapshot: false };
  el.dispatchEvent(new CustomEvent("live:frame", { detail, bubbles: true }));
}

function lease(second) {
  const util = wave(second);
  return { util, memory_used_mib: util === null ? null : 9000 + util * 60 };
}

function fleet(second) {
  const nodes = {};
  document.querySelectorAll("[data-node]").forEach((node, n) => {
    const devices = {};
    node.querySelectorAll("[data-uuid]").forEach((device, d) => {
      const slots = [...device.querySelectorAll(".kind-lease")].map((g, i) => [g.dataset.lease, Number(g.dataset.start), 1, n === 1 ? null : wave(second, n + d + i + 1)]);
      devices[device.dataset.uuid] = { util: n === 1 ? null : wave(second, d + 1), temp: 50 + d, power_w: 300 + 20 * d, slots };
    });
    nodes[node.dataset.node] = { state: ["online", "stale", "offline"][n], devices };
  });
  return { nodes };
}

let isFirst = true;
setInterval(() => {
  const second = Math.floor(Date.now() / 1000);
  document.querySelectorAll('[data-live-topic^="design:lease"]').forEach((el) => {
    const history = Array.from({ length: HISTORY_S }, (_, i) => second - HISTORY_S + i).map((s) => {
      const { util, memory_used_mib: mib } = lease(s);
      return [s, util, mib];
    });
    const slots = [0, 2, 4].map((start) => ({ device: "", start, util: wave(second, start + 1) }));
    emit(el, { ...lease(second), slots, ...(isFirst ? { history } : {}) });
  });
  document.querySelectorAll('[data-live-topic="design:fleet"]').forEach((el) => emit(el, fleet(second)));
  isFirst = false;
}, 1000);
