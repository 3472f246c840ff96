/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120
 * Small files of exporters' spellings: which pattern fires in each, that nothing fires where it
 * must not, and that the fused graph gives what the unfused one gives. One-node files of
 * com.microsoft: what is invalid is refused by a message that names the culprit.
 */
#include <dirent.h>
#include <math.h>

#include "tests/loader/fusion/models.h"

typedef struct wanted {
  const char *file;
  uint32_t pattern; /* OPI_PATTERN_* that must be made by a fusion; NONE: no fusion of that file's
                       kind */
  uint32_t n;       /* how many */
} wanted;

/* Counted are nodes that a fusion made, so canonical nodes of the file itself do not count. */
static const wanted patterns[] = {
    {"layer_norm", OPI_PATTERN_LAYERNORM, 1},
    {"layer_norm_fusion_scale_bias", OPI_PATTERN_LAYERNORM, 1},
    {"layer_norm_shared_input", OPI_PATTERN_LAYERNORM, 2},
    {"layer_norm_sub_dup", OPI_PATTERN_LAYERNORM, 1},
    {"layer_norm_t5", OPI_PATTERN_RMSNORM, 1},
    {"layer_norm_with_cast", OPI_PATTERN_LAYERNORM, 1},
    {"layer_norm_with_cast_2", OPI_PATTERN_LAYERNORM, 1},
    {"layer_norm_with_cast_3", OPI_PATTERN_LAYERNORM, 1},
    {"layer_norm_with_cast_4", OPI_PATTERN_LAYERNORM, 1},
    {"simplified_layer_norm_with_casts", OPI_PATTERN_RMSNORM, 1},
    {"skip_layer_norm", OPI_PATTERN_LAYERNORM, 0}, /* subtracts the mean of another tensor */
    {"gelu", OPI_PATTERN_GELU, 1},
    {"gelu_format2_0", OPI_PATTERN_GELU, 1},
    {"gelu_format2_1", OPI_PATTERN_GELU, 1},
    {"gelu_format2_1_use_graph_input", OPI_PATTERN_GELU, 1},
    {"gelu_format2_0_with_bias_use_graph_output", OPI_PATTERN_GELU,
     0}, /* a value inside is an output */
    {"gelu_opset20", OPI_PATTERN_GELU, 1},
    {"bias_gelu_fusion", OPI_PATTERN_GELU, 1},
    {"bias_gelu_fusion_format_2", OPI_PATTERN_GELU, 1},
    {"fast_gelu", OPI_PATTERN_GELU, 1},
    {"fast_gelu2", OPI_PATTERN_GELU, 1},
    {"fast_gelu2_use_graph_input", OPI_PATTERN_GELU, 1},
    {"fast_gelu2_with_bias", OPI_PATTERN_GELU, 1},
    {"fast_gelu2_with_bias_use_graph_input", OPI_PATTERN_GELU, 1},
    {"fast_gelu3_with_casts", OPI_PATTERN_GELU, 1},
    {"fast_gelu_use_graph_input", OPI_PATTERN_GELU, 1},
    {"fast_gelu_with_bias", OPI_PATTERN_GELU, 1},
    {"fast_gelu_with_bias_use_graph_input", OPI_PATTERN_GELU, 1},
    {"attention_int32_mask", OPI_PATTERN_ATTENTION, 1},
    {"attention_mask_no_cast", OPI_PATTERN_ATTENTION, 1},
    {"attention_past_no_unidir", OPI_PATTERN_ATTENTION, 1},
    {"attention_past_unidir", OPI_PATTERN_ATTENTION, 1},
    {"attention_symbolic_batch", OPI_PATTERN_ATTENTION, 1},
    {"gpt2_one_layer", OPI_PATTERN_ATTENTION, 1},
    {"gpt2_past_one_layer", OPI_PATTERN_ATTENTION, 1},
    {"gpt2_past_mask_one_layer", OPI_PATTERN_ATTENTION, 1},
    {"bias_softmax_fusion_simple", OPI_PATTERN_ATTENTION, 0},
    {"matmul_scale_double", OPI_PATTERN_MATMUL, 1},
    {"matmul_scale_in0", OPI_PATTERN_MATMUL, 1},
    {"matmul_scale_in0_in1", OPI_PATTERN_MATMUL, 1},
    {"matmul_scale_in0_in1_out", OPI_PATTERN_MATMUL, 1},
    {"matmul_scale_transposescalematmul_in0_in1_out", OPI_PATTERN_MATMUL, 1},
    {"matmul_scale_int32", OPI_PATTERN_MATMUL, 0},
    {"matmul_scale_unfusable_div_not_scale", OPI_PATTERN_MATMUL, 0},
    {"matmul_scale_unfusable_scale_broadcasting_changes_shape", OPI_PATTERN_MATMUL, 0},
    {"matmul_scale_unfusable_scale_not_constant", OPI_PATTERN_MATMUL, 0},
    {"matmul_scale_unfusable_scale_not_scalar", OPI_PATTERN_MATMUL, 0},
    {"transpose_matmul_4d_fusion", OPI_PATTERN_MATMUL, 1},
    {"transpose_matmul_4d_fusion_2_transpose", OPI_PATTERN_MATMUL, 1},
    {"transpose_matmul_4d_fusion_3_transpose", OPI_PATTERN_MATMUL, 1},
    {"transpose_matmul_4d_fusion_invalid_datatype_int32", OPI_PATTERN_MATMUL, 0},
    {"transpose_matmul_4d_fusion_invalid_datatype_int64", OPI_PATTERN_MATMUL, 0},
    {"transpose_matmul_4d_fusion_invalid_default_perm", OPI_PATTERN_MATMUL, 0},
    {"transpose_matmul_4d_fusion_invalid_perm", OPI_PATTERN_MATMUL, 0},
    {"bias_dropout_residual_fusion_mismatch", OPI_PATTERN_NONE, 0},
    {"reshape_fusion_with_slice1", OPI_PATTERN_NONE, 0},
    {"not_where", OPI_PATTERN_NONE, 0},
};

