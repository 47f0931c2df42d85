// Executions: found by what the address asks for, started, and many of them changed at once.

import { asked, filters } from "./asking.js";
import { change } from "./bulk.js";
import { badge, button, dim, execution, h, table, when } from "./dom.js";
import { paged } from "./paging.js";
import { start } from "./starting.js";

/** What can have become of one that goes no further. */
export const ENDED = ["completed", "failed", "cancelled"];
export const STATUSES = ["running", "waiting", "paused", "stuck", ...ENDED];
export const FILTERS = [
  { name: "status", label: "Status", kind: "choice", options: STATUSES, none: "any status" },
  { name: "workflow", label: "Workflow" },
  { name: "correlation", label: "Correlation id" },
  { name: "tag", label: "Tag" },
  { name: "after", label: "Started after", kind: "time" },
  { name: "before", label: "Started before", kind: "time" },
];
/** Who finds by these knows what is in them, so it takes the scope read. */
const DATA = ["correlation", "tag"];
const REFRESH = 5;

export async function executions(visit) {
  const filter = asked(visit, FILTERS);
  const results = h("section", { class: "card" });
  const load = paged(visit, results, "v1/executions", filter, "executions", (found) => list(found));
  visit.show(
    h("header", {}, h("h1", {}, "Executions"), h("div", { class: "grow" }), ...verbs(visit, filter, load)),
    filters(visit, FILTERS.filter(({ name }) => visit.may("read") || !DATA.includes(name)), filter),
    results,
  );
  await load();
  visit.every(REFRESH, load);
}

/** Executions as rows; the same wherever some are listed. */
export function list(found, empty = "no execution fits") {
  const rows = found.map((one) => [
    execution(one.id),
    badge(one.status),
    h("span", {}, one.definition, one.tags && dim(` ${one.tags.join(", ")}`)),
    when(one.started_at),
    when(one.changed_at),
    summary(one),
  ]);
  return table(["Id", "Status", "Workflow", "Started", "Changed", ""], rows, { empty });
}

function summary(one) {
  const shown = one.result ?? one.state;
  if (shown === undefined || shown === null) return "";
  const text = JSON.stringify(shown);
  return dim(text.length > 80 ? `${text.slice(0, 80)}…` : text);
}

function verbs(visit, filter, load) {
  const narrowed = Object.values(filter).some(Boolean);
  return [
    visit.may("control") && narrowed && button("Change all that fit", () => change(filter, () => visit.attempt(load))),
    visit.may("start") && button("Start", () => start(), { class: "primary" }),
  ];
}

