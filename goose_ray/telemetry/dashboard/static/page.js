// Polls the server and draws what it says.

const POLL_MS = 2000;
// Attempts that a point of the drift curves stands on.
const ENOUGH = 40;
// Attempts that a point of the depth curves stands on.
const SOME = 10;
const RECENT_S = 60;
const AGAIN_S = 20;
// A phone shows fewer trees, or the rest of the page would be far below.
const NARROW_PX = 720;
// Without the password that may stand in the page's own URL: fetch refuses such addresses. The browser sends it all the same.
const PAGE = location.origin + location.pathname;
const byId = (id) => document.getElementById(id);
let history = [];
let shown = null;
// Points from here on are asked for.
let complete = 0;

async function poll() {
  try {
    const answer = await fetch(new URL(`v1/goose/live?since=${complete}`, PAGE), { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const live = await answer.json();
    history = mergeHistory(history, live.history, live.history_s, live.time);
    // A replica that is too busy to answer tells later what it did: until then the points are asked for again.
    if (!live.replicas.some((replica) => replica.live && replica.tokens_per_s === null)) {
      complete = live.time - AGAIN_S;
    }
    shown = live;
    draw();
  } catch (error) {
    say(shown ? `no news: ${error.message}` : `not reachable: ${error.message}`, true);
  }
  setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
}

function say(text, bad) {
  byId("status").textContent = text;
  byId("status").classList.toggle("bad", bad);
}

function draw() {
  const { cluster } = shown;
  byId("model").textContent = shown.model;
  const away = shown.remembered ? "" : "; the aggregator is away";
  say(`${cluster.healthy} of ${cluster.live} replicas healthy, ${new Date(shown.time * 1000).toLocaleTimeString()}${away}`, !cluster.healthy);
  drawTiles(cluster);
  drawOverTime();
  drawTrees();
  drawSources();
  drawReplicas();
}

function drawTiles(cluster) {
  const tiles = [
    ["tokens/s", shortNumber(cluster.tokens_per_s)], ["tau", shortNumber(cluster.tau)], ["running", cluster.running],
    ["waiting", cluster.waiting], ["KV in use", percent(cluster.kv_used, cluster.kv_total)],
    ["healthy / live", `${cluster.healthy} / ${cluster.live}`],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value]) =>
    html("div", { class: "tile" }, html("b", {}, value), html("span", {}, name))));
}

function overTime(id, label, curves, yMost, yLabel) {
  const end = shown.time;
  const start = Math.min(end - 120, history.length ? history[0].t : end);
  const middle = (start + end) / 2;
  lineChart(byId(id), {
    curves, yMost, yLabel, label, xRange: [start, end], xTicks: [middle, end],
    xLabel: (t) => (t === end ? "now" : `${((end - t) / 60).toFixed(1)} min ago`),
  });
}

function drawOverTime() {
  // A point stands for the seconds from its time on.
  const points = (key) => history.map((point) => [point.t + shown.period_s / 2, point[key]]);
  const most = (curve, least) => Math.max(least, ...curve.map((point) => point[1] || 0));
  const [tokens, tau] = [points("tokens_per_s"), points("tau")];
  overTime("tokens", "Tokens per second of the cluster", [{ points: tokens, class: "main", area: true }], most(tokens, 1), shortNumber);
  overTime("tau", "Tau of the cluster", [{ points: tau, class: "main", area: true }], most(tau, 2), shortNumber);
  const drift = shown.source_names.map((name, number) => (
    { points: driftOf(history, name, ENOUGH), class: `s${number % 6}`, dash: number, dots: true }));
  overTime("drift", "Acceptance of each source over time", drift, 1, (rate) => percent(rate, 1));
}

function drawTrees() {
  const letters = lettersOf(shown.source_names);
  const used = new Set(Object.keys(shown.sources).filter((name) => shown.sources[name].attempted));
  for (const tree of shown.trees) for (const bits of tree.sources) sourcesOf(bits, shown.source_names).forEach((name) => used.add(name));
  for (const id of ["tree-legend", "depth-legend", "drift-legend"]) legend(byId(id), shown.source_names, letters, used);
  const trees = shown.trees.slice(0, innerWidth > NARROW_PX ? 8 : 4).map((tree) => drawTree(tree, shown.source_names, letters));
  byId("trees").replaceChildren(...(trees.length ? trees : [html("p", { class: "note" }, "No tree yet: nothing was drafted.")]));
}

function drawSources() {
  const names = Object.keys(shown.sources).filter((name) => shown.sources[name].attempted);
  const rows = names.map((name) => {
    const { attempted, accepted } = shown.sources[name];
    const [lately, hits] = countsSince(history, name, shown.time - RECENT_S);
    const change = attempted && lately >= ENOUGH ? 100 * (hits / lately - accepted / attempted) : null;
    const number = Math.max(0, shown.source_names.indexOf(name)) % 6;
    const width = attempted ? (70 * accepted) / attempted : 0;
    const bar = svg("svg", { class: "bar", width: 72, height: 12, "aria-hidden": "true" },
      svg("rect", { class: `edge s${number}`, x: 1, y: 1, width: 70, height: 10 }),
      svg("rect", { class: `fill s${number}`, x: 1, y: 1, width, height: 10 }));
    return [html("span", {}, name), html("span", {}, bar, " ", percent(accepted, attempted)), shortNumber(attempted),
      percent(hits, Math.round(lately)), change === null ? "–" : `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)} pt`];
  });
  byId("sources").replaceChildren(table(["source", "accepted", "of nodes", "last minute", "drift"], rows));
  drawDepths(names);
}

function drawDepths(names) {
  const known = names.map((name) => shown.sources[name].by_depth.filter(([, , tries]) => tries >= SOME));
  const edges = [...new Set(known.flat().map(([first]) => first))].sort((a, b) => a - b);
  lineChart(byId("depth"), {
    curves: names.map((name, index) => {
      const number = Math.max(0, shown.source_names.indexOf(name));
      const points = known[index].map(([first, , tries, hits]) => [edges.indexOf(first), hits / tries]);
      return { points, class: `s${number % 6}`, dash: number, dots: true };
    }),
    xRange: [0, Math.max(1, edges.length - 1)], xTicks: edges.map((_, index) => index), xLabel: (index) => edges[index],
    yMost: 1, yLabel: (rate) => percent(rate, 1), label: "Acceptance of each source by depth below the anchor",
  });
}

function drawReplicas() {
  const names = ["replica", "state", "running", "waiting", "KV in use", "tokens/s", "tau", "preempted"];
  const rows = shown.replicas.map((replica) => {
    const state = replica.healthy ? "healthy" : replica.live ? "unhealthy" : "gone";
    return [`${replica.replica_id} (${replica.host}, ${replica.pid})`,
      html("span", { class: replica.healthy ? "good" : "bad" }, state), replica.running, replica.waiting,
      percent(replica.kv_used, replica.kv_total), shortNumber(replica.tokens_per_s), shortNumber(replica.tau), replica.preemptions];
  });
  byId("replicas").replaceChildren(table(names, rows));
}

function table(names, rows) {
  const head = html("thead", {}, html("tr", {}, ...names.map((name) => html("th", { scope: "col" }, name))));
  const body = rows.map((cells) => html("tr", {}, ...cells.map((cell, index) => html("td", { "data-name": names[index] }, cell))));
  return html("table", {}, head, html("tbody", {}, ...body));
}

addEventListener("resize", () => shown && draw());
poll();
