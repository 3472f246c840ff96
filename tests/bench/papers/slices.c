/* SPDX-License-Identifier: Apache-2.0 */
/* Token slices of questions. */
#include <string.h>

#include "tests/bench/papers/engine.h"

/* The planner's question, but for its stages and rows. */
static opipe_status prepare(const json_t *question, const opi_cluster *cluster,
                            const opi_layers *layers, opi_planning *out_planning,
                            opi_machine *out_machine, opi_slice_question *out, opipe_error *err) {
  *out_planning = (opi_planning){
      .layers = layers, .cluster = cluster, .allocator = opi_allocator_system(), .batch = 1};
  *out = (opi_slice_question){.planning = out_planning, .machine = out_machine};
  OPI_TRY(papers_count(question, "width", 1, &out->width, err));
  OPI_TRY(papers_count(question, "microbatches", 1, &out->rows, err));
  OPI_TRY(papers_count(question, "together", 1, &out->together, err));
  OPI_TRY(papers_count(question, "unit", 8, &out->unit, err));
  if (layers->slices.n == 0 || out->width == 0)
    return opi_fail(err, OPIPE_E_INVALID, "slices of '%.80s', width %u", layers->name, out->width);
  return opi_planning_check("slices", out_planning, out_machine, err);
}

opipe_status papers_cut_tokens(const json_t *question, const opi_cluster *cluster,
                               const opi_layers *layers, const uint32_t *ends, uint32_t n_stages,
                               bool *out_any, opi_slicing *out_slicing, opipe_error *err) {
  const json_t *how = json_object_get(question, "slices");
  opi_planning planning;
  opi_machine machine;
  opi_slice_question ask;
  *out_any = how != NULL;
  if (how == NULL)
    return OPIPE_OK;
  OPI_TRY(prepare(question, cluster, layers, &planning, &machine, &ask, err));
  ask.ends = ends;
  ask.n_stages = n_stages;
  if (json_is_integer(how))
    OPI_TRY(papers_count(question, "slices", 0, &ask.n_even, err));
  return opi_terapipe_slices(&ask, out_slicing, err);
}

opipe_status papers_slice_times(const json_t *question, const opi_cluster *cluster,
                                const opi_layers *layers, const uint32_t *ends, uint32_t stage,
                                uint32_t samples, const uint32_t *lengths, uint32_t n,
                                double whole_ns, double *out, opipe_error *err) {
  opi_planning planning;
  opi_machine machine;
  opi_slice_question ask;
  uint32_t before = 0;
  OPI_TRY(prepare(question, cluster, layers, &planning, &machine, &ask, err));
  ask.ends = ends;
  for (uint32_t k = 0; k < n; ++k) {
    out[k] = opi_terapipe_compute_ns(&ask, stage, samples, lengths[k], before) / whole_ns;
    before += lengths[k];
  }
  return OPIPE_OK;
}

void papers_write_slicing(const opi_slicing *slicing, opi_text *text) {
  const opi_slice_group *first = &slicing->groups[0];
  opi_text_printf(text, "%u x %u rows x [", slicing->n_groups, first->rows);
  for (uint32_t k = 0; k < first->n_slices; ++k)
    opi_text_printf(text, "%s%u", k == 0 ? "" : ", ", first->lengths[k]);
  opi_text_puts(text, "]");
}

opipe_status papers_slices(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                           opipe_error *err) {
  static uint32_t ends[PAPERS_STAGES_MOST + 1];
  const uint32_t one = 1;
  uint32_t n_stages = 0;
  opi_layers *layers = NULL;
  opi_slicing slicing = {{0}};
  bool any = false;
  OPI_TRY(papers_count(question, "ranks", 1, &n_stages, err));
  OPI_TRY(papers_layers(question, cluster, &one, 1, &layers, err));
  opipe_status status = OPIPE_OK;
  if (layers->n_layers > PAPERS_STAGES_MOST || !opi_even_stages(layers, n_stages, ends)) {
    status =
        opi_fail(err, OPIPE_E_INVALID, "%u layers in %u even stages", layers->n_layers, n_stages);
  }
  if (status == OPIPE_OK)
    status = papers_cut_tokens(question, cluster, layers, ends, n_stages, &any, &slicing, err);
  if (status == OPIPE_OK && any) {
    opi_text_puts(answer, "{\"step_ms\": ");
    opi_json_double(answer, slicing.total * 1e-6);
    opi_text_puts(answer, ", \"slices\": \"");
    papers_write_slicing(&slicing, answer);
    opi_text_puts(answer, "\"}");
  } else if (status == OPIPE_OK) {
    status = opi_fail(err, OPIPE_E_INVALID, "'slices' is missing");
  }
  opi_slicing_free(&slicing);
  opi_layers_free(layers);
  return status;
}
