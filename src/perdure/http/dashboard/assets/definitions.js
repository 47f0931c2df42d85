// Definitions: workflows that are data. All of them, with what there is of each.

import { get } from "./api.js";
import { badge, card, dim, h, link, renew, table, when } from "./dom.js";

const REFRESH = 10;

/** Where a definition is shown. */
export const at = (name, query = {}) => {
  const known = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== false);
  const text = new URLSearchParams(known).toString();
  return `#/definitions/${encodeURIComponent(name)}${text && `?${text}`}`;
};

export const editing = (name) => `#/definitions/${encodeURIComponent(name)}/edit`;

export async function definitions(visit) {
  const results = h("div");
  visit.show(
    h("header", {},
      h("h1", {}, "Definitions"),
      h("div", { class: "grow" }),
      visit.may("define") && link("#/definitions/:new", "New definition", { class: "button primary" })),
    card(null, results),
  );
  const load = async () => {
    const found = await get("v1/definitions", {}, visit.signal);
    renew(results, found, () => list(visit, found.definitions));
  };
  await load();
  visit.every(REFRESH, load);
}

function list(visit, found) {
  const reads = visit.may("read");
  const rows = found.map((one) => {
    const last = one.versions[one.versions.length - 1];
    const gone = one.versions.filter((version) => version.deprecated !== null).length;
    return [
      h("strong", {}, reads ? link(at(one.name, { draft: !last || undefined }), one.name) : one.name),
      one.kind,
      [
        one.newest ?? dim("none"),
        " ",
        one.draft && badge("draft"),
        " ",
        gone > 0 && h("span", { class: "badge deprecated" }, gone === one.versions.length ? "deprecated" : `${gone} of ${one.versions.length} deprecated`),
      ],
      last ? when(last.published_at) : "",
      last ? last.by : "",
    ];
  });
  const empty = "nothing was published yet, and there is no draft";
  return table(["Name", "Kind", "Newest version", "Published", "By"], rows, { empty });
}
