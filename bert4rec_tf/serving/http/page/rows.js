import { SIMILAR } from "./api.js";
import { make } from "./dom.js";
import { toggleSimilar } from "./similar.js";
import { itemsById, nameOf, state } from "./state.js";
import { attempt } from "./tasks.js";

const MAX_TAGS = 4;

/** Returns the name of an item and its tags. A long name is cut; its tooltip has all of it. */
export function nameElement(id) {
  const name = make("span", { className: "name", title: nameOf(id) }, nameOf(id));
  const tags = (itemsById.get(id)?.tags ?? []).slice(0, MAX_TAGS).map((tag) => make("span", { className: "tag" }, tag));
  return tags.length ? make("span", { className: "named" }, name, make("span", { className: "tags" }, ...tags)) : name;
}

export function smallButton(kind, sign, words, id, onclick, disabled = false) {
  return make("button", { type: "button", className: `small ${kind}`, title: words, "aria-label": `${words}: ${nameOf(id)}`, onclick, disabled }, sign);
}

/** Returns the part of a row that names the item. A click on it shows its whole name and, if the model knows them, similar items. */
export function itemElement(id, ...children) {
  if (!state.model.signatures.includes(SIMILAR)) {
    const toggleName = ({ currentTarget }) => currentTarget.classList.toggle("whole");
    return make("span", { className: "item", onclick: toggleName }, ...children);
  }
  const toggle = ({ currentTarget }) => attempt(() => toggleSimilar(id, currentTarget));
  return make("button", { type: "button", className: "item", title: "Similar items", "aria-expanded": "false", onclick: toggle }, ...children);
}

/** Replaces the rows of a list. The focus stays at its place in it. */
export function replaceRows(list, rows) {
  const place = [...list.children].findIndex((row) => row.contains(document.activeElement));
  const kind = document.activeElement.className;
  list.replaceChildren(...rows);
  if (place >= 0 && rows.length) focusRow(rows[Math.min(place, rows.length - 1)], kind);
}

/** Focuses the button of a kind in a row, or its first one. */
function focusRow(row, kind) {
  const buttons = [...row.querySelectorAll("button:enabled")];
  (buttons.find((button) => button.className === kind) ?? buttons[0])?.focus();
}

/** Moves the focus with the arrow keys through the rows of a list. */
export function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = document.activeElement.closest("ol.rows > li");
  const next = step > 0 ? row?.nextElementSibling : step < 0 ? row?.previousElementSibling : null;
  if (!next) return;
  event.preventDefault();
  focusRow(next, document.activeElement.className);
}
