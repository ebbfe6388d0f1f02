import { readAddress, showExample, stopReading, writeAddress } from "./address.js";
import { fetchTitles } from "./api.js";
import { change, whenChanged } from "./change.js";
import { byId } from "./dom.js";
import { loadUser, showHistory, stopLoading } from "./history.js";
import { loadModel, showUserField, whenReplaced } from "./model.js";
import { recommend } from "./results.js";
import { moveFocus } from "./rows.js";
import { pickFirst, search, searchSoon, setTabStop, showFoundList, useFoundKeys, useQueryKeys } from "./search.js";
import { state } from "./state.js";
import { attempt, debounced, retry, setSections, showMessage } from "./tasks.js";
import { keptTheme, showTheme } from "./theme.js";

async function start() {
  await loadModel();
  window.onpopstate = restore;
  attempt(search);
  attempt(readAddress);
}

async function showHistoryAnew() {
  await fetchTitles(state.history);
  showHistory();
}

function showChange() {
  stopReading();
  stopLoading();
  writeAddress();
  showHistory();
  attempt(recommend);
}

function restore() {
  showMessage("Restored from the address.");
  attempt(readAddress);
}

function changeChoice() {
  writeAddress();
  attempt(recommend);
}

function on(id, event, handler) {
  byId(id).addEventListener(event, handler);
}

const recommendSoon = debounced(recommend);
const writeAddressSoon = debounced(writeAddress);

whenChanged(showChange);
whenReplaced(search);
whenReplaced(showHistoryAnew);
whenReplaced(recommend);
setSections(start, []);
setSections(search, ["find"]);
setSections(readAddress, ["past", "next"]);
setSections(recommend, ["next"]);
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
  if (state.model.users) attempt(loadUser);
});
on("user", "input", () => state.model.needs_users && recommendSoon.run());
on("user", "change", () => state.model.needs_users && writeAddress());
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
