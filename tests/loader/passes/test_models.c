/* SPDX-License-Identifier: Apache-2.0 */
/* Real models, bound to the shapes of their first data set: output types and shapes are the data
 * set's, nothing that shapes alone decide is left, the batch axis is carried. The same models bind
 * with defaults. Read from the folder `shared` beside the project and from tests/data.
 *
 * ctest: timeout=300
 */
#include <dirent.h>
#include <sys/stat.h>

#include "tests/loader/backend_evaluator.h"

enum { MOST_INPUTS = 64 };

typedef struct data_set {
  opi_arena arena;
  opi_input_shape shapes[MOST_INPUTS];
  uint32_t n;
} data_set;

static bool read_tensor(data_set *set, const char *folder, const char *kind, uint32_t i,
                        opi_value *out) {
  char path[4096];
  size_t n = 0;
  struct stat info;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)snprintf(path, sizeof(path), "%s/test_data_set_0/%s_%u.pb", folder, kind, i);
  if (stat(path, &info) != 0)
    return false;
  char *bytes = opi_test_read_file(path, &n);
  if (bytes == NULL)
    return false;
  void *own = opi_arena_copy(&set->arena, bytes, n);
  free(bytes);
  if (own == NULL || opi_tensor_parse(own, n, &set->arena, out, &err) < 0) {
    OPI_FAIL("%s: %s", path, err.message);
    return false;
  }
  return true;
}

static void read_inputs(data_set *set, const opi_model *model, const char *folder) {
  const opi_graph *graph = model->graph;
  for (uint32_t i = 0; i < graph->n_inputs && i < MOST_INPUTS; ++i) {
    opi_value tensor;
    if (!read_tensor(set, folder, "input", i, &tensor))
      continue;
    set->shapes[set->n++] = (opi_input_shape){graph->values[graph->inputs[i]].name, tensor.shape,
                                              (uint32_t)tensor.rank};
  }
}

static void check_outputs(data_set *set, const opi_graph *graph, const char *folder) {
  char found[128], wanted[128];
  for (uint32_t o = 0; o < graph->n_outputs; ++o) {
    opi_value tensor;
    const opi_value *v = &graph->values[graph->outputs[o]];
    if (!read_tensor(set, folder, "output", o, &tensor))
      continue;
    bool same = v->rank == tensor.rank && v->dtype == tensor.dtype;
    for (int32_t d = 0; same && d < v->rank; ++d)
      same = v->shape[d] == tensor.shape[d];
    (void)opi_test_check(
        same, __FILE__, __LINE__, false, "%s: output '%s' is %s %s, not %s %s", folder, v->name,
        opi_dtype_name(v->dtype), opi_shape_text(found, sizeof(found), v->shape, (uint32_t)v->rank),
        opi_dtype_name(tensor.dtype),
        opi_shape_text(wanted, sizeof(wanted), tensor.shape, (uint32_t)tensor.rank));
  }
}

/* Every node reads something that is not known, and none only asks for shapes. */
static void check_folded(const opi_graph *graph, const char *folder) {
  static const char *const gone[] = {"Shape",     "Size",    "Constant", "ConstantOfShape",
                                     "Squeeze",   "Flatten", "Range",    "CastLike",
                                     "Unsqueeze", "If",      "Loop",     "SequenceAt"};
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool reads = false, exact = true;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] == OPIPE_NONE)
        continue;
      reads = reads || graph->values[node->in[i]].data == NULL;
      exact = exact && !opi_dtype_is_float(graph->values[node->in[i]].dtype);
    }
    const bool copied = strcmp(node->op, "Identity") == 0; /* a constant output */
    (void)opi_test_check(reads || copied || !exact, __FILE__, __LINE__, false,
                         "%s: node '%s' (%s) reads constants alone", folder, node->name, node->op);
    for (size_t k = 0; k < OPI_COUNT(gone); ++k)
      OPI_ASSERT(strcmp(node->op, gone[k]) != 0);
  }
}

static opi_model *load(const char *folder) {
  char path[4096];
  opi_model *model = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)snprintf(path, sizeof(path), "%s/model.onnx", folder);
  const opi_load_params params = {
      .path = path, .flags = OPI_LOAD_GRAPH_ONLY, .allocator = opi_allocator_system()};
  OPI_ASSERT_OK(opi_model_load(&params, &model, &err), &err);
  return model;
}

