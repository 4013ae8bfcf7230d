// Controls for what is known of a row: a value, a range or categories of each column.

import { formatNumber, toNumber } from "/chart.js";

const HOW = { any: "anything", is: "is", between: "is between", missing: "is missing" };

function option(value, text) {
  const node = document.createElement("option");
  node.value = value;
  node.textContent = text;
  return node;
}

// One control; `get` returns the condition for the service, or null.
export function makeControl(column, isContext, onChange) {
  const set = document.createElement("fieldset");
  set.className = "condition";
  const legend = document.createElement("legend");
  legend.textContent = column.name;
  const values = document.createElement("div");
  values.className = "values";
  const how = document.createElement("select");
  how.className = "how";
  how.setAttribute("aria-label", `Condition on ${column.name}`);
  if (!isContext) how.append(option("any", HOW.any));
  how.append(option("is", HOW.is));
  const hasRange = !column.levels && !isContext;
  if (hasRange) how.append(option("between", HOW.between));
  if (column.missing && !isContext) how.append(option("missing", HOW.missing));
  const fields = column.levels ? makeLevels(column, onChange) : makeNumbers(column, onChange);
  const show = () => {
    values.replaceChildren(...(how.value === "is" ? fields.one : how.value === "between" ? fields.two : []));
  };
  how.addEventListener("change", () => { show(); onChange(); });
  set.append(legend, how, values);
  show();
  return {
    column,
    node: set,
    clear() { if (!isContext) { how.value = "any"; show(); } },
    get() {
      if (how.value === "any") return null;
      if (how.value === "missing") return { missing: true };
      return how.value === "is" ? fields.getOne() : fields.getTwo();
    },
    describe() {
      const value = this.get();
      if (value === null) return null;
      if (how.value === "missing") return `${column.name} is missing`;
      if (how.value === "between") return `${column.name} from ${value.low ?? "any"} to ${value.high ?? "any"}`;
      return `${column.name} = ${typeof value === "number" ? formatNumber(value, 6) : value}`;
    },
  };
}

function makeLevels(column, onChange) {
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", column.name);
  column.levels.forEach((level, i) => choice.append(option(String(i), String(level))));
  choice.addEventListener("change", onChange);
  return { one: [choice], two: [], getOne: () => column.levels[Number(choice.value)], getTwo: () => null };
}

function makeNumbers(column, onChange) {
  const makePair = column.kind === "datetime" ? makeTime : makeNumber;
  const [one, low, high] = [["", column.typical], [" from", column.low], [" to", column.high]].map(([word, start]) =>
    makePair(column, `${column.name}${word}`, start, onChange),
  );
  return {
    one: one.nodes,
    two: [...low.nodes, ...high.nodes],
    getOne: () => one.get(),
    getTwo() {
      const [a, b] = [low.get(), high.get()];
      if (a === null && b === null) return null;
      const isReversed = a !== null && b !== null && toNumber(a, column.kind) > toNumber(b, column.kind);
      return isReversed ? { low: b, high: a } : { low: a, high: b };
    },
  };
}

function makeNumber(column, label, start, onChange) {
  const slider = document.createElement("input");
  const field = document.createElement("input");
  const span = column.high - column.low || 1;
  const isGrid = column.step && span / column.step <= 400;
  const step = isGrid ? column.step : 10 ** Math.floor(Math.log10(span / 200));
  Object.assign(slider, { type: "range", min: column.low, max: column.high, step: isGrid ? step : "any", value: start });
  Object.assign(field, { type: "number", step: "any", value: Number(Number(start).toPrecision(8)) });
  slider.setAttribute("aria-label", `${label}, slider`);
  field.setAttribute("aria-label", label);
  slider.addEventListener("input", () => {
    // Round numbers: nobody measures with sixteen digits.
    field.value = Number((Math.round(slider.value / step) * step).toPrecision(8));
    onChange();
  });
  field.addEventListener("input", () => { slider.value = field.value; onChange(); });
  return { nodes: [slider, field], get: () => (field.value === "" ? null : Number(field.value)) };
}

function makeTime(column, label, start, onChange) {
  const slider = document.createElement("input");
  const field = document.createElement("input");
  const zone = /(Z|[+-]\d\d:?\d\d)$/.exec(start)?.[0] || "";
  const toText = (time) => new Date(time).toISOString().slice(0, 19) + (zone && "Z");
  const [low, high] = [toNumber(column.low, "datetime"), toNumber(column.high, "datetime")];
  Object.assign(slider, { type: "range", min: low, max: high, step: "any", value: toNumber(start, "datetime") });
  Object.assign(field, { type: "text", value: start });
  slider.setAttribute("aria-label", `${label}, slider`);
  field.setAttribute("aria-label", label);
  slider.addEventListener("input", () => {
    const text = toText(Number(slider.value));
    field.value = high - low > 864e5 * 30 ? text.slice(0, 10) + (zone && "T00:00:00Z") : text;
    onChange();
  });
  field.addEventListener("change", () => { slider.value = toNumber(field.value, "datetime"); onChange(); });
  return { nodes: [slider, field], get: () => field.value.trim() || null };
}
