/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the graphs of a tensor group's members one after the other by a plain loop: each until its
 * next collective, which is then done in host memory, in rising order of members.
 *
 * Nodes are computed one by one. In training graphs, an Accumulate adds to its parameter's
 * gradient.
 */
#ifndef TESTS_LOADER_SHARD_MEMBERS_H
#define TESTS_LOADER_SHARD_MEMBERS_H

#include "loader/base/halves.h"
#include "loader/ops/common.h"
#include "loader/shard/shard.h"
#include "tests/loader/fusion/models.h"

enum { TEST_MOST_MEMBERS = 8 };

typedef struct test_member {
  const opi_graph *graph;
  void **data; /* [n_values] */
  uint32_t at; /* next node */
} test_member;

typedef struct test_group {
  test_member members[TEST_MOST_MEMBERS];
  uint32_t width;
  const opi_evaluator *evaluator;
  opi_arena *arena;
  uint32_t n_sums, n_gathers, n_scatters; /* collectives done */
  uint64_t bytes;                         /* of their results, in member 0 */
} test_group;

static inline opipe_status test_node_run(test_group *t, test_member *m, const opi_node *node,
                                         opipe_error *err) {
  const uint32_t room = node->n_in + node->n_out;
  opipe_value *values = OPI_ARENA_ARRAY(t->arena, opipe_value, room + 1);
  uint32_t *index = OPI_ARENA_ARRAY(t->arena, uint32_t, room + 1);
  void **outs = OPI_ARENA_ARRAY(t->arena, void *, node->n_out + 1);
  uint32_t n = 0, n_outs = 0;
  for (uint32_t i = 0; i < room; ++i) {
    const uint32_t v = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
    index[i] = OPIPE_NONE;
    if (v == OPIPE_NONE)
      continue;
    for (uint32_t k = 0; k < i && i < node->n_in && index[i] == OPIPE_NONE; ++k)
      index[i] = node->in[k] == v ? index[k] : OPIPE_NONE;
    if (index[i] != OPIPE_NONE)
      continue;
    values[n] = opi_value_view(&m->graph->values[v]);
    values[n].role = i < node->n_in ? OPIPE_VALUE_CONSTANT : OPIPE_VALUE_OUTPUT;
    values[n].data = i < node->n_in ? m->data[v] : NULL;
    if (i >= node->n_in) {
      m->data[v] = opi_arena_alloc(t->arena, m->graph->values[v].n_bytes + 1);
      values[n].slot = n_outs;
      outs[n_outs++] = m->data[v];
    } else if (values[n].data == NULL) {
      return opi_fail(err, OPIPE_E_INTERNAL, "node '%s' (%s): '%s' has no data", node->name,
                      node->op, m->graph->values[v].name);
    }
    index[i] = n++;
  }
  const opipe_node view = opi_node_view(node, index, index + node->n_in);
  const opipe_graph abi = {.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars),
                           .n_values = n,
                           .values = values,
                           .nodes = &view,
                           .n_nodes = 1,
                           .n_boundaries = n_outs};
  return t->evaluator->run(t->evaluator->ctx, &abi, outs, err);
}

/* Sum of a gradient's uses, in fp32. */
static inline void test_accumulate(test_group *t, test_member *m, const opi_node *node) {
  const opi_value *x = &m->graph->values[node->in[0]];
  const uint64_t n = opi_elems(x);
  float *to = opi_arena_alloc(t->arena, n * sizeof(float) + 1);
  for (uint64_t i = 0; i < n; ++i) {
    to[i] = x->dtype == OPIPE_DOUBLE ? (float)((const double *)m->data[node->in[0]])[i]
                                     : ((const float *)m->data[node->in[0]])[i];
  }
  m->data[node->out[0]] = to;
}

static inline void test_add(uint32_t dtype, void *to, const void *from, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    if (dtype == OPIPE_FLOAT)
      ((float *)to)[i] += ((const float *)from)[i];
    else if (dtype == OPIPE_DOUBLE)
      ((double *)to)[i] += ((const double *)from)[i];
    else
      OPI_FAIL("a sum of %s", opi_dtype_name(dtype));
  }
}

