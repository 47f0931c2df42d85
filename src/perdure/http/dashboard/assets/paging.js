// Lists that the API gives page by page: below one is the way to more of it.
//
// Rule kept here: as many pages as somebody has asked for are shown, also when they are asked for again.

import { get } from "./api.js";
import { button, h, renew } from "./dom.js";

const PAGE = 50;

/**
 * Fill the element with what `draw` makes of all that was found under this name; gives how to load it again. What is drawn
 * of one depends on what the API tells of it, and on what `mark` gives for it.
 */
export function paged(visit, element, path, query, name, draw, mark = () => null) {
  const results = h("div");
  const more = h("div", { class: "bar" });
  element.replaceChildren(results, more);
  let pages = 1;
  let turn = 0;
  const load = async () => {
    turn += 1;
    const mine = turn;
    const found = [];
    let next;
    for (let n = 0; n < pages; n++) {
      const page = await get(path, { ...query, limit: PAGE, cursor: next }, visit.signal);
      found.push(...page[name]);
      next = page.next;
      if (!next) break;
    }
    if (mine !== turn) return; // it was asked for again meanwhile
    renew(results, [found, found.map(mark)], () => draw(found));
    renew(more, Boolean(next), () => next && button("More", () => {
      pages += 1;
      return visit.attempt(load);
    }));
  };
  return load;
}
