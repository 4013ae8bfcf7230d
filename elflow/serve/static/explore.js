// The page: it asks the service for densities, quantiles, rows and reasons, and shows the answers.

import { SHARES, colourOf, drawBars, drawLine, drawMesh, findZoom, formatNumber, formatValue, shorten, toNumber } from "/chart.js";
import { makeControl } from "/conditions.js";
import { download, makeTable, readRows, toCsv } from "/table.js";

const byId = (id) => document.getElementById(id);
const QUANTILES = [0.05, 0.25, 0.5, 0.75, 0.95];
const ODD = 0.01, MAX_EXPLAINED = 30, MAX_SHOWN = 200, REST = 250;
const state = { model: null, controls: [], drawn: [], checked: null, isBusy: false, isStale: false, version: 0, picture: null };

async function ask(path, body = null) {
  const token = sessionStorage.getItem("token");
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(token && { Authorization: `Bearer ${token}` }) };
  const where = state.model && path !== "/models" && !path.includes("?") ? `${path}?model=${encodeURIComponent(state.model.name)}` : path;
  const answer = await fetch(where, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  const content = await answer.json();
  if (answer.status === 401) {
    byId("sign-in").hidden = false;
    throw new Error(token ? "The token is wrong." : "");
  }
  if (!answer.ok) {
    const error = new Error(content.detail || `The service answered ${answer.status}.`);
    throw Object.assign(error, { status: answer.status });
  }
  return content;
}

function showProblem(error) {
  const text = error ? error.message : "";
  byId("problem").hidden = !text;
  byId("problem").textContent = text;
}

const guard = (action) => async (...args) => {
  try {
    showProblem(null);
    await action(...args);
  } catch (error) {
    showProblem(error);
  }
};

function fill(select, texts) {
  select.replaceChildren(...texts.map(([value, text]) => {
    const node = document.createElement("option");
    node.value = value;
    node.textContent = text;
    return node;
  }));
}

const column = (name) => state.model.columns.find((each) => each.name === name);

async function start() {
  const { models } = await ask("/models");
  byId("sign-in").hidden = true;
  fill(byId("model"), models.map((name) => [name, name]));
  byId("model-label").hidden = models.length < 2;
  const wanted = new URLSearchParams(location.search).get("model");
  if (models.includes(wanted)) byId("model").value = wanted;
  await chooseModel();
}

async function chooseModel() {
  state.model = await ask(`/model?model=${encodeURIComponent(byId("model").value)}`);
  const { name, rows, columns, context } = state.model;
  byId("title").textContent = name;
  document.title = `${name} - elflow`;
  byId("lead").textContent = `Learnt from ${rows.toLocaleString("en")} rows of ${columns.length} columns.`;
  fill(byId("first"), columns.map((each, i) => [i, shorten(each.name, 50)]));
  fill(byId("second"), [["", "nothing else"], ...columns.map((each, i) => [i, shorten(each.name, 50)])]);
  state.controls = [...context.map((each) => makeControl(each, true, schedule)), ...columns.map((each) => makeControl(each, false, schedule))];
  state.contextNames = new Set(context.map((each) => each.name));
  byId("conditions").replaceChildren(...state.controls.map((control) => control.node));
  byId("main").hidden = false;
  offerOthers();
  await refresh();
}

// A column is not shown together with itself.
function offerOthers() {
  for (const option of byId("second").options) option.disabled = option.value === byId("first").value;
  if (byId("second").value === byId("first").value) byId("second").value = "";
}

function shown() {
  const names = [state.model.columns[Number(byId("first").value)].name];
  const second = byId("second").value;
  if (second !== "" && second !== byId("first").value) names.push(state.model.columns[Number(second)].name);
  return names;
}

function conditions() {
  const given = {}, context = {};
  for (const control of state.controls) {
    const value = control.get();
    if (value === null) continue;
    if (state.contextNames.has(control.column.name) && !column(control.column.name)) context[control.column.name] = value;
    else if (!shown().includes(control.column.name)) given[control.column.name] = value;
  }
  return { given, ...(state.contextNames.size && { context: [context] }) };
}

// Moving a slider asks for quick pictures, one after the other; at rest, a fine one follows.
function schedule() {
  state.version++;
  state.isStale = true;
  if (!state.isBusy) follow();
}

