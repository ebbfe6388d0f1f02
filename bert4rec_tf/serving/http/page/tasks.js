import { byId } from "./dom.js";
import { runWithCurrentModel } from "./model.js";

const PAUSE = 120;
const failed = new Map();
const sections = new Map();

/** Says which sections of the page, named by their ids, a task brings up to date, so that they are not after its failure. */
export function setSections(task, ids) {
  sections.set(task, ids);
}

export function showMessage(message, bad = false) {
  byId("state").textContent = message;
  byId("state").classList.toggle("bad", bad);
}

/** Runs a task and shows its error, unless a newer task of the same kind has aborted it. Returns whether it succeeded. */
export async function attempt(task) {
  try {
    await runWithCurrentModel(task);
    forgetFailure(task);
    return true;
  } catch (error) {
    if (error.name !== "AbortError") showFailure(task, error);
    return false;
  }
}

function showFailure(task, { message, canRetry }) {
  const isOutdated = sections.get(task)?.length > 0;
  showMessage(isOutdated ? `${message.replace(/\.$/, "")}. What you see is out of date.` : message, true);
  if (!sections.has(task)) return;
  failed.set(task, canRetry);
  showFailures();
}

function showFailures() {
  const stale = new Set([...failed.keys()].flatMap((task) => sections.get(task)));
  const canRetry = [...failed.values()].some(Boolean);
  for (const section of document.querySelectorAll("main > section")) section.classList.toggle("stale", stale.has(section.id));
  if (!canRetry && document.activeElement === byId("retry")) byId("next-title").focus();
  byId("retry").hidden = !canRetry;
}

/** Takes a task off those that failed. */
export function forgetFailure(task) {
  const couldRetry = failed.get(task);
  if (!failed.delete(task)) return;
  showFailures();
  if (!failed.size && byId("state").classList.contains("bad")) showMessage(couldRetry ? "The server answers again." : "");
}

export function retry() {
  for (const [task, canRetry] of [...failed]) if (canRetry) attempt(task);
}

/** Returns a function that runs a task once its calls have paused. */
export function debounced(task) {
  let pause;
  const run = () => {
    clearTimeout(pause);
    pause = setTimeout(() => attempt(task), PAUSE);
  };
  return { run, cancel: () => clearTimeout(pause) };
}
