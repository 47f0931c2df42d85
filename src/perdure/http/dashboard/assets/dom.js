// Elements, and what is shown the same way everywhere.
//
// Rule kept here: whatever comes from the API becomes a text node or an attribute, never markup.

/** An element: h("a", { class: "dim", href: "#/", onclick: go }, "text", child, [more]). */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((one) => one !== undefined && one !== null && one !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** A part of a drawing; its look comes from attributes and classes. */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Parts of a whole as a bar: [[class, count], …]; a whole that is larger than its parts leaves some of it empty. */
export function shares(parts, whole) {
  const known = parts.filter(([, count]) => count > 0);
  let at = 0;
  const rects = known.map(([name, count]) => {
    const wide = (100 * count) / whole;
    const rect = svg("rect", { x: `${at}%`, width: `${wide}%`, height: "100%", class: name }, svg("title", {}, `${count} ${name}`));
    at += wide;
    return rect;
  });
  const text = known.map(([name, count]) => `${count} ${name}`).join(", ") || "nothing yet";
  return svg("svg", { class: "shares", role: "img", "aria-label": text }, ...rects);
}

export const link = (hash, text, props = {}) => h("a", { href: hash, ...props }, text);
export const dim = (...children) => h("span", { class: "dim" }, ...children);

/** Where an execution is shown. */
export const place = (id) => `#/executions/${encodeURIComponent(id)}`;
export const execution = (id) => link(place(id), id, { class: "id" });

export const badge = (status) => h("span", { class: `badge ${status}` }, status);

/** By what a control is known when it is drawn anew. */
const known = (one) => one.getAttribute("aria-label") || one.getAttribute("href") || one.name || one.textContent;

/** Who has the focus in this element, by a keyboard; gives what gives it to whatever has taken that place. */
export function focused(element) {
  const held = document.activeElement;
  if (held === null || held === element || !element.contains(held)) return () => {};
  const name = known(held);
  return () => {
    if (document.activeElement !== document.body) return; // it was not lost, or is elsewhere by now
    const controls = [...element.querySelectorAll("a, button, input, select, textarea, summary")];
    controls.find((one) => known(one) === name)?.focus({ preventScroll: true });
  };
}

const drawn = new WeakMap();

/**
 * Draw what is in an element, unless it comes from the same as the last time. Then only its times go on, so that whoever
 * presses a button there, reads on or has marked a text is not disturbed.
 */
export function renew(element, from, make) {
  const text = JSON.stringify(from);
  if (drawn.get(element) === text) return element.querySelectorAll("time.ago").forEach(tell);
  const back = focused(element);
  element.replaceChildren(...[make()].flat(Infinity).filter(Boolean));
  drawn.set(element, text);
  back();
}

export function button(text, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, text);
}

/** Rows under a head; each row is a list of cells. */
export function table(head, rows, { empty = "nothing here", props = {} } = {}) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      props,
      h("thead", {}, h("tr", {}, head.map((one) => h("th", {}, one)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((one) => h("td", {}, one))))),
    ),
  );
}

/** Names and values, one below the other; what has no value is left out. */
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return h("dl", { class: "facts" }, known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), ...children);
}

/** A value as JSON. */
export const json = (value) => text(JSON.stringify(value, null, 2));

/** More characters than this are shown only to those who want them. */
const MUCH = 100_000;

/** A text of many lines. */
export function text(all) {
  const shown = h("pre", { class: "json" }, all.slice(0, MUCH));
  const rest = button(`Show all ${all.length.toLocaleString("en")} characters`, () => { shown.textContent = all; }, { class: "small" });
  if (all.length > MUCH) shown.append("… ", rest);
  return shown;
}

/** What went wrong, with all that is wrong where there is a list of it. */
export function trouble(error) {
  const list = (error.problems || []).map((one) => h("li", {}, problem(one)));
  return h(
    "div",
    { class: "trouble", role: "alert" },
    h("strong", {}, list.length > 0 ? error.message.split("\n")[0] : error.message), // the rest of it is that list
    list.length > 0 && h("ul", {}, list),
  );
}

/** One thing that is wrong: where, what, and how to mend it. */
export function problem({ where, message, fix }) {
  return [where && h("code", {}, where), where && ": ", message, fix && dim(` (${fix})`)];
}

// Times

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** Seconds, in the two largest units: 3723 is "1 h 2 min". */
export function span(seconds) {
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  let rest = Math.round(seconds);
  const words = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) words.push(`${count} ${unit}`);
    if (words.length === 2 || (words.length === 1 && count === 0)) break;
  }
  return words.join(" ");
}

/** The same roughly, in one unit: what lacks little of one counts as one, so two days from now are two a moment later. */
function roughly(seconds) {
  const [unit, size] = UNITS.find(([, one]) => seconds >= 0.98 * one) || ["s", 1];
  return `${Math.max(1, Math.round(seconds / size))} ${unit}`;
}

/** A moment as people say it, with the exact time behind it. Takes what the API gives: a text, or microseconds. */
export function when(moment) {
  if (moment === undefined || moment === null) return "";
  const text = dated(moment).toISOString();
  const shown = h("time", { class: "ago", datetime: text, title: text });
  tell(shown);
  return shown;
}

function tell(shown) {
  const seconds = (Date.now() - new Date(shown.dateTime).getTime()) / 1000;
  shown.textContent = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${roughly(seconds)} ago` : `in ${roughly(-seconds)}`;
}

/** Day and time to the millisecond, in UTC: an execution can go on for months. */
export function exactly(moment) {
  const text = dated(moment).toISOString();
  return h("time", { datetime: text, title: text }, text.slice(0, 23).replace("T", " "));
}

/** Day and time to the second, in UTC, as records have it. */
export function stamp(moment) {
  const text = dated(moment).toISOString();
  return h("time", { datetime: text, title: text }, text.slice(0, 19).replace("T", " "));
}

/** What the clock on a wall in that zone shows then, as 2030-01-01T07:00:00; without one, the clock of whoever looks. */
export function wall(moment, timeZone) {
  const how = { timeZone, dateStyle: "short", timeStyle: "medium" };
  return new Intl.DateTimeFormat("sv-SE", how).format(dated(moment)).replace(" ", "T");
}

export function dated(moment) {
  return new Date(typeof moment === "number" ? moment / 1000 : moment);
}
