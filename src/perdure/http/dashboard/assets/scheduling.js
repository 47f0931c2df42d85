// What can be done about schedules: make, change, pause, resume, trigger and end them.
//
// Rules kept here: a change sends what was changed and nothing else; times are typed as the clock in the zone of the
// schedule shows them, wherever whoever types is.

import { Problem, get, part, patch, post, remove } from "./api.js";
import { ask, say, whole } from "./asking.js";
import { button, place, wall } from "./dom.js";
import { parse } from "./exact.js";
import { target, workflows } from "./starting.js";

const OVERLAPS = ["skip", "queue", "cancel_old", "all"];
const CATCH_UPS = ["last", "all", "none"];
/** How often, and after how many milliseconds, it is looked whether a worker has seen what was wished. */
const LOOKS = 20;
const LOOK = 200;

/** Where a schedule is shown. */
export const placed = (name) => `#/schedules/${encodeURIComponent(name)}`;

const at = (name, verb) => `v1/schedules/${part(name)}${verb ? `/${verb}` : ""}`;

export function verbs(visit, one, again) {
  if (!visit.may("control")) return [];
  return [
    button("Trigger", () => trigger(one, again)),
    one.paused ? button("Resume", () => resume(one, again)) : button("Pause", () => pause(one, again)),
    button("Change", () => change(one, again)),
    button("End", () => end(one), { class: "danger" }),
  ];
}

/** Wait for a worker, but not for long: gives what `look` finds, or null. If nobody answers, what was wished is durable
 *  all the same, and to wish it again would be a second wish. */
async function seen(look) {
  try {
    for (let n = 0; n < LOOKS; n++) {
      const found = await look();
      if (found) return found;
      await new Promise((resolve) => setTimeout(resolve, LOOK));
    }
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
  }
  return null;
}

export const settled = (path) => seen(async () => (await get(path)).pending === 0);

/** The fields of a schedule, as they are now or as they are unless somebody chooses otherwise. */
function fields({ names, typed }, one) {
  const value = one && typed(one.workflow, one.args);
  const zone = one ? one.timezone : "UTC";
  const [workflow, input] = target(names, one && { workflow: one.workflow, value });
  return [
    workflow,
    {
      name: "version",
      label: "Version",
      kind: "number",
      step: 1,
      required: Boolean(one?.version),
      value: one?.version,
      hint: "the newest, if nothing is said",
    },
    input,
    { name: "cron", label: "Cron line", value: one?.cron, hint: "as 0 7 * * mon-fri; one of this and the next two" },
    { name: "every", label: "Every", value: one?.every, hint: "as 5m, or 1d" },
    { name: "at", label: "At", kind: "area", rows: 2, value: listed(one), hint: "as 2030-01-01T07:00, one in a line" },
    { name: "timezone", label: "Time zone", required: true, value: zone, hint: "as Europe/Berlin", list: "zones", options: zones() },
    {
      name: "start",
      label: "From",
      kind: "wall",
      required: Boolean(one),
      value: one && wall(one.start, zone),
      hint: "on the clock of the time zone",
    },
    { name: "end", label: "Until", kind: "wall", value: one?.end && wall(one.end, zone), hint: "for ever, if nothing is said" },
    {
      name: "overlap",
      label: "While the one before still runs",
      kind: "choice",
      options: OVERLAPS,
      value: one?.overlap,
      hint: "skip: it is left out; queue: it starts after that; cancel_old: that is cancelled first; all: it starts at once",
    },
    {
      name: "catch_up",
      label: "Times that passed without a worker",
      kind: "choice",
      options: CATCH_UPS,
      value: one?.catch_up,
      hint: "last: one start for the latest; all: one for each; none: nothing",
    },
    { name: "jitter", label: "Jitter", value: one?.jitter, hint: "as 10m: each starts at some moment within that time" },
    { name: "note", label: "Note", value: one?.note },
  ];
}

