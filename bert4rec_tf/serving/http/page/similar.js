import { SIMILAR, fetchTitles, predict } from "./api.js";
import { extend } from "./change.js";
import { make } from "./dom.js";
import { nameOf } from "./state.js";
import { showMessage } from "./tasks.js";

const MAX_SIMILAR = 6;

async function fetchSimilar(id) {
  const outputs = await predict(SIMILAR, { items: [id], k: MAX_SIMILAR });
  const ids = outputs.items[0].filter((one) => one !== "");
  await fetchTitles(ids);
  return ids;
}

export async function toggleSimilar(id, button) {
  if (!button.isConnected) return showMessage("The model was replaced. Click again.");
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
