// Copying text, also where the page was not asked for over a secure connection.

import { button, el } from "./dom.js";

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain HTTP from another machine browsers have only the old way.
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  const focused = document.activeElement;
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!done) throw new Error("the browser does not let the page copy");
}

/**
 * Make a button that copies a text and says for a moment that it has.
 * @param {string} label
 * @param {() => string} text Called when it is pressed.
 */
export function copyButton(label, text) {
  return button(label, async (node) => {
    try {
      await copy(text());
      node.textContent = "Copied";
    } catch {
      node.textContent = "Not allowed";
    }
    setTimeout(() => {
      node.textContent = label;
    }, 2000);
  });
}
