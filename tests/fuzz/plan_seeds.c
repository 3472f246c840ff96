/* SPDX-License-Identifier: Apache-2.0 */
/* Models of tests/data, and plans that the library makes for them and writes; see plans.h. */
#include <inttypes.h>

#include "tests/fuzz/plans.h"
#include "tests/support/support.h"

extern const opipe_plugin *const opi_static_plugins[];

enum { LLAMA, ENCODER, VISION, PAST, PINNED, DROPOUT };

static const char *const names[PLAN_MODELS] = {
    "llama_attention", "encoder", "vision", "gpt_past", "odd/if_input", "odd/dropout_tokens"};

enum { ROWS = 4, TOKENS = 4 };

/* Zero: the library's choice. n_microbatches 0: 1. */
typedef struct recipe {
  uint32_t model;
  const char *schedule; /* NULL: for inference, gpipe */
  uint32_t n_ranks, n_stages, n_microbatches;
  uint32_t trains; /* 1: SGD; 2: AdamW and more of what training plans hold */
  uint32_t replicas[2];
  uint32_t recompute;
  uint32_t bind; /* OPIPE_BIND_* */
  uint32_t depth;
  uint64_t memory_bytes;
  const char *transport, *device_options;
  bool cut; /* at the tensors that the plan before crosses stages with */
} recipe;

static const recipe recipes[] = {
    {LLAMA, NULL, 0, 1, 0},
    {LLAMA, NULL, 0, 2, 2, .memory_bytes = 64 << 20},
    {LLAMA, NULL, 0, 2, 4, .cut = true, .depth = 3},
    {LLAMA, "sequential", 0, 3, 1},
    {LLAMA, "gpipe", 0, 4, 3, .transport = "emulated:rule=tag"},
    {LLAMA, "1f1b", 0, 2, 4, .bind = OPIPE_BIND_NO_FUSE},
    {LLAMA, "interleaved:chunks=2", 2, 0, 2},
    {ENCODER, NULL, 0, 2, 2, .device_options = "kernels=portable"},
    {VISION, NULL, 0, 3, 2},
    {PAST, NULL, 0, 2, 1},
    {PINNED, NULL, 0, 1, 1},
    {DROPOUT, NULL, 0, 2, 1},
    {LLAMA, "1f1b", 2, 0, 3, .trains = 1},
    {LLAMA, "1f1b", 4, 0, 4, .trains = 2, .recompute = OPIPE_RECOMPUTE_STAGE},
    {LLAMA, "gpipe", 2, 0, 2, .trains = 1, .memory_bytes = 64 << 20},
    {LLAMA, "sequential", 2, 0, 1, .trains = 2, .recompute = OPIPE_RECOMPUTE_BLOCK},
    {LLAMA, "chimera", 2, 0, 4, .trains = 1},
    {LLAMA, "chimera:concat=halving", 2, 0, 2, .trains = 1},
    {LLAMA, "chimera:sync=eager-opt", 2, 0, 2, .trains = 2},
    {LLAMA, "zb-h1", 2, 0, 4, .trains = 1, .transport = "emulated:rule=stream"},
    {LLAMA, "zbv", 2, 0, 4, .trains = 1},
    {LLAMA, "2bw", 2, 0, 4, .trains = 2},
    {LLAMA, "interleaved:chunks=2", 2, 0, 4, .trains = 1},
    {LLAMA, "terapipe:slices=2", 2, 0, 2},
    {LLAMA, "terapipe:lengths=1+3", 2, 0, 2},
    {LLAMA, "terapipe:slices=2", 2, 0, 2, .trains = 1},
    {LLAMA, "terapipe:lengths=1+3", 2, 0, 2, .trains = 1},
    {LLAMA, "1f1b", 2, 0, 4, .trains = 1, .replicas = {2}},
    {LLAMA, "1f1b", 0, 2, 2, .trains = 1, .replicas = {2, 1}},
    {LLAMA, "zb-h1", 0, 2, 2, .trains = 2, .replicas = {1, 2}},
    {ENCODER, "1f1b", 2, 0, 2, .trains = 2, .recompute = OPIPE_RECOMPUTE_ATTENTION},
    {ENCODER, "zb-h2", 2, 0, 2, .trains = 1},
    {DROPOUT, "1f1b", 2, 0, 2, .trains = 3, .bind = OPIPE_BIND_DROPOUT_RATIO},
    {DROPOUT, "gpipe", 2, 0, 2, .trains = 3, .bind = OPIPE_BIND_GRAPH_DROPOUT},
};

