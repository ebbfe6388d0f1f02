import { POPULARITY, addressOfModel, fetchJson } from "./api.js";
import { showCard } from "./card.js";
import { byId, grouped } from "./dom.js";
import { itemsById, state } from "./state.js";

const replaced = [];
let isOutdated = false;

/** Asks which model the server has, and shows its name, its card and the controls that it needs. */
export async function loadModel() {
  state.model = await fetchJson("page/model");
  byId("model").textContent = `version ${state.model.version}, ${grouped(state.model.items)} items`;
  byId("query-label").textContent = state.model.titles ? "Title or id" : "Id";
  byId("popularity").max = Math.max(1, state.model.card[POPULARITY] ?? 0);
  byId("choose-user").hidden = !state.model.users;
  byId("load").hidden = !state.model.users;
  showUserField(state.model.needs_users);
  showCard(state.model, `${addressOfModel()}/metadata`);
}

export function showUserField(opens) {
  byId("user-field").hidden = !opens;
  byId("choose-user").setAttribute("aria-expanded", `${opens}`);
}

/** Says what to do when the server has replaced the model: its titles and items may be others. */
export function whenReplaced(task) {
  replaced.push(task);
}

/** Runs a task. If the server has another version by now, shows everything anew, and then runs the task once more. */
export async function runWithCurrentModel(task) {
  try {
    if (!isOutdated) return await task();
  } catch (error) {
    if (!error.isReplaced) throw error;
  }
  isOutdated = true;
  await loadModel();
  itemsById.clear();
  let failure;
  for (const show of replaced) {
    await show().catch((error) => {
      if (show === task || error.name !== "AbortError") failure ??= error;
    });
  }
  isOutdated = Boolean(failure?.canRetry);
  if (!isOutdated && !replaced.includes(task)) await task();
  if (failure) throw failure;
}
