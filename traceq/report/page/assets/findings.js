"use strict";
/* Cards of findings: filters by family and severity. */
for (const { element } of window.traceq.parts("findings")) {
  const filters = element.querySelector("[data-filters]");
  const cards = [...element.querySelectorAll(".card")];
  if (!filters || cards.length < 2) continue;
  const chips = [...filters.querySelectorAll(".chip")];
  const folded = element.querySelector("details.minor");
  const status = filters.querySelector("[data-shown]");
  const off = (kind) => new Set(
    chips.filter((chip) => chip.dataset[kind] && chip.getAttribute("aria-pressed") === "false")
      .map((chip) => chip.dataset[kind]),
  );
  const apply = () => {
    const families = off("family");
    const severities = off("severity");
    let shown = 0;
    for (const card of cards) {
      const hidden = families.has(card.dataset.family) || severities.has(card.dataset.severity);
      card.parentElement.hidden = hidden;
      shown += !hidden;
    }
    if (folded) folded.hidden = !folded.querySelector(".cards > li:not([hidden])");
    status.textContent = shown < cards.length ? `${shown} of ${cards.length} findings` : "";
  };
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      apply();
    });
  }
  filters.hidden = false;
}
