import { POPULARITY, RECOMMEND, fetchTitles, predict } from "./api.js";
import { extend } from "./change.js";
import { byId, make } from "./dom.js";
import { itemElement, nameElement, replaceRows, smallButton } from "./rows.js";
import { nameOf, state } from "./state.js";
import { showMessage } from "./tasks.js";

const MAX_REASONS = 2;
const EXPLAINED = " In brackets: an item's part in raising it.";
const PERCENT = new Intl.NumberFormat("en", { style: "percent", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
const LEAST_SHARE = 1e-4;

let knownItems = 0;
let isPopular = false;
let predicting = new AbortController();

/** Returns a sentence if there is a history, and yet the model falls back to the most popular items. */
function sayMostPopular() {
  if (!isPopular || !state.history.length) return "";
  const known = state.model.needs_users ? "does not know the user" : "has counted nothing after these items";
  const reason = knownItems ? known : "knows no item of the history";
  return `The model ${reason}, so these are the most popular items. `;
}

/** Whether popular items are lowered, so that the scores are no longer probabilities. */
function isCorrected() {
  return byId("popularity").valueAsNumber > 0;
}

function givesProbabilities() {
  return state.model.card.scores === "log-probabilities";
}

function inputsOfRecommend() {
  const inputs = {
    histories: [state.history],
    k: Number(byId("number").value),
    exclude_seen: !byId("seen").checked,
    [POPULARITY]: byId("popularity").valueAsNumber,
    explain: state.history.length > 0 && state.model.can_explain,
  };
  if (state.model.needs_users) inputs.users = [byId("user").value.trim()];
  return inputs;
}

export async function recommend() {
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
  knownItems = state.history.length - unknown;
  isPopular = outputs.basis[0] === "popular";
  showRecommendations(rows);
  if (unknown) showMessage(`The model does not know ${unknown} of the items in the history and skipped them.`);
  if (outputs.explanations && knownItems > 0) showExplanations(outputs.explanations[0]);
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
  if (!givesProbabilities() || isCorrected()) showScores(scores);
  else showProbabilities(scores);
  if (!rows.length) byId("measure").textContent = "No items left to recommend.";
}

function formatShare(share) {
  return share < LEAST_SHARE ? "<0.01%" : PERCENT.format(share);
}

/** Shows a text and a bar for each row. The longest bar has part 1. */
function showShares(texts, parts) {
  [...byId("recommendations").children].forEach((row, place) => {
    row.querySelector(".share").textContent = texts[place];
    row.style.setProperty("--share", `${(100 * parts[place]).toFixed(2)}%`);
  });
}

/** Shows scores that are no probabilities. The longest bar is the best score. */
function showScores(scores) {
  const least = Math.min(...scores, 0);
  const range = Math.max(...scores) - least || 1;
  showShares(scores.map((score) => score.toPrecision(4)), scores.map((score) => (score - least) / range));
  const kind = isCorrected() ? "Scores, with popular items lowered; higher is better." : "Scores; higher is better.";
  byId("measure").textContent = `${sayMostPopular()}${kind}`;
}

function showProbabilities(scores) {
  const probabilities = scores.map(Math.exp);
  const most = Math.max(...probabilities, Number.MIN_VALUE);
  showShares(probabilities.map(formatShare), probabilities.map((probability) => probability / most));
  const sum = formatShare(probabilities.reduce((total, one) => total + one, 0));
  byId("measure").textContent = `${sayMostPopular()}Probability of being next, together ${sum}.`;
}

/** Shows under each item the items of the history that raise it, with their parts. */
function showExplanations(explanations) {
  [...byId("recommendations").children].forEach((row, place) => {
    const reasons = explanations[place].reasons.slice(0, MAX_REASONS);
    if (!reasons.length) return;
    const names = reasons.map(({ item, share }) => `${nameOf(item)} (${Math.round(100 * share)}%)`).join(" and ");
    row.querySelector(".small").after(make("p", { className: "why", title: names }, `because of ${names}`));
  });
  if (explanations.some(({ reasons }) => reasons.length)) byId("measure").textContent += EXPLAINED;
}
