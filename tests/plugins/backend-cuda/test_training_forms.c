/* SPDX-License-Identifier: Apache-2.0 */
/* The fused forms that must occur in models: as many as fused.txt says, forward and backward. Plans
 * are made on the doubles, and what the backend compiles for them is looked into.
 * ctest: timeout=120 always
 */
#include "plugins/backend-cuda/program.h"
#include "tests/plugins/backend-cuda/training.h"

enum { PASSES = 2, FOUND_ROOM = 1 << 16 };

typedef enum form {
  PRODUCT_ROW,       /* product -> Add of a row */
  PRODUCT_ADDEND,    /* product -> Add of a value of its shape */
  PRODUCT_GELU,      /* product -> Gelu (tanh) */
  PRODUCT_GELU_GRAD, /* product -> its derivative */
  FEW_ROWS,          /* product by the kernel for few rows */
  ACCUMULATED,       /* added straight into its accumulator */
  BIAS_GRADIENT,     /* a bias' gradient, along with the weight's */
  PARTS,             /* Q, K, V and their gradients in what they are parts of */
  NARROW_LOSS,       /* scores of a half type, and their gradient, as the loss has them */
  SUM_AND_NORM,      /* Add -> norm */
  NORM_GRAD_SUM,     /* norm's gradient -> Add */
  NORM_GRAD_SCALE,   /* norm's gradient, and its scale's */
  NORM_GRAD_COLUMNS, /* and that of a bias in front, which no product makes along */
  GATE,              /* activation -> Mul */
  GATE_GRAD,         /* Mul -> an activation's gradient */
  FORMS
} form;
static const char *const names[FORMS] = {"product_row",       "product_addend", "product_gelu",
                                         "product_gelu_grad", "few_rows",       "accumulated",
                                         "bias_gradient",     "parts",          "narrow_loss",
                                         "sum_and_norm",      "norm_grad_sum",  "norm_grad_scale",
                                         "norm_grad_columns", "gate",           "gate_grad"};

typedef struct counts {
  uint32_t of[FORMS][PASSES];
} counts;

/* A table between the core and the backend. */
static struct {
  ct_backend cuda;
  opipe_backend table;
  counts found;
  bool seen[PASSES]; /* the first one counts: a step's, behind which an evaluation's is compiled */
} look;

static void count_node(const opipe_program *p, uint32_t i, uint32_t *of) {
  const cuda_tail *tail = p->matched.tails[i];
  const opipe_node *node = &p->graph->nodes[i];
  const bool of_norm = tail != NULL && strncmp(node->domain, "opipe", 5) == 0;
  of[PRODUCT_ROW] += tail != NULL && tail->row != OPIPE_NONE;
  of[PRODUCT_ADDEND] += tail != NULL && !of_norm && tail->addend != OPIPE_NONE;
  of[PRODUCT_GELU] += tail != NULL && tail->through == CUDA_THROUGH_GELU;
  of[PRODUCT_GELU_GRAD] += tail != NULL && tail->through == CUDA_THROUGH_DGELU;
  of[NORM_GRAD_SUM] += of_norm;
  of[NORM_GRAD_SCALE] += p->matched.scales[i] != OPIPE_NONE;
  of[NORM_GRAD_COLUMNS] += p->matched.columns[i] != OPIPE_NONE;
  of[BIAS_GRADIENT] += p->matched.besides[i] != NULL;
  if (p->matched.fronts[i] == OPIPE_NONE)
    return;
  of[GATE] += strcmp(node->op, "Mul") == 0;
  of[GATE_GRAD] += strcmp(node->op, "ActivationGrad") == 0;
  of[SUM_AND_NORM] += strstr(node->op, "Normalization") != NULL;
}

