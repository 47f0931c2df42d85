// The frame of all views: who looks, what they may do, which view the address names.
//
// Rules kept here: the address says all about what is shown, so it can be sent to others; a view that is left stops
// whatever it does; nothing is asked for again while nobody looks at the page.

import { Problem, caller as called, credential, whenRefused } from "./api.js";
import { ask, input, labelled } from "./asking.js";
import { audit } from "./audit.js";
import { bulk } from "./bulk.js";
import { dead } from "./dead.js";
import { definition } from "./definition.js";
import { definitions } from "./definitions.js";
import { designer } from "./designer.js";
import { button, focused, h, link, renew, trouble } from "./dom.js";
import { execution } from "./execution.js";
import { executions } from "./executions.js";
import { inbox } from "./inbox.js";
import { key, keys } from "./keys.js";
import { overview } from "./overview.js";
import { schedule, schedules } from "./schedules.js";
import { task } from "./task.js";

/** What the menu shows, and the scope that it takes. */
const MENU = [
  ["#/overview", "Overview"],
  ["#/executions", "Executions"],
  ["#/inbox", "Inbox", "read"],
  ["#/dead", "Dead letters"],
  ["#/definitions", "Definitions"],
  ["#/schedules", "Schedules"],
  ["#/bulk", "Bulk", "read"],
  ["#/audit", "Audit", "admin"],
  ["#/keys", "Keys", "admin"],
];

/** The views by the path behind the #; what is in braces is given to them by name. */
const VIEWS = [
  ["/overview", overview],
  ["/executions", executions],
  ["/executions/{id}", execution],
  ["/inbox", inbox],
  ["/inbox/{id}", task],
  ["/dead", dead],
  ["/definitions", definitions],
  ["/definitions/:new", designer], // no definition has a colon in its name
  ["/definitions/{name}", definition],
  ["/definitions/{name}/edit", designer],
  ["/schedules", schedules],
  ["/schedules/{name}", schedule],
  ["/bulk", bulk],
  ["/audit", audit],
  ["/keys", keys],
  ["/keys/{id}", key],
];
const FIRST = "#/overview";

let caller = null;
let leave = new AbortController();
let here = ""; // the address of what is shown
let unsaved = () => false;

/** What a view knows of its place; each visit has its own. */
class Visit {
  constructor(element, params, query, signal) {
    this.element = element;
    this.params = params;
    this.query = query;
    this.signal = signal;
    this.caller = caller;
    this.failing = new Map(); // what was done to renew the view and failed, with the error
    this.old = h("div", { class: "old" }); // says that what is shown may be old
  }

  /** Whether whoever looks may do this. */
  may(scope) {
    return this.caller.scopes.includes(scope);
  }

  show(...children) {
    this.element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  }

  /** Change the query of the address, which shows the view again. */
  ask(query) {
    const wanted = asking(query);
    if (location.hash === wanted) dispatchEvent(new HashChangeEvent("hashchange")); // to see what is new
    else location.hash = wanted;
  }

  /** Change the query of the address to what is shown already. */
  note(query) {
    history.replaceState(null, "", asking(query));
  }

  /** Whoever wants to leave while this says true is asked first. */
  keeps(check) {
    if (!this.signal.aborted) unsaved = check;
  }

