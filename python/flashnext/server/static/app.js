// Puts the page together: views, models, settings, chat, status.

import { models } from "./api.js";
import { bindChat, clearChat, showChat, stop } from "./chat.js";
import { byId, el } from "./dom.js";
import { askForKey, bindKeyDialog, setKey } from "./key.js";
import { bindPictures, offer } from "./pictures.js";
import { bindSettings, showSettings } from "./settings.js";
import { forget, load, save, state } from "./state.js";
import { bindStatus, look } from "./status.js";
import { bindTheme } from "./theme.js";

const tabs = [byId("tab-chat"), byId("tab-status")];

function open(tab) {
  for (const one of tabs) {
    const isOpen = one === tab;
    one.setAttribute("aria-selected", String(isOpen));
    one.tabIndex = isOpen ? 0 : -1;
    byId(one.getAttribute("aria-controls")).hidden = !isOpen;
  }
  look();
}

function bindTabs() {
  for (const tab of tabs) tab.addEventListener("click", () => open(tab));
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : null;
    if (!step && to === null) return;
    event.preventDefault();
    const next = tabs[to ?? (tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    next.focus();
    open(next);
  });
}

/** Say something at the top of the page, with one thing that can be done about it. */
function notice(text, action = "", onAction = () => {}) {
  byId("notice-text").textContent = text;
  byId("notice").hidden = !text;
  const button = byId("notice-action");
  button.textContent = action;
  button.hidden = !action;
  button.onclick = () => {
    notice("");
    onAction();
  };
}

async function showModels() {
  let listed;
  try {
    listed = await models();
  } catch (error) {
    if (error.status !== 401) notice(error.message, "Try again", showModels);
    else if (await askForKey(error.message)) showModels();
    else notice(error.message, "Give a key", showModels);
    return;
  }
  notice("");
  const select = byId("model");
  select.replaceChildren(...listed.map(({ id }) => el("option", { value: id }, id)));
  if (listed.some(({ id }) => id === state.settings.model)) select.value = state.settings.model;
  state.settings.model = select.value;
  offer(listed[0]?.modalities?.input ?? []);
}

function startAgain() {
  const old = clearChat();
  if (!old.length) return;
  notice("A new chat has begun.", "Bring the old one back", () => {
    stop();
    state.messages = old;
    showChat();
    save();
  });
}

function forgetAll() {
  clearChat();
  const { model } = state.settings;
  forget();
  setKey("");
  state.settings.model = model;
  notice("The chat, the settings and the key were cleared.");
}

load();
bindTheme(byId("theme"));
bindTabs();
bindKeyDialog();
bindSettings({ onForget: forgetAll, onKey: showModels });
bindChat(showModels);
bindPictures();
byId("new-chat").addEventListener("click", startAgain);
byId("notice-close").addEventListener("click", () => notice(""));
byId("model").addEventListener("change", (event) => {
  state.settings.model = event.target.value;
  save();
});
showSettings();
showChat();
bindStatus(showModels);
byId("prompt").focus();
document.documentElement.dataset.ready = "true";
