// Plots that grow: each is drawn when it comes near the window, and again when its figures have changed.

import { $, make, text } from "./common.js";

const drawn = new Map();
let library = null;

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const plot = drawn.get(entry.target.dataset.plot);
    if (!plot) continue;
    plot.seen = entry.isIntersecting;
    if (plot.seen) draw(plot);
  }
}, { rootMargin: "300px" });

function figure(id) {
  const box = make("div", { class: "plot", "aria-hidden": "true" });
  const title = make("h3");
  const alt = make("figcaption", { class: "soft" });
  const asOf = make("p", { class: "soft as-of" });
  const element = make("figure", { "data-plot": id }, title, asOf, box, alt);
  const plot = { element, box, title, alt, asOf, said: "", wanted: "", has: "", seen: false, busy: false };
  drawn.set(id, plot);
  near.observe(element);
  return plot;
}

async function draw(plot) {
  if (plot.busy || plot.has === plot.wanted) return;
  plot.busy = true;
  try {
    library ||= import("/assets/vega.js").then(() => globalThis.airlock.draw);
    const drawIn = await library;
    const { wanted, said } = plot;
    plot.box.style.minHeight = `${plot.box.offsetHeight}px`;
    plot.view?.finalize();
    plot.view = await drawIn(plot.box, JSON.parse(wanted));
    plot.box.style.minHeight = "";
    plot.has = wanted;
    text(plot.asOf, said);
    plot.element.dataset.drawn = String(Number(plot.element.dataset.drawn || 0) + 1);
  } catch (error) {
    library = null;
    plot.has = plot.wanted;
    plot.box.replaceChildren(`This plot could not be drawn: ${error.message}`);
  } finally {
    plot.busy = false;
  }
  if (plot.seen) draw(plot);
}

// `asOf`: of these figures. A plot that is not drawn anew keeps the time of what it shows.
export function show({ plots, absent }, asOf) {
  $("absent").replaceChildren(...absent.map((why) => make("li", {}, why)));
  const wanted = new Set(plots.map((plot) => plot.id));
  for (const [id, plot] of drawn) {
    if (!wanted.has(id)) {
      plot.element.remove();
      drawn.delete(id);
    }
  }
  plots.forEach((found, at) => {
    const plot = drawn.get(found.id) || figure(found.id);
    text(plot.title, found.title);
    text(plot.alt, found.alt);
    plot.wanted = JSON.stringify(found.spec);
    plot.said = asOf;
    if (plot.has === plot.wanted) text(plot.asOf, asOf);
    const place = $("plots").children[at];
    if (place !== plot.element) $("plots").insertBefore(plot.element, place || null);
    if (plot.seen) draw(plot);
  });
}
