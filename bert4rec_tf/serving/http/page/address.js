import { POPULARITY, fetchTitles } from "./api.js";
import { byId } from "./dom.js";
import { fetchExample, showHistory, stopLoading } from "./history.js";
import { recommend } from "./results.js";
import { state } from "./state.js";
import { attempt, forgetFailure } from "./tasks.js";

const EMPTY = "empty";

let reading = new AbortController();
let isRead = false;

/** Returns what the page shows, as the address holds it. Of the choices, only those that differ from the model's own. */
function writeParameters() {
  const shown = state.history.length ? state.history.map((id) => ["item", id]) : [[EMPTY, ""]];
  const items = isRead ? (state.isExample ? [] : shown) : itemsOfAddress();
  const usual = usualChoices();
  const choices = Object.entries(readChoices()).filter(([name, value]) => value !== usual[name]);
  return new URLSearchParams([...items, ...choices]);
}

/** Returns what the address says of the history, which is not shown yet. */
function itemsOfAddress() {
  return [...new URLSearchParams(location.hash.slice(1))].filter(([name]) => name === "item" || name === EMPTY);
}

/** Adds what the page shows to the browser's history, so that its Back button undoes the last change. */
export function writeAddress() {
  const parameters = `${writeParameters()}`;
  const address = parameters ? `#${parameters}` : location.pathname + location.search;
  if (parameters !== location.hash.slice(1)) window.history.pushState(null, "", address);
}

function usualChoices() {
  return {
    show: byId("number").options[0].value,
    seen: state.model.card.exclude_seen === false ? "1" : "0",
    popularity: `${Number((state.model.card[POPULARITY] ?? 0).toFixed(2))}`,
    user: "",
  };
}

function readChoices() {
  return {
    show: byId("number").value,
    seen: byId("seen").checked ? "1" : "0",
    popularity: byId("popularity").value,
    user: state.model.needs_users ? byId("user").value.trim() : "",
  };
}

/** Sets the controls. A value that they cannot have is passed over. */
function showChoices({ show, seen, popularity, user }) {
  if ([...byId("number").options].some((option) => option.value === show)) byId("number").value = show;
  byId("seen").checked = seen === "1";
  if (popularity && Number.isFinite(Number(popularity))) byId("popularity").value = popularity;
  byId("strength").value = byId("popularity").value;
  if (state.model.needs_users) byId("user").value = user;
}

/** Shows what the address holds: choices, and a history, or an example if it says nothing about one. */
export async function readAddress() {
  reading.abort();
  reading = new AbortController();
  isRead = false;
  stopLoading();
  const { signal } = reading;
  const parameters = new URLSearchParams(location.hash.slice(1));
  showChoices(usualChoices());
  showChoices({ ...usualChoices(), ...Object.fromEntries(parameters) });
  const ids = parameters.getAll("item").slice(-state.model.max_history);
  const example = !ids.length && !parameters.has(EMPTY);
  const next = example ? await fetchExample(signal) : ids;
  await fetchTitles(next, signal);
  signal.throwIfAborted();
  state.history = next;
  state.isExample = example && next.length > 0;
  isRead = true;
  showHistory();
  attempt(recommend);
}

/** Gives up reading the address, because the user has changed what the page shows. */
export function stopReading() {
  reading.abort();
  isRead = true;
  forgetFailure(readAddress);
}

export function showExample() {
  stopReading();
  state.isExample = true;
  writeAddress();
  attempt(readAddress);
}