/* The sum of what all members hand in, whole. */
static inline void *test_sum(test_group *t, const uint32_t *in, bool *out_ok) {
  const opi_value *x = &t->members[0].graph->values[in[0]];
  const bool half = x->dtype == OPIPE_FLOAT16 || x->dtype == OPIPE_BFLOAT16;
  const uint64_t n = opi_elems(x);
  float *wide = half ? opi_arena_alloc(t->arena, n * 4 + 1) : NULL;
  char *sum = opi_arena_alloc(t->arena, x->n_bytes + 1);
  for (uint32_t r = 0; r < t->width; ++r) {
    const opi_value *own = &t->members[r].graph->values[in[r]];
    const void *from = t->members[r].data[in[r]];
    *out_ok = *out_ok && own->n_bytes == x->n_bytes && own->dtype == x->dtype;
    if (!*out_ok)
      return NULL;
    for (uint64_t i = 0; half && i < n; ++i) {
      const uint16_t bits = ((const uint16_t *)from)[i];
      const float value =
          x->dtype == OPIPE_FLOAT16 ? opi_half_to_float(bits) : opi_bfloat_to_float(bits);
      wide[i] = r == 0 ? value : wide[i] + value;
    }
    if (half)
      continue;
    if (r == 0)
      memcpy(sum, from, x->n_bytes);
    else
      test_add(x->dtype, sum, from, n);
  }
  for (uint64_t i = 0; half && i < n; ++i) {
    ((uint16_t *)sum)[i] =
        x->dtype == OPIPE_FLOAT16 ? opi_half_of(wide[i]) : opi_bfloat_of(wide[i]);
  }
  return sum;
}

/* Elements before and behind an axis, the latter in bytes. */
static inline void test_around(const opi_value *x, int32_t axis, uint64_t *out_outer,
                               uint64_t *out_inner) {
  *out_outer = 1;
  *out_inner = opi_dtype_bits(x->dtype) / 8;
  for (int32_t d = 0; d < x->rank; ++d) {
    if (d != axis)
      *(d < axis ? out_outer : out_inner) *= (uint64_t)x->shape[d];
  }
}

/* One collective of all members. */
static inline opipe_status test_collect(test_group *t, opipe_error *err) {
  opi_collective how[TEST_MOST_MEMBERS] = {{0}};
  uint32_t in[TEST_MOST_MEMBERS], out[TEST_MOST_MEMBERS];
  bool ok = true;
  for (uint32_t r = 0; r < t->width; ++r) {
    test_member *m = &t->members[r];
    if (m->at == m->graph->n_nodes)
      return opi_fail(err, OPIPE_E_INTERNAL, "member %u has ended before a collective", r);
    const opi_node *node = &m->graph->nodes[m->at++];
    in[r] = node->in[0];
    out[r] = node->out[0];
    ok = ok && opi_collective_of(m->graph, node, &how[r]) && how[r].kind == how[0].kind &&
         how[r].dtype == how[0].dtype && how[r].axis == how[0].axis &&
         how[r].n_parts == how[0].n_parts && (how[r].n_parts == 0 || how[r].member == r);
    if (!ok) {
      return opi_fail(err, OPIPE_E_INTERNAL, "member %u does another collective: '%s'", r,
                      node->name);
    }
  }
  void *sum = how[0].kind == OPI_COLLECTIVE_GATHER ? NULL : test_sum(t, in, &ok);
  int64_t first = 0;
  for (uint32_t r = 0; r < t->width && ok; ++r) {
    test_member *m = &t->members[r];
    const opi_value *y = &m->graph->values[out[r]];
    uint64_t outer, inner;
    m->data[out[r]] = opi_arena_alloc(t->arena, y->n_bytes + 1);
    if (how[0].kind == OPI_COLLECTIVE_SUM) {
      memcpy(m->data[out[r]], sum, y->n_bytes);
      continue;
    }
    test_around(y, how[0].axis, &outer, &inner);
    uint64_t to = 0;
    for (uint64_t o = 0; o < outer; ++o) {
      const uint64_t own = (uint64_t)how[r].parts[r] * inner;
      for (uint32_t k = 0; how[0].kind == OPI_COLLECTIVE_GATHER && k < t->width; ++k) {
        const uint64_t part = (uint64_t)how[r].parts[k] * inner;
        memcpy((char *)m->data[out[r]] + to, (char *)t->members[k].data[in[k]] + o * part, part);
        to += part;
      }
      if (how[0].kind == OPI_COLLECTIVE_SCATTER) {
        const uint64_t row =
            (uint64_t)t->members[r].graph->values[in[r]].shape[how[0].axis] * inner;
        memcpy((char *)m->data[out[r]] + o * own, (char *)sum + o * row + (uint64_t)first * inner,
               own);
      }
    }
    first += how[r].parts[r];
  }
  t->n_sums += how[0].kind == OPI_COLLECTIVE_SUM;
  t->n_gathers += how[0].kind == OPI_COLLECTIVE_GATHER;
  t->n_scatters += how[0].kind == OPI_COLLECTIVE_SCATTER;
  t->bytes += t->members[0].graph->values[out[0]].n_bytes;
  return ok ? OPIPE_OK : opi_fail(err, OPIPE_E_INTERNAL, "a collective of unlike values");
}

