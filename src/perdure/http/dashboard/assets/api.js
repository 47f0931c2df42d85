// Calls of the API. What it refuses is thrown as a Problem, which says what happened and what to do.
//
// Rules kept here: the credential lives in this tab alone and goes nowhere but to the server that the page came from;
// a view that was left is not answered any more; a call whose credential is no longer good waits for another one, if
// whoever looks gives it, so that nothing is lost by that.

import { parse } from "./exact.js";

const BASE = new URL("../", document.baseURI);
const KEPT = "perdure-credential";

export class Problem extends Error {
  constructor(status, told) {
    const word = typeof told.status === "string" && told.status; // what is asked for its health says no more
    super(told.detail || told.title || word || `the server answered ${status}`);
    this.status = status;
    this.title = told.title || "";
    this.problems = told.problems || [];
  }
}

export const credential = {
  get: () => sessionStorage.getItem(KEPT) || "",
  set: (value) => sessionStorage.setItem(KEPT, value),
  clear: () => sessionStorage.removeItem(KEPT),
};

/** What asks for another credential when one is refused; gives whether there is one. */
let another = async () => false;
export const whenRefused = (ask) => { another = ask; };

/** An id as a part of a path. */
export const part = encodeURIComponent;

export const get = (path, query, signal) => answered("GET", path, { query, signal }).then(data);
/** Whom the credential stands for; no other one is asked for. */
export const caller = () => answered("GET", "v1/caller", { final: true }).then(data);

export const post = (path, body = {}, query) => sent("POST", path, body, query);
export const patch = (path, body) => sent("PATCH", path, body);
export const remove = (path) => sent("DELETE", path);

/** A picture that the API draws, as an address that an <img> takes. */
export async function picture(path, { query, body, signal } = {}) {
  const answer = await answered(body === undefined ? "GET" : "POST", path, { query, body, signal });
  return URL.createObjectURL(await answer.blob().catch((error) => { throw lost(error); }));
}

/** All that follows `after` in a log, entry by entry, as it is written; ends with the execution, or when it is cut off.
 *  The first that comes is "open": the stream is there. */
export async function* stream(id, after, signal) {
  const answer = await answered("GET", `v1/executions/${part(id)}/stream`, { query: { after }, signal });
  yield { name: "open" };
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw lost(error); });
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      if (lines.data !== undefined) yield { name: lines.event, data: parse(lines.data) };
    }
  }
}

async function sent(method, path, body, query) {
  const answer = await answered(method, path, { body, query });
  return answer.status === 204 ? null : data(answer);
}

async function data(answer) {
  try {
    return parse(await answer.text());
  } catch (error) {
    throw lost(error);
  }
}

async function answered(method, path, { body, query, signal, final = false }) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, one);
    }
  }
  const headers = {};
  if (credential.get()) headers.Authorization = `Bearer ${credential.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    throw lost(error);
  }
  if (answer.ok) return answer;
  const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
  if (answer.status === 401 && !final && (await another(problem))) return answered(method, path, { body, query, signal });
  throw problem;
}

/** What a call that got no answer, or only a part of one, is to whoever looks; one that was given up is no problem. */
function lost(error) {
  if (error.name === "AbortError") return error;
  return new Problem(0, { title: "No Answer", detail: "the server does not answer; what is shown may be old" });
}
