import { byId } from "./dom.js";

const THEME = "theme";

/** Reads or writes the theme that this browser keeps. Browsers may forbid to keep anything. */
export function keptTheme(theme) {
  try {
    if (theme !== undefined) localStorage.setItem(THEME, theme);
    return localStorage.getItem(THEME) ?? "";
  } catch {
    return theme ?? "";
  }
}

export function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").value = theme;
}
