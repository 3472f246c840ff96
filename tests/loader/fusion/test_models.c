/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=240
 * Every attention, norm, activation and rotary embedding of every model that has one is recognised,
 * and the fused graph gives what the unfused one gives and what the model's data set says. The
 * numbers are those of the models' configurations (layers, attentions and norms of a layer, heads),
 * checked by eye against the files.
 */
#include <math.h>

#include "tests/loader/fusion/models.h"

typedef struct expected {
  const char *model; /* below shared/models */
  uint32_t layernorm, rmsnorm, gelu, silu, rotary, attention;
} expected;

static const expected published[] = {
    {"graphs/bert_toy", 12, 0, 6, 0, 0, 5}, /* 5 layers, embeddings, head; gelu also in the head */
    {"graphs/distilbert_seqcls", 5, 0, 2, 0, 0, 2},
    {"graphs/genai_tiny_gpt2_fp16", 11, 0, 5, 0, 0, 5},
    {"graphs/genai_tiny_gpt2_fp32", 11, 0, 5, 0, 0, 5},
    {"graphs/genai_tiny_qwen35_gqa_fp16", 5, 0, 0, 0, 0, 2},
    {"graphs/gpt2_attention_past_768", 0, 0, 0, 0, 0, 1},
    {"graphs/gpt2_megatron", 3, 0, 1, 0, 0,
     1}, /* its mask multiplies the scores: counted, not rewritten */
    {"graphs/gpt2_one_layer", 2, 0, 1, 0, 0, 1},
    {"graphs/gpt2_past_12layer", 25, 0, 12, 0, 0, 12},
    {"graphs/gpt2_past_mask_one_layer", 2, 0, 1, 0, 0, 1},
    {"graphs/gpt2_past_one_layer", 2, 0, 1, 0, 0, 1},
    {"graphs/llama_tiny_dynamo_dynamic", 0, 3, 0, 1, 2, 1},
    {"graphs/llama_tiny_dynamo_static", 0, 3, 0, 1, 2, 1},
    {"graphs/marabou_mnist_attention", 0, 0, 0, 0, 0,
     1}, /* keras einsums: softmax along the rows of K Q^T */
    {"graphs/tf_bert_qa_24layer", 49, 0, 24, 0, 0, 24},
    {"graphs/vespa_encoder_pt112", 4, 0, 0, 0, 0, 2},
    {"graphs/vespa_encoder_pt17", 4, 0, 0, 0, 0, 2},
    {"graphs/vespa_mlm_30522", 4, 0, 0, 0, 0, 2},
    {"graphs/vespa_seq2seq_decoder", 3, 0, 0, 0, 0, 2},
    {"graphs/vespa_seq2seq_encoder", 2, 0, 0, 0, 0, 1},
};

static const expected with_gradients[] = {
    {"gradients/bert", 6, 0, 3, 0, 0, 2},    {"gradients/clip_quickgelu", 5, 0, 2, 0, 0, 2},
    {"gradients/gpt2", 5, 0, 2, 0, 0, 2},    {"gradients/gpt2_ce_loss", 5, 0, 2, 0, 0, 2},
    {"gradients/gpt2_kv", 5, 0, 2, 0, 0, 2}, {"gradients/llama", 0, 5, 0, 2, 4, 2},
    {"gradients/t5", 0, 14, 0, 0, 0, 6},     {"gradients/torch_encoder", 4, 0, 2, 0, 0, 2},
    {"gradients/vit", 5, 0, 2, 0, 0, 2},     {"gradients/whisper_enc", 4, 0, 4, 0, 0, 2},
};

