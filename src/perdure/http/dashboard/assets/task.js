// One task for a person: what it is about, its form, and what can be done about it.
//
// Rules kept here: the form never changes, so it is drawn once and what is typed stays while all else is kept up to date;
// a task judges by itself what is asked of it, so a verb without a verdict is asked for again, under the same id, until
// there is one.

import { get, part, post } from "./api.js";
import { ask, say, words } from "./asking.js";
import { badge, button, card, execution, facts, h, json, trouble, when } from "./dom.js";
import { form } from "./forms.js";
import { due, ended, people } from "./inbox.js";
import { fresh } from "./wishes.js";

const REFRESH = 3;
/** How long an answer may wait for the verdict: the first, for which somebody waits, and those that nobody sees. */
const PATIENCE = "2s";
const BRIEFLY = "1s";
/** No answer, or none for the moment. */
const PASSING = [0, 503];

export async function task(visit) {
  const path = `v1/tasks/${part(visit.params.id)}`;
  const head = h("header");
  const standing = h("div");
  const told = h("div");
  const about = h("div");
  const value = h("div");
  let now = await get(path, {}, visit.signal);
  let asking = null; // what the task has not judged yet
  let touched = false;

  const filled = form(now.form);
  const hand = h("button", { type: "submit", class: "primary" }, "Complete");
  const paper = h("form", { class: "card", novalidate: true }, filled.element, told, h("footer", {}, hand));
  filled.element.addEventListener("input", () => { touched = true; });

  const draw = (one) => {
    now = one;
    const can = may(visit, one);
    const verbs = [
      can.claim && button("Claim", () => tried(() => judged("claim"))),
      can.release && button("Release", () => tried(() => judged("release"))),
      can.assign && button("Assign", () => assign(one, (body, id) => judged("assign", body, id))),
    ].filter(Boolean);
    for (const verb of verbs) verb.disabled = asking !== null;
    filled.element.disabled = hand.disabled = !can.complete || asking !== null;
    hand.hidden = !can.complete;
    head.replaceChildren(h("h1", {}, one.title || one.name), badge(one.status), h("div", { class: "grow" }), ...verbs);
    const text = standing_of(visit, one, asking);
    standing.replaceChildren(...(text ? [card(null, h("p", { class: `notice ${one.status}`, role: "status" }, text))] : []));
    about.replaceChildren(card("About", facts(facts_of(one))));
    value.replaceChildren(...(one.status === "completed" ? [card("Filled in", json(one.value))] : []));
    paper.hidden = ended(one) && !touched; // what somebody was typing when it ended is theirs to look at
  };
  /** Ask something of the task; what it answers is shown, whether it has judged or not. */
  const judged = async (verb, body, event_id = fresh()) => {
    asking = { verb, body, event_id };
    for (const one of [...head.querySelectorAll("button"), hand]) one.disabled = true; // until there is an answer
    await settle(PATIENCE);
  };
  const settle = async (wait) => {
    const { verb, body, event_id } = asking;
    try {
      const answer = await post(`${path}/${verb}`, body, { wait, event_id });
      if (asking?.event_id !== event_id) return; // another answer to the same has come before
      if (answer.status === undefined) return draw(now);
      asking = null;
      if (verb === "complete") touched = false;
      draw(answer);
      say(DONE[verb]);
    } catch (error) {
      if (asking?.event_id !== event_id) return;
      if (wait === BRIEFLY && PASSING.includes(error.status)) return; // nobody waits for this answer: the next will do
      asking = null;
      draw(await get(path, {}, visit.signal).catch(() => now)); // it may be refused because of what somebody else did
      throw error;
    }
  };
  const tried = async (work) => {
    told.replaceChildren();
    try {
      await work();
    } catch (error) {
      const wrong = error.problems || [];
      const message = wrong.length > 0 ? "It is not filled in as its form asks." : error.message; // which has them all
      told.replaceChildren(trouble({ message, problems: filled.tell(wrong) }));
    }
  };

  paper.addEventListener("submit", (event) => {
    event.preventDefault();
    tried(() => judged("complete", { value: filled.read() }));
  });
  visit.keeps(() => touched && asking === null && !paper.hidden);
  visit.show(head, h("div", { class: "beside" }, h("div", {}, standing, data_of(now), paper, value), h("aside", {}, about)));
  draw(now);
  visit.every(REFRESH, async () => {
    if (asking) return tried(() => settle(BRIEFLY));
    const shown = now;
    const one = ended(now) ? now : await get(path, {}, visit.signal);
    // What was asked for before something was done about it is older than what that has answered.
    if (!asking && now === shown && JSON.stringify(one) !== JSON.stringify(now)) draw(one);
  });
}

const DONE = { claim: "it is yours", release: "others can do it again", assign: "it is for others now", complete: "it is completed" };

/** What whoever looks can do about it now. */
function may(visit, one) {
  const { user } = visit.caller;
  const sends = visit.may("send") && !ended(one);
  const free = one.status === "open" && isFor(one, visit.caller);
  const mine = one.claimed_by !== "" && one.claimed_by === user;
  return { claim: sends && free, release: sends && mine, complete: sends && (free || mine), assign: visit.may("control") && !ended(one) };
}

function isFor({ users, roles }, caller) {
  return (users.length === 0 && roles.length === 0) || users.includes(caller.user) || roles.some((one) => caller.roles.includes(one));
}

/** How it stands for whoever looks: above all why they can do nothing about it. */
function standing_of(visit, one, asking) {
  const { user } = visit.caller;
  if (asking) {
    return `No worker has judged the ${asking.verb} yet. It is kept, and judged as soon as one is there; this page will tell.`;
  }
  if (one.status === "completed") return `${one.completed_by || "Somebody"} has completed it.`;
  if (one.status === "expired") return "Nobody has done it in time.";
  if (one.status === "cancelled") return "Nobody waits for it any more.";
  if (!visit.may("send")) return `${user} may only look at it: to do it takes the scope send.`;
  if (one.claimed_by === user && user) return "You have claimed it.";
  if (one.claimed_by) return `${one.claimed_by} has claimed it, so nobody else can do it now.`;
  return isFor(one, visit.caller) ? "" : `It is for ${people(one)}, not for ${user}: you can neither claim nor complete it.`;
}

function facts_of(one) {
  return [
    ["Name", one.name],
    ["For", people(one)],
    ["Claimed by", one.claimed_by],
    ["Completed by", one.completed_by],
    ["Due", due(one)],
    ["Priority", one.priority || ""],
    ["Asked for by", one.execution && execution(one.execution)],
    ["Its log", execution(one.id)],
    ["Created", when(one.created_at)],
    ["Changed", when(one.changed_at)],
  ];
}

/** What it is about; a few plain values are easier to read without the signs of JSON. */
function data_of({ data }) {
  if (data === null) return "";
  const simple = (one) => one === null || typeof one !== "object";
  const isPlain = !simple(data) && !Array.isArray(data) && Object.values(data).every(simple);
  return card("What it is about", isPlain ? facts(Object.entries(data).map(([name, one]) => [name, String(one)])) : json(data));
}

function assign(one, act) {
  const fields = [
    { name: "users", label: "Users", value: one.users.join(", "), hint: "with commas between them" },
    { name: "roles", label: "Roles", value: one.roles.join(", "), hint: "with commas between them" },
  ];
  const text = "They may do it instead of those who can now, and a claim is over with that. Nobody named means anybody.";
  ask({ title: `Assign ${one.id}`, text, fields, verb: "Assign" }, ({ users = "", roles = "" }, id) =>
    act({ users: words(users), roles: words(roles) }, id),
  );
}
