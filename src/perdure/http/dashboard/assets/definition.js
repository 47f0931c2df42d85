// One definition: its versions, each as a picture and as text, who did what to it, and what can be done about it.
//
// Rule kept here: the address says which version is shown; without one it is that which starts take.

import { Problem, get, part, post, remove } from "./api.js";
import { ask, say } from "./asking.js";
import { at, editing } from "./definitions.js";
import { drawing } from "./drawing.js";
import { badge, button, card, dim, facts, h, link, table, text, trouble, when } from "./dom.js";
import { start } from "./starting.js";
import { yaml } from "./yaml.js";

/** What is read first, wherever the store has put it: it keeps all keys in the order of the alphabet. */
const FIRST = ["machine", "graph", "document", "specVersion", "id", "description"];

/** The content of a definition as a text that can be edited and published again. */
export function text_of(body) {
  const first = FIRST.filter((key) => key in body).map((key) => [key, body[key]]);
  return yaml({ ...Object.fromEntries(first), ...body });
}

export async function definition(visit) {
  const { name } = visit.params;
  const path = `v1/definitions/${part(name)}`;
  const draft = visit.query.has("draft");
  const version = visit.query.get("version") || undefined;
  const asked = draft ? { draft: true } : { version };
  const [one, list] = await Promise.all([get(path, asked, visit.signal), get("v1/definitions", {}, visit.signal)]);
  const known = list.definitions.find((listed) => listed.name === name);
  if (!known) throw new Problem(404, { detail: `there is no definition ${name}` }); // given up meanwhile

  const tabs = [
    ["picture", "Picture", (element) => drawn(visit, element, path, asked)],
    ["content", "Content", (element) => element.replaceChildren(text(text_of(one.body)))],
    ["history", "History", (element) => history(visit, element, path)],
  ];
  const [chosen, , fill] = tabs.find(([key]) => key === visit.query.get("tab")) || tabs[0];
  const tab = h("div");
  const go = (key) => visit.ask({ ...asked, tab: key === "picture" ? undefined : key });
  const bar = h("div", { class: "tabs", role: "tablist" }, tabs.map(([key, text]) =>
    button(text, () => go(key), { role: "tab", "aria-selected": String(key === chosen) }),
  ));
  const again = (to) => (location.hash === to ? dispatchEvent(new HashChangeEvent("hashchange")) : (location.hash = to));
  visit.show(
    h("header", {}, h("h1", {}, name), dim(draft ? "draft" : `version ${one.version}`),
      one.deprecated !== null && badge("deprecated"), h("div", { class: "grow" }), ...verbs(visit, one, known, draft, again)),
    h("div", { class: "beside" },
      h("div", {}, one.deprecated !== null && card(null, why(one.deprecated)), h("section", { class: "card" }, bar, tab)),
      h("aside", {}, card("About", about(one, known, draft)), card("Versions", versions(known, one, draft)), used(one, draft))),
  );
  await fill(tab);
}

function why(reason) {
  return h("p", { class: "notice deprecated" }, "No start takes this version, unless it asks for it by its number.", reason && dim(` · ${reason}`));
}

function about(one, known, draft) {
  return facts([
    ["Kind", one.kind],
    ["Starts take", known.newest === null ? dim("nothing") : `version ${known.newest}`],
    [draft ? "Saved" : "Published", when(one.published_at)],
    ["By", one.by],
    ["Hash", h("span", { class: "mono", title: one.hash }, one.hash.slice(0, 12))],
    ["Executions", link(`#/executions?workflow=${encodeURIComponent(one.name)}`, "show them")],
  ]);
}

function versions(known, one, draft) {
  const rows = [...known.versions].reverse().map((version) => {
    const here = !draft && version.version === one.version;
    const called = `version ${version.version}`;
    return [
      here ? h("strong", { class: "tight" }, called) : link(at(known.name, { version: version.version }), called, { class: "tight" }),
      version.deprecated !== null && badge("deprecated"),
      when(version.published_at),
      version.by,
    ];
  });
  if (known.draft) rows.unshift([draft ? h("strong", {}, "draft") : link(at(known.name, { draft: true }), "draft"), "", "", ""]);
  return table(["Version", "", "Published", "By"], rows);
}

