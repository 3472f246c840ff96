/* SPDX-License-Identifier: Apache-2.0 */
/* Exact bottleneck partition of the node order. best[k][c] is the smallest possible largest-stage
 * time when the first k stages cover all positions up to candidate c. A segment's cost tables grow
 * as its end moves, so filling them is linear in the segment.
 *
 * Memory of a segment: distinct parameter layouts + the largest live set inside + scratch + `depth`
 * slots for whatever crosses into it. The live set is an estimate, since a backend may fuse and
 * alias; the caller checks the result exactly and lowers the caps if the estimate was too low.
 */
#include "partition/search/dp.h"

#include <math.h>
#include <string.h>

#include "loader/base/sizes.h"

enum {
  POSITIONS_MOST = 1200,
  POSITIONS_LEAST = 64, /* and at least 4 per stage */
  ROWS_MOST = 20000000  /* nodes visited for all segments together */
};

typedef struct segment {
  double ns;
  uint64_t bytes;
} segment;

typedef struct cell {
  double worst;  /* largest stage time, or largest overflow in bytes (by_bytes) */
  double tie;    /* total bytes that cross */
  uint32_t from; /* candidate index of the previous cut */
} cell;

typedef struct dp {
  const opi_cut_problem *problem;
  opi_arena scratch;
  uint32_t n_nodes;
  uint32_t n_cuts;        /* candidates, including 0 and n_nodes */
  uint32_t *cuts;         /* [n_cuts] positions: cut i is before node cuts[i] */
  uint64_t *live_bytes;   /* [n_nodes + 1] bytes that cross position p, routed values only */
  uint32_t *live_count;   /* [n_nodes + 1] */
  uint32_t *last_use;     /* [n_values] last reader of the value; outputs: n_nodes */
  uint32_t *previous_use; /* [n_params of the profile] previous node that wants the same layout;
                             OPIPE_NONE */
  segment *segments;      /* [n_cuts][n_cuts] for the current profile */
  cell *cells;            /* [n_stages + 1][n_cuts] */
  opipe_error *err;
} dp;

/* ---- crossings ---- */

static opipe_status find_live(dp *d, const opi_graph *g) {
  d->live_bytes = OPI_ARENA_ARRAY(&d->scratch, uint64_t, (size_t)d->n_nodes + 2);
  d->live_count = OPI_ARENA_ARRAY(&d->scratch, uint32_t, (size_t)d->n_nodes + 2);
  d->last_use = OPI_ARENA_ARRAY(&d->scratch, uint32_t, g->n_values);
  if (d->live_bytes == NULL || d->live_count == NULL || d->last_use == NULL)
    return opi_fail_nomem(d->err, d->n_nodes * sizeof(uint64_t), "a cut");
  for (uint32_t n = 0; n < d->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      if (g->nodes[n].in[i] != OPIPE_NONE)
        d->last_use[g->nodes[n].in[i]] = n;
    }
  }
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const uint32_t producer = g->values[v].producer;
    if (producer == OPIPE_NONE || d->last_use[v] <= producer)
      continue;
    d->live_bytes[producer + 1] +=
        g->values[v].n_bytes; /* holds differences until they are summed */
    d->live_bytes[d->last_use[v] + 1] -= g->values[v].n_bytes;
    ++d->live_count[producer + 1];
    --d->live_count[d->last_use[v] + 1];
  }
  for (uint32_t p = 1; p <= d->n_nodes; ++p) {
    d->live_bytes[p] += d->live_bytes[p - 1];
    d->live_count[p] += d->live_count[p - 1];
  }
  return OPIPE_OK;
}

/* Number of candidate positions: all in a small graph; in a large one as many as keep the work near
 * linear, but a few per stage. */
static uint32_t count_positions(const dp *d) {
  const uint32_t by_work = ROWS_MOST / d->n_nodes, by_stages = 4 * d->problem->n_stages;
  uint32_t n = by_work < POSITIONS_MOST ? by_work : POSITIONS_MOST;
  n = n > POSITIONS_LEAST ? n : POSITIONS_LEAST;
  n = n > by_stages ? n : by_stages;
  return d->problem->n_stages == 1 ? 1 : n < d->n_nodes ? n : d->n_nodes;
}

static bool is_open(const dp *d, uint32_t position) {
  return d->problem->closed == NULL || !d->problem->closed[position];
}

/* Chooses all positions or, if there are too many, one in each of equally long runs of nodes: that
 * with the smallest live set, the middle one of equals. */
