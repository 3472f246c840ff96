/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120
 * Any tensor of a model may be a cut: made a barrier, it must be there in the fused graph, and the
 * outputs stay what they were. Swept over every tensor of three models. Nodes of different stage
 * annotations are never joined.
 */
#include <math.h>

#include "tests/loader/fusion/models.h"

typedef struct sweep {
  test_model m;
  const opi_evaluator *evaluator;
  opi_bound *plain;
  opi_arena arena;
  void *wanted[TEST_MAX_TENSORS];
} sweep;

static opipe_status bind_cut(const sweep *s, const char *name, opi_bound **out_bound,
                             opipe_error *err) {
  opi_input_shape shapes[TEST_MAX_TENSORS];
  for (uint32_t i = 0; i < s->m.n_inputs; ++i) {
    shapes[i] =
        (opi_input_shape){s->m.inputs[i].name, s->m.inputs[i].shape, (uint32_t)s->m.inputs[i].rank};
  }
  const opi_bind_options options = {.shapes = shapes,
                                    .n_shapes = s->m.n_inputs,
                                    .barriers = &name,
                                    .n_barriers = 1,
                                    .flags = OPI_BIND_DEFAULTS,
                                    .evaluator = s->evaluator,
                                    .allocator = opi_allocator_system()};
  return opi_bind(s->m.model, &options, out_bound, err);
}

static bool same_outputs(const sweep *s, const opi_bound *bound, opipe_error *err) {
  void *found[TEST_MAX_TENSORS];
  const opi_graph *g = bound->graph;
  opi_arena arena;
  bool same = true;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  same = test_run(&s->m, bound, s->evaluator, &arena, found, err) >= 0;
  for (uint32_t o = 0; same && o < g->n_outputs; ++o) {
    const opi_value *v = &g->values[g->outputs[o]];
    const float *a = found[o], *b = s->wanted[o];
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < v->n_bytes / 4 && v->dtype == OPIPE_FLOAT; ++i) {
      worst = isnan(a[i]) ? INFINITY : fmax(worst, fabs((double)a[i] - (double)b[i]));
      largest = fmax(largest, fabs((double)b[i]));
    }
    same = worst <= 1e-5 * largest;
  }
  opi_arena_release(&arena);
  return same;
}

static void check_cut(const sweep *s, const char *model, const char *name) {
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (bind_cut(s, name, &bound, &err) < 0) {
    OPI_FAIL("%s cut at '%s': %s", model, name, err.message);
    return;
  }
  const uint32_t v = opi_bound_value(bound, name);
  if (v == OPIPE_NONE || (bound->graph->values[v].flags & OPI_VALUE_BARRIER) == 0)
    OPI_FAIL("%s: the barrier '%s' was swallowed", model, name);
  if (opi_graph_verify(bound->graph, &err) < 0)
    OPI_FAIL("%s cut at '%s': %s", model, name, err.message);
  if (!same_outputs(s, bound, &err))
    OPI_FAIL("%s cut at '%s': other outputs", model, name);
  opi_bound_free(bound);
}

/* Cuts the model at every tensor that its unfused graph computes; returns how many. */
static uint32_t sweep_model(const char *model) {
  char path[1024];
  opipe_error err = OPIPE_ERROR_INIT;
  sweep s = {.evaluator = test_backend_evaluator()};
  const char *folder = opi_test_source(model);
  uint32_t n = 0;
  (void)snprintf(path, sizeof(path), "%s/model.onnx", folder);
  opi_arena_init(&s.arena, opi_allocator_system(), 0);
  if (OPI_ASSERT_OK(test_load(&s.m, path, &err) ? OPIPE_OK : OPIPE_E_INVALID, &err) &&
      test_read_set(&s.m, folder, 0) &&
      OPI_ASSERT_OK(test_bind(&s.m, OPI_BIND_NO_FUSE, s.evaluator, &s.plain, &err), &err) &&
      OPI_ASSERT_OK(test_run(&s.m, s.plain, s.evaluator, &s.arena, s.wanted, &err), &err)) {
    const opi_graph *g = s.plain->graph;
    for (uint32_t v = 0; v < g->n_values; ++v) {
      if (g->values[v].producer == OPIPE_NONE || g->values[v].source == OPIPE_NONE)
        continue;
      check_cut(&s, model, g->values[v].name);
      ++n;
    }
  }
  opi_bound_free(s.plain);
  opi_arena_release(&s.arena);
  test_unload(&s.m);
  return n;
}

static void test_no_cut_is_swallowed(void) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  OPI_ASSERT(sweep_model("tests/data/encoder_decoder") > 80);
  OPI_ASSERT(sweep_model("tests/data/llama_external") > 60);
  OPI_ASSERT(sweep_model("tests/data/gpt_past") > 40);
}

/* Stage annotations through the middle of every group: nothing may be joined across them. */
static void test_stages_are_not_joined(void) {
  const opi_evaluator *evaluator = test_backend_evaluator();
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bound *bound = NULL;
  test_model m;
  char path[1024];
  if (evaluator == NULL)
    OPI_SKIP("the CPU backend is not built");
  (void)snprintf(path, sizeof(path), "%s/model.onnx", opi_test_source("tests/data/gpt_legacy"));
  if (!OPI_ASSERT_OK(test_load(&m, path, &err) ? OPIPE_OK : OPIPE_E_INVALID, &err))
    return;
  for (uint32_t n = 0; n < m.model->graph->n_nodes; ++n)
    m.model->graph->nodes[n].stage = (int32_t)(n % 2);
  if (OPI_ASSERT_OK(test_bind(&m, 0, evaluator, &bound, &err), &err)) {
    OPI_ASSERT_INT(bound->patterns[OPI_PATTERN_ATTENTION], 0);
    OPI_ASSERT_INT(bound->patterns[OPI_PATTERN_GELU], 0);
    for (uint32_t n = 0; n < bound->graph->n_nodes; ++n)
      OPI_ASSERT(bound->graph->nodes[n].stage >= 0);
  }
  opi_bound_free(bound);
  test_unload(&m);
}

OPI_TEST_MAIN("fusion barriers", OPI_TEST(test_no_cut_is_swallowed),
              OPI_TEST(test_stages_are_not_joined))
