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

/** Returns a number with thousands separators. */
export function grouped(number) {
  return new Intl.NumberFormat("en").format(number);
}
