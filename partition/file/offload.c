/* SPDX-License-Identifier: Apache-2.0 */
/* See offload.h. */
#include "partition/file/offload.h"

static const char WHAT[] = "the plan";
static const double RATE_MOST = 1e18; /* bytes per nanosecond */

/* The rates belong to the devices, and like their caps are no decision. */
void opi_json_write_offload(opi_text *t, const opi_decision *plan, bool decisions) {
  if (plan->n_offload == 0)
    return;
  opi_text_puts(t, "  \"offload\": {\n    \"tensors\": [");
  for (uint32_t i = 0; i < plan->n_offload; ++i) {
    opi_text_puts(t, i == 0 ? "" : ", ");
    opi_text_json(t, plan->offload[i]);
  }
  opi_text_puts(t, "]");
  for (uint32_t r = 0; !decisions && r < plan->n_ranks; ++r) {
    opi_text_puts(t, r == 0 ? ",\n    \"bytes_per_ns\": [" : ", ");
    opi_json_double(t, plan->devices[r].host_bytes_per_ns);
  }
  opi_text_puts(t, decisions ? "\n  },\n" : "]\n  },\n");
}

static opipe_status read_rates(const json_t *object, opi_decision *plan, opipe_error *err) {
  const json_t *rates = json_object_get(object, "bytes_per_ns");
  if (rates != NULL && (!json_is_array(rates) || json_array_size(rates) != plan->n_ranks)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: \"offload\" needs as many \"bytes_per_ns\" as ranks, %u", WHAT,
                    plan->n_ranks);
  }
  for (uint32_t r = 0; rates != NULL && r < plan->n_ranks; ++r) {
    const json_t *rate = json_array_get(rates, r);
    const double value = json_number_value(rate);
    if (!json_is_number(rate) || !(value >= 0 && value <= RATE_MOST)) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "%s: \"bytes_per_ns\" of rank %u must be a number from 0 to %g", WHAT, r,
                      RATE_MOST);
    }
    plan->devices[r].host_bytes_per_ns = value;
  }
  return OPIPE_OK;
}

opipe_status opi_json_read_offload(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *object = json_object_get(root, "offload");
  const json_t *tensors = json_object_get(object, "tensors");
  opi_decision *decided = &plan->decided;
  if (object == NULL)
    return OPIPE_OK;
  const size_t n = json_array_size(tensors);
  if (!json_is_object(object) || n == 0 || n > UINT32_MAX) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: \"offload\" must be an object with a list of one or more \"tensors\"",
                    WHAT);
  }
  decided->offload = OPI_ARENA_ARRAY(&plan->arena, const char *, n);
  if (decided->offload == NULL)
    return opi_fail_nomem(err, n * sizeof *decided->offload, "a plan");
  for (size_t i = 0; i < n; ++i) {
    const json_t *name = json_array_get(tensors, i);
    if (!json_is_string(name))
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"tensors\" of \"offload\" must be names", WHAT);
    decided->offload[i] = opi_arena_strdup(&plan->arena, json_string_value(name));
    if (decided->offload[i] == NULL)
      return opi_fail_nomem(err, json_string_length(name), "a plan");
  }
  decided->n_offload = (uint32_t)n;
  return read_rates(object, decided, err);
}
