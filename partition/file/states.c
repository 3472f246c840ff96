/* SPDX-License-Identifier: Apache-2.0 */
/* State pairs in plan files: names and capacity of each, and the number of streams counted. */
#include "partition/file/states.h"

#include <inttypes.h>

static const char *const WHAT = "the plan";
enum { PAIRS_MOST = 1 << 16, STREAMS_MOST = 1 << 20 };

/* The number of streams that the bytes count is not a decision: a rank may open more or fewer. */
void opi_json_write_states(opi_text *t, const opi_plan *plan, bool decisions) {
  if (plan->decided.n_states == 0)
    return;
  opi_text_puts(t, "  \"states\": [");
  for (uint32_t i = 0; i < plan->decided.n_states; ++i) {
    opi_text_puts(t, i == 0 ? "\n    {\"output\": " : ",\n    {\"output\": ");
    opi_text_json(t, plan->decided.states[i].output);
    opi_text_puts(t, ", \"input\": ");
    opi_text_json(t, plan->decided.states[i].input);
    opi_text_printf(t, ", \"capacity\": %" PRIu64 "}", plan->decided.states[i].capacity);
  }
  opi_text_puts(t, "\n  ],\n");
  if (!decisions)
    opi_text_printf(t, "  \"streams\": %u,\n", plan->predicted.n_streams);
}

static opipe_status read_name(const json_t *object, const char *member, opi_plan *plan,
                              const char **out_name, opipe_error *err) {
  const char *text = NULL;
  OPI_TRY(opi_json_get_string(object, WHAT, member, &text, err));
  *out_name = opi_arena_strdup(&plan->arena, text);
  return *out_name == NULL ? opi_fail_nomem(err, 0, "a plan") : OPIPE_OK;
}

opipe_status opi_json_read_states(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *list = NULL;
  uint64_t n_streams = 0;
  if (json_object_get(root, "states") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(root, WHAT, "states", &list, err));
  const size_t n = json_array_size(list);
  if (n == 0 || n > PAIRS_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "the plan has %zu states; it must have 1 to %d", n,
                    PAIRS_MOST);
  }
  plan->decided.states = OPI_ARENA_ARRAY(&plan->arena, opi_state_pair, n);
  if (plan->decided.states == NULL)
    return opi_fail_nomem(err, n * sizeof *plan->decided.states, "a plan");
  for (size_t i = 0; i < n; ++i) {
    const json_t *object = json_array_get(list, i);
    opi_state_pair *pair = &plan->decided.states[i];
    OPI_TRY(read_name(object, "output", plan, &pair->output, err));
    OPI_TRY(read_name(object, "input", plan, &pair->input, err));
    OPI_TRY(opi_json_get_u64(object, WHAT, "capacity", INT64_MAX, &pair->capacity, err));
  }
  OPI_TRY(opi_json_get_u64(root, WHAT, "streams", STREAMS_MOST, &n_streams, err));
  plan->decided.n_states = (uint32_t)n;
  plan->predicted.n_streams = (uint32_t)n_streams;
  return OPIPE_OK;
}
