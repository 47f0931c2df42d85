// A definition being written: its text, beside it the picture, which follows what is typed, and all that is wrong.
//
// Rules kept here: what is typed stays until it is saved, published or given up knowingly; the picture shows the last
// text that could be drawn, and says so if that is not the present one.

import { Problem, get, part, post } from "./api.js";
import { ask, say } from "./asking.js";
import { discard, text_of } from "./definition.js";
import { at, editing } from "./definitions.js";
import { drawing } from "./drawing.js";
import { badge, button, card, dim, h, link, problem, trouble } from "./dom.js";
import { editor, go } from "./editor.js";
import { TEMPLATES } from "./templates.js";

/** Milliseconds without another key before it is drawn. */
const PAUSE = 300;

export async function designer(visit) {
  if (!visit.may("define")) throw new Problem(403, { detail: "to write definitions takes the scope define" });
  const { name } = visit.params;
  const known = name && (await listed(visit, name));
  const begun = await beginning(visit, name, known);
  const area = editor(begun, "Definition, in YAML or JSON");
  const told = h("div", { "aria-live": "polite" });
  const mark = h("span");
  const { image, draw } = drawing("what is written, drawn", visit.signal);
  let saved = begun; // what a template offers need not be saved
  const shown = () => mark.replaceChildren(...(area.value === saved ? [] : [h("span", { class: "badge unsaved" }, "not saved")]));
  visit.keeps(() => area.value !== saved);

  const work = {
    definition: () => area.value,
    done: (to, text = area.value) => {
      saved = text;
      location.hash = to;
    },
    kept: (text) => {
      saved = text; // more may have been typed since it was sent
      shown();
    },
  };
  visit.show(
    h("header", {}, h("h1", {}, name || "New definition"), known && known.draft && badge("draft"), mark, h("div", { class: "grow" }), ...verbs(known, work)),
    !name && templates(visit),
    h("div", { class: "designer" }, h("section", { class: "card" }, area), h("section", { class: "card" }, told, image)),
  );
  const check = follow(visit, area, told, image, draw);
  area.addEventListener("input", () => { shown(); check(); });
  await check.now();
}

async function listed(visit, name) {
  const { definitions } = await get("v1/definitions", {}, visit.signal);
  const found = definitions.find((one) => one.name === name);
  if (!found) throw new Problem(404, { detail: `there is no definition ${name}` });
  return found;
}

/** The draft if there is one, unless a version is asked for. */
async function beginning(visit, name, known) {
  if (!name) return TEMPLATES[visit.query.get("template")] || TEMPLATES.machine;
  const version = visit.query.get("version") || undefined;
  const asked = known.draft && !version ? { draft: true } : { version };
  const { body } = await get(`v1/definitions/${part(name)}`, asked, visit.signal);
  if (hasHuge(body)) throw new Problem(409, { detail: `${name} has a number that browsers cannot keep exactly: edit it elsewhere` });
  return text_of(body);
}

function hasHuge(value) {
  if (value !== null && typeof value === "object") return Object.values(value).some(hasHuge);
  return Number.isInteger(value) && !Number.isSafeInteger(value);
}

function templates(visit) {
  const chosen = visit.query.get("template") || "machine";
  const choices = Object.keys(TEMPLATES).map((one) =>
    button(one, () => visit.ask({ template: one }), { "aria-pressed": String(one === chosen) }));
  return h("div", { class: "bar choices" }, dim("Begin with a"), ...choices);
}

/** Draw and judge what is typed, once nobody has typed for a moment. */
function follow(visit, area, told, image, draw) {
  let timer = null;
  let turn = 0;
  const now = async () => {
    turn += 1;
    const mine = turn;
    const body = { definition: area.value };
    const [picture, judged] = await Promise.allSettled([draw("v1/definitions/diagram", { body }), post("v1/definitions/validate", body)]);
    if (mine !== turn || visit.signal.aborted) return;
    const drawn = picture.status === "fulfilled";
    image.classList.toggle("stale", !drawn);
    const refused = drawn || picture.reason.status === 422 ? null : picture.reason; // the mistakes are told below
    const old = !drawn && image.src && h("p", { class: "dim" }, "The picture is of an earlier text.");
    told.replaceChildren(...verdict(area, judged, refused), ...(old ? [old] : []));
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(now, PAUSE);
  };
  visit.signal.addEventListener("abort", () => clearTimeout(timer));
  return Object.assign(soon, { now });
}

function verdict(area, judged, refused) {
  if (judged.status === "rejected") return [trouble(judged.reason)];
  const { problems } = judged.value;
  const good = !problems.some((one) => one.level !== "warning");
  return [
    refused && trouble(refused),
    good && !refused && h("p", { class: "notice completed" }, "It can be published."),
    problems.length > 0 && h("ul", { class: "problems", "aria-label": "Problems" }, problems.map((one) => mistake(area, one))),
  ].filter(Boolean);
}

function mistake(area, one) {
  const place = one.message.match(/^[^:]*:(\d+):(\d+): (.*)$/s); // where it is no YAML and no JSON there is a line
  if (!place) return h("li", { class: one.level || "error" }, problem(one));
  const [, line, column, message] = place;
  const there = button(`line ${line}`, () => go(area, Number(line), Number(column)), { class: "small" });
  return h("li", { class: "error" }, there, " ", message);
}

// What can be done with it.

function verbs(known, work) {
  const name = known && known.name;
  return [
    name && link(at(name, { draft: (known.draft && known.versions.length === 0) || undefined }), "Show", { class: "button" }),
    name && known.draft && button("Discard draft", () => discard(name, `v1/definitions/${part(name)}`, known, (to) => work.done(to)), { class: "danger" }),
    button("Save draft", () => keep(name, work)),
    button("Publish", () => publish(work), { class: "primary" }),
  ];
}

async function keep(name, work) {
  try {
    const text = work.definition();
    const kept = await post("v1/definitions/drafts", { definition: text });
    say(`the draft of ${kept.name} is saved`);
    if (kept.name === name) work.kept(text);
    else work.done(editing(kept.name), text);
  } catch (error) {
    ask({ title: "The draft is not saved", text: trouble(error), verb: "Try again" }, () => keep(name, work));
  }
}

function publish(work) {
  const fields = [
    { name: "note", label: "Note", hint: "kept in the history" },
    { name: "new", label: "Make it the newest version, also if an older one has this content", kind: "check" },
  ];
  ask({ title: "Publish", fields, verb: "Publish" }, async (values) => {
    const made = await post("v1/definitions", { ...values, definition: work.definition() });
    say(`${made.name} is version ${made.version}`);
    work.done(at(made.name, { version: made.version }));
  });
}
