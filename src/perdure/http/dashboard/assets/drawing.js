// Pictures that the API draws, and draws again.
//
// Rules kept here: of two that were asked for, the later one is shown, whichever comes first; a picture that is not
// shown any more is not kept.

import { picture } from "./api.js";
import { h } from "./dom.js";

/** An <img>, and what draws it: draw(path, { query, body }). Nothing changes if that is refused. */
export function drawing(alt, signal) {
  const image = h("img", { class: "diagram", alt });
  let turn = 0;
  const draw = async (path, asked = {}) => {
    turn += 1;
    const mine = turn;
    const drawn = await picture(path, { ...asked, signal });
    const old = mine === turn ? image.src : drawn;
    if (mine === turn) image.src = drawn;
    URL.revokeObjectURL(old);
  };
  signal.addEventListener("abort", () => URL.revokeObjectURL(image.src));
  return { image, draw };
}
