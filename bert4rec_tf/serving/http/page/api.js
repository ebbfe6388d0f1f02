import { itemsById, state } from "./state.js";

export const RECOMMEND = "recommend";
export const SIMILAR = "similar";
export const POPULARITY = "popularity_correction";
const UNREACHABLE = "The server does not answer.";
const MAX_IDS = 50;
const MAX_ADDRESS = 4000;

/** Asks the server. An error has the answer's `status`, and `canRetry` if there was none, or it could not at the moment. */
export async function fetchJson(address, options = {}) {
  const headers = options.body ? { "Content-Type": "application/json" } : {};
  try {
    const response = await fetch(address, { ...options, headers });
    const content = await response.json();
    if (response.ok) return content;
    throw Object.assign(new Error(content.error), { status: response.status, canRetry: response.status >= 500 });
  } catch (error) {
    if (error.status || error.name === "AbortError") throw error;
    throw Object.assign(new Error(UNREACHABLE), { canRetry: true });
  }
}

/** Fetches items by a query, by their ids or by their user, and stores their titles and tags. Returns their ids. */
export async function fetchItems(parameters, signal) {
  const { items } = await fetchJson(`page/items?${new URLSearchParams(parameters)}`, { signal });
  for (const item of items) itemsById.set(item.id, item);
  return items.map((item) => item.id);
}

/** Fetches the titles that are not known yet, some at a time: the server reads addresses of at most 8,190 bytes. */
export async function fetchTitles(ids, signal) {
  const missing = state.model.titles ? [...new Set(ids)].filter((id) => !itemsById.has(id)) : [];
  while (missing.length) {
    const idParameters = [];
    while (missing.length && idParameters.length < MAX_IDS && `${new URLSearchParams(idParameters)}`.length < MAX_ADDRESS) idParameters.push(["id", missing.shift()]);
    await fetchItems(idParameters, signal);
  }
}

export function addressOfModel() {
  return `v1/models/${encodeURIComponent(state.model.name)}`;
}

/** Asks the version that the page knows. An error has `isReplaced` if the server has another one by now. */
export async function predict(signature, inputs, signal) {
  const address = `${addressOfModel()}/versions/${state.model.version}:predict`;
  const body = JSON.stringify({ signature_name: signature, inputs });
  try {
    return (await fetchJson(address, { method: "POST", body, signal })).outputs;
  } catch (error) {
    throw Object.assign(error, error.status === 404 && { isReplaced: true, canRetry: true });
  }
}
