// API keys: listed, made, rotated and revoked; and one of them with what was done to it.
//
// Rules kept here: a secret is shown once, in a dialog that is gone with it; it is in no address and in no storage, and
// nothing here keeps it. It is shown before anything else is asked for, which may fail: all the more of one's own key.

import { get, part, post } from "./api.js";
import { ask, say, words } from "./asking.js";
import { badge, button, card, dim, facts, h, link, renew, stamp, table, when } from "./dom.js";

/** The roles of the API, and what they are for. */
const ROLES = [
  ["viewer", "reads"],
  ["observer", "looks, without the data"],
  ["sender", "reads, sends events, starts executions"],
  ["operator", "does that, and pauses, cancels, retries"],
  ["author", "reads and publishes definitions"],
  ["worker", "asks for external tasks"],
  ["admin", "does all of this, and manages keys"],
];

const placed = (id) => `#/keys/${encodeURIComponent(id)}`;

export async function keys(visit) {
  const results = h("section", { class: "card" });
  const load = async () => {
    const found = await get("v1/keys", {}, visit.signal);
    renew(results, found, () => table(
      ["Key", "Name", "Status", "Roles", "Made", "Expires", "Last used", ""],
      found.keys.map((one) => row(visit, one, again)),
      { empty: "there is no key yet" },
    ));
  };
  const again = () => visit.attempt(load);
  visit.show(
    h("header", {}, h("h1", {}, "API keys"), h("div", { class: "grow" }), button("Create", () => create(again), { class: "primary" })),
    results,
  );
  await load();
}

function row(visit, one, again) {
  return [
    link(placed(one.id), one.id, { class: "id" }),
    one.name,
    badge(one.status),
    one.roles.join(", "),
    h("span", {}, when(one.created_at), one.by && dim(` by ${one.by}`)),
    one.expires_at ? when(one.expires_at) : dim("never"),
    one.used_at ? when(one.used_at) : dim("never"),
    h("div", { class: "bar right" }, verbs(visit, one, again, "small")),
  ];
}

export async function key(visit) {
  const head = h("header");
  const body = h("div", { class: "columns" });
  const load = async () => {
    const { key: one, history } = await get(`v1/keys/${part(visit.params.id)}`, {}, visit.signal);
    const done = () => [...history].reverse().map(({ at, what, by }) => [stamp(at), what, by]);
    renew(head, one, () => [h("h1", {}, one.name), badge(one.status), h("div", { class: "grow" }), ...verbs(visit, one, again)]);
    renew(body, [one, history], () => [card("About", about(one)), card("What was done to it", table(["Time (UTC)", "What", "By"], done()))]);
  };
  const again = () => visit.attempt(load);
  await load();
  visit.show(head, body);
}

function about(one) {
  return facts([
    ["Key", h("span", { class: "id" }, one.id)],
    ["Roles", one.roles.join(", ")],
    ["Made", when(one.created_at)],
    ["By", one.by],
    ["Expires", one.expires_at ? when(one.expires_at) : "never"],
    ["Rotated", one.rotated_at && when(one.rotated_at)],
    ["The secret before is good", one.overlap_until && h("span", {}, "until ", stamp(one.overlap_until), dim(" UTC"))],
    ["Revoked", one.revoked_at && when(one.revoked_at)],
    ["Last used", one.used_at ? h("span", {}, when(one.used_at), dim(", to the day")) : "never"],
  ]);
}

function verbs(visit, one, again, look = "") {
  if (one.status !== "active") return [];
  return [
    button("Rotate", () => rotate(one, again), { class: look, "aria-label": `Rotate ${one.id}` }),
    button("Revoke", () => revoke(visit, one, again), { class: `danger ${look}`, "aria-label": `Revoke ${one.id}` }),
  ];
}

function create(again) {
  const fields = [
    { name: "name", label: "Name", required: true, hint: "of the person or the program; it is in logs as who did it" },
    {
      name: "role",
      label: "Role",
      kind: "choice",
      options: ROLES.map(([role]) => role),
      hint: ROLES.map((one) => one.join(" ")).join("; "),
    },
    { name: "others", label: "Other roles", hint: "with commas between them; those of your business go along with events" },
    { name: "expires", label: "Good for", hint: "as 90d; for ever, if nothing is said" },
  ];
  ask({ title: "Create an API key", fields, verb: "Create", over: again }, async ({ name, role, others, expires }) => {
    const made = await post("v1/keys", { name, roles: [role, ...words(others || "")], expires });
    return secret(made, "");
  });
}

function rotate(one, again) {
  const fields = [
    { name: "overlap", label: "Overlap", required: true, value: "24h", hint: "how long the secret of now is good as well; 0s: not at all" },
    { name: "expires", label: "Good for", hint: "from now on, as 90d; as before, if nothing is said" },
  ];
  const text = `${one.name} gets a new secret. A rotation before this one has no overlap any more.`;
  ask({ title: `Rotate ${one.id}`, text, fields, verb: "Rotate", over: again }, async (values) => {
    const made = await post(`v1/keys/${part(one.id)}/rotate`, values);
    return secret(made, ` The one before is good for ${values.overlap} as well.`);
  });
}

function revoke(visit, one, again) {
  const own = one.name === visit.caller.user && " You may be using it yourself.";
  const text = ["Whoever shows it is refused, everywhere within ten seconds. That is final.", own || ""];
  ask({ title: `Revoke ${one.id}`, text, verb: "Revoke it", danger: true }, async () => {
    await post(`v1/keys/${part(one.id)}/revoke`);
    await again();
    say(`${one.name} is revoked`);
  });
}

/** The only time that anybody sees it. */
function secret(made, more) {
  const props = { type: "text", readonly: true, value: made.secret, class: "mono", "aria-label": "secret" };
  const shown = h("input", { ...props, onfocus: () => shown.select() });
  const told = h("small", { role: "status" });
  const copy = button("Copy", async () => {
    told.textContent = (await copied(shown)) ? "It is copied." : "It is selected: copy it with the keyboard.";
  }, { class: "primary" });
  return h(
    "div",
    {},
    h("p", {}, `The secret of ${made.key.name}. Keep it now: it cannot be seen again.${more}`),
    h("div", { class: "bar secret" }, shown, copy),
    told,
  );
}

/** Browsers let pages that came without encryption copy only what is selected. */
async function copied(shown) {
  try {
    await navigator.clipboard.writeText(shown.value);
    return true;
  } catch {
    shown.select();
    return document.execCommand("copy");
  }
}