static double tolerance_of(const opi_graph *g) {
  for (uint32_t v = 0; v < g->n_values; ++v) {
    if (g->values[v].dtype == OPIPE_BFLOAT16)
      return 2e-2;
    if (g->values[v].dtype == OPIPE_FLOAT16)
      return 5e-3; /* the unfused one rounds the mean */
  }
  return 1e-5;
}

static bool close_to(const opi_value *v, const void *a, const void *b, double tolerance) {
  const size_t size = opi_test_dtype_bytes(v->dtype), n = size != 0 ? v->n_bytes / size : 0;
  double worst = 0, largest = 1e-3;
  for (size_t i = 0; i < n; ++i) {
    const double x = opi_test_element(a, i, v->dtype), y = opi_test_element(b, i, v->dtype);
    if (isnan(x) && isnan(y))
      continue;
    worst = isnan(x) != isnan(y) ? INFINITY : x == y ? worst : fmax(worst, fabs(x - y));
    largest = fmax(largest, fabs(y));
  }
  return worst <= tolerance * largest;
}

static uint32_t made(const opi_graph *g, uint32_t pattern) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->n_nodes; ++i) {
    const uint32_t has = g->nodes[i].pattern;
    n += pattern == OPI_PATTERN_NONE ? has != OPI_PATTERN_NONE : has == pattern;
  }
  return n;
}

static void compare_runs(const test_model *m, const char *file, const opi_bound *fused,
                         const opi_bound *plain, const opi_evaluator *evaluator) {
  void *a[TEST_MAX_TENSORS], *b[TEST_MAX_TENSORS];
  const opi_graph *g = fused->graph;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  if (OPI_ASSERT_OK(test_run(m, fused, evaluator, &arena, a, &err), &err) &&
      OPI_ASSERT_OK(test_run(m, plain, evaluator, &arena, b, &err), &err)) {
    for (uint32_t o = 0; o < g->n_outputs; ++o) {
      const opi_value *v = &g->values[g->outputs[o]];
      if (!close_to(v, a[o], b[o], tolerance_of(g)))
        OPI_FAIL("%s: output '%s' differs from the unfused one", file, v->name);
    }
  }
  opi_arena_release(&arena);
}

