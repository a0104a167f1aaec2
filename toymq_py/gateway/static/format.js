// Numbers as people read them. Pure.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 7, 999, 12,345, 1.23M: all digits as long as they fit. */
export function count(value) {
  if (value < 1e6) return whole.format(value);
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6]]) {
    if (value >= size) return `${digits(value / size)}${unit}`;
  }
  return "";
}

function digits(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** Per second. */
export function rate(value) {
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(1);
  return value < 10_000 ? whole.format(value) : value < 1e6 ? `${digits(value / 1e3)}k` : count(value);
}

export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${value} B` : `${digits(value)} ${["", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

/** Seconds as 0 s, 350 ms, 12 s, 3 m 20 s, 5 h 2 m, 4 d. */
export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.0001) return "<0.1 ms";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const [big, small, unit, sub] = seconds < 3600 ? [60, 1, "m", "s"] : seconds < 86_400 ? [3600, 60, "h", "m"] : [86_400, 3600, "d", "h"];
  const rest = Math.floor((seconds % big) / small);
  return rest ? `${Math.floor(seconds / big)} ${unit} ${rest} ${sub}` : `${Math.floor(seconds / big)} ${unit}`;
}

const two = (n) => String(n).padStart(2, "0");

/** The viewer's zone at a time: UTC+02:00. */
function zone(at) {
  const minutes = -at.getTimezoneOffset();
  const size = Math.abs(minutes);
  return minutes === 0 ? "UTC" : `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

function day(at) {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/** Unix milliseconds as the viewer's time, with its zone. */
export function time(ms) {
  const at = new Date(ms);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  return `${day(at)} ${clock} ${zone(at)}`;
}

/** How long ago that is; the day when that is long, or the broker's clock and this one differ by more than a minute. */
export function ago(ms) {
  const seconds = Math.floor((Date.now() - ms) / 1000);
  if (seconds < -60 || seconds > 30 * 86_400) return day(new Date(ms));
  return seconds < 1 ? "now" : `${seconds < 10 ? `${seconds} s` : duration(seconds)} ago`;
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** With a capital at its beginning. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** "30s", "1.5h", "250ms" or plain seconds, "0.5", as milliseconds; NaN for what is none. */
export function parseDuration(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$/.exec(text);
  return found ? Math.round(Number(found[1]) * UNITS[found[2] ?? "s"]) : NaN;
}

/** The inverse, exactly: the largest unit that divides it. */
export function exactDuration(ms) {
  for (const unit of ["d", "h", "m", "s"]) {
    if (ms && ms % UNITS[unit] === 0) return `${ms / UNITS[unit]}${unit}`;
  }
  return `${ms}ms`;
}

const SIZES = { "": 1, b: 1, kib: 1024, mib: 1024 ** 2, gib: 1024 ** 3, tib: 1024 ** 4 };

/** "64MiB" or "1000" as bytes; NaN for what is none. */
export function parseBytes(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text);
  const size = found && SIZES[found[2].toLowerCase()];
  return size ? Math.round(Number(found[1]) * size) : NaN;
}

/** The inverse, exactly. */
export function exactBytes(value) {
  for (const unit of ["TiB", "GiB", "MiB", "KiB"]) {
    const size = SIZES[unit.toLowerCase()];
    if (value && value % size === 0) return `${value / size}${unit}`;
  }
  return String(value);
}
