"use strict";

const MAX_SHOWN = 20;
const DEFAULT = "serving_default";
const RECOMMEND = "recommend";
const POPULARITY = "popularity_correction";
const SCORE = "score";
const MAX_REASONS = 2;
const MAX_LEFT_OUT = 50;
const LEAST_FALL = 1e-4;
const PAUSE = 120;
const byId = (id) => document.getElementById(id);
const titles = new Map();

let model = { inputs: {}, items: 0, titles: false, max_history: Infinity, card: {} };
let history = [];
let found = [];
let searching = new AbortController();
let predicting = new AbortController();

async function fetchJson(address, options = {}) {
  const headers = options.body ? { "Content-Type": "application/json" } : {};
  const response = await fetch(address, { ...options, headers });
  const content = await response.json();
  if (!response.ok) throw new Error(content.error);
  return content;
}

function showMessage(message, bad = false) {
  byId("state").textContent = message;
  byId("state").classList.toggle("bad", bad);
}

/** Runs a task and shows its error, unless a newer task of the same kind has aborted it. */
async function attempt(task) {
  try {
    await task();
  } catch (error) {
    if (error.name !== "AbortError") showMessage(error.message, true);
  }
}

/** Creates an element. Text from outside is set as textContent, never as markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

function nameOf(id) {
  return titles.get(id) || id;
}

function nameElement(id) {
  const name = make("span", { className: "name" }, nameOf(id));
  if (titles.get(id)) name.append(make("span", { className: "id" }, id));
  return name;
}

function storeTitles(items) {
  for (const { id, title } of items) titles.set(id, title);
}

async function fetchTitles(ids) {
  const missing = [...new Set(ids)].filter((id) => !titles.has(id));
  for (let begin = 0; model.titles && begin < missing.length; begin += 50) {
    const parameters = new URLSearchParams(missing.slice(begin, begin + 50).map((id) => ["id", id]));
    storeTitles((await fetchJson(`page/items?${parameters}`)).items);
  }
}

// Search

async function search() {
  searching.abort();
  searching = new AbortController();
  const query = byId("query").value;
  const parameters = new URLSearchParams({ query });
  const { items } = await fetchJson(`page/items?${parameters}`, { signal: searching.signal });
  storeTitles(items);
  found = items.slice(0, MAX_SHOWN).map((item) => item.id);
  const acceptsAnyId = model.items === 0 && query.trim() !== "";
  if (acceptsAnyId) found = [query.trim()];
  showFound(query);
}

function showFound(query) {
  byId("found").replaceChildren(
    ...found.map((id) =>
      make(
        "li",
        {},
        make("button", { type: "button", className: "item", onclick: () => extend(id), "aria-label": `Add ${nameOf(id)} to the history` }, nameElement(id)),
      ),
    ),
  );
  const count = found.length === MAX_SHOWN ? `The first ${MAX_SHOWN}` : `${found.length}`;
  byId("found").setAttribute("aria-label", query.trim() ? `${count} found for ${query}` : "Popular items");
  if (!found.length && query.trim()) byId("found").append(make("li", { className: "hint" }, "Nothing found."));
}

/** Moves the focus with the arrow keys, from the search field through the buttons below it. */
function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const stops = [byId("query"), ...byId("found").querySelectorAll("button")];
  const next = stops[stops.indexOf(document.activeElement) + step];
  if (next) {
    event.preventDefault();
    next.focus();
  }
}

// History

function extend(id) {
  if (history.length >= model.max_history) return showMessage(`A history has at most ${model.max_history} items.`, true);
  change([...history, id], `${nameOf(id)} added`);
}