static opipe_status choose_positions(dp *d) {
  const uint32_t n = d->n_nodes == 0 ? 0 : count_positions(d);
  d->cuts = OPI_ARENA_ARRAY(&d->scratch, uint32_t, (size_t)n + 2);
  if (d->cuts == NULL)
    return opi_fail_nomem(d->err, n * sizeof(*d->cuts), "a cut");
  d->cuts[d->n_cuts++] = 0;
  for (uint32_t k = 0; k + 1 < n; ++k) {
    const uint32_t first = 1 + (uint32_t)((uint64_t)(d->n_nodes - 1) * k / (n - 1));
    const uint32_t end = 1 + (uint32_t)((uint64_t)(d->n_nodes - 1) * (k + 1) / (n - 1));
    uint32_t best = first + (end - first) / 2;
    for (uint32_t p = first; p < end; ++p) {
      if (is_open(d, p) && (!is_open(d, best) || d->live_bytes[p] < d->live_bytes[best]))
        best = p;
    }
    if (is_open(d, best))
      d->cuts[d->n_cuts++] = best;
  }
  if (d->n_nodes > 0)
    d->cuts[d->n_cuts++] = d->n_nodes;
  return OPIPE_OK;
}

/* ---- segments ---- */

static opipe_status find_previous_uses(dp *d, const opi_profile *profile) {
  const uint32_t n = profile->param_first[profile->n_nodes];
  uint32_t *last = OPI_ARENA_ARRAY(&d->scratch, uint32_t,
                                   n); /* [entries] the previous entry of the same parameter */
  d->previous_use = OPI_ARENA_ARRAY(&d->scratch, uint32_t, n);
  uint32_t *first_of_param = OPI_ARENA_ARRAY(&d->scratch, uint32_t, profile->single->n_params);
  if (last == NULL || d->previous_use == NULL || first_of_param == NULL)
    return opi_fail_nomem(d->err, n * sizeof(*last), "a cut");
  /* Entries of a parameter form a list, newest first: last[e] is the entry before e,
   * first_of_param[p] the newest + 1. */
  for (uint32_t node = 0; node < profile->n_nodes; ++node) {
    for (uint32_t e = profile->param_first[node]; e < profile->param_first[node + 1]; ++e) {
      const opi_node_param *use = &profile->params[e];
      d->previous_use[e] = OPIPE_NONE;
      for (uint32_t at = first_of_param[use->param]; at != 0; at = last[at - 1]) {
        if (profile->params[at - 1].key != use->key)
          continue;
        uint32_t owner = node; /* the node of entry at - 1 */
        while (profile->param_first[owner] > at - 1)
          --owner;
        d->previous_use[e] = owner;
        break;
      }
      last[e] = first_of_param[use->param];
      first_of_param[use->param] = e + 1;
    }
  }
  return OPIPE_OK;
}

static double receive_ns(const dp *d, const opi_profile *profile, uint32_t position) {
  if (position == 0)
    return 0;
  return (double)d->live_count[position] * profile->transfer_ns +
         (double)d->live_bytes[position] *
             (1 / profile->transfer_bytes_per_ns + d->problem->link_ns_per_byte);
}

/* Fills the row of segments that begin at candidate `from`. */
static void fill_row(dp *d, const opi_profile *profile, uint32_t from, uint64_t *frees) {
  const opi_graph *g = d->problem->graph;
  const uint32_t start = d->cuts[from];
  uint64_t params = 0, live = 0, peak = 0, scratch = 0;
  double ns = receive_ns(d, profile, start);
  uint32_t next = from + 1;
  memset(frees, 0, ((size_t)d->n_nodes + 1) * sizeof(*frees));
  for (uint32_t n = start; n < d->n_nodes; ++n) {
    ns += profile->node_ns[n];
    for (uint32_t e = profile->param_first[n]; e < profile->param_first[n + 1]; ++e) {
      if (d->previous_use[e] == OPIPE_NONE || d->previous_use[e] < start)
        params += profile->params[e].n_bytes;
    }
    if (profile->workspace_bytes[n] > scratch)
      scratch = profile->workspace_bytes[n];
    live += profile->output_bytes[n];
    if (live > peak)
      peak = live;
    for (uint32_t i = 0; i < g->nodes[n].n_out; ++i) {
      const uint32_t v = g->nodes[n].out[i];
      if (v != OPIPE_NONE)
        frees[d->last_use[v] < n ? n : d->last_use[v]] += g->values[v].n_bytes;
    }
    live -= frees[n] < live ? frees[n] : live;
    if (next < d->n_cuts && d->cuts[next] == n + 1) {
      d->segments[(size_t)from * d->n_cuts + next] = (segment){
          .ns = ns, .bytes = params + peak + scratch + d->problem->depth * d->live_bytes[start]};
      ++next;
    }
  }
}

