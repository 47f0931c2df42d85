// A field for text that is indented.
//
// Rules kept here: whatever a key does can be undone like typing; who presses Escape first leaves the field with Tab,
// for somebody may have nothing but a keyboard.

import { h } from "./dom.js";

const STEP = "  ";

export function editor(value, label) {
  const area = h("textarea", { class: "editor", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-label": label, value });
  let leaves = false;
  area.addEventListener("keydown", (event) => {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
    if (event.key === "Tab" && plain && !leaves) {
      event.preventDefault();
      if (event.shiftKey || severalLines(area)) indent(area, event.shiftKey);
      else type(STEP);
    } else if (event.key === "Enter" && plain && !event.shiftKey) {
      event.preventDefault();
      type(`\n${area.value.slice(lineStart(area), area.selectionStart).match(/^ */)[0]}`);
    }
    leaves = event.key === "Escape" || (leaves && ["Tab", "Shift"].includes(event.key));
  });
  return area;
}

/** Put the cursor at a line and a column, both from 1. */
export function go(area, line, column) {
  const before = area.value.split("\n").slice(0, line - 1);
  const at = before.join("\n").length + (line > 1 ? 1 : 0) + column - 1;
  area.focus();
  area.setSelectionRange(at, at);
}

/** As if it had been typed: there is no other way that can be undone. */
function type(text) {
  document.execCommand("insertText", false, text);
}

const lineStart = (area) => area.value.lastIndexOf("\n", area.selectionStart - 1) + 1;
const severalLines = (area) => area.value.slice(area.selectionStart, area.selectionEnd).includes("\n");

/** All lines of the selection one step to the right, or to the left. */
function indent(area, left) {
  const from = lineStart(area);
  const end = area.value.indexOf("\n", Math.max(from, area.selectionEnd - (severalLines(area) ? 1 : 0)));
  const until = end < 0 ? area.value.length : end;
  const before = area.value.slice(from, until);
  const after = before.split("\n").map((line) => (left ? line.replace(/^ {1,2}/, "") : line && STEP + line)).join("\n");
  if (after === before) return;
  const cursor = area.selectionStart;
  const several = severalLines(area);
  area.setSelectionRange(from, until);
  type(after);
  if (several) area.setSelectionRange(from, from + after.length);
  else area.setSelectionRange(Math.max(from, cursor + after.length - before.length), Math.max(from, cursor + after.length - before.length));
}
