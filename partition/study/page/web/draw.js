/* SPDX-License-Identifier: Apache-2.0 */
/* The canvases. Where spans are wide they are boxes with their micro-batch; where they are thinner
 * than pixels each lane is a row of pixels, mixed by how much of each is covered, so that a frame
 * costs what is seen of the rows, not what there is. */

const colours = {};
const MANY = 9000; /* boxes; more of them are drawn as pixels */

function rgb(text) {
  const m = /^#(..)(..)(..)$/.exec(text.trim());
  return [1, 2, 3].map((i) => parseInt(m[i], 16));
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["back", "panel", "ink", "soft", "line", "lane", "accent", "cap"];
  for (const kind of kinds)
    names.push(kind.colour, "on-" + kind.colour);
  for (const name of names) {
    const value = style.getPropertyValue("--" + name).trim() || style.getPropertyValue("--ink").trim();
    colours[name] = value;
    colours[name + "-rgb"] = rgb(value);
  }
}

/* A canvas as wide as its box, in pixels of the screen. */
function prepare(canvas, height) {
  const ratio = Math.min(2, window.devicePixelRatio || 1), width = canvas.clientWidth || 600;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colours.back;
  context.fillRect(0, 0, width, height);
  context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  context.textBaseline = "middle";
  return context;
}

/* ---- spans ---- */

function countSeen(rows) {
  let n = 0;
  for (const { lane } of rows)
    n += firstAfter(lane, view.last + lane.maxLength) - firstAfter(lane, view.first);
  return n;
}

function drawBoxes(c, row) {
  const { lane, y, height } = row, { start, end, cls, mb, n } = lane.spans;
  const scale = plot() / (view.last - view.first), x0 = left(), x1 = x0 + plot();
  let last = "";
  for (let i = firstAfter(lane, view.first); i < n && start[i] < view.last; ++i) {
    if (end[i] < view.first)
      continue;
    const kind = kinds[lane.kindOf[cls[i]]];
    const from = Math.max(x0, x0 + (start[i] - view.first) * scale);
    const to = Math.min(x1, x0 + (end[i] - view.first) * scale);
    const idle = isIdle(lane.kindOf[cls[i]]);
    const width = Math.max(idle ? 0 : 0.6, to - from - (to - from > 3 ? 0.8 : 0));
    if (last !== kind.colour)
      c.fillStyle = colours[last = kind.colour];
    if (idle)
      c.fillRect(from, y + height * 0.3, width, height * 0.4);
    else
      c.fillRect(from, y, width, height);
    if (!idle && !lane.isLink && height >= 13 && width >= 11 && mb[i] >= 0) {
      const text = width >= 34 ? kind.name + mb[i] : String(mb[i]);
      if (width >= 6.6 * text.length + 3) {
        c.fillStyle = colours["on-" + kind.colour];
        last = "";
        c.fillText(text, from + width / 2, y + height / 2 + 0.5);
      }
    }
  }
}

const mix = { image: null, canvas: document.createElement("canvas"), sums: null };

/* One row of the image: what covers each pixel, over the colour of the lane. */
function mixRow(lane, image, row, width) {
  const { start, end, cls, n } = lane.spans, scale = width / (view.last - view.first);
  const sums = mix.sums;
  sums.fill(0);
  for (let i = firstAfter(lane, view.first); i < n && start[i] < view.last; ++i) {
    const kind = lane.kindOf[cls[i]];
    if (isIdle(kind) || end[i] < view.first)
      continue;
    const colour = colours[kinds[kind].colour + "-rgb"];
    const from = Math.max(0, (start[i] - view.first) * scale), to = Math.min(width, (end[i] - view.first) * scale);
    for (let x = Math.floor(from); x < to; ++x) {
      const part = Math.min(to, x + 1) - Math.max(from, x), at = x * 4;
      sums[at] += colour[0] * part;
      sums[at + 1] += colour[1] * part;
      sums[at + 2] += colour[2] * part;
      sums[at + 3] += part;
    }
  }
  const base = colours["lane-rgb"], data = image.data;
  for (let x = 0, to = row * width * 4; x < width * 4; x += 4, to += 4) {
    const part = sums[x + 3], most = part > 1 ? part : 1, rest = part > 1 ? 0 : 1 - part;
    data[to] = sums[x] / most + base[0] * rest;
    data[to + 1] = sums[x + 1] / most + base[1] * rest;
    data[to + 2] = sums[x + 2] / most + base[2] * rest;
    data[to + 3] = 255;
  }
}

