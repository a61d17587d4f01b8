// Words and numbers of the page's language. `gettext` comes from Django's JavaScriptCatalog when it is loaded.

const LANG = document.documentElement.lang || "en";
const ZONE = document.documentElement.dataset.zone || undefined;

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

/** "2 d 03:04:05" or "03:04" for a length of time in seconds. */
export function clock(seconds) {
  const left = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(left / 86400);
  const hours = Math.floor((left % 86400) / 3600);
  const tail = `${two(Math.floor((left % 3600) / 60))}:${two(left % 60)}`;
  if (days) return gettext("{days} d {time}", { days, time: `${two(hours)}:${tail}` });
  return hours ? `${hours}:${tail}` : tail;
}
