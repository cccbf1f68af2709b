// Pictures for the next message, and videos where the server takes them: by button, paste and drop, until they are sent.

import { announce, button, byId } from "./dom.js";
import { pictureItem } from "./messages.js";

const SENT_KINDS = ["image", "video"];

const attach = byId("attach");
const files = byId("files");
const list = byId("attached");
const target = byId("drop");

let kinds = []; // of SENT_KINDS, those that the server reads
let pictures = []; // {name, kind, url} each, the url with all of the file in it
let nReading = 0;
let afterReading = null;
let over = null; // what a dragged file was moved over last

/** Offer what the server reads, as its model's list of modalities has it. */
export function offer(modalities) {
  kinds = SENT_KINDS.filter((kind) => modalities.includes(kind));
  attach.hidden = !kinds.length;
  files.accept = kinds.map((kind) => `${kind}/*`).join();
}

/** The pictures of the message that is being written. */
export function attached() {
  return pictures;
}

/** Put pictures in the place of those that are there. */
export function setAttached(those) {
  pictures = those;
  tell("");
  show();
}

/** Do something once all files are read. Returns whether some are being read; the last wish is the one that counts. */
export function onceRead(act) {
  if (nReading) afterReading = act;
  return nReading > 0;
}

function tell(problem) {
  byId("attach-problem").textContent = problem;
  byId("attach-problem").hidden = !problem;
}

function show() {
  list.hidden = !pictures.length;
  list.replaceChildren(
    ...pictures.map((picture, i) => {
      const label = `Remove ${picture.name}`;
      return pictureItem(picture, button("Remove", () => remove(i), { "aria-label": label }));
    }),
  );
}

function remove(i) {
  const [{ name }] = pictures.splice(i, 1);
  tell("");
  show();
  announce(`${name} was removed.`);
  const buttons = list.querySelectorAll("button");
  (buttons[Math.min(i, buttons.length - 1)] ?? byId("prompt")).focus();
}

/** Read files into the message that is being written, in their order. */
async function add(chosen) {
  tell("");
  if (!kinds.length) {
    tell("This server does not say that it reads pictures, so nothing was added.");
    return;
  }
  const problems = [];
  nReading++;
  const read = await Promise.all(
    chosen.map(async (file) => {
      const [kind] = file.type.split("/");
      try {
        if (kinds.includes(kind)) return { name: file.name, kind, url: await urlOf(file) };
        problems.push(`${file.name} is no ${kinds.includes("video") ? "picture or video" : "picture"}.`);
      } catch {
        problems.push(`${file.name} cannot be read.`);
      }
      return null;
    }),
  );
  nReading--;
  if (problems.length) afterReading = null; // who had sent it with that file looks at it once more
  const added = read.filter(Boolean);
  for (const picture of added) pictures.push({ ...picture, name: unused(picture.name) });
  show();
  tell(problems.join(" "));
  if (added.length) announce(`${added.map(({ name }) => name).join(", ")} added.`);
  if (nReading) return;
  const act = afterReading;
  afterReading = null;
  act?.();
}

function urlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** Tell pictures of one name apart: what is pasted is always called image.png. */
function unused(name) {
  const isUsed = (one) => pictures.some((picture) => picture.name === one);
  let free = name;
  for (let n = 2; isUsed(free); n++) free = `${name} (${n})`;
  return free;
}

/** Whether the message box is there to be used, and not behind a dialog or on the other tab. */
function isOpen() {
  return !byId("view-chat").hidden && !document.querySelector("dialog[open]");
}

function onPaste(event) {
  const { clipboardData: data } = event;
  // Office programs put a picture of the text beside it.
  const isText = data.types.includes("text/html") && data.getData("text/plain").trim() !== "";
  if (!isOpen() || isText || !data.files.length) return;
  event.preventDefault();
  add([...data.files]);
}

/** Wire what is dragged: a file that misses everything would be opened in the page's place. */
function bindDrop() {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const showTarget = () => {
    target.hidden = !(over && kinds.length && isOpen());
  };
  document.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over = event.target;
    showTarget();
  });
  document.addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  document.addEventListener("dragleave", (event) => {
    if (event.target !== over) return; // something else has been entered before
    over = null;
    showTarget();
  });
  document.addEventListener("drop", (event) => {
    over = null;
    showTarget();
    if (!hasFiles(event)) return;
    event.preventDefault();
    if (!isOpen()) return;
    add([...event.dataTransfer.files]);
    byId("prompt").focus();
  });
}

/** Wire the button, paste and drop. */
export function bindPictures() {
  attach.addEventListener("click", () => files.click());
  files.addEventListener("change", () => {
    add([...files.files]);
    files.value = ""; // so that the same file can be chosen once more
    byId("prompt").focus();
  });
  document.addEventListener("paste", onPaste);
  bindDrop();
}
