// Ids for what people wish, by which the API knows a wish that it has been sent before.
//
// Rule kept here: an answer can be lost when the wish was already granted. Whoever then presses again wishes the same,
// as long as what was typed is the same; what was changed is another wish.

/** No longer than an id that the engine makes, because ids become parts of others. */
const BYTES = 10;

/** An id that nobody else has. What browsers have for that is not there on pages that came without encryption. */
export function fresh() {
  return Array.from(crypto.getRandomValues(new Uint8Array(BYTES)), (one) => one.toString(16).padStart(2, "0")).join("");
}

/** The wishes of a dialog: the same has the same id, until one is `granted`. After that it is wished once more. */
export function wishes() {
  const ids = new Map();
  return {
    id(wish) {
      const text = JSON.stringify(wish);
      if (!ids.has(text)) ids.set(text, fresh());
      return ids.get(text);
    },
    granted: () => ids.clear(),
  };
}
