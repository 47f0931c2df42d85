// Dead letters: executions that cannot go on by themselves, tried again or given up, one or all that fit.
//
// Rules kept here: what is done to many is shown first, and done to those that were shown; one that gets stuck again
// after it was tried says so, because otherwise it would look as if nothing had happened.

import { post } from "./api.js";
import { ask, asked, filters, say } from "./asking.js";
import { button, dim, execution, h, link, renew, table, trouble, when } from "./dom.js";
import { paged } from "./paging.js";

/** Why an execution can be stuck. */
const CAUSES = {
  nondeterminism: "the code asks for other commands than the log records",
  "never-wakes": "the code waits for what nothing can bring, or never comes to rest",
  undecodable: "the log has something that this code cannot read",
  lapses: "it took several workers down in a row",
  limit: "it reached a limit of the settings, or goes round in circles",
  definition: "the version that it was started with is not in the store, or has another content",
  sealed: "the key ring lacks a key of its tenant, or the key was destroyed",
  attempts: "the attempts of an action are spent",
  refused: "the store will never take what it would write",
  engine: "a mistake of Perdure's own",
};
const FILTERS = [
  { name: "cause", label: "Cause", kind: "choice", options: Object.keys(CAUSES), none: "any cause" },
  { name: "workflow", label: "Workflow" },
];
const REFRESH = 3;
/** Ids that a request may name, and those that a dialog does. */
const MOST = 1000;
const NAMED = 20;

export async function dead(visit) {
  const filter = asked(visit, FILTERS);
  const told = h("div");
  const results = h("section", { class: "card" });
  const verbs = h("div", { class: "bar" });
  const redriven = new Map(); // the version at which each was stuck when it was tried here
  const head = h("header", {}, h("h1", {}, "Dead letters"), h("div", { class: "grow" }), verbs);
  visit.show(head, filters(visit, FILTERS, filter), told, results);

  const act = async (which, body) => {
    const done = await post(`v1/dead/${which.verb}`, body);
    if (which === REDRIVE) for (const id of done.done) redriven.set(id, versions.get(id));
    say(outcome(which, done));
    await visit.attempt(load);
  };
  const all = async (which) => {
    told.replaceChildren();
    try {
      const chosen = filter.cause || filter.workflow ? filter : { all: true };
      const { done: ids } = await post(`v1/dead/${which.verb}`, { ...chosen, dry_run: true });
      if (ids.length === 0) return await load(); // they have gone on meanwhile
      const body = ids.length > MOST ? chosen : { ids };
      confirm(which, ids, (reason) => act(which, { ...body, reason }));
    } catch (error) {
      told.replaceChildren(trouble(error));
    }
  };
  const mayDo = [REDRIVE, PURGE].filter((which) => visit.may(which.scope));
  const versions = new Map();
  const load = paged(visit, results, "v1/dead", filter, "dead", (found) => {
    for (const one of found) versions.set(one.id, one.version);
    renew(verbs, found.length > 0, () => found.length > 0 && mayDo.map((which) =>
      button(`${which.text} all that fit`, () => all(which), { class: which.danger && "danger" })));
    return list(found, redriven, (one) =>
      mayDo.map((which) => button(which.text, () => confirm(which, [one.id], (reason) => act(which, { ids: [one.id], reason })), {
        class: which.danger ? "small danger" : "small",
        "aria-label": `${which.text} ${one.id}`,
      })),
    );
  }, (one) => redriven.get(one.id));
  await load();
  visit.every(REFRESH, load);
}

const REDRIVE = {
  verb: "redrive",
  text: "Redrive",
  scope: "control",
  done: "to be tried again",
  means: "It is tried again where it got stuck, once. If what stopped it is still there, it gets stuck again.",
};
const PURGE = {
  verb: "purge",
  text: "Purge",
  scope: "admin",
  danger: true,
  done: "given up",
  means:
    "It is given up: it ends as cancelled. No clean-up and no undos run; its children are asked to cancel. Its log stays," +
    " and a retry can make a new execution of it. Where the attempts of an action are spent, to cancel it is better:" +
    " then clean-up and undos run.",
};

function confirm(which, ids, act) {
  const [title, named] = ids.length === 1 ? [`${which.text} ${ids[0]}`, null] : [`${which.text} ${ids.length} dead letters`, names(ids)];
  const text = [ids.length > 1 && "For each of them: ", which.means, named].filter(Boolean);
  const fields = [{ name: "reason", label: "Reason", hint: "for whoever reads the log later" }];
  const verb = ids.length === 1 ? which.text : `${which.text} ${ids.length}`;
  ask({ title, text, fields, verb, danger: which.danger }, ({ reason }) => act(reason));
}

function names(ids) {
  const more = ids.length - NAMED;
  return h("span", { class: "names mono" }, ids.slice(0, NAMED).join(", "), more > 0 && ` and ${more} more`);
}

/** What became of those that were asked for, in words. */
function outcome({ done: word }, { done, before, not_stuck, missing }) {
  const parts = [[done, word], [before, "asked for before"], [not_stuck, "not stuck any more"], [missing, "not found"]];
  const known = parts.filter(([ids]) => ids.length > 0);
  return known.map(([ids, text]) => `${ids.length === 1 ? ids[0] : ids.length}: ${text}`).join("; ");
}

function list(found, redriven, verbs) {
  const rows = found.map((one) => [
    execution(one.id),
    link(`#/dead?workflow=${encodeURIComponent(one.workflow)}`, one.definition, { class: "tight" }),
    h("span", { class: "badge stuck", title: CAUSES[one.cause] || "" }, one.cause),
    h("div", { class: "wide" }, one.reason, note(one, redriven)),
    when(one.since),
    h("span", { class: "tight" }, one.tries === 1 ? "once" : `${one.tries} times`),
    h("div", { class: "bar tight" }, verbs(one)),
  ]);
  return table(["Execution", "Workflow", "Cause", "Reason", "Since", "Stuck", ""], rows, { empty: "nothing is stuck" });
}

/** What became of it after somebody has tried it again from here. */
function note(one, redriven) {
  const before = redriven.get(one.id);
  if (before !== undefined && one.version !== before) return h("p", { class: "notice stuck" }, "It was redriven, and got stuck again.");
  if (before !== undefined) return h("p", { class: "notice" }, "To be tried again as soon as a worker is there.");
  return one.mail > 0 && dim(` ${one.mail} ${one.mail === 1 ? "message waits" : "messages wait"}`);
}
