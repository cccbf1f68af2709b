// The messages on the page: what was said, thoughts folded, what it cost, and what can be done with it.

import { copyButton } from "./copy.js";
import { button, el } from "./dom.js";
import { Markdown } from "./markdown.js";

let count = 0;

/** Frame of a message: an article under a heading, so that screen readers go from one to the next. */
function article(role, title, ...parts) {
  const id = `message-${++count}`;
  const node = el("article", { class: role, "aria-labelledby": id }, el("h2", { id }, title), ...parts);
  return node;
}

/** Show a picture as an item of a list. A video, and what was not kept, is named. */
export function pictureItem({ name, kind, url }, ...more) {
  if (url && kind === "image") {
    return el("li", {}, el("img", { src: url, alt: name, draggable: "false" }), ...more);
  }
  const text = url ? `Video: ${name}` : `${name} was too large to be kept over a reload, and is not sent any more.`;
  return el("li", {}, el("span", {}, text), ...more);
}

/**
 * Make the node of what the user said.
 * @param {{content: string, pictures?: {name: string, kind: string, url: string}[]}} message
 * @param {() => void} onEdit
 */
export function userNode(message, onEdit) {
  const actions = el("div", { class: "actions" });
  if (message.content) actions.append(copyButton("Copy", () => message.content));
  actions.append(button("Edit", onEdit, { class: "for-last" }));
  const parts = [];
  if (message.pictures) {
    const items = message.pictures.map((picture) => pictureItem(picture));
    parts.push(el("ul", { class: "pictures", role: "list", "aria-label": "Pictures" }, ...items));
  }
  if (message.content) parts.push(el("div", { class: "body", dir: "auto" }, message.content));
  return article("user", "You", ...parts, actions);
}

/** A reply on the page, which is shown again whenever more of it has come. */
export class ReplyNode {
  #message;
  #thoughts = el("div", { class: "thought", dir: "auto" });
  #summary = el("summary", {}, "Thoughts");
  #folded = el("details", { class: "thoughts" }, this.#summary, this.#thoughts);
  #body = el("div", { class: "body" });
  #markdown = new Markdown(this.#body);
  #problem = el("p", { class: "problem" });
  #figures = el("ul", { class: "figures", "aria-label": "Figures of the reply" });
  #actions = el("div", { class: "actions" });

  /**
   * @param {object} message The reply of the state.
   * @param {{curl: () => string, again: () => void}} does
   */
  constructor(message, does) {
    this.#message = message;
    this.#actions.append(
      copyButton("Copy", () => message.content),
      copyButton("Copy as curl", does.curl),
      button("Regenerate", does.again, { class: "for-last" }),
    );
    const parts = [this.#folded, this.#body, this.#problem, this.#figures, this.#actions];
    this.node = article("reply", "Reply", ...parts);
    this.show();
  }

  /** Show the message as it is now. */
  show() {
    const { content, reasoning, problem, running } = this.#message;
    this.node.setAttribute("aria-busy", String(Boolean(running)));
    this.#folded.hidden = !reasoning;
    this.#summary.textContent = running && !content ? "Thinking" : "Thoughts";
    // Only what has come since is added, so that a selection in it stays.
    const shown = this.#thoughts.textContent;
    if (reasoning.startsWith(shown)) this.#thoughts.append(reasoning.slice(shown.length));
    else this.#thoughts.textContent = reasoning;
    this.#markdown.show(content);
    this.#problem.hidden = !problem;
    this.#problem.textContent = problem ?? "";
    this.#figures.replaceChildren(...figuresOf(this.#message).map(([text, title]) => el("li", { title }, text)));
    this.#actions.hidden = Boolean(running);
  }
}

/** Tell a speed so that it does not jump about while it is read. */
function speed(tokensPerSecond) {
  return `${tokensPerSecond < 10 ? tokensPerSecond.toFixed(1) : Math.round(tokensPerSecond)} tok/s`;
}

/** What is known of a reply, as [text, what it means] pairs. */
function figuresOf({ running, usage, rate, timings, drafts, seed, sha, finish }) {
  const out = [];
  const tell = (text, title) => out.push([text, title]);
  if (usage?.completion_tokens) tell(`${usage.completion_tokens} tokens`, "Tokens of the reply, thoughts included");
  const measured = timings?.token_ms ? 1000 / timings.token_ms : rate;
  if (measured) tell(speed(measured), "Tokens after the first, over the time from it to the last");
  if (running || !usage) return out;
  if (timings?.first_token_ms) tell(`first after ${Math.round(timings.first_token_ms)} ms`, "Time to the first token");
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  tell(`prompt ${usage.prompt_tokens}, ${cached} cached`, "Tokens of the prompt, and those that were not read again");
  if (drafts) tell(`drafts ${drafts.accepted} of ${drafts.proposed} kept`, "Drafted tokens that were kept");
  if (seed !== undefined) tell(`seed ${seed}`, "The same request with this seed gives the same reply");
  if (sha) tell(`token_sha ${sha}`, "Fingerprint of the reply's tokens");
  if (finish === "length") tell("cut at the token limit", "The reply ended at max tokens or at the context");
  return out;
}
