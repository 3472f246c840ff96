/* SPDX-License-Identifier: Apache-2.0 */
/* Finds layers by repetition. Two nodes look alike if operators and shapes are equal; blocks are
 * the run of nodes that covers the most nodes in which each looks like the one `period` later. */
#include "partition/study/layers/split.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/ops/op.h"

enum { PERIOD_MOST = 4096, PARTS = 64, DEPTH_MOST = 8, BLOCK_LEAST = 3 };

typedef struct splitter {
  const opi_graph *graph;
  uint64_t *looks; /* [n_nodes] equal if two nodes look alike */
  uint64_t *cross; /* [n_nodes] bytes that cross a cut behind the node */
  double *work;    /* [n_nodes] */
  bool *ends;      /* [n_nodes] true for the last node of a layer */
  bool *found;     /* [n_nodes] scratch */
  double all_work;
} splitter;

/* ---- looks and crossings ---- */

static uint64_t look_of(const opi_graph *g, const opi_node *node) {
  XXH3_state_t state;
  (void)XXH3_64bits_reset(&state);
  (void)XXH3_64bits_update(&state, node->op, strlen(node->op));
  (void)XXH3_64bits_update(&state, &node->n_in, sizeof node->n_in);
  for (uint32_t i = 0; i < node->n_in + node->n_out; ++i) {
    const bool reads = i < node->n_in;
    const uint32_t v = reads ? node->in[i] : node->out[i - node->n_in];
    if (v == OPIPE_NONE)
      continue;
    const opi_value *value = &g->values[v];
    const uint64_t is[] = {reads && opi_value_known(value), value->dtype, (uint64_t)value->rank};
    (void)XXH3_64bits_update(&state, is, sizeof is);
    if (value->rank > 0)
      (void)XXH3_64bits_update(&state, value->shape, (size_t)value->rank * sizeof(int64_t));
  }
  return XXH3_64bits_digest(&state);
}

/* Every value crosses all cuts from its producer to its last reader. */
static void count_crossings(splitter *s, const uint32_t *last_use) {
  const opi_graph *g = s->graph;
  int64_t here = 0;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const uint32_t from = g->values[v].producer;
    if (from == OPIPE_NONE || last_use[v] == OPIPE_NONE || last_use[v] <= from)
      continue;
    s->cross[from] += g->values[v].n_bytes;
    s->cross[last_use[v]] -= g->values[v].n_bytes;
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    here += (int64_t)s->cross[n];
    s->cross[n] = (uint64_t)here;
  }
}

static opipe_status look_at_nodes(splitter *s, opi_arena *arena, opipe_error *err) {
  const opi_graph *g = s->graph;
  uint32_t *last_use = OPI_ARENA_ARRAY(arena, uint32_t, g->n_values);
  s->looks = OPI_ARENA_ARRAY(arena, uint64_t, g->n_nodes);
  s->cross = OPI_ARENA_ARRAY(arena, uint64_t, g->n_nodes);
  s->work = OPI_ARENA_ARRAY(arena, double, g->n_nodes);
  s->ends = OPI_ARENA_ARRAY(arena, bool, g->n_nodes);
  s->found = OPI_ARENA_ARRAY(arena, bool, g->n_nodes);
  if (last_use == NULL || s->looks == NULL || s->cross == NULL || s->work == NULL ||
      s->ends == NULL || s->found == NULL)
    return opi_fail_nomem(err, g->n_nodes * sizeof(uint64_t), "layers");
  memset(last_use, 0xff, g->n_values * sizeof *last_use);
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    opi_work work = {0, 0};
    opi_node_work(g, &g->nodes[n], &work);
    s->work[n] = work.flops + work.bytes;
    s->all_work += s->work[n];
    s->looks[n] = look_of(g, &g->nodes[n]);
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      if (g->nodes[n].in[i] != OPIPE_NONE)
        last_use[g->nodes[n].in[i]] = n;
    }
  }
  count_crossings(s, last_use);
  return OPIPE_OK;
}

/* ---- blocks ---- */

/* Nodes [first, end), in which each looks like the one `period` later. */
typedef struct repeats {
  uint32_t first, end, period;
} repeats;

/* The longest run within [from, to) for one period. */
static repeats longest_run(const splitter *s, uint32_t from, uint32_t to, uint32_t period) {
  repeats best = {from, from, period};
  for (uint32_t i = from, first = from; i + period < to; ++i) {
    if (s->looks[i] != s->looks[i + period]) {
      first = i + 1;
      continue;
    }
    const uint32_t end = i + 1 + period;
    if (end - first > best.end - best.first)
      best = (repeats){first, end, period};
  }
  if (best.end - best.first < 2 * period)
    best.end = best.first; /* it does not repeat */
  return best;
}