function drawPixels(c, rows) {
  const width = Math.round(plot()), height = rows.length;
  if (mix.canvas.width !== width || mix.canvas.height !== height || mix.image === null) {
    mix.canvas.width = width;
    mix.canvas.height = height;
    mix.image = mix.canvas.getContext("2d").createImageData(width, height);
    mix.sums = new Float32Array(width * 4);
  }
  rows.forEach((row, i) => mixRow(row.lane, mix.image, i, width));
  mix.canvas.getContext("2d").putImageData(mix.image, 0, 0);
  c.imageSmoothingEnabled = false;
  rows.forEach((row, i) => c.drawImage(mix.canvas, 0, i, width, 1, left(), row.y, plot(), row.height));
}

/* ---- around them ---- */

/* Steps of 1, 2, 5 times a power of ten. */
function stepOf(span, most) {
  const least = span / most, power = Math.pow(10, Math.floor(Math.log10(least)));
  return power * [1, 2, 5, 10].find((k) => power * k >= least);
}

/* Where each track has its own scale, in parts of a track. */
function drawAxis(c, bottom) {
  const one = view.own ? END / 100 : 1;
  const span = view.last - view.first, step = one * stepOf(span / one, Math.max(2, plot() / 90));
  const [scale, unit] = UNITS.find(([s]) => view.last >= s) || UNITS[3];
  c.textAlign = "center";
  c.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  for (let k = Math.ceil(view.first / step); k * step <= view.last * (1 + 1e-12); ++k) {
    const x = Math.round(toX(k * step)) + 0.5;
    c.strokeStyle = colours.line;
    c.beginPath();
    c.moveTo(x, OVERVIEW + AXIS - 4);
    c.lineTo(x, bottom);
    c.stroke();
    const text = view.own ? digits(k * step / one, 7) + " %" : page.unit === "ns" ? digits(k * step / scale, 7) + " " + unit : digits(k * step, 7);
    const half = c.measureText(text).width / 2;
    c.fillStyle = colours.soft;
    if (x + half < view.width - 4)
      c.fillText(text, Math.max(x, left() + half), OVERVIEW + AXIS / 2 + 2);
  }
  c.font = "12px system-ui, 'DejaVu Sans', sans-serif";
}

function labelOf(lane) {
  const name = shortName(lane.track.name);
  if (view.byRank)
    return lane.rank + " " + (view.width < 640 ? name.slice(0, 1) : name);
  const copies = lane.copies > 1 && view.width >= 640 ? " × " + lane.copies : "";
  return (view.width < 640 ? "" : "rank ") + lane.rank + copies;
}

function drawLabels(c, rows) {
  let last = -20;
  c.textAlign = "right";
  c.fillStyle = colours.ink;
  for (const { lane, y, height } of rows) {
    if (lane.isLink)
      continue;
    if (y + height / 2 - last < 11 && y + height / 2 > last)
      continue;
    last = y + height / 2;
    c.font = (height < 13 ? "10px" : "12px") + " system-ui, 'DejaVu Sans', sans-serif";
    c.fillText(labelOf(lane), left() - 8, y + height / 2 + 0.5, left() - 12);
  }
  c.font = "12px system-ui, 'DejaVu Sans', sans-serif";
}

/* How many ranks are in which pass, over all of the time: painted once for a width and a scheme. */
const overview = { canvas: document.createElement("canvas"), key: "" };

const longest = () => tracks.reduce((a, b) => (b.end > a.end ? b : a));

