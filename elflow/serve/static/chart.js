// Pictures of densities as SVG: lines, bars, contours and tables, in the colours of the page.

const NS = "http://www.w3.org/2000/svg";
const COLOURS = ["--real", "--sampled", "--good", "--poor", "--fair", "--soft"];
export const SHARES = [0.95, 0.8, 0.5];
const MIN_ZOOM = 4;

export function element(name, attributes = {}, text = null) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

// Times without a zone are read and shown as they are: as UTC.
export function toNumber(value, kind) {
  if (kind !== "datetime") return Number(value);
  return Date.parse(/(Z|[+-]\d\d:?\d\d)$/.test(value) ? value : `${value}Z`);
}

export function formatNumber(value, digits = 4) {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e");
  const text = value.toPrecision(digits);
  return String(Number(text)).includes("e") ? text : Number(text).toLocaleString("en", { maximumFractionDigits: 8 });
}

export function formatValue(value, column) {
  if (value === null || value === undefined) return "missing";
  if (column.kind === "datetime") return String(value).replace("T", " ").replace(/ 00:00:00$/, "");
  return typeof value === "number" ? formatNumber(value, 6) : String(value);
}

function formatTick(value, column, span) {
  if (column.kind !== "datetime") return formatNumber(value, 5);
  const text = new Date(value).toISOString();
  return span > 864e5 * 3 ? text.slice(0, 10) : text.slice(5, 16).replace("T", " ");
}

// Round numbers between two ends, about `count` of them.
export function makeTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw) || raw;
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step && ticks.length < 50; i++) ticks.push(i * step);
  return ticks;
}

class Frame {
  constructor(holder, label, height) {
    this.width = Math.max(260, holder.clientWidth);
    this.height = height;
    this.left = 16; this.right = 12; this.top = 12; this.bottom = 44;
    this.svg = element("svg", { viewBox: `0 0 ${this.width} ${height}`, role: "img", "aria-label": label });
    holder.replaceChildren(this.svg);
  }
  add(name, attributes, text) {
    return this.svg.appendChild(element(name, attributes, text));
  }
  setX(low, high) {
    const size = this.width - this.left - this.right;
    this.x = (value) => this.left + (size * (value - low)) / (high - low || 1);
    this.lowX = low; this.highX = high;
  }
  setY(low, high) {
    const size = this.height - this.top - this.bottom;
    this.y = (value) => this.height - this.bottom - (size * (value - low)) / (high - low || 1);
    this.lowY = low; this.highY = high;
  }
  drawAxisX(column) {
    const base = this.height - this.bottom;
    this.add("path", { class: "axis", d: `M${this.left} ${base}H${this.width - this.right}` });
    for (const tick of makeTicks(this.lowX, this.highX, this.width / (column.kind === "datetime" ? 130 : 90))) {
      this.add("path", { class: "axis", d: `M${this.x(tick)} ${base}v5` });
      const text = formatTick(tick, column, this.highX - this.lowX);
      this.add("text", { x: this.x(tick), y: base + 19, "text-anchor": "middle" }, text);
    }
    this.add("text", { class: "name", x: this.width - this.right, y: base + 38, "text-anchor": "end" }, shorten(column.name, Math.floor(this.width / 9)));
  }
  drawAxisY(column) {
    this.add("path", { class: "axis", d: `M${this.left} ${this.top}V${this.height - this.bottom}` });
    for (const tick of makeTicks(this.lowY, this.highY, 5)) {
      this.add("path", { class: "axis", d: `M${this.left} ${this.y(tick)}h-5` });
      const text = formatTick(tick, column, this.highY - this.lowY);
      this.add("text", { x: this.left - 8, y: this.y(tick) + 4, "text-anchor": "end" }, text);
    }
    this.add("text", { class: "name", x: 4, y: this.top - 12 }, shorten(column.name, Math.floor(this.width / 9)));
  }
  clip() {
    const id = "inside";
    const clip = this.add("clipPath", { id });
    const [width, height] = [this.width - this.left - this.right, this.height - this.top - this.bottom];
    clip.appendChild(element("rect", { x: this.left, y: this.top, width, height }));
    return this.add("g", { "clip-path": `url(#${id})` });
  }
}

export function shorten(text, size) {
  return text.length > size ? `${text.slice(0, size - 3)}...` : text;
}

