// What workflows ask of people: those tasks that whoever looks can do, or all of them.

import { asked, filters } from "./asking.js";
import { badge, dim, execution, h, link, table, when } from "./dom.js";
import { paged } from "./paging.js";

const REFRESH = 5;
const ENDED = ["completed", "expired", "cancelled"];
/** What is expired or cancelled is nobody's. */
const STATUSES = { mine: ["open", "claimed", "completed"], all: ["open", "claimed", ...ENDED] };
const fields = (whose) => [
  { name: "whose", label: "Whose", kind: "choice", options: ["all"], none: "mine" },
  { name: "status", label: "Status", kind: "choice", options: STATUSES[whose], none: "any status" },
  { name: "name", label: "Name" },
];

export async function inbox(visit) {
  const whose = visit.query.get("whose") === "all" ? "all" : "mine";
  const filter = asked(visit, fields(whose));
  if (!STATUSES[whose].includes(filter.status)) filter.status = undefined;
  const results = h("section", { class: "card" });
  visit.show(h("header", {}, h("h1", {}, "Inbox")), filters(visit, fields(whose), filter), results);
  const query = { mine: whose === "mine", status: filter.status, name: filter.name };
  const empty = whose === "mine" ? "nothing waits for you" : "no task fits";
  const load = paged(visit, results, "v1/tasks", query, "tasks", (found) => list(found, empty), isLate);
  await load();
  visit.every(REFRESH, load);
}

function list(found, empty) {
  const rows = found.map((one) => [
    h("span", {}, link(`#/inbox/${encodeURIComponent(one.id)}`, one.title || one.name), one.title && dim(` ${one.name}`)),
    badge(one.status),
    h("span", { class: one.users.length + one.roles.length < 2 && "tight" }, people(one)),
    one.claimed_by || one.completed_by,
    due(one),
    one.priority || "",
    one.execution && execution(one.execution),
    when(one.created_at),
  ]);
  return table(["Task", "Status", "For", "Who has it", "Due", "Priority", "Execution", "Created"], rows, { empty });
}

/** Whether nothing can be done about it any more. */
export const ended = (one) => ENDED.includes(one.status);

/** Who may do it, in words. */
export function people({ users, roles }) {
  return [...users, ...roles.map((role) => `role ${role}`)].join(", ") || "anybody";
}

/** When it is due, marked once that is past and it is not done. */
export function due(one) {
  return one.due && h("span", { class: isLate(one) && "late" }, when(one.due));
}

const isLate = (one) => Boolean(one.due) && !ended(one) && new Date(one.due) < new Date();
