"use strict";
/* What the scripts of all parts share: data, colours, themes, numbers, the tip. */
window.traceq = (() => {
  const root = document.documentElement;
  const wide = matchMedia("(prefers-color-scheme: dark)");
  const redraws = [];
  let colors = {};

  /* The parts of a kind, each with its data: [{ element, data, key }]. */
  function parts(name) {
    return [...document.querySelectorAll(`section[data-part="${name}"]`)].map((element) => {
      const data = document.getElementById(`data-${element.id}`);
      return { element, key: element.id, data: data && JSON.parse(data.textContent) };
    });
  }

  /* The value of a colour of the style, by its name. */
  function color(name) {
    if (!(name in colors)) colors[name] = getComputedStyle(root).getPropertyValue(`--${name}`).trim();
    return colors[name];
  }

  function element(tag, attributes = {}, ...children) {
    return filled(document.createElement(tag), attributes, children);
  }

  function svg(tag, attributes = {}, ...children) {
    return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  }

  function filled(made, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }

  function digits(value) {
    const size = Math.abs(value);
    if (size < 9.995) return value.toFixed(2);
    if (size < 99.95) return value.toFixed(1);
    return Math.round(value).toLocaleString("en");
  }

  /* A duration with three digits, as traceq writes it everywhere. */
  function time(ns) {
    for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
      if (Math.abs(ns) >= size) return `${digits(ns / size)} ${unit}`;
    }
    return `${Math.round(ns)} ns`;
  }

  function share(part, whole) {
    if (!whole) return "-";
    const percent = (100 * part) / whole;
    return percent > 0 && percent < 1 ? "<1%" : `${Math.round(percent)}%`;
  }

  /* A text, shortened until it fits into a room of the canvas. */
  function fitted(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    let low = 0;
    let high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    return low ? `${text.slice(0, low)}…` : "";
  }

  /* The tip: a title and rows of [label, text], at a place of the window. */
  const box = document.getElementById("tip");
  function showTip(x, y, title, rows = []) {
    const list = element("dl", { class: "pairs" });
    for (const [label, text] of rows) {
      if (text) list.append(element("dt", {}, label), element("dd", {}, text));
    }
    box.replaceChildren(element("b", {}, title), list);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    const top = y + 16 + height > innerHeight ? y - 12 - height : y + 16;
    box.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }
  function hideTip() {
    box.hidden = true;
  }

  /* Whether a text has all words that were typed; null if none were. */
  function matcher(typed) {
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return null;
    return (text) => {
      const low = text.toLowerCase();
      return words.every((word) => low.includes(word));
    };
  }

  /* A search field of a picture: search what is typed, go on with Enter, leave with Esc. */
  function searchField(input, { search, next, leave }) {
    input.addEventListener("input", () => search(matcher(input.value)));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") {
        input.value = "";
        search(null);
        leave();
      } else return;
      event.preventDefault();
    });
  }

  /* Call a function whenever colours change; it has drawn once already. */
  function onTheme(redraw) {
    redraws.push(redraw);
  }
  function changed() {
    colors = {};
    name();
    for (const redraw of redraws) redraw();
  }
  function isDark() {
    const set = root.dataset.theme;
    return set ? set === "dark" : wide.matches;
  }

  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    changed();
  });
  wide.addEventListener("change", changed);
  /* The switch says what it does. */
  function name() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
  }
  name();

  /* Paper is light, and shows what is folded. */
  let before = null;
  addEventListener("beforeprint", () => {
    const folded = [...document.querySelectorAll("details:not([open])")];
    before = { theme: root.dataset.theme, folded };
    folded.forEach((one) => { one.open = true; });
    root.dataset.theme = "light";
    changed();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    before.folded.forEach((one) => { one.open = false; });
    if (before.theme) root.dataset.theme = before.theme;
    else delete root.dataset.theme;
    before = null;
    changed();
  });

  /* The contents show which section is read. */
  const links = new Map(
    [...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]),
  );
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((one) => seen.observe(one));

  return {
    parts, color, element, svg, time, fitted, share, matcher, searchField, showTip, hideTip, onTheme,
  };
})();
