/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, constants and inputs in a member's graph: whole, a part, or several parts joined. */
#include <string.h>

#include "loader/shard/writer.h"

static const opi_value *value_of(const opi_writer *w, uint32_t v) {
  return &w->s->g->values[v];
}

static opipe_status no_memory(opi_writer *w) {
  return opi_fail_nomem(w->err, sizeof(opi_value), "a member's graph");
}

opipe_status opi_w_leaf(opi_writer *w, uint32_t v, uint32_t *out) {
  const opi_value *from = value_of(w, v);
  const uint32_t made =
      opi_b_borrow(&w->b, from->name, from->dtype, from->shape, (uint32_t)from->rank, from->data);
  if (made == OPIPE_NONE)
    return no_memory(w);
  opi_value *to = opi_b_value(&w->b, made);
  to->flags = (from->flags & ~(uint32_t)OPI_VALUE_OUTPUT) |
              (from->data != NULL ? (uint32_t)OPI_VALUE_BORROWED : 0u);
  to->source = from->source;
  to->at = from->at;
  w->whole[v] = w->own[v] = made;
  *out = made;
  return OPIPE_OK;
}

static void pack(const opi_value *from, const opi_shard_part *part, char *to) {
  uint64_t inner = opi_dtype_bits(from->dtype), outer = 1;
  for (int32_t d = part->axis + 1; d < from->rank; ++d)
    inner *= (uint64_t)from->shape[d];
  for (int32_t d = 0; d < part->axis; ++d)
    outer *= (uint64_t)from->shape[d];
  const uint64_t row = (uint64_t)from->shape[part->axis] * inner / 8;
  for (uint64_t o = 0; o < outer; ++o) {
    for (uint32_t k = 0; k < part->n_runs; ++k) {
      const uint64_t n = (uint64_t)part->runs[k].n * inner / 8;
      memcpy(to, (const char *)from->data + o * row + (uint64_t)part->runs[k].first * inner / 8, n);
      to += n;
    }
  }
}

/* The part's data: within the whole one, a copy, or none. */
static opipe_status part_data(opi_writer *w, const opi_value *from, const opi_shard_part *part,
                              opi_value *to) {
  enum { SMALL = 65536 };
  uint64_t inner = opi_dtype_bits(from->dtype), outer = 1;
  for (int32_t d = part->axis + 1; d < from->rank; ++d)
    inner *= (uint64_t)from->shape[d];
  for (int32_t d = 0; d < part->axis; ++d)
    outer *= (uint64_t)from->shape[d];
  if (from->data == NULL)
    return OPIPE_OK;
  if (outer == 1 && part->n_runs == 1) {
    to->data = (const char *)from->data + (uint64_t)part->runs[0].first * inner / 8;
    to->flags |= OPI_VALUE_BORROWED;
    return OPIPE_OK;
  }
  const bool initializer = (from->flags & OPI_VALUE_INITIALIZER) != 0;
  const uint32_t flags = w->s->wish->flags;
  if (initializer && (to->n_bytes > SMALL || (flags & OPI_SHARD_BARE) != 0) &&
      (flags & OPI_SHARD_DENSE) == 0) {
    to->flags |= OPI_VALUE_MISSING;
    return OPIPE_OK;
  }
  char *data = opi_arena_alloc(w->b.graph->arena, to->n_bytes);
  if (data == NULL)
    return no_memory(w);
  pack(from, part, data);
  to->data = data;
  to->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
  return OPIPE_OK;
}

/* A value with the entries of `part`, whose value it becomes. */
static opipe_status add_part(opi_writer *w, uint32_t v, const char *name, opi_shard_part *part) {
  const opi_value *from = value_of(w, v);
  int64_t shape[OPIPE_MAX_RANK];
  memcpy(shape, from->shape, (size_t)from->rank * sizeof(*shape));
  shape[part->axis] = 0;
  for (uint32_t k = 0; k < part->n_runs; ++k)
    shape[part->axis] += part->runs[k].n;
  part->value = opi_b_borrow(&w->b, name, from->dtype, shape, (uint32_t)from->rank, NULL);
  if (part->value == OPIPE_NONE || !opi_arena_grow(&w->scratch, (void **)&w->parts, &w->room_parts,
                                                   w->n_parts + 1, sizeof(*w->parts)))
    return no_memory(w);
  opi_value *to = opi_b_value(&w->b, part->value);
  to->flags = from->flags & ~(uint32_t)(OPI_VALUE_OUTPUT | OPI_VALUE_BORROWED);
  to->source = from->source;
  to->at = from->at;
  OPI_TRY(part_data(w, from, part, to));
  w->parts[w->n_parts++] = *part;
  return OPIPE_OK;
}

