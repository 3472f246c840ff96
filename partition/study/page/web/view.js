/* SPDX-License-Identifier: Apache-2.0 */
/* What is looked at: a piece of time, rows of lanes, a cursor. */

const view = { first: 0, last: END, showsLinks: false, byRank: false, own: false, rows: [], height: 0, cursor: null, width: 0 };

const LABELS = { wide: 92, narrow: 42 };
const OVERVIEW = 46, AXIS = 22, TRACK_HEAD = 24;
const left = () => (view.width < 640 ? LABELS.narrow : LABELS.wide);
const plot = () => Math.max(40, view.width - left() - 10);
const toX = (t) => left() + ((t - view.first) / (view.last - view.first)) * plot();
const toTime = (x) => view.first + ((x - left()) / plot()) * (view.last - view.first);

/* ---- rows ---- */

function rowHeight(nRanks) {
  return nRanks <= 8 ? 30 : nRanks <= 16 ? 24 : nRanks <= 32 ? 16 : nRanks <= 80 ? 11 : 6;
}

/* One of a track's lanes, under it (the last of its rank) the links that the rank sends on; returns
 * where the next one begins. */
function layLane(track, i, y) {
  const lane = track.ranks[i], height = rowHeight(track.ranks.length), gap = height > 14 ? 4 : height > 8 ? 2 : 1;
  const thin = Math.max(4, Math.min(9, Math.floor(height / 3)));
  const isLast = i + 1 === track.ranks.length || track.ranks[i + 1].rank !== lane.rank;
  view.rows.push({ lane, y, height: height - gap });
  y += height;
  for (const link of view.showsLinks && isLast ? track.links : []) {
    if (link.rank !== lane.rank)
      continue;
    view.rows.push({ lane: link, y, height: thin - 1 });
    y += thin;
  }
  return y + (view.showsLinks && isLast ? 3 : 0);
}

/* A line with a track's name and time. */
function layHead(track, y) {
  if (tracks.length > 1)
    view.heads.push({ track, y });
  return tracks.length > 1 ? y + TRACK_HEAD : y;
}

/* From top to bottom: of each track its ranks; or of each rank its lanes, track by track. */
function layOut() {
  const all = tracks.flatMap((track) => track.ranks.map((lane, i) => ({ track, i, rank: lane.rank })));
  let y = OVERVIEW + AXIS, last = null;
  view.rows = [];
  view.heads = [];
  if (view.byRank) {
    all.sort((a, b) => a.rank - b.rank);
    for (const track of tracks)
      y = layHead(track, y);
  }
  for (const one of all) {
    if (last !== null && (view.byRank ? last.rank !== one.rank : last.track !== one.track))
      y += 6;
    if (!view.byRank && (last === null || last.track !== one.track))
      y = layHead(one.track, y);
    y = layLane(one.track, one.i, y);
    last = one;
  }
  view.height = y + 8;
}

function rowAt(y) {
  return view.rows.find((row) => y >= row.y - 1 && y < row.y + row.height + 2) || null;
}

/* ---- spans ---- */

/* The first span that may reach beyond t. */
function firstAfter(lane, t) {
  const { start, n } = lane.spans;
  let low = 0, high = n;
  const from = t - lane.maxLength;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[middle] < from)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

function spanAt(lane, t) {
  const { start, end, n } = lane.spans;
  let found = -1;
  for (let i = firstAfter(lane, t); i < n && start[i] <= t; ++i) {
    if (end[i] >= t && (found < 0 || end[i] > start[i]))
      found = i;
  }
  return found;
}

/* ---- said in words ---- */

function nameOf(lane, i) {
  const [kind, stage, replica, slice, part] = lane.classes[lane.spans.cls[i]], mb = lane.spans.mb[i];
  const start = lane.spans.start[i] / lane.track.stretch, end = lane.spans.end[i] / lane.track.stretch;
  const words = [""];
  words[0] = tracks.length > 1 ? shortName(lane.track.name) + ": rank " + lane.rank : "rank " + lane.rank;
  if (lane.isLink && lane.peer !== lane.rank)
    words[0] += " → rank " + lane.peer;
  if (lane.copies > 1)
    words[0] += " (" + lane.copies + " alike)";
  words.push(kinds[kind].word);
  if (stage >= 0)
    words.push("stage " + stage);
  if (mb >= 0)
    words.push("micro-batch " + mb);
  if (replica > 0)
    words.push("replica " + replica);
  if (lane.classes.some((c) => c[3] > 0) && mb >= 0)
    words.push("slice " + slice);
  if (lane.classes.some((c) => c[4] > 0) && mb >= 0)
    words.push("part " + part);
  words.push(time(start, 7, end) + " to " + time(end, 7, end), "takes " + time(end - start, 4));
  return words.join(" · ");
}

/* ---- moved ---- */

function clampView(first, last) {
  const least = END * 1e-7;
  const span = Math.min(END, Math.max(least, last - first));
  const at = Math.min(Math.max(0, first), END - span);
  view.first = at;
  view.last = at + span;
}

function zoom(factor, around) {
  const t = around === undefined ? (view.first + view.last) / 2 : around;
  clampView(t - (t - view.first) * factor, t - (t - view.first) * factor + (view.last - view.first) * factor);
}

function pan(part) {
  const by = (view.last - view.first) * part;
  clampView(view.first + by, view.first + by + (view.last - view.first));
}

const isWhole = () => view.last - view.first >= END * (1 - 1e-9);

/* The cursor into what is seen. */
function showCursor() {
  if (view.cursor === null || view.cursor.span < 0)
    return;
  const { lane, span } = view.cursor, width = view.last - view.first;
  const start = lane.spans.start[span], end = lane.spans.end[span];
  if (start < view.first || end > view.last)
    clampView((start + end) / 2 - width / 2, (start + end) / 2 + width / 2);
}