static void count_forms(const opipe_program *p) {
  const opipe_graph *graph = p->graph;
  uint32_t of[FORMS] = {0};
  bool backward = false;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    count_node(p, i, of);
    backward = backward || graph->nodes[i].pass != OPIPE_PASS_FORWARD;
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    of[ACCUMULATED] += p->matched.adds_to[v] != OPIPE_NONE;
    of[PARTS] += p->matched.parts[v].whole != OPIPE_NONE;
    of[NARROW_LOSS] += p->matched.narrow != NULL && p->matched.narrow[v] != OPIPE_NONE;
  }
  for (const cuda_step *step = p->steps; step != NULL; step = step->next) {
    of[FEW_ROWS] += step->kind == CUDA_STEP_LAUNCH &&
                    (strncmp(step->launch.kernel, "opipe_few_columns", 17) == 0 ||
                     strncmp(step->launch.kernel, "opipe_few_turned", 16) == 0);
  }
  for (uint32_t f = 0; f < FORMS && !look.seen[backward]; ++f)
    look.found.of[f][backward] = of[f];
  look.seen[backward] = true;
}

/* Nodes by themselves, whose costs are asked for, are of no interest. */
static opipe_status compile(opipe_device *device, const opipe_compile_params *params,
                            opipe_program **out_program, opipe_error *error) {
  const opipe_status status = look.cuda.base.table->compile(device, params, out_program, error);
  if (status >= 0 && (*out_program)->graph->n_nodes > 1)
    count_forms(*out_program);
  return status;
}

static opi_plugins plugins; /* the core's */

static opipe_status find_backend(void *ctx, const char *id, opi_backend_ref *out_ref,
                                 opipe_error *error) {
  if (strcmp(id, "cuda") != 0)
    return plugins.backend(ctx, id, out_ref, error);
  *out_ref = (opi_backend_ref){&look.table, look.cuda.base.self, "cuda"};
  return OPIPE_OK;
}

static const char *first_output(const kit *k) {
  const opi_graph *g = k->bound->graph;
  for (uint32_t i = 0; i < g->n_outputs; ++i) {
    if (g->values[g->outputs[i]].dtype == OPIPE_FLOAT)
      return g->values[g->outputs[i]].name;
  }
  return NULL;
}

static opipe_status plan_inference(kit *k) {
  const opi_bind_options bind = {.dims = k->dims,
                                 .n_dims = k->n_dims,
                                 .evaluator = k->evaluator,
                                 .allocator = opi_allocator_system()};
  const opi_plan_env env = {.allocator = opi_allocator_system(),
                            .plugins = &k->plugins,
                            .model = k->model,
                            .bind = &bind,
                            .now_ns = NULL};
  const opipe_device_choice device = {.kind = "cuda", .threads = 1};
  const opipe_plan_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_plan_params, transport),
      .n_stages = 1,
      .devices = &device,
      .n_devices = 1,
      .devices_stride = sizeof device,
      .n_microbatches = 1};
  return opi_plan_make(&env, &params, &k->plan, &k->err);
}

typedef struct mode {
  const char *name;
  uint32_t compute; /* 0 of inference, else the type that training computes in */
  int64_t batch, tokens;
  const char *options;
  uint32_t first, last; /* forms that are looked for */
} mode;
static const mode modes[] = {
    {"infer", 0, 2, 8, NULL, 0, FORMS - 1},
    {"fp32", OPIPE_FLOAT, 2, 8, "bias_gradients=1", 0, FORMS - 1},
    {"bf16", OPIPE_BFLOAT16, 2, 8, "bias_gradients=1", 0, FORMS - 1},
    {"apart", OPIPE_BFLOAT16, 2, 8, "bias_gradients=0", NORM_GRAD_COLUMNS, NORM_GRAD_COLUMNS},
    {"decode", 0, 1, 1, NULL, 0, FORMS - 1}};
enum { MODES = sizeof modes / sizeof modes[0], DECODE = MODES - 1 };