/* Runs all members to their ends. Inputs, scalars and parameters without data are set before. */
static inline opipe_status test_group_run(test_group *t, opipe_error *err) {
  for (;;) {
    bool ended = true;
    for (uint32_t r = 0; r < t->width; ++r) {
      test_member *m = &t->members[r];
      opi_collective how;
      for (; m->at < m->graph->n_nodes; ++m->at) {
        const opi_node *node = &m->graph->nodes[m->at];
        const bool is = opi_collective_of(m->graph, node, &how);
        if (is && how.kind != OPI_COLLECTIVE_SPREAD)
          break;
        if (is)
          m->data[node->out[0]] = m->data[node->in[0]];
        else if (opi_op_of(node)->kind == OPI_KIND_ACCUMULATE)
          test_accumulate(t, m, node);
        else
          OPI_TRY(test_node_run(t, m, node, err));
      }
      ended = ended && m->at == m->graph->n_nodes;
    }
    if (ended)
      return OPIPE_OK;
    OPI_TRY(test_collect(t, err));
  }
}

/* A member's part of `whole`, packed by the part's segments. */
static inline void *test_pack(opi_arena *arena, const opi_value *whole, const void *data,
                              const opi_shard_part *part) {
  opi_shard_segment *s = OPI_ARENA_ARRAY(arena, opi_shard_segment, part->n_runs);
  uint64_t bytes = 0, row = 0, at = 0;
  opi_shard_segments(whole, part, s);
  for (uint32_t k = 0; k < part->n_runs; ++k) {
    bytes += s[k].bytes * s[k].n;
    row += s[k].bytes;
  }
  char *to = opi_arena_alloc(arena, bytes + 1);
  for (uint32_t k = 0; k < part->n_runs; ++k) {
    for (uint64_t i = 0; i < s[k].n; ++i)
      memcpy(to + i * row + at, (const char *)data + s[k].offset + i * s[k].stride, s[k].bytes);
    at += s[k].bytes;
  }
  return to;
}

/* Adds (or, with `add` false, writes) a member's part to the whole tensor, fp32 elements. */
static inline void test_unpack(const opi_value *whole, const float *part_data,
                               const opi_shard_part *part, bool add, float *to) {
  uint64_t outer = 1, inner = 1;
  for (int32_t d = 0; d < whole->rank; ++d) {
    if (d != part->axis)
      *(d < part->axis ? &outer : &inner) *= (uint64_t)whole->shape[d];
  }
  for (uint64_t o = 0; o < outer; ++o) {
    for (uint32_t k = 0; k < part->n_runs; ++k) {
      const uint64_t first =
          (o * (uint64_t)whole->shape[part->axis] + (uint64_t)part->runs[k].first) * inner;
      for (uint64_t i = 0; i < (uint64_t)part->runs[k].n * inner; ++i) {
        to[first + i] = (add ? to[first + i] : 0) + *part_data;
        ++part_data;
      }
    }
  }
}

static inline const opi_shard_part *test_part_of(const opi_shard_part *parts, uint32_t n,
                                                 uint32_t whole) {
  for (uint32_t i = 0; i < n; ++i) {
    if (parts[i].whole == whole)
      return &parts[i];
  }
  return NULL;
}

/* Inputs [n_inputs of the whole graph] and known values into every member; graphs[r] NULL: the
 * member's own. */
static inline void test_group_open(test_group *t, const opi_bound *whole, const opi_shards *shards,
                                   void *const *inputs) {
  t->width = shards->width;
  for (uint32_t r = 0; r < t->width; ++r) {
    const opi_shard_member *m = &shards->members[r];
    const opi_graph *g = m->bound->graph;
    t->members[r] =
        (test_member){.graph = g, .data = OPI_ARENA_ARRAY(t->arena, void *, g->n_values + 1)};
    for (uint32_t v = 0; v < g->n_values; ++v)
      t->members[r].data[v] = (void *)(uintptr_t)g->values[v].data;
    for (uint32_t i = 0; i < m->n_params; ++i) {
      const opi_value *from = &whole->graph->values[m->params[i].whole];
      t->members[r].data[m->params[i].value] = test_pack(t->arena, from, from->data, &m->params[i]);
    }
    for (uint32_t i = 0; i < g->n_inputs; ++i) {
      const uint32_t v = whole->graph->inputs[i];
      const opi_shard_part *part = test_part_of(m->inputs, m->n_inputs, v);
      t->members[r].data[g->inputs[i]] =
          part == NULL ? inputs[i] : test_pack(t->arena, &whole->graph->values[v], inputs[i], part);
    }
  }
}

#endif /* TESTS_LOADER_SHARD_MEMBERS_H */
