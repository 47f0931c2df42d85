// The whole at a glance: how many there are, what needs a person, how long things take, and how the server is.
//
// Rules kept here: the counts are read from many rows, so they are asked for every ten seconds and not more often; each
// number leads to what it counts; who may only glance sees what can be seen without the data.

import { Problem, get } from "./api.js";
import { badge, button, card, dim, execution, facts, h, link, renew, shares, span, table, trouble, when } from "./dom.js";
import { STATUSES } from "./executions.js";

const REFRESH = 10;
/** The name in the address, what it says, and how many seconds it goes back. */
const RANGES = [
  ["hour", "Last hour", 3600],
  ["day", "Last day", 86400],
  ["week", "Last week", 7 * 86400],
  ["all", "All", null],
];
const USUAL = "day";
/** How many of those that need a person are named. */
const NAMED = 5;

export async function overview(visit) {
  const wanted = visit.query.get("range") || USUAL;
  const [range, , seconds] = RANGES.find(([name]) => name === wanted) || RANGES.find(([name]) => name === USUAL);
  const bar = h("div", { class: "bar", role: "group", "aria-label": "started in" }, RANGES.map(([name, text]) =>
    button(text, () => visit.ask({ range: name }), { "aria-pressed": String(name === range) })));
  const body = h("div");
  visit.show(h("header", {}, h("h1", {}, "Overview"), h("div", { class: "grow" }), bar), body);

  const load = async () => {
    const after = seconds === null ? undefined : new Date(Date.now() - seconds * 1000).toISOString();
    const health = await healthy(visit);
    try {
      const found = await asked(visit, after);
      renew(body, [health, found], () => drawn(visit, after, shown(health), found));
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      renew(body, [health, error.message], () => [trouble(error), card("Server", facts([["Health", shown(health)]]))]);
    }
  };
  await load();
  visit.every(REFRESH, load);
}

/** All that is shown; what takes the scope read is left out for those who do not have it. */
async function asked(visit, after) {
  const ask = (path, query = {}) => get(path, query, visit.signal);
  const reads = visit.may("read");
  const [stats, workers, dead, failed, tasks, quota] = await Promise.all([
    ask("v1/stats", { after }),
    ask("v1/workers"),
    ask("v1/dead", { limit: NAMED }),
    ask("v1/executions", { status: "failed", after, limit: NAMED }),
    reads ? ask("v1/tasks", { mine: true, limit: NAMED }) : null,
    reads ? ask("v1/quota") : null,
  ]);
  return { stats, workers, dead, failed, tasks, quota };
}

async function healthy(visit) {
  try {
    return { status: (await get("health/ready", {}, visit.signal)).status };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return { wrong: error.message };
  }
}

const shown = ({ status, wrong }) => (wrong ? h("span", { class: "badge failed" }, wrong) : badge(status));

function drawn(visit, after, health, { stats, workers, dead, failed, tasks, quota }) {
  const partly = !stats.complete && h("p", { class: "notice paused" },
    `These are the newest ${stats.total.toLocaleString("en")}; older ones are not counted. A shorter time may be complete.`);
  return [
    tiles(stats, after),
    partly,
    h("div", { class: "beside" },
      h("div", {}, needs(dead, failed, tasks), card("Workflows", workflows(stats.workflows, after))),
      h("aside", {}, card("Server", server(visit, health, quota)), card("Workers at work", holding(workers.workers)))),
  ].filter(Boolean);
}

/** The list of executions, narrowed. */
function listed(query) {
  const known = Object.entries(query).filter(([, value]) => value);
  return known.length > 0 ? `#/executions?${new URLSearchParams(known)}` : "#/executions";
}

function tiles(stats, after) {
  const one = (text, count, status) =>
    h("a", { class: `tile ${status || "total"} ${count === 0 ? "none" : ""}`, href: listed({ status, after }) },
      h("strong", {}, count.toLocaleString("en")), h("span", {}, text));
  return h("div", { class: "tiles" },
    one("executions", stats.total),
    STATUSES.map((status) => one(status, stats.by_status[status] || 0, status)));
}

function needs(dead, failed, tasks) {
  const parts = [
    some("Stuck", dead.dead, dead.next, "#/dead", (one) => [execution(one.id), one.workflow, dim(one.reason), when(one.since)]),
    some("Failed lately", failed.executions, failed.next, listed({ status: "failed" }), (one) =>
      [execution(one.id), one.workflow, dim(said(one.result)), when(one.changed_at)]),
    tasks && some("Tasks for me", tasks.tasks, tasks.next, "#/inbox", (one) =>
      [link(`#/inbox/${encodeURIComponent(one.id)}`, one.title || one.name), one.execution, "", when(one.created_at)]),
  ].filter(Boolean);
  return card("Needs a person", parts.length > 0 ? parts : h("p", { class: "empty" }, "nothing does"));
}

/** Nothing, if there are none. */
function some(title, found, more, all, cells) {
  if (found.length === 0) return null;
  return h("div", { class: "needs" }, h("h3", {}, title, more && [" ", link(all, "all")]), table([], found.map(cells)));
}

function said(error) {
  if (typeof error !== "object" || error === null) return error ?? "";
  return [error.type, error.message].filter(Boolean).join(": ");
}

function workflows(found, after) {
  const time = (one, name) => (one.durations ? span(one.durations[name]) : "");
  const rows = [...found].sort((a, b) => b.total - a.total).map((one) => [
    link(listed({ workflow: one.workflow, after }), one.workflow),
    one.total.toLocaleString("en"),
    shares(STATUSES.map((status) => [status, one.by_status[status] || 0]), one.total),
    time(one, "p50"),
    time(one, "p95"),
    time(one, "longest"),
  ]);
  const empty = "nothing was started in this time";
  return table(["Workflow", "Total", "Statuses", "p50", "p95", "Longest"], rows, { empty, props: { class: "flows" } });
}

function server(visit, health, quota) {
  return facts([
    ["Health", health],
    ["Tenant", visit.caller.tenant],
    ["Running", quota && `${quota.running.now.toLocaleString("en")} of ${quota.running.most?.toLocaleString("en") ?? "any number"}`],
    ["Suspended", quota?.suspended && h("span", { class: "badge paused" }, "all of it waits")],
  ]);
}

function holding(workers) {
  const rows = workers.map((one) => [
    h("div", {}, h("div", { class: "mono" }, one.name), dim(one.workflows.join(", "))),
    one.holds,
  ]);
  return table(["Worker", "Holds"], rows, { empty: "none holds an execution now; one without work is not seen" });
}
