// What can be done about an execution. Each verb is offered where it has an effect, and to whoever may use it.

import { part, post } from "./api.js";
import { ask, say } from "./asking.js";
import { button, place } from "./dom.js";

const OPEN = ["running", "waiting", "paused", "stuck"];
const REASON = { name: "reason", label: "Reason", hint: "for whoever reads the log later" };

/** The verb, the scope that it takes, the statuses in which it has an effect, and how it is asked for. */
const VERBS = [
  ["Send event", "send", OPEN, send],
  ["Pause", "control", ["running", "waiting"], pause],
  ["Resume", "control", ["paused"], resume],
  ["Retry", "control", ["stuck", "failed", "cancelled"], retry],
  ["Cancel", "control", OPEN, cancel],
  ["Fork", "control", [...OPEN, "completed", "failed", "cancelled"], (one) => fork(one)],
  ["Migrate", "control", OPEN, migrate, isPublished],
];

/** Whether it runs a definition that was published, of which there may be other versions. */
export function isPublished(one) {
  return one.definition.startsWith("published:");
}

export function verbs(visit, one, again) {
  return VERBS.filter(
    ([, scope, statuses, , fits]) => visit.may(scope) && statuses.includes(one.status) && (!fits || fits(one)),
  ).map(([text, , , act]) => button(text, () => act(one, again), { class: text === "Cancel" && "danger" }));
}

const at = (one, verb) => `v1/executions/${part(one.id)}/${verb}`;
/** What a copy is called, in the way of the engine: people see what it is a copy of. */
const copy = (one, id) => `${one.id}~${id.slice(-8)}`;

function send(one, again) {
  const fields = [
    { name: "name", label: "Event", required: true, list: "events", options: one.awaits },
    { name: "payload", label: "Payload", kind: "json", hint: "JSON" },
    { name: "id", label: "Id", hint: "one is made if there is none" },
  ];
  ask({ title: `Send an event to ${one.id}`, fields, verb: "Send" }, async (values, id) => {
    await post(at(one, "events"), { ...values, id: values.id ?? id });
    say(`${values.name} was accepted`);
    await again();
  });
}

function pause(one, again) {
  const fields = [{ name: "until", label: "Until", kind: "time", hint: "it resumes by itself then; without, when it is told to" }, REASON];
  ask({ title: `Pause ${one.id}`, text: "No more actions start; those that run may finish.", fields, verb: "Pause" }, async (values) => {
    await post(at(one, "pause"), values);
    await again();
  });
}

function resume(one, again) {
  const fields = [{ name: "at", label: "At", kind: "time", hint: "now, if nothing is said" }, REASON];
  ask({ title: `Resume ${one.id}`, fields, verb: "Resume" }, async (values) => {
    await post(at(one, "resume"), values);
    await again();
  });
}

function cancel(one, again) {
  const fields = [{ name: "now", label: "At once: no clean-up, no undos", kind: "check" }, REASON];
  const text = "Clean-up and undos run first, then it is cancelled. That is final.";
  ask({ title: `Cancel ${one.id}`, text, fields, verb: "Cancel it", danger: true }, async (values) => {
    await post(at(one, "cancel"), values);
    await again();
  });
}

function retry(one, again) {
  const text = one.status === "stuck"
    ? "It goes on where it got stuck."
    : "A new execution goes on where this one ended; what succeeded is not done again.";
  ask({ title: `Retry ${one.id}`, text, fields: [REASON], verb: "Retry" }, async (values, id) => {
    const made = await post(at(one, "retry"), { ...values, id: copy(one, id) });
    if (made.id === one.id) return again();
    location.hash = place(made.id);
    say(`${made.id} goes on`);
  });
}

/** From a version of the log, if one is given, whose result or payload may be another then. */
export function fork(one, version, value) {
  const fields = [
    { name: "at", label: "At version", kind: "number", step: 1, value: version ?? one.version },
    { name: "edit", label: "Edits", kind: "json", value: value === undefined ? undefined : JSON.stringify({ [version]: value }, null, 2), hint: 'other results or payloads by version, as {"4": "paid"}' },
    { name: "id", label: "Id", hint: "of the new execution" },
  ];
  ask({ title: `Fork ${one.id}`, text: "A new execution begins with this part of the log.", fields, verb: "Fork" }, async (values, id) => {
    const made = await post(at(one, "fork"), { ...values, id: values.id ?? copy(one, id) });
    location.hash = place(made.id);
    say(`${made.id} has begun`);
  });
}

function migrate(one, again) {
  const fields = [{ name: "version", label: "Version of its definition", kind: "number", step: 1, required: true }];
  ask({ title: `Migrate ${one.id}`, text: `It runs ${one.definition} now.`, fields, verb: "Migrate" }, async (values) => {
    await post(at(one, "migrate"), values);
    await again();
  });
}
