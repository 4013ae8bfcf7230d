// Tables on the page, and tables as text: CSV with commas, semicolons or tabs.

export function makeTable(headings, rows, caption) {
  const table = document.createElement("table");
  const title = table.createCaption();
  title.className = "hidden";
  title.textContent = caption;
  const head = table.createTHead().insertRow();
  for (const heading of headings) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = heading;
    head.appendChild(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const content of row) {
      const cell = line.insertCell();
      if (content instanceof Node) cell.appendChild(content);
      else if (content !== null && typeof content === "object") {
        cell.textContent = content.text;
        cell.className = content.class || "";
        if (content.title) cell.title = content.title;
      } else cell.textContent = content;
    }
  }
  return table;
}

// Rows of text fields; quotes may contain separators and line breaks.
export function parseCsv(text) {
  const source = text.replace(/^\ufeff/, "");
  const first = source.split(/\r?\n/, 1)[0];
  const count = (mark) => first.split(mark).length - 1;
  const separator = [",", ";", "\t"].sort((a, b) => count(b) - count(a))[0];
  const rows = [];
  let row = [], field = "", quoted = false;
  for (let i = 0; i < source.length; i++) {
    const c = source[i];
    if (quoted) {
      if (c === '"' && source[i + 1] === '"') { field += '"'; i++; }
      else if (c === '"') quoted = false;
      else field += c;
    } else if (c === '"' && field === "") quoted = true;
    else if (c === separator) { row.push(field); field = ""; }
    else if (c === "\n" || c === "\r") {
      if (c === "\r" && source[i + 1] === "\n") i++;
      row.push(field); rows.push(row); row = []; field = "";
    } else field += c;
  }
  if (field !== "" || row.length) { row.push(field); rows.push(row); }
  return { separator, rows: rows.filter((fields) => fields.some((value) => value.trim() !== "")) };
}

const MISSING = new Set(["", "na", "n/a", "nan", "null", "none", "<na>"]);

// Values of a model's columns: numbers with a decimal comma where fields are separated by semicolons.
export function readRows(text, columns) {
  const { separator, rows } = parseCsv(text);
  if (rows.length < 2) throw new Error("The text must have a line of column names, and at least one row.");
  const names = rows[0].map((name) => name.trim());
  const absent = columns.filter((column) => !names.includes(column.name) && !column.missing).map((column) => column.name);
  if (absent.length) throw new Error(`There is no column named ${absent.join(", ")}.`);
  const known = new Map(columns.map((column) => [column.name, column]));
  const unused = names.filter((name) => !known.has(name));
  const found = rows.slice(1).map((fields) => {
    const row = {};
    names.forEach((name, i) => {
      const column = known.get(name);
      if (column) row[name] = readValue((fields[i] || "").trim(), column, separator);
    });
    return row;
  });
  return { rows: found, unused };
}

function readValue(text, column, separator) {
  if (MISSING.has(text.toLowerCase()) && !(column.levels || []).includes(text)) return null;
  const kinds = new Set((column.levels || []).map((level) => typeof level));
  if (column.kind === "datetime" || kinds.has("string")) return text;
  if (kinds.has("boolean")) return { true: true, false: false, 1: true, 0: false }[text.toLowerCase()] ?? text;
  const number = Number(separator === ";" ? text.replace(",", ".") : text);
  return Number.isFinite(number) ? number : text;
}

function quote(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv(names, rows) {
  return `${[names, ...rows].map((row) => row.map(quote).join(",")).join("\n")}\n`;
}

export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
