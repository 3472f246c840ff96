/* SPDX-License-Identifier: Apache-2.0 */
/* See ways.h. */
#include "partition/file/ways.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char WHAT[] = "the plan";
enum { WAYS_MOST = 1 << 20 };

static bool is_news(const opi_way_told *told) {
  return told->way != OPIPE_WAY_HOST && told->way != OPIPE_WAY_NONE;
}

void opi_json_write_ways(opi_text *t, const opi_plan *plan) {
  const opi_prediction *p = &plan->predicted;
  uint64_t staging = 0;
  bool any = false;
  for (uint32_t i = 0; i < p->n_ways; ++i) {
    const opi_way_told *told = &p->ways[i];
    if (!is_news(told))
      continue;
    opi_text_printf(t, "%s\n    {\"src\": %u, \"dst\": %u, \"way\": \"%s\", \"why\": ",
                    any ? "," : ",\n  \"ways\": [", told->src_rank, told->dst_rank,
                    opi_way_name(told->way));
    opi_text_json(t, told->why);
    opi_text_puts(t, "}");
    any = true;
  }
  opi_text_puts(t, any ? "\n  ]" : "");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    staging += p->memory[r].staging_bytes;
  for (uint32_t r = 0; staging != 0 && r < plan->decided.n_ranks; ++r) {
    opi_text_printf(t, "%s%" PRIu64, r == 0 ? ",\n  \"staging_bytes\": [" : ", ",
                    p->memory[r].staging_bytes);
  }
  opi_text_puts(t, staging != 0 ? "]" : "");
}

static opipe_status read_way(const json_t *object, const opi_plan *plan, opi_way_told *out,
                             opipe_error *err) {
  const uint32_t n_ranks = plan->decided.n_ranks;
  uint64_t src = 0, dst = 0;
  const char *name = NULL, *why = NULL;
  OPI_TRY(opi_json_get_u64(object, WHAT, "src", n_ranks - 1, &src, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "dst", n_ranks - 1, &dst, err));
  OPI_TRY(opi_json_get_string(object, WHAT, "way", &name, err));
  OPI_TRY(opi_json_get_string(object, WHAT, "why", &why, err));
  out->src_rank = (uint32_t)src;
  out->dst_rank = (uint32_t)dst;
  (void)snprintf(out->why, sizeof out->why, "%s", why);
  for (uint32_t way = OPIPE_WAY_HOST; way < OPIPE_WAY_KINDS; ++way) {
    if (strcmp(opi_way_name(way), name) == 0)
      out->way = way;
  }
  return out->way != OPIPE_WAY_NONE
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "%s: way '%.40s' of ranks %u -> %u is none", WHAT,
                        name, out->src_rank, out->dst_rank);
}

static opipe_status read_bytes(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *list = NULL;
  if (json_object_get(root, "staging_bytes") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(root, WHAT, "staging_bytes", &list, err));
  if (json_array_size(list) != plan->decided.n_ranks) {
    return opi_fail(err, OPIPE_E_INVALID, "%s has \"staging_bytes\" of %zu ranks and %u devices",
                    WHAT, json_array_size(list), plan->decided.n_ranks);
  }
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const json_t *bytes = json_array_get(list, r);
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0) {
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"staging_bytes\" of rank %u is no number of them",
                      WHAT, r);
    }
    plan->predicted.memory[r].staging_bytes = (uint64_t)json_integer_value(bytes);
  }
  return OPIPE_OK;
}

opipe_status opi_json_read_ways(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *list = NULL;
  OPI_TRY(read_bytes(root, plan, err));
  if (json_object_get(root, "ways") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(root, WHAT, "ways", &list, err));
  const size_t n = json_array_size(list);
  if (n > WAYS_MOST)
    return opi_fail(err, OPIPE_E_INVALID, "%s has %zu ways, at most %d", WHAT, n, WAYS_MOST);
  plan->predicted.ways = OPI_ARENA_ARRAY(&plan->arena, opi_way_told, n);
  if (plan->predicted.ways == NULL)
    return opi_fail_nomem(err, n * sizeof *plan->predicted.ways, "a plan");
  for (size_t i = 0; i < n; ++i)
    OPI_TRY(read_way(json_array_get(list, i), plan, &plan->predicted.ways[i], err));
  plan->predicted.n_ways = (uint32_t)n;
  return OPIPE_OK;
}
