import { $, announce, bar, bytes, clock, duration, make, moment, poll, showState, text } from "./common.js";
import { show as showPlots } from "./plots.js";

const key = location.pathname.split("/")[2] || "";
const api = `/api/runs/${key || "-"}`;
const changed = {};

// Whether what is to be shown in a place is new.
function isNew(place, value) {
  const now = JSON.stringify(value);
  const was = changed[place];
  changed[place] = now;
  return was !== now;
}

// --- progress -----------------------------------------------------------------------

function when(run) {
  const begun = run.started_at ? `begun ${moment(run.started_at)}` : "";
  const again = run.starts > 1 ? `, ${run.starts} starts` : "";
  const last = run.state !== "running" && run.last_event_at ? `, last event ${moment(run.last_event_at)}` : "";
  const code = run.exit_code === null ? "" : `, exit code ${run.exit_code}`;
  return `${begun}${again}${last}${code}`;
}

function pointsText(run) {
  const points = run.points;
  const parts = [
    `${points.done} of ${points.total} points done`,
    points.failed ? `${points.failed} failed` : "",
    points.partial ? `${points.partial} partial` : "",
    points.skipped ? `${points.skipped} not needed` : "",
    run.state === "running" && run.eta_s !== null ? `about ${duration(run.eta_s)} left` : "",
  ];
  return parts.filter(Boolean).join(", ");
}

function slot(worker) {
  const rate = worker.tokens_per_s === null ? "" : `${worker.tokens_per_s.toFixed(1)} tokens/s`;
  const whole = worker.memory_total_bytes ? ` of ${bytes(worker.memory_total_bytes)}` : "";
  const memory = worker.memory_bytes === null ? "" : `${bytes(worker.memory_bytes)}${whole}`;
  const share = make("span", { class: "done" });
  share.style.width = `${(100 * worker.batches_done) / Math.max(worker.batches_total, 1)}%`;
  return make("li", {},
    make("p", {}, make("b", {}, worker.method), ` ${worker.settings}`),
    make("p", { class: "soft" }, `${worker.slot || "one worker"}: ${worker.state}`),
    make("div", { class: "bar small", "aria-hidden": "true" }, share),
    make("p", { class: "figures" }, [`batch ${worker.batches_done} of ${worker.batches_total}`, rate, memory].filter(Boolean).join(" · ")));
}

function showReason(run) {
  const said = run.state === "running" ? "" : run.reason || "";
  $("reason").hidden = !said;
  text($("reason"), said);
}

function showTroubles(run) {
  $("troubles-section").hidden = !run.troubles.length;
  if (!isNew("troubles", run.troubles)) return;
  $("troubles").replaceChildren(...run.troubles.map((one) =>
    make("li", {}, make("time", { class: "soft" }, moment(one.at)), ` ${one.text}`)));
  text($("troubles-more"), run.troubles_not_listed ? `And ${run.troubles_not_listed} before these: the report has all.` : "");
}

function showRun(run) {
  document.title = `${run.name}: ${run.state} · Airlock`;
  text($("name"), run.name);
  showState($("state"), run);
  showReason(run);
  if (!run.points) return announce(`${run.name}: ${run.state}`);
  text($("when"), when(run));
  if (isNew("bar", run.points)) $("bar").replaceChildren(...bar(run.points));
  text($("points"), pointsText(run));
  text($("records"), `${run.records} of ${run.records_planned} outputs, ${duration(run.measured_s)} measured`);
  if (isNew("slots", run.slots)) $("slots").replaceChildren(...run.slots.map(slot));
  const notes = [...run.waits.map((one) => `Waiting for ${one.what}: ${one.reason}`),
    ...run.quarantined.map((one) => `${one.slot} is out of use: ${one.reason}`)];
  if (isNew("notes", notes)) $("waits").replaceChildren(...notes.map((note) => make("li", { class: "notice" }, note)));
  showTroubles(run);
  announce(`${run.state}: ${pointsText(run)}`, isNew("state", run.state));
}

// --- results ------------------------------------------------------------------------

function showTable(table) {
  const columns = table.columns;
  const kind = (one) => (one.number ? "number" : undefined);
  const head = make("tr", {}, ...columns.map((one) => make("th", { scope: "col", class: kind(one) }, one.name)));
  const count = columns.length ? columns[0].cells.length : 0;
  const body = Array.from({ length: count }, (_, at) => make("tr", {}, ...columns.map((one, number) =>
    number ? make("td", { class: kind(one) }, one.cells[at]) : make("th", { scope: "row" }, one.cells[at]))));
  $("table").tHead.replaceChildren(head);
  $("table").tBodies[0].replaceChildren(...body);
  const beside = [...table.legend, ...table.causes, ...table.left_out];
  $("legend").replaceChildren(...beside.map((line) => make("li", {}, line)));
}

function showFigures(found) {
  if (!found.table) {
    $("absent").replaceChildren(make("li", {}, found.reason));
    return;
  }
  text($("results-title"), found.state === "finished" ? "Results" : "Results so far");
  const asOf = found.state === "running" && found.as_of ? `As of ${clock(found.as_of)}` : "";
  text($("as-of"), asOf && `${asOf}; large runs are read less often.`);
  if (isNew("summary", found.summary)) $("summary").replaceChildren(...found.summary.map((line) => make("p", {}, line)));
  if (isNew("table", found.table)) showTable(found.table);
  showPlots(found, asOf);
}

// --- logs ---------------------------------------------------------------------------

function showLogs(found) {
  const chooser = $("log-name");
  const known = new Set([...chooser.options].map((option) => option.value));
  for (const log of [...found.logs].reverse()) {
    if (!known.has(log.name)) chooser.options[0].after(make("option", { value: log.name }, log.name));
  }
}

function showLog(found) {
  const box = $("log");
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
  const cut = found.before_bytes ? `The last ${bytes(found.bytes - found.before_bytes)} of ${bytes(found.bytes)}.` : "";
  text($("log-note"), found.reason || cut);
  text(box, found.lines.join("\n"));
  if (atEnd) box.scrollTop = box.scrollHeight;
}

const askLog = poll(() => {
  const name = $("log-name").value;
  return name && $("follow").checked ? `${api}/logs/${encodeURIComponent(name)}` : "";
}, showLog);
$("log-name").addEventListener("change", () => { text($("log"), ""); askLog(); });
$("follow").addEventListener("change", askLog);

$("home").textContent = key ? "← All runs" : "Airlock";
$("report").href = `/runs/${key || "-"}/report`;
poll(api, showRun);
poll(`${api}/figures`, showFigures);
poll(`${api}/logs`, showLogs);
