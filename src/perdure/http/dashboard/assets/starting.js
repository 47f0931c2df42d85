// The dialog that starts an execution: what there is to start, what it takes, and an example of that.

import { get, part, post } from "./api.js";
import { ask, say, words } from "./asking.js";
import { dim, h, json, place } from "./dom.js";

/** Milliseconds without another key before it is looked up what the name stands for. */
const PAUSE = 250;

/** The names of what there is to start, and how the API takes input: code takes a list of arguments, the rest one value. */
export async function workflows() {
  const [published, code] = await Promise.all([
    get("v1/definitions").then(({ definitions }) => definitions.filter((one) => one.newest !== null), () => []),
    get("v1/workflows").then(({ workflows }) => workflows, () => []),
  ]);
  const has = (list, name) => list.some((one) => one.name === name);
  const names = [...new Set([...code, ...published].map((one) => one.name))].sort();
  const takes = (name) => (has(published, name) && !has(code, name) ? "input" : "args");
  const given = (name, value) => ({ [takes(name)]: value });
  const typed = (name, args) => (takes(name) === "input" ? args[0] : args); // what was typed for arguments that are kept
  return { names, given, typed };
}

/** What is asked of whoever starts something, or lets it be started. */
export const target = (names, { workflow, value = [] } = {}) => [
  { name: "workflow", label: "Workflow", required: true, value: workflow, list: "workflows", options: names },
  {
    name: "value",
    label: "Input",
    kind: "json",
    hint: "JSON: a list of arguments for code, one value for what was published",
    value: JSON.stringify(value, null, 2),
  },
];

/** Start an execution, and go there. `told` may name the workflow and its version. */
export async function start(told = {}) {
  const { names, given } = await workflows();
  const fields = [
    ...target(names, told),
    { name: "version", label: "Version", kind: "number", step: 1, value: told.version, hint: "the newest, if nothing is said" },
    { name: "id", label: "Id", hint: "one is made if there is none" },
    { name: "correlation", label: "Correlation id" },
    { name: "tags", label: "Tags", hint: "with commas between them" },
  ];
  const inputs = ask({ title: "Start an execution", fields, verb: "Start" }, async ({ workflow, value, tags, ...rest }, id) => {
    const body = { workflow, ...rest, ...given(workflow, value), tags: tags && words(tags), id: rest.id ?? id };
    const made = await post("v1/executions", body);
    location.hash = place(made.id);
    say(`${made.id} has started`);
  });
  const about = h("div", { class: "told" });
  inputs.get("workflow").closest("label").after(about);
  explain(inputs, about);
}

/** Tell what the chosen workflow takes; an example of it stands in the field until somebody types there. */
function explain(inputs, about) {
  const { workflow, version, value } = Object.fromEntries(inputs);
  let timer = null;
  let turn = 0;
  const first = value.value;
  let made = first;
  const look = async () => {
    turn += 1;
    const mine = turn;
    const name = workflow.value.trim();
    const told = name && (await get(`v1/workflows/${part(name)}`, { version: version.value }).catch(() => null));
    if (mine !== turn) return;
    about.replaceChildren(...(told ? described(told) : []));
    if (value.value !== made) return;
    const example = told && told.example && (told.example.input ?? told.example.args);
    made = value.value = (example ?? "") === "" ? first : JSON.stringify(example, null, 2);
  };
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(look, PAUSE);
  };
  workflow.addEventListener("input", soon);
  version.addEventListener("input", soon);
  look();
}

function described({ kind, version, queue, description, input }) {
  const facts = [kind, `version ${version}`, queue !== "default" && `queue ${queue}`].filter(Boolean).join(" · ");
  const schema = Object.keys(input).length > 0 && h("details", {}, h("summary", {}, "What it takes, as JSON Schema"), json(input));
  return [description && h("p", {}, description), h("p", {}, dim(facts)), schema].filter(Boolean);
}