static opipe_status fill_segments(dp *d, const opi_profile *profile) {
  uint64_t *frees = OPI_ARENA_ARRAY(&d->scratch, uint64_t, (size_t)d->n_nodes + 1);
  if (frees == NULL)
    return opi_fail_nomem(d->err, d->n_nodes * sizeof(*frees), "a cut");
  OPI_TRY(find_previous_uses(d, profile));
  for (uint32_t from = 0; from + 1 < d->n_cuts; ++from)
    fill_row(d, profile, from, frees);
  return OPIPE_OK;
}

/* ---- the recurrence ---- */

static bool better(double worst, double tie, const cell *than) {
  const double slack = 1e-9 * fabs(than->worst);
  return worst < than->worst - slack || (worst <= than->worst + slack && tie < than->tie);
}

/* Adds one stage. by_bytes: minimise the largest overflow of a cap instead of the largest time. */
static void extend(dp *d, uint32_t stage, bool by_bytes) {
  const uint64_t cap = d->problem->caps_bytes[stage];
  const cell *before = &d->cells[(size_t)stage * d->n_cuts];
  cell *after = &d->cells[(size_t)(stage + 1) * d->n_cuts];
  for (uint32_t to = 0; to < d->n_cuts; ++to)
    after[to] = (cell){.worst = INFINITY, .tie = INFINITY, .from = OPIPE_NONE};
  for (uint32_t from = 0; from + 1 < d->n_cuts; ++from) {
    if (isinf(before[from].worst))
      continue;
    for (uint32_t to = from + 1; to < d->n_cuts; ++to) {
      const segment *s = &d->segments[(size_t)from * d->n_cuts + to];
      if (!by_bytes && s->bytes > cap)
        continue;
      const double cost = !by_bytes ? s->ns : s->bytes > cap ? (double)(s->bytes - cap) : 0;
      const double worst = cost > before[from].worst ? cost : before[from].worst;
      const double tie = before[from].tie + (double)d->live_bytes[d->cuts[from]];
      if (better(worst, tie, &after[to]))
        after[to] = (cell){.worst = worst, .tie = tie, .from = from};
    }
  }
}

static opipe_status run_stages(dp *d, bool by_bytes) {
  const opi_profile *filled = NULL;
  for (uint32_t c = 0; c < d->n_cuts; ++c)
    d->cells[c] = (cell){.worst = INFINITY, .tie = INFINITY, .from = OPIPE_NONE};
  d->cells[0] = (cell){.worst = 0, .tie = 0, .from = OPIPE_NONE};
  for (uint32_t k = 0; k < d->problem->n_stages; ++k) {
    if (d->problem->profiles[k] != filled) {
      filled = d->problem->profiles[k];
      OPI_TRY(fill_segments(d, filled));
    }
    extend(d, k, by_bytes);
  }
  return OPIPE_OK;
}

/* Reads the cut back from the last cell; cuts_out [n_stages + 1] positions. */
static void trace(const dp *d, uint32_t *cuts_out) {
  uint32_t c = d->n_cuts - 1;
  for (uint32_t k = d->problem->n_stages; k > 0; --k) {
    cuts_out[k] = c;
    c = d->cells[(size_t)k * d->n_cuts + c].from;
  }
  cuts_out[0] = 0;
}

static opipe_status report_overflow(dp *d, uint32_t *ends) {
  OPI_TRY(run_stages(d, true));
  trace(d, ends);
  for (uint32_t k = 0; k < d->problem->n_stages; ++k) {
    OPI_TRY(fill_segments(d, d->problem->profiles[k]));
    const uint64_t need = d->segments[(size_t)ends[k] * d->n_cuts + ends[k + 1]].bytes;
    const uint64_t cap = d->problem->caps_bytes[k];
    if (need <= cap)
      continue;
    return opi_fail(
        d->err, OPIPE_E_LIMIT,
        "the model does not fit: in the cut into %u stages that comes closest, stage %u "
        "needs %s and exceeds its cap of %s by %s",
        d->problem->n_stages, k, OPI_SIZE(need), OPI_SIZE(cap), OPI_SIZE(need - cap));
  }
  return opi_fail(d->err, OPIPE_E_INTERNAL, "no cut into %u stages was found although one fits",
                  d->problem->n_stages);
}

