// The page's arithmetic: from JSON to numbers and texts. Touches no document, so it runs anywhere.
"use strict";

// Columns and rows of a tree's nodes, parents first. The child with the deepest subtree runs on in its parent's row,
// the others get rows of their own below, in the order in which they were drafted.
function layoutTree(parents) {
  const count = parents.length;
  const children = parents.map(() => []);
  const column = new Array(count).fill(0);
  const reach = new Array(count).fill(0);
  for (let node = 1; node < count; node++) {
    children[parents[node]].push(node);
    column[node] = column[parents[node]] + 1;
  }
  for (let node = count - 1; node > 0; node--) reach[parents[node]] = Math.max(reach[parents[node]], reach[node] + 1);
  const row = new Array(count).fill(0);
  let rows = 0;
  // What branches off further right comes first, so that no edge crosses another.
  const pending = [[0, null]];
  while (pending.length) {
    const [node, given] = pending.pop();
    row[node] = given === null ? rows++ : given;
    const below = children[node].slice().sort((a, b) => reach[b] - reach[a] || a - b);
    pending.push(...below.map((child, rank) => [child, rank ? null : row[node]]).reverse());
  }
  const spine = new Set([0]);
  for (let node = 0; children[node].length; ) {
    node = children[node].find((child) => row[child] === row[node]);
    spine.add(node);
  }
  return { column, row, rows, columns: Math.max(...column) + 1, spine };
}

// Names of the sources whose bits are set.
function sourcesOf(bits, names) {
  return names.filter((_, number) => (bits >> number) & 1);
}

// The source a node is drawn as: the first of those that proposed it, -1 for none.
function firstSource(bits) {
  return bits ? 31 - Math.clz32(bits & -bits) : -1;
}

// Letters that tell the names apart: the first one of each that no earlier name has.
function lettersOf(names) {
  const taken = new Set();
  return names.map((name) => {
    const letter = [...name].find((each) => !taken.has(each)) || "?";
    taken.add(letter);
    return letter;
  });
}

// Round numbers from 0 to at least `most`, four or five of them.
function ticksTo(most) {
  const rough = Math.max(most, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999) * power;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => Number((index * step).toPrecision(6)));
}

// The path of a curve through [x, y] points in pixels; null is a gap.
function pathThrough(points) {
  let path = "";
  let joined = false;
  for (const point of points) {
    if (point) path += `${joined ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    joined = Boolean(point);
  }
  return path;
}

function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (Math.abs(value) >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return Number.isInteger(value) ? String(value) : value.toFixed(Math.abs(value) < 10 ? 2 : 1);
}

function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(part && part / whole < 0.1 ? 1 : 0)} %` : "–";
}

// Known points with the fresh ones behind them, or in the place of those of the same time; none older than `keepS`.
function mergeHistory(known, fresh, keepS, now) {
  const byTime = new Map([...known, ...fresh].map((point) => [point.t, point]));
  return [...byTime.values()].filter((point) => point.t >= now - keepS).sort((a, b) => a.t - b.t);
}

// A source's [attempted, accepted] summed over the points since `start`.
function countsSince(history, name, start) {
  return history.filter((point) => point.t >= start).reduce((sum, point) => {
    const [attempted, accepted] = point.sources[name] || [0, 0];
    return [sum[0] + attempted, sum[1] + accepted];
  }, [0, 0]);
}

// A source's acceptance over time. Few attempts say little: neighbouring points are added up until there are `enough`,
// and what is left over at the end is no point.
function driftOf(history, name, enough) {
  const points = [];
  let attempted = 0;
  let accepted = 0;
  for (const point of history) {
    const counts = point.sources[name] || [0, 0];
    attempted += counts[0];
    accepted += counts[1];
    if (attempted >= enough) {
      points.push([point.t, accepted / attempted]);
      attempted = accepted = 0;
    }
  }
  return points;
}

if (typeof module !== "undefined") {
  module.exports = {
    countsSince, driftOf, firstSource, layoutTree, lettersOf, mergeHistory, pathThrough, percent, shortNumber, sourcesOf, ticksTo,
  };
}
