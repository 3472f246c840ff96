/* SPDX-License-Identifier: Apache-2.0 */
/* Divides a graph: walks it until nothing fails, then writes one graph per member. */
#include <inttypes.h>

#include "loader/shard/sharder.h"

void opi_shard_segments(const opi_value *whole, const opi_shard_part *part,
                        opi_shard_segment *out_segments) {
  uint64_t inner = opi_dtype_bits(whole->dtype), outer = 1;
  for (int32_t d = part->axis + 1; d < whole->rank; ++d)
    inner *= (uint64_t)whole->shape[d];
  for (int32_t d = 0; d < part->axis; ++d)
    outer *= (uint64_t)whole->shape[d];
  for (uint32_t k = 0; k < part->n_runs; ++k) {
    out_segments[k] = (opi_shard_segment){.offset = (uint64_t)part->runs[k].first * inner / 8,
                                          .bytes = (uint64_t)part->runs[k].n * inner / 8,
                                          .stride = (uint64_t)whole->shape[part->axis] * inner / 8,
                                          .n = outer};
  }
}

/* Was node n once opened, and is whole in the end? */
static bool is_whole(const opi_sharder *s, uint32_t n) {
  return s->closed[n] != NULL && s->decisions[n].mode == OPI_MODE_WHOLE;
}

static const char *whole_reason(const opi_sharder *s, uint32_t n) {
  return is_whole(s, n) ? s->closed[n] : NULL;
}

static const char *mixed_reason(const opi_sharder *s, uint32_t n) {
  return s->rows.mixes[n];
}

typedef const char *(*reason_of)(const opi_sharder *s, uint32_t n);

/* Nodes with a reason, in graph order. */
static opipe_status list(const opi_sharder *s, reason_of why, opi_arena *arena,
                         opi_shard_reason **out, uint32_t *out_n, opipe_error *err) {
  uint32_t n_reasons = 0;
  for (uint32_t n = 0; n < s->g->n_nodes; ++n)
    n_reasons += why(s, n) != NULL;
  *out = OPI_ARENA_ARRAY(arena, opi_shard_reason, (size_t)n_reasons + 1);
  for (uint32_t n = 0; *out != NULL && n < s->g->n_nodes; ++n) {
    if (why(s, n) == NULL)
      continue;
    opi_shard_reason *reason = &(*out)[(*out_n)++];
    *reason = (opi_shard_reason){opi_arena_strdup(arena, s->g->nodes[n].name),
                                 opi_arena_strdup(arena, why(s, n))};
    if (reason->node == NULL || reason->why == NULL)
      return opi_fail_nomem(err, 64, "reasons");
  }
  return *out == NULL ? opi_fail_nomem(err, n_reasons * sizeof(**out), "reasons") : OPIPE_OK;
}

static opipe_status report(opi_sharder *s, opi_shards *out, opipe_error *err) {
  for (uint32_t n = 0; n < s->g->n_nodes; ++n) {
    const uint32_t kind = opi_op_of(&s->g->nodes[n])->kind;
    if ((kind == OPI_KIND_ATTENTION || kind == OPI_KIND_ROW_ATTENTION ||
         kind == OPI_KIND_SOFTMAX) &&
        s->decisions[n].mode == OPI_MODE_CUT)
      ++out->n_attention;
  }
  out->n_divided = s->n_openings;
  OPI_TRY(list(s, whole_reason, &out->arena, &out->reasons, &out->n_reasons, err));
  return list(s, mixed_reason, &out->arena, &out->mixed, &out->n_mixed, err);
}

static opipe_status divide(opi_sharder *s, opi_shards *out, opipe_error *err) {
  const size_t values = (size_t)s->g->n_values + 1, nodes = (size_t)s->g->n_nodes + 1;
  s->weight = OPI_ARENA_ARRAY(&s->keep, bool, values);
  s->main = OPI_ARENA_ARRAY(&s->keep, bool, values);
  s->trains = OPI_ARENA_ARRAY(&s->keep, bool, values);
  s->uses = OPI_ARENA_ARRAY(&s->keep, uint32_t, values);
  s->closed = OPI_ARENA_ARRAY(&s->keep, const char *, nodes);
  s->fine = OPI_ARENA_ARRAY(&s->keep, bool, nodes);
  s->plain = OPI_ARENA_ARRAY(&s->keep, bool, nodes);
  out->members = OPI_ARENA_ARRAY(&out->arena, opi_shard_member, s->width);
  if (s->weight == NULL || s->main == NULL || s->trains == NULL || s->uses == NULL ||
      s->closed == NULL || s->fine == NULL || s->plain == NULL || out->members == NULL)
    return opi_fail_nomem(err, values * 16, "dividing a graph");
  out->width = s->width;
  OPI_TRY(opi_sh_walk(s, err));
  OPI_TRY(report(s, out, err));
  for (uint32_t r = 0; r < s->width; ++r)
    OPI_TRY(opi_sh_write(s, r, &out->members[r], err));
  return s->failed ? opi_fail_nomem(err, 64, "dividing a graph") : OPIPE_OK;
}

opipe_status opi_shard(const opi_bound *bound, const opi_shard_wish *wish, opi_shards **out_shards,
                       opipe_error *err) {
  opi_sharder s = {.bound = bound, .g = bound->graph, .wish = wish, .width = wish->width};
  *out_shards = NULL;
  if (wish->width < 1)
    return opi_fail(err, OPIPE_E_INVALID, "a tensor group of %" PRIu32 " members", wish->width);
  opi_shards *made = opi_alloc_zero(wish->allocator, 1, sizeof(*made));
  if (made == NULL)
    return opi_fail_nomem(err, sizeof(*made), "a divided graph");
  opi_arena_init(&made->arena, wish->allocator, 0);
  opi_arena_init(&s.keep, wish->allocator, 0);
  opi_arena_init(&s.scratch, wish->allocator, 0);
  const opipe_status status = divide(&s, made, err);
  opi_arena_release(&s.scratch);
  opi_arena_release(&s.keep);
  if (status < 0)
    opi_shards_free(made);
  else
    *out_shards = made;
  return status;
}

void opi_shards_free(opi_shards *shards) {
  if (shards == NULL)
    return;
  const opipe_allocator *allocator = shards->arena.allocator;
  for (uint32_t r = 0; shards->members != NULL && r < shards->width; ++r) {
    if (shards->members[r].bound != NULL)
      opi_bound_free(shards->members[r].bound);
  }
  opi_arena_release(&shards->arena);
  opi_free(allocator, shards, sizeof(*shards));
}

bool opi_shard_extents(const opi_shards *shards, uint32_t output, int64_t *parts, int32_t *out_axis,
                       bool *out_consecutive) {
  int64_t next = 0;
  *out_consecutive = true;
  for (uint32_t r = 0; r < shards->width; ++r) {
    const opi_shard_member *m = &shards->members[r];
    uint32_t o = 0;
    while (o < m->n_outputs && m->outputs[o].whole != output)
      ++o;
    if (o == m->n_outputs)
      return false;
    const opi_shard_part *part = &m->outputs[o];
    *out_axis = part->axis;
    parts[r] = 0;
    for (uint32_t k = 0; k < part->n_runs; ++k)
      parts[r] += part->runs[k].n;
    *out_consecutive = *out_consecutive && part->n_runs == 1 && part->runs[0].first == next;
    next += parts[r];
  }
  return true;
}
