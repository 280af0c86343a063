// All runs of a folder, live: a table, and curves of those that are chosen.
import { ask, element, find, say } from "./asking.js";
import { curves, short, valueAt } from "./plot.js";

const EVERY = 2000; // milliseconds
const AT_FIRST = 4; // runs whose curves are shown before anybody has chosen
const LOSS = "loss";
const rows = new Map(); // by run: {row, box, cells}
const known = new Map(); // by run: {version, points, last, curves: Map, events}
const colours = new Map();
const shown = new Set();
let order = { by: "id", down: false };
let table = [];
let begun = false;
let timer = null;

function seconds(left) {
  if (left === null) return "";
  const [hours, minutes] = [Math.floor(left / 3600), Math.floor((left % 3600) / 60)];
  const rest = String(Math.floor(left % 60)).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

function words(run) {
  const { title, model, objective, corpus, seed } = run.recipe;
  return run.problem || title || [model, objective, corpus, seed === null ? "" : `seed ${seed}`].filter(Boolean).join(", ");
}

function cellsOf(run) {
  const share = run.progress === null ? "" : ` (${Math.round(100 * run.progress)} %)`;
  const broken = run.damaged_lines ? `, ${run.damaged_lines} damaged lines` : "";
  return [
    run.id, `${run.status}${broken}`, words(run), `${run.step.toLocaleString("en")}${share}`,
    run.tokens_per_second === null ? "" : Math.round(run.tokens_per_second).toLocaleString("en"),
    seconds(run.seconds_left), run.best ? run.best.words : "",
  ];
}

function rowOf(run) {
  const box = element("input", { type: "checkbox", checked: shown.has(run.id), ariaLabel: `Show ${run.id}` });
  box.addEventListener("change", () => {
    if (box.checked) shown.add(run.id);
    else shown.delete(run.id);
    refreshCurves();
  });
  const cells = Array.from({ length: 7 }, (_, i) => element("td", { className: i > 2 ? "number" : "" }));
  const row = element("tr", {}, element("td", {}, box), ...cells);
  return { row, box, cells };
}

function colour(id) {
  if (!colours.has(id)) colours.set(id, colours.size);
  return colours.get(id);
}

function showTable() {
  const part = find("filter").value.toLowerCase();
  const value = { best: (run) => run.best?.loss ?? Infinity }[order.by] ?? ((run) => run[order.by]);
  const sorted = table.filter((run) => `${run.id} ${words(run)} ${run.status}`.toLowerCase().includes(part));
  sorted.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (order.down ? -1 : 1));
  for (const run of sorted) {
    if (!rows.has(run.id)) rows.set(run.id, rowOf(run));
    const { row, box, cells } = rows.get(run.id);
    box.className = shown.has(run.id) ? `key c${colour(run.id) % 8}` : "";
    row.dataset.status = run.status;
    cellsOf(run).forEach((text, i) => { if (cells[i].textContent !== text) cells[i].textContent = text; });
  }
  const wanted = sorted.map((run) => rows.get(run.id).row);
  const body = find("rows");
  // Rows are moved only where the order has changed, so that the focus stays where it is.
  if (wanted.length !== body.children.length || wanted.some((row, i) => body.children[i] !== row)) body.replaceChildren(...wanted);
  const training = table.filter((run) => run.status === "training").length;
  find("state").textContent = table.length
    ? `${table.length} run${table.length === 1 ? "" : "s"}, ${training} in training. This page follows them.`
    : "There is no run yet: one that is trained below this folder appears here.";
}

async function fetchCurves(run) {
  const old = known.get(run.id);
  if (old && old.version === run.version && old.points === run.points) return;
  const query = new URLSearchParams({ run: run.id, version: old?.version ?? -1, after: old?.last ?? -1 });
  const found = await (await ask(`/v1/runs/curves?${query}`)).json();
  const kept = old && old.version === found.version ? old : { curves: new Map(), events: [], last: -1 };
  kept.version = found.version;
  kept.points = run.points;
  for (const { key, kind, label, unit, meaning, steps, values } of found.curves) {
    if (!kept.curves.has(key)) kept.curves.set(key, { kind, label, unit, meaning, steps: [], values: [] });
    const curve = kept.curves.get(key);
    curve.steps.push(...steps);
    curve.values.push(...values);
    kept.last = Math.max(kept.last, steps.at(-1) ?? -1);
  }
  kept.events.push(...found.events);
  known.set(run.id, kept);
}

