// The parts of a form, each drawn from its schema.
//
// A part is { element, read, tell }. `read(where, reading)` gives what was filled in, undefined where that is nothing,
// and notes in `reading` which part is at which place, and what cannot be read; `tell(text)` says what is wrong with it.
// Rules kept here: a value that a part cannot show is shown as JSON, so no part changes what it was given; what has a
// default says so from the start; a yes or no without one is asked for, because an empty box would be a no of whoever
// overlooks it.

import { input, labelled, read as typed } from "./asking.js";
import { button, h } from "./dom.js";
import { properties, read as understood } from "./schemas.js";

/** A form that goes deeper than this is filled in as JSON from there on. */
const DEEPEST = 12;

/** Draw a part; `label` is empty for the whole form. */
export function draw(root, schema, { label = "", required = true, value, depth = 0 }) {
  const asked = understood(root, schema);
  const initial = value === undefined ? asked.schema.default : value;
  const kind = depth < DEEPEST && fits(asked, initial) ? asked.kind : "json";
  const part = { root, ...asked, kind, label: schema.title && label ? schema.title : label, required, initial, depth };
  if (kind !== "object" && kind !== "list") return simple(part);
  const make = kind === "object" ? object : list;
  return label && (part.nullable || (kind === "object" && !required)) ? optional(part, make) : make(part);
}