// The range of an axis: the usual one of the column, extended if the conditions move most of the rows beyond it. If they
// leave a small part of it, that part is magnified in steps of two, so that the axis rests while a slider moves.
function chooseRange(column, values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  let [low, high] = [toNumber(column.low, column.kind), toNumber(column.high, column.kind)];
  if (sorted.length) {
    low = Math.min(low, sorted[Math.floor(0.05 * (sorted.length - 1))]);
    high = Math.max(high, sorted[Math.ceil(0.95 * (sorted.length - 1))]);
  }
  const margin = 0.03 * (high - low) || 1;
  [low, high] = [low - margin, high + margin];
  if (sorted.length < 10) return [low, high];
  // Few rows far out do not count.
  const inner = [sorted[Math.floor(0.02 * (sorted.length - 1))], sorted[Math.ceil(0.98 * (sorted.length - 1))]];
  const zoom = chooseZoom(column, high - low, inner[1] - inner[0]);
  if (zoom === 1) return [low, high];
  const width = (high - low) / zoom, middle = (inner[0] + inner[1]) / 2;
  low += Math.round((middle - width / 2 - low) / (width / 4)) * (width / 4);
  return [low, low + width];
}

function chooseZoom(column, span, inner) {
  const least = Math.max(2 * inner, 12 * (column.kind === "integer" ? column.step : 0), 1e-6 * span);
  return least * MIN_ZOOM > span ? 1 : 2 ** Math.floor(Math.log2(span / least));
}

// How much an axis is magnified, for people who see it move.
export function findZoom(column, samples) {
  const values = samples.map((row) => toNumber(row[column.name], column.kind));
  const [low, high] = chooseRange(column, values);
  const [first, last] = [toNumber(column.low, column.kind), toNumber(column.high, column.kind)];
  return Math.max(1, Math.round((1.06 * (last - first)) / (high - low)));
}