function named({ kind, label, unit }) {
  const split = kind === "validation" ? "validation: " : "training: ";
  return `${split}${label}${unit ? ` (${unit})` : ""}`;
}

function showQuantities() {
  const found = new Map([[LOSS, "loss, in training (thin) and on the validation split"]]);
  for (const id of shown) for (const [key, curve] of known.get(id)?.curves ?? []) found.set(key, named(curve));
  const select = find("quantity");
  const now = select.value || LOSS;
  const keys = [...found.keys()];
  if (keys.length === select.options.length && keys.every((key, i) => select.options[i].value === key)) return;
  select.replaceChildren(...keys.map((key) => new Option(found.get(key), key)));
  select.value = found.has(now) ? now : LOSS;
}

// What is drawn of a run: [curve, thin].
function drawn(own, quantity) {
  if (quantity !== LOSS) return own.curves.has(quantity) ? [[own.curves.get(quantity), false]] : [];
  const training = [...own.curves].find(([key]) => key.startsWith("step/") && key.endsWith("/nll"));
  return [[training?.[1], true], [own.curves.get("validation/loss"), false]].filter(([curve]) => curve?.steps.length);
}

function showCurves() {
  showQuantities();
  const quantity = find("quantity").value || LOSS;
  const series = [];
  for (const id of [...shown].sort()) {
    for (const [curve, thin] of known.has(id) ? drawn(known.get(id), quantity) : []) {
      series.push({ label: `${id}${thin ? " (training)" : ""}`, colour: colour(id), thin, steps: curve.steps, values: curve.values, unit: curve.unit });
    }
  }
  curves(find("curves"), series, {
    xLabel: "step", yLabel: quantity === LOSS ? "loss, nats" : find("quantity").selectedOptions[0].text,
    logarithm: find("log").checked,
    read: (step) => {
      const at = series.map((each) => [each.label, valueAt(each, step)]).filter(([, value]) => value !== undefined);
      find("reading").textContent = `step ${step.toLocaleString("en")}: ${at.map(([label, value]) => `${label} ${short(value)}`).join("; ")}`;
    },
  });
}

async function refreshCurves() {
  for (const run of table) if (shown.has(run.id)) await fetchCurves(run);
  showTable();
  showCurves();
}

async function refresh() {
  const answer = await (await ask("/v1/runs")).json();
  table = answer.data;
  if (!begun && table.length) {
    begun = true;
    const busy = [...table].sort((a, b) => (b.status === "training") - (a.status === "training"));
    for (const run of busy.slice(0, AT_FIRST)) shown.add(run.id);
  }
  const there = new Set(table.map((run) => run.id));
  for (const id of shown) if (!there.has(id)) shown.delete(id);
  await refreshCurves();
}

async function follow() {
  clearTimeout(timer);
  if (find("runs").hidden || document.hidden) return;
  try {
    await refresh();
    if (find("state").dataset.lost) say("");
    delete find("state").dataset.lost;
  } catch (error) {
    find("state").dataset.lost = "1";
    say(`the server does not answer (${error.message}); this page tries again`);
  }
  timer = setTimeout(follow, EVERY);
}

export const show = follow;

export function begin() {
  for (const id of ["quantity", "log"]) find(id).addEventListener("change", showCurves);
  find("filter").addEventListener("input", showTable);
  for (const button of find("runs").querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      order = { by: button.dataset.by, down: order.by === button.dataset.by && !order.down };
      for (const each of find("runs").querySelectorAll("th")) each.removeAttribute("aria-sort");
      button.parentElement.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      showTable();
    });
  }
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("resize", () => { if (!find("runs").hidden) showCurves(); });
}
