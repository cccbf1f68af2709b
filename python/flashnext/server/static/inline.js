// What stands inside a line of Markdown, as plain objects: text, code, emphasis, links, line breaks.
//
// The time is bounded for any text: links are looked for within a number of characters, and emphasis by CommonMark's
// algorithm, which does not look twice for what is not there.

const MAX_LABEL = 1000;
const MAX_ADDRESS = 2000;
const MAX_EMPHASIS = 100; // inside each other; what is around them has its marks shown
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(\w{2,4}));/y;
const ANGLE = /<((?:https?|mailto):[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<]{1,2000}/y;
const BREAK = /<br ?\/?>/iy;

/** Read an address that may be followed: of the web or of mail, and nothing that runs here. */
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url : null;
  } catch {
    return null; // relative ones too: they would lead to this server
  }
}

/** Read the parts of a text. Nodes are {type, text} or {type, children, ...}. */
export function inlineOf(text, inLink = false) {
  return emphasized(scan(text, inLink));
}

function at(pattern, text, i) {
  pattern.lastIndex = i;
  return pattern.exec(text);
}

function scan(text, inLink) {
  const parts = [];
  const noCode = new Set(); // lengths of marks behind which no such mark comes any more
  let plain = "";
  const push = (part) => {
    if (plain) parts.push({ type: "text", text: plain });
    plain = "";
    parts.push(part);
  };
  for (let i = 0; i < text.length; ) {
    const char = text[i];
    let found = null;
    if (char === "\\" && text[i + 1] === "\n") found = [{ type: "break" }, i + 2];
    else if (char === "\\" && ESCAPABLE.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
      continue;
    } else if (char === "\n") {
      const spaces = plain.length - plain.trimEnd().length;
      plain = plain.trimEnd();
      if (spaces < 2) {
        plain += "\n";
        i++;
        continue;
      }
      found = [{ type: "break" }, i + 1];
    } else if (char === "`") found = code(text, i, noCode);
    else if (char === "&") {
      const entity = at(ENTITY, text, i);
      const spelled = entity && decoded(entity);
      if (spelled) {
        plain += spelled;
        i += entity[0].length;
        continue;
      }
    } else if (char === "<") found = angle(text, i, inLink);
    else if (char === "[" || (char === "!" && text[i + 1] === "[")) found = inLink ? null : link(text, i);
    else if (char === "h" && !inLink) found = bare(text, i);
    else if (char === "*" || char === "_" || char === "~") found = run(text, i);
    if (found) {
      push(found[0]);
      i = found[1];
    } else {
      plain += char;
      i++;
    }
  }
  if (plain) parts.push({ type: "text", text: plain });
  return parts;
}

function decoded([, decimal, hex, name]) {
  if (name) return ENTITIES[name];
  const point = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
  return point > 0 && point < 0x110000 && !(point >= 0xd800 && point < 0xe000) ? String.fromCodePoint(point) : "\ufffd";
}

function runLength(text, i) {
  let end = i;
  while (text[end] === text[i]) end++;
  return end - i;
}

function code(text, i, noCode) {
  const n = runLength(text, i);
  const marks = "`".repeat(n);
  const asText = [{ type: "text", text: marks }, i + n];
  if (noCode.has(n)) return asText;
  for (let end = text.indexOf("`", i + n); end >= 0; ) {
    const length = runLength(text, end);
    if (length === n) {
      let inner = text.slice(i + n, end).replaceAll("\n", " ");
      if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1);
      return [{ type: "code", text: inner }, end + n];
    }
    end = text.indexOf("`", end + length);
  }
  noCode.add(n);
  return asText;
}

function angle(text, i, inLink) {
  const breaks = at(BREAK, text, i);
  if (breaks) return [{ type: "break" }, i + breaks[0].length];
  const match = inLink ? null : at(ANGLE, text, i);
  return match && linked(match[1], [{ type: "text", text: match[1] }], i + match[0].length);
}

