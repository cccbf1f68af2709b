// The chat and the settings, and where they are kept: in the tab, or in the browser where that is wished.

const NAME = "flashnext.chat";

/** Settings that go into a request under their own names; "" leaves the choice to the server. */
export const SAMPLING = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

const SETTINGS = { system: "", model: "", thinking: "", drafts: "", keep: false };
for (const name of SAMPLING) SETTINGS[name] = "";

// Browsers keep some five million characters; the rest is for texts.
const PICTURE_CHARS = 3_000_000;

/**
 * All that is kept. `messages` alternate: {role, content}, of a user with `pictures` where there are any, of a reply with
 * what is known of it.
 */
export const state = { messages: [], settings: { ...SETTINGS } };

function parsed(text) {
  try {
    const kept = JSON.parse(text);
    return Array.isArray(kept?.messages) ? kept : null;
  } catch {
    return null; // not ours, or of another version
  }
}

/** Take what was kept: of this tab before that of the browser, which another tab may have written. */
export function load() {
  try {
    const kept = parsed(sessionStorage.getItem(NAME)) ?? parsed(localStorage.getItem(NAME));
    if (!kept) return;
    state.messages = kept.messages.filter((one) => typeof one?.content === "string");
    for (const name of Object.keys(SETTINGS)) {
      if (typeof kept.settings?.[name] === typeof SETTINGS[name]) state.settings[name] = kept.settings[name];
    }
  } catch {
    // A browser that keeps nothing.
  }
}

/** Write the state, with as many of the latest pictures as have room; of others the name stays. */
function written(room) {
  let left = room;
  const messages = state.messages.toReversed().map((message) => {
    if (!message.pictures) return message;
    const pictures = message.pictures.map((picture) => {
      const fits = picture.url.length <= left;
      if (fits) left -= picture.url.length;
      return fits ? picture : { ...picture, url: "" };
    });
    return { ...message, pictures };
  });
  return JSON.stringify({ ...state, messages: messages.reverse() });
}

/** Keep all of it, without pictures where there is no room for them. Returns whether there was room. */
export function save() {
  return keep(written(PICTURE_CHARS)) || keep(written(0));
}

function keep(text) {
  try {
    sessionStorage.setItem(NAME, text);
    if (state.settings.keep) localStorage.setItem(NAME, text);
    else localStorage.removeItem(NAME);
    return true;
  } catch {
    return false;
  }
}

/** Forget the chat and the settings, here and in the browser. */
export function forget() {
  state.messages = [];
  Object.assign(state.settings, SETTINGS);
  try {
    sessionStorage.removeItem(NAME);
    localStorage.removeItem(NAME);
  } catch {
    // Nothing was kept.
  }
}
