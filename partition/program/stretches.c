/* SPDX-License-Identifier: Apache-2.0 */
/* Walks a graph's nodes in order and numbers the places of every stage; see stretches.h. */
#include "partition/program/stretches.h"

#include "loader/ops/collective.h"

/* Kinds of forward nodes: the node sums; the gradient of its input is summed. */
enum { FORWARD_SUM = 1, BACKWARD_SUM = 2 };

/* A stage while its forward nodes are walked in order. */
typedef struct stage_walk {
  uint32_t last;   /* node; OPIPE_NONE: none yet */
  uint32_t first;  /* of the sums that end with `last` and stand at one cut */
  uint32_t region; /* of `last` */
  uint32_t joined; /* first of the regions that F computes together with it */
} stage_walk;

typedef struct stretch_finding {
  const opi_stretch_source *from;
  const opi_graph *graph;
  uint8_t *sums;     /* [n_nodes] */
  uint32_t *region;  /* [n_nodes] of forward nodes */
  uint32_t *below;   /* [n_values] one more than the highest place at which backward nodes of its
                        stage read a value; 0: none does */
  stage_walk *walks; /* [n_stages] */
} stretch_finding;

static bool is_forward(const opi_node *node) {
  return node->pass != OPIPE_PASS_BACKWARD_INPUT && node->pass != OPIPE_PASS_BACKWARD_WEIGHT;
}

static bool is_collective(const stretch_finding *f, uint32_t node) {
  const opi_node *of = &f->graph->nodes[node];
  opi_collective how;
  return f->from->is_collective != NULL
             ? f->from->is_collective(f->graph, of)
             : opi_collective_of(f->graph, of, &how) && how.kind != OPI_COLLECTIVE_SPREAD;
}

static void find_sums(const stretch_finding *f) {
  for (uint32_t n = 0; n < f->graph->n_nodes; ++n) {
    if (!is_collective(f, n))
      continue;
    if (is_forward(&f->graph->nodes[n]))
      f->sums[n] |= FORWARD_SUM;
    else
      f->sums[f->from->anchor[n]] |= BACKWARD_SUM;
  }
}

/* Whether the node stands at the same cut as the sums before it: all are of one kind, and it reads
 * none of their results. */
static bool stands_with(const stretch_finding *f, const stage_walk *w, uint32_t n) {
  const opi_node *node = &f->graph->nodes[n];
  if (f->sums[n] != f->sums[w->last])
    return false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t maker =
        node->in[i] == OPIPE_NONE ? OPIPE_NONE : f->graph->values[node->in[i]].producer;
    if (maker != OPIPE_NONE && maker >= w->first && f->from->stage[maker] == f->from->stage[n])
      return false;
  }
  return true;
}

/* Steps over a forward node. Behind sums another region begins. */
static void step(const stretch_finding *f, stage_walk *w, uint32_t n) {
  const uint8_t ended = w->last == OPIPE_NONE ? 0 : f->sums[w->last];
  const bool together = ended != 0 && stands_with(f, w, n);
  if (ended != 0 && !together) {
    ++w->region;
    w->joined = (ended & FORWARD_SUM) != 0 ? w->region : w->joined;
  }
  w->first = together ? w->first : n;
  w->last = n;
  f->region[n] = w->region;
}

static void place(opi_stretches *out, uint32_t n, uint32_t at) {
  out->stage[n] = at; /* the stage is added once the number of places is known */
  out->n_places = at >= out->n_places ? at + 1 : out->n_places;
}

/* The place of a backward node, once its readers have theirs. Programs of higher places run first,
 * so it stands no lower than any reader: what a backward computes again moves up in front of its
 * first reader. */
static uint32_t place_backward(const stretch_finding *f, uint32_t n) {
  const opi_node *node = &f->graph->nodes[n];
  const bool sums = is_collective(f, n);
  const uint32_t at = 2 * f->region[f->from->anchor[n]] + sums;
  uint32_t below = 0;
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE && f->below[node->out[o]] > below)
      below = f->below[node->out[o]];
  }
  if (below == 0)
    return at;
  const uint32_t reader = below - 1, odd = reader % 2;
  const uint32_t least = sums ? reader + 1 + odd : reader + odd; /* sums stand alone */
  return at > least ? at : least;
}

/* Notes that a backward node reads its inputs at a place. */
static void note_reads(const stretch_finding *f, uint32_t n, uint32_t at) {
  const opi_node *node = &f->graph->nodes[n];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    const uint32_t maker = v == OPIPE_NONE ? OPIPE_NONE : f->graph->values[v].producer;
    if (maker != OPIPE_NONE && f->from->stage[maker] == f->from->stage[n] && f->below[v] <= at)
      f->below[v] = at + 1;
  }
}

static void place_all(const stretch_finding *f, opi_stretches *out) {
  for (uint32_t n = 0; n < f->graph->n_nodes; ++n) {
    stage_walk *w = &f->walks[f->from->stage[n]];
    if (!is_forward(&f->graph->nodes[n]))
      continue;
    step(f, w, n);
    place(out, n, (f->sums[n] & FORWARD_SUM) != 0 ? 2 * w->region + 1 : 2 * w->joined);
  }
  for (uint32_t n = f->graph->n_nodes; n-- > 0;) {
    if (is_forward(&f->graph->nodes[n]))
      continue;
    place(out, n, place_backward(f, n));
    note_reads(f, n, out->stage[n]);
  }
  for (uint32_t n = 0; n < f->graph->n_nodes; ++n)
    out->stage[n] += f->from->stage[n] * out->n_places;
}

opipe_status opi_stretches_find(const opi_stretch_source *source, opi_arena *arena,
                                opi_stretches *out, opipe_error *err) {
  const uint32_t n = source->graph->n_nodes;
  opi_arena scratch;
  opi_arena_init(&scratch, arena->allocator, 0);
  stretch_finding f = {.from = source,
                       .graph = source->graph,
                       .sums = OPI_ARENA_ARRAY(&scratch, uint8_t, n),
                       .region = OPI_ARENA_ARRAY(&scratch, uint32_t, n),
                       .below = OPI_ARENA_ARRAY(&scratch, uint32_t, source->graph->n_values),
                       .walks = OPI_ARENA_ARRAY(&scratch, stage_walk, source->n_stages)};
  *out = (opi_stretches){.stage = OPI_ARENA_ARRAY(arena, uint32_t, n), .n_places = 1};
  opipe_status status = OPIPE_OK;
  if (f.sums == NULL || f.region == NULL || f.below == NULL || f.walks == NULL ||
      out->stage == NULL) {
    status = opi_fail_nomem(err, n * sizeof *out->stage, "stretches");
  } else {
    for (uint32_t s = 0; s < source->n_stages; ++s)
      f.walks[s] = (stage_walk){.last = OPIPE_NONE};
    find_sums(&f);
    place_all(&f, out);
  }
  opi_arena_release(&scratch);
  return status;
}
