// Plain data as YAML, as people write it: blocks, with what is short on one line.
//
// Rule kept here: what is written is read as the same data. So any text that could be read as something else is in
// double quotes, where YAML has the escapes of JSON.

import { isLong } from "./exact.js";

const SHORT = 60;
const STEP = "  ";
const PLAIN = /^[A-Za-z_][\w./-]*( [\w./-]+)*$/;
const WORDS = /^(null|true|false)$/i;
/** What YAML takes in no text, and JSON does in one. */
const HIDDEN = /[\u007f-\u009f\u2028\u2029\ufeff\ufffe\uffff]/g;
/** A key of one line cannot be longer. */
const LONGEST_KEY = 1000;

/** An object as YAML; as JSON if a key is too long for it. */
export function yaml(value) {
  return longest(value) > LONGEST_KEY ? `${JSON.stringify(value, null, 2)}\n` : `${mapping(value, "").join("\n")}\n`;
}

function block(value, pad) {
  if (!isNested(value)) return [pad + flow(value)];
  if (Array.isArray(value)) {
    return value.flatMap((one) => {
      const [first, ...rest] = block(one, pad + STEP);
      return [`${pad}- ${first.slice(pad.length + STEP.length)}`, ...rest];
    });
  }
  return mapping(value, pad);
}

function mapping(value, pad) {
  return Object.entries(value).flatMap(([key, one]) =>
    isNested(one) ? [`${pad}${text(key)}:`, ...block(one, pad + STEP)] : [`${pad}${text(key)}: ${flow(one)}`]);
}

/** Whether it takes lines of its own. */
function isNested(value) {
  if (value === null || typeof value !== "object" || isLong(value)) return false;
  const parts = Object.values(value);
  return parts.some((one) => one !== null && typeof one === "object" && Object.keys(one).length > 0) || flow(value).length > SHORT;
}

function flow(value) {
  if (typeof value === "string") return text(value);
  if (value === null || typeof value !== "object" || isLong(value)) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  return `{${Object.entries(value).map(([key, one]) => `${text(key)}: ${flow(one)}`).join(", ")}}`;
}

function text(value) {
  if (PLAIN.test(value) && !WORDS.test(value)) return value;
  return JSON.stringify(value).replace(HIDDEN, escaped);
}

const escaped = (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`;

function longest(value) {
  if (value === null || typeof value !== "object" || isLong(value)) return 0;
  const own = Array.isArray(value) ? [] : Object.keys(value).map((key) => text(key).length);
  return Math.max(0, ...own, ...Object.values(value).map(longest));
}
