"use strict";
/* Keys of the whole page: / searches, ? lists the keys; links open what is folded. */
(() => {
  const help = document.getElementById("keys");
  const button = document.getElementById("show-keys");
  const typing = (target) => target.closest?.("input, textarea, select, [contenteditable]");
  /* Fields that are shown, without those of pictures that were not drawn. */
  const fields = () => [...document.querySelectorAll("main input[type=search]")].filter((one) => one.offsetParent);

  /* The search field where the focus is, else the one nearest to the middle of the window. */
  function nearest() {
    const section = document.activeElement?.closest?.("section");
    const here = fields().filter((one) => section?.contains(one));
    const away = (one) => {
      const { top, bottom } = one.closest("[data-picture], [data-flame], .sortable").getBoundingClientRect();
      return Math.max(0, top - innerHeight / 2, innerHeight / 2 - bottom);
    };
    return (here.length ? here : fields()).sort((one, other) => away(one) - away(other))[0];
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || help?.open) return;
    if (event.key === "?" && help) help.showModal();
    else if (event.key === "/") {
      const field = nearest();
      if (!field) return;
      field.focus({ preventScroll: true });
      field.scrollIntoView({ block: "center" });
      field.select();
    } else return;
    event.preventDefault();
  });

  if (help && button) {
    button.hidden = false;
    button.addEventListener("click", () => help.showModal());
    help.querySelector("button").addEventListener("click", () => help.close());
  }

  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  }
  addEventListener("hashchange", () => {
    reveal();
    document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  });
  reveal();
})();