static void look_at(const char *name, const char *path, const mode *how, char *text,
                    size_t *n_text) {
  kit k;
  memset(&look.found, 0, sizeof look.found);
  memset(look.seen, 0, sizeof look.seen);
  opipe_status status = kit_open(&k, path, how->batch, how->tokens);
  plugins = k.plugins;
  k.plugins.backend = find_backend;
  if (status >= 0 && how->compute == 0)
    status = plan_inference(&k);
  kit_case c = kit_case_of("gpipe", 1, 1, false);
  c.device = "cuda";
  c.device_options = how->options;
  c.spec.compute = how->compute;
  c.spec.loss.kind = OPI_LOSS_CROSS_ENTROPY;
  c.spec.loss.output = first_output(&k);
  c.spec.loss.labels = "labels";
  if (status >= 0 && how->compute != 0)
    status = kit_plan(&k, &c);
  OPI_ASSERT_OK(status, &k.err);
  kit_close(&k);
  for (uint32_t f = how->first; f <= how->last; ++f) {
    const uint32_t *of = look.found.of[f];
    if (of[0] + of[1] > 0) {
      *n_text +=
          (size_t)snprintf(text + *n_text, FOUND_ROOM - *n_text, "%-18s %-16s %-6s %4u %4u\n",
                           names[f], name, how->name, of[0], of[1]);
    }
  }
}

static void look_at_model(const char *name, const char *path, char *text, size_t *n_text) {
  for (int i = 0; i < DECODE; ++i)
    look_at(name, path, &modes[i], text, n_text);
}

static bool open_cuda(void) {
  memset(&look, 0, sizeof look);
  if (!ct_open(&look.cuda))
    return false;
  look.table = *look.cuda.base.table;
  look.table.compile = compile;
  return true;
}

/* The lines of fused.txt of a model of `models`, in their order. */
static void expect_lines(const char *const *models, size_t n, const char *found) {
  static char wanted[FOUND_ROOM];
  char line[160], model[64];
  size_t at = 0;
  FILE *file = fopen(opi_test_source("tests/plugins/backend-cuda/fused.txt"), "r");
  OPI_ASSERT_FATAL(file != NULL);
  while (fgets(line, sizeof line, file) != NULL) {
    for (size_t i = 0; line[0] != '#' && sscanf(line, "%*s %63s", model) == 1 && i < n; ++i) {
      if (strcmp(model, models[i]) == 0)
        at += (size_t)snprintf(wanted + at, sizeof wanted - at, "%s", line);
    }
  }
  (void)fclose(file);
  wanted[at] = '\0';
  if (strcmp(wanted, found) != 0)
    printf("\nfused.txt has\n%sfound were\n%s", wanted, found);
  OPI_ASSERT(strcmp(wanted, found) == 0);
}

static char found[FOUND_ROOM];

static void test_forms_of_own_models(void) {
  static const char *const models[] = {"gpt_raw", "llama_attention"};
  char path[256];
  size_t n = 0;
  if (!open_cuda())
    OPI_SKIP("%s", CT_WHY);
  for (size_t i = 0; i < sizeof models / sizeof models[0]; ++i) {
    (void)snprintf(path, sizeof path, "tests/data/%s/model.onnx", models[i]);
    const char *where = opi_test_source(path);
    look_at_model(models[i], where, found, &n);
    look_at(models[i], where, &modes[DECODE], found, &n);
  }
  expect_lines(models, sizeof models / sizeof models[0], found);
  bt_close(&look.cuda.base);
}

static void test_forms_of_modern_models(void) {
  static const char *const models[] = {"gpt2",  "llama",  "qwen2",   "phi3",
                                       "olmo2", "gemma2", "gptneox", "bert"};
  char path[256];
  size_t n = 0;
  bool all = open_cuda();
  if (!all)
    OPI_SKIP("%s", CT_WHY);
  for (size_t i = 0; all && i < sizeof models / sizeof models[0]; ++i) {
    (void)snprintf(path, sizeof path, "models/modern/%s/train/model.onnx", models[i]);
    const char *where = opi_test_shared(path); /* skips where it is not there */
    all = where != NULL;
    if (all)
      look_at_model(models[i], where, found, &n);
  }
  if (all)
    expect_lines(models, sizeof models / sizeof models[0], found);
  bt_close(&look.cuda.base);
}

OPI_TEST_MAIN("fused forms on doubles of CUDA", OPI_TEST(test_forms_of_own_models),
              OPI_TEST(test_forms_of_modern_models))
