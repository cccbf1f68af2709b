// Making elements: text is always text, so nothing that a model writes can become markup.

/**
 * Make an element.
 * @param {string} tag
 * @param {Object<string, string>} attributes Names and values, as written in HTML; no handlers, no style.
 * @param {...(Node|string)} children Strings become text nodes.
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Make a button that does something. */
export function button(label, onClick, attributes = {}) {
  const node = el("button", { type: "button", ...attributes }, label);
  node.addEventListener("click", () => onClick(node));
  return node;
}

/** Find an element that the page is sure to have. */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no element #${id}`);
  return node;
}

/** Have something told to who listens to the page. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Fill a description list with [name, value] pairs, leaving out those without a value. */
export function describe(list, pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  list.replaceChildren(...told.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}
