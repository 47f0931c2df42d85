// Dialogs: something is asked of the person, then done. What is refused is shown there, and nothing typed is lost.
//
// Rule kept here: whoever has closed one before there was an answer is told what came of it all the same.

import { button, h, trouble, wall } from "./dom.js";
import { parse } from "./exact.js";
import { wishes } from "./wishes.js";

/** More fields than this stand side by side. */
const MANY = 8;

/**
 * Ask, then do. Fields are { name, label, kind, value, hint, required, options, only }; kinds are "text", which suggests
 * `options` if it has a `list` to name them by, "area", "json", "number", "time", "wall" (a time without a zone), "date",
 * "secret", "check" and "choice", which offers `options` and, with `none`, nothing under that word. A field with `only` is there
 * while another one has a value: { act: "send" }. `act` gets the values by name, and an id that is the same when the same
 * values are sent once more; when it is done the dialog closes, unless it gives an element, which takes the place of the
 * fields; from there a way leads `back` to them, if it shall.
 * `over` is told when the dialog is gone. Gives the inputs by name.
 */
export function ask({ title, text, fields = [], verb = "OK", danger = false, back = false, over = () => {} }, act) {
  const told = h("div");
  const inputs = new Map(fields.map((field) => [field.name, input(field)]));
  const labels = new Map(fields.map((field) => [field.name, labelled(field, inputs.get(field.name))]));
  const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, verb);
  const form = h(
    "form",
    { method: "dialog", novalidate: true },
    h("h2", {}, title),
    text && h("div", { class: "told" }, text),
    h("div", { class: "fields" }, [...labels.values()]),
    told,
    h("footer", {}, button("Close", () => dialog.close()), go),
  );
  const dialog = h("dialog", { "aria-label": title, class: fields.length > MANY && "wide" }, form);
  const outcome = (element) => {
    const again = back && button("Back", () => {
      shown.remove();
      form.hidden = false;
      dialog.removeAttribute("closedby");
    });
    const shown = h("div", {}, h("h2", {}, title), element, h("footer", {}, again, button("Close", () => dialog.close())));
    form.hidden = true;
    dialog.setAttribute("closedby", "none"); // it may be there this once: more than a key is needed to lose it
    dialog.append(shown);
    if (dialog.open) return;
    document.body.append(dialog);
    dialog.showModal();
  };
  const fit = () => {
    for (const { name, only } of fields) {
      if (only) labels.get(name).hidden = !Object.entries(only).every(([other, value]) => inputs.get(other).value === value);
    }
  };
  fit();
  const wished = wishes();
  form.addEventListener("change", fit);
  dialog.addEventListener("close", () => {
    if (dialog.open) return; // again, with what came of it
    dialog.remove();
    over();
  });
  dialog.addEventListener("cancel", (event) => form.hidden && event.preventDefault()); // where `closedby` is not known
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    told.replaceChildren();
    go.disabled = true;
    try {
      const values = {};
      for (const field of fields) {
        if (!labels.get(field.name).hidden) values[field.name] = read(field, inputs.get(field.name));
      }
      const given = await act(values, wished.id(values));
      wished.granted();
      if (given instanceof Node) outcome(given);
      else dialog.close();
    } catch (error) {
      told.replaceChildren(trouble(error));
      if (!dialog.open) say(error.message);
    } finally {
      go.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  return inputs;
}

/** A short word about what was done, in place of the last one. */
export function say(text) {
  for (const one of document.querySelectorAll(".said")) one.remove();
  const told = h("div", { class: "said", role: "status" }, text);
  document.body.append(told);
  setTimeout(() => told.remove(), 4000);
}

export function labelled(field, control) {
  if (field.kind === "check") return h("label", { class: "check" }, control, field.label);
  const offered = field.list && field.options;
  const hint = [field.hint, field.kind === "time" && "on your clock"].filter(Boolean).join("; ");
  return h(
    "label",
    {},
    h("span", {}, field.label, field.required && " *"),
    control,
    offered && h("datalist", { id: field.list }, offered.map((one) => h("option", { value: one }))),
    hint && h("small", {}, hint),
  );
}

