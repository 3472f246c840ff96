/* SPDX-License-Identifier: Apache-2.0 */
/* Everything beside the canvases: figures, tables, bars. Texts of the data are set as texts alone. */

function make(name, content, attributes) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {}))
    element.setAttribute(key, value);
  for (const part of content === undefined || content === null ? [] : [].concat(content))
    element.append(part instanceof Node ? part : String(part));
  return element;
}

/* columns: [title, cell of a row, is a number]. */
function table(caption, columns, rows, classOf) {
  const head = make("tr", columns.map(([title, , right]) => make("th", title, { scope: "col", class: right ? "n" : "" })));
  const body = rows.map((row, i) => make("tr", columns.map(([, cell, right], k) => {
    const value = cell(row, i);
    return k === 0 ? make("th", value, { scope: "row" }) : make("td", value, { class: right ? "n" : "name" });
  }), classOf ? { class: classOf(row, i) } : {}));
  const made = make("table", [make("caption", caption), make("thead", head), make("tbody", body)]);
  return make("div", made, { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
}

/* "1 micro-batch", "2 micro-batches". */
const count = (n, word) => n + " " + (n === 1 ? word : word.endsWith("y") ? word.slice(0, -1) + "ies" : word.endsWith("h") ? word + "es" : word + "s");

const dash = (value, text) => (value === undefined || value === null ? "–" : text(value));

/* ---- figures ---- */

function sumsOf(track) {
  const idle = {};
  let busy = 0, all = 0;
  for (const lane of track.ranks) {
    busy += lane.busy * lane.copies;
    for (const [name, value] of Object.entries(lane.idle))
      idle[name] = (idle[name] || 0) + value * lane.copies;
  }
  all = busy + Object.values(idle).reduce((a, b) => a + b, 0);
  return { busy, idle, all };
}

/* As the simulator says it; of a trace what its lanes come to. */
function bubbleOf(track) {
  const sums = sumsOf(track);
  return track.figures && track.figures.bubble !== undefined ? track.figures.bubble : sums.all > 0 ? 1 - sums.busy / sums.all : 0;
}

const stepOfTrack = (t) => (t.figures && (t.figures.step_ns || t.figures.makespan)) || t.end;

function fullest(track) {
  const lanes = track.ranks.map((l) => ({ most: l.kept.peak + l.fixed_bytes, cap: l.cap_bytes, rank: l.rank }));
  return lanes.reduce((a, b) => (b.most > a.most ? b : a), { most: 0, cap: 0, rank: 0 });
}

function fillFigures() {
  const into = document.getElementById("figures");
  const add = (title, textOf) => {
    const parts = tracks.map((track) => ({ track, text: textOf(track) })).filter((p) => p.text);
    if (parts.length === 0)
      return;
    const values = parts.map(({ track, text }) => make("dd", [...[].concat(text), ...(tracks.length > 1 ? [make("small", shortName(track.name))] : [])]));
    into.append(make("div", make("dl", [make("dt", title), ...values]), { class: "figure" }));
  };
  add("Step", (t) => time(stepOfTrack(t), 4));
  add("Bubble", (t) => percent(bubbleOf(t)));
  add("Micro-batches per second", (t) => t.figures && t.figures.microbatches_per_s && digits(t.figures.microbatches_per_s, 4));
  add("Utilisation", (t) => t.figures && t.figures.utilisation && percent(t.figures.utilisation));
  add("Fullest rank", (t) => {
    const f = fullest(t);
    return f.most > 0 && [kept(t, f.most), make("small", "rank " + f.rank + (f.cap > 0 ? ", cap " + bytes(f.cap) : ""))];
  });
  add("Devices", (t) => t.figures && t.figures.devices && digits(t.figures.devices, 6));
}

/* ---- where time goes ---- */

const causes = () => page.kinds.slice(FIRST_IDLE, END_IDLE);

/* Programs of a lane, by pass: seconds of each kind, idle ones as the data say. */
function shares(lane) {
  const of = new Map();
  const { start, end, cls, n } = lane.spans, { first, step } = lane.track;
  for (let i = 0; i < n; ++i) {
    const kind = lane.kindOf[cls[i]];
    if (kind < FIRST_IDLE)
      of.set(page.kinds[kind], (of.get(page.kinds[kind]) || 0) + Math.max(0, Math.min(end[i], first + step) - Math.max(start[i], first)));
  }
  for (const [name, value] of Object.entries(lane.idle))
    of.set(name, value);
  return of;
}

function barOf(of, all) {
  return page.kinds.filter((name) => of.get(name) > 0).map((name) => make("span", "", {
    style: "width:" + (100 * of.get(name)) / all + "%;background:var(--" + KINDS[name].colour + ")",
    title: KINDS[name].title + ": " + percent(of.get(name) / all),
  }));
}

function fillTrackBubble(into, track) {
  const sums = sumsOf(track), total = new Map(), rows = [];
  const dense = track.ranks.length > 16;
  for (const lane of track.ranks) {
    const of = shares(lane), all = [...of.values()].reduce((a, b) => a + b, 0) || 1;
    for (const [name, value] of of)
      total.set(name, (total.get(name) || 0) + value * lane.copies);
    rows.push(make("span", "rank " + lane.rank + (lane.copies > 1 ? " × " + lane.copies : "")), make("div", barOf(of, all), { class: "row" }),
      make("span", percent(1 - lane.busy / all) + " idle"));
  }
  const said = [...total].map(([name, value]) => KINDS[name].title + " " + percent(value / sums.all)).join(", ");
  if (tracks.length > 1)
    into.append(make("h3", shortName(track.name)));
  into.append(make("div", barOf(total, sums.all || 1), { class: "total", role: "img", "aria-label": "Share of all ranks' time: " + said }));
  into.append(make("div", rows, { class: dense ? "rows dense" : "rows" }));
}

function fillBubble() {
  const into = document.getElementById("bubble");
  into.append(make("p", "All time of all ranks in a step, without rest: their programs, and between these what a rank stood still for.", { class: "hint" }));
  for (const track of tracks)
    fillTrackBubble(into, track);
  const all = tracks.map(sumsOf);
  const rows = causes().filter((name) => all.some((s) => s.idle[name] > 0)).map((name) => make("div", [
    make("i", "", { style: "background:var(--" + KINDS[name].colour + ")" }), make("dt", KINDS[name].title),
    make("dd", all.map((s) => percent((s.idle[name] || 0) / (s.all || 1))).join(" · "), { class: "n" }),
    make("dd", KINDS[name].what, { class: "what" })]));
  into.append(make("dl", rows, { class: "causes" }));
}

/* ---- tables ---- */

function fillRanks() {
  const into = document.getElementById("ranks"), seen = causes().filter((name) => tracks.some((t) => t.ranks.some((l) => l.idle[name] > 0)));
  for (const track of tracks) {
    const lanes = track.ranks, columns = [["Rank", (l) => l.rank + (l.copies > 1 ? " × " + l.copies : "")]];
    if (lanes.some((l) => l.device))
      columns.push(["Device", (l) => dash(l.device, String)]);
    if (lanes.some((l) => l.clock))
      columns.push(["Clock", (l) => dash(l.clock, String)]);
    columns.push(["At work", (l) => time(l.busy, 4, stepOfTrack(track)), true]);
    for (const name of seen)
      columns.push([KINDS[name].title, (l) => time(l.idle[name] || 0, 4, stepOfTrack(track)), true]);
    if (track.kept === "bytes")
      columns.push(["Always kept", (l) => bytes(l.fixed_bytes), true]);
    columns.push(["Most kept", (l) => kept(track, l.fixed_bytes + l.kept.peak), true]);
    if (track.kept === "bytes")
      columns.push(["Cap", (l) => (l.cap_bytes > 0 ? bytes(l.cap_bytes) : "none"), true]);
    into.append(table(track.name + ": what each rank did in " + time(stepOfTrack(track), 5), columns, lanes));
    if (track.figures && track.figures.tiers && track.figures.tiers.length > 0) {
      into.append(make("h3", "Links"), table("What went over each tier of links", [["Tier", (t) => t.name || "link"],
        ["Bytes", (t) => bytes(t.bytes), true], ["Busiest port", (t) => percent(t.busiest), true]], track.figures.tiers));
    }
  }
}

function fillPlan() {
  const plan = page.plan, into = document.getElementById("plan");
  if (!plan)
    return;
  document.getElementById("plan-section").hidden = false;
  const settings = Object.entries(plan.settings).map(([key, value]) => key + "=" + value).join(", ");
  into.append(make("p", [plan.schedule, settings ? " (" + settings + ")" : "", ", ", count(plan.microbatches, "micro-batch"), " over ", plan.transport,
    "; by the plan's own clock (", plan.cost, ") ", time(plan.interval_ns, 5), ", no order takes less than ", time(plan.bound_ns, 5), "."]));
  const stage = [["Stage", (s) => s.stage], ["Ranks", (s) => s.ranks.join(", ")], ["Nodes", (s) => s.nodes, true],
    ["First node", (s) => dash(s.first, String)], ["Last node", (s) => dash(s.last, String)], ["Forward", (s) => time(s.forward_ns, 4), true]];
  if (plan.stages.some((s) => s.input_ns !== undefined))
    stage.push(["Backward, inputs", (s) => dash(s.input_ns, (x) => time(x, 4)), true], ["Backward, weights", (s) => dash(s.weight_ns, (x) => time(x, 4)), true]);
  if (plan.stages.some((s) => s.stash_bytes !== undefined))
    stage.push(["Kept for it", (s) => dash(s.stash_bytes, bytes), true]);
  into.append(table("Stages: times and bytes of one micro-batch", stage, plan.stages));
  if (plan.cut.length > 0) {
    into.append(make("h3", "The cut"), table("Tensors that cross stages, in a micro-batch", [["Stages", (c) => c.from + " → " + c.to],
      ["Bytes", (c) => bytes(c.bytes), true], ["Tensor", (c) => c.tensor]], plan.cut));
  }
  if (plan.ranks.length > 0 && plan.ranks[0].total_bytes !== undefined) {
    const parts = [["params", "Parameters"], ["gradient", "Gradients"], ["optimizer", "Optimizer"], ["version", "Versions"], ["stash", "Kept for backward"],
      ["activation", "Activations"], ["workspace", "Workspace"], ["boundary", "Boundaries"], ["state", "States"], ["total", "In all"]]
      .filter(([name]) => name === "total" || plan.ranks.some((r) => r[name + "_bytes"] > 0));
    into.append(make("h3", "Memory"), table("Bytes of each rank" + (plan.ranks.some((r) => r.estimated) ? ", estimated where its device was described" : ""),
      [["Rank", (r) => r.rank], ["Device", (r) => r.device + ":" + r.index], ...parts.map(([name, title]) => [title, (r) => bytes(r[name + "_bytes"]), true]),
        ["Cap", (r) => (r.cap_bytes === null ? "none" : bytes(r.cap_bytes)), true]], plan.ranks));
  }
}

function stagesText(strategy) {
  const counts = strategy.stages.map((s) => s.devices.length / (strategy.width || 1));
  const replicas = counts.every((n) => n === counts[0]) ? (counts[0] > 1 ? " × " + counts[0] : "") : " × " + counts.join("+");
  return strategy.stages.length + replicas;
}

/* A stream of requests through copies of the whole model, beside the stages of the best plan. */
function replicasText(replicas, stages) {
  if (replicas.copies === 0)
    return "Replicas: none, a device does not hold the whole model's " + bytes(replicas.weights_bytes) + " of weights.";
  return ["Replicas: ", replicas.copies, replicas.copies === 1 ? " copy" : " copies", " of the whole model, requests in turn: ", time(replicas.interval_ns, 4),
    " between requests, the stages ", time(stages, 4), "; ", replicas.interval_ns < stages ? "replicas are better off" : "stages are as good",
    ". A request reads ", bytes(replicas.weights_bytes), " of weights on one device, or ", bytes(replicas.stage_weights_bytes), " on each."].join("");
}

function fillAnswer() {
  const answer = page.answer, into = document.getElementById("answer");
  if (!answer)
    return;
  document.getElementById("answer-section").hidden = false;
  const search = answer.search;
  if (search && search.ranked && search.ranked.length > 0) {
    into.append(make("p", [search.candidates, " candidates for the best ", search.objective, ": ", search.simulated, " simulated, ",
      search.bounded, " ruled out by a bound, ", search.refused, " refused", search.left ? ", " + search.left + " not looked at" : "",
      search.gap !== null && search.gap !== undefined ? "; the best is " + percent(search.gap) + " above what can be proven" : "", "."], { class: "hint" }));
    if (search.replicas)
      into.append(make("p", replicasText(search.replicas, search.ranked[0].interval_ns), { id: "replicas" }));
    into.append(table("The best plan first; why each of the others is not it", [["", (r, i) => i + 1], ["Schedule", (r) => r.strategy.schedule],
      ["Stages", (r) => stagesText(r.strategy), true], ["Copies", (r) => r.strategy.pipelines, true], ["Tensor", (r) => r.strategy.width, true],
      ["Micro-batches", (r) => r.strategy.microbatches + " of " + r.strategy.samples, true], ["Recompute", (r) => (r.strategy.recompute ? "yes" : "no")],
      ["Step", (r) => dash(r.step_ns, (x) => time(x, 5)), true], ["Bubble", (r) => dash(r.bubble, percent), true],
      ["Fullest device", (r) => dash(r.bytes, bytes), true], ["Why not", (r) => r.reason || "the best"]], search.ranked, (r, i) => (i === 0 ? "best" : "")));
    return;
  }
  into.append(make("p", ["Planner ", answer.planner, " says one plan and compares it with no others: ", answer.schedule, ", ", stagesText(answer), stagesText(answer) === "1" ? " stage, " : " stages, ",
    count(answer.pipelines, "copy"), ", tensor width ", answer.width, ", ", count(answer.microbatches, "micro-batch"), " of ",
    count(answer.samples, "sample"), ", ", time(answer.step_ns, 5), " by its own rules."]));
  into.append(table("Stages of the answer", [["Stage", (s, i) => i], ["Devices", (s) => s.devices.join(", ")], ["Layers", (s) => s.first_layer !== undefined ? s.first_layer : dash(s.first, String)],
    ["Last layer", (s) => dash(s.last, String)], ["Forward", (s) => dash(s.forward_ns, (x) => time(x, 4)), true], ["Backward", (s) => dash(s.backward_ns, (x) => time(x, 4)), true],
    ["Bytes", (s) => dash(s.memory_bytes, bytes), true]], answer.stages));
}

function fillCompared() {
  const both = page.compared, nameA = both && shortName(both.a), nameB = both && shortName(both.b), into = document.getElementById("compared");
  if (!both)
    return;
  document.getElementById("compared-section").hidden = false;
  const change = (c) => (c.a > 0 && c.b !== null ? (c.b >= c.a ? "+" : "−") + percent(Math.abs(c.b / c.a - 1)) : "–");
  const cost = { step_ns: ["Step, or interval", time], request_ns: ["Alone", time], bound_ns: ["Lower bound", time],
    fullest_bytes: ["Fullest device", bytes], all_bytes: ["All devices", bytes] };
  into.append(table("Decisions that differ", [["", (d) => d.what], [nameA, (d) => d.a], [nameB, (d) => d.b]], both.differs));
  into.append(make("h3", "Costs"), table("What each costs, as its file says", [["", (c) => (cost[c.what] ? cost[c.what][0] : c.what)],
    [nameA, (c) => dash(c.a, (x) => cost[c.what][1](x)), true], [nameB, (c) => dash(c.b, (x) => cost[c.what][1](x)), true], ["Change", change, true]],
  both.costs.filter((c) => c.a !== null || c.b !== null)));
  into.append(make("h3", "Stages"), table("Forward of each stage, and its last node", [["Stage", (s) => s.stage],
    [nameA, (s) => dash(s.forward_ns.a, (x) => time(x, 4)), true], [nameB, (s) => dash(s.forward_ns.b, (x) => time(x, 4)), true],
    ["Last node, " + nameA, (s) => s.last.a || "–"], ["Last node, " + nameB, (s) => s.last.b || "–"]], both.stages));
  fillCuts(into, both, nameA, nameB);
}

/* What crosses between stages, of both; a bar is as long as its bytes are of the most. */
function fillCuts(into, both, nameA, nameB) {
  if (both.cuts.length === 0)
    return;
  const sum = (key, side) => (both.cuts[0][key][side] === null ? null : both.cuts.reduce((n, c) => n + c[key][side], 0));
  const all = { bytes: { a: sum("bytes", "a"), b: sum("bytes", "b") }, tensors: { a: sum("tensors", "a"), b: sum("tensors", "b") }, all: true };
  const most = Math.max(1, ...both.cuts.flatMap((c) => [c.bytes.a || 0, c.bytes.b || 0]));
  const change = ({ a, b }) => (a > 0 && b !== null ? (b >= a ? "+" : "−") + percent(Math.abs(b / a - 1)) : "–");
  const bar = (n) => make("span", "", { class: "cut", style: "width:" + (100 * n) / most + "%" });
  const cell = (side) => (c) => (c.bytes[side] === null ? "–" : make("span", c.all ? bytes(c.bytes[side]) : [bytes(c.bytes[side]), bar(c.bytes[side])], { class: "cell" }));
  into.append(make("h3", "The cuts"), table("Activations that cross between stages, in a micro-batch", [["Stages", (c) => (c.all ? "all" : c.from + " → " + c.to)],
    [nameA, cell("a"), true], [nameB, cell("b"), true], ["Change", (c) => change(c.bytes), true],
    ["Tensors, " + nameA, (c) => dash(c.tensors.a, String), true], ["Tensors, " + nameB, (c) => dash(c.tensors.b, String), true]], [...both.cuts, all]));
}

function fillLegend() {
  const into = document.getElementById("legend"), seen = new Set();
  for (const track of tracks)
    for (const lane of track.lanes)
      for (const [kind] of lane.classes)
        seen.add(kind);
  const shown = new Set();
  kinds.forEach((kind, i) => {
    if (!seen.has(i) || shown.has(kind.colour))
      return;
    shown.add(kind.colour);
    into.append(make("span", [make("i", "", { style: "background:var(--" + kind.colour + ")" }), kind.title], { class: "key" }));
  });
}

function fillHead() {
  const ranks = tracks.length > 0 ? tracks[0].ranks.length : 0, stages = new Set(), batches = new Set();
  for (const lane of tracks.length > 0 ? tracks[0].ranks : []) {
    lane.classes.forEach((c) => c[1] >= 0 && stages.add(c[1]));
    lane.spans.mb.forEach((mb) => mb >= 0 && batches.add(mb));
  }
  const names = page.compared ? shortName(page.compared.a) + " and " + shortName(page.compared.b) : "";
  const title = page.title.split("/").slice(-2).join("/") || names || (page.plan ? page.plan.schedule : "A schedule");
  document.getElementById("title").textContent = title;
  document.title = title + " – onnx-pipe";
  document.getElementById("subtitle").textContent = tracks.length === 0 ? "" :
    count(ranks, "rank") + ", " + count(stages.size, "stage") + ", " + count(batches.size, "micro-batch") + (page.plan ? ", " + page.plan.schedule : "") + "; " +
    tracks.map((t) => shortName(t.name)).join(" beside ");
}
