"use strict";
/* A step as a picture: lanes of slices on a canvas, to zoom, move, search, select and mark. */
(() => {
  const {
    parts, color, element: made, time, fitted, searchField, sumsTables, showTip, hideTip, onTheme,
  } = window.traceq;
  const AXIS = 22;
  const MARK = 12;
  const IDLE = 12;
  const GPU_ROW = 24;
  const HOST_ROW = 15;
  const GAP = 7;
  const FONT = "11px system-ui, sans-serif";
  const MOST_MARKS = 10;
  const FIRST_THREADS = 2;
  const [START, LENGTH, NAME, COLOR, DETAIL, KIND, COUNT, BUSY] = [0, 1, 2, 3, 4, 5, 6, 7];

  const sums = (steps) => {
    let at = 0;
    return steps.map((step) => (at += step));
  };

  /* The first of sorted numbers that is more than a value. */
  function after(numbers, value) {
    let low = 0;
    let high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] > value) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  function isLight(hex) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return 0.299 * r + 0.587 * g + 0.114 * b > 128;
  }

  /* Whether two texts are the same, as far as they were not shortened. */
  function alike(one, other) {
    if (one === other) return true;
    const [short, long] = [one, other].map((text) => text.split("…")[0]).sort((a, b) => a.length - b.length);
    return (one + other).includes("…") && short.length > 20 && long.startsWith(short);
  }

  function picture({ element, data }) {
    const box = element.querySelector("[data-picture]");
    const canvas = box.querySelector("canvas");
    const context = canvas.getContext("2d");
    const detail = box.querySelector("[data-detail]");
    const range = box.querySelector("[data-range]");
    const buttons = Object.fromEntries(
      [...box.querySelectorAll("[data-do]")].map((button) => [button.dataset.do, button]),
    );
    for (const lane of data.lanes) {
      for (const row of lane.rows) {
        row[START] = sums(row[START]);
        const runs = row[BUSY].values();
        row[BUSY] = row[COUNT].map((count, one) => (count > 1 ? runs.next().value : row[LENGTH][one]));
      }
    }
    data.gaps.starts = sums(data.gaps.starts);
    const findings = data.findings;
    for (const finding of findings) {
      finding.byLane = new Map();
      finding.lanes.forEach((lane, one) => {
        if (!finding.byLane.has(lane)) finding.byLane.set(lane, { starts: [], ends: [] });
        const mine = finding.byLane.get(lane);
        mine.starts.push(finding.starts[one]);
        mine.ends.push(finding.starts[one] + finding.lengths[one]);
      });
    }
    const input = box.querySelector("input[type=search]");
    const hits = box.querySelector("[data-hits]");
    const sumsBox = box.querySelector("[data-sums]");
    /* The window, the finding that is marked, the slice with the focus, the range that is
       selected as [from, to], and what a search has found. */
    const state = { from: 0, to: data.span, marked: null, focus: null, all: false, range: null, found: null };
    let width = 0;
    let gutter = 0;
    let bands = [];

    /* What is drawn from top to bottom: bands of { kind, top, height }. */
    function layout() {
      bands = [];
      let top = AXIS;
      const add = (band, height, space = 0) => {
        bands.push({ ...band, top, height });
        top += height + space;
      };
      findings.slice(0, MOST_MARKS).forEach((finding) => add({ kind: "finding", finding }, MARK, 1));
      if (findings.length) top += GAP;
      let threads = 0;
      data.lanes.forEach((lane, number) => {
        if (!lane.gpu && !state.all && (threads += 1) > FIRST_THREADS) return;
        const height = lane.gpu ? GPU_ROW : HOST_ROW;
        lane.rows.forEach((row, depth) => add({ kind: "slices", lane, number, row, depth }, height));
        top += lane.gpu ? 2 : GAP;
        const last = lane.gpu && !data.lanes[number + 1]?.gpu;
        if (last) add({ kind: "idle" }, IDLE, GAP);
      });
      return top;
    }

    const x = (at) => gutter + ((at - state.from) / (state.to - state.from)) * (width - gutter);
    const at = (place) => state.from + ((place - gutter) / (width - gutter)) * (state.to - state.from);

    function draw() {
      width = canvas.clientWidth;
      gutter = width < 620 ? 62 : 148;
      const height = layout();
      const scale = window.devicePixelRatio || 1;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = FONT;
      context.textBaseline = "middle";
      axis(height);
      labels();
      context.save();
      context.beginPath();
      context.rect(gutter, 0, width - gutter, height);
      context.clip();
      const finding = state.marked;
      if (finding || state.found) context.globalAlpha = 0.2;
      slices();
      context.globalAlpha = 1;
      if (state.found) for (const band of bands) if (band.kind === "slices") drawRow(band, null, state.found.rows.get(band.row));
      if (finding && !state.found) {
        slices(finding);
        outlines(finding);
      }
      findingRows();
      if (state.range) drawRange(height);
      focused();
      context.restore();
      const shown = state.to - state.from;
      range.textContent = shown < data.span * 0.999
        ? `${time(shown)} of ${time(data.span)}, from ${time(state.from)} on`
        : time(data.span);
      buttons.clear.hidden = !finding;
      buttons.fit.hidden = buttons.unselect.hidden = !state.range;
      canvas.dataset.from = state.from;
      canvas.dataset.to = state.to;
      canvas.dataset.marked = finding ? finding.number : "";
      canvas.dataset.range = state.range ?? "";
      canvas.dataset.found = state.found ? state.found.list.length : "";
    }

    function axis(height) {
      const shown = state.to - state.from;
      const room = Math.max(2, Math.floor((width - gutter) / 95));
      const rough = shown / room;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
      context.strokeStyle = color("line");
      context.fillStyle = color("muted");
      context.lineWidth = 1;
      context.textAlign = "left";
      for (let tick = Math.ceil(state.from / step) * step; tick <= state.to; tick += step) {
        const place = Math.round(x(tick)) + 0.5;
        context.beginPath();
        context.moveTo(place, AXIS - 6);
        context.lineTo(place, height);
        context.stroke();
        if (place < width - 46) context.fillText(tick ? time(tick) : "0", place + 3, 9);
      }
    }

    function labels() {
      context.textAlign = "left";
      for (const band of bands) {
        const middle = band.top + band.height / 2;
        let text = "";
        context.fillStyle = color("muted");
        if (band.kind === "finding") {
          const wide = gutter > 100 ? ` ${band.finding.name}` : "";
          text = `${band.finding.code}${wide}`;
          if (state.marked === band.finding) context.fillStyle = color("mark");
        } else if (band.kind === "idle") {
          text = gutter > 100 ? "GPU idle, by cause" : "GPU idle";
        } else if (band.depth === 0) {
          const [, inner] = band.lane.name.match(/\((.+)\)$/) ?? [];
          text = gutter < 100 && inner ? inner : band.lane.name;
          context.fillStyle = color("ink");
        }
        if (text) context.fillText(fitted(context, text, gutter - 8), 0, middle);
      }
    }

    /* All slices, or those of a finding. */
    function slices(finding) {
      for (const band of bands) {
        const mine = finding && finding.byLane.get(band.kind === "idle" ? -1 : band.number);
        if (finding && !mine) continue;
        if (band.kind === "slices") drawRow(band, mine);
        else if (band.kind === "idle") drawIdle(band, mine);
      }
    }

    /* Whether a slice is in one of the marks, all but a little of it. */
    function isIn(marks, start, length) {
      const one = after(marks.starts, start + length * 0.1 + 1) - 1;
      return one >= 0 && marks.ends[one] >= start + length * 0.9 - 1;
    }

    /* The slices of a row: all, those in the marks of a finding, or those of a search. */
    function drawRow({ row, top, height }, only, chosen) {
      const starts = row[START];
      const from = Math.max(0, first(row));
      const tall = height - 1;
      let reached = -1;
      for (let one = from; one < starts.length && starts[one] < state.to; one += 1) {
        if (only && !isIn(only, starts[one], row[LENGTH][one])) continue;
        if (chosen && !chosen.has(one)) continue;
        const left = Math.max(gutter, x(starts[one]));
        const right = Math.min(width, x(starts[one] + row[LENGTH][one]));
        /* What would fall on the same dot is drawn once. */
        if (right < reached + 0.5) continue;
        const wide = Math.max(0.7, right - left - (right - left > 3 ? 0.6 : 0));
        reached = left + wide;
        const fill = color(data.texts[row[COLOR][one]]);
        context.fillStyle = fill;
        context.fillRect(left, top, wide, tall);
        if (wide > 34) {
          context.fillStyle = isLight(fill) ? "#1d1c1a" : "#ffffff";
          const text = label(row, one);
          context.fillText(fitted(context, text, wide - 7), left + 4, top + tall / 2 + 0.5);
        }
      }
    }

    function label(row, one) {
      const count = row[COUNT][one];
      return count > 1 ? `${count.toLocaleString("en")} ${data.kinds[row[KIND][one]]}s` : data.texts[row[NAME][one]];
    }

    /* The first slice that reaches into the window: those before it may be long. */
    function first(row) {
      let one = after(row[START], state.from) - 1;
      while (one > 0 && row[START][one - 1] + row[LENGTH][one - 1] > state.from) one -= 1;
      return one;
    }

    function drawIdle({ top, height }, only) {
      const { starts, lengths, causes, colors } = data.gaps;
      if (!only) {
        context.fillStyle = color("sunken");
        context.fillRect(gutter, top, width - gutter, height);
      }
      for (let one = Math.max(0, after(starts, state.from) - 1); one < starts.length && starts[one] < state.to; one += 1) {
        if (only && !isIn(only, starts[one], lengths[one])) continue;
        const left = x(starts[one]);
        const wide = Math.max(0.3, x(starts[one] + lengths[one]) - left);
        context.fillStyle = color(colors[causes[one]]);
        context.fillRect(left, top, wide, height);
      }
    }

    /* Boxes around a finding's kernels and gaps. */
    function outlines(finding) {
      context.strokeStyle = color("mark");
      context.lineWidth = 1;
      for (const band of bands) {
        const lane = band.kind === "idle" ? -1 : band.lane?.gpu ? band.number : null;
        const mine = lane === null ? null : finding.byLane.get(lane);
        for (let one = 0; mine && one < mine.starts.length; one += 1) {
          if (mine.starts[one] > state.to || mine.ends[one] < state.from) continue;
          const left = x(mine.starts[one]);
          const wide = Math.max(1.5, x(mine.ends[one]) - left);
          context.strokeRect(left - 0.5, band.top - 0.5, wide + 1, band.height);
        }
      }
    }

    function findingRows() {
      for (const band of bands) {
        if (band.kind !== "finding") continue;
        const { finding, top, height } = band;
        context.fillStyle = color("sunken");
        context.fillRect(gutter, top + 2, width - gutter, height - 4);
        context.fillStyle = color(finding.severity === "minor" ? "minor" : "mark");
        context.globalAlpha = state.marked && state.marked !== finding ? 0.3 : 1;
        for (let one = 0; one < finding.starts.length; one += 1) {
          const left = x(finding.starts[one]);
          const wide = x(finding.starts[one] + finding.lengths[one]) - left;
          context.fillRect(left, top + 2, Math.max(1.2, wide), height - 4);
        }
        context.globalAlpha = 1;
      }
    }

    /* The range: all else is dimmed, and the axis has its length. */
    function drawRange(height) {
      const [left, right] = state.range.map(x);
      context.globalAlpha = 0.55;
      context.fillStyle = color("surface");
      context.fillRect(gutter, AXIS, Math.max(0, left - gutter), height);
      context.fillRect(right, AXIS, Math.max(0, width - right), height);
      context.globalAlpha = 1;
      context.fillStyle = color("focus");
      context.fillRect(left, AXIS - 4, right - left, 4);
      context.fillRect(left - 0.5, AXIS - 4, 1, height);
      context.fillRect(right - 0.5, AXIS - 4, 1, height);
      const text = time(state.range[1] - state.range[0]);
      const wide = context.measureText(text).width + 8;
      const place = Math.max(gutter, Math.min(width - wide, (left + right - wide) / 2));
      context.fillRect(place, 0, wide, 16);
      context.fillStyle = isLight(color("focus")) ? "#1d1c1a" : "#ffffff";
      context.fillText(text, place + 4, 8.5);
    }

    /* Select a range of time, and show its sums; null selects nothing. */
    function select(from, to) {
      const [start, end] = [from, to].map((one) => Math.round(Math.max(0, Math.min(data.span, one)))).sort((a, b) => a - b);
      state.range = from === null || end <= start ? null : [start, end];
      sumsBox.hidden = !state.range;
      sumsBox.replaceChildren(...(state.range ? sumsTables(data, start, end, (name) => {
        find(`“${name}”`, (row, one) => row[COUNT][one] === 1 && data.texts[row[NAME][one]] === name);
        next(1);
      }) : []));
      queue();
    }

    /* The range of the slice with the focus, else of the window; with Shift, of both. */
    function selectFocus(event) {
      let [from, to] = [state.from, state.to];
      if (state.focus) {
        const row = rowOf(state.focus);
        from = row[START][state.focus.one];
        to = from + row[LENGTH][state.focus.one];
      }
      if (event.key === "M" && state.range) [from, to] = [Math.min(from, state.range[0]), Math.max(to, state.range[1])];
      select(from, to);
    }

    const rowOf = ({ lane, depth }) => data.lanes[lane].rows[depth];

    /* Find slices, and say how many there are and how long they take; null finds nothing. */
    function find(what, matches) {
      state.found = null;
      hits.textContent = "";
      queue();
      if (!matches) return;
      const found = { rows: new Map(), list: [], at: -1 };
      const times = { gpu: 0, host: 0 };
      data.lanes.forEach((lane, number) => {
        const ends = [];
        lane.rows.forEach((row, depth) => {
          const chosen = new Set();
          row[START].forEach((start, one) => {
            if (!matches(row, one)) return;
            chosen.add(one);
            found.list.push({ lane: number, depth, one, start });
            ends.push([start, start + row[LENGTH][one]]);
          });
          found.rows.set(row, chosen);
        });
        times[lane.gpu ? "gpu" : "host"] += covered(ends);
      });
      found.list.sort((one, other) => one.start - other.start || one.lane - other.lane || one.depth - other.depth);
      state.found = found;
      const count = found.list.length;
      const parts = [times.gpu ? `${time(times.gpu)} on the GPU` : "", times.host ? `${time(times.host)} on the host` : ""].filter(Boolean);
      hits.textContent = count
        ? `${what ? `${what}: ` : ""}${count.toLocaleString("en")} ${count > 1 ? "slices" : "slice"}, ${parts.join(", ")}`
        : `${what ? `${what}: ` : ""}no slice is drawn on its own${data.lanes.some((lane) => lane.rows.some((row) => row[COUNT].some((one) => one > 1))) ? "; it may be among the short ones that are drawn together" : ""}`;
    }

    /* The time that intervals cover, what they share once. */
    function covered(intervals) {
      let [sum, reached] = [0, -1];
      for (const [start, end] of intervals.sort(([a], [b]) => a - b)) {
        sum += Math.max(0, end - Math.max(start, reached));
        reached = Math.max(reached, end);
      }
      return sum;
    }

    /* Go to the next slice that was found, or to the one before. */
    function next(by) {
      const { found } = state;
      if (!found?.list.length) return;
      found.at = (found.at + by + found.list.length) % found.list.length;
      const { lane, depth, one } = found.list[found.at];
      if (hiddenLane(lane)) showThreads(true);
      focus(lane, depth, one);
    }

    /* The words of a slice, as a search sees them. */
    const wordsOf = (row, one) => [row[NAME][one], ...data.details[row[DETAIL][one]]].map((text) => data.texts[text]).join(" ");

    function search(matches) {
      if (!matches) return find("", null);
      const known = new Map();
      return find("", (row, one) => {
        if (row[COUNT][one] > 1) return false;
        const key = `${row[NAME][one]} ${row[DETAIL][one]}`;
        if (!known.has(key)) known.set(key, matches(wordsOf(row, one)));
        return known.get(key);
      });
    }

    function focused() {
      if (!state.focus) return;
      const band = bandOf(state.focus);
      if (!band) return;
      const start = band.row[START][state.focus.one];
      const left = Math.max(gutter, x(start));
      const right = Math.min(width, x(start + band.row[LENGTH][state.focus.one]));
      context.strokeStyle = color("focus");
      context.lineWidth = 2;
      context.strokeRect(left - 1, band.top - 1, Math.max(3, right - left) + 2, band.height + 1);
    }

    const bandOf = (focus) => bands.find(
      (band) => band.kind === "slices" && band.number === focus.lane && band.depth === focus.depth,
    );

    /* What is told of a slice: a title and rows of [label, text]. */
    function told(band, one) {
      const { row } = band;
      const [op, module, line, shapes] = data.details[row[DETAIL][one]].map((text) => data.texts[text]);
      const count = row[COUNT][one];
      const length = row[LENGTH][one];
      const name = data.texts[row[NAME][one]];
      if (count > 1) {
        return [label(row, one), [["in", time(length)], ["longest", name], ["op", op], ["module", module], ["line", line]]];
      }
      const start = row[START][one];
      const on = findings.filter((finding) => {
        const mine = finding.byLane.get(band.number);
        return mine && isIn(mine, start, length);
      }).map((finding) => finding.code);
      return [name, [
        ["takes", time(length)], ["op", op], ["module", module], ["line", line], ["shapes", shapes],
        ["findings", [...new Set(on)].join(", ")],
      ]];
    }

    /* What is at a place of the canvas, if anything. */
    function under(left, top) {
      const band = bands.find((one) => top >= one.top && top < one.top + one.height);
      if (!band) return null;
      if (band.kind === "finding") return { band };
      if (left < gutter) return null;
      const moment = at(left);
      const near = ((state.to - state.from) / (width - gutter)) * 1.5;
      if (band.kind === "idle") {
        const one = after(data.gaps.starts, moment + near) - 1;
        const inside = one >= 0 && data.gaps.starts[one] + data.gaps.lengths[one] >= moment - near;
        return inside ? { band, one } : null;
      }
      const one = after(band.row[START], moment + near) - 1;
      const inside = one >= 0 && band.row[START][one] + band.row[LENGTH][one] >= moment - near;
      return inside ? { band, one } : null;
    }

    function tip(event) {
      const found = under(event.offsetX, event.offsetY);
      canvas.style.cursor = found?.band.kind === "finding" ? "pointer" : "";
      if (!found) return hideTip();
      const { band, one } = found;
      if (band.kind === "finding") {
        const { code, name, cost } = band.finding;
        return showTip(event.clientX, event.clientY, `${code} ${name}`, [["cost", cost]]);
      }
      if (band.kind === "idle") {
        const { names, causes, lengths } = data.gaps;
        return showTip(event.clientX, event.clientY, `GPU idle for ${time(lengths[one])}`, [["host", names[causes[one]]]]);
      }
      return showTip(event.clientX, event.clientY, ...told(band, one));
    }

    /* Show a window of time, within the whole and not too short. */
    function show(from, to) {
      const shortest = Math.min(data.span, 200);
      const length = Math.min(data.span, Math.max(shortest, to - from));
      state.from = Math.max(0, Math.min(data.span - length, from - (length - (to - from)) / 2));
      state.to = state.from + length;
      queue();
    }

    function zoom(factor, around = (state.from + state.to) / 2) {
      const from = around - (around - state.from) * factor;
      const to = around + (state.to - around) * factor;
      const length = Math.min(data.span, Math.max(200, to - from));
      const share = (around - state.from) / (state.to - state.from);
      state.from = Math.max(0, Math.min(data.span - length, around - share * length));
      state.to = state.from + length;
      queue();
    }

    function move(by) {
      const length = state.to - state.from;
      state.from = Math.max(0, Math.min(data.span - length, state.from + by));
      state.to = state.from + length;
      queue();
    }

    let queued = false;
    function queue() {
      if (queued) return;
      queued = true;
      requestAnimationFrame(() => {
        queued = false;
        draw();
      });
    }

    /* Mark where a finding is, and show all of it; null marks nothing. */
    function mark(finding, fit) {
      state.marked = finding;
      if (!finding) {
        detail.replaceChildren();
        return queue();
      }
      input.value = "";
      find("", null);
      if (finding.lanes.some((lane) => lane >= 0 && hiddenLane(lane))) showThreads(true);
      if (fit) {
        const from = Math.min(...finding.starts);
        const to = Math.max(...finding.starts.map((start, one) => start + finding.lengths[one]));
        const pad = Math.max((to - from) * 0.06, data.span * 0.01);
        show(from - pad, to + pad);
      }
      const link = made("a", { href: `#${finding.card}` }, `${finding.code} ${finding.name}`);
      const places = finding.starts.length;
      detail.replaceChildren(link, ` ${finding.cost ? `${finding.cost}; ` : ""}${places.toLocaleString("en")} ${places > 1 ? "places" : "place"} in this window`);
      queue();
    }

    const hiddenLane = (lane) => !state.all && !data.lanes[lane].gpu
      && data.lanes.slice(0, lane + 1).filter((one) => !one.gpu).length > FIRST_THREADS;

    function focus(lane, depth, one) {
      state.focus = { lane, depth, one };
      const row = data.lanes[lane].rows[depth];
      const start = row[START][one];
      const end = start + row[LENGTH][one];
      const length = state.to - state.from;
      if (end < state.from || start > state.to) {
        const from = Math.max(0, Math.min(data.span - length, start - length / 4));
        state.from = from;
        state.to = from + length;
      }
      const [title, rows] = told({ row, number: lane }, one);
      const texts = rows.filter(([, text]) => text).map(([name, text]) => `${name} ${text}`).join("; ");
      detail.replaceChildren(made("b", {}, title), ` ${texts}`);
      queue();
    }

    function step(by) {
      if (!state.focus) return enter();
      const { lane, depth, one } = state.focus;
      const last = data.lanes[lane].rows[depth][START].length - 1;
      focus(lane, depth, Math.max(0, Math.min(last, one + by)));
    }

    function enter() {
      const band = bands.find((one) => one.kind === "slices");
      if (band) focus(band.number, band.depth, Math.max(0, first(band.row)));
    }

    function climb(by) {
      if (!state.focus) return enter();
      const rows = bands.filter((band) => band.kind === "slices" && band.row[START].length);
      const here = rows.findIndex((band) => band.number === state.focus.lane && band.depth === state.focus.depth);
      const next = rows[Math.max(0, Math.min(rows.length - 1, here + by))];
      const old = rows[here].row;
      const start = Math.max(state.from, old[START][state.focus.one]);
      const one = Math.max(0, after(next.row[START], start) - 1);
      focus(next.number, next.depth, one);
    }

    const keys = {
      ArrowRight: (event) => (event.shiftKey ? move((state.to - state.from) / 8) : step(1)),
      ArrowLeft: (event) => (event.shiftKey ? move((state.from - state.to) / 8) : step(-1)),
      ArrowUp: () => climb(-1),
      ArrowDown: () => climb(1),
      w: () => zoom(0.6, pointed()),
      s: () => zoom(1 / 0.6, pointed()),
      a: () => move((state.from - state.to) / 8),
      d: () => move((state.to - state.from) / 8),
      m: selectFocus,
      M: selectFocus,
      f: fit,
      n: () => next(1),
      N: () => next(-1),
      "+": () => zoom(0.6, middle()),
      "=": () => zoom(0.6, middle()),
      "-": () => zoom(1 / 0.6, middle()),
      Home: () => show(0, data.span),
      0: () => show(0, data.span),
      Enter: () => {
        if (!state.focus) return;
        const row = data.lanes[state.focus.lane].rows[state.focus.depth];
        const start = row[START][state.focus.one];
        const length = row[LENGTH][state.focus.one];
        show(start - length * 0.1, start + length * 1.1);
      },
      Escape: () => {
        state.focus = null;
        input.value = "";
        find("", null);
        select(null);
        hideTip();
        mark(null);
      },
    };

    /* Zoom to the range, else to the slice with the focus. */
    function fit() {
      if (!state.range) return keys.Enter();
      const [from, to] = state.range;
      show(from - (to - from) * 0.03, to + (to - from) * 0.03);
    }

    /* The time under the mouse, else the middle. */
    let mouse = null;
    const pointed = () => (mouse === null ? middle() : at(Math.max(gutter, mouse)));

    function middle() {
      if (!state.focus) return (state.from + state.to) / 2;
      const row = data.lanes[state.focus.lane].rows[state.focus.depth];
      const place = row[START][state.focus.one] + row[LENGTH][state.focus.one] / 2;
      return place > state.from && place < state.to ? place : (state.from + state.to) / 2;
    }

    canvas.addEventListener("keydown", (event) => {
      const does = keys[event.key] ?? keys[event.key.toLowerCase()];
      if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      does(event);
    });
    canvas.addEventListener("wheel", (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (!event.ctrlKey && !sideways && document.activeElement !== canvas) return;
      event.preventDefault();
      if (sideways) move(((event.deltaX || event.deltaY) / (width - gutter)) * (state.to - state.from));
      else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * (event.ctrlKey ? 0.012 : 0.006)), at(Math.max(gutter, event.offsetX)));
    }, { passive: false });

    const held = new Map();
    let dragged = 0;
    /* The time at which a range begins, while one is drawn: with Shift, or on the axis. */
    let began = null;
    canvas.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, event);
      dragged = 0;
      const selects = held.size === 1 && event.offsetX >= gutter && (event.shiftKey || event.offsetY < AXIS);
      began = selects ? at(event.offsetX) : null;
    });
    canvas.addEventListener("pointermove", (event) => {
      mouse = event.pointerType === "mouse" ? event.offsetX : null;
      const before = held.get(event.pointerId);
      if (!before) {
        if (event.pointerType === "mouse") tip(event);
        return;
      }
      const others = [...held.values()].filter((one) => one.pointerId !== event.pointerId);
      const apart = (one, other) => Math.max(10, Math.abs(one.offsetX - other.offsetX));
      if (others.length) {
        zoom(apart(before, others[0]) / apart(event, others[0]), at((event.offsetX + others[0].offsetX) / 2));
      }
      const by = (before.offsetX - event.offsetX) / (others.length ? 2 : 1);
      dragged += Math.abs(by);
      if (dragged > 3 && !canvas.hasPointerCapture(event.pointerId)) canvas.setPointerCapture(event.pointerId);
      if (dragged > 3 && began !== null) {
        hideTip();
        const end = at(Math.max(gutter, Math.min(width, event.offsetX)));
        state.range = [Math.min(began, end), Math.max(began, end)];
        queue();
      } else if (dragged > 3) {
        hideTip();
        canvas.classList.add("grabbing");
        move((by / (width - gutter)) * (state.to - state.from));
      }
      held.set(event.pointerId, event);
    });
    const release = (event) => {
      held.delete(event.pointerId);
      canvas.classList.remove("grabbing");
    };
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerup", (event) => {
      release(event);
      if (began !== null) {
        if (dragged > 3) select(...state.range);
        else select(null);
        began = null;
        return;
      }
      if (dragged > 3) return;
      const found = under(event.offsetX, event.offsetY);
      if (found?.band.kind === "finding") mark(state.marked === found.band.finding ? null : found.band.finding);
      else if (found?.band.kind === "slices") {
        focus(found.band.number, found.band.depth, found.one);
        if (event.pointerType !== "mouse") tip(event);
      } else {
        state.focus = null;
        queue();
      }
    });
    canvas.addEventListener("pointerleave", () => {
      mouse = null;
      hideTip();
    });

    buttons.in.addEventListener("click", () => zoom(0.5, middle()));
    buttons.out.addEventListener("click", () => zoom(2, middle()));
    buttons.all.addEventListener("click", () => show(0, data.span));
    buttons.clear.addEventListener("click", () => {
      mark(null);
      canvas.focus();
    });
    buttons.threads.hidden = data.lanes.filter((lane) => !lane.gpu).length <= FIRST_THREADS;
    buttons.threads.addEventListener("click", () => showThreads(!state.all));
    buttons.fit.addEventListener("click", fit);
    buttons.unselect.addEventListener("click", () => {
      select(null);
      canvas.focus();
    });
    searchField(input, { search, next, leave: () => canvas.focus({ preventScroll: true }) });

    function showThreads(all) {
      state.all = all;
      buttons.threads.setAttribute("aria-pressed", String(all));
      queue();
    }

    /* Cards of findings lead here. */
    const suffix = element.id.slice("timeline".length);
    const cards = document.getElementById(`findings${suffix}`);
    for (const finding of findings) {
      const button = cards?.querySelector(`[data-show="${finding.number}"]`);
      if (!button) continue;
      button.hidden = false;
      button.addEventListener("click", () => {
        mark(finding, true);
        element.scrollIntoView({ block: "start" });
        canvas.focus({ preventScroll: true });
      });
    }

    /* Rows of the tables lead here: kernels by name, ops with their kernels by name, shapes and place. */
    const isOp = data.kinds.indexOf("op");
    function linked(heading, matches) {
      const rows = document.getElementById(`${heading}${suffix}`)?.closest(".sortable").querySelectorAll("tbody tr");
      for (const tableRow of rows ?? []) {
        const [cell] = tableRow.cells;
        const name = cell.textContent;
        const button = made("button", { type: "button", class: "link", title: "Show in the picture" }, name);
        button.addEventListener("click", () => {
          const texts = [...tableRow.cells].map((one) => one.textContent);
          input.value = "";
          find(name, (row, one) => row[COUNT][one] === 1 && matches(row, one, texts));
          if (state.marked) mark(null);
          next(1);
          element.scrollIntoView({ block: "start" });
          canvas.focus({ preventScroll: true });
        });
        cell.replaceChildren(button);
      }
    }
    linked("table-kernels", (row, one, [name]) => data.kinds[row[KIND][one]] === "kernel" && alike(data.texts[row[NAME][one]], name));
    linked("table-ops", (row, one, texts) => {
      const [op, , , shapes] = data.details[row[DETAIL][one]].map((text) => data.texts[text]);
      const name = row[KIND][one] === isOp ? data.texts[row[NAME][one]] : op;
      return alike(name, texts[0]) && alike(shapes, texts.at(-2));
    });

    box.hidden = false;
    new ResizeObserver(queue).observe(canvas.parentElement);
    onTheme(draw);
    draw();
  }

  for (const part of parts("timeline")) {
    if (part.data) picture(part);
  }
})();