static void check_file(const wanted *want, const char *path, const opi_evaluator *evaluator) {
  opi_bound *fused = NULL, *plain = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  test_model m;
  if (OPI_ASSERT_OK(test_load(&m, path, &err) ? OPIPE_OK : OPIPE_E_INVALID, &err) &&
      OPI_ASSERT_OK(test_bind(&m, 0, evaluator, &fused, &err), &err) &&
      OPI_ASSERT_OK(test_bind(&m, OPI_BIND_NO_FUSE, evaluator, &plain, &err), &err)) {
    const uint32_t n = made(fused->graph, want->pattern);
    if (n != want->n)
      OPI_FAIL("%s: the pattern fired %u times, not %u", want->file, n, want->n);
    OPI_ASSERT_OK(opi_graph_verify(fused->graph, &err), &err);
    compare_runs(&m, want->file, fused, plain, evaluator);
  }
  opi_bound_free(fused);
  opi_bound_free(plain);
  test_unload(&m);
}

static void test_spellings(void) {
  const opi_evaluator *evaluator = test_backend_evaluator();
  const char *root = opi_test_shared("models/fusion_patterns");
  if (evaluator == NULL || root == NULL)
    OPI_SKIP("the CPU backend or the files are not there");
  for (size_t i = 0; i < OPI_COUNT(patterns); ++i) {
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s.onnx", root, patterns[i].file);
    check_file(&patterns[i], path, evaluator);
  }
}

/* Valid by the operators' texts, and run by ONNX Runtime 1.31: an input of rank 1, one of rank 4.
 */
static bool is_valid_after_all(const char *file) {
  return strcmp(file, "layer_norm_invalid_shape_error_test.onnx") == 0 ||
         strcmp(file, "simplified_layer_normalization_invalid_input_test.onnx") == 0;
}

/* The message must say where: the node, and an input, an attribute or the count that is wrong. */
static bool names_culprit(const char *message) {
  static const char *const marks[] = {"input", "attribute", "operator", "axis", "outputs", "reads"};
  bool found = false;
  for (size_t i = 0; i < OPI_COUNT(marks); ++i)
    found = found || strstr(message, marks[i]) != NULL;
  return found && strstr(message, "node '") != NULL;
}

static void check_contrib(const char *root, const char *file, const opi_evaluator *evaluator,
                          uint32_t *io_invalid) {
  const bool invalid = strstr(file, "invalid") != NULL && !is_valid_after_all(file);
  char path[1200];
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  test_model m;
  (void)snprintf(path, sizeof(path), "%s/%s", root, file);
  opipe_status status = test_load(&m, path, &err) ? OPIPE_OK : OPIPE_E_INVALID;
  if (status >= 0)
    status = test_bind(&m, 0, evaluator, &bound, &err);
  *io_invalid += invalid;
  if (invalid && status >= 0)
    OPI_FAIL("%s is taken", file);
  if (status < 0 && !names_culprit(err.message))
    OPI_FAIL("%s: '%s' does not say what is wrong", file, err.message);
  if (status < 0 && status != OPIPE_E_INVALID && status != OPIPE_E_UNSUPPORTED)
    OPI_FAIL("%s: status %d", file, status);
  opi_bound_free(bound);
  test_unload(&m);
}

static void test_contrib_files(void) {
  const opi_evaluator *evaluator = test_backend_evaluator();
  const char *root = opi_test_shared("models/contrib_single_ops");
  uint32_t n = 0, n_invalid = 0;
  if (evaluator == NULL || root == NULL)
    OPI_SKIP("the CPU backend or the files are not there");
  DIR *folder = opendir(root);
  OPI_ASSERT_FATAL(folder != NULL);
  for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    const size_t length = strlen(entry->d_name);
    if (length < 5 || strcmp(entry->d_name + length - 5, ".onnx") != 0)
      continue;
    check_contrib(root, entry->d_name, evaluator, &n_invalid);
    ++n;
  }
  (void)closedir(folder);
  OPI_ASSERT(n >= 250);
  OPI_ASSERT(n_invalid >= 70);
}

OPI_TEST_MAIN("fusion of files", OPI_TEST(test_spellings), OPI_TEST(test_contrib_files))
