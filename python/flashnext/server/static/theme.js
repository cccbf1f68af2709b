// Light, dark, or as the system has it. Runs before the first paint, so that a chosen theme does not flash.

const NAME = "flashnext.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

function chosen() {
  try {
    const kept = localStorage.getItem(NAME);
    return kept in NEXT ? kept : "auto";
  } catch {
    return "auto"; // a browser that keeps nothing
  }
}

function apply(theme) {
  document.documentElement.dataset.theme = theme;
}

/** Let a button go through the themes. */
export function bindTheme(button) {
  const show = () => {
    button.textContent = `Theme: ${document.documentElement.dataset.theme}`;
  };
  button.addEventListener("click", () => {
    const theme = NEXT[document.documentElement.dataset.theme];
    apply(theme);
    try {
      localStorage.setItem(NAME, theme);
    } catch {
      // It then lasts until the page is left.
    }
    show();
  });
  show();
}

apply(chosen());
