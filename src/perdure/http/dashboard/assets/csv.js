// Tables as CSV (RFC 4180), for those who read them in a spreadsheet.
//
// Rule kept here: a spreadsheet takes a cell that begins with certain signs for a formula and runs it, and who wrote the
// cell may be anybody. Such a cell gets an apostrophe before it, which makes it text.

const FORMULA = /^\s*[=+\-@\t\r]/;

/** Rows of values under a head; every value is quoted. */
export function csv(head, rows) {
  return [head, ...rows].map((cells) => cells.map(cell).join(",")).join("\r\n") + "\r\n";
}

function cell(value) {
  const text = String(value ?? "");
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}

/** Give a text to whoever looks, as a file. It is made here: nothing is asked of the server for it. */
export function download(name, text) {
  // The mark at the beginning tells spreadsheets that this is UTF-8.
  const address = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv;charset=utf-8" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address));
}
