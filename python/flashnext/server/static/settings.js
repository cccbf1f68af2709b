// The settings dialog.

import { byId } from "./dom.js";
import { askForKey, key, setKey } from "./key.js";
import { SAMPLING, save, state } from "./state.js";

const FIELDS = ["system", "thinking", "drafts", ...SAMPLING];

/** Show the settings as they are. */
export function showSettings() {
  for (const name of FIELDS) byId(name).value = state.settings[name];
  byId("keep").checked = state.settings.keep;
  showKey();
}

function showKey() {
  const text = key() ? "This tab has a key. It is forgotten when the tab is closed." : "This tab has no key.";
  byId("key-state").textContent = text;
  byId("forget-key").hidden = !key();
}

/**
 * Wire the dialog.
 * @param {{onForget: () => void, onKey: () => void}} does
 */
export function bindSettings({ onForget, onKey }) {
  const dialog = byId("settings");
  byId("open-settings").addEventListener("click", () => {
    showSettings();
    dialog.showModal();
  });
  byId("close-settings").addEventListener("click", () => dialog.close());
  for (const name of FIELDS) {
    byId(name).addEventListener("input", (event) => {
      state.settings[name] = event.target.value;
      save();
    });
  }
  byId("keep").addEventListener("change", (event) => {
    state.settings.keep = event.target.checked;
    save();
  });
  byId("change-key").addEventListener("click", async () => {
    const given = await askForKey("");
    showKey();
    if (given) onKey();
  });
  byId("forget-key").addEventListener("click", () => {
    setKey("");
    showKey();
    byId("change-key").focus();
  });
  byId("forget").addEventListener("click", () => {
    onForget();
    showSettings();
  });
}
