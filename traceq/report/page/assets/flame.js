"use strict";
/* The flame graph: frames from the outside in, as wide as their time; and, for one
   function, its callers above and its callees below, wherever it is called. */
(() => {
  const {
    parts, color, time, fitted, share, element, searchField, showTip, hideTip, onTheme,
  } = window.traceq;
  const ROW = 19;
  const FONT = "12px system-ui, sans-serif";

  /* Nodes of a graph, with where each begins, its parent and its last child. */
  function nodesOf({ depths, names, values, calls, colors, total }, texts) {
    const nodes = [{ name: "step", value: total, depth: -1, start: 0, parent: null, below: [], shade: "host", calls: 0 }];
    const open = [nodes[0]];
    const reached = [0];
    depths.forEach((depth, one) => {
      open.length = depth + 1;
      reached.length = depth + 1;
      const parent = open[depth];
      const node = {
        name: texts[names[one]], value: values[one], calls: calls[one], shade: texts[colors[one]],
        depth, start: reached[depth], parent, below: [],
      };
      parent.below.push(node);
      reached[depth] += node.value;
      reached.push(node.start);
      open.push(node);
      nodes.push(node);
    });
    return nodes;
  }

  const lineage = (node) => (node ? [...lineage(node.parent), node] : []);

  /* Nodes of a function: itself, its callers at depths below 0 and its callees above 0. */
  function sandwichOf(nodes, name) {
    /* What calls itself counts once. */
    const calls = nodes.filter((node) => node.name === name && !lineage(node.parent).some((one) => one.name === name));
    const members = calls.map((node) => ({ node, value: node.value, calls: node.calls }));
    const total = (list, what) => list.reduce((sum, one) => sum + one[what], 0);
    const middle = {
      name, value: total(members, "value"), calls: total(members, "calls"), shade: calls[0].shade, depth: 0, start: 0, parent: null, below: [], above: [],
    };
    const made = [middle];
    /* Frames next to some others in one direction, those of a name together, largest first. */
    function merge(from, beside, sign, around, list) {
      const groups = new Map();
      for (const one of from.flatMap(beside)) groups.set(one.node.name, [...(groups.get(one.node.name) ?? []), one]);
      let start = around.start;
      const sorted = [...groups].map(([key, of]) => [key, of, total(of, "value")]).sort((one, other) => other[2] - one[2]);
      for (const [key, of, value] of sorted) {
        const node = {
          name: key, value, calls: total(of, "calls"), shade: of[0].node.shade, depth: around.depth + sign, start, parent: around, below: [],
        };
        start += value;
        list.push(node);
        made.push(node);
        merge(of, beside, sign, node, node.below);
      }
    }
    merge(members, ({ node }) => node.below.map((one) => ({ node: one, value: one.value, calls: one.calls })), 1, middle, middle.below);
    merge(members, ({ node, value, calls: often }) => (node.parent?.parent ? [{ node: node.parent, value, calls: often }] : []), -1, middle, middle.above);
    return made;
  }

  function isLight(hex) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return 0.299 * r + 0.587 * g + 0.114 * b > 128;
  }

  function flame({ element: section, data }) {
    const box = section.querySelector("[data-flame]");
    const canvas = box.querySelector("canvas");
    const context = canvas.getContext("2d");
    const detail = box.querySelector("[data-detail]");
    const whole = box.querySelector("[data-do=all]");
    const graphs = new Map(
      Object.entries(data.graphs).map(([key, graph]) => [key, nodesOf(graph, data.texts)]),
    );
    const buttons = [...box.querySelectorAll("[data-graph]")];
    let shown = buttons[0].dataset.graph;
    let nodes = graphs.get(shown);
    let root = nodes[0];
    let focus = null;
    let width = 0;
    let queued = false;
    const input = box.querySelector("input[type=search]");
    const hits = box.querySelector("[data-hits]");
    const both = box.querySelector("[data-do=sandwich]");
    /* The function whose callers and callees are shown, and what a search has found. */
    let sandwich = "";
    let matches = null;
    let found = [];
    let at = -1;

    const left = (node) => ((node.start - root.start) / root.value) * width;
    const isShown = (node) => sandwich || (node.depth > root.depth ? inside(node) : lineage(root).includes(node));
    const inside = (node) => node.start >= root.start - 0.5
      && node.start + node.value <= root.start + root.value + 0.5;

    function draw() {
      width = canvas.clientWidth;
      const visible = nodes.filter(isShown);
      const depths = nodes.map((node) => node.depth);
      const highest = Math.min(...depths);
      const height = (Math.max(...depths) - highest + 1) * ROW;
      const scale = window.devicePixelRatio || 1;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = FONT;
      context.textBaseline = "middle";
      for (const node of visible) place(node, highest);
      for (const node of visible) paint(node);
      if (focus && visible.includes(focus)) {
        context.strokeStyle = color("focus");
        context.lineWidth = 2;
        context.strokeRect(focus.x + 1, focus.y + 1, Math.max(2, focus.wide - 2), ROW - 3);
      }
      whole.hidden = root === nodes[0] && !sandwich;
      both.hidden = !isFunction(focus) || focus.name === sandwich;
      canvas.dataset.graph = shown;
      canvas.dataset.root = root.name;
      canvas.dataset.focus = focus ? focus.name : "";
      canvas.dataset.sandwich = sandwich;
      canvas.dataset.found = matches ? found.length : "";
    }

    /* What is not the step as a whole, nor several small frames together. */
    const isFunction = (node) => node?.parent !== undefined && (sandwich || node.parent) && !/^and [\d,]+ more$/.test(node.name);

    function place(node, highest) {
      const around = !sandwich && node.depth <= root.depth;
      node.x = around ? 0 : left(node);
      node.wide = around ? width : (node.value / root.value) * width;
      node.y = (node.depth - highest) * ROW;
    }

    function paint(node) {
      if (node.wide < 0.4) return;
      const fill = color(node.shade);
      const wide = Math.max(0.5, node.wide - (node.wide > 3 ? 0.8 : 0));
      context.globalAlpha = matches && !matches(node.name) ? 0.22 : !sandwich && node.depth < root.depth ? 0.5 : 1;
      context.fillStyle = node.shade === "host" && node.depth % 2 ? color("host-soft") : fill;
      context.fillRect(node.x, node.y, wide, ROW - 1);
      if (wide > 26) {
        context.fillStyle = isLight(context.fillStyle) ? "#1d1c1a" : "#ffffff";
        context.fillText(fitted(context, label(node), wide - 8), node.x + 4, node.y + ROW / 2);
      }
      context.globalAlpha = 1;
      if (sandwich && !node.parent) {
        context.strokeStyle = color("ink");
        context.lineWidth = 1.5;
        context.strokeRect(node.x + 0.75, node.y + 0.75, node.wide - 1.5, ROW - 2.5);
      }
    }

    const label = (node) => (node.parent || sandwich ? node.name : `one step, ${time(node.value)}`);

    function told(node) {
      const all = graphs.get(shown)[0].value;
      const rows = [["takes", `${time(node.value)}, ${share(node.value, all)} of the whole`]];
      if (node.calls) rows.push(["calls", `${node.calls.toLocaleString("en")} a step`]);
      const path = sandwich ? "" : lineage(node.parent).slice(1).map((one) => one.name).join(" › ");
      if (path) rows.push(["in", path]);
      return [label(node), rows];
    }

    function under(x, y) {
      return nodes.find((node) => node.wide > 0 && y >= node.y && y < node.y + ROW && x >= node.x && x < node.x + node.wide && isShown(node));
    }

    function queue() {
      if (queued) return;
      queued = true;
      requestAnimationFrame(() => {
        queued = false;
        draw();
      });
    }

    function zoom(node) {
      if (sandwich) return node.name === sandwich ? undefined : open(node);
      root = node;
      return queue();
    }

    /* Show the callers and callees of a frame's function. */
    function open(node) {
      if (!isFunction(node)) return;
      sandwich = node.name;
      nodes = sandwichOf(graphs.get(shown), sandwich);
      [root] = nodes;
      search(matches);
      go(root);
    }

    function search(by) {
      matches = by;
      at = -1;
      const hit = (node) => by(node.name) && (sandwich || node.parent);
      found = by ? nodes.filter(hit) : [];
      const all = graphs.get(shown)[0].value;
      /* What is in another frame that matches is in its time already. */
      const outermost = found.filter((node) => node.depth >= 0 && !lineage(node.parent).some((one) => one.depth >= 0 && hit(one)));
      const ns = outermost.reduce((sum, node) => sum + node.value, 0);
      const count = found.length;
      hits.textContent = !by ? "" : count ? `${count.toLocaleString("en")} ${count > 1 ? "frames" : "frame"}, ${time(ns)}, ${share(ns, all)} of the whole` : "no frame has it";
      queue();
    }

    function next(by) {
      if (!found.length) return;
      at = (at + by + found.length) % found.length;
      go(found[at]);
    }

    function go(node) {
      if (!node) return;
      focus = node;
      if (!sandwich && (node.depth < root.depth || !inside(node))) root = node.parent ?? nodes[0];
      const [title, rows] = told(node);
      const where = sandwich && !node.parent ? "; callers are above, callees below" : "";
      detail.replaceChildren(element("b", {}, title), ` ${rows.map(([name, text]) => `${name} ${text}`).join("; ")}${where}`);
      queue();
    }

    function sibling(by) {
      if (!focus) return go(root);
      const peers = !focus.parent ? [focus] : focus.depth === -1 && sandwich ? focus.parent.above : focus.parent.below;
      return go(peers[Math.max(0, Math.min(peers.length - 1, peers.indexOf(focus) + by))]);
    }

    /* Callers are above what they call, and their parent in the graph is below them. */
    const up = (node) => (sandwich && node.depth <= 0 ? (node.above ?? node.below)[0] : node.parent);
    const down = (node) => (sandwich && node.depth < 0 ? node.parent : node.below[0]);

    function reset() {
      focus = null;
      sandwich = "";
      nodes = graphs.get(shown);
      [root] = nodes;
      detail.replaceChildren();
      search(matches);
    }

    function clear() {
      input.value = "";
      matches = null;
      reset();
    }

    const keys = {
      ArrowRight: () => sibling(1),
      ArrowLeft: () => sibling(-1),
      ArrowUp: () => go(focus ? up(focus) : root),
      ArrowDown: () => go(focus ? down(focus) : root),
      Enter: () => focus && zoom(focus),
      c: () => focus && open(focus),
      n: () => next(1),
      N: () => next(-1),
      Home: reset,
      Escape: clear,
    };
    canvas.addEventListener("keydown", (event) => {
      const does = keys[event.key] ?? keys[event.key.toLowerCase()];
      if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      does();
    });
    canvas.addEventListener("pointermove", (event) => {
      const node = under(event.offsetX, event.offsetY);
      canvas.style.cursor = node ? "pointer" : "";
      if (node && event.pointerType === "mouse") showTip(event.clientX, event.clientY, ...told(node));
      else hideTip();
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("click", (event) => {
      const node = under(event.offsetX, event.offsetY);
      if (!node) return;
      go(node);
      zoom(node === root && node.parent ? node.parent : node);
      canvas.focus({ preventScroll: true });
    });
    whole.addEventListener("click", reset);
    both.addEventListener("click", () => {
      open(focus);
      canvas.focus({ preventScroll: true });
    });
    searchField(input, { search, next, leave: () => canvas.focus({ preventScroll: true }) });
    for (const button of buttons) {
      button.addEventListener("click", () => {
        buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
        shown = button.dataset.graph;
        reset();
      });
    }

    box.hidden = false;
    new ResizeObserver(queue).observe(canvas.parentElement);
    onTheme(draw);
    draw();
  }

  for (const part of parts("flame")) {
    if (part.data) flame(part);
  }
})();
