// The body of a request, from the settings and the messages before it, and the same as a curl command.

import { SAMPLING } from "./state.js";

// Linux takes 128 KiB as an argument, and a character may be three bytes. JSON is one line, which no END is.
const ARGUMENT_CHARS = 40_000;

/** Read a number as typed. What is none goes out as it is, so that the server says what is wrong with it. */
function value(text) {
  const number = Number(text);
  const exact = !/^[+-]?\d+$/.test(text) || Number.isSafeInteger(number);
  return Number.isFinite(number) && exact ? number : text;
}

/** All of a request but its messages, from the settings of this moment. */
export function paramsOf(settings) {
  const params = { model: settings.model || "flashnext" };
  for (const name of SAMPLING) {
    const text = settings[name].trim();
    if (text) params[name] = value(text);
  }
  if (settings.thinking) params.reasoning_effort = settings.thinking;
  if (settings.drafts === "off") params.draft = false;
  return params;
}

/** What a user's message says: pictures before the text, so that a text that is changed leaves their rows cached. */
function contentOf(text, pictures = []) {
  const parts = pictures
    .filter(({ url }) => url)
    .map(({ kind, url }) => ({ type: `${kind}_url`, [`${kind}_url`]: { url } }));
  if (!parts.length) return text;
  return text ? [...parts, { type: "text", text }] : parts;
}

/**
 * Write the body of a request. Thoughts of earlier replies go back to the server, which reads a prompt that goes on
 * as the last reply ended from its cache.
 */
export function bodyOf(params, system, messages) {
  const told = messages.flatMap(({ role, content, pictures, reasoning }) => {
    if (role === "user") return [{ role, content: contentOf(content, pictures) }];
    if (!content && !reasoning) return []; // nothing came of it
    return [reasoning ? { role, content, reasoning_content: reasoning } : { role, content }];
  });
  if (system) told.unshift({ role: "system", content: system });
  const streamed = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  return { ...params, ...streamed, messages: told };
}

/** Quote a text for a POSIX shell. */
function quoted(text) {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** Write a request as a command; a key is named by a variable of the shell and never written. */
export function curlOf(body, base, hasKey) {
  const url = new URL("v1/chat/completions", base).href;
  const lines = [`curl -N ${quoted(url)}`, "-H 'content-type: application/json'"];
  if (hasKey) lines.push('-H "authorization: Bearer $FLASHNEXT_API_KEY"');
  const json = JSON.stringify(body);
  const isLong = json.length > ARGUMENT_CHARS;
  lines.push(isLong ? "-d @- <<'END'" : `-d ${quoted(json)}`);
  return lines.join(" \\\n  ") + (isLong ? `\n${json}\nEND\n` : "");
}
