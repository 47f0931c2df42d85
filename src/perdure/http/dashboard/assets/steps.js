// Step by step through the log: the state as it was after any event, what that event changed, and a fork from there.

import { get } from "./api.js";
import { button, exactly, h, json, table } from "./dom.js";
import { fork } from "./changing.js";

/** What every event changes, and what none does. */
const NO_NEWS = new Set(["version", "at", "key", "workflow", "input", "started_at", "trace"]);

export async function steps(visit, element, path, one) {
  let last = one.version;
  const within = (version) => Math.min(Math.max(1, Math.trunc(version)), last);
  let at = within(Number(visit.query.get("at")) || last);
  let busy = false;
  let moved = false; // whoever has not moved is shown the last one, whichever that will be
  const told = h("div");
  const slider = h("input", { type: "range", min: 1, max: last, step: 1, value: at, "aria-label": "version" });
  const number = h("strong", {});
  const go = (to) => {
    at = within(to);
    slider.value = at;
    moved = true;
    return visit.attempt(load);
  };
  /** Whoever moves on while one is asked for is shown the one where they stop, and not all that lie between. */
  const load = async () => {
    if (busy) return;
    busy = true;
    try {
      for (let shown = null; shown !== at;) shown = await look(at);
    } finally {
      busy = false;
    }
    if (moved) visit.note({ tab: "steps", at });
  };
  const look = async (wanted) => {
    const ask = (version) => get(`${path}/state`, { at: version }, visit.signal);
    const [event, now, before] = await Promise.all([
      get(`${path}/log/${wanted}`, {}, visit.signal),
      ask(wanted),
      wanted > 1 ? ask(wanted - 1) : {},
    ]);
    number.textContent = `${wanted} of ${last}`;
    told.replaceChildren(...step(visit, one, event, now, before));
    return wanted;
  };
  slider.addEventListener("input", () => go(Number(slider.value)));
  element.replaceChildren(
    h("div", { class: "steps" },
      button("◀", () => go(at - 1), { "aria-label": "one back" }), slider, button("▶", () => go(at + 1), { "aria-label": "one on" }), number),
    told,
  );
  await load();
  return (now) => {
    if (now.one.version === last) return;
    const follows = at === last;
    last = now.one.version;
    slider.max = last;
    if (follows) at = last;
    slider.value = at;
    return load();
  };
}

function step(visit, one, event, now, before) {
  const value = event.data && (event.data.result ?? event.data.payload);
  const forks = visit.may("control") && button("Fork from here", () => fork(one, event.version, value));
  const changed = (name) => JSON.stringify(now[name]) !== JSON.stringify(before[name]);
  const names = Object.keys(now).filter((name) => !NO_NEWS.has(name) && !(hollow(now[name]) && hollow(before[name])));
  names.sort((a, b) => changed(b) - changed(a));
  const rows = names.map((name) => [h("span", { class: changed(name) && "changed" }, name), json(now[name])]);
  return [
    h("p", { class: "bar" }, exactly(event.at), h("strong", {}, event.type), h("span", {}, event.text), h("span", { class: "grow" }), forks),
    table(["", "State after it; what it changed is marked"], rows),
  ];
}

function hollow(value) {
  return value === undefined || value === null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);
}
