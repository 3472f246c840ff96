/* SPDX-License-Identifier: Apache-2.0 */
/* Knowledge about an axis from one binding, for the other bindings of the same model.
 *
 * Rules that look at lengths alone can mistake another extent for the axis, or an axis of 1 for any
 * extent of 1. A binding whose axis has a prime length that divides nothing else leaves no doubt.
 * Its results hold in a binding of any length for every value of the same name that is made in the
 * same way: by the same operator and, if the name is generated, from values of the same names.
 */
#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "loader/passes/carry.h"

typedef struct known_value {
  const char *name;
  uint64_t made; /* made_of */
  int32_t rank;
  opi_carry carry;
} known_value;

struct opi_known_axis {
  known_value *values; /* [n_values] by name */
  uint32_t n_values;
  opi_known_counts *counts; /* recorded by opi_carry_compare */
};

static bool divides_some(const opi_graph *graph, int64_t length) {
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    for (int32_t d = 0; d < value->rank; ++d) {
      if (value->shape[d] != 0 && value->shape[d] % length == 0)
        return true;
    }
  }
  return false;
}

int64_t opi_axis_probe_length(const opi_graph *graph) {
  static const int64_t primes[] = {5,  7,  11, 13, 17, 19, 23, 29, 31, 37, 41,  43,  47,
                                   53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107};
  size_t i = 0;
  while (i + 1 < OPI_COUNT(primes) && divides_some(graph, primes[i]))
    ++i;
  return primes[i];
}

/* Identifies its producer; 0: none. Names of the file mean the same in every binding; a generated
 * one may be another step of its node. A value may be constant in one binding only. */
static uint64_t made_of(const opi_graph *graph, const opi_value *value) {
  if (value->producer == OPIPE_NONE)
    return 0;
  const opi_node *node = &graph->nodes[value->producer];
  uint64_t hash = XXH3_64bits(node->op, strlen(node->op));
  for (uint32_t i = 0; i < node->n_in && value->source == OPIPE_NONE; ++i) {
    if (node->in[i] == OPIPE_NONE || graph->values[node->in[i]].data != NULL)
      continue;
    const char *name = graph->values[node->in[i]].name;
    hash = XXH3_64bits_withSeed(name, strlen(name), hash);
  }
  return hash;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const known_value *)a)->name, ((const known_value *)b)->name);
}

/* Keeps nothing about sums over the axis, which differ between bindings. */
static opipe_status keep(const opi_graph *graph, const bool *nodes, const opi_carry *carry,
                         const bool *sums, opi_arena *arena, opi_known_axis *known,
                         opipe_error *err) {
  known->values = OPI_ARENA_ARRAY(arena, known_value, graph->n_values);
  if (known->values == NULL)
    return opi_fail_nomem(err, graph->n_values * sizeof(known_value), "an axis");
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    if (value->producer != OPIPE_NONE && nodes != NULL && !nodes[value->producer])
      continue;
    if (sums[v])
      continue;
    known_value *own = &known->values[known->n_values++];
    *own = (known_value){.name = opi_arena_strdup(arena, value->name),
                         .made = made_of(graph, value),
                         .rank = value->rank,
                         .carry = carry[v]};
    if (own->name == NULL)
      return opi_fail_nomem(err, strlen(value->name), "an axis");
  }
  qsort(known->values, known->n_values, sizeof(known_value), by_name);
  return OPIPE_OK;
}

opipe_status opi_known_axis_make(const opi_graph *graph, const opi_carry_part *part,
                                 const opi_carry *in_carry, opi_arena *arena,
                                 opi_known_axis **out_known, opipe_error *err) {
  const opi_carry_part all = {.nodes = NULL};
  const opi_carry_part *of = part == NULL ? &all : part;
  opi_known_axis *known = OPI_ARENA_NEW(arena, opi_known_axis);
  opi_known_counts *counts = opi_known_counts_new(arena);
  const opipe_allocator *allocator = graph->arena->allocator;
  const size_t room = (size_t)graph->n_values + 1;
  opi_carry *carry = opi_alloc_zero(allocator, room, sizeof *carry);
  bool *sums = opi_alloc_zero(allocator, room, sizeof *sums);
  opipe_status status = known == NULL || counts == NULL || carry == NULL || sums == NULL
                            ? opi_fail_nomem(err, graph->n_values * sizeof *carry, "an axis")
                            : opi_carry_through(graph, of, NULL, in_carry, carry, sums, err);
  if (known != NULL)
    known->counts = counts;
  if (status == OPIPE_OK)
    status = keep(graph, of->nodes, carry, sums, arena, known, err);
  opi_free(allocator, sums, room * sizeof *sums);
  opi_free(allocator, carry, room * sizeof *carry);
  *out_known = status == OPIPE_OK ? known : NULL;
  return status;
}

bool opi_known_carry(const opi_known_axis *known, const opi_graph *graph, uint32_t v,
                     int64_t length, opi_carry *out_carry) {
  const opi_value *value = &graph->values[v];
  const known_value key = {.name = value->name};
  const known_value *found = bsearch(&key, known->values, known->n_values, sizeof(key), by_name);
  if (found == NULL || found->rank != value->rank || found->made != made_of(graph, value))
    return false;
  const opi_carry *carry = &found->carry;
  if (opi_carries(carry) && length >= 0 &&
      value->shape[carry->axis] != carry->outer * length * carry->inner)
    return false;
  *out_carry = *carry;
  return true;
}

opi_known_counts *opi_known_axis_counts(const opi_known_axis *known) {
  return known == NULL ? NULL : known->counts;
}
