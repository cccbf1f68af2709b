// Markdown as elements of the page. The text of a model becomes text nodes, and links become those that are safe.

import { blocksOf } from "./blocks.js";
import { copyButton } from "./copy.js";
import { el } from "./dom.js";
import { inlineOf } from "./inline.js";

const TAGS = { em: "em", strong: "strong", strike: "s" };

/** Shows a Markdown text that grows, and makes anew only the blocks that have changed. */
export class Markdown {
  #node;
  #sources = [];

  /** @param {Element} node Its children are the blocks. */
  constructor(node) {
    this.#node = node;
  }

  /** Show a text in the place of the last one; as it is written, where it is too much for what is here. */
  show(text) {
    try {
      this.#showBlocks(blocksOf(text));
    } catch {
      this.#node.textContent = text;
      this.#sources = [];
    }
  }

  #showBlocks(blocks) {
    if (!this.#sources.length) this.#node.replaceChildren();
    blocks.forEach((block, i) => {
      if (this.#sources[i] === block.source) return;
      const old = this.#node.children[i];
      if (!old) this.#node.append(blockNode(block));
      else if (!grown(old, block)) old.replaceWith(blockNode(block));
    });
    while (this.#node.children.length > blocks.length) this.#node.lastElementChild.remove();
    this.#sources = blocks.map((block) => block.source);
  }
}

/** Give a code block its longer text, so that its button keeps the focus while it is written. */
function grown(node, block) {
  if (block.type !== "code" || node.dataset.language !== block.language) return false;
  node.querySelector("code").textContent = block.text;
  return true;
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // A message has a heading of the second level itself.
      return el(`h${Math.min(6, block.level + 2)}`, { dir: "auto" }, ...inlineNodes(block.text));
    case "rule":
      return el("hr");
    case "code":
      return codeNode(block);
    case "quote":
      return el("blockquote", {}, ...block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    default:
      return el("p", { dir: "auto" }, ...inlineNodes(block.text));
  }
}

function codeNode({ language, text }) {
  const code = el("code", {}, text);
  const caption = el("figcaption", {}, el("span", {}, language), copyButton("Copy code", () => code.textContent));
  const node = el("figure", { class: "code" }, caption, el("pre", { tabindex: "0", dir: "ltr" }, code));
  node.dataset.language = language;
  return node;
}

function listNode({ ordered, start, loose, items }) {
  const attributes = ordered && start !== 1 ? { start: String(start) } : {};
  const nodes = items.map((blocks) => {
    const parts = blocks.flatMap((block) =>
      block.type === "paragraph" && !loose ? inlineNodes(block.text) : [blockNode(block)],
    );
    return el("li", { dir: "auto" }, ...parts);
  });
  return el(ordered ? "ol" : "ul", attributes, ...nodes);
}

function tableNode({ head, align, rows }) {
  const row = (tag, cells) => {
    const nodes = cells.map((cell, i) => el(tag, align[i] ? { class: align[i] } : {}, ...inlineNodes(cell)));
    return el("tr", {}, ...nodes);
  };
  const parts = [el("thead", {}, row("th", head))];
  if (rows.length) parts.push(el("tbody", {}, ...rows.map((cells) => row("td", cells))));
  // It may be wider than the page, and is then moved by keys too.
  const around = { class: "table", tabindex: "0", role: "region", "aria-label": "Table" };
  return el("div", around, el("table", {}, ...parts));
}

function inlineNodes(text) {
  return nodesOf(inlineOf(text));
}

function nodesOf(parts) {
  return parts.flatMap((part) => {
    if (part.type === "text") return [part.text];
    if (part.type === "break") return [el("br")];
    if (part.type === "code") return [el("code", {}, part.text)];
    if (part.type === "link") return linkNodes(part);
    return [el(TAGS[part.type], {}, ...nodesOf(part.children))];
  });
}

/** Make a link that says where it leads, where its text does not. */
function linkNodes({ url, children }) {
  const attributes = { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", title: url.href };
  const link = el("a", attributes, ...nodesOf(children));
  const where = url.host || url.pathname;
  const told = link.textContent === url.href || `${link.textContent}/` === url.href;
  return told ? [link] : [link, " ", el("bdi", { class: "where" }, `(${where})`)];
}