/** What it knows of its actions since it was published. */
function used(one, draft) {
  const rows = Object.values(one.bounds).map((action) => [
    h("span", { class: "mono" }, action.name),
    action.queue || "",
    action.undo ? h("span", { class: "mono" }, action.undo.name) : "",
  ]);
  return !draft && card("Actions", table(["Action", "Queue", "Undo"], rows, { empty: "it calls none" }));
}

async function drawn(visit, element, path, asked) {
  const { image, draw } = drawing("the definition, drawn", visit.signal);
  try {
    await draw(`${path}/diagram`, { query: asked });
    element.replaceChildren(image);
  } catch (error) {
    if (error.status !== 422) throw error; // a draft need not be finished
    element.replaceChildren(trouble(error));
  }
}

async function history(visit, element, path) {
  const { changes } = await get(`${path}/history`, {}, visit.signal);
  const rows = changes.reverse().map((one) => [
    when(one.at), one.what, one.version || "", one.by, one.note, h("span", { class: "mono dim" }, one.hash.slice(0, 12)),
  ]);
  element.replaceChildren(table(["When", "What", "Version", "By", "Note", "Hash"], rows));
}

// What can be done about it.

function verbs(visit, one, known, draft, again) {
  const path = `v1/definitions/${part(one.name)}`;
  const defines = visit.may("define");
  const version = one.version === known.newest ? undefined : one.version;
  return [
    defines && draft && button("Discard draft", () => discard(one.name, path, known, again), { class: "danger" }),
    defines && draft && button("Publish draft", () => publishDraft(one.name, path, again), { class: "primary" }),
    defines && !draft && one.deprecated === null && button("Deprecate", () => deprecate(one, path, again)),
    defines && !draft && one.deprecated !== null && button("Restore", () => restore(one, path, again)),
    defines && (draft || !known.draft) && link(editing(one.name) + (version && !draft ? `?version=${version}` : ""), "Edit", { class: "button" }),
    defines && !draft && known.draft && link(editing(one.name), "Edit draft", { class: "button" }),
    visit.may("start") && !draft && button("Start", () => start({ workflow: one.name, version }), { class: "primary" }),
  ];
}

function deprecate(one, path, again) {
  const fields = [{ name: "reason", label: "Reason", hint: "for whoever wants to start it" }];
  const text = "Nothing begins with it any more, unless it is asked for by its number. What runs goes on.";
  ask({ title: `Deprecate version ${one.version} of ${one.name}`, text, fields, verb: "Deprecate" }, async ({ reason }) => {
    await post(`${path}/deprecate`, { version: one.version, reason });
    again(at(one.name, { version: one.version }));
  });
}

function restore(one, path, again) {
  const title = `Restore version ${one.version} of ${one.name}`;
  ask({ title, text: "Starts may take it again.", verb: "Restore" }, async () => {
    await post(`${path}/restore`, { version: one.version });
    again(at(one.name, { version: one.version }));
  });
}

function publishDraft(name, path, again) {
  const fields = [{ name: "note", label: "Note", hint: "kept in the history" }];
  ask({ title: `Publish the draft of ${name}`, fields, verb: "Publish" }, async (values) => {
    const made = await post(`${path}/draft/publish`, values);
    say(`${name} is version ${made.version}`);
    again(at(name, { version: made.version }));
  });
}

/** Give the draft up; `then` gets the address of what is left. */
export function discard(name, path, known, then) {
  const text = "The history keeps it.";
  ask({ title: `Discard the draft of ${name}`, text, verb: "Discard", danger: true }, async () => {
    await remove(`${path}/draft`);
    then(known.versions.length > 0 ? at(name) : "#/definitions");
  });
}