static opipe_status part_leaf(opi_writer *w, uint32_t v, const opi_labels *l, uint32_t *out) {
  opi_shard_part part = {.name = value_of(w, v)->name, .whole = v, .axis = l->dims[0]};
  int64_t n = 0;
  bool shared = false;
  OPI_TRY(opi_w_runs(w, l, &part.runs, &part.n_runs, &n, &shared));
  part.flags = shared ? OPI_PART_SHARED : 0u;
  OPI_TRY(add_part(w, v, part.name, &part));
  w->own[v] = *out = part.value;
  return OPIPE_OK;
}

/* ---- leaves that several members hold ---- */

static bool holds(opi_shard_holder h, uint32_t r) {
  return h.lo != UINT32_MAX && h.lo <= r && r <= h.hi;
}

static bool same_holders(opi_shard_holder a, opi_shard_holder b) {
  return a.lo == b.lo && a.hi == b.hi;
}

/* Has the member entries that others have, beside some that not all of these have? Its part is then
 * written as several, each with holders of its own, so that gradients are summed over these. */
static bool is_split(opi_writer *w, uint32_t v, const opi_labels *l) {
  const bool trained = (w->s->wish->flags & OPI_SHARD_TRAIN) != 0 &&
                       (value_of(w, v)->flags & OPI_VALUE_INITIALIZER) != 0 &&
                       opi_dtype_is_float(value_of(w, v)->dtype);
  opi_shard_holder first = {UINT32_MAX, 0};
  for (uint64_t i = 0; trained && i < l->n; ++i) {
    const opi_shard_holder h = opi_sh_holder(w->s, l, (int64_t)i);
    if (holds(h, w->r) && first.lo == UINT32_MAX)
      first = h;
    else if (holds(h, w->r) && !same_holders(h, first))
      return true;
  }
  for (uint64_t i = 0; trained && first.lo < first.hi && i < l->n; ++i) {
    const opi_shard_holder h = opi_sh_holder(w->s, l, (int64_t)i);
    const bool beside = h.lo != UINT32_MAX && h.lo <= first.hi && h.hi >= first.lo;
    if (beside && !same_holders(h, first))
      return true;
  }
  return false;
}

/* The next entries from *io_at on with the same holders, member r among them: what others hold too
 * follows each other in the whole tensor, so that all holders find the same. False: none is left.
 */
static bool next_held(opi_writer *w, const opi_labels *l, uint64_t *io_at, opi_shard_part *part) {
  opi_shard_holder of = {UINT32_MAX, 0};
  part->n_runs = 0;
  for (; *io_at < l->n; ++*io_at) {
    const opi_shard_holder h = opi_sh_holder(w->s, l, (int64_t)*io_at);
    opi_shard_run *last = part->n_runs == 0 ? NULL : &part->runs[part->n_runs - 1];
    const bool follows = last != NULL && last->first + last->n == (int64_t)*io_at;
    if (last != NULL && of.lo != of.hi && (!follows || !same_holders(h, of)))
      break;
    if (!holds(h, w->r))
      continue;
    if (last != NULL && !same_holders(h, of))
      break;
    of = h;
    if (follows)
      ++last->n;
    else
      part->runs[part->n_runs++] = (opi_shard_run){(int64_t)*io_at, 1};
  }
  part->flags = of.lo != of.hi ? OPI_PART_SHARED : 0u;
  return part->n_runs != 0;
}

static opipe_status split_leaf(opi_writer *w, uint32_t v, const opi_labels *l, uint32_t *out) {
  uint32_t *in = OPI_ARENA_ARRAY(&w->scratch, uint32_t, (size_t)l->n);
  uint32_t n = 0;
  uint64_t at = 0;
  if (in == NULL)
    return no_memory(w);
  for (;;) {
    opi_shard_part part = {.name = value_of(w, v)->name, .whole = v, .axis = l->dims[0]};
    part.runs = OPI_ARENA_ARRAY(&w->scratch, opi_shard_run, (size_t)l->n);
    if (part.runs == NULL)
      return no_memory(w);
    if (!next_held(w, l, &at, &part))
      break;
    const char *name = opi_arena_printf(w->b.graph->arena, "%s/from-%lld", part.name,
                                        (long long)part.runs[0].first);
    if (name == NULL)
      return no_memory(w);
    OPI_TRY(add_part(w, v, name, &part));
    in[n++] = part.value;
  }
  OPI_TRY(opi_k_concat(&w->b, in, n, l->dims[0], out, w->err));
  w->own[v] = *out;
  return OPIPE_OK;
}

opipe_status opi_w_leaf_part(opi_writer *w, uint32_t v, const opi_labels *l, uint32_t *out) {
  return is_split(w, v, l) ? split_leaf(w, v, l, out) : part_leaf(w, v, l, out);
}
