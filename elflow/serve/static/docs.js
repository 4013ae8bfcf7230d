// The documentation of the API, from its own description: nothing is loaded from elsewhere.

import { makeTable } from "/table.js";

function add(parent, name, text = "") {
  const node = parent.appendChild(document.createElement(name));
  node.textContent = text;
  return node;
}

function describeType(schema) {
  if (!schema) return "";
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.anyOf) return [...new Set(schema.anyOf.map(describeType))].join(" or ");
  if (schema.type === "array") return `list of ${describeType(schema.items) || "values"}`;
  return Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type || "";
}

function describeField(schema) {
  return schema.description || (schema.anyOf || []).map((each) => each.description || "").join(" ").trim();
}

function showFields(card, title, schema) {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => [
    name, describeType(field), required.has(name) ? "required" : field.default === undefined || field.default === null ? "" : `default ${JSON.stringify(field.default)}`,
    { text: describeField(field), class: "reason" },
  ]);
  if (!rows.length) return;
  add(card, "h3", title);
  const holder = add(card, "div");
  holder.className = "scroll";
  holder.append(makeTable(["field", "type", "", "meaning"], rows, title));
}

const description = await (await fetch("/openapi.json")).json();
document.getElementById("lead").textContent = description.info.description.replaceAll("\n", " ").replaceAll("`", "");
for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const card = add(document.getElementById("paths"), "section");
    card.className = "card";
    add(card, "h2", `${method.toUpperCase()} ${path}`);
    add(card, "p", operation.summary || "");
    if (operation.description) add(card, "p", operation.description.replaceAll("`", "")).className = "note first";
    const body = operation.requestBody?.content["application/json"];
    if (body) {
      showFields(card, "Body", body.schema);
      add(card, "h3", "Example");
      add(card, "pre", `curl ${location.origin}${path} --json '${JSON.stringify(body.example)}'`);
      add(card, "p", `Media types: ${Object.keys(operation.requestBody.content).join(", ")}`).className = "note";
    }
    const answer = operation.responses["200"]?.content?.["application/json"]?.schema;
    if (answer) showFields(card, "Answer", answer);
    const errors = Object.entries(operation.responses).filter(([code]) => code !== "200");
    if (body) {
      const details = add(card, "details");
      add(details, "summary", "Errors");
      details.append(makeTable(["status", "meaning"], errors.map(([code, each]) => [code, { text: each.description, class: "reason" }]), "Errors"));
    }
  }
}
