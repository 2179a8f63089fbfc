"use strict";
/* Tips of the marks of charts, tables that one sorts and searches, memory at a moment. */
(() => {
  const { showTip, hideTip, parts, matcher } = window.traceq;

  let tipped = null;
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip]");
    if (mark) {
      const [title, rows] = JSON.parse(mark.dataset.tip);
      showTip(event.clientX, event.clientY, title, rows);
    } else if (tipped) hideTip();
    tipped = mark;
  });

  function value(cell) {
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  }

  for (const box of document.querySelectorAll(".sortable")) {
    const body = box.querySelector("tbody");
    const rows = [...body.rows];
    const heads = [...box.querySelectorAll("th")];
    heads.forEach((head, at) => {
      head.querySelector("button").addEventListener("click", () => {
        const numbers = head.classList.contains("number");
        const now = head.getAttribute("aria-sort");
        const down = now ? now === "ascending" : numbers;
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sign = down ? -1 : 1;
        rows.sort((one, other) => {
          const [a, b] = [value(one.cells[at]), value(other.cells[at])];
          return sign * (numbers ? a - b : a.localeCompare(b, "en"));
        });
        body.append(...rows);
      });
    });
    const search = box.querySelector("input");
    const count = box.querySelector(".count");
    const all = count.textContent;
    search.addEventListener("input", () => {
      const matches = matcher(search.value);
      let shown = 0;
      for (const row of rows) {
        const here = !matches || matches(`${row.textContent} ${row.dataset.search || ""}`);
        row.hidden = !here;
        if (here) shown += 1;
      }
      count.textContent = matches ? `${shown} of ${rows.length} rows match` : all;
    });
  }

  for (const { element, data } of parts("memory")) {
    element.querySelectorAll(".memory-over-time").forEach((figure, number) => {
      const svg = figure.querySelector("svg");
      const at = figure.querySelector(".at-mouse");
      const { left, right, width, moments } = data.devices[number];
      const hide = () => {
        at.classList.remove("shown");
        hideTip();
      };
      const show = (part, x, y) => {
        const index = Math.min(moments.length - 1, Math.floor(part * moments.length));
        const place = left + part * (right - left);
        at.setAttribute("x1", place);
        at.setAttribute("x2", place);
        at.classList.add("shown");
        const [title, rows] = moments[index];
        showTip(x, y, title, rows);
      };
      svg.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect();
        const x = ((event.clientX - box.left) / box.width) * width;
        const part = (x - left) / (right - left);
        if (part < 0 || part > 1) return hide();
        show(part, event.clientX, event.clientY);
      });
      svg.addEventListener("pointerleave", hide);
      /* By keyboard: the arrows move from moment to moment. */
      let moment = 0;
      const scrolled = svg.parentElement;
      scrolled.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
        if (event.key === "Escape") return hide();
        if (!step) return;
        event.preventDefault();
        moment = Math.min(Math.max(moment + step, 0), moments.length - 1);
        const box = svg.getBoundingClientRect();
        const part = (moment + 0.5) / moments.length;
        show(part, box.left + ((left + part * (right - left)) / width) * box.width, box.top + 40);
      });
      scrolled.addEventListener("blur", hide);
    });
  }
})();