const follow = guard(async () => {
  state.isBusy = true;
  try {
    while (state.isStale) {
      state.isStale = false;
      await draw("quick");
    }
  } finally {
    state.isBusy = false;
  }
  const version = state.version;
  setTimeout(guard(async () => {
    if (version !== state.version) return;
    const waiting = showQuantiles(version);
    await draw("fine", version).catch((error) => {
      if (error.status !== 503) throw error; // on a busy machine, the quick picture stays
    });
    await waiting;
  }), REST);
});

const refresh = async () => { schedule(); };

async function draw(precision, version = null) {
  for (const control of state.controls) control.node.hidden = shown().includes(control.column.name);
  const asked = describeGiven(); // the controls may have moved when the answer arrives
  const picture = { ...(await ask("/density", { columns: shown(), ...conditions(), precision })), asked };
  if (version !== null && version !== state.version) return;
  state.picture = picture;
  show(picture);
  document.body.dataset.precision = precision;
}

function describeGiven() {
  const texts = state.controls.filter((control) => !shown().includes(control.column.name)).map((control) => control.describe());
  const given = texts.filter((text) => text !== null);
  return given.length ? `where ${given.join(", ")}` : "in all rows";
}

function show(picture) {
  const columns = picture.columns.map(column), names = columns.map((each) => each.name);
  const holder = byId("chart");
  byId("picture-title").textContent = `${names.join(" and ")} ${picture.asked}`;
  const label = `How common values of ${names.join(" and ")} are ${picture.asked}`;
  const legend = [];
  if (picture.grid === "mesh") {
    drawMesh(holder, picture, columns, label);
    SHARES.forEach((share, i) => legend.push([`${100 * share} % of rows`, `color-mix(in srgb, var(--real) ${22 + 22 * i}%, transparent)`]));
  } else if (picture.grid === "bars") drawBars(holder, picture, columns[0], label);
  else if (picture.grid === "table") holder.replaceChildren(makeShares(picture, columns));
  else {
    drawLine(holder, picture, columns[0], label);
    const texts = picture.grid === "lines" ? picture.levels.map((level, i) => `${level} (${formatNumber(100 * picture.probability[i], 3)} %)`) : ["how common a value is"];
    texts.forEach((text, i) => legend.push([text, `var(${colourOf(i)})`]));
  }
  if (["line", "mesh"].includes(picture.grid)) legend.push(["rows drawn from the model", "var(--sampled)"]);
  if (picture.grid === "lines") legend.push(["dots: rows drawn from the model", "none"]);
  byId("legend").replaceChildren(...legend.map(([text, colour]) => {
    const node = document.createElement("span");
    node.textContent = text;
    node.style.setProperty("--swatch", colour);
    return node;
  }));
  byId("summary").textContent = summarize(picture, columns) + describeHidden(picture, columns) + describeZoom(picture, columns);
  const error = 100 * picture.error;
  const many = error < 1 ? "less than 1 %" : `about ${formatNumber(error, 2)} %`;
  byId("precision").textContent = `The picture is computed from the model, not counted in rows: its heights have a typical error of ${many}.` + (error > 50 ? " These conditions are very unusual: do not rely on details." : "");
}

function makeShares(picture, columns) {
  const rows = picture.y.map((level, j) => [String(level), ...picture.x.map((_, i) => `${formatNumber(100 * picture.probability[i][j], 3)} %`)]);
  return makeTable([`${columns[1].name} \\ ${columns[0].name}`, ...picture.x.map(String)], rows, "Shares of rows");
}

// Many categories: the picture has the most common ones only.
function describeHidden(picture, columns) {
  if (!picture.hidden) return "";
  const shares = picture.probability.flat(), rest = Math.max(0, 1 - shares.reduce((sum, share) => sum + share, 0));
  const what = columns.filter((each) => each.levels).map((each) => each.name).join(" or ");
  return ` ${picture.hidden.toLocaleString("en")} further ${picture.hidden === 1 ? "value" : "values"} of ${what}, with ${formatNumber(100 * rest, 2)} % of rows together, ${picture.hidden === 1 ? "is" : "are"} not shown.`;
}