opipe_status plan_take(void *ctx, const void *data, size_t n_bytes) {
  plan_text *text = ctx;
  char *longer = realloc(text->data, text->n + n_bytes + 1);
  if (longer == NULL)
    return OPIPE_E_NOMEM;
  memcpy(longer + text->n, data, n_bytes);
  text->data = longer;
  text->n += n_bytes;
  longer[text->n] = '\0';
  return OPIPE_OK;
}

static void must_ok(const char *what, opipe_status status, const opipe_error *err) {
  char text[700];
  (void)snprintf(text, sizeof text, "seed %s: %s", what, err->message);
  must(status == OPIPE_OK, text);
}

/* Every dimension that the model's inputs leave free: rows, then tokens. */
static uint32_t free_dims(const plan_bench *b, opipe_model *file, opipe_dim dims[8]) {
  uint32_t n = 0;
  opipe_tensor_info info = {.struct_size = (uint32_t)sizeof info};
  for (uint32_t i = 0; b->api->model_input(file, i, &info, NULL) == OPIPE_OK; ++i) {
    for (uint32_t d = 0; d < info.rank && n < 8; ++d) {
      const char *name = info.dim_names == NULL ? NULL : info.dim_names[d];
      bool known = info.shape[d] >= 0 || name == NULL;
      for (uint32_t k = 0; k < n && !known; ++k)
        known = strcmp(dims[k].name, name) == 0;
      if (!known)
        dims[n++] = (opipe_dim){.name = name, .value = d == 0 ? ROWS : TOKENS};
    }
  }
  return n;
}

static opipe_model *bind(const plan_bench *b, const recipe *r) {
  static uint8_t yes = 1;
  opipe_dim dims[8];
  opipe_model *file = b->models[r->model].file, *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_pin pin = {"use", {.data = &yes, .device_type = OPIPE_DL_CPU, .dtype = {6, 8, 1}}};
  const opipe_bind_options options = {
      .struct_size = (uint32_t)sizeof options,
      .flags = r->bind | OPIPE_BIND_DEFAULTS | (r->trains != 0 ? (uint32_t)OPIPE_BIND_TRAIN : 0),
      .dims = dims,
      .n_dims = free_dims(b, file, dims),
      .dims_stride = sizeof(opipe_dim),
      .pins = &pin,
      .n_pins = r->model == PINNED,
      .pins_stride = sizeof(opipe_pin),
      .dropout_ratio = (r->bind & OPIPE_BIND_DROPOUT_RATIO) != 0 ? 0.25 : 0};
  must_ok(names[r->model], b->api->model_bind(file, &options, &bound, &err), &err);
  return bound;
}

static opipe_train_options train_options(const recipe *r) {
  static const opipe_train_glob globs[] = {{"*", 1, 0}, {"blocks.1.*", 0, 0}};
  static const char *const no_decay[] = {"*bias", "blocks.0.*"};
  opipe_train_options o = {.struct_size = (uint32_t)sizeof o,
                           .loss = r->trains == 3 ? OPIPE_LOSS_MSE : OPIPE_LOSS_CROSS_ENTROPY,
                           .labels = "labels",
                           .ignore = -100,
                           .recompute = r->recompute,
                           .seed = 7,
                           .lr = 0.01,
                           .momentum = 0.9};
  if (r->trains != 2)
    return o;
  o.optimizer = OPIPE_OPTIMIZER_ADAMW;
  o.momentum = 0;
  o.beta1 = 0.9;
  o.beta2 = 0.99;
  o.epsilon = 1e-6;
  o.decay = 0.01;
  o.clip_norm = 1;
  o.shift = 1;
  o.lr_schedule = OPIPE_LR_COSINE;
  o.warmup_steps = 2;
  o.total_steps = 9;
  o.globs = globs;
  o.n_globs = 2;
  o.globs_stride = sizeof globs[0];
  o.no_decay = no_decay;
  o.n_no_decay = 2;
  return o;
}

