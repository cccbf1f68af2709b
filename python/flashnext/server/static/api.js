// The server's routes: JSON, the events of a stream, and errors in the server's own words.

import { key } from "./key.js";

/** What the server, or the way to it, said instead of an answer. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function problemOf(response) {
  try {
    const told = await response.json();
    return told.error.message;
  } catch {
    return `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  }
}

async function call(path, { signal, body } = {}) {
  const headers = key() ? { authorization: `Bearer ${headerText(key())}` } : {};
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("The server cannot be reached. Is it running?");
  }
  return response;
}

/** Spell a text for a header as its UTF-8, which is how keys are compared. */
function headerText(text) {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}

async function ok(response) {
  if (response.ok) return response;
  throw new ApiError(await problemOf(response), response.status);
}

/** List the names of the model, with what is known of it. */
export async function models(signal) {
  return (await (await ok(await call("v1/models", { signal }))).json()).data;
}

/** Read the server's health, which is told with 503 as well. */
export async function health(signal) {
  const response = await call("health", { signal });
  const told = await response.json().catch(() => null);
  if (told?.status) return told;
  throw new ApiError(told?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

/** Read the metrics as text; null where the server has none. */
export async function metrics(signal) {
  const response = await call("metrics", { signal });
  if (response.status === 404) return null;
  return (await ok(response)).text();
}

/** Ask for a reply and yield its chunks as they come. */
export async function* streamChat(body, signal) {
  const response = await ok(await call("v1/chat/completions", { signal, body }));
  const lost = new ApiError("The connection was lost before the reply had ended.");
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw lost;
  }
  throw lost;
}

/** Yield the data of server-sent events. Comments, which keep a silent stream open, have none. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const pieces = (rest + value).split(/\r?\n\r?\n/);
      rest = pieces.pop();
      for (const piece of pieces) {
        const data = piece.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (data.length) yield data.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the server then ends the reply
  }
}
