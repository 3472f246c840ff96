/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-memory LIBRARY MODEL RANKS BATCH TOKENS [LIBCUDA]: a plan's bytes for training GPT-2 in bf16
 * beside what its session takes, category by category and rank by rank, and beside what the driver
 * says that the device lost. Memory that the driver keeps for itself (kernels that it loads when
 * they are first used) is there before: a session of the same plan has come and gone. Status 0: the
 * same, and the driver's within 2 MiB an allocation and 64 MiB; 1: not; 3: no device.
 */
#include "host.h"

enum { MICROBATCHES = 4, STEPS = 3, ALLOCATIONS = 16 /* of a rank, beside its parameters' */ };

/* ---- the driver ---- */

static int (*mem_get_info)(size_t *free_bytes, size_t *total_bytes);

static void open_driver(const char *path) {
  int (*init)(unsigned) = NULL, (*retain)(void **, int) = NULL, (*push)(void *) = NULL;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *context = NULL;
  if (library != NULL) {
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&push = dlsym(library, "cuCtxPushCurrent_v2");
    *(void **)&mem_get_info = dlsym(library, "cuMemGetInfo_v2");
  }
  if (init == NULL || retain == NULL || push == NULL || mem_get_info == NULL || init(0) != 0 ||
      retain(&context, 0) != 0 || push(context) != 0) {
    printf("not run: no device\n");
    exit(3);
  }
}

static uint64_t bytes_taken(void) {
  size_t free_bytes = 0, total_bytes = 0;
  if (mem_get_info(&free_bytes, &total_bytes) != 0) {
    fprintf(stderr, "cuMemGetInfo failed\n");
    exit(1);
  }
  return (uint64_t)(total_bytes - free_bytes);
}

/* ---- the library ---- */

static opipe_plan *plan_of(const opipe_api *api, const opipe_model *bound, uint32_t n_ranks) {
  static opipe_train_options options;
  const opipe_device_choice device = {.kind = "cuda", .threads = 1};
  opipe_plan *plan = NULL;
  opipe_plan_params params = opipe_plan_params_init();
  options = opipe_train_options_init();
  options.loss = OPIPE_LOSS_CROSS_ENTROPY;
  options.output = "logits";
  options.labels = "ids";
  options.ignore = -100;
  options.shift = 1;
  options.compute = OPIPE_BFLOAT16;
  options.optimizer = OPIPE_OPTIMIZER_ADAMW;
  options.lr = 1e-4;
  options.beta1 = 0.9;
  options.beta2 = 0.999;
  options.epsilon = 1e-8;
  params.devices = &device;
  params.n_devices = 1;
  params.n_ranks = n_ranks;
  params.n_microbatches = MICROBATCHES;
  params.schedule = "1f1b";
  params.train = &options;
  need(api->plan_make((opipe_model *)bound, &params, &plan, &err), "plan");
  return plan;
}

static void train(const opipe_api *api, opipe_session *session, int64_t batch, int64_t tokens) {
  const int64_t shape[2] = {batch, tokens};
  int64_t *ids = calloc((size_t)(batch * tokens), sizeof *ids);
  if (ids == NULL)
    exit(1);
  for (int64_t i = 0; i < batch * tokens; ++i)
    ids[i] = i * 7919 % 256;
  const opipe_binding_io input = {.name = "ids",
                                  .tensor = {.data = ids,
                                             .device_type = OPIPE_DL_CPU,
                                             .rank = 2,
                                             .dtype = {OPIPE_DL_INT, 64, 1},
                                             .shape = shape}};
  for (int step = 0; step < STEPS; ++step) {
    opipe_request *ticket = NULL;
    opipe_submit_params submit = opipe_submit_params_init();
    submit.n_inputs = 1;
    submit.inputs = &input;
    need(api->session_train_step(session, &submit, &ticket, &err), "train_step");
    need(api->request_wait(ticket, UINT64_MAX, &err), "step");
    api->request_release(ticket);
  }
  free(ids);
}

