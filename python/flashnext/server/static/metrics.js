// Prometheus' text format: samples with their labels.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)(?: \d+)?$/;

/**
 * Read the samples of a text. Buckets are left out: a table of them tells a person little.
 * @returns {{name: string, labels: string, value: number, type: string}[]}
 */
export function samplesOf(text) {
  const types = new Map();
  const samples = [];
  for (const line of text.split("\n")) {
    const [, kind, of, type] = line.match(/^# (TYPE) (\S+) (\S+)/) ?? [];
    if (kind) types.set(of, type);
    const match = line.startsWith("#") ? null : SAMPLE.exec(line.trim());
    if (!match || match[1].endsWith("_bucket")) continue;
    const [, name, labels = "", value] = match;
    const family = types.get(name) ?? types.get(name.replace(/_(sum|count|total)$/, "")) ?? "untyped";
    samples.push({ name, labels, value: numberOf(value), type: family });
  }
  return samples;
}

function numberOf(text) {
  return { "+Inf": Infinity, "-Inf": -Infinity }[text] ?? Number(text);
}

/** Whether a sample only ever grows, so that its growth a second says something. */
export function isCounter({ name, type }) {
  return type === "counter" || (type === "histogram" && /_(sum|count)$/.test(name));
}

/** Write a number for a table. */
export function told(value) {
  if (!Number.isFinite(value)) return String(value);
  return value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) >= 1000 ? 15 : 4 });
}