function change(next, message) {
  history = next;
  const parameters = new URLSearchParams(history.map((id) => ["item", id]));
  window.history.replaceState(null, "", history.length ? `#${parameters}` : location.pathname);
  showHistory();
  showMessage(message);
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
  byId("history").replaceChildren(
    ...history.map((id, place) => {
      const small = (kind, sign, words, onclick, disabled = false) =>
        make("button", { type: "button", className: `small ${kind}`, title: words, "aria-label": `${words}: ${nameOf(id)}`, onclick, disabled }, sign);
      return make(
        "li",
        {},
        make("span", { className: "item" }, make("span", { className: "place" }, `${place + 1}`), nameElement(id)),
        small("up", "↑", "Earlier", () => move(place, -1), place === 0),
        small("down", "↓", "Later", () => move(place, 1), place === last),
        small("remove", "✕", "Remove", () => remove(place)),
      );
    }),
  );
  byId("count").textContent = history.length ? `(${history.length})` : "";
  byId("clear").hidden = !history.length;
}

// Recommendations

/** Whether `recommend` has this optional input. */
function offers(name) {
  return model.inputs[RECOMMEND]?.[name] === false;
}

function hasSlider() {
  return offers("k") && offers(POPULARITY);
}

function requestBody() {
  const signature = offers("k") ? RECOMMEND : DEFAULT;
  const inputs = { histories: [history] };
  if ("users" in model.inputs[signature]) inputs.users = [byId("user").value];
  if (offers("k")) inputs.k = Number(byId("number").value);
  if (offers("k") && offers("exclude_seen")) inputs.exclude_seen = !byId("seen").checked;
  if (hasSlider()) inputs[POPULARITY] = byId("popularity").valueAsNumber;
  return JSON.stringify({ signature_name: signature, inputs });
}

async function predict(body, signal) {
  const { outputs } = await fetchJson(`v1/models/${encodeURIComponent(model.name)}:predict`, { method: "POST", body, signal });
  return outputs;
}

async function recommend() {
  predicting.abort();
  predicting = new AbortController();
  const outputs = await predict(requestBody(), predicting.signal);
  const rows = outputs.items[0]
    .map((id, place) => ({ id, score: Number(outputs.scores[0][place]) }))
    .filter((row) => row.id !== "");
  await fetchTitles(rows.map((row) => row.id));
  showRecommendations(rows);
  /* The reasons come later, and the list is whole without them. */
  explain(rows.map((row) => row.id), predicting.signal).catch(() => {});
  const unknown = outputs.unknown?.[0] ?? 0;
  if (unknown) showMessage(`The model does not know ${unknown} of the items in the history and skipped them.`);
}

/** Whether the scores are lowered by popularity, so that they are no longer probabilities. */
function isCorrected() {
  return (hasSlider() ? byId("popularity").valueAsNumber : model.card[POPULARITY]) > 0;
}

