// A form for whatever a JSON Schema asks for: as fields, or as JSON, whichever whoever fills it in prefers.
//
// Rules kept here: what a schema means is the server's to judge, so nothing is refused here but what cannot be read; what
// is refused is said next to the field that it is about, and only what has no such place is left to the rest of the page.

import { button, h } from "./dom.js";
import { draw } from "./parts.js";

/** Left out of these messages is where the fault lies, which is what they name. */
const MISSING = /^"(.+)" is a required property$/;

/** A form: `read()` gives the value, or throws what cannot be read; `tell(problems)` gives those without a place in it. */
export function form(schema) {
  const body = h("div");
  const element = h("fieldset", { class: "bare" });
  const swap = button("", () => turn(), { class: "small" });
  let asJson = false;
  let part = null;
  let reading = { seen: new Map(), faults: [] };

  const show = (value) => {
    const asked = asJson ? {} : schema;
    part = asked === null && value === undefined ? nothing() : draw(asked ?? {}, asked ?? {}, { value });
    body.replaceChildren(part.element);
    swap.textContent = asJson ? "As a form" : "As JSON";
  };
  const read = () => {
    for (const one of reading.seen.values()) one.tell("");
    reading = { seen: new Map(), faults: [] };
    const value = part.read("", reading);
    if (reading.faults.length === 0) return value;
    tell(reading.faults);
    throw new Error("It cannot be read as it is filled in");
  };
  const tell = (problems) => {
    const found = new Map();
    const rest = [];
    for (const { where, message } of problems) {
      const [place, text] = asJson ? [] : placed(reading.seen, where, message);
      if (place === undefined) rest.push({ where, message });
      else found.set(place, [...(found.get(place) || []), text]);
    }
    for (const [place, texts] of found) reading.seen.get(place).tell(texts.join("; "));
    return rest;
  };
  const turn = () => {
    try {
      const value = read();
      asJson = !asJson;
      show(value);
    } catch {
      // It says itself what cannot be read, and stays until that is mended.
    }
  };
  show();
  element.append(h("div", { class: "bar" }, h("h2", { class: "grow" }, "To fill in"), swap), body);
  return { element, read, tell };
}

function nothing() {
  return { element: h("p", { class: "dim" }, "It asks for nothing but to be completed."), read: () => undefined, tell: () => {} };
}

/** The nearest place that has a part, and what is to be said there; nothing if there is none. */
function placed(seen, where, message) {
  const missing = message.match(MISSING)?.[1];
  const whole = where === "value" && !seen.has("value") ? "" : where; // the API calls the whole of it so
  if (missing !== undefined) {
    for (const place of [whole, ""].map((one) => (one === "" ? missing : `${one}.${missing}`))) {
      if (seen.has(place)) return [place, message];
    }
  }
  const names = whole.split(".");
  for (let n = names.length; n > 0; n--) {
    const place = names.slice(0, n).join(".");
    if (seen.has(place)) return [place, [...names.slice(n), message].join(": ")];
  }
  return [];
}
