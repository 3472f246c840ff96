/* SPDX-License-Identifier: Apache-2.0 */
/* Plans from a file's sharding specs (IR 11). The file gives the width; operators' rules divide the
 * model, and every spec must say what they do. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "loader/graph/model.h"
#include "partition/make/tensor.h"

static opipe_status refuse(const opi_sharding *s, opipe_status status, const char *why,
                           opipe_error *err) {
  return opi_fail(err, status,
                  "sharding spec of '%.80s' at node '%.80s': %s; without the file's annotations "
                  "(--ignore-annotations) it is planned by a width alone",
                  s->tensor, s->node, why);
}

static opipe_status find_width(const opi_model *file, uint32_t *out_width, opipe_error *err) {
  const opi_sharding *first = NULL;
  char why[160];
  *out_width = 1;
  for (uint32_t i = 0; i < file->n_shardings; ++i) {
    const opi_sharding *s = &file->shardings[i];
    if (s->why != NULL)
      return refuse(s, OPIPE_E_UNSUPPORTED, s->why, err);
    if (s->n_shards == 1)
      continue;
    first = first == NULL ? s : first;
    if (s->n_shards == first->n_shards)
      continue;
    (void)snprintf(why, sizeof why,
                   "%u shards, '%.80s' has %u: all stages have groups of one width", s->n_shards,
                   first->tensor, first->n_shards);
    return refuse(s, OPIPE_E_UNSUPPORTED, why, err);
  }
  *out_width = first == NULL ? 1 : first->n_shards;
  return OPIPE_OK;
}

opipe_status opi_shardings_take(const opi_model *file, const opipe_plan_params **io_params,
                                opipe_plan_params *own, bool *out_checks, opipe_error *err) {
  const opipe_plan_params *asked = *io_params;
  uint32_t width = 1;
  if ((asked->flags & OPIPE_PLAN_IGNORE_ANNOTATIONS) != 0 || file->n_shardings == 0 ||
      asked->generation != NULL)
    return OPIPE_OK;
  OPI_TRY(find_width(file, &width, err));
  if (asked->tensor > 1 && asked->tensor != width) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "tensor groups of %u members; the file's sharding specs are of %u "
                    "(--ignore-annotations leaves them out)",
                    asked->tensor, width);
  }
  *out_checks = width > 1;
  *own = *asked;
  own->tensor = width;
  *io_params = own;
  return OPIPE_OK;
}

/* Looks at the rows of a parameter. Sets *out_found; why [n]: what differs, "" : nothing. */
static void compare(const opi_sharding *s, const opi_cut_model *model, bool *out_found, char *why,
                    size_t n) {
  const opi_cut *cut = model->cuts[0];
  const int64_t width = model->n_members;
  *out_found = false;
  for (uint32_t i = 0; i < cut->n_params && why[0] == '\0'; ++i) {
    const opi_param_part *part = cut->parts == NULL ? NULL : cut->parts[i];
    if (part == NULL || strcmp(part->whole.name, s->tensor) != 0)
      continue;
    *out_found = true;
    if ((part->axis >= 0) != (s->n_shards > 1)) {
      (void)snprintf(why, n, "operators' rules %s it",
                     part->axis >= 0 ? "divide" : "do not divide");
      continue;
    }
    if (part->axis < 0)
      continue;
    const int64_t rank = part->whole.rank, extent = part->whole.shape[part->axis];
    const int64_t axis = s->axis < 0 ? s->axis + rank : s->axis;
    if (axis != part->axis) {
      (void)snprintf(why, n, "axis %" PRId64 ", operators' rules divide it along axis %d", s->axis,
                     part->axis);
    } else if (s->extent != 0 && s->extent != extent) {
      (void)snprintf(why, n, "an axis of %" PRId64 ", the tensor has %" PRId64, s->extent, extent);
    } else if (part->flags != 0 || extent % width != 0 || part->n_runs != 1 ||
               part->runs[0].first != extent / width * part->member ||
               part->runs[0].n != extent / width) {
      (void)snprintf(why, n, "its parts are not equal, or not one run each");
    }
  }
}

/* Whether the tensor is one of the file's initializers. */
static bool is_stored(const opi_model *file, const char *name) {
  const opi_graph *g = file->graph;
  uint32_t v = 0;
  while (v < g->n_values && (g->values[v].name == NULL || strcmp(g->values[v].name, name) != 0))
    ++v;
  return v < g->n_values && g->values[v].producer == OPIPE_NONE &&
         opi_value_is_known(&g->values[v]);
}

opipe_status opi_shardings_check(const opi_model *file, const opi_cut_model *model,
                                 opipe_error *err) {
  for (uint32_t i = 0; i < file->n_shardings; ++i) {
    const opi_sharding *s = &file->shardings[i];
    char why[160] = "";
    bool found = false;
    compare(s, model, &found, why, sizeof why);
    if (why[0] != '\0')
      return refuse(s, OPIPE_E_INVALID, why, err);
    if (found || (s->n_shards == 1 && is_stored(file, s->tensor)))
      continue;
    return refuse(s, OPIPE_E_UNSUPPORTED,
                  is_stored(file, s->tensor) ? "operators' rules do not divide it"
                                             : "only parameters are divided by a file's word",
                  err);
  }
  return OPIPE_OK;
}
