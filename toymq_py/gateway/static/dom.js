// Elements made of text, never of markup: the only way in which this page puts anything on the screen.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element.
 * @param {string} tag "div", or "button.primary" with classes
 * @param {object} attributes functions are listeners by event name; true is an attribute without value; false and null are none
 * @param children elements, and texts, which stay texts whatever they contain
 */
export function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.classList.add(...classes);
  setAttributes(element, attributes);
  element.append(...present(children));
  return element;
}

/** An element of SVG, by attributes alone. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  element.append(...children);
  return element;
}

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name.startsWith("on") || name === "style") throw new Error(`${name} is not set from here`);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
}

/** Lists within lists are one list; what is not there is left out. */
function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Set a text only where it differs: thousands of cells are looked at every second, few change. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace all children. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
  return element;
}

/** A button that does nothing when it is pressed again while it works. It stays enabled: a disabled one loses the focus. */
export function button(label, action, attributes = {}, kind = "") {
  const made = el(`button${kind && `.${kind}`}`, { type: "button", ...attributes }, label);
  let busy = false;
  made.addEventListener("click", async (event) => {
    if (busy) return;
    busy = true;
    try {
      await action(event);
    } finally {
      busy = false;
    }
  });
  return made;
}