/* The tensors that cross the plan's first boundary, as a cut. */
static void crossings_of(const plan_bench *b, opipe_plan *plan, char *cut, size_t room) {
  const char *name = NULL;
  uint32_t src = 0, dst = 0;
  size_t n = 0;
  for (uint32_t i = 0; n < room && b->api->plan_cut_tensor(plan, i, &name, &src, &dst, NULL) == 0;
       ++i) {
    if (src == 0 && dst == 1)
      n += (size_t)snprintf(cut + n, room - n, "%s%s", n == 0 ? "" : ",", name);
  }
}

static void add_seed(plan_bench *b, const recipe *r) {
  static char cut[2048];
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_model *bound = bind(b, r);
  opipe_plan *plan = NULL;
  plan_text text = {.data = NULL};
  const opipe_train_options train = train_options(r);
  const opipe_device_choice device = {
      .kind = "cpu", .options = r->device_options, .threads = 1, .memory_bytes = r->memory_bytes};
  const opipe_plan_params params = {.struct_size = (uint32_t)sizeof params,
                                    .n_stages = r->n_stages,
                                    .n_ranks = r->n_ranks,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof(opipe_device_choice),
                                    .n_microbatches = r->n_microbatches,
                                    .replicas = r->replicas[1] == 0 ? r->replicas[0] : 0,
                                    .stage_replicas = r->replicas[1] == 0 ? NULL : r->replicas,
                                    .n_stage_replicas = r->replicas[1] == 0 ? 0 : 2,
                                    .schedule = r->schedule,
                                    .cut = r->cut ? cut : NULL,
                                    .depth = r->depth,
                                    .transport = r->transport,
                                    .train = r->trains != 0 ? &train : NULL};
  const char *what = r->schedule == NULL ? names[r->model] : r->schedule;
  must_ok(what, b->api->plan_make(bound, &params, &plan, &err), &err);
  must_ok(what, b->api->plan_write(plan, plan_take, &text, &err), &err);
  crossings_of(b, plan, cut, sizeof cut);
  plan_seed *seed = &b->seeds[b->n_seeds++];
  *seed = (plan_seed){.model = r->model,
                      .text = text.data,
                      .n = text.n,
                      .root = json_loadb(text.data, text.n, 0, NULL)};
  must(seed->root != NULL, "a written plan is no JSON");
  b->api->plan_destroy(plan);
  b->api->model_destroy(bound);
}

static void open_models(plan_bench *b) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_context_params params = {.struct_size = (uint32_t)sizeof params,
                                       .log_level = OPIPE_LOG_ERROR,
                                       .flags = OPIPE_CONTEXT_ONLY_STATIC};
  must_ok("table", opipe_get_api(OPIPE_VIEW, &b->api, &err), &err);
  must_ok("context", b->api->context_create(&params, &b->context, &err), &err);
  for (uint32_t i = 0; opi_static_plugins[i] != NULL; ++i) {
    must_ok("plugin", b->api->context_register_static(b->context, opi_static_plugins[i], &err),
            &err);
  }
  for (uint32_t i = 0; i < PLAN_MODELS; ++i) {
    char path[300];
    uint64_t print[2];
    plan_model *model = &b->models[i];
    (void)snprintf(path, sizeof path, "tests/data/%s/model.onnx", names[i]);
    const opipe_load_params load = {.struct_size = (uint32_t)sizeof load,
                                    .path = opi_test_source(path)};
    must_ok(names[i], b->api->model_load(b->context, &load, &model->file, &err), &err);
    model->name = names[i];
    opi_model_fingerprint(file_behind(model->file), print);
    (void)snprintf(model->fingerprint, sizeof model->fingerprint, "%016" PRIx64 "%016" PRIx64,
                   print[0], print[1]);
  }
}

const plan_bench *plan_bench_get(void) {
  static plan_bench bench;
  if (bench.api != NULL)
    return &bench;
  open_models(&bench);
  for (size_t i = 0; i < OPI_COUNT(recipes); ++i)
    add_seed(&bench, &recipes[i]);
  return &bench;
}