function paintOverview(width) {
  const height = OVERVIEW - 14, track = longest(), passes = FIRST_IDLE;
  const sums = Array.from({ length: passes }, () => new Float32Array(width)), scale = width / END;
  let total = 0;
  for (const lane of track.ranks) {
    const { start, end, cls, n } = lane.spans;
    total += lane.copies;
    for (let i = 0; i < n; ++i) {
      const kind = lane.kindOf[cls[i]];
      const from = start[i] * scale, to = Math.min(width, end[i] * scale);
      for (let x = Math.floor(from); kind < FIRST_IDLE && x < to; ++x)
        sums[kind][x] += (Math.min(to, x + 1) - Math.max(from, x)) * lane.copies;
    }
  }
  overview.canvas.width = width;
  overview.canvas.height = height;
  const c = overview.canvas.getContext("2d");
  c.fillStyle = colours.lane;
  c.fillRect(0, 0, width, height);
  for (let x = 0; x < width; ++x) {
    let y = height;
    for (let kind = 0; kind < passes; ++kind) {
      const part = (sums[kind][x] / total) * height;
      if (part <= 0)
        continue;
      c.fillStyle = colours[kinds[kind].colour];
      c.fillRect(x, y - part, 1, part);
      y -= part;
    }
  }
}

function drawOverview(c) {
  const width = Math.round(plot()), key = width + colours.back;
  if (tracks.length === 0)
    return;
  if (overview.key !== key)
    paintOverview(width);
  overview.key = key;
  c.drawImage(overview.canvas, left(), 6, plot(), OVERVIEW - 14);
  c.textAlign = "right";
  c.fillStyle = colours.soft;
  c.fillText(view.width < 640 ? "all" : "ranks at work", left() - 8, 6 + (OVERVIEW - 14) / 2);
  const from = left() + (view.first / END) * plot(), to = left() + (view.last / END) * plot();
  if (isWhole())
    return;
  c.save();
  c.globalAlpha = 0.6;
  c.fillStyle = colours.back;
  c.fillRect(left(), 6, from - left(), OVERVIEW - 14);
  c.fillRect(to, 6, left() + plot() - to, OVERVIEW - 14);
  c.restore();
  c.strokeStyle = colours.accent;
  c.lineWidth = 2;
  c.strokeRect(from, 6, Math.max(2, to - from), OVERVIEW - 14);
  c.lineWidth = 1;
}

function drawCursor(c) {
  const cursor = view.cursor;
  if (cursor === null || cursor.span < 0)
    return;
  const row = view.rows.find((r) => r.lane === cursor.lane);
  if (row === undefined)
    return;
  const from = Math.max(left(), toX(cursor.lane.spans.start[cursor.span]));
  const to = Math.min(left() + plot(), toX(cursor.lane.spans.end[cursor.span]));
  if (to < from)
    return;
  c.strokeStyle = colours.ink;
  c.lineWidth = 2;
  c.strokeRect(from - 1, row.y - 1, Math.max(3, to - from + 2), row.height + 2);
  c.lineWidth = 1;
}

function drawTime(canvas) {
  view.width = canvas.clientWidth || 600;
  layOut();
  const c = prepare(canvas, view.height);
  for (const { lane, y, height } of view.rows) {
    c.fillStyle = lane.isLink ? colours.panel : colours.lane;
    c.fillRect(left(), y, plot(), height);
  }
  drawAxis(c, view.height - 6);
  if (countSeen(view.rows) > MANY) {
    drawPixels(c, view.rows);
  } else {
    c.textAlign = "center";
    for (const row of view.rows)
      drawBoxes(c, row);
  }
  drawOverview(c);
  drawLabels(c, view.rows);
  c.textAlign = "left";
  for (const { track, y } of view.heads) {
    c.fillStyle = colours.ink;
    c.font = "600 13px system-ui, 'DejaVu Sans', sans-serif";
    c.fillText(shortName(track.name) + "  " + time(track.figures && track.figures.step_ns || track.end, 5), 8, y + TRACK_HEAD / 2);
  }
  drawCursor(c);
}

/* ---- memory ---- */

