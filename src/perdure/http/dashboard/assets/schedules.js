// Schedules: executions that start by the clock. All of them, and one with its next times and its latest starts.
//
// Rule kept here: what is wished of a schedule is durable at once and done when a worker has seen it, so a view waits a
// moment for that, and says what is not done yet.

import { get, part } from "./api.js";
import { badge, button, card, dim, execution, facts, h, json, link, renew, stamp, table, when } from "./dom.js";
import { make, placed, settled, verbs } from "./scheduling.js";

const REFRESH = 5;
const FORESEEN = 10;

export async function schedules(visit) {
  const ended = visit.query.get("ended") === "true";
  const results = h("section", { class: "card" });
  const both = h("input", { type: "checkbox", checked: ended, onchange: () => visit.ask({ ended: both.checked ? "true" : "" }) });
  visit.show(
    h("header", {}, h("h1", {}, "Schedules"), h("div", { class: "grow" }),
      h("label", { class: "bar" }, both, "Also those that have ended"),
      visit.may("control") && button("Make one", () => make(), { class: "primary" })),
    results,
  );
  const load = async () => {
    const found = await get("v1/schedules", { ended: ended || undefined }, visit.signal);
    renew(results, found, () => table(
      ["Name", "Status", "Workflow", "When", "Time zone", "Next", "Overlap", "Started"],
      found.schedules.map((one) => row(visit, one)),
      { empty: "nothing starts by the clock" },
    ));
  };
  await load();
  visit.every(REFRESH, load);
}

function row(visit, one) {
  const known = visit.may("read") && !one.ended; // what has ended is no longer told of one by one
  return [
    known ? link(placed(one.name), one.name, { class: "id" }) : h("span", { class: "id" }, one.name),
    badge(status(one)),
    one.workflow,
    times(one),
    one.timezone,
    one.paused ? "" : next(one),
    one.overlap,
    counts(one),
  ];
}

const status = (one) => (one.ended ? "ended" : one.paused ? "paused" : "active");

function times(one) {
  if (one.cron) return h("code", {}, one.cron);
  if (one.every) return `every ${one.every}`;
  const [first, ...rest] = one.at;
  return h("span", {}, first && moment(first), rest.length > 0 && dim(` and ${rest.length} more`));
}

const next = (one) => one.next && h("span", {}, moment(one.next), " ", dim(when(one.next)));

/** As the schedule's own clock shows it: the API gives these times in its zone. */
function moment(text) {
  return h("time", { datetime: text, title: text }, text.slice(0, 19).replace("T", " "));
}

/** What its clocks differ from UTC by then: it changes in spring and autumn. */
const offset = (text) => text.match(/[+-]\d\d:\d\d$/)?.[0] || "";

function counts(one) {
  const others = ["skipped", "failed"].filter((name) => one[name] > 0).map((name) => `, ${one[name]} ${name}`);
  return h("span", {}, one.started, dim(others.join("")));
}

export async function schedule(visit) {
  const path = `v1/schedules/${part(visit.params.name)}`;
  const head = h("header");
  const body = h("div");
  const load = async () => {
    const [one, foreseen] = await Promise.all([
      get(path, {}, visit.signal),
      get(`${path}/next`, { count: FORESEEN }, visit.signal),
    ]);
    renew(head, one, () => [h("h1", {}, one.name), badge(status(one)), h("div", { class: "grow" }), ...verbs(visit, one, again)]);
    renew(body, [one, foreseen], () => parts(one, foreseen.times));
  };
  const again = async () => {
    await settled(path);
    await visit.attempt(load);
  };
  await load();
  visit.show(head, body);
  visit.every(REFRESH, load);
}

function parts(one, foreseen) {
  const pending = one.pending > 0 && h("p", { class: "notice waiting" }, `${one.pending} asked of it that no worker has seen yet`);
  const zone = `Time in ${one.timezone}`;
  const recent = [...one.recent].reverse().map((fire) => [
    fire.fate === "started" ? execution(fire.id) : h("span", { class: "id" }, fire.id),
    badge(fire.fate),
    h("span", {}, stamp(fire.at), " ", dim(when(fire.at))),
    fire.reason,
  ]);
  const upcoming = foreseen.map((time) => [h("span", {}, moment(time), " ", dim(offset(time))), when(time)]);
  return [
    pending && card(null, pending),
    h("div", { class: "beside" },
      h("div", {},
        card("Latest starts", table(["Execution", "", "Time (UTC)", ""], recent, { empty: "it has started nothing yet" })),
        card(one.paused ? "Next times, if it were not paused" : "Next times",
          table([zone, ""], upcoming, { empty: "there is no time left" }))),
      h("aside", {}, card("About", facts(settings(one))), card("Arguments", json(one.args)))),
  ].filter(Boolean);
}

function settings(one) {
  return [
    ["Workflow", link(`#/executions?workflow=${encodeURIComponent(one.workflow)}`, one.workflow)],
    ["Version", one.version ?? "the newest"],
    ["When", one.at.length > 0 ? one.at.map((time) => h("div", {}, moment(time))) : times(one)],
    ["Time zone", one.timezone],
    ["Next", !one.paused && next(one)],
    ["From", h("span", {}, stamp(one.start), dim(" UTC"))],
    ["Until", one.end && h("span", {}, stamp(one.end), dim(" UTC"))],
    ["Overlap", one.overlap],
    ["Catch up", one.catch_up],
    ["Jitter", one.jitter],
    ["Started", counts(one)],
    ["Note", one.note],
    ["Made", when(one.created_at)],
  ];
}