static opipe_status solve(dp *d, uint32_t *out_stage_of_node) {
  const uint32_t n_stages = d->problem->n_stages;
  OPI_TRY(find_live(d, d->problem->graph));
  OPI_TRY(choose_positions(d));
  if (d->n_nodes < n_stages) { /* fewer nodes than stages: the last stages stay empty */
    for (uint32_t n = 0; n < d->n_nodes; ++n)
      out_stage_of_node[n] = n;
    return OPIPE_OK;
  }
  if (d->n_cuts <= n_stages) {
    return opi_fail(d->err, OPIPE_E_INVALID,
                    "the pairs of outputs and inputs that streams keep leave %u place%s for a cut; "
                    "%u stages need %u",
                    d->n_cuts - 2, d->n_cuts == 3 ? "" : "s", n_stages, n_stages - 1);
  }
  d->segments = OPI_ARENA_ARRAY(&d->scratch, segment, (size_t)d->n_cuts * d->n_cuts);
  d->cells = OPI_ARENA_ARRAY(&d->scratch, cell, ((size_t)n_stages + 1) * d->n_cuts);
  uint32_t *ends = OPI_ARENA_ARRAY(&d->scratch, uint32_t, (size_t)n_stages + 1);
  if (d->segments == NULL || d->cells == NULL || ends == NULL)
    return opi_fail_nomem(d->err, d->n_cuts, "a cut");
  OPI_TRY(run_stages(d, false));
  if (isinf(d->cells[(size_t)n_stages * d->n_cuts + d->n_cuts - 1].worst))
    return report_overflow(d, ends);
  trace(d, ends);
  for (uint32_t k = 0; k < n_stages; ++k) {
    for (uint32_t n = d->cuts[ends[k]]; n < d->cuts[ends[k + 1]]; ++n)
      out_stage_of_node[n] = k;
  }
  return OPIPE_OK;
}

opipe_status opi_cut_dp(const opi_cut_problem *problem, const opipe_allocator *allocator,
                        uint32_t *out_stage_of_node, opipe_error *err) {
  dp d = {.problem = problem, .n_nodes = problem->graph->n_nodes, .err = err};
  opi_arena_init(&d.scratch, allocator, 0);
  const opipe_status status = solve(&d, out_stage_of_node);
  opi_arena_release(&d.scratch);
  return status;
}

/* ---- narrow positions ---- */

/* True if all positions of [first, end), which are equally wide, are narrower than their
 * neighbours. */
static bool is_narrow(const dp *d, uint32_t first, uint32_t end) {
  const uint64_t width = d->live_bytes[first];
  return (first == 1 || d->live_bytes[first - 1] > width) &&
         (end == d->n_nodes || d->live_bytes[end] > width);
}

static uint32_t list_narrow(const dp *d, uint32_t *out_positions) {
  uint32_t n = 0;
  for (uint32_t first = 1, end = 1; first < d->n_nodes; first = end) {
    while (end < d->n_nodes && d->live_bytes[end] == d->live_bytes[first])
      ++end;
    for (uint32_t p = first; is_narrow(d, first, end) && p < end; ++p)
      out_positions[n++] = p;
  }
  return n;
}

opipe_status opi_cut_narrow(const opi_graph *graph, uint32_t n_least, uint32_t n_most,
                            opi_arena *arena, uint32_t **out_positions, uint32_t *out_n,
                            opipe_error *err) {
  dp d = {.n_nodes = graph->n_nodes, .err = err};
  uint32_t *positions = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)graph->n_nodes + 1);
  opi_arena_init(&d.scratch, arena->allocator, 0);
  const opipe_status status = positions == NULL
                                  ? opi_fail_nomem(err, graph->n_nodes, "positions of a cut")
                                  : find_live(&d, graph);
  uint32_t n = status == OPIPE_OK ? list_narrow(&d, positions) : 0;
  if (status == OPIPE_OK && n < n_least) {
    for (n = 0; n + 1 < graph->n_nodes; ++n)
      positions[n] = n + 1;
  }
  const uint32_t kept = n < n_most ? n : n_most;
  for (uint32_t k = 0; k < kept; ++k)
    positions[k] = positions[((uint64_t)2 * k + 1) * n / (2 * (uint64_t)kept)];
  opi_arena_release(&d.scratch);
  *out_positions = positions;
  *out_n = kept;
  return status;
}