static repeats find_repeats(const splitter *s, uint32_t from, uint32_t to) {
  repeats best = {from, from, 1};
  for (uint32_t period = BLOCK_LEAST; period <= (to - from) / 2 && period <= PERIOD_MOST;
       ++period) {
    const repeats run = longest_run(s, from, to, period);
    if (run.end - run.first > best.end - best.first)
      best = run;
  }
  return best;
}

/* Chooses where in a period blocks begin: where the least bytes cross, among the offsets with the
 * most whole blocks; the last of equals, because a run that starts mid-block has a longer first
 * block. */
static uint32_t first_block(const splitter *s, uint32_t from, const repeats *r) {
  uint64_t least = UINT64_MAX;
  uint32_t at = r->first, most = 0;
  for (uint32_t o = 0; o < r->period; ++o) {
    const uint32_t first = r->first + o, blocks = (r->end - first) / r->period;
    uint64_t sum = 0; /* over the cuts inside, equally many for every offset */
    for (uint32_t k = 1; k < (r->end - r->first) / r->period; ++k)
      sum += s->cross[first + k * r->period - 1];
    const uint64_t front = first == from ? 0 : s->cross[first - 1];
    if (sum > least || (sum == least && blocks < most))
      continue;
    /* a first block must not begin where more crosses than between blocks */
    if (sum == least && front > s->cross[first + r->period - 1])
      continue;
    least = sum;
    most = blocks;
    at = first;
  }
  return at;
}

/* The first block may contain extra nodes, such as ones that make tables for all blocks. It is
 * accepted if nodes that look like all of a block's, in any order, precede `first` among at most as
 * many others, starting where no more crosses than between blocks. Returns its start; `first` if
 * there is none. O(period^2). */
static uint32_t block_before(splitter *s, uint32_t from, uint32_t first, uint32_t period) {
  const uint64_t between = s->cross[first + period - 1];
  bool *found = s->found; /* [period] of the block's nodes */
  uint32_t left = period, n = first;
  memset(found, 0, period * sizeof *found);
  while (left > 0 && n > from && first - n < 2 * period) {
    uint32_t k = 0;
    --n;
    while (k < period && (found[k] || s->looks[first + k] != s->looks[n]))
      ++k;
    if (k == period)
      continue;
    found[k] = true;
    --left;
  }
  while (left == 0 && n > from && s->cross[n - 1] > between && first - n < 2 * period)
    --n;
  return left == 0 && (n == from || s->cross[n - 1] <= between) ? n : first;
}

/* ---- parts without repetition ---- */

static bool is_narrow(const splitter *s, uint32_t n, uint32_t to) {
  return s->cross[n] <= (n == 0 ? UINT64_MAX : s->cross[n - 1]) &&
         (n + 1 >= to || s->cross[n] <= s->cross[n + 1]);
}

static void cut_plain(splitter *s, uint32_t from, uint32_t to) {
  double done = 0, left = 0;
  for (uint32_t n = from; n < to; ++n)
    left += s->work[n];
  for (uint32_t n = from; n < to; ++n) {
    done += s->work[n];
    left -= s->work[n];
    if (done * PARTS < s->all_work || left * PARTS < s->all_work || !is_narrow(s, n, to))
      continue;
    s->ends[n] = true;
    done = 0;
  }
  s->ends[to - 1] = true;
}

static void split_range(splitter *s, uint32_t from, uint32_t to, uint32_t depth) {
  if (from >= to)
    return;
  const repeats r = find_repeats(s, from, to);
  if (r.end == r.first || depth == DEPTH_MOST) {
    cut_plain(s, from, to);
    return;
  }
  const uint32_t first = first_block(s, from, &r), blocks = (r.end - first) / r.period;
  for (uint32_t k = 1; k <= blocks; ++k)
    s->ends[first + k * r.period - 1] = true;
  const uint32_t before = block_before(s, from, first, r.period);
  if (before < first)
    s->ends[first - 1] = true;
  split_range(s, from, before, depth + 1);
  split_range(s, first + blocks * r.period, to, depth + 1);
}

opipe_status opi_layers_split(const opi_graph *graph, opi_arena *arena,
                              uint32_t **out_layer_of_node, uint32_t *out_n_layers,
                              opipe_error *err) {
  splitter s = {.graph = graph};
  uint32_t n_layers = 0;
  uint32_t *layer = OPI_ARENA_ARRAY(arena, uint32_t, graph->n_nodes);
  if (layer == NULL)
    return opi_fail_nomem(err, graph->n_nodes * sizeof *layer, "layers");
  OPI_TRY(look_at_nodes(&s, arena, err));
  split_range(&s, 0, graph->n_nodes, 0);
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    layer[n] = n_layers;
    n_layers += s.ends[n] ? 1 : 0;
  }
  *out_layer_of_node = layer;
  *out_n_layers = n_layers;
  return OPIPE_OK;
}