/* Per family: norms, activations and attentions do not depend on the exporter or on training. */
static const expected modern[] = {
    {"bert", 8, 0, 4, 0, 0, 3},
    {"bloom", 6, 0, 2, 0, 0, 2},
    {"distilbert", 6, 0, 3, 0, 0, 2},
    {"gemma2", 0, 9, 2, 0, 4, 2},
    {"gpt2", 7, 0, 3, 0, 0, 3},
    {"gptneox", 5, 0, 2, 0, 4, 2},
    {"llama", 0, 7, 0, 3, 6, 3},
    {"olmo2", 0, 9, 0, 2, 4, 2},
    {"opt", 5, 0, 0, 0, 0, 2},
    {"perceiver", 8, 0, 4, 0, 0, 4}, /* 10 in the file: two of constant latents are folded */
    {"phi3", 0, 5, 0, 2, 4, 2},
    {"qwen2", 0, 5, 0, 2, 4, 2},
    {"qwen2_moe", 0, 5, 0, 4, 4, 2},
    {"roberta", 6, 0, 3, 0, 0, 2},
    {"siglip", 11, 0, 5, 0, 0, 5},
    {"t5", 0, 12, 0, 0, 0, 6},
    {"t5v11", 0, 12, 4, 0, 0, 6},
    {"vit", 5, 0, 2, 0, 0, 2},
    {"whisper", 12, 0, 6, 0, 0, 6},
};

static const char *const variants[] = {"infer",
                                       "infer_bf16",
                                       "infer_external",
                                       "infer_f16",
                                       "infer_kv",
                                       "infer_legacy",
                                       "infer_op23",
                                       "infer_op24",
                                       "infer_op23_fused",
                                       "infer_op23_rope_batch1",
                                       "infer_zero_bias",
                                       "train",
                                       "train_default",
                                       "train_dropout",
                                       "train_eager",
                                       "train_legacy",
                                       "train_loss_in_graph",
                                       "train_op23",
                                       "train_op23_fused",
                                       "train_raw"};

static void check_counts(const expected *want, const char *model, const opi_bound *bound) {
  const uint32_t *has = bound->patterns;
  const uint32_t wanted[] = {want->layernorm, want->rmsnorm, want->gelu,
                             want->silu,      want->rotary,  want->attention};
  const uint32_t found[] = {has[OPI_PATTERN_LAYERNORM], has[OPI_PATTERN_RMSNORM],
                            has[OPI_PATTERN_GELU],      has[OPI_PATTERN_SILU],
                            has[OPI_PATTERN_ROTARY],    has[OPI_PATTERN_ATTENTION]};
  static const char *const names[] = {"LayerNorm", "RMSNorm", "GELU",
                                      "SiLU",      "rotary",  "attention"};
  for (size_t i = 0; i < OPI_COUNT(wanted); ++i) {
    if (found[i] != wanted[i])
      OPI_FAIL("%s: %u %s recognised, %u are there", model, found[i], names[i], wanted[i]);
  }
}

/* Relative to the largest element: fp32 1e-5, fp16 2e-3, bf16 2e-2 (and what rounding of the whole
 * file adds to the data set's). */
static double tolerance_of(const opi_graph *g) {
  double tolerance = 1e-5;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    if (g->values[v].dtype == OPIPE_BFLOAT16)
      return 2e-2;
    if (g->values[v].dtype == OPIPE_FLOAT16)
      tolerance = 2e-3;
  }
  return tolerance;
}

static void compare(const char *model, const char *against, const opi_graph *g, uint32_t o,
                    const void *found, const void *wanted, double tolerance) {
  const opi_value *v = &g->values[g->outputs[o]];
  const size_t size = opi_test_dtype_bytes(v->dtype), n = size != 0 ? v->n_bytes / size : 0;
  double worst = 0, largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const double a = opi_test_element(found, i, v->dtype),
                 b = opi_test_element(wanted, i, v->dtype);
    worst = isnan(a) && !isnan(b) ? INFINITY : fmax(worst, fabs(a - b));
    largest = fmax(largest, fabs(b));
  }
  if (!(worst <= tolerance * fmax(largest, 1e-3))) {
    OPI_FAIL("%s: output '%s' is %g away from %s, the largest element is %g", model, v->name, worst,
             against, largest);
  }
}

