// What was done when, read off the log: a row for each action, timer, child, node, event and pause, over the life of
// an execution. Every attempt of an action is a bar of its own, so that one sees how long it waited between two.

import { get } from "./api.js";
import { ENDED } from "./executions.js";
import { badge, dated, dim, execution, h, renew, span, svg } from "./dom.js";

/** The events that are looked at, the newest; the log has all. */
const MOST = 1000;

export async function timeline(visit, element, path, known) {
  let rows = new Rows(0);
  let goOn = () => {};
  const load = async ({ one }) => {
    const oldest = Math.max(0, one.version - MOST);
    if (rows.last < oldest || rows.last - rows.after >= 2 * MOST) rows = new Rows(oldest);
    const page = rows.last < one.version && (await get(`${path}/log`, { after: rows.last, limit: MOST }, visit.signal));
    if (page) page.events.forEach((entry) => rows.add(entry));
    renew(element, [one.status, rows.all], () => {
      const [parts, tell] = drawn(one, rows);
      goOn = tell;
      return parts;
    });
    goOn();
  };
  await load(known);
  return load;
}

/** Rows in the order in which they begin; what begins and what ends one is told by the type of an event. */
class Rows {
  constructor(after) {
    this.after = after; // how many events are left out
    this.all = [];
    this.open = new Map(); // by what they are of; refs count anew after a checkpoint
    this.begin = null;
    this.last = after;
  }

  add({ version, type, at, data }) {
    if (version <= this.last) return;
    this.last = version;
    const time = dated(at).getTime();
    this.begin ??= time;
    const of = data || {}; // whoever may only glance gets none
    const ref = `${type.replace(/(Started|Fired|Settled|Cancelled|Scheduled|Attempted|Progressed)$/, "")} ${of.ref ?? of.node ?? version}`;
    switch (type) {
      case "ActionScheduled":
      case "ActionStarted":
        this.row(ref, of.name, time);
        break;
      case "ActionAttempted":
        if (of.put_off) this.row(ref, of.name, time); // an open circuit let it make none
        else this.bar(this.row(ref, of.name, time), of.began, time, "failed");
        this.row(ref).status = of.spent ? "stuck" : "retrying";
        break;
      case "Redriven":
        for (const row of this.open.values()) if (row.status === "stuck") row.status = "retrying";
        break;
      case "ActionSettled":
        this.bar(this.row(ref, of.name, time), of.began, time, of.error ? "failed" : "completed");
        this.end(ref, of.error ? "failed" : "completed", time);
        break;
      case "ActionCancelled":
      case "TimerCancelled":
        this.end(ref, "cancelled", time);
        break;
      case "TimerStarted":
        this.row(ref, "timer", time).due = of.due;
        break;
      case "TimerFired":
        this.end(ref, "completed", time);
        break;
      case "ChildStarted":
        this.row(ref, "child", time).child = of.id;
        break;
      case "ChildSettled":
        this.end(ref, of.status, time);
        break;
      case "NodeStarted":
        this.row(ref, `node ${of.node ?? ""}`, time);
        break;
      case "NodeSettled":
        this.end(ref, of.status, time);
        break;
      case "EventReceived":
        this.row(ref, `event ${of.name ?? ""}`, time);
        this.end(ref, "received", time);
        break;
      case "Paused":
        this.row("paused", "paused", time).status = "paused";
        break;
      case "Resumed":
        this.end("paused", "resumed", time);
        break;
      case "Restarted":
        this.open.clear();
        break;
    }
  }

  /** The row that is open of it; else one begins. */
  row(ref, name, time) {
    if (!this.open.has(ref)) {
      const made = { name, status: "open", begin: time, end: null, bars: [] };
      this.open.set(ref, made);
      this.all.push(made);
    }
    return this.open.get(ref);
  }

  bar(row, began, end, status) {
    const begin = began ? began / 1000 : row.begin;
    row.begin = Math.min(row.begin, begin);
    row.bars.push({ begin, end, status });
  }

  end(ref, status, time) {
    const row = this.open.get(ref);
    if (row === undefined) return; // it began before what is looked at
    row.end = time;
    row.status = status;
    this.open.delete(ref);
  }
}

/** What is shown, and what brings it up to the present time: what is open goes on, also while nothing new is written. */
function drawn(one, rows) {
  const { begin, after } = rows;
  const ended = ENDED.includes(one.status);
  const whole = h("p", { class: "dim" });
  const shown = rows.all.map((row) => [row, h("div", { class: "lane" }), dim()]);
  const tell = () => {
    const until = ended ? dated(one.changed_at).getTime() : Date.now();
    const end = Math.max(begin + 1, until);
    const length = span((end - begin) / 1000);
    whole.textContent = after > 0
      ? `The last ${length}; what the first ${after.toLocaleString("en")} events tell is left out`
      : `${length} in all`;
    for (const [row, lane, spent] of shown) {
      lane.replaceChildren(bars(row, begin, end));
      const text = span(((row.end ?? end) - row.begin) / 1000) + due(row, end);
      if (spent.textContent !== text) spent.textContent = text;
    }
  };
  const cells = shown.map(([row, lane, spent]) => [
    h("div", { class: "name" }, row.child ? execution(row.child) : row.name, row.bars.length > 1 && dim(` ${row.bars.length} attempts`)),
    lane,
    h("div", {}, badge(row.status), " ", spent),
  ]);
  const empty = ended ? "it did nothing but begin and end" : "nothing but the start so far";
  return [[whole, cells.length > 0 ? h("div", { class: "gantt" }, cells) : h("p", { class: "empty" }, empty)], tell];
}

function due(row, end) {
  return row.due && row.end === null && row.due / 1000 > end ? `, ${span((row.due / 1000 - end) / 1000)} left` : "";
}

function bars(row, begin, end) {
  const known = row.bars.length > 0 ? row.bars : [{ begin: row.begin, end: row.end ?? end, status: row.status }];
  const share = (time) => (100 * (time - begin)) / (end - begin);
  const rects = known.map((bar) => {
    const from = Math.min(Math.max(0, share(bar.begin)), 99.4);
    const wide = Math.max(0.6, share(bar.end) - from);
    return svg("rect", { x: `${from}%`, width: `${wide}%`, y: "15%", height: "70%", class: bar.status });
  });
  return svg("svg", {}, ...rects);
}
