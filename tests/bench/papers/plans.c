/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to planners. */
#include <stdlib.h>
#include <string.h>

#include "partition/study/planners/dapple.h"
#include "tests/bench/papers/engine.h"

opipe_status papers_planning(const json_t *question, const opi_cluster *cluster, opi_planning *out,
                             opipe_error *err) {
  uint32_t batch = 0, samples = 0, devices = 0;
  OPI_TRY(papers_count(question, "batch", 1, &batch, err));
  OPI_TRY(papers_count(question, "samples", 0, &samples, err));
  OPI_TRY(papers_count(question, "devices", 0, &devices, err));
  *out = (opi_planning){.cluster = cluster,
                        .allocator = opi_allocator_system(),
                        .n_devices = devices,
                        .batch = batch,
                        .samples = samples};
  return papers_number(question, "state", 0, &out->state_bytes, err);
}

/* ---- evaluate ---- */

/* "0-5,8-13" */
static opipe_status read_devices(const char *text, const opi_cluster *cluster, uint32_t *devices,
                                 uint32_t *out_n, opipe_error *err) {
  uint32_t n = 0;
  for (const char *at = text; *at != '\0';) {
    char *stop = NULL;
    const unsigned long a = strtoul(at, &stop, 10);
    const unsigned long b = *stop == '-' ? strtoul(stop + 1, &stop, 10) : a;
    if (b < a || b >= cluster->n_devices || n + (b - a) >= cluster->n_devices ||
        (*stop != ',' && *stop != '\0'))
      return opi_fail(err, OPIPE_E_INVALID, "devices '%s' of %u", text, cluster->n_devices);
    for (unsigned long d = a; d <= b; ++d)
      devices[n++] = (uint32_t)d;
    at = *stop == ',' ? stop + 1 : stop;
  }
  *out_n = n;
  return OPIPE_OK;
}

opipe_status papers_stages(const json_t *list, const opi_cluster *cluster, const opi_layers *layers,
                           opi_strategy *s, opipe_error *err) {
  for (uint32_t k = 0; k < s->n_stages; ++k) {
    const json_t *entry = json_array_get(list, k);
    const json_int_t first = json_integer_value(json_array_get(entry, 0));
    const json_int_t end = json_integer_value(json_array_get(entry, 1));
    const char *text = json_string_value(json_array_get(entry, 2));
    uint32_t *devices = OPI_ARENA_ARRAY(&s->arena, uint32_t, cluster->n_devices);
    if (text == NULL || first < 0 || end <= first || end > layers->n_layers)
      return opi_fail(err, OPIPE_E_INVALID, "'stages': entry %u of %u layers", k, layers->n_layers);
    if (devices == NULL)
      return opi_fail_nomem(err, cluster->n_devices * sizeof *devices, "stages");
    s->stages[k] =
        (opi_strategy_stage){.first = (uint32_t)first, .end = (uint32_t)end, .devices = devices};
    OPI_TRY(read_devices(text, cluster, devices, &s->stages[k].n_devices, err));
  }
  return OPIPE_OK;
}

static opipe_status evaluate(opi_planning *q, opi_strategy *s, opi_text *answer, opipe_error *err) {
  opi_machine machine;
  opi_dapple_pipe pipe = {0};
  const size_t n = 2 * (size_t)s->n_stages;
  OPI_TRY(opi_planning_check("evaluate", q, &machine, err));
  double *numbers = OPI_ARENA_ARRAY(&s->arena, double, 5 * n);
  if (numbers == NULL)
    return opi_fail_nomem(err, n * sizeof *numbers, "a pipeline");
  pipe.forward_ns = numbers;
  pipe.backward_ns = numbers + n;
  pipe.sum_ns = numbers + 2 * n;
  opi_dapple_fill(q, &machine, s, &pipe);
  const opi_layer all = opi_layers_sum(q->layers, 0, q->layers->n_layers, q->samples);
  const double one = (all.forward_ns + opi_layer_backward_ns(&all)) * pipe.n_microbatches;
  const double ns = opi_dapple_play_ns(&pipe, numbers + 3 * n);
  opi_text_puts(answer, "{\"step_ms\": ");
  opi_json_double(answer, ns * 1e-6);
  opi_text_puts(answer, ", \"speedup\": ");
  opi_json_double(answer, ns > 0 ? one / ns : 0);
  opi_text_puts(answer, "}");
  return OPIPE_OK;
}

opipe_status papers_evaluate(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                             opipe_error *err) {
  const json_t *list = json_object_get(question, "stages");
  const uint32_t one = 1;
  opi_planning q;
  opi_layers *layers = NULL;
  opi_strategy *s = NULL;
  OPI_TRY(papers_planning(question, cluster, &q, err));
  if (json_array_size(list) == 0 || json_array_size(list) > PAPERS_STAGES_MOST)
    return opi_fail(err, OPIPE_E_INVALID, "'stages': %zu entries", json_array_size(list));
  OPI_TRY(papers_layers(question, cluster, &one, 1, &layers, err));
  q.layers = layers;
  opipe_status status =
      opi_strategy_new("given", (uint32_t)json_array_size(list), q.allocator, &s, err);
  if (status == OPIPE_OK)
    status = papers_stages(list, cluster, layers, s, err);
  if (status == OPIPE_OK)
    status = evaluate(&q, s, answer, err);
  opi_strategy_free(s);
  opi_layers_free(layers);
  return status;
}

/* ---- plan ---- */

opipe_status papers_plan(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                         opipe_error *err) {
  const char *name = papers_text(question, "planner", "");
  const opi_planner_fn planner = opi_planner_find(name);
  opi_planning q;
  opi_layers *layers = NULL;
  opi_strategy *found = NULL;
  if (planner == NULL) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "no planner '%s'; there are %s", name,
                    opi_planner_names());
  }
  OPI_TRY(papers_planning(question, cluster, &q, err));
  const uint32_t samples = q.samples == 0 ? 1 : q.samples;
  OPI_TRY(papers_layers(question, cluster, &samples, 1, &layers, err));
  q.layers = layers;
  const opipe_status status = planner(&q, &found, err);
  if (status == OPIPE_OK)
    opi_strategy_write(found, answer);
  opi_strategy_free(found);
  opi_layers_free(layers);
  return status;
}