static void check_outputs(const test_model *m, const char *model, const opi_bound *fused,
                          const opi_bound *plain, const opi_evaluator *evaluator) {
  void *a[TEST_MAX_TENSORS], *b[TEST_MAX_TENSORS];
  const opi_graph *g = fused->graph;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  if (OPI_ASSERT_OK(test_run(m, fused, evaluator, &arena, a, &err), &err) &&
      OPI_ASSERT_OK(test_run(m, plain, evaluator, &arena, b, &err), &err)) {
    const double tolerance = tolerance_of(g);
    for (uint32_t o = 0; o < g->n_outputs; ++o) {
      const opi_value *v = &g->values[g->outputs[o]];
      compare(model, "the unfused graph", g, o, a[o], b[o], tolerance);
      if (o < m->n_outputs && m->outputs[o].n_bytes == v->n_bytes &&
          m->outputs[o].dtype == v->dtype)
        compare(model, "the data set", g, o, a[o], m->outputs[o].data, tolerance * 2);
    }
  }
  opi_arena_release(&arena);
}

static void check_model(const expected *want, const char *model, const char *folder,
                        const opi_evaluator *evaluator) {
  char path[1100];
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bound *fused = NULL, *plain = NULL;
  test_model m;
  (void)snprintf(path, sizeof(path), "%s/model.onnx", folder);
  if (OPI_ASSERT_OK(test_load(&m, path, &err) ? OPIPE_OK : OPIPE_E_INVALID, &err)) {
    const bool has_set = test_read_set(&m, folder, 0);
    if (OPI_ASSERT_OK(test_bind(&m, 0, evaluator, &fused, &err), &err) &&
        OPI_ASSERT_OK(test_bind(&m, OPI_BIND_NO_FUSE, evaluator, &plain, &err), &err)) {
      check_counts(want, model, fused);
      OPI_ASSERT_OK(opi_graph_verify(fused->graph, &err), &err);
      if (has_set)
        check_outputs(&m, model, fused, plain, evaluator);
    }
  }
  opi_bound_free(fused);
  opi_bound_free(plain);
  test_unload(&m);
}

static void check_list(const expected *list, size_t n) {
  const opi_evaluator *evaluator = test_backend_evaluator();
  if (evaluator == NULL)
    OPI_SKIP("the CPU backend is not built");
  for (size_t i = 0; i < n; ++i) {
    char relative[256];
    (void)snprintf(relative, sizeof(relative), "models/%s", list[i].model);
    const char *folder = opi_test_shared(relative);
    if (folder == NULL)
      OPI_SKIP("%s is not there", relative);
    check_model(&list[i], list[i].model, folder, evaluator);
  }
}

static void test_published_models(void) {
  check_list(published, OPI_COUNT(published));
}
static void test_models_with_gradients(void) {
  check_list(with_gradients, OPI_COUNT(with_gradients));
}

static void test_modern_exports(void) {
  const opi_evaluator *evaluator = test_backend_evaluator();
  const char *root = opi_test_shared("models/modern");
  uint32_t n = 0;
  if (evaluator == NULL || root == NULL)
    OPI_SKIP("the CPU backend or the models are not there");
  for (size_t i = 0; i < OPI_COUNT(modern); ++i) {
    for (size_t k = 0; k < OPI_COUNT(variants); ++k) {
      char folder[1024], path[1100];
      (void)snprintf(folder, sizeof(folder), "%s/%s/%s", root, modern[i].model, variants[k]);
      (void)snprintf(path, sizeof(path), "%s/model.onnx", folder);
      FILE *file = fopen(path, "rb");
      if (file == NULL)
        continue;
      (void)fclose(file);
      (void)snprintf(path, sizeof(path), "%s/%s", modern[i].model, variants[k]);
      check_model(&modern[i], path, folder, evaluator);
      ++n;
    }
  }
  OPI_ASSERT(n >= 60); /* all variants of all families */
}

OPI_TEST_MAIN("fusion of models", OPI_TEST(test_published_models),
              OPI_TEST(test_models_with_gradients), OPI_TEST(test_modern_exports))
