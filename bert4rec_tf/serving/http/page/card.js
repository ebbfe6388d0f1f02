import { byId, grouped, make } from "./dom.js";

const PROTOCOLS = [
  ["any", () => "among all items, those in the history too"],
  ["full", () => "among all items that are not in the history"],
  ["popular", (negatives) => `among ${negatives} items drawn by popularity`],
  ["uniform", (negatives) => `among ${negatives} items drawn uniformly`],
];
const METRICS = { "hr@10": "HR@10", "ndcg@10": "NDCG@10", mrr: "MRR" };
const RANKERS = {
  test: "this model",
  item_transitions: "counting which items follow each other",
  pop: "the most popular items",
  random: "chance",
  ceiling: "the best possible",
  paper: "the paper",
};
const CHOSEN = "The number of steps was chosen on the validation items";
const TRAININGS = {
  fixed: () => "It was trained for a fixed number of steps, with the validation items.",
  select: (measure) => `${CHOSEN}, by ${measure}. It was trained without these items.`,
  select_and_retrain: (measure) => `${CHOSEN}, by ${measure}. Then it was trained again, with them.`,
  all: (measure) => `${CHOSEN}, by ${measure}. Then it was trained again, on all actions.`,
};
const COUNTING = ["Pop", "ItemTransitions"];
const OWN = "own-";

/** Returns the sentences that hold, of pairs of a condition and a sentence. */
function whichHold(...pairs) {
  return pairs.filter(([holds]) => holds).map(([, sentence]) => sentence);
}

function list(sentences) {
  return make("ul", {}, ...sentences.map((sentence) => make("li", {}, sentence)));
}

/** Returns terms with their values; those without a value are left out. */
function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null);
  const shown = (value) => (typeof value === "number" ? grouped(value) : `${value}`);
  return make("dl", {}, ...known.flatMap(([term, value]) => [make("dt", {}, term), make("dd", {}, shown(value))]));
}

function section(title, ...content) {
  return make("section", {}, make("h3", {}, title), ...content);
}

function data({ data = {} }) {
  return section(
    "Data",
    facts([
      ["Data set", data.name],
      ["Users", data.users],
      ["Items", data.items],
      ["Actions", data.actions],
      ["Actions in training", data.training_actions],
    ]),
  );
}

/** Returns what the best step was chosen by. Runs that do not say it used the default. */
function selection({ training, evaluation }) {
  const candidates = training?.selection_metric === "full" ? "all items that are not in the history" : `${evaluation?.num_negatives ?? 100} items drawn by popularity`;
  return `NDCG@10 among ${candidates}`;
}

/** Says how it was trained and measured. Of a user's own data the card does not tell whether they were split by time. */
function protocol({ model, run, data, metrics }) {
  const counts = COUNTING.includes(model);
  const chosen = run.training?.protocol;
  const isOwn = data?.name?.startsWith(OWN);
  const sentences = whichHold(
    [isOwn, "One item of each user measured is the test item, and another one the validation item."],
    [!isOwn, "Each user's last action is the test item, and the one before it the validation item."],
    [counts, "It counts actions. It has no training steps."],
    [!counts && chosen in TRAININGS, TRAININGS[chosen]?.(selection(run))],
    [metrics, "The test items were ranked once, at the end. All rankers in the tables below rank the same items."],
    [metrics && chosen === "all", "The metrics are those of a model trained without the held-out items. This model was trained on them too."],
  );
  return section("Training and measuring", list(sentences));
}

function metricsTable(metrics, protocol, caption) {
  const columns = Object.keys(METRICS);
  const rankers = Object.keys(RANKERS).filter((ranker) => metrics[ranker]?.[protocol]);
  const shown = (value) => (typeof value === "number" ? value.toFixed(4) : "–");
  const head = ["ranked by", ...Object.values(METRICS)].map((title) => make("th", { scope: "col" }, title));
  const rows = rankers.map((ranker) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, RANKERS[ranker]),
      ...columns.map((name) => make("td", {}, shown(metrics[ranker][protocol][name]))),
    ),
  );
  return make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function metrics({ metrics, run }) {
  const measured = PROTOCOLS.filter(([protocol]) => metrics.test?.[protocol]);
  const meaning =
    "HR@10 is the share of cases in which the next item is among the first ten. NDCG@10 also counts how high it ranks there. MRR is the mean of 1 / its rank.";
  return section(
    "Metrics",
    make("p", {}, meaning),
    ...measured.map(([protocol, caption]) => metricsTable(metrics, protocol, caption(run?.evaluation?.num_negatives ?? 100))),
  );
}

function limits(card, model) {
  const { histories, max_history: read, popularity_correction: strength, exclude_seen: seen, scores } = card;
  const sentences = whichHold(
    [true, `It knows ${grouped(model.items)} items and skips all others.`],
    [read > 0, `It reads the last ${grouped(read)} items of a history. Earlier items are only left out of the recommendations.`],
    [!card.users, "A history without a known item gets the most popular items."],
    [card.users, `It knows ${grouped(card.users)} users by their ids.`],
    [scores === "log-probabilities", "A probability is that of the next action. It does not say whether someone will like the item."],
    [scores && scores !== "log-probabilities", "Its scores only rank items. They are not probabilities."],
    [seen === false, "By default it also recommends items of the history, because users come back to them."],
    [strength > 0, `By default it lowers popular items by ${strength} × log(actions + 1).`],
    [histories, `It holds the last ${grouped(histories?.longest ?? 0)} items of ${grouped(histories?.users ?? 0)} users. Whoever can open this page can see them.`],
  );
  return section("Limits", list(sentences));
}

function making({ card, name, version }, address) {
  const versions = Object.entries(card.trained_with?.versions ?? {}).map(([name, version]) => `${name} ${version}`);
  return section(
    "How it was made",
    facts([
      ["Model", card.model],
      ["Served as", `${name}, version ${version}`],
      ["Parameters", card.parameters],
      ["Steps, at most", COUNTING.includes(card.model) ? null : card.run?.training?.steps],
      ["Digest of the settings", card.digest],
      ["Trained with", versions.length ? versions.join(", ") : null],
    ]),
    make("p", {}, make("a", { href: address }, "All settings and signatures as JSON")),
  );
}

/** Shows the model card as a page to read, behind the button that names the model. */
export function showCard(model, address) {
  const { card } = model;
  byId("card").textContent = card.data?.name ? `${card.model}, trained on ${card.data.name}` : card.model;
  byId("card").disabled = false;
  byId("card-content").replaceChildren(
    ...(card.data ? [data(card)] : []),
    ...(card.run ? [protocol(card)] : []),
    ...(card.metrics ? [metrics(card)] : []),
    limits(card, model),
    making(model, address),
  );
}
