// The status tab: what /health, /v1/models and, where the server has it, /metrics tell.

import { health, metrics, models } from "./api.js";
import { byId, describe, el } from "./dom.js";
import { isCounter, samplesOf, told } from "./metrics.js";
import { state } from "./state.js";

const SHOWN_MS = 5000;
const HEALTHY_MS = 15000;
const UNHEALTHY_MS = 1000;

let timer = 0;
let last = null; // samples by name, and when they were read
let wasOk = false;
let onBack = () => {};

const isOpen = () => !byId("view-status").hidden;

function words(told) {
  if (told.status === "loading") return `loading: ${told.stage}, ${told.percent} %`;
  if (told.status === "ok") return "ready";
  return told.error ? `${told.status}: ${told.error}` : told.status;
}

/** Look now, and again after a while: often where somebody looks or the server is not well. */
export async function look() {
  clearTimeout(timer);
  if (document.hidden) return; // looked at again when it is seen
  let text;
  let isOk = false;
  try {
    const told = await health();
    isOk = told.status === "ok";
    text = words(told);
  } catch {
    text = "unreachable";
  }
  const shown = byId("health");
  if (shown.textContent !== text) shown.textContent = text; // told to screen readers when it changes
  shown.classList.toggle("bad", !isOk);
  const back = isOk && !wasOk;
  wasOk = isOk;
  if (back) onBack();
  if (isOpen()) await showAll(text);
  clearTimeout(timer);
  timer = setTimeout(look, !isOk ? UNHEALTHY_MS : isOpen() ? SHOWN_MS : HEALTHY_MS);
}

async function showAll(healthText) {
  const [listed, measured] = await Promise.all([models().catch(() => []), metrics().catch((error) => error)]);
  const model = listed[0] ?? {};
  describe(byId("status-server"), [
    ["Health", healthText],
    ["Model", model.id],
    ["Also called", model.aliases?.join(", ")],
    ["Context", model.context_window && `${model.context_window.toLocaleString("en")} tokens`],
    ["Weights", model.quantization?.bits.length ? `${model.quantization.bits.join(", ")} bits` : null],
    ["Activations", model.quantization?.activations],
    ["Draft head", model.draft_head === undefined ? null : model.draft_head ? "yes" : "no"],
    ["Device", model.device],
  ]);
  describe(byId("status-cache"), cacheOf(model.prefix_cache));
  describe(byId("status-chat"), chatOf(state.messages));
  showMetrics(measured);
}

function cacheOf(cache) {
  if (!cache) return [["State", "not told"]];
  const bytes = cache.blocks_bytes + cache.pages_bytes;
  return [
    ["Prompts that went on from it", `${cache.hits} of ${cache.hits + cache.misses}`],
    ["Tokens not read again", cache.hit_tokens.toLocaleString("en")],
    ["Memory", `${(bytes / 2 ** 20).toFixed(1)} of ${(cache.limit_bytes / 2 ** 20).toFixed(0)} MiB`],
    ["Marks in memory, on disk", `${cache.marks}, ${cache.stored}`],
  ];
}

function chatOf(messages) {
  const replies = messages.filter((message) => message.usage);
  const sum = (read) => replies.reduce((total, reply) => total + (read(reply) ?? 0), 0);
  const proposed = sum((reply) => reply.drafts?.proposed);
  const accepted = sum((reply) => reply.drafts?.accepted);
  const percent = proposed ? `, ${Math.round((100 * accepted) / proposed)} %` : "";
  return [
    ["Replies", replies.length],
    ["Tokens of replies", sum((reply) => reply.usage.completion_tokens)],
    ["Prompt tokens from the cache", sum((reply) => reply.usage.prompt_tokens_details?.cached_tokens)],
    ["Drafts kept", `${accepted} of ${proposed}${percent}`],
  ];
}

function showMetrics(measured) {
  const none = byId("metrics-none");
  const isThere = typeof measured === "string";
  byId("metrics").hidden = !isThere;
  none.hidden = isThere;
  if (!isThere) {
    none.textContent = measured === null ? "This server has no /metrics." : measured.message;
    return;
  }
  const nowMs = performance.now();
  const samples = samplesOf(measured);
  const values = new Map(samples.map((one) => [`${one.name} ${one.labels}`, one.value]));
  const rows = samples.map((one) => {
    const before = last?.values.get(`${one.name} ${one.labels}`);
    const grown = isCounter(one) && before !== undefined ? (one.value - before) / ((nowMs - last.ms) / 1000) : null;
    const cells = [el("th", { scope: "row" }, one.name), el("td", {}, one.labels), el("td", {}, told(one.value))];
    return el("tr", {}, ...cells, el("td", {}, grown === null ? "" : told(grown)));
  });
  byId("metrics").querySelector("tbody").replaceChildren(...rows);
  last = { values, ms: nowMs };
}

/**
 * Begin to look.
 * @param {() => void} back Called when the server has become well, first of all at the start.
 */
export function bindStatus(back) {
  onBack = back;
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) look();
  });
  look();
}
