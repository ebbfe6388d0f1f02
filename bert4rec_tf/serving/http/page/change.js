import { nameOf, state } from "./state.js";
import { showMessage } from "./tasks.js";

let showChange = () => {};

/** Says how the page shows a changed history. */
export function whenChanged(show) {
  showChange = show;
}

export function change(next, message) {
  state.history = next;
  state.isExample = false;
  showMessage(message);
  showChange();
}

/** Adds an item after others. Returns whether there was room for it. */
export function extend(id, others = state.history) {
  const hasRoom = others.length < state.model.max_history;
  if (hasRoom) change([...others, id], `${nameOf(id)} added`);
  else showMessage(`A history has at most ${state.model.max_history} items.`, true);
  return hasRoom;
}
