"use strict";
/* Sums of a range of the picture: the GPU's idle time by cause, and time by name. */
(() => {
  const { element, time, share } = window.traceq;
  const [START, LENGTH, NAME, KIND, COUNT, BUSY] = [0, 1, 2, 5, 6, 7];
  const MOST = 12;

  const overlap = (start, end, from, to) => Math.max(0, Math.min(end, to) - Math.max(start, from));

  /* The time of a slice within the range; of a run, that of the slices in it. */
  function within(row, one, from, to) {
    const length = row[LENGTH][one];
    const part = overlap(row[START][one], row[START][one] + length, from, to);
    return row[COUNT][one] > 1 && length ? (part / length) * row[BUSY][one] : part;
  }

  /* Sums by name of some lanes: time without what is nested in it, and calls. */
  function byName(data, lanes, from, to) {
    const sums = new Map();
    const sum = (row, one) => {
      const run = row[COUNT][one] > 1;
      const key = run ? -1 - row[KIND][one] : row[NAME][one];
      if (!sums.has(key)) {
        const name = run ? `short ${data.kinds[row[KIND][one]]}s, drawn together` : data.texts[row[NAME][one]];
        sums.set(key, { name, run, ns: 0, count: 0 });
      }
      return sums.get(key);
    };
    for (const { rows } of lanes) {
      rows.forEach((row, depth) => {
        let parent = 0;
        const around = rows[depth - 1];
        for (let one = 0; one < row[START].length && row[START][one] < to; one += 1) {
          const ns = within(row, one, from, to);
          if (!ns) continue;
          const mine = sum(row, one);
          mine.ns += ns;
          mine.count += row[COUNT][one];
          if (!around) continue;
          while (parent + 1 < around[START].length && around[START][parent + 1] <= row[START][one]) parent += 1;
          sum(around, parent).ns -= ns;
        }
      });
    }
    return [...sums.values()].filter((one) => one.ns > 0).sort((one, other) => other.ns - one.ns);
  }

  /* All sums of a range. */
  function sumsOf(data, from, to) {
    const idle = new Map();
    data.gaps.starts.forEach((start, one) => {
      const ns = overlap(start, start + data.gaps.lengths[one], from, to);
      const name = data.gaps.names[data.gaps.causes[one]];
      if (ns) idle.set(name, (idle.get(name) ?? 0) + ns);
    });
    const lanes = (gpu) => data.lanes.filter((lane) => lane.gpu === gpu);
    return {
      from,
      to,
      idle: [...idle].sort(([, one], [, other]) => other - one),
      gpu: byName(data, lanes(true), from, to),
      host: byName(data, lanes(false), from, to),
    };
  }

  function table(title, rows, whole, go) {
    const head = ["time", "share", "calls", "name"].map((name, at) => element("th", { scope: "col", class: at < 3 ? "number" : null }, name));
    const cell = (text) => element("td", { class: "number" }, text);
    const body = rows.slice(0, MOST).map(({ name, run, ns, count }) => {
      const button = element("button", { type: "button", class: "link" }, name);
      button.addEventListener("click", () => go(name));
      const last = element("td", { class: "name code" }, run ? name : button);
      return element("tr", {}, cell(time(ns)), cell(share(ns, whole)), cell(count.toLocaleString("en")), last);
    });
    const rest = rows.slice(MOST);
    if (rest.length) {
      const ns = rest.reduce((sum, one) => sum + one.ns, 0);
      body.push(element("tr", {}, cell(time(ns)), cell(share(ns, whole)), cell(""), element("td", { class: "muted" }, `${rest.length} more`)));
    }
    return element("div", {}, element("table", {},
      element("caption", {}, title), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)));
  }

  /* The sums as elements; go is called with the name of a row that is clicked. */
  function sumsTables(data, from, to, go) {
    const sums = sumsOf(data, from, to);
    const whole = to - from;
    const text = [`${time(whole)} selected, from ${from ? time(from) : "0"} to ${time(to)}.`];
    if (sums.gpu.length || sums.idle.length) {
      const idle = sums.idle.reduce((sum, [, ns]) => sum + ns, 0);
      text.push(` The GPU works for ${time(whole - idle)} (${share(whole - idle, whole)})`);
      const causes = sums.idle.slice(0, 4).map(([name, ns]) => `${name} ${time(ns)}`).join(", ");
      text.push(idle ? ` and idles for ${time(idle)} (${share(idle, whole)}); meanwhile the host is ${causes}.` : ".");
    }
    const tables = [];
    if (sums.gpu.length) tables.push(table("On the GPU", sums.gpu, whole, go));
    if (sums.host.length) tables.push(table("On the host, without what is nested", sums.host, whole, go));
    return [element("p", {}, ...text), element("div", { class: "sums" }, ...tables)];
  }

  Object.assign(window.traceq, { sumsOf, sumsTables });
})();