/* Allocations that a session makes, at most: gradient and moments of a parameter are two. */
static uint64_t allocations(const opipe_api *api, opipe_session *session, uint32_t n_ranks) {
  opipe_parameter_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  while (api->session_parameter(session, n, &info, NULL) == OPIPE_OK)
    ++n;
  return 2 * (uint64_t)n + ALLOCATIONS * (uint64_t)n_ranks;
}

/* Categories of a rank that are not as predicted. */
static int compare(const opipe_memory_info *plan, const opipe_memory_info *session) {
  const struct {
    const char *name;
    uint64_t predicted, taken;
  } rows[] = {{"params", plan->params_bytes, session->params_bytes},
              {"activation", plan->activation_bytes, session->activation_bytes},
              {"workspace", plan->workspace_bytes, session->workspace_bytes},
              {"boundary", plan->boundary_bytes, session->boundary_bytes},
              {"gradient", plan->gradient_bytes, session->gradient_bytes},
              {"optimizer", plan->optimizer_bytes, session->optimizer_bytes},
              {"version", plan->version_bytes, session->version_bytes},
              {"stash", plan->stash_bytes, session->stash_bytes},
              {"total", plan->total_bytes, session->total_bytes}};
  int bad = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    if (rows[i].predicted == rows[i].taken)
      continue;
    printf("rank %u: %s: %llu predicted, %llu taken; ", plan->rank, rows[i].name,
           (unsigned long long)rows[i].predicted, (unsigned long long)rows[i].taken);
    ++bad;
  }
  return bad;
}

int main(int argc, char **argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: %s LIBRARY MODEL RANKS BATCH TOKENS [LIBCUDA]\n", argv[0]);
    return 2;
  }
  const uint32_t n_ranks = (uint32_t)strtoul(argv[3], NULL, 10);
  const int64_t batch = strtoll(argv[4], NULL, 10), tokens = strtoll(argv[5], NULL, 10);
  const opipe_api *api = open_library(argv[1]);
  opipe_context *context = NULL;
  opipe_model *model = NULL, *bound = NULL;
  opipe_session *session = NULL;
  uint64_t total = 0;
  int bad = 0;
  open_driver(argc > 6 ? argv[6] : "libcuda.so.1");
  need(api->context_create(NULL, &context, &err), "context");
  opipe_load_params load = opipe_load_params_init();
  load.path = argv[2];
  need(api->model_load(context, &load, &model, &err), "load");
  const opipe_dim dims[] = {{"batch", batch}};
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN;
  bind.dims = dims;
  bind.n_dims = 1;
  need(api->model_bind(model, &bind, &bound, &err), "bind");
  opipe_plan *plan = plan_of(api, bound, n_ranks);
  need(api->session_open(context, plan, NULL, &session, &err), "session");
  train(api, session, batch, tokens);
  api->session_close(session);
  const uint64_t before = bytes_taken();
  need(api->session_open(context, plan, NULL, &session, &err), "session");
  train(api, session, batch, tokens);
  const uint64_t after = bytes_taken();
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    opipe_memory_info predicted = {.struct_size = sizeof predicted};
    opipe_memory_info taken = {.struct_size = sizeof taken};
    need(api->plan_memory(plan, rank, &predicted, &err), "plan_memory");
    need(api->session_memory(session, rank, &taken, &err), "session_memory");
    bad += compare(&predicted, &taken);
    total += predicted.total_bytes;
  }
  const uint64_t mib = 1024 * 1024, lost = after - before;
  const uint64_t most = total + (64 + 2 * allocations(api, session, n_ranks)) * mib;
  printf("%u ranks: %.1f MiB predicted, %s, the device lost %.1f MiB, at most %.1f allowed\n",
         n_ranks, (double)total / (double)mib, bad == 0 ? "taken as predicted" : "NOT as predicted",
         (double)lost / (double)mib, (double)most / (double)mib);
  api->session_close(session);
  api->plan_destroy(plan);
  api->model_destroy(bound);
  api->model_destroy(model);
  api->context_destroy(context);
  return bad == 0 && lost <= most ? 0 : 1;
}
