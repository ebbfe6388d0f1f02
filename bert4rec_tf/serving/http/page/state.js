import { isVisible } from "./dom.js";

/** What the page shows, apart from the choices, which the controls hold. */
export const state = {
  model: { signatures: [], needs_users: false, items: 0, titles: false, users: 0, max_history: Infinity, can_explain: false, card: {} },
  history: [],
  isExample: false,
};

/** Id of an item -> what the server said about it: its title and tags. */
export const itemsById = new Map();

/** Returns an item's title, or its id if it has none that can be seen. An id of blanks stands in quotes. */
export function nameOf(id) {
  const title = itemsById.get(id)?.title ?? "";
  if (isVisible(title)) return title;
  return isVisible(id) ? id : JSON.stringify(id);
}
