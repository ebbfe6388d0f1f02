export const byId = (id) => document.getElementById(id);

/** Creates an element. Text from outside is set as textContent, never as markup. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Whether a text has anything that can be seen, and not only blanks, control characters and characters of no width. */
export function isVisible(text) {
  return /[^\s\p{Cc}\p{Cf}\p{Z}]/u.test(text);
}

/** Returns a number with thousands separators. */
export function grouped(number) {
  return new Intl.NumberFormat("en").format(number);
}