static void bind_model(const char *folder, uint32_t flags) {
  data_set set = {.n = 0};
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = load(folder);
  if (model == NULL)
    return;
  opi_arena_init(&set.arena, opi_allocator_system(), 0);
  const opi_bind_options options = {.flags = flags,
                                    .allocator = opi_allocator_system(),
                                    .evaluator = test_backend_evaluator(),
                                    .shapes = set.shapes,
                                    .n_shapes = 0};
  opi_bind_options given = options;
  if (!(flags & OPI_BIND_DEFAULTS)) {
    read_inputs(&set, model, folder);
    given.n_shapes = set.n;
    if (set.n == 0)
      given.flags |= OPI_BIND_DEFAULTS; /* a folder without data */
  }
  const opipe_status status = opi_bind(model, &given, &bound, &err);
  (void)opi_test_check(status >= 0, __FILE__, __LINE__, false, "%s: %s", folder,
                       status < 0 ? err.message : "");
  if (status >= 0) {
    if (given.n_shapes != 0)
      check_outputs(&set, bound->graph, folder);
    if (!(flags & OPI_BIND_KEEP_PARAMETERS))
      check_folded(bound->graph, folder);
  }
  opi_bound_free(bound);
  opi_model_free(model);
  opi_arena_release(&set.arena);
}

/* Calls bind_model for each folder below `root` that holds a model.onnx, `depth` levels down. */
static uint32_t for_each_model(const char *root, int depth, uint32_t flags) {
  char path[4096];
  struct stat info;
  uint32_t n = 0;
  (void)snprintf(path, sizeof(path), "%s/model.onnx", root);
  if (stat(path, &info) == 0) {
    bind_model(root, flags);
    return 1;
  }
  DIR *folder = depth > 0 ? opendir(root) : NULL;
  for (struct dirent *e = NULL; folder != NULL && (e = readdir(folder)) != NULL;) {
    if (e->d_name[0] == '.')
      continue;
    (void)snprintf(path, sizeof(path), "%s/%s", root, e->d_name);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
      n += for_each_model(path, depth - 1, flags);
  }
  if (folder != NULL)
    (void)closedir(folder);
  return n;
}

static void all_below(const char *relative, uint32_t least, uint32_t flags) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  const char *root = opi_test_shared(relative);
  if (root == NULL)
    return;
  const uint32_t n = for_each_model(root, 2, flags);
  OPI_ASSERT(n >= least);
}

/* The names of free dimensions that took 1 are the batch: bound again with `batch`. */
static opi_bound *bind_batch(const opi_model *model, const opi_bound *first, int64_t batch) {
  opi_dim_binding dims[MOST_INPUTS];
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t d = 0; d < first->n_dims && d < MOST_INPUTS; ++d) {
    dims[d] = first->dims[d];
    if (dims[d].value == 1)
      dims[d].value = batch;
  }
  const opi_bind_options options = {.allocator = opi_allocator_system(),
                                    .evaluator = test_backend_evaluator(),
                                    .dims = dims,
                                    .n_dims = first->n_dims};
  OPI_ASSERT_OK(opi_bind(model, &options, &bound, &err), &err);
  return bound;
}

static void hold_batch(const opi_graph *graph, int64_t batch, opi_carry *held) {
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *v = &graph->values[graph->inputs[i]];
    held[i] = (opi_carry){v->rank > 0 && v->shape[0] == batch ? 0 : -1, 0, 1, 1};
  }
}

/* The batch goes through; a batch of one takes the same way; no constant reads its length. */
static void check_batch(const char *folder, const opi_model *model, const opi_bound *one) {
  opi_bound *four = bind_batch(model, one, 4);
  opipe_error err = OPIPE_ERROR_INIT;
  if (four == NULL)
    return;
  opi_carry held[MOST_INPUTS];
  opi_carry *whole = calloc(four->graph->n_values, sizeof(*whole));
  opi_carry *part = calloc(one->graph->n_values, sizeof(*part));
  hold_batch(four->graph, 4, held);
  const opipe_status carried = opi_carry_axis(four->graph, NULL, held, whole, &err);
  (void)opi_test_check(carried >= 0, __FILE__, __LINE__, false, "%s: %s", folder,
                       carried < 0 ? err.message : "");
  OPI_ASSERT_OK(opi_carry_axis(one->graph, NULL, held, part, &err), &err);
  OPI_ASSERT_OK(opi_carry_compare(four->graph, one->graph, NULL, NULL, NULL, &err), &err);
  for (uint32_t o = 0; carried >= 0 && o < four->graph->n_outputs; ++o) {
    OPI_ASSERT_INT(part[one->graph->outputs[o]].axis, whole[four->graph->outputs[o]].axis);
    OPI_ASSERT(whole[four->graph->outputs[o]].axis >= 0);
  }
  free(whole);
  free(part);
  opi_bound_free(four);
}

