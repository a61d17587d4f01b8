// Words and numbers of the page's language. `gettext` comes from Django's JavaScriptCatalog when it is loaded.

const LANG = document.documentElement.lang || "en";
const ZONE = document.documentElement.dataset?.zone || undefined;

/** The translation of `text`, with {name} replaced by `values.name`. */
export function gettext(text, values = {}) {
  const told = window.gettext ? window.gettext(text) : text;
  return told.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

const formats = new Map();

/** A number in the page's language; null and undefined give null, never zero. */
export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(Number(value))) return null;
  if (!formats.has(digits)) {
    formats.set(digits, new Intl.NumberFormat(LANG, { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formats.get(digits).format(Number(value));
}

/** "11.2 GiB" from MiB; null stays null. */
export function memory(mib) {
  if (mib === null || mib === undefined) return null;
  return mib < 1024 ? `${number(mib)} MiB` : `${number(mib / 1024, 1)} GiB`;
}

/** "3 minutes ago" or "in 2 hours". */
export function relative(date, now = Date.now()) {
  const seconds = (date.getTime() - now) / 1000;
  const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]].find(
    ([, length]) => Math.abs(seconds) >= length,
  ) ?? ["second", 1];
  return new Intl.RelativeTimeFormat(LANG, { numeric: "auto" }).format(Math.trunc(seconds / size), unit);
}

function formatOf(options) {
  try {
    return new Intl.DateTimeFormat("en-US", { ...options, timeZone: ZONE });
  } catch {
    return new Intl.DateTimeFormat("en-US", options); // a zone that this browser does not know yet
  }
}

const PARTS = formatOf({ year: "numeric", month: "numeric", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function partsOf(date) {
  return Object.fromEntries(PARTS.formatToParts(date).map(({ type, value }) => [type, value]));
}

/** "14:05:09" in the person's zone. */
export function timeOfDay(date) {
  const { hour, minute, second } = partsOf(date);
  return `${hour}:${minute}:${second}`;
}

/** "21 Nov, 14:05" in the person's zone, with the year only when it is another one; as portal/common/moments.py writes it. */
export function moment(date, now = new Date()) {
  const { year, month, day, hour, minute } = partsOf(date);
  const isThisYear = year === partsOf(now).year;
  if (LANG.startsWith("zh")) return `${isThisYear ? "" : `${year}年`}${month}月${day}日 ${hour}:${minute}`;
  return `${day} ${MONTHS[month - 1]}${isThisYear ? "" : ` ${year}`}, ${hour}:${minute}`;
}

// Each text stands in a call of its own: the search for texts to translate finds no others.
const UNITS = [
  [86400, (n) => gettext("{n} d", { n })],
  [3600, (n) => gettext("{n} h", { n })],
  [60, (n) => gettext("{n} min", { n })],
  [1, (n) => gettext("{n} s", { n })],
];

/** "2 d 3 h", "9 min 44 s": a length of time in seconds by its two largest units, as portal/common/units.py writes it. */
export function span(seconds) {
  let left = Math.max(0, Math.floor(seconds));
  const parts = [];
  for (const [size, write] of UNITS) {
    const n = Math.floor(left / size);
    left %= size;
    if (n) parts.push(write(n));
  }
  return parts.slice(0, 2).join(" ") || gettext("{n} s", { n: 0 });
}
