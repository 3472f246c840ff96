/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions of a plan of passes, and the predicted times of its passes. */
#include "partition/file/generation.h"

#include <inttypes.h>

static const char *const WHAT = "the plan's generation";

static void write_times(opi_text *t, const char *name, const double *ns, uint32_t n) {
  opi_text_printf(t, "\"%s\": [", name);
  for (uint32_t c = 0; c < n; ++c) {
    opi_text_puts(t, c == 0 ? "" : ", ");
    opi_json_double(t, ns[c]);
  }
  opi_text_puts(t, "], ");
}

static void write_one(opi_text *t, const char *name, double value) {
  opi_text_printf(t, ", \"%s\": ", name);
  opi_json_double(t, value);
}

static void write_played(opi_text *t, const opi_pass_played *p) {
  if (p->slice_rows == 0)
    return;
  opi_text_printf(t, ", \"slice_rows\": %u, \"slices\": %u", p->slice_rows, p->n_slices);
  write_one(t, "slice_ns", p->slice_ns);
  write_one(t, "prompt_ns", p->prompt_ns);
  write_one(t, "tokens_per_s", p->tokens_per_s);
  write_one(t, "idle", p->idle);
  if (p->replicas == 0)
    return;
  opi_text_printf(t, ", \"replicas\": %u, \"replica_bytes\": %" PRIu64, p->replicas,
                  p->replica_bytes);
  write_one(t, "replicas_tokens_per_s", p->replicas_tokens_per_s);
}

void opi_json_write_generation(opi_text *t, const opi_plan *plan, bool decisions) {
  const opi_generation *g = &plan->decided.binding.generation;
  const uint32_t n = opi_generation_classes(g);
  if (g->context == 0)
    return;
  opi_text_printf(t,
                  "  \"generation\": {\"context\": %u, \"page\": %u, \"pages\": %u, \"rows\": %u, "
                  "\"active\": %u, \"groups\": %u, \"draft\": %u, \"gap_passes\": ",
                  g->context, g->page, g->n_pages, g->rows, g->active, g->groups, g->draft);
  opi_json_double(t, g->gap);
  opi_text_puts(t, ", \"gap_ms\": ");
  opi_json_double(t, g->gap_ms);
  opi_text_puts(t, ", \"output\": ");
  opi_text_json(t, g->output);
  opi_text_puts(t, "},\n");
  if (decisions)
    return;
  opi_text_puts(t, "  \"passes\": {");
  write_times(t, "pass_ns", plan->predicted.pass_ns, n);
  write_times(t, "stage_ns", plan->predicted.stage_ns, n);
  opi_text_puts(t, "\"key_ns\": ");
  opi_json_double(t, plan->predicted.key_ns);
  if (plan->predicted.pages_rank != OPIPE_NONE)
    opi_text_printf(t, ", \"limits\": %u", plan->predicted.pages_rank);
  write_played(t, &plan->predicted.passes);
  opi_text_puts(t, "},\n");
}

static opipe_status read_number(const json_t *object, const char *name, uint32_t least,
                                uint32_t *out, opipe_error *err) {
  uint64_t n = 0;
  OPI_TRY(opi_json_get_u64(object, WHAT, name, INT32_MAX, &n, err));
  *out = (uint32_t)n;
  if (n >= least)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" is %" PRIu64 ", at least %u", WHAT, name, n,
                  least);
}

static opipe_status read_times(const json_t *object, const char *name, uint32_t n, double *out,
                               opipe_error *err) {
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(object, WHAT, name, &list, err));
  if (json_array_size(list) != n) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" has %zu times, there are %u classes of rows",
                    WHAT, name, json_array_size(list), n);
  }
  for (uint32_t c = 0; c < n; ++c) {
    out[c] = json_number_value(json_array_get(list, c));
    if (!json_is_number(json_array_get(list, c)) || out[c] < 0)
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must be times", WHAT, name);
  }
  return OPIPE_OK;
}

static opipe_status read_time(const json_t *object, const char *name, double *out,
                              opipe_error *err) {
  OPI_TRY(opi_json_get_number(object, WHAT, name, out, err));
  return *out >= 0 ? OPIPE_OK
                   : opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" is %g, below 0", WHAT, name, *out);
}

/* Files of before have no slices. */
static opipe_status read_played(const json_t *object, opi_pass_played *out, opipe_error *err) {
  *out = (opi_pass_played){.slice_rows = 0};
  if (json_object_get(object, "slice_rows") == NULL)
    return OPIPE_OK;
  OPI_TRY(read_number(object, "slice_rows", 1, &out->slice_rows, err));
  OPI_TRY(read_number(object, "slices", 1, &out->n_slices, err));
  OPI_TRY(read_time(object, "slice_ns", &out->slice_ns, err));
  OPI_TRY(read_time(object, "prompt_ns", &out->prompt_ns, err));
  OPI_TRY(read_time(object, "tokens_per_s", &out->tokens_per_s, err));
  OPI_TRY(read_time(object, "idle", &out->idle, err));
  if (json_object_get(object, "replicas") == NULL)
    return OPIPE_OK;
  OPI_TRY(read_number(object, "replicas", 1, &out->replicas, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "replica_bytes", INT64_MAX, &out->replica_bytes, err));
  return read_time(object, "replicas_tokens_per_s", &out->replicas_tokens_per_s, err);
}

static opipe_status read_passes(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *object = json_object_get(root, "passes");
  const uint32_t n = opi_generation_classes(&plan->decided.binding.generation);
  uint64_t rank = 0;
  plan->predicted.pages_rank = OPIPE_NONE;
  if (object == NULL)
    return OPIPE_OK;
  OPI_TRY(read_times(object, "pass_ns", n, plan->predicted.pass_ns, err));
  OPI_TRY(read_times(object, "stage_ns", n, plan->predicted.stage_ns, err));
  OPI_TRY(opi_json_get_number(object, WHAT, "key_ns", &plan->predicted.key_ns, err));
  OPI_TRY(read_played(object, &plan->predicted.passes, err));
  if (json_object_get(object, "limits") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_u64(object, WHAT, "limits", INT32_MAX, &rank, err));
  plan->predicted.pages_rank = (uint32_t)rank;
  return OPIPE_OK;
}

opipe_status opi_json_read_generation(const json_t *root, opi_plan *plan, opipe_error *err) {
  opi_generation *g = &plan->decided.binding.generation;
  const json_t *object = json_object_get(root, "generation");
  const char *output = NULL;
  if (object == NULL)
    return OPIPE_OK;
  OPI_TRY(read_number(object, "context", 2, &g->context, err));
  OPI_TRY(read_number(object, "page", 1, &g->page, err));
  OPI_TRY(read_number(object, "pages", 1, &g->n_pages, err));
  OPI_TRY(read_number(object, "rows", 1, &g->rows, err));
  OPI_TRY(read_number(object, "active", 1, &g->active, err));
  OPI_TRY(read_number(object, "groups", 1, &g->groups, err));
  OPI_TRY(read_number(object, "draft", 0, &g->draft, err));
  OPI_TRY(opi_json_get_number(object, WHAT, "gap_passes", &g->gap, err));
  OPI_TRY(opi_json_get_number(object, WHAT, "gap_ms", &g->gap_ms, err));
  OPI_TRY(opi_json_get_string(object, WHAT, "output", &output, err));
  g->output = opi_arena_strdup(&plan->arena, output);
  if (g->output == NULL)
    return opi_fail_nomem(err, 0, "a plan");
  return read_passes(root, plan, err);
}
