import { showCard } from "./card.js";
import { byId, grouped, isVisible, make } from "./dom.js";

const MAX_SHOWN = 20;
const RECOMMEND = "recommend";
const SIMILAR = "similar";
const SCORE = "score";
const POPULARITY = "popularity_correction";
const EMPTY = "empty";
const UNREACHABLE = "The server does not answer.";
const EXAMPLE_LENGTH = 3;
const EXAMPLE_FROM = 50;
const MAX_IDS = 50;
const MAX_ADDRESS = 4000;
const MAX_SIMILAR = 6;
const MAX_TAGS = 4;
const MAX_REASONS = 2;
const MAX_LEFT_OUT = 50;
const LEAST_FALL = 1e-4;
const PAUSE = 120;
const THEME = "theme";
const PHONE = matchMedia("(max-width: 40rem)");
const PERCENT = new Intl.NumberFormat("en", { style: "percent", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
const TIMES = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const known = new Map();

let model = { signatures: [], needs_users: false, items: 0, titles: false, users: 0, max_history: Infinity, max_rows: Infinity, card: {} };
let history = [];
let isExample = false;
let knownItems = 0;
let found = [];
let searching = new AbortController();
let predicting = new AbortController();
let reading = new AbortController();

/** Asks the server. An error has `canRetry` if the server did not answer, or could not at the moment. */
async function fetchJson(address, options = {}) {
  const headers = options.body ? { "Content-Type": "application/json" } : {};
  try {
    const response = await fetch(address, { ...options, headers });
    const content = await response.json();
    if (response.ok) return content;
    throw Object.assign(new Error(content.error), { isAnswer: true, canRetry: response.status >= 500 });
  } catch (error) {
    if (error.isAnswer || error.name === "AbortError") throw error;
    throw Object.assign(new Error(UNREACHABLE), { canRetry: true });
  }
}

/** Fetches items by a query, by their ids or by their user, and stores their titles and tags. Returns their ids. */
async function fetchItems(parameters, signal) {
  const { items } = await fetchJson(`page/items?${new URLSearchParams(parameters)}`, { signal });
  for (const item of items) known.set(item.id, item);
  return items.map((item) => item.id);
}

/** Fetches the titles that are not known yet, some at a time: the server reads addresses of at most 8,190 bytes. */
async function fetchTitles(ids, signal) {
  const missing = model.titles ? [...new Set(ids)].filter((id) => !known.has(id)) : [];
  while (missing.length) {
    const asked = [];
    while (missing.length && asked.length < MAX_IDS && `${new URLSearchParams(asked)}`.length < MAX_ADDRESS) asked.push(["id", missing.shift()]);
    await fetchItems(asked, signal);
  }
}

function addressOfModel() {
  return `v1/models/${encodeURIComponent(model.name)}`;
}

async function predict(signature, inputs, signal) {
  const body = JSON.stringify({ signature_name: signature, inputs });
  const { outputs } = await fetchJson(`${addressOfModel()}:predict`, { method: "POST", body, signal });
  return outputs;
}

function showMessage(message, bad = false) {
  byId("state").textContent = message;
  byId("state").classList.toggle("bad", bad);
}

/** Runs a task and shows its error, unless a newer task of the same kind has aborted it. Returns whether it succeeded. */
async function attempt(task) {
  try {
    await task();
    forgetFailure(task);
    return true;
  } catch (error) {
    if (error.name !== "AbortError") showFailure(task, error);
    return false;
  }
}

// Failures: tasks to try again, and the sections that they would have brought up to date

const failed = new Set();
const SECTIONS = new Map([
  [start, []],
  [search, ["find"]],
  [readAddress, ["past", "next"]],
  [recommend, ["next"]],
]);

function showFailure(task, { message, canRetry }) {
  const outdates = canRetry && SECTIONS.get(task)?.length > 0;
  showMessage(outdates ? `${message.replace(/\.$/, "")}. What you see is out of date.` : message, true);
  if (!canRetry || !SECTIONS.has(task)) return;
  failed.add(task);
  showFailures();
}

function showFailures() {
  const stale = new Set([...failed].flatMap((task) => SECTIONS.get(task)));
  for (const section of document.querySelectorAll("main > section")) section.classList.toggle("stale", stale.has(section.id));
  if (!failed.size && document.activeElement === byId("retry")) byId("next-title").focus();
  byId("retry").hidden = !failed.size;
}

function forgetFailure(task) {
  if (!failed.delete(task)) return;
  showFailures();
  if (!failed.size && byId("state").classList.contains("bad")) showMessage("The server answers again.");
}

function retry() {
  for (const task of [...failed]) attempt(task);
}

// Rows

/** Returns an item's title, or its id if it has none that can be seen. An id of blanks stands in quotes. */
function nameOf(id) {
  const title = known.get(id)?.title ?? "";
  if (isVisible(title)) return title;
  return isVisible(id) ? id : JSON.stringify(id);
}

/** Returns the name of an item and its tags. A long name is cut; its tooltip has all of it. */
function nameElement(id) {
  const name = make("span", { className: "name", title: nameOf(id) }, nameOf(id));
  const tags = (known.get(id)?.tags ?? []).slice(0, MAX_TAGS).map((tag) => make("span", { className: "tag" }, tag));
  return tags.length ? make("span", { className: "named" }, name, make("span", { className: "tags" }, ...tags)) : name;
}

function smallButton(kind, sign, words, id, onclick, disabled = false) {
  return make("button", { type: "button", className: `small ${kind}`, title: words, "aria-label": `${words}: ${nameOf(id)}`, onclick, disabled }, sign);
}

/** Returns the part of a row that names the item. A click on it shows its whole name and, if the model knows them, similar items. */
function itemElement(id, ...children) {
  if (!model.signatures.includes(SIMILAR)) {
    const toggleName = ({ currentTarget }) => currentTarget.classList.toggle("whole");
    return make("span", { className: "item", onclick: toggleName }, ...children);
  }
  const toggle = ({ currentTarget }) => attempt(() => toggleSimilar(id, currentTarget));
  return make("button", { type: "button", className: "item", title: "Similar items", "aria-expanded": "false", onclick: toggle }, ...children);
}

async function fetchSimilar(id) {
  const outputs = await predict(SIMILAR, { items: [id], k: MAX_SIMILAR });
  const ids = outputs.items[0].filter((one) => one !== "");
  await fetchTitles(ids);
  return ids;
}

async function toggleSimilar(id, button) {
  const row = button.closest("li");
  const opens = button.getAttribute("aria-expanded") === "false";
  button.setAttribute("aria-expanded", `${opens}`);
  row.querySelector(".similar")?.remove();
  if (!opens) return;
  const ids = await fetchSimilar(id).catch((error) => {
    button.setAttribute("aria-expanded", "false");
    throw error;
  });
  if (button.getAttribute("aria-expanded") === "true" && !row.querySelector(".similar")) row.append(similarElement(id, ids));
}

function similarElement(id, ids) {
  const buttons = ids.map((one) =>
    make("button", { type: "button", className: "chip", title: nameOf(one), "aria-label": `Add: ${nameOf(one)}`, onclick: () => extend(one) }, `+ ${nameOf(one)}`),
  );
  const words = ids.length ? "Similar:" : "Nothing similar is known.";
  return make("div", { className: "similar", role: "group", "aria-label": `Similar to ${nameOf(id)}` }, make("span", {}, words), ...buttons);
}

/** Replaces the rows of a list. The focus stays at its place in it. */
function replaceRows(list, rows) {
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
function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = document.activeElement.closest("ol.rows > li");
  const next = step > 0 ? row?.nextElementSibling : step < 0 ? row?.previousElementSibling : null;
  if (!next) return;
  event.preventDefault();
  focusRow(next, document.activeElement.className);
}

// Search

async function search() {
  searching.abort();
  searching = new AbortController();
  const query = byId("query").value;
  const ids = await fetchItems({ query }, searching.signal);
  found = ids.slice(0, MAX_SHOWN);
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
  const count = found.length === MAX_SHOWN ? `The first ${MAX_SHOWN}` : `${found.length}`;
  list.replaceChildren(...found.map(optionElement));
  list.setAttribute("aria-label", isPopular ? "Popular items" : `${count} found for ${query}`);
  list.classList.toggle("popular", isPopular);
  byId("found-count").textContent = isPopular ? "" : found.length ? `${count} found` : "Nothing found.";
  byId("found-count").classList.toggle("unseen", found.length > 0);
  showFoundList(true);
  setTabStop(list.children[0]);
  if (place >= 0) (list.children[Math.min(place, found.length - 1)] ?? byId("query")).focus();
}

/** Opens or closes the list of found items. */
function showFoundList(opens) {
  byId("found").hidden = !opens || !found.length;
}

/** Makes one of the found items the only one that Tab reaches. */
function setTabStop(option) {
  for (const other of byId("found").children) other.tabIndex = other === option ? 0 : -1;
}

/** Focuses the found item at a place, or the search field before the first one. */
function focusFound(place) {
  const options = byId("found").children;
  if (place < 0) return byId("query").focus();
  options[Math.min(place, options.length - 1)]?.focus();
}

function useFoundKeys(event) {
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

/** Goes from the search field into its list, or closes it. Another Escape is the browser's own: it clears the field. */
function useQueryKeys(event) {
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
  pick(found[place]);
}

async function pickFirst() {
  if ((await attempt(search)) && found.length && byId("query").value.trim()) pick(found[0]);
}

/** Adds an item that was found, in place of the example. Then the search can begin anew. */
function pick(id) {
  if (!extend(id, isExample ? [] : history)) return;
  searchSoon.cancel();
  byId("query").value = "";
  attempt(search);
}

// Address

/** Returns what the page shows, as the address holds it. Of the choices, only those that differ from the model's own. */
function writeParameters() {
  const items = history.length ? history.map((id) => ["item", id]) : [[EMPTY, ""]];
  const usual = usualChoices();
  const choices = Object.entries(readChoices()).filter(([name, value]) => value !== usual[name]);
  return new URLSearchParams([...(isExample ? [] : items), ...choices]);
}

/** Adds what the page shows to the browser's history, so that its Back button undoes the last change. */
function writeAddress() {
  const parameters = `${writeParameters()}`;
  const address = parameters ? `#${parameters}` : location.pathname + location.search;
  if (parameters !== location.hash.slice(1)) window.history.pushState(null, "", address);
}

function usualChoices() {
  return {
    show: byId("number").options[0].value,
    seen: model.card.exclude_seen === false ? "1" : "0",
    popularity: `${Number((model.card[POPULARITY] ?? 0).toFixed(2))}`,
    user: "",
  };
}

function readChoices() {
  return {
    show: byId("number").value,
    seen: byId("seen").checked ? "1" : "0",
    popularity: byId("popularity").value,
    user: model.needs_users ? byId("user").value : "",
  };
}

/** Sets the controls. A value that they cannot have is passed over. */
function showChoices({ show, seen, popularity, user }) {
  if ([...byId("number").options].some((option) => option.value === show)) byId("number").value = show;
  byId("seen").checked = seen === "1";
  if (popularity && Number.isFinite(Number(popularity))) byId("popularity").value = popularity;
  byId("strength").value = byId("popularity").value;
  if (model.needs_users) byId("user").value = user;
}

/** Shows what the address holds: choices, and a history, or an example if it says nothing about one. */
async function readAddress() {
  reading.abort();
  reading = new AbortController();
  const { signal } = reading;
  const parameters = new URLSearchParams(location.hash.slice(1));
  showChoices(usualChoices());
  showChoices({ ...usualChoices(), ...Object.fromEntries(parameters) });
  const ids = parameters.getAll("item").slice(0, model.max_history);
  const example = !ids.length && !parameters.has(EMPTY);
  const next = example ? await fetchExample(signal) : ids;
  await fetchTitles(next, signal);
  signal.throwIfAborted();
  history = next;
  isExample = example && next.length > 0;
  showHistory();
  attempt(recommend);
}

// History

/** Adds an item after others. Returns whether there was room for it. */
function extend(id, others = history) {
  const hasRoom = others.length < model.max_history;
  if (hasRoom) change([...others, id], `${nameOf(id)} added`);
  else showMessage(`A history has at most ${model.max_history} items.`, true);
  return hasRoom;
}

function change(next, message) {
  reading.abort();
  history = next;
  isExample = false;
  writeAddress();
  showHistory();
  showMessage(message);
  attempt(recommend);
}

function changeChoice() {
  writeAddress();
  attempt(recommend);
}

function move(place, step) {
  const next = [...history];
  [next[place], next[place + step]] = [next[place + step], next[place]];
  change(next, `${nameOf(history[place])} moved to place ${place + step + 1}`);
  const row = byId("history").children[place + step];
  const wanted = row.querySelector(step < 0 ? ".up" : ".down");
  (wanted.disabled ? row.querySelector(".remove") : wanted).focus();
}

function remove(place) {
  change(history.toSpliced(place, 1), `${nameOf(history[place])} removed`);
  const rows = byId("history").children;
  (rows.length ? rows[Math.min(place, rows.length - 1)].querySelector(".remove") : byId("query")).focus();
}

function showHistory() {
  const last = history.length - 1;
  const list = byId("history");
  replaceRows(
    list,
    history.map((id, place) =>
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
  byId("count").textContent = isExample ? "(example)" : history.length ? `(${history.length})` : "";
  byId("clear").hidden = !history.length;
  byId("example").hidden = history.length > 0;
  byId("history-hint").textContent = isExample
    ? "An example. The first item that you find replaces it."
    : history.length ? "Oldest first." : "Without a history you see the most popular items.";
}

/** Returns a popular item and those among the popular ones that are likeliest to come next. */
async function fetchExample(signal) {
  const popular = (await fetchItems({ query: "" }, signal)).slice(0, EXAMPLE_FROM);
  let ids = popular;
  if (!model.needs_users) {
    const inputs = { histories: [popular.slice(0, 1)], k: EXAMPLE_LENGTH - 1, exclude_seen: true, candidates: [popular] };
    const { items } = await predict(RECOMMEND, inputs, signal);
    ids = [popular[0], ...items[0].filter((id) => id !== "")];
  }
  return ids.slice(0, Math.min(EXAMPLE_LENGTH, model.max_history));
}

function showExample() {
  isExample = true;
  writeAddress();
  attempt(readAddress);
}

async function loadUser() {
  const user = byId("user").value.trim();
  const ids = await fetchItems({ user });
  change(ids, `The last ${ids.length} items of user ${user}`);
}

// Recommendations

/** Returns a sentence if the model knows no item of the history, because it then falls back to the most popular items. */
function sayMostPopular() {
  const fallsBack = history.length > 0 && !knownItems && !model.needs_users;
  return fallsBack ? "The model knows no item of the history, so these are the most popular items. " : "";
}

/** Whether popular items are lowered, so that the scores are no longer probabilities. */
function isCorrected() {
  return byId("popularity").valueAsNumber > 0;
}

function givesProbabilities() {
  return model.card.scores === "log-probabilities";
}

function inputsOfRecommend() {
  const inputs = {
    histories: [history],
    k: Number(byId("number").value),
    exclude_seen: !byId("seen").checked,
    [POPULARITY]: byId("popularity").valueAsNumber,
  };
  if (model.needs_users) inputs.users = [byId("user").value];
  return inputs;
}

async function recommend() {
  predicting.abort();
  predicting = new AbortController();
  const { signal } = predicting;
  const outputs = await predict(RECOMMEND, inputsOfRecommend(), signal);
  const rows = outputs.items[0]
    .map((id, place) => ({ id, score: Number(outputs.scores[0][place]) }))
    .filter((row) => row.id !== "");
  await fetchTitles(rows.map((row) => row.id), signal);
  signal.throwIfAborted();
  const unknown = outputs.unknown[0];
  knownItems = history.length - unknown;
  showRecommendations(rows);
  if (unknown) showMessage(`The model does not know ${unknown} of the items in the history and skipped them.`);
  /* It comes later, and the list can be used without it. */
  if (rows.length && !model.needs_users) await compareHistories(rows.map((row) => row.id), signal);
}

function showRecommendations(rows) {
  const list = byId("recommendations");
  replaceRows(
    list,
    rows.map(({ id }, place) =>
      make(
        "li",
        {},
        itemElement(id, make("span", { className: "place" }, `${place + 1}`), nameElement(id), make("span", { className: "share" })),
        smallButton("add", "+", "Add", id, () => extend(id)),
      ),
    ),
  );
  const scores = rows.map((row) => row.score);
  if (!givesProbabilities() || (isCorrected() && model.needs_users)) showScores(scores);
  else if (!isCorrected()) showProbabilities(scores);
  if (!rows.length) byId("measure").textContent = "No items left to recommend.";
}

function setBar(row, part) {
  row.style.setProperty("--share", `${(100 * part).toFixed(2)}%`);
}

/** Shows scores that are no probabilities. The longest bar is the best score. */
function showScores(scores) {
  const least = Math.min(...scores, 0);
  const range = Math.max(...scores) - least || 1;
  [...byId("recommendations").children].forEach((row, place) => {
    row.querySelector(".share").textContent = scores[place].toPrecision(4);
    setBar(row, (scores[place] - least) / range);
  });
  const kind = isCorrected() ? "Scores, with popular items lowered; higher is better." : "Scores; higher is better.";
  byId("measure").textContent = `${sayMostPopular()}${kind}`;
}

function showProbabilities(scores) {
  const probabilities = scores.map(Math.exp);
  [...byId("recommendations").children].forEach((row, place) => {
    row.querySelector(".share").textContent = PERCENT.format(probabilities[place]);
  });
  const sum = PERCENT.format(probabilities.reduce((total, one) => total + one, 0));
  const order = isCorrected() ? "Ranked with popular items lowered. " : "";
  const lift = knownItems && !model.needs_users ? " × and bar: times likelier than without the history." : "";
  byId("measure").textContent = `${sayMostPopular()}${order}Probability of being next, together ${sum}.${lift}`;
}

/** Scores the recommended items also without a history, and without each of its items: what it changes, and why. */
async function compareHistories(candidates, signal) {
  const asked = history;
  const most = Math.min(MAX_LEFT_OUT, model.max_rows - 2);
  const left = asked.length < 2 || most < 1 ? [] : [...new Set(asked)].slice(-most);
  const histories = [asked, [], ...left.map((one) => asked.filter((id) => id !== one))];
  const outputs = await predict(SCORE, { histories, candidates: histories.map(() => candidates) }, signal);
  const [whole, bare, ...without] = outputs.scores.map((row) => row.map(Number));
  if (givesProbabilities()) {
    showProbabilities(whole);
    if (knownItems) showLifts(whole.map((score, place) => score - bare[place]));
  }
  showReasons(left, whole, without);
}

/** Shows how many times likelier each item is with the history. Bars are logarithms; the longest is the greatest lift. */
function showLifts(logLifts) {
  const longest = Math.max(Math.LN2, ...logLifts.map((one) => Math.min(one, Math.log(Number.MAX_VALUE))));
  [...byId("recommendations").children].forEach((row, place) => {
    row.querySelector(".share").append(make("span", { className: "lift" }, `×${TIMES.format(Math.exp(logLifts[place]))}`));
    setBar(row, Math.min(Math.max(logLifts[place] / longest, 0), 1));
  });
}

/** Says under each recommendation without which items of the history its score falls most. */
function showReasons(items, whole, without) {
  [...byId("recommendations").children].forEach((row, place) => {
    const reasons = items
      .map((id, left) => ({ id, fall: whole[place] - without[left][place] }))
      .filter(({ fall }) => fall > LEAST_FALL)
      .sort((one, other) => other.fall - one.fall)
      .slice(0, MAX_REASONS);
    if (!reasons.length) return;
    const names = reasons.map(({ id }) => nameOf(id)).join(" and ");
    row.querySelector(".small").after(make("p", { className: "why", title: names }, `because of ${names}`));
  });
}

// Theme

/** Reads or writes the theme that this browser keeps. Browsers may forbid to keep anything. */
function keptTheme(theme) {
  try {
    if (theme !== undefined) localStorage.setItem(THEME, theme);
    return localStorage.getItem(THEME) ?? "";
  } catch {
    return theme ?? "";
  }
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").value = theme;
}

// Start

function showModel() {
  byId("model").textContent = `version ${model.version}, ${grouped(model.items)} items`;
  byId("query-label").textContent = model.titles ? "Title or id" : "Id";
  byId("popularity").max = Math.max(1, model.card[POPULARITY] ?? 0);
  byId("choose-user").hidden = !model.users;
  byId("load").hidden = !model.users;
  showUserField(model.needs_users);
  showCard(model, `${addressOfModel()}/metadata`);
}

function showUserField(opens) {
  byId("user-field").hidden = !opens;
  byId("choose-user").setAttribute("aria-expanded", `${opens}`);
}

async function start() {
  model = await fetchJson("page/model");
  showModel();
  window.onpopstate = restore;
  attempt(search);
  attempt(readAddress);
}

function restore() {
  showMessage("Restored from the address.");
  attempt(readAddress);
}

/** Returns a function that runs a task once its calls have paused. */
function debounced(task) {
  let pause;
  const run = () => {
    clearTimeout(pause);
    pause = setTimeout(() => attempt(task), PAUSE);
  };
  return { run, cancel: () => clearTimeout(pause) };
}

function on(id, event, handler) {
  byId(id).addEventListener(event, handler);
}

const searchSoon = debounced(search);
const recommendSoon = debounced(recommend);
const writeAddressSoon = debounced(writeAddress);
showTheme(keptTheme());
on("theme", "change", () => showTheme(keptTheme(byId("theme").value)));
on("card", "click", () => byId("card-dialog").showModal());
on("close-card", "click", () => byId("card-dialog").close());
on("query", "input", searchSoon.run);
on("query", "click", () => showFoundList(true));
on("query", "keydown", useQueryKeys);
on("found", "keydown", useFoundKeys);
on("found", "focusin", ({ target }) => setTabStop(target));
on("retry", "click", retry);
on("search", "submit", (event) => {
  event.preventDefault();
  searchSoon.cancel();
  pickFirst();
});
document.addEventListener("keydown", moveFocus);
on("choose-user", "click", () => {
  showUserField(byId("user-field").hidden);
  byId("user").focus();
});
on("user-field", "submit", (event) => {
  event.preventDefault();
  if (model.users) attempt(loadUser);
});
on("user", "input", () => model.needs_users && recommendSoon.run());
on("user", "change", () => model.needs_users && writeAddress());
on("example", "click", showExample);
on("clear", "click", () => {
  change([], "History cleared");
  byId("query").focus();
});
on("number", "change", changeChoice);
on("seen", "change", changeChoice);
on("popularity", "input", () => {
  byId("strength").value = byId("popularity").value;
  recommendSoon.run();
});
on("popularity", "change", writeAddressSoon.run);
attempt(start);
