/* SPDX-License-Identifier: Apache-2.0 */
/* The meetings of tensor groups: what the members make together at the odd places of stages, for
 * every token slice and every part of a backward.
 */
#include "partition/program/pieces.h"

/* The collectives of all members of one slice in graph order. */
typedef struct slice_collectives {
  uint32_t **nodes; /* [n_members][n] */
  uint32_t n;
} slice_collectives;

static uint32_t phase_of(const opi_node *node) {
  return node->pass == OPIPE_PASS_BACKWARD_INPUT    ? OPI_PHASE_I
         : node->pass == OPIPE_PASS_BACKWARD_WEIGHT ? OPI_PHASE_W
                                                    : OPI_PHASE_F;
}

static opipe_status list_collectives(opi_composing *m, uint32_t slice, slice_collectives *out) {
  const uint32_t width = m->model->n_members;
  out->nodes = OPI_ARENA_ARRAY(&m->scratch, uint32_t *, width);
  if (out->nodes == NULL)
    return opi_fail_nomem(m->err, width * sizeof *out->nodes, "pieces");
  for (uint32_t k = 0; k < width; ++k) {
    const opi_graph *g = m->graphs[slice * width + k].graph;
    uint32_t n = 0;
    out->nodes[k] = OPI_ARENA_ARRAY(&m->scratch, uint32_t, (size_t)g->n_nodes + 1);
    if (out->nodes[k] == NULL)
      return opi_fail_nomem(m->err, g->n_nodes * sizeof(uint32_t), "pieces");
    for (uint32_t i = 0; i < g->n_nodes; ++i) {
      opi_collective how;
      if (opi_collective_of(g, &g->nodes[i], &how) && how.kind != OPI_COLLECTIVE_SPREAD)
        out->nodes[k][n++] = i;
    }
    if (k > 0 && n != out->n)
      return opi_fail(m->err, OPIPE_E_INTERNAL, "members with %u and %u collectives", out->n, n);
    out->n = n;
  }
  return OPIPE_OK;
}

/* The cell of a value in a piece; OPIPE_NONE: none. */
static uint32_t find_cell(const opi_composing *m, uint32_t piece, uint32_t value) {
  const opi_cut *c = m->cut;
  for (uint32_t i = c->cell_first[piece]; i < c->cell_first[piece + 1]; ++i) {
    if (c->cells[i].value == value)
      return i;
  }
  return OPIPE_NONE;
}

static void set_extents(const opi_value *out, const opi_collective *how, opi_group_value *value) {
  value->outer = value->inner = 1;
  for (int32_t d = 0; d < out->rank; ++d) {
    if (how->kind == OPI_COLLECTIVE_SUM || d > how->axis)
      value->inner *= (uint64_t)out->shape[d];
    else if (d < how->axis)
      value->outer *= (uint64_t)out->shape[d];
  }
}

static const opi_variant_slice *slice_of(const opi_composing *m, uint32_t piece) {
  const opi_piece *of = &m->pieces[piece];
  return &m->model->variants[of->variant].slices[of->graph];
}

