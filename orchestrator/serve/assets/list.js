import { $, announce, bar, bytes, duration, make, moment, poll, showState, text } from "./common.js";

const rows = new Map();

function row(key) {
  const cells = ["name", "state", "points", "failed", "best", "begun", "took", "size"];
  const labels = ["", "", "Points", "Failed", "Fastest (tokens/s)", "Begun", "From first to last", "Size"];
  const found = { cells: {} };
  found.cells.name = make("th", { scope: "row" }, make("a", { href: `/runs/${key}` }));
  for (const [at, name] of cells.entries()) {
    if (name !== "name") found.cells[name] = make("td", { class: name, "data-label": labels[at] });
  }
  found.element = make("tr", {}, ...cells.map((name) => found.cells[name]));
  return found;
}

function fill(cells, run) {
  text(cells.name.firstChild, run.name);
  showState(cells.state, run);
  const points = run.points;
  if (!points) {
    text(cells.best, run.reason || "");
    for (const name of ["points", "failed", "begun", "took", "size"]) text(cells[name], "");
    return;
  }
  const told = `${points.done} of ${points.total}`;
  if (cells.points.dataset.told !== JSON.stringify(points)) {
    cells.points.dataset.told = JSON.stringify(points);
    cells.points.replaceChildren(told, make("span", { class: "bar small", "aria-hidden": "true" }, ...bar(points)));
  }
  const bad = points.failed + points.partial;
  text(cells.failed, String(bad));
  cells.failed.classList.toggle("bad", bad > 0);
  const warnings = run.best ? run.best.warnings : [];
  const sign = warnings.length ? " !" : "";
  text(cells.best, run.best ? `${run.best.label}${sign}: ${run.best.tokens_per_s}` : "– nothing measured that may be compared");
  cells.best.title = warnings.join("; ");
  text(cells.begun, moment(run.started_at));
  const took = run.started_at === null ? null : run.last_event_at - run.started_at;
  text(cells.took, took === null ? "–" : `${duration(took)}${run.starts > 1 ? `, ${run.starts} starts` : ""}`);
  text(cells.size, bytes(run.bytes));
}

let before = new Map();

function news(runs) {
  const now = new Map(runs.map((run) => [run.key, run.state]));
  const changed = runs.filter((run) => before.size && before.get(run.key) !== run.state);
  if (changed.length) announce(changed.map((run) => `${run.name}: ${run.state}`).join(", "), true);
  before = now;
}

function show(found) {
  text($("folder"), found.folder);
  const newest = [...found.runs].sort((a, b) => (b.last_event_at || 0) - (a.last_event_at || 0));
  const body = $("runs").tBodies[0];
  for (const [at, run] of newest.entries()) {
    if (!rows.has(run.key)) rows.set(run.key, row(run.key));
    const { element, cells } = rows.get(run.key);
    fill(cells, run);
    if (body.children[at] !== element) body.insertBefore(element, body.children[at] || null);
  }
  while (body.children.length > newest.length) body.lastChild.remove();
  $("runs").hidden = !newest.length;
  $("empty").hidden = newest.length > 0;
  $("left-out").replaceChildren(...found.left_out.map((line) => make("li", {}, `Not shown: ${line}`)));
  news(found.runs);
}

poll("/api/runs", show);