static void test_batch_is_carried(void) {
  static const char *const folders[] = {
      "bert/infer",       "bert/infer_legacy", "bloom/infer",    "gemma2/infer", "gpt2/infer_kv",
      "gpt2/train_raw",   "gptneox/infer",     "llama/infer_kv", "olmo2/infer",  "opt/infer",
      "perceiver/infer",  "qwen2_moe/infer",   "t5/infer",       "vit/infer",    "whisper/infer",
      "llama/infer",      "gpt2/infer_legacy", "phi3/infer",     "qwen2/infer",  "roberta/infer",
      "distilbert/infer", "llama/infer_legacy"};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  for (size_t i = 0; i < OPI_COUNT(folders); ++i) {
    char relative[256];
    opi_bound *one = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    (void)snprintf(relative, sizeof(relative), "models/modern/%s", folders[i]);
    const char *folder = opi_test_shared(relative);
    opi_model *model = folder != NULL ? load(folder) : NULL;
    if (model == NULL)
      return;
    const opi_bind_options options = {.flags = OPI_BIND_DEFAULTS,
                                      .allocator = opi_allocator_system(),
                                      .evaluator = test_backend_evaluator()};
    OPI_ASSERT_OK_FATAL(opi_bind(model, &options, &one, &err), &err);
    check_batch(folder, model, one);
    opi_bound_free(one);
    opi_model_free(model);
  }
}

static void test_graphs(void) {
  all_below("models/graphs", 21, OPI_BIND_NO_FUSE);
}
static void test_gradients(void) {
  all_below("models/gradients", 10, OPI_BIND_NO_FUSE);
}
static void test_modern(void) {
  all_below("models/modern", 60, OPI_BIND_NO_FUSE);
}
static void test_graphs_by_defaults(void) {
  all_below("models/graphs", 21, OPI_BIND_NO_FUSE | OPI_BIND_DEFAULTS);
}
static void test_gradients_by_defaults(void) {
  all_below("models/gradients", 10, OPI_BIND_NO_FUSE | OPI_BIND_DEFAULTS);
}
static void test_modern_by_defaults(void) {
  all_below("models/modern", 60, OPI_BIND_NO_FUSE | OPI_BIND_DEFAULTS);
}
static void test_gradients_with_parameters_kept(void) {
  all_below("models/gradients", 10, OPI_BIND_NO_FUSE | OPI_BIND_KEEP_PARAMETERS);
}
static void test_own_models(void) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  OPI_ASSERT(for_each_model(opi_test_source("tests/data"), 1, OPI_BIND_NO_FUSE) >= 10);
}

/* Three quarters of this file compute shapes: 3,069 nodes as the file counts them. */
static void test_gpt2_past_shrinks(void) {
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  const char *folder = opi_test_shared("models/graphs/gpt2_past_12layer");
  if (folder == NULL)
    return;
  opi_model *model = load(folder);
  OPI_ASSERT_FATAL(model != NULL);
  const opi_bind_options options = {.flags = OPI_BIND_NO_FUSE | OPI_BIND_DEFAULTS,
                                    .allocator = opi_allocator_system(),
                                    .evaluator = test_backend_evaluator()};
  OPI_ASSERT_OK_FATAL(opi_bind(model, &options, &bound, &err), &err);
  const opi_graph *g = bound->graph;
  OPI_ASSERT_INT(bound->n_file_nodes, 3069);
  OPI_ASSERT(g->n_nodes < 800);
  for (uint32_t n = 0; n < g->n_nodes; ++n) { /* the nodes left compute with floats */
    const uint32_t out = g->nodes[n].out[0];
    OPI_ASSERT(opi_dtype_is_float(g->values[out].dtype));
  }
  opi_carry *carry = malloc(g->n_values * sizeof(*carry)), held[MOST_INPUTS];
  for (uint32_t i = 0; i < g->n_inputs; ++i) /* ids [batch, seq], past [2, batch, ...] */
    held[i] = (opi_carry){g->values[g->inputs[i]].rank == 5, 0, 1, 1};
  OPI_ASSERT_OK(opi_carry_axis(g, NULL, held, carry, &err), &err);
  OPI_ASSERT_INT(carry[g->outputs[0]].axis, 0);
  OPI_ASSERT_INT(carry[g->outputs[1]].axis, 1); /* present [2, batch, ...] */
  free(carry);
  opi_bound_free(bound);
  opi_model_free(model);
}

OPI_TEST_MAIN("models", OPI_TEST(test_graphs), OPI_TEST(test_gradients), OPI_TEST(test_modern),
              OPI_TEST(test_graphs_by_defaults), OPI_TEST(test_gradients_by_defaults),
              OPI_TEST(test_modern_by_defaults), OPI_TEST(test_gradients_with_parameters_kept),
              OPI_TEST(test_batch_is_carried), OPI_TEST(test_own_models),
              OPI_TEST(test_gpt2_past_shrinks))