const zones = () => ["UTC", ...Intl.supportedValuesOf("timeZone")];
const listed = (one) => one && one.at.map((time) => time.slice(0, 19)).join("\n");
const lines = (text) => text.split("\n").map((line) => whole(line.trim())).filter(Boolean);

/** Exactly one of those that say when. */
function checked(values) {
  if ([values.cron, values.every, values.at].filter(Boolean).length !== 1) {
    throw new Error("a schedule has one of Cron line, Every and At");
  }
}

/** Make a schedule, and go there. */
export async function make() {
  const known = await workflows();
  const all = [
    { name: "name", label: "Name", required: true },
    ...fields(known),
    { name: "paused", label: "Paused from the outset", kind: "check" },
  ];
  ask({ title: "Make a schedule", fields: all, verb: "Make" }, async (values) => {
    checked(values);
    const { value, at: typed, ...rest } = values;
    const times = typed ? { at: lines(typed) } : {};
    const made = await post("v1/schedules", { ...rest, ...known.given(values.workflow, value), ...times });
    location.hash = placed(made.name);
    say(`${made.name} is a schedule now`);
  });
}

/** What stands for nothing, where something can be taken away. */
const NOTHING = { end: null, jitter: "0s", note: "" };

async function change(one, again) {
  const known = await workflows();
  const all = fields(known, one);
  const text = "Other times count from now on; what was started stays.";
  ask({ title: `Change ${one.name}`, text, fields: all, verb: "Change" }, async (values) => {
    checked(values);
    const body = {};
    for (const { name, kind, value } of all) {
      const before = kind === "json" ? JSON.stringify(parse(value)) : value || undefined;
      const now = kind === "json" ? JSON.stringify(values[name]) : values[name];
      if (now !== before) body[name] = values[name] ?? NOTHING[name];
    }
    if (Object.keys(body).length === 0) throw new Error("nothing was changed");
    if ("value" in body) {
      const { input, args } = known.given(values.workflow, body.value);
      body.args = args ?? [input];
      delete body.value;
    }
    if (body.at) body.at = lines(body.at);
    await patch(at(one.name), body);
    await again();
    say(`${one.name} was changed`);
  });
}

function pause(one, again) {
  const text = "Nothing starts until it is resumed; what passes meanwhile is not caught up with.";
  ask({ title: `Pause ${one.name}`, text, verb: "Pause" }, async () => {
    await post(at(one.name, "pause"));
    await again();
  });
}

function resume(one, again) {
  ask({ title: `Resume ${one.name}`, text: "It goes on with the next time.", verb: "Resume" }, async () => {
    await post(at(one.name, "resume"));
    await again();
  });
}

/** Start one now, and go there if it has started. */
function trigger(one, again) {
  const none = `as the schedule says: ${one.overlap}`;
  const overlap = { name: "overlap", label: "While the one before still runs", kind: "choice", options: OVERLAPS, none };
  const text = "One starts now, also if the schedule is paused.";
  ask({ title: `Trigger ${one.name}`, text, fields: [overlap], verb: "Trigger" }, async (values, id) => {
    const { execution } = await post(at(one.name, "trigger"), { ...values, id });
    const fire = await seen(async () => (await get(at(one.name))).recent.find(({ id }) => id === execution));
    if (fire?.fate === "started") {
      location.hash = place(execution);
      return say(`${execution} has started`);
    }
    await again();
    say(fire ? `${fire.fate}: ${fire.reason}` : `${execution} starts when a worker has seen it`);
  });
}

function end(one) {
  const text = "It starts nothing any more. Its log stays, and what it has started goes on.";
  ask({ title: `End ${one.name}`, text, verb: "End it", danger: true }, async () => {
    await remove(at(one.name));
    await seen(async () => !(await get("v1/schedules")).schedules.some(({ name }) => name === one.name));
    location.hash = "#/schedules";
    say(`${one.name} has ended`);
  });
}
