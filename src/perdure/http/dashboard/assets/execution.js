// One execution: where it stands, what it waits for, what was done, and what can be done about it.
//
// Rules kept here: the stream only tells that there is something new, and what that is is asked for; so whatever becomes
// of the stream, nothing is lost. It is there while somebody looks: a browser has few connections to a server, for all
// its tabs.

import { Problem, get, part, stream } from "./api.js";
import { badge, button, card, dim, execution as linked, facts, h, json, link, renew, table, when } from "./dom.js";
import { ENDED, list } from "./executions.js";
import { isPublished, verbs } from "./changing.js";
import { drawing } from "./drawing.js";
import { timeline } from "./timeline.js";
import { log } from "./log.js";
import { paged } from "./paging.js";
import { steps } from "./steps.js";

/** Milliseconds in which what is new is gathered before the rest is asked for again. */
const SETTLE = 150;
/** Milliseconds until a stream is asked for again: one that was cut off, and one that was refused. */
const AGAIN = 1000;
const LATER = 5000;
/** Seconds between two looks that nothing new has led to. */
const REFRESH = 5;
/** What the API says of one that was cancelled without a reason. */
const NO_REASON = "it was cancelled";

export async function execution(visit) {
  const { id } = visit.params;
  const path = `v1/executions/${part(id)}`;
  const reads = visit.may("read");
  const head = h("header");
  const why = h("div");
  const about = [h("div"), h("div"), h("div"), h("div")];
  const tab = h("div");
  const current = {}; // what the verbs are about
  let fill = () => {}; // the tab that is shown is told of what is new
  let over = false;
  const again = alone(async () => {
    if (over) return;
    await pause(SETTLE);
    const now = await load();
    await fill(now);
    over = rests(now);
  });
  /** What a verb has done is done, whether that can be looked at now or not. */
  const renewed = () => visit.attempt(again);

  const load = async () => {
    const [one, reasons, state] = await Promise.all([
      get(path, {}, visit.signal),
      get(`${path}/why`, {}, visit.signal),
      reads ? get(`${path}/state`, {}, visit.signal) : null,
    ]);
    Object.assign(current, one, { awaits: awaited(reasons) });
    renew(head, [one.status, one.definition], () => title(visit, current, renewed));
    renew(why, [one.status, reasons, state?.error, state?.cancel], () => reason(one, reasons, state));
    cards_of(one, state).forEach(([from, make], n) => renew(about[n], from, make));
    return { one, state };
  };

  const known = await load();
  const tabs = tabs_of(visit, path, known);
  const wanted = visit.query.get("tab");
  const chosen = tabs.find(([name]) => name === wanted) || tabs[0];
  /** Its children may go on without it, and a state that was asked for with it may be of before its end. */
  const rests = ({ one, state }) =>
    ENDED.includes(one.status) && !(state && state.version < one.version) && chosen[0] !== "children";
  const bar = h("div", { class: "tabs", role: "tablist" }, tabs.map(([name, text]) =>
    button(text, () => visit.ask({ tab: name }), { role: "tab", "aria-selected": String(name === chosen[0]) }),
  ));
  const middle = h("div", {}, why, h("section", { class: "card" }, bar, tab));
  visit.show(head, h("div", { class: "beside" }, middle, h("aside", {}, about)));
  fill = await chosen[2](tab, known);
  over = rests(known);
  visit.every(REFRESH, again);
  if (reads && !over) follow(visit, id, known.one.version, renewed);
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Work that is never done twice at a time: if it is wanted meanwhile, it is done once more after that. */
function alone(work) {
  let wanted = false;
  let running = null;
  const run = async () => {
    try {
      while (wanted) {
        wanted = false;
        await work();
      }
    } finally {
      running = null;
    }
  };
  return () => {
    wanted = true;
    running ??= run();
    return running;
  };
}

/** Tell of every entry of the log as it is written, and of a stream that is cut off or there again. */
async function follow(visit, id, after, changed) {
  let ended = false;
  const listen = async (signal) => {
    for await (const { name, data } of stream(id, after, signal)) {
      ended = name === "end";
      after = data?.version ?? after;
      changed();
    }
  };
  while (!visit.signal.aborted && !ended) {
    const away = new AbortController();
    const leave = () => away.abort();
    document.addEventListener("visibilitychange", leave);
    let wait = AGAIN;
    try {
      if (!document.hidden) await listen(AbortSignal.any([visit.signal, away.signal]));
    } catch (error) {
      if (!(error instanceof Problem) && error.name !== "AbortError") throw error;
      if (error.status) wait = LATER;
    } finally {
      document.removeEventListener("visibilitychange", leave);
    }
    if (visit.signal.aborted || ended) return;
    if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    else if (!away.signal.aborted) await Promise.all([changed(), pause(wait)]); // which says so if nobody answers
  }
}

function title(visit, one, again) {
  return [
    h("h1", {}, one.id),
    badge(one.status),
    h("div", { class: "grow" }),
    ...verbs(visit, one, again),
  ];
}

function reason(one, why, state) {
  const shown = [];
  const open = ENDED.includes(one.status) ? [] : why.reasons;
  for (const { kind, text, since, until } of open) {
    const times = dim(since && [" · began ", when(since)], until && [" · due ", when(until)]);
    shown.push(h("p", { class: `notice ${kind === "stuck" ? "stuck" : one.status}` }, text, times));
  }
  if (why.at && why.at.length > 0) shown.push(h("p", { class: "dim mono" }, `at ${why.at.join(" · ")}`));
  if (state && state.error && one.status === "failed") shown.push(failure(state.error));
  if (state && one.status === "cancelled") shown.push(cancelled(one, state));
  return shown.length > 0 ? [card(null, ...shown)] : [];
}

/** The names of the events that it waits for: the API tells them in its sentences alone. */
function awaited({ reasons }) {
  const found = reasons.flatMap(({ kind, text }) =>
    (kind === "event" && text.match(/^waits for the event (.+?)(?: with .*)?$/s)?.[1].split(" or ")) || []);
  return [...new Set(found)].sort();
}

function failure(error) {
  const text = [error.type, error.message].filter(Boolean).join(": ") || JSON.stringify(error);
  return h("div", { class: "trouble" }, h("strong", {}, text), error.where && h("div", { class: "mono dim" }, error.where));
}

/** Why, and by whom as far as that is known: a state has the last who asked, and only the first may have had an effect. */
function cancelled(one, { cancel }) {
  const why = one.result?.message;
  const same = cancel && (cancel.reason || NO_REASON) === why;
  const by = same && (one.parent && cancel.by?.endsWith(`/${one.parent}`) ? linked(one.parent) : cancel.by);
  const text = why && why !== NO_REASON ? `${NO_REASON}: ${why}` : NO_REASON;
  return h("p", { class: "notice cancelled" }, text, by && dim(" · asked for by ", by));
}

/** What each card on the side is drawn from, and how. */
function cards_of(one, state) {
  const published = state && Object.keys(state.published).length > 0;
  return [
    [[one, state?.trace], () => card("About", facts(facts_of(one, state)))],
    [[state?.input], () => state && card("Input", json(state.input))],
    [[state?.published], () => published && card("Published", json(state.published))],
    [[state?.result], () => state && state.result !== null && card("Result", json(state.result))],
  ];
}

function facts_of(one, state) {
  return [
    ["Workflow", link(`#/executions?workflow=${encodeURIComponent(one.workflow)}`, one.definition)],
    ["Began as", one.began_as],
    ["Queue", one.queue],
    ["Started", when(one.started_at)],
    ["Changed", when(one.changed_at)],
    ["Parent", one.parent && linked(one.parent)],
    ["Correlation id", one.correlation],
    ["Tags", one.tags && one.tags.join(", ")],
    ["Lane", one.lane],
    ["Mail", one.mail],
    ["Version", one.version],
    ["Trace", state && state.trace && h("span", { class: "mono" }, state.trace)],
  ];
}

/** Name, text, and what fills the tab; that gives what is to be told when something is new. */
function tabs_of(visit, path, { one, state }) {
  const tabs = [];
  tabs.push(["timeline", "Timeline", (element, now) => timeline(visit, element, path, now)]);
  tabs.push(["log", "Log", (element) => log(visit, element, path)]);
  if (state) tabs.push(["steps", "Step by step", (element) => steps(visit, element, path, one)]);
  if (state && isData(one, state)) tabs.push(["diagram", "Diagram", (element, now) => diagram(visit, element, path, now)]);
  if (state && Object.keys(state.nodes).length > 0) tabs.push(["nodes", "Nodes", (element, now) => nodes(element, now)]);
  tabs.push(["children", "Children", (element) => children(visit, element, one.id)]);
  return tabs;
}

/** Whether it runs a machine, a graph or a document, of which there is a picture. */
function isData(one, state) {
  return isPublished(one) || state.current !== "" || Object.keys(state.nodes).length > 0;
}

async function diagram(visit, element, path, { one }) {
  const { image, draw } = drawing("where it is, drawn", visit.signal);
  let shown = one.version;
  await draw(`${path}/diagram`);
  element.replaceChildren(image);
  return async (now) => {
    if (now.one.version === shown) return;
    await draw(`${path}/diagram`);
    shown = now.one.version;
  };
}

function nodes(element, { state }) {
  const show = (nodes) =>
    renew(element, nodes, () => table(["Node", "What is known of it"], Object.entries(nodes).map(([name, one]) => [
      h("span", { class: "mono" }, name),
      json(one),
    ])));
  show(state.nodes);
  return (now) => show(now.state.nodes);
}

async function children(visit, element, id) {
  const load = paged(visit, element, "v1/executions", { parent: id }, "executions", (found) => list(found, "it has no children"));
  await load();
  return load;
}
