// JSON without losses: the API has integers of 64 bits, and numbers of browsers are exact up to 53.
//
// Rule kept here: an integer that a number would not keep is kept as it was written, and JSON.stringify writes it so
// again. Browsers that cannot do this round it, as they do everywhere.

const LONG = /\d{16}/;

export function parse(text) {
  return JSON.rawJSON && LONG.test(text) ? JSON.parse(text, kept) : JSON.parse(text);
}

function kept(key, value, { source }) {
  return Number.isInteger(value) && !Number.isSafeInteger(value) ? JSON.rawJSON(source) : value;
}

/** Whether it is such an integer; its digits are `value.rawJSON`. */
export const isLong = (value) => Boolean(JSON.isRawJSON?.(value));
