import { fetchItems } from "./api.js";
import { extend } from "./change.js";
import { byId, make } from "./dom.js";
import { nameElement } from "./rows.js";
import { state } from "./state.js";
import { attempt, debounced } from "./tasks.js";

const MAX_SHOWN = 20;

let foundIds = [];
let searching = new AbortController();

export async function search() {
  searching.abort();
  searching = new AbortController();
  const query = byId("query").value;
  const ids = await fetchItems({ query }, searching.signal);
  foundIds = ids.slice(0, MAX_SHOWN);
  showFound(query);
}

function optionElement(id) {
  const add = make("span", { className: "sign", "aria-hidden": "true" }, "+");
  return make("li", { role: "option", className: "item", tabIndex: -1, onclick: () => pick(id) }, nameElement(id), add);
}

function showFound(query) {
  const list = byId("found");
  const place = [...list.children].indexOf(document.activeElement);
  const isPopular = !query.trim();
  const count = foundIds.length === MAX_SHOWN ? `The first ${MAX_SHOWN}` : `${foundIds.length}`;
  list.replaceChildren(...foundIds.map(optionElement));
  list.setAttribute("aria-label", isPopular ? "Popular items" : `${count} found for ${query}`);
  list.classList.toggle("popular", isPopular);
  byId("found-count").textContent = isPopular ? "" : foundIds.length ? `${count} found` : "Nothing found.";
  byId("found-count").classList.toggle("unseen", foundIds.length > 0);
  showFoundList(true);
  setTabStop(list.children[0]);
  if (place >= 0) (list.children[Math.min(place, foundIds.length - 1)] ?? byId("query")).focus();
}

/** Opens or closes the list of found items. */
export function showFoundList(opens) {
  byId("found").hidden = !opens || !foundIds.length;
}

/** Makes one of the found items the only one that Tab reaches. */
export function setTabStop(option) {
  for (const other of byId("found").children) other.tabIndex = other === option ? 0 : -1;
}

/** Focuses the found item at a place, or the search field before the first one. */
function focusFound(place) {
  const options = byId("found").children;
  if (place < 0) return byId("query").focus();
  options[Math.min(place, options.length - 1)]?.focus();
}

export function useFoundKeys(event) {
  if (event.isComposing) return;
  const options = [...byId("found").children];
  const place = options.indexOf(document.activeElement);
  const actions = {
    ArrowDown: () => focusFound(place + 1),
    ArrowUp: () => focusFound(place - 1),
    Home: () => focusFound(0),
    End: () => focusFound(options.length - 1),
    Escape: closeFound,
    Enter: () => pickFocused(place),
    " ": () => pickFocused(place),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

/** Goes from the search field into its list, or closes it. Another Escape is the browser's own: it clears the field.
 * While an input method composes a word, the keys are its own. */
export function useQueryKeys(event) {
  if (event.isComposing) return;
  const isOpen = !byId("found").hidden;
  if (event.key === "ArrowDown") {
    showFoundList(true);
    focusFound(0);
  } else if (event.key === "Escape" && isOpen) closeFound();
  else return;
  event.preventDefault();
}

function closeFound() {
  byId("query").focus();
  showFoundList(false);
}

function pickFocused(place) {
  byId("query").focus();
  if (place >= 0) pick(foundIds[place]);
}

export async function pickFirst() {
  if ((await attempt(search)) && foundIds.length && byId("query").value.trim()) pick(foundIds[0]);
}

/** Adds an item that was found, in place of the example. Then the search can begin anew. */
function pick(id) {
  if (!extend(id, state.isExample ? [] : state.history)) return;
  searchSoon.cancel();
  byId("query").value = "";
  attempt(search);
}

export const searchSoon = debounced(search);
