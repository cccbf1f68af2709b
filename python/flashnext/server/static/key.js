// The API key: in this tab's memory and sessionStorage, in a header of requests, and nowhere else.

import { byId } from "./dom.js";

const NAME = "flashnext.key";
let held = read();

function read() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

/** The key, or "" where there is none. */
export function key() {
  return held;
}

/** Keep a key for this tab; "" forgets it. */
export function setKey(text) {
  held = text;
  try {
    if (text) sessionStorage.setItem(NAME, text);
    else sessionStorage.removeItem(NAME);
  } catch {
    // It then lasts until the page is left.
  }
}

let asking = null;

/**
 * Ask for a key. Who asks while somebody is being asked gets the same answer.
 * @param {string} problem What the server said.
 * @returns {Promise<boolean>} Whether one was given.
 */
export function askForKey(problem) {
  asking ??= ask(problem).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(problem) {
  const dialog = byId("key-dialog");
  const input = byId("key");
  byId("key-problem").textContent = problem;
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "given"), { once: true });
  });
}

/** Wire the dialog. */
export function bindKeyDialog() {
  const dialog = byId("key-dialog");
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    byId("key").value = "";
    dialog.close("given");
  });
  byId("key-cancel").addEventListener("click", () => dialog.close(""));
}
