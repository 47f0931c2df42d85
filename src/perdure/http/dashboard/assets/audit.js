// The audit: who did what, the newest first, and what is shown of it as a file.

import { asked, filters } from "./asking.js";
import { csv, download } from "./csv.js";
import { button, dim, execution, h, link, stamp, table } from "./dom.js";
import { paged } from "./paging.js";

const FILTERS = [
  { name: "actor", label: "Actor" },
  { name: "act", label: "Act" },
  { name: "target", label: "Target" },
  { name: "after", label: "After", kind: "time" },
  { name: "before", label: "Before", kind: "time" },
];
const COLUMNS = ["at", "actor", "roles", "act", "target", "reason", "credential", "node", "request", "id"];

export async function audit(visit) {
  const filter = asked(visit, FILTERS);
  const results = h("section", { class: "card" });
  let shown = [];
  const save = button("Export as CSV", () => download("audit.csv", csv(COLUMNS, shown.map(cells))), { title: "what is shown here" });
  visit.show(
    h("header", {}, h("h1", {}, "Audit"), h("div", { class: "grow" }), save),
    filters(visit, FILTERS, filter),
    results,
  );
  await paged(visit, results, "v1/audit", filter, "acts", (found) => {
    shown = found;
    save.disabled = found.length === 0;
    const rows = found.map((one) => row(one, filter));
    return table(["Time (UTC)", "Actor", "Act", "Target", "Reason", "By what right"], rows, { empty: "no act fits" });
  })();
}

const cells = (one) => COLUMNS.map((name) => (name === "roles" ? one.roles.join(", ") : one[name]));

function row(one, filter) {
  return [
    stamp(one.at),
    h("span", {}, narrowed(filter, "actor", one.actor), one.roles.length > 0 && dim(` ${one.roles.join(", ")}`)),
    narrowed(filter, "act", one.act),
    one.act.startsWith("executions.") ? execution(one.target) : h("span", { class: "mono" }, one.target),
    one.reason,
    h("span", { title: `request ${one.request || "unknown"}, at ${one.node}` }, one.credential),
  ];
}

/** Leads to those that have this in common with it, besides what is asked for already. */
function narrowed(filter, name, value) {
  const known = Object.entries({ ...filter, [name]: value }).filter(([, one]) => one);
  return link(`#/audit?${new URLSearchParams(known)}`, value);
}
