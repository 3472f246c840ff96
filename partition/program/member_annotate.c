/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a tensor group's parameters as sharding specs of IR 11, which know equal parts along
 * an axis only: no unequal ones, no segments (q|k|v), none that several members share. */
#include <inttypes.h>
#include <string.h>

#include "loader/graph/model.h"
#include "partition/program/model.h"

enum { NAMED = 3 };

typedef struct annotating {
  const opi_cut *cut;
  const opi_graph *file;
  uint32_t width;
  opi_annotated_part *parts;
  uint32_t n_parts, n_left;
  const char *left[NAMED];
} annotating;

/* The initializer of that name, type and shape. */
static bool is_in_file(const annotating *a, const opipe_param_source *whole) {
  for (uint32_t v = 0; v < a->file->n_values; ++v) {
    const opi_value *value = &a->file->values[v];
    if (value->name == NULL || strcmp(value->name, whole->name) != 0)
      continue;
    return value->producer == OPIPE_NONE && value->dtype == whole->dtype &&
           value->rank == (int32_t)whole->rank &&
           memcmp(value->shape, whole->shape, whole->rank * sizeof *whole->shape) == 0;
  }
  return false;
}

/* Whether row i is what IR 11 says of its member's part. */
static bool is_plain(const annotating *a, uint32_t i) {
  const opi_param_part *part = a->cut->parts[i];
  const int64_t extent = part->whole.shape[part->axis], each = extent / a->width;
  return part->flags == 0 && extent % a->width == 0 && part->n_runs == 1 &&
         part->runs[0].first == (int64_t)part->member * each && part->runs[0].n == each;
}

/* A parameter has a row for each member; the first one stands for all. */
static void add_param(annotating *a, uint32_t first) {
  const opi_param_part *part = a->cut->parts[first];
  bool plain = is_in_file(a, &part->whole);
  for (uint32_t i = 0; i < a->cut->n_params && plain; ++i) {
    const opi_param_part *other = a->cut->parts[i];
    if (other != NULL && other->axis >= 0 && strcmp(other->whole.name, part->whole.name) == 0)
      plain = other->axis == part->axis && is_plain(a, i);
  }
  if (plain) {
    a->parts[a->n_parts++] =
        (opi_annotated_part){part->whole.name, part->axis, part->whole.shape[part->axis]};
    return;
  }
  if (a->n_left < NAMED)
    a->left[a->n_left] = part->whole.name;
  ++a->n_left;
}

static void tell_left(const annotating *a, const opi_logger *logger) {
  if (a->n_left == 0)
    return;
  opi_log(logger, OPIPE_LOG_WARN,
          "IR 11 cannot say how %u of %u divided parameters are (unequal parts, segments, shared "
          "heads): '%.80s'%s%.80s%s%s%.80s%s; the plan's file does",
          a->n_left, a->n_left + a->n_parts, a->left[0], a->n_left > 1 ? ", '" : "",
          a->n_left > 1 ? a->left[1] : "", a->n_left > 1 ? "'" : "", a->n_left > 2 ? ", '" : "",
          a->n_left > 2 ? a->left[2] : "",
          a->n_left > 3   ? "' and others"
          : a->n_left > 2 ? "'"
                          : "");
}

/* Names outlive the model. */
static opipe_status keep(const annotating *a, const opi_decision *plan, opi_arena *arena,
                         const opi_annotated_shards **out_shards, opipe_error *err) {
  opi_annotated_shards *out = OPI_ARENA_NEW(arena, opi_annotated_shards);
  uint32_t *first = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_stages);
  if (out == NULL || first == NULL)
    return opi_fail_nomem(err, plan->n_stages * sizeof *first, "annotations");
  for (uint32_t i = 0; i < a->n_parts; ++i) {
    a->parts[i].name = opi_arena_strdup(arena, a->parts[i].name);
    if (a->parts[i].name == NULL)
      return opi_fail_nomem(err, 1, "annotations");
  }
  for (uint32_t s = 0; s < plan->n_stages; ++s)
    first[s] = plan->instance_rank[s * plan->n_replicas];
  *out = (opi_annotated_shards){
      .parts = a->parts, .first_device = first, .n_parts = a->n_parts, .width = a->width};
  *out_shards = out;
  return OPIPE_OK;
}

opipe_status opi_shards_annotated(const opi_decision *plan, const opi_cut_model *model,
                                  const opi_model *file, const opi_logger *logger, opi_arena *arena,
                                  const opi_annotated_shards **out_shards, opipe_error *err) {
  annotating a = {.cut = model->cuts[0], .file = file->graph, .width = model->n_members};
  const uint32_t n = a.cut->n_params;
  a.parts = OPI_ARENA_ARRAY(arena, opi_annotated_part, (size_t)n + 1);
  if (a.parts == NULL)
    return opi_fail_nomem(err, n * sizeof *a.parts, "annotations");
  for (uint32_t i = 0; i < n; ++i) {
    const opi_param_part *part = a.cut->parts[i];
    if (part != NULL && part->axis >= 0 && part->member == 0)
      add_param(&a, i);
  }
  tell_left(&a, logger);
  return keep(&a, plan, arena, out_shards, err);
}