/* Describes collective i of all members; piece: member 0's. */
static opipe_status describe(opi_composing *m, const slice_collectives *from, uint32_t i,
                             uint32_t piece, opi_group_value *value) {
  opi_arena *arena = &m->cut->arena;
  const uint32_t width = m->model->n_members;
  uint32_t *in = OPI_ARENA_ARRAY(arena, uint32_t, width);
  uint32_t *out = OPI_ARENA_ARRAY(arena, uint32_t, width);
  if (in == NULL || out == NULL)
    return opi_fail_nomem(m->err, width * sizeof *in, "pieces");
  *value = (opi_group_value){.in_cell = in, .out_cell = out};
  for (uint32_t k = 0; k < width; ++k) {
    const opi_graph *g = slice_of(m, piece + k)->graph;
    const opi_node *node = &g->nodes[from->nodes[k][i]];
    const opi_value *x = &g->values[node->in[0]], *y = &g->values[node->out[0]];
    const uint64_t bytes = x->n_bytes > y->n_bytes ? x->n_bytes : y->n_bytes;
    opi_collective how;
    (void)opi_collective_of(g, node, &how);
    in[k] = find_cell(m, piece + k, node->in[0]);
    out[k] = find_cell(m, piece + k, node->out[0]);
    value->n_bytes = bytes > value->n_bytes ? bytes : value->n_bytes;
    if (in[k] == OPIPE_NONE) {
      return opi_fail(m->err, OPIPE_E_INTERNAL, "member %u of a tensor group lacks '%s', to be %s",
                      k, x->name, "added up");
    }
    if (k != 0)
      continue;
    value->name = y->name;
    value->kind = how.kind;
    value->dtype = how.dtype;
    set_extents(y, &how, value);
    if (how.n_parts == 0)
      continue;
    value->parts = opi_arena_copy(arena, how.parts, how.n_parts * sizeof *how.parts);
    if (value->parts == NULL)
      return opi_fail_nomem(m->err, how.n_parts * sizeof *how.parts, "pieces");
  }
  return OPIPE_OK;
}

/* Whether member 0's node stands at the piece's place, in the phase. */
static bool stands_at(const opi_variant_slice *slice, uint32_t node, uint32_t at, uint32_t phase) {
  return slice->stage[node] == at && phase_of(&slice->graph->nodes[node]) == phase;
}

/* Lists the meetings in a piece of member 0, by phase. Their values follow each other: a whole
 * backward makes those of I and W at once. */
static opipe_status list_meetings(opi_composing *m, const slice_collectives *from, uint32_t piece) {
  opi_cut *c = m->cut;
  const opi_variant_slice *slice = slice_of(m, piece);
  const uint32_t at = piece / m->n_pieces, phases = m->pieces[piece].phases;
  uint32_t n[OPI_PHASES] = {0}, all = 0;
  for (uint32_t i = 0; i < from->n; ++i) {
    const uint32_t node = from->nodes[0][i], phase = phase_of(&slice->graph->nodes[node]);
    n[phase] += slice->stage[node] == at && (phases & 1u << phase) != 0;
  }
  for (uint32_t phase = 0; phase < OPI_PHASES; ++phase)
    all += n[phase];
  opi_group_value *values = OPI_ARENA_ARRAY(&c->arena, opi_group_value, (size_t)all + 1);
  if (values == NULL || !opi_arena_grow(&c->arena, (void **)&c->meetings, &m->room_meetings,
                                        c->n_meetings + OPI_PHASES, sizeof *c->meetings))
    return opi_fail_nomem(m->err, all * sizeof *values, "pieces");
  for (uint32_t phase = 0; phase < OPI_PHASES; ++phase) {
    if (n[phase] == 0)
      continue;
    c->meetings[c->n_meetings++] = (opi_group_meeting){.at = piece,
                                                       .stage = at / m->model->n_places,
                                                       .place = at % m->model->n_places,
                                                       .phase = phase,
                                                       .n_values = n[phase],
                                                       .values = values};
    for (uint32_t i = 0; i < from->n; ++i) {
      if (stands_at(slice, from->nodes[0][i], at, phase))
        OPI_TRY(describe(m, from, i, piece, values++));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_pieces_meet(opi_composing *m) {
  const uint32_t n_slices = m->model->n_slices, width = m->model->n_members;
  slice_collectives *all = OPI_ARENA_ARRAY(&m->scratch, slice_collectives, n_slices);
  if (all == NULL)
    return opi_fail_nomem(m->err, n_slices * sizeof *all, "pieces");
  for (uint32_t k = 0; k < n_slices; ++k)
    OPI_TRY(list_collectives(m, k, &all[k]));
  for (uint32_t v = 0; v < m->cut->n_stages; v += width) {
    if (opi_piece_place_of(m->plan, v % m->model->n_pieces).place % 2 == 1)
      OPI_TRY(list_meetings(m, &all[m->pieces[v].slice], v));
  }
  return OPIPE_OK;
}