/* Caps far above all that is kept would leave nothing of the curves: such a cap is said, not drawn. */
const CAP_SEEN = 4;
const peakOf = (track) => Math.max(0, ...track.ranks.map((l) => l.kept.peak + l.fixed_bytes));
const capSeen = (lane) => lane.cap_bytes > 0 && lane.cap_bytes <= CAP_SEEN * peakOf(lane.track);

function memoryRows() {
  const rows = [], withMemory = tracks.filter((t) => t.ranks.some((l) => l.kept.peak + l.fixed_bytes > 0));
  let y = 4;
  for (const track of withMemory) {
    const height = track.ranks.length <= 8 ? 46 : track.ranks.length <= 16 ? 32 : track.ranks.length <= 64 ? 15 : 9;
    const room = track.ranks.every((l) => l.cap_bytes === 0 || capSeen(l)) ? 1 : 1.25;
    const most = Math.max(room * peakOf(track), ...track.ranks.filter(capSeen).map((l) => l.cap_bytes));
    if (withMemory.length > 1) {
      rows.push({ head: shortName(track.name), y, height: TRACK_HEAD });
      y += TRACK_HEAD;
    }
    for (const lane of track.ranks) {
      rows.push({ lane, y, height: height - 3, most });
      y += height;
    }
  }
  return { rows, height: y + 4 };
}

/* The most that is kept within each pixel. */
function drawKept(c, row) {
  const { lane, y, height, most } = row, { time: times, level } = lane.kept, width = Math.round(plot());
  const yOf = (bytes) => y + height - (bytes / most) * height;
  c.fillStyle = colours.lane;
  c.fillRect(left(), y, plot(), height);
  let low = 0, high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= view.first)
      low = middle + 1;
    else
      high = middle;
  }
  let held = low > 0 ? level[low - 1] : 0, at = low;
  c.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  c.beginPath();
  c.moveTo(left(), y + height);
  const step = (view.last - view.first) / width;
  for (let x = 0; x < width; ++x) {
    const until = view.first + (x + 1) * step;
    let top = held;
    for (; at < times.length && times[at] < until; ++at) {
      held = level[at];
      top = Math.max(top, held);
    }
    const yy = yOf(lane.fixed_bytes + top);
    c.lineTo(left() + x, yy);
    c.lineTo(left() + x + 1, yy);
  }
  c.lineTo(left() + width, y + height);
  c.closePath();
  c.fillStyle = colours.f;
  c.fill();
  if (lane.fixed_bytes > 0) {
    c.fillStyle = colours.send;
    c.fillRect(left(), yOf(lane.fixed_bytes), plot(), y + height - yOf(lane.fixed_bytes));
  }
  if (capSeen(lane)) {
    c.fillStyle = colours.cap;
    c.fillRect(left(), Math.max(y, yOf(lane.cap_bytes) - 1), plot(), height > 20 ? 2 : 1);
  }
  if (height >= 24 && plot() > 420) {
    const text = "most " + kept(lane.track, lane.kept.peak + lane.fixed_bytes) +
      (lane.cap_bytes > 0 ? " of " + bytes(lane.cap_bytes) : "");
    c.textAlign = "right";
    const wide = c.measureText(text).width;
    c.fillStyle = colours.back;
    c.globalAlpha = 0.82;
    c.fillRect(left() + plot() - wide - 14, y + 4, wide + 12, 18);
    c.globalAlpha = 1;
    c.fillStyle = colours.ink;
    c.fillText(text, left() + plot() - 8, y + 13);
  }
}

function drawMemory(canvas) {
  const { rows, height } = memoryRows();
  const c = prepare(canvas, height);
  for (const row of rows) {
    if (row.lane !== undefined) {
      drawKept(c, row);
      continue;
    }
    c.textAlign = "left";
    c.fillStyle = colours.ink;
    c.font = "600 13px system-ui, 'DejaVu Sans', sans-serif";
    c.fillText(row.head, 8, row.y + row.height / 2);
  }
  drawLabels(c, rows.filter((row) => row.lane !== undefined));
}