function fits({ kind, nullable, options }, value) {
  if (value === undefined || (value === null && nullable)) return true;
  switch (kind) {
    case "choice":
      return options.some((one) => same(one.value, value));
    case "boolean":
      return typeof value === "boolean";
    case "number":
    case "integer":
      return typeof value === "number";
    case "object":
      return value !== null && typeof value === "object" && !Array.isArray(value);
    case "list":
      return Array.isArray(value);
    case "date":
      return /^\d{4}-\d\d-\d\d$/.test(value);
    case "time":
      return !Number.isNaN(Date.parse(value));
    case "text":
      return typeof value === "string" && !value.includes("\n");
    case "area":
      return typeof value === "string";
    default:
      return true;
  }
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** One control with its label. */
function simple(part) {
  if (part.kind === "boolean" && typeof part.schema.default === "boolean" && !part.nullable) return box(part);
  if (part.kind === "boolean") return chosen({ ...part, options: [{ value: true, text: "yes" }, { value: false, text: "no" }] });
  if (part.kind === "choice") return chosen(part);
  const { schema, initial, nullable, label, required } = part;
  const kind = part.kind === "integer" ? "number" : part.kind;
  const field = {
    kind,
    label: label || "value",
    required,
    hint: hint(part),
    value: shown(kind, initial),
    step: part.kind === "integer" && 1,
    placeholder: typeof schema.default === "number" ? schema.default : undefined,
    rows: kind === "json" ? 4 : 3,
  };
  const control = input(field);
  if (kind === "area") control.classList.add("prose");
  // A text that was there and is cleared is an empty text; one that never was is nothing.
  const isText = kind === "text" || kind === "area";
  const cleared = isText && (initial === "" || (!nullable && typeof schema.default === "string"));
  const empty = cleared ? "" : nullable ? null : undefined;
  return told(labelled(field, control), control, () => typed({ ...field, required: false }, control) ?? empty);
}

function hint({ kind, schema }) {
  const format = kind === "text" && schema.format && `format: ${schema.format}`;
  return [schema.description, format, kind === "json" && "JSON"].filter(Boolean).join(" · ");
}

function shown(kind, value) {
  if (value === undefined || (value === null && kind !== "json")) return undefined;
  return kind === "json" ? JSON.stringify(value, null, 2) : value;
}

function box({ label, schema, initial }) {
  const field = { kind: "check", label: label || "value", value: initial };
  const control = input(field);
  const element = h("div", {}, labelled(field, control), schema.description && h("small", {}, schema.description));
  return told(element, control, () => control.checked);
}

function chosen({ label, schema, initial, nullable, required, options }) {
  const none = (nullable || initial === undefined) && (required && !nullable ? "choose" : "nothing");
  const texts = options.map((one) => one.text);
  const field = { kind: "choice", label: label || "value", required, hint: schema.description, options: texts, none };
  const control = input(field);
  const first = none ? 1 : 0;
  const at = options.findIndex((one) => same(one.value, initial));
  control.selectedIndex = at < 0 ? 0 : at + first;
  const read = () => (none && control.selectedIndex === 0 ? (nullable ? null : undefined) : options[control.selectedIndex - first].value);
  return told(labelled(field, control), control, read);
}

/** A part of one control, below which there is room for what is wrong with it. */
function told(element, control, value) {
  const wrong = h("div", { class: "wrong" });
  const part = {
    element: h("div", { class: "part" }, element, wrong),
    read: (where, reading) => {
      reading.seen.set(where, part);
      try {
        return value();
      } catch (error) {
        reading.faults.push({ where, message: error.message });
        return undefined;
      }
    },
    tell: (text) => {
      wrong.textContent = text;
      control.setAttribute("aria-invalid", String(text !== ""));
    },
  };
  return part;
}

/** A part of several parts; the whole form has no frame. */
function group({ label, required, schema }, content, read) {
  const wrong = h("div", { class: "wrong" });
  const about = schema.description && h("p", { class: "dim" }, schema.description);
  const inside = [about, wrong, content];
  const part = {
    element: label ? h("fieldset", {}, h("legend", {}, label, required && " *"), inside) : h("div", {}, inside),
    read: (where, reading) => {
      reading.seen.set(where, part);
      return read((name) => (where === "" ? String(name) : `${where}.${name}`), reading);
    },
    tell: (text) => { wrong.textContent = text; },
  };
  return part;
}

function object(part) {
  const { root, schema, initial, depth } = part;
  const known = properties(root, schema);
  const parts = Object.entries(known).map(([name, one]) => {
    const required = (schema.required || []).includes(name);
    return [name, draw(root, one, { label: name.replaceAll("_", " "), required, value: initial?.[name], depth: depth + 1 })];
  });
  const others = Object.entries(initial || {}).filter(([name]) => !Object.hasOwn(known, name)); // not asked for, but given
  return group(part, parts.map(([, one]) => one.element), (at, reading) => {
    const values = parts.map(([name, one]) => [name, one.read(at(name), reading)]);
    return Object.fromEntries([...others, ...values.filter(([, value]) => value !== undefined)]);
  });
}

/** As many as there are; a row that was left empty does not count. */
function list(part) {
  const { root, schema, initial, label, required, depth } = part;
  const rows = new Set();
  let count = 0; // of all that there ever were, so that no two are called the same
  const body = h("div");
  const add = (value) => {
    count += 1;
    const one = draw(root, schema.items, { label: `${label || "value"} ${count}`, required: false, value, depth: depth + 1 });
    const row = h("div", { class: "row" }, one.element, button("Remove", () => { rows.delete(one); row.remove(); }, { class: "small" }));
    rows.add(one);
    body.append(row);
    return row;
  };
  for (const value of initial || []) add(value);
  const grow = () => add().querySelector("input, select, textarea")?.focus();
  const more = button("Add", grow, { class: "small", "aria-label": `Add to ${label || "value"}` });
  return group(part, [body, more], (at, reading) => {
    const values = [];
    for (const one of rows) {
      const value = one.read(at(values.length), reading);
      if (value !== undefined) values.push(value);
    }
    return values.length === 0 && !required && initial === undefined ? undefined : values;
  });
}

/** What may be absent is drawn once somebody wants it; so one that contains itself has an end. */
function optional(part, make) {
  const { label, nullable, initial } = part;
  const field = { kind: "check", label, value: initial !== undefined && initial !== null };
  const control = input(field);
  const body = h("div");
  let inner = null;
  const fit = () => {
    if (control.checked && inner === null) {
      inner = make({ ...part, initial: initial ?? undefined });
      body.append(inner.element);
    }
    body.hidden = !control.checked;
  };
  control.addEventListener("change", fit);
  fit();
  const outer = told(labelled(field, control), control, () => (nullable ? null : undefined));
  outer.element.append(body);
  return {
    element: outer.element,
    read: (where, reading) => (control.checked ? inner : outer).read(where, reading),
    tell: outer.tell,
  };
}
