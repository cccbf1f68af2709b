// Markdown's blocks as plain objects: paragraphs, headings, lists, quotes, code, tables, rules.
//
// What CommonMark and GitHub's tables have and models write. Raw HTML, setext headings and code by indentation are text.
// A code block whose end has not come yet goes to the end, so that a reply can be shown while it is written.
// The time grows with the text and no faster: a pattern here has one way to match, and ends are looked for by index.

const FENCE = /^( {0,3})(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const COLUMN = /^:?-+:?$/;

const MAX_DEPTH = 12; // quotes and lists inside each other; deeper ones are paragraphs

/** Read the blocks of a text. Each has the `source` that it was read from. */
export function blocksOf(text) {
  return read(text.replace(/\r\n?/g, "\n").replaceAll("\t", "    ").split("\n"), 0);
}

function read(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const [block, next] = readOne(lines, at, depth);
    block.source = lines.slice(at, next).join("\n");
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function readOne(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return readCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, text: headingText(line) }, at + 1];
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return readQuote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return readList(lines, at, depth);
  if (isTable(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at, depth);
}

function headingText(line) {
  const text = line.trim().replace(/^#+/, "").trim();
  let end = text.length;
  while (text[end - 1] === "#") end--;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trim() : text;
}

/** Read the beginning of a code block, or null. What follows backticks has none, or they are code inside a line. */
function fenceOf(line) {
  const match = FENCE.exec(line);
  if (!match) return null;
  const [opening, { length: indent }, marks] = match;
  const info = line.slice(opening.length);
  return marks[0] === "`" && info.includes("`") ? null : { indent, marks, info };
}

function readCode(lines, at, { indent, marks, info }) {
  const body = [];
  let next = at + 1;
  let closed = false;
  while (next < lines.length && !closed) {
    const line = lines[next++];
    const text = line.trim();
    const isEnd = text.length >= marks.length && text === marks[0].repeat(text.length);
    if (isEnd && line.search(/\S/) <= 3) closed = true;
    else body.push(line.slice(Math.min(indent, line.length - line.trimStart().length)));
  }
  return [{ type: "code", language: info.trim().split(" ")[0], text: body.join("\n") }, next];
}

function readQuote(lines, at, depth) {
  const inner = [];
  let next = at;
  for (; next < lines.length; next++) {
    const line = lines[next];
    if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ""));
    else if (goesOn(line, inner.at(-1), depth)) inner.push(line.trimStart());
    else break;
  }
  return [{ type: "quote", blocks: read(inner, depth + 1) }, next];
}

/** Whether a line without the marks of its container goes on with a paragraph in it. */
function goesOn(line, before, depth) {
  return before !== undefined && isPlain(inmost(before), depth) && isPlain(line, depth);
}

function isPlain(line, depth) {
  return line.trim() !== "" && !begins(line, depth) && !ITEM.test(line);
}

/** What a line says without the marks of lists and quotes at its beginning. */
function inmost(line) {
  let text = line.trimStart();
  for (let n = 0; n < MAX_DEPTH; n++) {
    const mark = RULE.test(text) ? null : (QUOTE.exec(text) ?? ITEM.exec(text));
    if (!mark) break;
    text = text.slice(mark[0].length).trimStart();
  }
  return text;
}

function readList(lines, at, depth) {
  const kind = (mark) => mark.at(-1); // a list's items have one kind of mark
  const [, , first] = ITEM.exec(lines[at]);
  const list = { type: "list", ordered: /\d/.test(first), start: parseInt(first, 10), loose: false, items: [] };
  let next = at;
  while (next < lines.length) {
    const match = ITEM.exec(lines[next]);
    if (!match || kind(match[2]) !== kind(first) || RULE.test(lines[next])) break;
    const [opening, indent, mark, space] = match;
    const width = indent.length + mark.length + (space.length > 4 || !space ? 1 : space.length);
    const inner = [lines[next].slice(Math.min(width, opening.length))];
    let blank = false;
    for (next++; next < lines.length; next++) {
      const line = lines[next];
      if (!line.trim()) {
        if (blank && inner.every((one) => !one.trim())) break;
        blank = true;
        inner.push("");
      } else if (line.length - line.trimStart().length >= width) {
        blank = false;
        inner.push(line.slice(width));
      } else if (!blank && goesOn(line, inner.at(-1), depth)) {
        inner.push(line.trimStart());
      } else {
        break;
      }
    }
    const trailing = inner.length > 1 && !inner.at(-1).trim();
    while (inner.length && !inner.at(-1).trim()) inner.pop();
    const blocks = read(inner, depth + 1);
    list.items.push(blocks);
    const again = next < lines.length && ITEM.exec(lines[next]);
    if (trailing && again && kind(again[2]) === kind(first)) list.loose = true;
    if (blocks.length > 1 && hasGap(inner, blocks)) list.loose = true;
  }
  return [list, next];
}

/** Whether an empty line stands between two blocks of an item. */
function hasGap(inner, blocks) {
  const held = blocks.reduce((sum, block) => sum + block.source.split("\n").length, 0);
  const ownEnd = blocks.some((block) => block.source.endsWith("\n") && block.type !== "code");
  return inner.length > held || ownEnd;
}

function cellsOf(line) {
  const cells = [];
  let cell = "";
  const text = line.trim().replace(/^\|/, "");
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") {
      cell += "|";
      i++;
    } else if (text[i] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += text[i];
    }
  }
  if (cell.trim()) cells.push(cell.trim());
  return cells;
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !lines[at + 1].includes("-")) return false;
  const columns = cellsOf(lines[at + 1]);
  const isRow = columns.length > 0 && columns.every((cell) => COLUMN.test(cell));
  return isRow && columns.length === cellsOf(lines[at]).length;
}

function readTable(lines, at) {
  const head = cellsOf(lines[at]);
  const align = cellsOf(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : left ? "left" : "";
  });
  const rows = [];
  let next = at + 2;
  for (; next < lines.length && lines[next].trim() && !begins(lines[next], 0); next++) {
    const cells = cellsOf(lines[next]);
    rows.push(head.map((_, i) => cells[i] ?? ""));
  }
  return [{ type: "table", head, align, rows }, next];
}

/** Whether a line begins a block that may stand right behind a paragraph. */
function begins(line, depth) {
  if (fenceOf(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth >= MAX_DEPTH) return false;
  const item = ITEM.exec(line);
  const interrupts = item && item[3] && line.trim() !== item[2] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1);
  return QUOTE.test(line) || Boolean(interrupts);
}

function readParagraph(lines, at, depth) {
  let next = at + 1;
  while (next < lines.length && lines[next].trim() && !begins(lines[next], depth) && !isTable(lines, next)) next++;
  const text = lines
    .slice(at, next)
    .map((line) => line.trimStart())
    .join("\n")
    .trimEnd();
  return [{ type: "paragraph", text }, next];
}
