import { RECOMMEND, fetchItems, predict } from "./api.js";
import { change } from "./change.js";
import { byId, make } from "./dom.js";
import { itemElement, nameElement, replaceRows, smallButton } from "./rows.js";
import { nameOf, state } from "./state.js";

const EXAMPLE_LENGTH = 3;
const EXAMPLE_FROM = 50;

let loading = new AbortController();

function move(place, step) {
  const next = [...state.history];
  [next[place], next[place + step]] = [next[place + step], next[place]];
  change(next, `${nameOf(state.history[place])} moved to place ${place + step + 1}`);
  const row = byId("history").children[place + step];
  const wanted = row.querySelector(step < 0 ? ".up" : ".down");
  (wanted.disabled ? row.querySelector(".remove") : wanted).focus();
}

function remove(place) {
  change(state.history.toSpliced(place, 1), `${nameOf(state.history[place])} removed`);
  const rows = byId("history").children;
  (rows.length ? rows[Math.min(place, rows.length - 1)].querySelector(".remove") : byId("query")).focus();
}

export function showHistory() {
  const last = state.history.length - 1;
  const list = byId("history");
  replaceRows(
    list,
    state.history.map((id, place) =>
      make(
        "li",
        {},
        itemElement(id, make("span", { className: "place" }, `${place + 1}`), nameElement(id)),
        smallButton("up", "↑", "Earlier", id, () => move(place, -1), place === 0),
        smallButton("down", "↓", "Later", id, () => move(place, 1), place === last),
        smallButton("remove", "✕", "Remove", id, () => remove(place)),
      ),
    ),
  );
  list.scrollTop = list.scrollHeight;
  byId("count").textContent = state.isExample ? "(example)" : state.history.length ? `(${state.history.length})` : "";
  byId("clear").hidden = !state.history.length;
  byId("example").hidden = state.history.length > 0;
  byId("history-hint").textContent = state.isExample
    ? "An example. The first item that you find replaces it."
    : state.history.length ? "Oldest first." : "Without a history you see the most popular items.";
}

/** Returns a popular item and those among the popular ones that are likeliest to come next. */
export async function fetchExample(signal) {
  const popular = (await fetchItems({ query: "" }, signal)).slice(0, EXAMPLE_FROM);
  let ids = popular;
  if (popular.length && !state.model.needs_users) {
    const inputs = { histories: [popular.slice(0, 1)], k: EXAMPLE_LENGTH - 1, exclude_seen: true, candidates: [popular] };
    const { items } = await predict(RECOMMEND, inputs, signal);
    ids = [popular[0], ...items[0].filter((id) => id !== "")];
  }
  return ids.slice(0, Math.min(EXAMPLE_LENGTH, state.model.max_history));
}

/** Gives up loading a user's history, because something newer is shown. */
export function stopLoading() {
  loading.abort();
}

export async function loadUser() {
  stopLoading();
  loading = new AbortController();
  const { signal } = loading;
  const user = byId("user").value.trim();
  const ids = await fetchItems({ user }, signal);
  signal.throwIfAborted();
  change(ids, `The last ${ids.length} items of user ${user}`);
}
