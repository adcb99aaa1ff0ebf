// Drawings as SVG. Every text goes into a text node: nothing that the server says is read as markup.

function svg(name, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function html(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 4", "1 4"];

function dashed(number) {
  return DASHES[number] ? { "stroke-dasharray": DASHES[number] } : {};
}

// `curves`: [{points: [[x, y or null]], class, dash, area, dots}]. Axes from 0 to `yMost`; `xLabel` and `yLabel` make
// texts of values; `xTicks` are values.
function lineChart(box, { curves, xRange, xTicks, xLabel, yMost, yLabel, label }) {
  const width = Math.max(240, box.clientWidth);
  const height = 190;
  const [left, right, top, bottom] = [44, 10, 8, 22];
  const [x0, x1] = xRange;
  const ticks = ticksTo(yMost);
  const most = ticks[ticks.length - 1] || 1;
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const tick of ticks) {
    root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    root.append(svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, yLabel(tick)));
  }
  for (const tick of xTicks) {
    root.append(svg("text", { x: x(tick), y: height - 6, "text-anchor": tick === x1 ? "end" : "middle" }, xLabel(tick)));
  }
  for (const curve of curves) {
    const points = curve.points.map((point) => (point[1] === null ? null : [x(point[0]), y(Math.min(point[1], most))]));
    const known = points.filter(Boolean);
    const path = pathThrough(points);
    if (curve.area && known.length) {
      const floor = height - bottom;
      root.append(svg("path", { class: "area", d: `${pathThrough(known)}L${known.at(-1)[0]} ${floor}L${known[0][0]} ${floor}Z` }));
    }
    root.append(svg("path", { class: `curve ${curve.class}`, d: path, ...dashed(curve.dash || 0) }));
    if (curve.dots) for (const point of known) {
      root.append(svg("circle", { class: `fill ${curve.class}`, cx: point[0], cy: point[1], r: 3 }));
    }
  }
  box.replaceChildren(root);
}

// Of the sources in `used` alone, in the order of `names`, whose places are their colours.
function legend(box, names, letters, used) {
  box.replaceChildren(...names.filter((name) => used.has(name)).map((name) => {
    const number = names.indexOf(name);
    const line = svg("line", { class: `curve s${number % 6}`, x1: 0, x2: 22, y1: 9, y2: 9, ...dashed(number) });
    const dot = svg("circle", { class: `fill s${number % 6}`, cx: 34, cy: 9, r: 7 });
    const letter = svg("text", { class: "letter on", x: 34, y: 12 }, letters[number]);
    return html("span", {}, svg("svg", { width: 44, height: 18, "aria-hidden": "true" }, line, dot, letter), name);
  }));
}

function drawTree(tree, names, letters) {
  const { column, row, rows, columns, spine } = layoutTree(tree.parents);
  const [dx, dy, margin, radius] = [columns > 11 ? 19 : 26, 17, 9, 6.5];
  const accepted = new Set(tree.accepted);
  const x = (node) => margin + column[node] * dx;
  const y = (node) => margin + row[node] * dy;
  const [width, height] = [2 * margin + (columns - 1) * dx, 2 * margin + (rows - 1) * dy];
  const label = `Tree of ${tree.parents.length - 1} draft nodes, ${accepted.size} accepted`;
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const classes = (node) => {
    const number = firstSource(tree.sources[node]);
    return `${number < 0 ? "anchor" : `s${number % 6}`}${accepted.has(node) ? " accepted" : ""}${spine.has(node) ? " spine" : ""}`;
  };
  for (let node = 1; node < tree.parents.length; node++) {
    const parent = tree.parents[node];
    // Below a node there is room: what stands in the rows between branched off further right.
    const bend = row[node] === row[parent] ? "" : `V${y(node) - 7}Q${x(parent)} ${y(node)} ${x(parent) + 7} ${y(node)}`;
    const path = `M${x(parent)} ${y(parent)}${bend}H${x(node)}`;
    root.append(svg("path", { class: `edge ${classes(node)}`, d: path }));
  }
  tree.parents.forEach((_, node) => {
    const on = node === 0 || accepted.has(node);
    const circle = svg("circle", { class: `node ${on && node ? "fill " : ""}${classes(node)}`, cx: x(node), cy: y(node), r: radius });
    const from = node ? sourcesOf(tree.sources[node], names).join(", ") || "no source" : "anchor";
    const text = tree.texts ? `${JSON.stringify(tree.texts[node])} ` : "";
    const verdict = node ? (accepted.has(node) ? ", accepted" : "") : "";
    const chance = node ? `, predicted ${percent(tree.probs[node], 1)}` : "";
    const group = svg("g", {}, svg("title", {}, `${text}${from}${chance}${verdict}`), circle);
    const number = firstSource(tree.sources[node]);
    if (number >= 0) group.append(svg("text", { class: `letter${on ? " on" : ""}`, x: x(node), y: y(node) + 3 }, letters[number]));
    root.append(group);
  });
  const caption = `${tree.replica_id}, step ${tree.step_id}: ${tree.parents.length - 1} drafted, ${accepted.size} accepted`;
  return html("figure", { class: columns > 30 ? "deepest" : columns > 11 ? "deep" : "" }, html("figcaption", {}, caption), root);
}
