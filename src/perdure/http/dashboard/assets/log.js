// The log of an execution, entry by entry, page by page, growing while it runs.

import { get } from "./api.js";
import { button, exactly, h, json } from "./dom.js";

const PAGE = 100;
/** Of what is new, at a time: whoever looks is not shown more than that unless they want it. */
const NEWS = 1000;

export async function log(visit, element, path) {
  const body = h("tbody");
  const more = h("div", { class: "bar" });
  element.replaceChildren(
    h("div", { class: "scroll" }, h("table", { class: "log" }, h("thead", {}, h("tr", {}, ["", "Time (UTC)", "Event"].map((one) => h("th", {}, one)))), body)),
    more,
  );
  let last = 0;
  let whole = false; // whether all that was there is shown: then what is new goes below it
  const add = (entries) => {
    for (const one of entries) {
      if (one.version <= last) continue;
      last = one.version;
      body.append(row(one));
    }
  };
  const load = async (limit) => {
    const page = await get(`${path}/log`, { after: last, limit }, visit.signal);
    add(page.events);
    whole = !page.next;
    more.replaceChildren(...(page.next ? [button("More", () => visit.attempt(further))] : []));
  };
  const further = () => load(PAGE);
  await further();
  return async ({ one }) => {
    if (whole && one.version > last) await load(NEWS);
  };
}

function row(one) {
  const kind = h("span", { class: "kind" }, one.type);
  const details = h("details", {}, h("summary", {}, kind, h("span", {}, one.text)));
  if (one.data) details.addEventListener("toggle", () => details.append(json(one.data)), { once: true });
  return h(
    "tr",
    { id: `v${one.version}` },
    h("td", {}, one.version),
    h("td", { class: "tight" }, exactly(one.at)),
    h("td", {}, details),
  );
}