export function input(field) {
  const props = { name: field.name, value: field.value, required: field.required, placeholder: field.placeholder };
  switch (field.kind) {
    case "area":
    case "json":
      return h("textarea", { ...props, rows: field.rows || 5, spellcheck: "false" });
    case "check":
      return h("input", { type: "checkbox", name: field.name, checked: field.value === true });
    case "choice":
      return choice(field);
    case "number":
      return h("input", { ...props, type: "number", step: field.step || "any" });
    case "time":
      return h("input", { ...props, value: field.value && local(field.value), type: "datetime-local", step: 1 });
    case "wall":
      return h("input", { ...props, type: "datetime-local", step: 1 });
    case "date":
      return h("input", { ...props, type: "date" });
    case "secret":
      return h("input", { ...props, type: "password", autocomplete: "off" });
    default:
      return h("input", { ...props, type: "text", autocomplete: "off", list: field.list });
  }
}

/** A moment on the clock of whoever looks, as inputs take it. */
function local(moment) {
  const date = new Date(moment);
  return Number.isNaN(date.getTime()) ? "" : wall(moment);
}

function choice({ name, options, value, none }) {
  const select = h("select", { name }, none && h("option", { value: "" }, none), options.map((one) => h("option", {}, one)));
  if (value !== undefined) select.value = value;
  return select;
}

/** What was typed; undefined where there is nothing. Throws an Error that names the field if it cannot be used. */
export function read(field, control) {
  if (field.kind === "check") return control.checked;
  const text = control.value;
  if (control.validity.badInput) throw new Error(`${field.label} is no ${field.kind}`); // there is something, not told what
  if (text.trim() === "") {
    if (field.required) throw new Error(`${field.label} is missing`);
    return undefined;
  }
  switch (field.kind) {
    case "json":
      try {
        return parse(text);
      } catch (error) {
        throw new Error(`${field.label} is no JSON: ${error.message}`);
      }
    case "number":
      if (Number.isNaN(Number(text))) throw new Error(`${field.label} is no number`);
      return /^-?[1-9]\d*$/.test(text) ? parse(text) : Number(text);
    case "time":
      return new Date(text).toISOString();
    case "wall":
      return whole(text);
    default:
      return text;
  }
}

/** A time without a zone, with the seconds that the API asks for. */
export function whole(text) {
  return /T\d\d:\d\d$/.test(text) ? `${text}:00` : text;
}

/** What a list is narrowed by, above it; the address keeps it. A choice counts at once. */
export function filters(visit, fields, values) {
  const controls = fields.map((field) => [field, input({ ...field, value: values[field.name], placeholder: field.label })]);
  for (const [field, control] of controls) {
    control.setAttribute("aria-label", field.label);
    control.setAttribute("title", field.kind === "time" ? `${field.label}, on your clock` : field.label);
  }
  const go = h("button", { type: "submit" }, "Find");
  // An empty time shows nothing of what it is for.
  const placed = controls.map(([{ kind, label }, control]) => (kind === "time" ? h("label", {}, label, control) : control));
  const told = h("div");
  const form = h("form", { class: "bar filters", role: "search", novalidate: true }, placed, go, told);
  const find = () => {
    try {
      visit.ask(Object.fromEntries(controls.map(([field, control]) => [field.name, read(field, control)])));
    } catch (error) {
      told.replaceChildren(trouble(error));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); find(); });
  for (const [field, control] of controls) if (field.kind === "choice") control.addEventListener("change", find);
  return form;
}

/** What the address says of these fields. */
export function asked(visit, fields) {
  return Object.fromEntries(fields.map(({ name }) => [name, visit.query.get(name) || undefined]));
}

/** What was typed with commas between. */
export const words = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
