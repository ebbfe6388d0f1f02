import { byId } from "./dom.js";

const PAUSE = 120;
const failed = new Set();
const sections = new Map();

/** Lets a task be tried again after a failure. It brings sections of the page, named by their ids, up to date. */
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
    await task();
    forgetFailure(task);
    return true;
  } catch (error) {
    if (error.name !== "AbortError") showFailure(task, error);
    return false;
  }
}

function showFailure(task, { message, canRetry }) {
  const outdates = canRetry && sections.get(task)?.length > 0;
  showMessage(outdates ? `${message.replace(/\.$/, "")}. What you see is out of date.` : message, true);
  if (!canRetry || !sections.has(task)) return;
  failed.add(task);
  showFailures();
}

function showFailures() {
  const stale = new Set([...failed].flatMap((task) => sections.get(task)));
  for (const section of document.querySelectorAll("main > section")) section.classList.toggle("stale", stale.has(section.id));
  if (!failed.size && document.activeElement === byId("retry")) byId("next-title").focus();
  byId("retry").hidden = !failed.size;
}

/** Takes a task off those to try again. */
export function forgetFailure(task) {
  if (!failed.delete(task)) return;
  showFailures();
  if (!failed.size && byId("state").classList.contains("bad")) showMessage("The server answers again.");
}

export function retry() {
  for (const task of [...failed]) attempt(task);
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