  /** Do it again every so many seconds, as long as the view is there and somebody looks at it. */
  every(seconds, work) {
    if (this.signal.aborted) return;
    let busy = false;
    const timer = setInterval(async () => {
      if (document.hidden || busy) return;
      busy = true;
      await this.attempt(work).finally(() => { busy = false; });
    }, seconds * 1000);
    this.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Do what renews the view. Until this very work is done a line says that it failed: what is shown may be old. */
  async attempt(work) {
    try {
      await work();
      this.failing.delete(work);
    } catch (error) {
      if (this.signal.aborted) return;
      if (error.status === 401) return enter();
      this.failing.set(work, error);
      if (!(error instanceof Problem)) throw error;
    } finally {
      this.admit();
    }
  }

  admit() {
    const errors = new Map([...this.failing.values()].map((error) => [error.message, error])); // each is told once
    renew(this.old, [...errors.keys()], () => [...errors.values()].map(trouble));
    if (errors.size === 0) this.old.remove();
    else if (!this.old.isConnected) this.element.prepend(this.old);
  }
}

/** The address with another query. */
function asking(query) {
  const known = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(known).toString();
  return location.hash.split("?")[0] + (text && `?${text}`);
}

function found(path) {
  for (const [pattern, view] of VIEWS) {
    const names = [];
    const shape = pattern.replace(/{(\w+)}/g, (_, name) => names.push(name) && "([^/]+)");
    const values = path.match(new RegExp(`^${shape}$`))?.slice(1).map(decoded);
    if (values && !values.includes(null)) return [view, Object.fromEntries(names.map((name, n) => [name, values[n]]))];
  }
  return [null, {}];
}

/** What a part of an address stands for; null if it stands for nothing. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  unsaved = () => false;
  if (!location.hash) history.replaceState(null, "", FIRST);
  here = location.hash;
  const [path, query] = location.hash.slice(1).split("?");
  const [view, params] = found(path);
  const element = h("main", { "aria-busy": "true", tabindex: -1 });
  const begun = document.activeElement === document.body; // nobody has gone anywhere yet
  const back = focused(document.body);
  frame(path, element);
  back();
  try {
    if (view === null) throw new Problem(404, { detail: `there is no view ${path}` });
    await view(new Visit(element, params, new URLSearchParams(query || ""), signal));
  } catch (error) {
    if (error.name === "AbortError" || (signal.aborted && error instanceof Problem)) return;
    if (error.status === 401) return enter();
    element.replaceChildren(trouble(error), button("Try again", show));
    if (!(error instanceof Problem)) throw error;
  } finally {
    element.removeAttribute("aria-busy");
    if (!signal.aborted) {
      document.title = [element.querySelector("h1")?.textContent, "Perdure"].filter(Boolean).join(" · ");
      back();
      if (!begun && document.activeElement === document.body) element.focus({ preventScroll: true });
    }
  }
}

function frame(path, element) {
  const here = (hash) => path === hash.slice(1) || path.startsWith(`${hash.slice(1)}/`);
  const menu = MENU.filter(([, , scope]) => !scope || caller.scopes.includes(scope)).map(([hash, text]) =>
    link(hash, text, { "aria-current": here(hash) && "page" }),
  );
  const who = h("div", { class: "who" }, h("strong", {}, caller.user), h("span", { class: "dim" }, caller.tenant));
  const out = credential.get() && button("Sign out", () => leaving(signOut));
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  document.body.replaceChildren(
    h("nav", {}, link(FIRST, "Perdure", { class: "brand" }), menu, h("div", { class: "grow" }), who, out),
    element,
    ...document.querySelectorAll(".said"), // what led here may have said a word
  );
}

function signOut() {
  credential.clear();
  enter();
}

/** Find out who looks; without a credential that is good, ask for one. */
async function enter() {
  leave.abort();
  try {
    caller = await called();
    await show();
  } catch (error) {
    if (error.status === 401) signIn(credential.get() ? error : null);
    else document.body.replaceChildren(h("main", {}, trouble(error), h("div", { class: "bar" }, button("Try again", enter), credential.get() && button("Sign out", signOut))));
  }
}

const KEY = { name: "key", label: "API key or token", kind: "secret", required: true };

/** Keep a credential in this tab. */
function keep(key) {
  if (!/^[!-~]+$/.test(key.trim())) throw new Error("this is no key and no token: they have no spaces, and letters without accents");
  credential.set(key.trim());
}

function signIn(error) {
  credential.clear();
  caller = null;
  document.title = "Perdure";
  const key = input(KEY);
  const form = h(
    "form",
    { class: "sign-in card" },
    h("h1", {}, "Perdure"),
    error && trouble(error),
    labelled(KEY, key),
    h("small", {}, "It is kept in this tab and forgotten with it. ", h("code", {}, "perdure keys create me --role operator"), " makes one."),
    h("button", { type: "submit", class: "primary" }, "Sign in"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (key.value.trim() === "") return;
    try {
      keep(key.value);
      enter();
    } catch (wrong) {
      signIn(wrong);
    }
  });
  document.body.replaceChildren(h("main", {}, form));
  key.focus();
}

let asked = null; // whether there is another credential, while that is asked

/** What was good when the page was opened may not be so any more. What is on the page stays, if it is the same person. */
whenRefused((problem) => {
  if (caller === null) return false;
  asked ??= new Promise((over) => signInAgain(problem, over)).finally(() => { asked = null; });
  return asked;
});

function signInAgain(problem, over) {
  ask({ title: "Sign in again", text: trouble(problem), fields: [KEY], verb: "Sign in", over: () => over(false) }, async ({ key }) => {
    keep(key);
    const now = await called();
    const same = now.user === caller.user && now.tenant === caller.tenant;
    caller = now;
    over(same); // nobody does in their own name what somebody else has asked for
    if (!same) await show();
  });
}

/** Go on, if nothing that was typed is lost by it or that is all right. */
function leaving(go) {
  if (!unsaved()) return go();
  const text = "What was changed here is not saved.";
  ask({ title: "Leave without saving?", text, verb: "Leave", danger: true }, () => {
    unsaved = () => false;
    go();
  });
}

addEventListener("hashchange", () => {
  if (!caller) return;
  const wanted = location.hash;
  if (unsaved()) history.replaceState(null, "", here);
  leaving(() => (location.hash === wanted ? show() : (location.hash = wanted)));
});
addEventListener("beforeunload", (event) => { if (unsaved()) event.preventDefault(); });
enter();
