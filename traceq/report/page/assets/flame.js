"use strict";
/* The flame graph: frames from the outside in, as wide as their time. */
(() => {
  const { parts, color, time, fitted, share, element, showTip, hideTip, onTheme } = window.traceq;
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

    const lineage = (node) => (node ? [...lineage(node.parent), node] : []);
    const left = (node) => ((node.start - root.start) / root.value) * width;
    const inside = (node) => node.start >= root.start - 0.5
      && node.start + node.value <= root.start + root.value + 0.5;

    function draw() {
      width = canvas.clientWidth;
      const visible = nodes.filter((node) => (node.depth > root.depth ? inside(node) : lineage(root).includes(node)));
      const rows = Math.max(...nodes.map((node) => node.depth)) + 2;
      const height = rows * ROW;
      const scale = window.devicePixelRatio || 1;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, height);
      context.font = FONT;
      context.textBaseline = "middle";
      for (const node of visible) place(node);
      for (const node of visible) paint(node);
      if (focus && visible.includes(focus)) {
        context.strokeStyle = color("focus");
        context.lineWidth = 2;
        context.strokeRect(focus.x + 1, focus.y + 1, Math.max(2, focus.wide - 2), ROW - 3);
      }
      whole.hidden = root === nodes[0];
      canvas.dataset.graph = shown;
      canvas.dataset.root = root.name;
      canvas.dataset.focus = focus ? focus.name : "";
    }

    function place(node) {
      const around = node.depth <= root.depth;
      node.x = around ? 0 : left(node);
      node.wide = around ? width : (node.value / root.value) * width;
      node.y = (node.depth + 1) * ROW;
    }

    function paint(node) {
      if (node.wide < 0.4) return;
      const fill = color(node.shade);
      const wide = Math.max(0.5, node.wide - (node.wide > 3 ? 0.8 : 0));
      context.globalAlpha = node.depth < root.depth ? 0.5 : 1;
      context.fillStyle = node.shade === "host" && node.depth % 2 ? color("host-soft") : fill;
      context.fillRect(node.x, node.y, wide, ROW - 1);
      if (wide > 26) {
        context.fillStyle = isLight(context.fillStyle) ? "#1d1c1a" : "#ffffff";
        context.fillText(fitted(context, label(node), wide - 8), node.x + 4, node.y + ROW / 2);
      }
      context.globalAlpha = 1;
    }

    const label = (node) => (node.parent ? node.name : `one step, ${time(node.value)}`);

    function told(node) {
      const rows = [["takes", `${time(node.value)}, ${share(node.value, nodes[0].value)} of the whole`]];
      if (node.calls) rows.push(["calls", `${node.calls.toLocaleString("en")} a step`]);
      const path = lineage(node.parent).slice(1).map((one) => one.name).join(" › ");
      if (path) rows.push(["in", path]);
      return [label(node), rows];
    }

    function under(x, y) {
      const depth = Math.floor(y / ROW) - 1;
      return nodes.find((node) => node.depth === depth && node.wide > 0 && x >= node.x && x < node.x + node.wide
        && (node.depth > root.depth ? inside(node) : lineage(root).includes(node)));
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
      root = node;
      queue();
    }

    function go(node) {
      if (!node) return;
      focus = node;
      if (node.depth < root.depth || !inside(node)) root = node.parent ?? nodes[0];
      const [title, rows] = told(node);
      detail.replaceChildren(element("b", {}, title), ` ${rows.map(([name, text]) => `${name} ${text}`).join("; ")}`);
      queue();
    }

    function sibling(by) {
      if (!focus) return go(root);
      const peers = focus.parent ? focus.parent.below : [focus];
      return go(peers[Math.max(0, Math.min(peers.length - 1, peers.indexOf(focus) + by))]);
    }

    function reset() {
      focus = null;
      detail.replaceChildren();
      zoom(nodes[0]);
    }

    const keys = {
      ArrowRight: () => sibling(1),
      ArrowLeft: () => sibling(-1),
      ArrowUp: () => go(focus?.parent ?? focus ?? root),
      ArrowDown: () => go(focus ? focus.below[0] : root),
      Enter: () => focus && zoom(focus),
      Home: reset,
      Escape: reset,
    };
    canvas.addEventListener("keydown", (event) => {
      const does = keys[event.key];
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
    });
    whole.addEventListener("click", reset);
    for (const button of buttons) {
      button.addEventListener("click", () => {
        buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
        shown = button.dataset.graph;
        nodes = graphs.get(shown);
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
