/* SPDX-License-Identifier: Apache-2.0 */
/* See outline.h. */
#include "partition/file/outline.h"

#include <string.h>

#include "partition/file/playlist.h"

static const char *const WHAT = "the plan";
static const uint64_t BYTES_MOST = (uint64_t)INT64_MAX / 16;

opipe_status opi_json_read_print(const char *text, uint64_t out_print[2], opipe_error *err) {
  enum { DIGITS = 32 };
  static const char digits[] = "0123456789abcdef";
  bool good = strlen(text) == DIGITS;
  uint64_t print[2] = {0, 0};
  for (uint32_t i = 0; good && i < DIGITS; ++i) {
    const char *at = strchr(digits, text[i]);
    good = at != NULL;
    print[i / (DIGITS / 2)] = print[i / (DIGITS / 2)] << 4 | (uint64_t)(good ? at - digits : 0);
  }
  if (!good) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "the plan: \"fingerprint\" is '%.40s'; it must be %d hexadecimal digits", text,
                    DIGITS);
  }
  memcpy(out_print, print, sizeof print);
  return OPIPE_OK;
}

opipe_status opi_json_list_nodes(const json_t *stages, opi_plan *plan, opipe_error *err) {
  size_t n = 0;
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s)
    n += json_array_size(json_object_get(json_array_get(stages, s), "nodes"));
  plan->decided.node_keys = OPI_ARENA_ARRAY(&plan->arena, const char *, n);
  plan->decided.stage_of_node = OPI_ARENA_ARRAY(&plan->arena, uint32_t, n);
  if (plan->decided.node_keys == NULL || plan->decided.stage_of_node == NULL)
    return opi_fail_nomem(err, n * sizeof(char *), "a plan");
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s) {
    const json_t *nodes = json_object_get(json_array_get(stages, s), "nodes");
    for (size_t i = 0; i < json_array_size(nodes); ++i, ++plan->decided.n_nodes) {
      const char *key = opi_arena_strdup(&plan->arena, json_string_value(json_array_get(nodes, i)));
      if (key == NULL)
        return opi_fail_nomem(err, n, "a plan");
      plan->decided.node_keys[plan->decided.n_nodes] = key;
      plan->decided.stage_of_node[plan->decided.n_nodes] = s;
    }
  }
  return OPIPE_OK;
}

/* Training plans only. */
static opipe_status read_stashes(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *stages = json_object_get(root, "stages");
  if (!opi_plan_trains(&plan->decided))
    return OPIPE_OK;
  plan->predicted.stage_stash_bytes =
      OPI_ARENA_ARRAY(&plan->arena, uint64_t, plan->decided.n_stages);
  if (plan->predicted.stage_stash_bytes == NULL)
    return opi_fail_nomem(err, plan->decided.n_stages * sizeof(uint64_t), "a plan");
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s) {
    OPI_TRY(opi_json_get_u64(json_array_get(stages, s), WHAT, "stash_bytes", BYTES_MOST,
                             &plan->predicted.stage_stash_bytes[s], err));
  }
  return OPIPE_OK;
}

static opipe_status read_crossing(const json_t *object, opi_plan *plan, opi_crossing *out,
                                  opipe_error *err) {
  const char *name = NULL;
  uint64_t from = 0, to = 0;
  OPI_TRY(opi_json_get_string(object, WHAT, "tensor", &name, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "from", plan->decided.n_stages - 1, &from, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "to", plan->decided.n_stages - 1, &to, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "bytes", BYTES_MOST, &out->n_bytes, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "message_bytes", BYTES_MOST, &out->message_bytes, err));
  if (json_object_get(object, "whole_bytes") != NULL)
    OPI_TRY(opi_json_get_u64(object, WHAT, "whole_bytes", BYTES_MOST, &out->whole_bytes, err));
  out->name = opi_arena_strdup(&plan->arena, name);
  out->src_stage = (uint32_t)from;
  out->dst_stage = (uint32_t)to;
  return out->name == NULL ? opi_fail_nomem(err, strlen(name), "a plan") : OPIPE_OK;
}

static opipe_status read_cut(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(root, WHAT, "crossings", &list, err));
  const size_t n = json_array_size(list);
  plan->predicted.crossings = OPI_ARENA_ARRAY(&plan->arena, opi_crossing, n);
  if (plan->predicted.crossings == NULL)
    return opi_fail_nomem(err, n * sizeof *plan->predicted.crossings, "a plan");
  for (size_t i = 0; i < n; ++i, ++plan->predicted.n_crossings)
    OPI_TRY(read_crossing(json_array_get(list, i), plan, &plan->predicted.crossings[i], err));
  return OPIPE_OK;
}

static opipe_status read_times(const json_t *root, opi_plan *plan, opipe_error *err) {
  static const double flops_most = 1e30;
  OPI_TRY(opi_json_time(json_object_get(root, "request_ns"), WHAT, "request_ns",
                        &plan->predicted.request_ns, err));
  OPI_TRY(opi_json_time(json_object_get(root, "interval_ns"), WHAT, "interval_ns",
                        &plan->predicted.interval_ns, err));
  OPI_TRY(opi_json_get_number(root, WHAT, "flops", &plan->predicted.flops, err));
  if (plan->predicted.flops >= 0 && plan->predicted.flops <= flops_most)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "the plan: \"flops\" is %g; it must be from 0 to %g",
                  plan->predicted.flops, flops_most);
}

opipe_status opi_json_read_outline(const json_t *root, opi_plan *plan, opipe_error *err) {
  OPI_TRY(opi_json_read_playlist(root, plan, err)); /* first, because older files lack it */
  OPI_TRY(read_stashes(root, plan, err));
  OPI_TRY(read_cut(root, plan, err));
  return read_times(root, plan, err);
}