function summarize(picture, columns) {
  if (picture.grid === "bars") {
    const best = picture.probability.indexOf(Math.max(...picture.probability));
    return `Most common: ${formatValue(picture.x[best], columns[0])}, in ${formatNumber(100 * picture.probability[best], 3)} % of rows.`;
  }
  if (picture.grid === "table") return "";
  const parts = columns.filter((each) => !each.levels).map((each) => {
    const sorted = picture.samples.map((row) => row[each.name]).sort((a, b) => toNumber(a, each.kind) - toNumber(b, each.kind));
    const at = (q) => formatValue(sorted[Math.round(q * (sorted.length - 1))], each);
    return `${each.name} ${at(0.25)} to ${at(0.75)}`;
  });
  return `Middle half of the drawn rows: ${parts.join(", ")}.`;
}

function describeZoom(picture, columns) {
  if (!["line", "lines", "mesh"].includes(picture.grid)) return "";
  const zooms = columns.filter((each) => !each.levels).map((each) => [each.name, findZoom(each, picture.samples)]);
  const texts = zooms.filter(([, zoom]) => zoom > 1).map(([name, zoom]) => `${name} ${zoom.toLocaleString("en")} times`);
  return texts.length ? ` The scale is magnified: ${texts.join(", ")}.` : "";
}

async function showQuantiles(version) {
  const columns = shown().map(column).filter((each) => !each.levels);
  byId("quantiles").hidden = !columns.length;
  const rows = [];
  for (const each of columns) {
    const asked = conditions();
    const answer = await ask("/conditional", { column: each.name, ...asked, quantiles: QUANTILES, n_points: 4096 });
    rows.push([each.name, ...QUANTILES.map((q) => formatValue(answer.rows[0][`q${q}`], each))]);
  }
  if (rows.length && version === state.version) byId("quantile-table").replaceChildren(makeTable(["", ...QUANTILES.map((q) => (q === 0.5 ? "half (50 %)" : `${100 * q} %`))], rows, "Quantiles under the conditions"));
}

function drawRows() {
  const names = state.model.columns.map((each) => each.name);
  const rows = state.drawn.slice(0, MAX_SHOWN).map((row) => state.model.columns.map((each) => formatValue(row[each.name], each)));
  byId("drawn").replaceChildren(makeTable(names, rows, "Rows drawn from the model"));
  byId("download-rows").disabled = !rows.length;
}

function downloadRows() {
  const names = state.model.columns.map((each) => each.name);
  download(`${state.model.name}-rows.csv`, toCsv(names, state.drawn.map((row) => names.map((name) => row[name]))));
}

async function check(text) {
  const columns = [...state.model.columns, ...state.model.context];
  const { rows, unused } = readRows(text, columns);
  const isComplete = (row) => columns.every((each) => each.missing || (row[each.name] !== null && row[each.name] !== undefined));
  const complete = rows.map((row, i) => ({ row, number: i + 1 })).filter(({ row }) => isComplete(row));
  if (!complete.length) throw new Error("Every row lacks a value: rows must be complete.");
  byId("checked").classList.add("busy");
  try {
    const scores = await ask("/score", { rows: complete.map(({ row }) => row), anomaly: true });
    complete.forEach((entry, i) => Object.assign(entry, { score: Number(scores.log_density[i]), odd: scores.anomaly_score[i], cells: new Map() }));
    complete.sort((a, b) => b.odd - a.odd);
    const odd = complete.slice(0, MAX_EXPLAINED).filter((entry) => entry.odd > 95 && Number.isFinite(entry.score));
    if (odd.length) {
      const { cells } = await ask("/explain", { rows: odd.map(({ row }) => row) });
      for (const cell of cells) if (cell.tail_probability < ODD) odd[cell.row].cells.set(cell.column, cell);
    }
    state.checked = complete;
    showChecked(rows.length - complete.length, unused, odd.length);
  } finally {
    byId("checked").classList.remove("busy");
  }
}

function describeRarity(odd) {
  if (odd >= 1e6) return "impossible under this model";
  return odd > 100 ? "more unusual than all rows the model was judged by" : `more unusual than ${formatNumber(odd, 3)} % of rows`;
}

