// Bulk operations: one thing done to all executions that fit, and how far those are that were asked for.
//
// Rules kept here: first it is counted how many fit, and only whoever has seen that can go on; what was found, done and
// could not be done is told in the same words in the dialog and in the list.

import { get, part, post } from "./api.js";
import { ask } from "./asking.js";
import { badge, button, dim, execution, facts, h, link, renew, shares, table, trouble, when } from "./dom.js";
import { ENDED, FILTERS } from "./executions.js";
import { wishes } from "./wishes.js";

const REFRESH = 5;
/** Milliseconds between two looks at an operation that somebody waits for. */
const LOOK = 300;
const SHOWN = 100;
/** No answer, or none for the moment. */
const PASSING = [0, 429, 503];

export async function bulk(visit) {
  const results = h("section", { class: "card" });
  const open = new Set(); // operations whose troubles are looked at; these stay open when the list comes anew
  visit.show(
    h("header", {}, h("h1", {}, "Bulk operations"), h("div", { class: "grow" }),
      visit.may("control") && button("Change many", () => change(null, () => visit.attempt(load)), { class: "primary" })),
    results,
  );
  const load = async () => {
    const { operations } = await get("v1/bulk", { limit: SHOWN }, visit.signal);
    renew(results, operations, () => table(
      ["Operation", "What", "Status", "How far", "By", "Started"],
      operations.map((one) => row(one, open)),
      { empty: "nothing was done to many executions at once yet" },
    ));
  };
  await load();
  visit.every(REFRESH, load);
}

function row(one, open) {
  const troubles = one.failed > 0 && failures(one);
  if (troubles) {
    troubles.open = open.has(one.id);
    troubles.addEventListener("toggle", () => (troubles.open ? open.add(one.id) : open.delete(one.id)));
  }
  return [
    execution(one.id),
    h("span", {}, one.act, one.dry_run && dim(" dry run"), one.reason && h("div", { class: "dim" }, one.reason)),
    badge(one.status),
    h("div", { class: "far" }, progress(one), troubles),
    one.by,
    when(one.started_at),
  ];
}

const some = (count) => `${count} ${count === 1 ? "execution" : "executions"}`;

/** How far it is: a bar, and the same in words. What is not found yet is not known, so it says what was found so far. */
function progress(one) {
  const found = `${some(one.found)} found${ENDED.includes(one.status) ? "" : " so far"}`;
  if (one.dry_run) return h("div", {}, found);
  const parts = [["done", one.done], ["skipped", one.skipped], ["failed", one.failed]];
  const rest = parts.slice(1).filter(([, count]) => count > 0).map(([name, count]) => `, ${count} ${name}`);
  return h("div", {}, shares(parts, one.found), h("div", {}, `${one.done} done of ${found}`, ...rest));
}

function failures(one) {
  const list = one.errors.map(({ id, reason }) => h("li", {}, execution(id), ` ${reason}`));
  const left = one.failed - one.errors.length;
  return h("details", {}, h("summary", {}, "What failed"), h("ul", {}, list, left > 0 && h("li", {}, `and ${left} more`)));
}

const ACTS = ["cancel", "pause", "resume", "retry", "send", "migrate"];
const WHAT = [
  { name: "act", label: "What to do", kind: "choice", options: ACTS, value: "pause" },
  { name: "event", label: "Event", required: true, only: { act: "send" } },
  { name: "payload", label: "Payload", kind: "json", hint: "JSON", only: { act: "send" } },
  { name: "version", label: "Version of the definition", kind: "number", step: 1, required: true, only: { act: "migrate" } },
  { name: "reason", label: "Reason", hint: "for whoever reads the logs later" },
];
/** Asked for when it is needed: the list of executions needs this file as well. */
const which = () => [
  ...FILTERS,
  { name: "fields", label: "Published fields", kind: "json", rows: 2, hint: 'JSON, as {"shop": "Berlin"}' },
  { name: "all", label: "All executions that there are", kind: "check" },
];

/** One thing done to all that fit: the filter is what a list shows, or else it is asked for as well; `again` renews it. */
export function change(filter, again) {
  const known = filter && FILTERS.map(({ name, label }) => [label, filter[name]]);
  const text = filter && ["All executions that fit when it begins:", facts(known)];
  const fields = filter ? WHAT : [...WHAT, ...which()];
  const title = "Change all that fit";
  const orders = wishes();
  ask({ title, text, fields, verb: "Count them", back: true }, async (values) => {
    const order = ordered(values, filter || values);
    const element = h("div", { class: "outcome" });
    const { id } = await post("v1/bulk", { ...order, dry_run: true });
    follow(element, id, (one) => counted(one, order, orders, element, again));
    return element;
  });
}

function ordered({ act, event, payload, version, reason, all }, { status, workflow, correlation, tag, after, before, fields }) {
  const filter = { status, workflow, correlation, after, before, fields, tag: tag ? [tag] : undefined };
  return { act, event, payload, version, reason, all, filter };
}

/** Show how far it is, as long as somebody looks; then what `ended` says besides. */
async function follow(element, id, ended) {
  for (;;) {
    try {
      const one = await get(`v1/bulk/${part(id)}`);
      const over = ENDED.includes(one.status);
      element.replaceChildren(...outcome(one), over ? ended(one) : h("p", { class: "dim" }, "A worker does it, also when you leave."));
      if (over) return;
    } catch (error) {
      element.replaceChildren(trouble(error));
      if (!PASSING.includes(error.status)) return;
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK));
    if (!element.isConnected) return;
  }
}

function outcome(one) {
  const ids = one.first.map((id, n) => [n > 0 && ", ", execution(id)]);
  const left = one.found - one.first.length;
  return [
    h("p", {}, badge(one.status), " ", one.act, one.dry_run ? dim(" · only counted") : ""),
    progress(one),
    one.found > 0 && h("p", { class: "dim" }, ids, left > 0 && ` and ${left} more`),
    one.failed > 0 && failures(one),
  ].filter(Boolean);
}

/** What follows the count: to do it, if there is anything to do it to. */
function counted(one, order, orders, element, again) {
  if (one.status !== "completed") return h("p", {}, "They could not be counted: ", execution(one.id), " tells why.");
  if (one.found === 0) return h("p", {}, "Nothing fits, so there is nothing to do.");
  const told = h("div");
  const verb = order.act === "send" ? `Send ${order.event} to` : order.act[0].toUpperCase() + order.act.slice(1);
  const go = button(`${verb} ${some(one.found)}`, async () => {
    go.disabled = true;
    try {
      const { id } = await post("v1/bulk", { ...order, id: `bulk-${orders.id(order)}` });
      orders.granted();
      follow(element, id, () => {
        again();
        return h("p", {}, "It is one of the ", link("#/bulk", "bulk operations"), ".");
      });
    } catch (error) {
      told.replaceChildren(trouble(error));
      go.disabled = false;
    }
  }, { class: "danger" });
  return h("div", {}, told, go);
}
