// The chat: sends, shows what comes, stops, answers again, and lets the last message be changed.

import { streamChat } from "./api.js";
import { announce, byId } from "./dom.js";
import { askForKey, key } from "./key.js";
import { ReplyNode, userNode } from "./messages.js";
import { attached, onceRead, setAttached } from "./pictures.js";
import { bodyOf, curlOf, paramsOf } from "./request.js";
import { save, state } from "./state.js";

const ANNOUNCED_CHARS = 1000;
const NEAR_END_PX = 60;
const LEFT = "The page was left before this reply had ended.";

const log = byId("log");
const list = byId("messages");
const prompt = byId("prompt");

let running = null; // {message, view, abort} of the reply that is being written
let editing = false;
let isLeft = false; // the page is going away, and takes its connections along
let onKey = () => {};

/** Show all messages anew. */
export function showChat() {
  list.replaceChildren();
  state.messages.forEach((message, i) => {
    if (message.role === "user") list.append(userNode(message, edit));
    else list.append(viewOf(message, i).node);
  });
  showWhetherEmpty();
  toEnd();
}

function viewOf(message, at) {
  const curl = () => {
    const body = bodyOf(message.params, message.system, state.messages.slice(0, at));
    const seed = message.seed === undefined ? {} : { seed: message.seed };
    return curlOf({ ...body, ...seed }, document.baseURI, Boolean(key()));
  };
  return new ReplyNode(message, { curl, again: regenerate });
}

function showWhetherEmpty() {
  byId("empty").hidden = state.messages.length > 0;
}

function toEnd() {
  log.scrollTop = log.scrollHeight;
}

/** Send what was written. */
function send() {
  if (running || onceRead(send)) return;
  const content = prompt.value.trim() ? prompt.value : "";
  const pictures = attached();
  if (!content && !pictures.length) return;
  if (editing) dropFromLastUser();
  setEditing(false);
  prompt.value = "";
  setAttached([]);
  fit();
  const message = pictures.length ? { role: "user", content, pictures } : { role: "user", content };
  state.messages.push(message);
  list.append(userNode(message, edit));
  answer();
}

/** Ask for the reply to the messages as they are. */
async function answer() {
  const before = state.messages.slice();
  const message = {
    role: "assistant", content: "", reasoning: "", running: true,
    params: paramsOf(state.settings), system: state.settings.system,
  };
  state.messages.push(message);
  const view = viewOf(message, before.length);
  list.append(view.node);
  running = { message, view, abort: new AbortController(), frame: 0 };
  showWhetherEmpty();
  showRunning();
  toEnd();
  announce("The reply is being written.");
  save();
  const refused = await receive(bodyOf(message.params, message.system, before));
  finish();
  if (!refused || !(await askForKey(refused))) return;
  onKey();
  if (state.messages.at(-1) === message) regenerate();
}

/** Take the chunks of the running reply. Returns what the server said where it wants another key. */
async function receive(body) {
  const { message, abort } = running;
  let firstMs = 0;
  let firstTokens = 0;
  try {
    for await (const { choices, usage } of streamChat(body, abort.signal)) {
      if (usage) message.usage = usage;
      const tokens = usage?.completion_tokens ?? 0;
      if (tokens && !firstMs) [firstMs, firstTokens] = [performance.now(), tokens];
      const seconds = (performance.now() - firstMs) / 1000;
      if (choices.length && tokens > firstTokens && seconds > 0) message.rate = (tokens - firstTokens) / seconds;
      if (choices.length) take(message, choices[0]);
      showSoon();
    }
  } catch (error) {
    message.problem = abort.signal.aborted ? "You stopped this reply." : isLeft ? LEFT : error.message;
    return error.status === 401 ? error.message : null;
  } finally {
    message.running = false;
  }
  return null;
}

function take(message, choice) {
  message.content += choice.delta.content ?? "";
  message.reasoning += choice.delta.reasoning_content ?? "";
  if (choice.finish_reason) message.finish = choice.finish_reason;
  if (!choice.flashnext) return;
  const { seed, token_sha: sha, timings, drafts } = choice.flashnext;
  Object.assign(message, { seed, sha, timings, drafts });
}

/** Show what has come with the next frame, however many chunks there are until then. */
function showSoon() {
  if (running.frame) return;
  const mine = running;
  mine.frame = requestAnimationFrame(() => {
    mine.frame = 0;
    show(mine);
  });
}

function show({ view }) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  view.show();
  if (atEnd) toEnd(); // who reads further up is left there
}

function finish() {
  const done = running;
  running = null;
  cancelAnimationFrame(done.frame);
  try {
    show(done);
  } finally {
    showRunning();
    save();
  }
  const { content, problem } = done.message;
  // Heard once and whole, instead of token by token.
  announce([problem, content && `Reply: ${content.slice(0, ANNOUNCED_CHARS)}`].filter(Boolean).join(" "));
}

function showRunning() {
  const had = document.activeElement;
  byId("stop").hidden = !running;
  byId("send").hidden = Boolean(running);
  document.body.classList.toggle("running", Boolean(running));
  if (had === byId("stop") || had === byId("send")) (running ? byId("stop") : prompt).focus();
}

/** End the reply that is being written; the server ends it with its connection. */
export function stop() {
  running?.abort.abort();
}

/** Answer the last message once more. */
function regenerate() {
  if (running || state.messages.at(-1)?.role !== "assistant") return;
  state.messages.pop();
  list.lastElementChild.remove();
  prompt.focus();
  answer();
}

function lastUser() {
  return state.messages.findLastIndex((message) => message.role === "user");
}

function edit() {
  if (running) return;
  const { content, pictures = [] } = state.messages[lastUser()];
  prompt.value = content;
  setAttached(pictures.filter(({ url }) => url));
  setEditing(true);
  fit();
  prompt.focus();
}

function dropFromLastUser() {
  state.messages.length = lastUser();
  while (list.children.length > state.messages.length) list.lastElementChild.remove();
}

function setEditing(now) {
  if (editing && !now) {
    prompt.value = "";
    setAttached([]);
  }
  editing = now;
  byId("editing").hidden = !now;
  fit();
}

/** Begin anew. Returns the messages there were. */
export function clearChat() {
  stop();
  const old = state.messages;
  state.messages = [];
  setEditing(false);
  showChat();
  save();
  prompt.focus();
  return old;
}

/** Make the box as high as its text, within bounds that the style sheet sets. */
function fit() {
  prompt.rows = Math.min(12, prompt.value.split("\n").length);
}

function onEscape(event) {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (running) stop();
  else if (editing) setEditing(false);
}

/**
 * Wire the box, its buttons and the keys.
 * @param {() => void} givenKey Called when a reply needed a key, and one was given.
 */
export function bindChat(givenKey) {
  onKey = givenKey;
  for (const message of state.messages) {
    if (message.running) message.problem = LEFT;
    message.running = false;
  }
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  prompt.addEventListener("input", fit);
  prompt.addEventListener("keydown", (event) => {
    // A phone has no Shift+Enter, and Enter may choose a word of an input method.
    const touch = matchMedia("(pointer: coarse)").matches;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch) return;
    event.preventDefault();
    send();
  });
  byId("stop").addEventListener("click", stop);
  document.addEventListener("keydown", onEscape);
  window.addEventListener("pagehide", () => {
    isLeft = true;
    save();
  });
  window.addEventListener("pageshow", () => {
    isLeft = false;
  });
}
