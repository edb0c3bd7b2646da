// Drawing, sorting, filtering and the theme. All of it is an addition: without it the page holds the same text, and the
// same plots as pictures.
"use strict";

const airlock = globalThis.airlock;
const NARROW = 560;

// Legends and names of rows take their share of a small screen.
airlock.fit = (spec, width) => {
  const columns = Math.max(1, Math.floor((width - Math.min(spec.usermeta.left, width < NARROW ? 150 : 220)) / spec.usermeta.label));
  const config = { ...spec.config, legend: { ...spec.config.legend, columns } };
  if (width < NARROW) {
    config.axis = { ...config.axis, labelLimit: width < 360 ? 96 : 150, titleFontSize: 10, labelFontSize: 10 };
  }
  return { ...spec, config };
};

// `spec`: Vega-Lite. The expression interpreter (ast) needs no eval, which the page's policy forbids.
airlock.draw = async (place, spec) => {
  const { view } = await airlock.vegaEmbed(place, airlock.fit(spec, place.clientWidth), {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  });
  return view;
};

const resolved = (svg) => {
  const style = getComputedStyle(document.documentElement);
  return svg.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
};

const save = (name, svg) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  link.download = `${name}.svg`;
  link.click();
  URL.revokeObjectURL(link.href);
};

// The picture gives way to the drawing when it comes near the screen.
const upgrade = async (figure) => {
  const id = figure.dataset.plot;
  const place = figure.querySelector(".canvas");
  const spec = JSON.parse(document.getElementById(`spec-${id}`).textContent);
  const picture = place.innerHTML;
  place.style.minHeight = `${place.offsetHeight}px`;
  try {
    const view = await airlock.draw(place, spec);
    const button = figure.querySelector("button");
    button.hidden = false;
    button.addEventListener("click", async () => save(id, resolved(await view.toSVG())));
    figure.dataset.drawn = "live";
  } catch (error) {
    place.innerHTML = picture;
    figure.dataset.drawn = "picture";
    console.error(`plot ${id}:`, error);
  }
  place.style.minHeight = "";
};

const watch = (figures) => {
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        seen.unobserve(target);
        upgrade(target);
      }
    }
  }, { rootMargin: "200px" });
  figures.forEach((figure) => seen.observe(figure));
};

const compare = (a, b) => {
  const [x, y] = [a, b].map(Number);
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
};

// What is not known stays at the end, whichever way.
const sort = (body, column, sign) => {
  const key = (row) => row.cells[column].dataset.sort;
  const rows = [...body.rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    return sign * compare(a, b);
  });
  body.append(...rows);
};

airlock.table = (table, input, told) => {
  const body = table.tBodies[0];
  const total = body.rows.length;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "ascending" : "descending");
    sort(body, column, down ? 1 : -1);
  }));
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    told.textContent = words.length ? `${shown} of ${total} rows` : "";
  });
};

airlock.theme = (button) => {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const tell = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("airlock-theme", root.dataset.theme); } catch { /* of a file, some browsers keep nothing */ }
    tell();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  tell();
};

airlock.report = () => {
  document.documentElement.dataset.scripts = "on";
  airlock.theme(document.getElementById("theme"));
  const table = document.getElementById("rows");
  if (table) airlock.table(table, document.getElementById("filter"), document.getElementById("filtered"));
  watch(document.querySelectorAll("figure[data-plot]"));
  const folded = [];
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((one) => { one.open = true; folded.push(one); });
  });
  addEventListener("afterprint", () => folded.splice(0).forEach((one) => { one.open = false; }));
};

if (document.documentElement.dataset.page === "report") airlock.report();
