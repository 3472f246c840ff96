/* SPDX-License-Identifier: Apache-2.0 */
/* SGD: the loss and every parameter's gradient, joined from the members of tensor groups, are those
 * of the models' references, in the measure ||a - b|| <= 1e-4 max(||b||, 0.2 RMS sqrt(n)). ctest:
 * timeout=120 */
#include <math.h>
#include <stdio.h>

#include "tests/runtime/train/kit.h"

static double norm(const float *x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i)
    sum += (double)x[i] * (double)x[i];
  return sqrt(sum);
}

/* RMS over all elements of all gradients of the file that the session trains. */
static double rms(opi_weights *w, const kit_tensors *tensors) {
  opi_weight_info info;
  double sum = 0;
  size_t all = 0;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    size_t n = 0;
    const float *g = kit_tensors_find(tensors, info.source->name, &n);
    if (g == NULL)
      continue;
    sum += norm(g, n) * norm(g, n);
    all += n;
  }
  return all == 0 ? 0 : sqrt(sum / (double)all);
}

static void compare(kit *k, opi_session *session, const kit_tensors *tensors) {
  opi_weights *w = opi_train_weights(session);
  opi_weight_info info;
  const double whole = rms(w, tensors);
  uint32_t n_found = 0;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    size_t n = 0;
    const float *wanted = kit_tensors_find(tensors, info.source->name, &n);
    if (info.trained == 0 || wanted == NULL)
      continue;
    ++n_found;
    float *found = OPI_ARENA_ARRAY(&k->arena, float, n);
    OPI_ASSERT_OK(
        opi_weights_get(w, info.source->name, OPI_TENSOR_GRADIENT, 0, found, n * 4, &k->err),
        &k->err);
    const double b = norm(wanted, n), floor = 0.2 * whole * sqrt((double)n);
    for (size_t e = 0; e < n; ++e)
      found[e] -= wanted[e];
    const double far = norm(found, n), limit = 1e-4 * (b > floor ? b : floor);
    if (!(far <= limit))
      OPI_FAIL("%s: %g apart, %g allowed (norm %g)", info.source->name, far, limit, b);
  }
  OPI_ASSERT(n_found > 10);
}

typedef struct model_case {
  const char *name, *schedule;
  uint32_t n_stages, n_microbatches, tensor;
  bool sequence;
} model_case;

static void check_model(const model_case *of) {
  const char *name = of->name;
  char path[200];
  kit k;
  kit_batch batch = {.n_inputs = 0};
  kit_tensors tensors;
  opi_session *session = NULL;
  double loss = 0;
  (void)snprintf(path, sizeof path, "models/modern/%s", name);
  const char *folder = opi_test_shared(path);
  if (folder == NULL)
    return;
  (void)snprintf(path, sizeof path, "%s/grads.safetensors", folder);
  OPI_ASSERT_FATAL(kit_tensors_open(&tensors, path));
  (void)snprintf(path, sizeof path, "%s/model.onnx", folder);
  char pb[256];
  (void)snprintf(pb, sizeof pb, "%s/labels.pb", folder);
  const kit_case c = {
      .schedule = of->schedule,
      .n_stages = of->n_stages,
      .n_microbatches = of->n_microbatches,
      .tensor = of->tensor,
      .sequence = of->sequence,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = {.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.1}}};
  kit_batch labels = {.n_inputs = 0};
  memset(&k, 0, sizeof k);
  opi_arena_init(&k.arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(kit_batch_pb(&k, &labels, pb, "labels"), &k.err);
  const int64_t rows = labels.shapes[0][0], tokens = labels.shapes[0][1];
  opi_arena_release(&k.arena);
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, rows, tokens), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_pb(&k, &batch, pb, "labels"), &k.err);
  for (uint32_t i = 0; i < k.model->graph->n_inputs; ++i) {
    (void)snprintf(pb, sizeof pb, "%s/test_data_set_0/input_%u.pb", folder, i);
    const opi_graph *g = k.model->graph;
    OPI_ASSERT_OK_FATAL(kit_batch_pb(&k, &batch, pb, g->values[g->inputs[i]].name), &k.err);
  }
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, OPIPE_SESSION_KEEP_GRADIENTS, &session), &k.err);
  OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss), &k.err);
  (void)snprintf(pb, sizeof pb, "%s/meta.json", folder);
  const double wanted = kit_json_number(pb, "loss");
  if (wanted != 0 && !(fabs(loss - wanted) <= 1e-5 * fabs(wanted)))
    OPI_FAIL("%s: loss %.9g, the reference has %.9g", name, loss, wanted);
  compare(&k, session, &tensors);
  opi_session_close(session);
  kit_tensors_close(&tensors);
  kit_close(&k);
}

static void test_one_rank(void) {
  check_model(&(model_case){"gpt2/train", "gpipe", 1, 1});
}
static void test_stages(void) {
  check_model(&(model_case){"gpt2/train", "gpipe", 3, 2});
  check_model(&(model_case){"gpt2/train", "1f1b", 2, 2});
}
static void test_tensor_groups(void) {
  static const model_case cases[] = {
      {"gpt2/train", "1f1b", 2, 2, 2},  {"llama/train", "seq1f1b:slices=2", 2, 1, 2},
      {"phi3/train", "zb-h1", 2, 2, 3}, {"olmo2/train", "gpipe", 1, 1, 2, true},
      {"t5/train", "gpipe", 2, 1, 2},   {"qwen2_moe/train", "gpipe", 1, 1, 2}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i)
    check_model(&cases[i]);
}

OPI_TEST_MAIN("training gradients", OPI_TEST(test_one_rank), OPI_TEST(test_stages),
              OPI_TEST(test_tensor_groups))