function bare(text, i) {
  if (i > 0 && /\w/.test(text[i - 1])) return null;
  const match = at(BARE, text, i);
  if (!match) return null;
  const whole = match[0].replace(/["\x60*~|].*$/s, "");
  // What ends a sentence is no part of it, and a bracket only where its other half is.
  const count = (char) => whole.split(char).length - 1;
  const extra = { ")": count(")") - count("("), "]": count("]") - count("[") };
  let end = whole.length;
  for (; end; end--) {
    const last = whole[end - 1];
    if (extra[last] > 0) extra[last]--;
    else if (!".,:;!?'\"".includes(last)) break;
  }
  const address = whole.slice(0, end);
  return linked(address, [{ type: "text", text: address }], i + address.length);
}

function linked(address, children, end) {
  const url = safeUrl(address);
  return url && [{ type: "link", url, children }, end];
}

/** Read [label](address "title"); an image is a link to it, since to load it would tell somebody else of this chat. */
function link(text, i) {
  const open = text[i] === "!" ? i + 1 : i;
  const close = labelEnd(text, open);
  if (close < 0 || text[close + 1] !== "(") return null;
  const inside = /^(?:<([^<>\n]*)>|([^\s<]\S*))?(?:\s+(?:"[^"]*"|'[^']*'))?$/;
  const end = addressEnd(text, close + 1);
  if (end < 0) return null;
  const match = inside.exec(text.slice(close + 2, end).trim());
  if (!match) return null;
  const label = text.slice(open + 1, close);
  const children = inlineOf(label || match[1] || match[2] || "", true);
  return linked(match[1] ?? match[2] ?? "", children, end + 1);
}

function labelEnd(text, open) {
  let depth = 0;
  const last = Math.min(text.length, open + MAX_LABEL);
  for (let i = open; i < last; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "[") depth++;
    else if (text[i] === "]" && --depth === 0) return i;
  }
  return -1;
}

function addressEnd(text, open) {
  let depth = 0;
  const last = Math.min(text.length, open + MAX_ADDRESS);
  for (let i = open; i < last; i++) {
    if (text[i] === "(") depth++;
    else if (text[i] === ")" && --depth === 0) return i;
  }
  return -1;
}

/** Read a run of *, _ or ~, and whether it can open and close emphasis. */
function run(text, i) {
  const n = runLength(text, i);
  const before = i ? (text.codePointAt(i - 2) > 0xffff ? text.slice(i - 2, i) : text[i - 1]) : " ";
  const after = i + n < text.length ? String.fromCodePoint(text.codePointAt(i + n)) : " ";
  const [spaceBefore, spaceAfter] = [/\s/.test(before), /\s/.test(after)];
  const [markBefore, markAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
  const left = !spaceAfter && (!markAfter || spaceBefore || markBefore);
  const right = !spaceBefore && (!markBefore || spaceAfter || markAfter);
  const word = text[i] === "_";
  const mark = { type: "run", char: text[i], n, whole: n };
  mark.opens = left && (!word || !right || markBefore);
  mark.closes = right && (!word || !left || markAfter);
  if (text[i] === "~" && n !== 2) mark.opens = mark.closes = false;
  return [mark, i + n];
}

/** Pair the runs, as CommonMark's appendix does, and turn what is left of them into text. */
function emphasized(parts) {
  const bottom = new Map();
  let floor = -1; // nothing up to here is opened behind it: that would be too deep
  for (let c = 0; c < parts.length; c++) {
    const closer = parts[c];
    if (closer.type !== "run" || !closer.closes || !closer.n) continue;
    const kind = `${closer.char}${closer.opens}${closer.whole % 3}`;
    const lowest = Math.max(bottom.get(kind) ?? -1, floor);
    let o = c - 1;
    while (o > lowest && !pairs(parts[o], closer)) o--;
    if (o <= lowest) {
      bottom.set(kind, c - 1);
      continue;
    }
    const children = parts.slice(o + 1, c).map(asText);
    const depth = 1 + children.reduce((deepest, child) => Math.max(deepest, child.depth ?? 0), 0);
    if (depth > MAX_EMPHASIS) {
      floor = c - 1;
      continue;
    }
    const opener = parts[o];
    const n = Math.min(opener.n, closer.n, 2);
    const type = closer.char === "~" ? "strike" : n === 2 ? "strong" : "em";
    opener.n -= n;
    closer.n -= n;
    parts.splice(o + 1, c - o - 1, { type, depth, children });
    c = o + 1; // the closer is looked at once more, behind what has come between
    if (!closer.n) c++;
  }
  return parts.map(asText).filter((part) => part.type !== "text" || part.text);
}

function pairs(opener, closer) {
  if (opener.type !== "run" || !opener.opens || !opener.n || opener.char !== closer.char) return false;
  const either = opener.closes || closer.opens;
  const three = (opener.whole + closer.whole) % 3 === 0 && (opener.whole % 3 || closer.whole % 3);
  return !(either && three);
}

function asText(part) {
  return part.type === "run" ? { type: "text", text: part.char.repeat(part.n) } : part;
}