function pathOf(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// Samples along the axis, in the colours of their lines if there are several.
function drawRug(frame, group, picture, column) {
  const base = frame.height - frame.bottom;
  for (const row of picture.samples.slice(0, 200)) {
    const x = frame.x(toNumber(row[column.name], column.kind));
    const line = picture.grid === "lines" ? picture.levels.indexOf(row[picture.columns[1]]) : null;
    if (line === -1) continue;
    const style = line === null ? "" : `fill: var(${colourOf(line)})`;
    group.appendChild(element("circle", { class: "dot", cx: x.toFixed(1), cy: base - 5 - 6 * (line || 0), r: 2.5, style }));
  }
}

export function drawLine(holder, picture, column, label) {
  const frame = new Frame(holder, label, 340);
  const values = picture.samples.map((row) => toNumber(row[column.name], column.kind));
  frame.setX(...chooseRange(column, values));
  const lines = picture.grid === "lines" ? picture.density : [picture.density];
  const atoms = picture.atoms || [];
  const top = Math.max(...lines.flat(), 1e-300);
  frame.setY(0, 1.08 * top);
  frame.drawAxisX(column);
  const group = frame.clip();
  const xs = picture.x.map((x) => toNumber(x, column.kind));
  lines.forEach((line, i) => {
    const points = xs.map((x, k) => [frame.x(x), frame.y(line[k])]);
    const ends = [[points[0][0], frame.y(0)], [points.at(-1)[0], frame.y(0)]];
    const style = `stroke: var(${COLOURS[i % COLOURS.length]})`;
    group.appendChild(element("path", { class: "area", style: style.replace("stroke", "fill"), d: `${pathOf([ends[0], ...points, ends[1]])}Z` }));
    group.appendChild(element("path", { class: "curve", style, d: pathOf([ends[0], ...points, ends[1]]) }));
  });
  const tallest = Math.max(...atoms.map((atom) => atom.probability), 1e-300);
  for (const atom of atoms) {
    const x = frame.x(atom.value);
    group.appendChild(element("path", { class: "stem", d: `M${x} ${frame.y(0)}V${frame.y((0.6 * top * atom.probability) / tallest)}` }));
    frame.add("text", { x: x + 6, y: frame.y(0.6 * top) + 4 }, `${formatNumber(100 * atom.probability, 3)} % are exactly ${formatNumber(atom.value)}`);
  }
  drawRug(frame, group, picture, column);
}

export function drawBars(holder, picture, column, label) {
  const labels = picture.x.map((value) => formatValue(value, column));
  const isNumber = picture.x.every((value) => typeof value === "number");
  if (isNumber && picture.x.length > 8) return drawColumns(holder, picture, column, label);
  const frame = new Frame(holder, label, 30 * labels.length + 20);
  const start = Math.min(180, frame.width * 0.38);
  const largest = Math.max(...picture.probability, 1e-300);
  labels.forEach((text, i) => {
    const y = 10 + 30 * i;
    const width = ((frame.width - start - 70) * picture.probability[i]) / largest;
    frame.add("text", { x: start - 10, y: y + 16, "text-anchor": "end" }, shorten(text, Math.floor(start / 7.5)));
    frame.add("rect", { class: "bar", x: start, y, width: Math.max(0.5, width), height: 22, rx: 3 });
    frame.add("text", { x: start + width + 8, y: y + 16 }, `${formatNumber(100 * picture.probability[i], 3)} %`);
  });
}

function drawColumns(holder, picture, column, label) {
  const frame = new Frame(holder, label, 340);
  const step = picture.x[1] - picture.x[0] || 1;
  frame.setX(picture.x[0] - step, picture.x.at(-1) + step);
  frame.setY(0, 1.08 * Math.max(...picture.probability, 1e-300));
  frame.drawAxisX(column);
  const width = 0.8 * (frame.x(step) - frame.x(0));
  picture.x.forEach((x, i) => {
    const y = frame.y(picture.probability[i]);
    frame.add("rect", { class: "bar", x: frame.x(x) - width / 2, y, width, height: Math.max(0, frame.y(0) - y), rx: 2 });
  });
}

export function drawMesh(holder, picture, columns, label) {
  const [first, second] = columns;
  const frame = new Frame(holder, label, 420);
  frame.left = 64; frame.top = 26;
  const points = picture.samples.map((row) => columns.map((column) => toNumber(row[column.name], column.kind)));
  frame.setX(...chooseRange(first, points.map((p) => p[0])));
  frame.setY(...chooseRange(second, points.map((p) => p[1])));
  frame.drawAxisX(first);
  frame.drawAxisY(second);
  const group = frame.clip();
  const xs = picture.x.map((x) => frame.x(toNumber(x, first.kind)));
  const ys = picture.y.map((row) => row.map((y) => frame.y(toNumber(y, second.kind))));
  findLevels(xs, ys, picture.density).forEach((level, i) => {
    const d = traceRegion(xs, ys, picture.density, level);
    group.appendChild(element("path", { class: "contour", d, style: `opacity: ${0.16 + 0.12 * i}` }));
  });
  for (const [x, y] of points.slice(0, 250)) {
    group.appendChild(element("circle", { class: "dot", cx: frame.x(x).toFixed(1), cy: frame.y(y).toFixed(1), r: 2.2 }));
  }
}

// Densities above which the given shares of all rows lie.
function findLevels(xs, ys, density) {
  const cells = [];
  for (let i = 0; i + 1 < xs.length; i++) {
    for (let j = 0; j + 1 < ys[i].length; j++) {
      const height = (Math.abs(ys[i][j + 1] - ys[i][j]) + Math.abs(ys[i + 1][j + 1] - ys[i + 1][j])) / 2;
      const mean = (density[i][j] + density[i + 1][j] + density[i][j + 1] + density[i + 1][j + 1]) / 4;
      cells.push([mean, mean * height * Math.abs(xs[i + 1] - xs[i])]);
    }
  }
  cells.sort((a, b) => b[0] - a[0]);
  const total = cells.reduce((sum, cell) => sum + cell[1], 0) || 1;
  return SHARES.map((share) => {
    let sum = 0;
    for (const [mean, mass] of cells) {
      sum += mass;
      if (sum >= share * total) return mean;
    }
    return 0;
  });
}

// The region where the density is at least `level`: each triangle of the mesh is cut along a straight line.
function traceRegion(xs, ys, density, level) {
  const parts = [];
  for (let i = 0; i + 1 < xs.length; i++) {
    for (let j = 0; j + 1 < ys[i].length; j++) {
      const corner = (k, l) => [xs[k], ys[k][l], density[k][l]];
      const [a, b, c, d] = [corner(i, j), corner(i + 1, j), corner(i + 1, j + 1), corner(i, j + 1)];
      for (const triangle of [[a, b, c], [a, c, d]]) {
        const cut = cutTriangle(triangle, level);
        if (cut.length) parts.push(`${pathOf(cut)}Z`);
      }
    }
  }
  return parts.join("");
}

function cutTriangle(triangle, level) {
  const kept = [];
  triangle.forEach((p, k) => {
    const q = triangle[(k + 1) % 3];
    if (p[2] >= level) kept.push([p[0], p[1]]);
    if (p[2] >= level !== q[2] >= level) {
      const t = (level - p[2]) / (q[2] - p[2]);
      kept.push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
    }
  });
  return kept;
}

export function colourOf(i) {
  return COLOURS[i % COLOURS.length];
}
