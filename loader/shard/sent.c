/* SPDX-License-Identifier: Apache-2.0 */
/* Whole values between stages (Narayanan et al. 2021, section 4.1): where a link carries parts, a
 * member sends its own part of a value that all members of its stage have, and the members of the
 * stage that reads it gather the parts. Gradients come back the same way.
 *
 *   stage s   v ─ GroupPart ─► part ══ link ══► GroupGather ─► v, as stage t reads it
 *
 * Parts are along the last axis: it holds neither samples nor tokens, so that slices, halves and
 * graphs of other numbers of rows are divided alike.
 */
#include "loader/shard/writer.h"

static opipe_status no_memory(opi_writer *w) {
  return opi_fail_nomem(w->err, sizeof(opi_w_arrival), "parts for other stages");
}

/* Does whole value v go from its stage to the one that is written in parts? */
static bool is_sent(const opi_writer *w, uint32_t v) {
  const opi_shard_wish *wish = w->s->wish;
  const opi_value *x = &w->s->g->values[v];
  if (wish->scatters == NULL || w->stage == OPIPE_NONE || x->producer == OPIPE_NONE ||
      w->s->weight[v] || w->s->rows.dims[v] != 0)
    return false;
  const uint32_t from = wish->stages[x->producer];
  const int32_t last = x->rank - 1;
  return from < w->stage && wish->scatters[from * wish->n_stages + w->stage] && last > 0 &&
         opi_dtype_is_float(x->dtype) && opi_elems(x) > 0 &&
         x->shape[last] >= (int64_t)w->s->width &&
         (wish->samples == NULL || wish->samples[v].axis != last);
}

static const int64_t *parts_of(opi_writer *w, int64_t entries) {
  int64_t *parts = OPI_ARENA_ARRAY(&w->scratch, int64_t, w->s->width);
  for (uint32_t r = 0; parts != NULL && r < w->s->width; ++r)
    parts[r] = opi_sh_row_run(w->s, entries, r).n;
  return parts;
}

/* The member's part of v, which stands with v in its stage: emitted once, by `made` its whole
 * form. */
static opipe_status own_part(opi_writer *w, uint32_t v, uint32_t made, const opi_collective *how,
                             uint32_t *out) {
  const opi_value *x = &w->s->g->values[v];
  for (uint32_t i = 0; i < w->n_sent; ++i) {
    if (w->sent[i].whole == v) {
      *out = w->sent[i].part;
      return OPIPE_OK;
    }
  }
  const char *name = opi_arena_printf(w->b.graph->arena, "%s/sent", x->name);
  if (name == NULL || !opi_arena_grow(&w->scratch, (void **)&w->sent, &w->room_sent, w->n_sent + 1,
                                      sizeof(*w->sent)))
    return no_memory(w);
  OPI_TRY(opi_w_origin(w, &w->s->g->nodes[x->producer]));
  OPI_TRY(opi_group_part(&w->b, made, how, name, out, w->err));
  w->sent[w->n_sent++] = (opi_w_part){.whole = v, .part = *out, .node = w->b.graph->n_nodes - 1};
  return OPIPE_OK;
}

opi_w_arrival *opi_w_arrival_of(const opi_writer *w, uint32_t v) {
  for (uint32_t i = 0; i < w->n_arrivals; ++i) {
    if (w->arrivals[i].value == v && w->arrivals[i].stage == w->stage)
      return &w->arrivals[i];
  }
  return NULL;
}

opipe_status opi_w_arrive(opi_writer *w, uint32_t v, uint32_t *io) {
  const opi_w_arrival *known = opi_w_arrival_of(w, v);
  const opi_value *x = &w->s->g->values[v];
  if (known != NULL) {
    *io = known->whole;
    return OPIPE_OK;
  }
  if (!is_sent(w, v))
    return OPIPE_OK;
  const opi_collective how = {.axis = x->rank - 1,
                              .n_parts = w->s->width,
                              .member = w->r,
                              .parts = parts_of(w, x->shape[x->rank - 1])};
  if (how.parts == NULL || !opi_arena_grow(&w->scratch, (void **)&w->arrivals, &w->room_arrivals,
                                           w->n_arrivals + 1, sizeof(*w->arrivals)))
    return no_memory(w);
  OPI_TRY(own_part(w, v, *io, &how, io));
  OPI_TRY(opi_w_origin(w, &w->s->g->nodes[x->producer]));
  OPI_TRY(opi_group_gather(&w->b, *io, (uint32_t)how.axis, how.parts, how.n_parts, how.member,
                           false, io, w->err));
  w->arrivals[w->n_arrivals++] =
      (opi_w_arrival){.value = v, .stage = w->stage, .whole = *io, .spread = OPIPE_NONE};
  return OPIPE_OK;
}

uint32_t opi_w_node_sent(const opi_writer *w, uint32_t made, uint32_t otherwise) {
  for (uint32_t i = 0; i < w->n_sent; ++i) {
    if (w->sent[i].node == made)
      return w->s->g->values[w->sent[i].whole].producer;
  }
  return otherwise;
}
