// What all pages share: asking every so often, and putting text into elements. Nothing is ever read as HTML.

const EVERY_MS = 2000;
const SLOWEST_MS = 30000;

export const $ = (id) => document.getElementById(id);

export function text(element, said) {
  if (element.textContent !== said) element.textContent = said;
}

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Asks for `path` as long as the page is seen, and tells `show` what is new. `path` may be a function; "" asks nothing.
export function poll(path, show, said = $("link")) {
  let tag = "", asked = "", wait = EVERY_MS, timer = 0;
  const ask = async () => {
    clearTimeout(timer);
    const where = typeof path === "function" ? path() : path;
    if (where && !document.hidden) {
      if (where !== asked) [asked, tag] = [where, ""];
      try {
        const response = await fetch(where, { headers: tag ? { "if-none-match": tag } : {} });
        if (response.status === 401) return location.reload();
        if (response.status === 200) {
          const value = await response.json();
          if (where === asked) {
            tag = response.headers.get("etag") || "";
            show(value);
          }
        } else if (response.status !== 304) {
          throw new Error((await response.json()).error);
        }
        wait = EVERY_MS;
        if (said && said.dataset.of === asked) [said.textContent, said.dataset.of] = ["", ""];
      } catch (error) {
        wait = Math.min(wait * 2, SLOWEST_MS);
        if (said) [said.textContent, said.dataset.of] = [`No answer (${error.message}): what is shown may be old.`, asked];
      }
    }
    timer = setTimeout(ask, wait);
  };
  document.addEventListener("visibilitychange", () => document.hidden || ask());
  ask();
  return ask;
}

export function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  let size = count;
  for (const unit of units) {
    if (size < 1024) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export function moment(at) {
  if (at === null || at === undefined) return "–";
  return new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

// To the second: what moves is read at several of them.
export function clock(at) {
  const then = new Date(at * 1000);
  const today = then.toDateString() === new Date().toDateString();
  return today ? then.toLocaleTimeString() : then.toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}

// A bar of points as they stand. Its meaning is told in words beside it.
export function bar(points) {
  const parts = [["done", points.done], ["bad", points.failed + points.partial], ["skipped", points.skipped]];
  return parts.filter(([, count]) => count).map(([name, count]) => {
    const part = make("span", { class: name });
    part.style.width = `${(100 * count) / Math.max(points.total, 1)}%`;
    return part;
  });
}

const MARKS = {
  running: "▶", finished: "✓", stopped: "■", interrupted: "■", crashed: "✗", broken: "✗", unread: "…",
};

// A run that has ended with points that are not well is none that went well.
export function showState(element, run) {
  const points = run.points || { failed: 0, partial: 0 };
  const bad = run.state === "finished" ? points.failed + points.partial : 0;
  text(element, bad ? `! finished, ${bad} not well` : `${MARKS[run.state] || ""} ${run.state}`.trim());
  element.className = `state ${run.state}${bad ? " bad" : ""}`;
}

// Says something to a screen reader, at most every so often and only what is new.
const QUIET_MS = 15000;
let lastSaid = 0;
export function announce(said, now = false) {
  if (!now && Date.now() - lastSaid < QUIET_MS) return;
  lastSaid = Date.now();
  text($("news"), said);
}

if (location.hash.startsWith("#token=")) history.replaceState(null, "", location.pathname);