function describeCell(cell) {
  const each = column(cell.column);
  const usual = each.ordered ? `${formatValue(cell.low, each)} to ${formatValue(cell.high, each)}` : formatValue(cell.low, each);
  const rare = cell.tail_probability < 1e-6 ? "less than 1 in a million" : `1 in ${Math.round(1 / cell.tail_probability).toLocaleString("en")}`;
  return [`${cell.column} ${formatValue(cell.value, each)}`, `: usually ${usual} in rows like this (${rare})`];
}

function showChecked(lacking, unused, explained) {
  const { columns } = state.model;
  const lines = state.checked.slice(0, MAX_SHOWN).map((entry) => {
    const reasons = document.createElement("span");
    for (const cell of entry.cells.values()) {
      const line = document.createElement("div");
      const [what, why] = describeCell(cell);
      line.appendChild(document.createElement("b")).textContent = what;
      line.append(why);
      reasons.append(line);
    }
    const values = columns.map((each) => {
      const cell = entry.cells.get(each.name);
      const text = formatValue(entry.row[each.name], each);
      return cell ? { text: `${text} (odd)`, class: "odd", title: describeCell(cell).join("") } : text;
    });
    return [String(entry.number), describeRarity(entry.odd), reasons, ...values];
  });
  const table = makeTable(["row", "how unusual", "reasons", ...columns.map((each) => each.name)], lines, "Your rows, the most unusual first");
  for (const line of table.tBodies[0].rows) {
    line.cells[1].className = "text";
    line.cells[2].className = "reason";
  }
  byId("checked").replaceChildren(table);
  byId("download-checked").disabled = false;
  const notes = [`${state.checked.length} rows scored, the most unusual first.`];
  if (state.checked.length > MAX_SHOWN) notes.push(`The first ${MAX_SHOWN} are shown; the download has all.`);
  if (explained) notes.push(`Reasons are given for the ${explained} most unusual rows.`);
  if (lacking) notes.push(`${lacking} rows lack a value and are left out.`);
  if (unused.length) notes.push(`Columns that the model does not know: ${unused.join(", ")}.`);
  byId("checked-summary").textContent = notes.join(" ");
}

function downloadChecked() {
  const names = state.model.columns.map((each) => each.name);
  const rows = state.checked.map((entry) => [entry.number, entry.score, entry.odd, [...entry.cells.values()].map((cell) => describeCell(cell).join("")).join("; "), ...names.map((name) => entry.row[name])]);
  download(`${state.model.name}-checked.csv`, toCsv(["row", "log_density", "anomaly_score", "reasons", ...names], rows));
}

byId("sign-in").addEventListener("submit", guard(async (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  await start();
}));
byId("model").addEventListener("change", guard(chooseModel));
byId("first").addEventListener("change", () => { offerOthers(); schedule(); });
byId("second").addEventListener("change", schedule);
byId("clear").addEventListener("click", () => {
  for (const control of state.controls) control.clear();
  schedule();
});
byId("draw").addEventListener("submit", guard(async (event) => {
  event.preventDefault();
  const names = shown();
  const all = {};
  for (const control of state.controls) {
    const value = control.get();
    if (value !== null && !names.includes(control.column.name) && column(control.column.name)) all[control.column.name] = value;
  }
  const { context } = conditions();
  state.drawn = (await ask("/sample", { n: Number(byId("n").value), given: all, ...(context && { context }) })).rows;
  drawRows();
}));
byId("download-rows").addEventListener("click", downloadRows);
byId("download-checked").addEventListener("click", downloadChecked);
byId("check-text").addEventListener("click", guard(() => check(byId("text").value)));
byId("file").addEventListener("change", guard(async () => check(await byId("file").files[0].text())));
const target = byId("check");
for (const name of ["dragover", "dragleave", "drop"]) {
  target.addEventListener(name, (event) => {
    event.preventDefault();
    target.classList.toggle("over", name === "dragover");
  });
}
target.addEventListener("drop", guard(async (event) => check(await event.dataTransfer.files[0].text())));
// Nothing happens to a file that is dropped beside the target, instead of leaving the page.
for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault());
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width && state.picture) show(state.picture);
  width = innerWidth;
});
guard(start)();