/** Returns each row's bar length, 0 to 1, and its score as text: a probability if the model card says log-probabilities. */
function displayedScores(rows) {
  const probabilities = rows.map((row) => Math.exp(row.score));
  const sum = probabilities.reduce((total, one) => total + one, 0);
  const areProbabilities = model.card.scores === "log-probabilities" && !isCorrected();
  const values = areProbabilities ? probabilities : rows.map((row) => row.score);
  const least = areProbabilities ? 0 : Math.min(...values, 0);
  const range = Math.max(...values) - least || 1;
  const percent = new Intl.NumberFormat("en", { style: "percent", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
  const shown = (value) => (areProbabilities ? percent.format(value) : value.toPrecision(4));
  byId("measure").textContent = areProbabilities
    ? `Probability of being the next item; together ${percent.format(sum)}. Click an item to add it to the history.`
    : `${isCorrected() ? "Corrected scores." : "Scores; higher is better."} Click an item to add it to the history.`;
  return values.map((value) => ({ share: (value - least) / range, shown: shown(value) }));
}

function showRecommendations(rows) {
  const scores = displayedScores(rows);
  byId("recommendations").replaceChildren(
    ...rows.map(({ id }, place) => {
      const { share, shown } = scores[place];
      const button = make(
        "button",
        { type: "button", className: "item", onclick: () => extend(id), "aria-label": `Add ${nameOf(id)} to the history; ${shown}` },
        make("span", { className: "place" }, `${place + 1}`),
        nameElement(id),
        make("span", { className: "share" }, shown),
      );
      button.style.setProperty("--share", `${(100 * share).toFixed(2)}%`);
      return make("li", {}, button);
    }),
  );
  if (!rows.length) byId("measure").textContent = "No items left to recommend.";
}

/** Says under each recommendation without which items of the history its score falls most. */
async function explain(candidates, signal) {
  const inputs = model.inputs[SCORE] ?? {};
  const others = Object.keys(inputs).filter((name) => inputs[name] && name !== "histories" && name !== "candidates");
  if (!("candidates" in inputs) || others.length || history.length < 2 || !candidates.length) return;
  const asked = history;
  const items = [...new Set(asked)].slice(-MAX_LEFT_OUT);
  const histories = [asked, ...items.map((left) => asked.filter((id) => id !== left))];
  const body = JSON.stringify({ signature_name: SCORE, inputs: { histories, candidates: histories.map(() => candidates) } });
  const outputs = await predict(body, signal);
  const [whole, ...without] = outputs.scores ?? outputs;
  [...byId("recommendations").children].forEach((row, place) => {
    const reasons = items
      .map((id, left) => ({ id, fall: Number(whole[place]) - Number(without[left][place]) }))
      .filter(({ fall }) => fall > LEAST_FALL)
      .sort((one, other) => other.fall - one.fall)
      .slice(0, MAX_REASONS);
    if (reasons.length) row.append(make("p", { className: "why" }, `because of ${reasons.map(({ id }) => nameOf(id)).join(" and ")}`));
  });
}

// Start

/** Shows the model and its training data, from the model card. */
function showCard() {
  const { model: kind, data } = model.card;
  if (!kind) return;
  const address = `v1/models/${encodeURIComponent(model.name)}/metadata`;
  const words = data?.name ? `${kind}, trained on ${data.name}` : kind;
  byId("card").replaceChildren(make("a", { href: address, title: "Model card and signatures" }, words));
}

async function start() {
  model = await fetchJson("page/model");
  const items = new Intl.NumberFormat("en").format(model.items);
  byId("model").textContent = `${model.name}, version ${model.version}${model.items ? `, ${items} items` : ""}`;
  byId("query-label").textContent = model.titles ? "Title or id" : "Id";
  showCard();
  byId("choices").hidden = !offers("k");
  byId("seen-label").hidden = !offers("exclude_seen");
  byId("popularity-field").hidden = !hasSlider();
  const strength = model.card[POPULARITY] ?? 0;
  byId("popularity").max = Math.max(1, strength);
  byId("popularity").value = strength;
  byId("strength").value = byId("popularity").value;
  byId("user-field").hidden = !("users" in (model.inputs[DEFAULT] ?? {}));
  history = new URLSearchParams(location.hash.slice(1)).getAll("item").slice(0, model.max_history);
  await fetchTitles(history);
  showHistory();
  attempt(search);
  attempt(recommend);
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

const searchSoon = debounced(search);
byId("query").addEventListener("input", searchSoon.run);
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  searchSoon.cancel();
  attempt(async () => {
    await search();
    if (found.length && byId("query").value.trim()) extend(found[0]);
  });
});
byId("find").addEventListener("keydown", moveFocus);
byId("clear").addEventListener("click", () => {
  change([], "History cleared");
  byId("query").focus();
});
byId("number").addEventListener("change", () => attempt(recommend));
byId("seen").addEventListener("change", () => attempt(recommend));
const recommendSoon = debounced(recommend);
byId("popularity").addEventListener("input", () => {
  byId("strength").value = byId("popularity").value;
  recommendSoon.run();
});
byId("user").addEventListener("input", () => attempt(recommend));
attempt(start);
