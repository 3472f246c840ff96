/* SPDX-License-Identifier: Apache-2.0 */
/* The structs that hosts fill in, attacked field by field through the table of the library's own
 * rows: unknown flags and choices, reserved fields, NULL where something is needed, counts without
 * a list, strides, tails, sizes. */
#include <stdio.h>
#include <stdlib.h>

#include "abi/api/params.h"
#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
enum { ROOM = 64 /* behind a struct: what a newer caller has there */ };

/* ---- the calls under attack ---- */

typedef struct world {
  host_kit k, t; /* for inference, for training */
  const char *call;
  opipe_status (*run)(struct world *w, const void *params);
  const void *params;
  uint32_t n_attacks;
} world;

static opipe_status run_context(world *w, const void *params) {
  opipe_context *made = NULL;
  const opipe_status status = w->k.api->context_create(params, &made, &w->k.err);
  w->k.api->context_destroy(made);
  return status;
}

static opipe_status run_load(world *w, const void *params) {
  opipe_model *made = NULL;
  const opipe_status status = w->k.api->model_load(w->k.context, params, &made, &w->k.err);
  w->k.api->model_destroy(made);
  return status;
}

static opipe_status run_build(world *w, const void *params) {
  opipe_model *made = NULL;
  const opipe_status status = w->k.api->model_build(w->k.context, params, &made, &w->k.err);
  w->k.api->model_destroy(made);
  return status;
}

static opipe_status run_bind(world *w, const void *params) {
  opipe_model *made = NULL;
  const opipe_status status = w->k.api->model_bind(w->k.model, params, &made, &w->k.err);
  w->k.api->model_destroy(made);
  return status;
}

static opipe_status run_plan(world *w, const void *params) {
  opipe_plan *made = NULL;
  const opipe_status status = w->k.api->plan_make(w->t.bound, params, &made, &w->k.err);
  w->k.api->plan_destroy(made);
  return status;
}

static opipe_status drop(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx;
  (void)data;
  (void)n_bytes;
  return OPIPE_OK;
}

static opipe_status run_describe(world *w, const void *params) {
  return w->k.api->model_describe_training(w->t.bound, params, OPIPE_FORMAT_TEXT, drop, NULL,
                                           &w->k.err);
}

static opipe_status run_open(world *w, const void *params) {
  opipe_session *made = NULL;
  const opipe_status status =
      w->k.api->session_open(w->k.context, w->k.plan, params, &made, &w->k.err);
  w->k.api->session_close(made);
  return status;
}

static opipe_status run_submit(world *w, const void *params) {
  opipe_request *made = NULL;
  const opipe_status status = w->k.api->session_submit(w->k.session, params, &made, &w->k.err);
  w->k.api->request_release(made);
  return status;
}

static opipe_status run_step(world *w, const void *params) {
  opipe_request *made = NULL;
  const opipe_status status = w->k.api->session_train_step(w->t.session, params, &made, &w->k.err);
  w->k.api->request_release(made);
  return status;
}

static opipe_status run_evaluate(world *w, const void *params) {
  opipe_request *made = NULL;
  const opipe_status status = w->k.api->session_evaluate(w->t.session, params, &made, &w->k.err);
  w->k.api->request_release(made);
  return status;
}

static opipe_status run_clock(world *w, const void *params) {
  return w->k.api->session_set_clock(w->t.session, params, &w->k.err);
}

static opipe_status run_order(world *w, const void *params) {
  opipe_order *made = NULL;
  const opipe_status status = w->k.api->order_make(w->k.context, params, &made, &w->k.err);
  w->k.api->order_destroy(made);
  return status;
}

typedef enum { SIMULATED, DRAWN, PLAYED } order_call;

static opipe_status with_order(world *w, const void *params, order_call call) {
  static const opipe_order_params two = {
      .struct_size = sizeof two, .schedule = "1f1b", .n_ranks = 2, .n_microbatches = 2};
  const opipe_api *api = w->k.api;
  opipe_order *order = NULL;
  OPI_ASSERT_OK(api->order_make(w->k.context, &two, &order, &w->k.err), &w->k.err);
  const opipe_status status =
      call == DRAWN ? api->order_draw(order, params, drop, NULL, &w->k.err)
      : call == PLAYED
          ? api->order_play(order, NULL, params, OPIPE_PLAY_TEXT, drop, NULL, &w->k.err)
          : api->order_simulate(order, params, OPIPE_FORMAT_TEXT, drop, NULL, &w->k.err);
  api->order_destroy(order);
  return status;
}

static opipe_status run_simulate(world *w, const void *params) {
  return with_order(w, params, SIMULATED);
}

static opipe_status run_draw(world *w, const void *params) {
  return with_order(w, params, DRAWN);
}

static opipe_status run_play(world *w, const void *params) {
  return with_order(w, params, PLAYED);
}

static opipe_status run_profile(world *w, const void *params) {
  opipe_profile *made = NULL;
  const opipe_status status = w->k.api->profile_of_model(w->t.bound, params, &made, &w->k.err);
  w->k.api->profile_destroy(made);
  return status;
}

static const char rated[] =
    "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"x\", \"alignment\": 64, "
    "\"flops\": 1e12, \"count\": 2}]}";

static opipe_status run_strategy(world *w, const void *params) {
  const opipe_profile_params of = {
      .struct_size = sizeof of, .cluster = rated, .cluster_bytes = sizeof rated - 1};
  opipe_profile *profile = NULL;
  opipe_strategy *made = NULL;
  OPI_ASSERT_OK(
      w->k.api->profile_of_arch(w->k.context, "gpt:layers=2,hidden=8,heads=2,vocab=16,seq=4", &of,
                                &profile, &w->k.err),
      &w->k.err);
  const opipe_status status = w->k.api->strategy_make(profile, params, &made, &w->k.err);
  w->k.api->strategy_destroy(made);
  w->k.api->profile_destroy(profile);
  return status;
}

static opipe_status run_machine(world *w, const void *params) {
  return w->k.api->cluster_of_machine(w->k.context, params, drop, NULL, &w->k.err);
}

static opipe_status run_tune(world *w, const void *params) {
  opipe_plan *made = NULL;
  const opipe_status status = w->k.api->plan_tune(w->k.plan, params, &made, &w->k.err);
  w->k.api->plan_destroy(made);
  return status;
}

/* ---- attacks ---- */

/* The call as it stands is refused, and the message names it, `struct_name` and `field`. */
static void expect_refused(world *w, const char *struct_name, const char *field,
                           const char *attack) {
  w->k.err.message[0] = '\0';
  const opipe_status status = w->run(w, w->params);
  const char *said = w->k.err.message;
  ++w->n_attacks;
  if ((status != OPIPE_E_INVALID && status != OPIPE_E_ABI) ||
      strncmp(said, w->call, strlen(w->call)) != 0 || strstr(said, field) == NULL) {
    OPI_FAIL("%s, %s.%s, %s: status %d, '%s'", w->call, struct_name, field, attack, (int)status,
             said);
  }
}

static void set(char *at, size_t size, uint64_t value) {
  memcpy(at, &value, size);
}

static uint64_t get(const char *at, size_t size) {
  uint64_t value = 0;
  memcpy(&value, at, size);
  return value;
}

static void attack_struct(world *w, const opi_struct *s, char *base);

/* Elements of a caller with newer headers: zeros behind the known part are no matter, others are.
 */
static void attack_strides(world *w, const opi_struct *s, const opi_field *f, char *base,
                           const char *first) {
  char *list = calloc(1, f->inner->size + ROOM);
  const uint64_t n = get(base + f->count, f->n_count);
  const uint32_t stride = (uint32_t)get(base + f->stride, sizeof stride);
  const opipe_status before = w->run(w, w->params);
  OPI_ASSERT_FATAL(list != NULL);
  memcpy(list, first, f->inner->size);
  set(base + f->offset, sizeof list, (uintptr_t)list);
  set(base + f->count, f->n_count, 1);
  set(base + f->stride, sizeof stride, f->inner->size + ROOM);
  OPI_ASSERT_INT(w->run(w, w->params), before);
  list[f->inner->size + ROOM / 2] = 1;
  expect_refused(w, s->name, f->name, "something behind an element");
  set(base + f->stride, sizeof stride, f->inner->least - 1);
  expect_refused(w, s->name, f->name, "a short stride");
  set(base + f->stride, sizeof stride, 0);
  expect_refused(w, s->name, f->name, "stride 0");
  set(base + f->stride, sizeof stride, UINT32_MAX);
  expect_refused(w, s->name, f->name, "a huge stride");
  set(base + f->offset, sizeof list, (uintptr_t)first);
  set(base + f->count, f->n_count, n);
  set(base + f->stride, sizeof stride, stride);
  free(list);
}

static void attack_list(world *w, const opi_struct *s, const opi_field *f, char *base) {
  char *list = (char *)(uintptr_t)get(base + f->offset, sizeof list);
  const uint64_t n = get(base + f->count, f->n_count);
  set(base + f->offset, sizeof list, 0);
  set(base + f->count, f->n_count, n == 0 ? 2 : n);
  expect_refused(w, s->name, f->name, "a count and no list");
  set(base + f->count, f->n_count, n);
  set(base + f->offset, sizeof list, (uintptr_t)list);
  if (list == NULL || n == 0)
    return;
  if (f->kind == OPI_CHECK_NAMES) {
    const uint64_t name = get(list, sizeof name);
    set(list, sizeof name, 0);
    expect_refused(w, s->name, f->name, "no name");
    set(list, sizeof name, name);
  }
  if (f->kind == OPI_CHECK_LIST) {
    attack_struct(w, f->inner, list);
    if (f->stride != 0)
      attack_strides(w, s, f, base, list);
  }
}

static void attack_field(world *w, const opi_struct *s, const opi_field *f, char *base) {
  char *at = base + f->offset;
  const uint64_t kept = f->size <= sizeof kept ? get(at, f->size) : 0;
  uint64_t bad = 0;
  switch (f->kind) {
    case OPI_CHECK_FLAGS:
      bad = kept | (f->known + 1);
      OPI_ASSERT((bad & ~f->known) != 0);
      set(at, f->size, bad);
      expect_refused(w, s->name, f->name, "an unknown flag");
      bad = kept | UINT64_C(0x80000000);
      break;
    case OPI_CHECK_CHOICE:
      set(at, f->size, UINT32_MAX);
      expect_refused(w, s->name, f->name, "a huge choice");
      bad = f->known + 1;
      break;
    case OPI_CHECK_ONE_OF:
      set(at, f->size, UINT32_MAX);
      expect_refused(w, s->name, f->name, "a huge choice");
      while ((f->known >> bad & 1) != 0)
        ++bad;
      break;
    case OPI_CHECK_ZERO:
      bad = 1;
      break;
    case OPI_CHECK_NEEDED:
      bad = 0;
      break;
    case OPI_CHECK_PART:
      attack_struct(w, f->inner, at);
      return;
    case OPI_CHECK_OTHER:
      OPI_ASSERT(kept != 0); /* the subject has one of everything */
      attack_struct(w, f->inner, (char *)(uintptr_t)kept);
      return;
    case OPI_CHECK_NUMBERS:
    case OPI_CHECK_NAMES:
    case OPI_CHECK_LIST:
      attack_list(w, s, f, base);
      return;
    default:
      return;
  }
  set(at, f->size, bad);
  expect_refused(w, s->name, f->name, "a bad value");
  set(at, f->size, kept);
}

/* struct_size, and what lies behind: `base` has ROOM bytes more. */
static void attack_size(world *w, const opi_struct *s, char *base) {
  const opipe_status before = w->run(w, w->params);
  const uint32_t sizes[] = {0, 4, s->least - 1, s->size - 1, UINT32_MAX, 1u << 20};
  char where[32];
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    set(base, sizeof sizes[i], sizes[i]);
    expect_refused(w, s->name, "struct_size", "a bad size");
  }
  set(base, sizeof(uint32_t), s->size + ROOM);
  OPI_ASSERT_INT(w->run(w, w->params), before);
  for (uint32_t i = 0; i < ROOM; i += ROOM / 2 - 1) {
    base[s->size + i] = 1;
    (void)snprintf(where, sizeof where, "has 1 at byte %u", s->size + i);
    expect_refused(w, s->name, where, "something behind the struct");
    base[s->size + i] = 0;
  }
  set(base, sizeof(uint32_t), s->size);
}

static void attack_struct(world *w, const opi_struct *s, char *base) {
  if (s->fields[0].kind == OPI_CHECK_SIZE)
    attack_size(w, s, base);
  for (uint32_t f = 0; f < s->n_fields; ++f)
    attack_field(w, s, &s->fields[f], base);
}

static void attack(world *w, const char *call, const opi_struct *s, void *params,
                   opipe_status (*run)(world *w, const void *params)) {
  const uint32_t before = w->n_attacks;
  w->call = call;
  w->run = run;
  w->params = params;
  attack_struct(w, s, params);
  OPI_ASSERT(w->n_attacks > before + 5);
}

/* ---- subjects: one of everything in each ---- */

#define ROOMY(type)  \
  struct {           \
    type v;          \
    char room[ROOM]; \
  }

static int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, ids_shape[2] = {1, 8};
static const char *names[2] = {"a", "b"};

static opipe_tensor a_tensor(void) {
  return kit_ids(ids, ids_shape).tensor;
}

static void open_world(world *w) {
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .labels = "labels",
                                     .lr = 0.01};
  const opipe_plan_params params = {.struct_size = sizeof params, .train = &train};
  memset(w, 0, sizeof *w);
  OPI_ASSERT_OK_FATAL(kit_plan(&w->k, NULL, GPT, 1, 8, NULL), &w->k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&w->k, NULL), &w->k.err);
  OPI_ASSERT_OK_FATAL(kit_plan_training(&w->t, GPT, 1, 8, &params), &w->t.err);
  OPI_ASSERT_OK_FATAL(kit_open(&w->t, NULL), &w->t.err);
}

static void close_world(world *w) {
  kit_close(&w->t);
  kit_close(&w->k);
}

static void *plain_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  (void)ctx;
  (void)old_size;
  (void)align;
  if (new_size != 0)
    return realloc(ptr, new_size);
  free(ptr);
  return NULL;
}

static void test_contexts_and_models(void) {
  world w;
  opipe_allocator allocator = {NULL, plain_realloc};
  opipe_device_budget budget = {.kind = "cpu", .memory_bytes = 1 << 20};
  opipe_pin pins[1] = {{"x", a_tensor()}};
  opipe_dim dims[1] = {{"batch", 1}};
  const char *paths[1] = {opi_test_source("tests/data")};
  open_world(&w);
  ROOMY(opipe_context_params)
  context = {.v = {.struct_size = sizeof context.v,
                   .allocator = &allocator,
                   .plugin_paths = paths,
                   .n_plugin_paths = 1,
                   .budgets = &budget,
                   .n_budgets = 1,
                   .budgets_stride = sizeof budget}};
  OPI_ASSERT_OK(run_context(&w, &context.v), &w.k.err);
  attack(&w, "context_create", &opi_struct_context_params, &context, run_context);
  ROOMY(opipe_load_params)
  load = {.v = {.struct_size = sizeof load.v,
                .path = opi_test_source(GPT),
                .parameters = pins,
                .n_parameters = 1,
                .parameters_stride = sizeof pins[0]}};
  attack(&w, "model_load", &opi_struct_load_params, &load, run_load);
  ROOMY(opipe_bind_options)
  bind = {.v = {.struct_size = sizeof bind.v,
                .flags = OPIPE_BIND_DEFAULTS,
                .dims = dims,
                .n_dims = 1,
                .dims_stride = sizeof dims[0],
                .pins = pins,
                .n_pins = 1,
                .pins_stride = sizeof pins[0],
                .keep = names,
                .n_keep = 2}};
  attack(&w, "model_bind", &opi_struct_bind_options, &bind, run_bind);
  close_world(&w);
}

static void test_plans(void) {
  world w;
  opipe_train_glob globs[1] = {{.pattern = "*", .trainable = 1}};
  opipe_device_choice devices[1] = {{.kind = "cpu"}};
  opipe_device_description descriptions[1] = {{.alignment = 64}};
  uint32_t replicas[1] = {1};
  open_world(&w);
  ROOMY(opipe_train_options)
  train = {.v = {.struct_size = sizeof train.v,
                 .loss = OPIPE_LOSS_CROSS_ENTROPY,
                 .labels = "labels",
                 .globs = globs,
                 .n_globs = 1,
                 .globs_stride = sizeof globs[0],
                 .lr = 0.01,
                 .no_decay = names,
                 .n_no_decay = 2}};
  ROOMY(opipe_order_costs)
  costs = {.v = {.struct_size = sizeof costs.v,
                 .n_stages = 2,
                 .forward = 1,
                 .input = 1,
                 .weight = 1,
                 .stage_forward = (double[2]){1, 2}}};
  ROOMY(opipe_link_description)
  link = {.v = {.struct_size = sizeof link.v, .thread_rule = 1}};
  ROOMY(opipe_generation_params)
  generation = {.v = {.struct_size = sizeof generation.v, .context = 8, .page = 64}};
  ROOMY(opipe_plan_params)
  plan = {.v = {.struct_size = sizeof plan.v,
                .n_stages = 2,
                .devices = devices,
                .n_devices = 1,
                .devices_stride = sizeof devices[0],
                .train = &train.v,
                .costs = &costs.v,
                .stage_replicas = replicas,
                .n_stage_replicas = 1,
                .descriptions = descriptions,
                .n_descriptions = 1,
                .descriptions_stride = sizeof descriptions[0],
                .link = &link.v,
                .generation = &generation.v}};
  attack(&w, "plan_make", &opi_struct_plan_params, &plan, run_plan);
  attack(&w, "model_describe_training", &opi_struct_train_options, &train, run_describe);
  ROOMY(opipe_order_params)
  order = {.v = {.struct_size = sizeof order.v,
                 .schedule = "1f1b",
                 .n_ranks = 2,
                 .n_microbatches = 2,
                 .costs = &costs.v}};
  OPI_ASSERT_OK(run_order(&w, &order.v), &w.k.err);
  attack(&w, "order_make", &opi_struct_order_params, &order, run_order);
  OPI_ASSERT_OK(run_simulate(&w, &costs.v), &w.k.err);
  attack(&w, "order_simulate", &opi_struct_order_costs, &costs, run_simulate);
  attack(&w, "order_draw", &opi_struct_order_costs, &costs, run_draw);
  close_world(&w);
}

static const char cluster[] =
    "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"x\", \"alignment\": 64, "
    "\"count\": 2}]}";

static void test_plays(void) {
  world w;
  opipe_stage_load loads[1] = {{.send_bytes = 1}};
  KIT_NEEDS_STUDY();
  open_world(&w);
  ROOMY(opipe_play_params)
  play = {.v = {.struct_size = sizeof play.v,
                .cluster = cluster,
                .cluster_bytes = sizeof cluster - 1,
                .stages = loads,
                .n_stages = 1,
                .stages_stride = sizeof loads[0]}};
  OPI_ASSERT_OK(run_play(&w, &play.v), &w.k.err);
  attack(&w, "order_play", &opi_struct_play_params, &play, run_play);
  close_world(&w);
}

static void test_planners(void) {
  static const uint32_t samples[] = {1};
  world w;
  opipe_device_choice devices[1] = {{.kind = "cpu"}};
  KIT_NEEDS_STUDY();
  open_world(&w);
  ROOMY(opipe_train_options)
  train = {.v = {.struct_size = sizeof train.v,
                 .loss = OPIPE_LOSS_CROSS_ENTROPY,
                 .labels = "labels",
                 .lr = 0.01}};
  ROOMY(opipe_profile_params)
  profile = {.v = {.struct_size = sizeof profile.v,
                   .samples = samples,
                   .n_samples = 1,
                   .train = &train.v,
                   .cluster = cluster,
                   .cluster_bytes = sizeof cluster - 1}};
  OPI_ASSERT_OK(run_profile(&w, &profile.v), &w.k.err);
  attack(&w, "profile_of_model", &opi_struct_profile_params, &profile, run_profile);
  ROOMY(opipe_strategy_params)
  strategy = {.v = {.struct_size = sizeof strategy.v,
                    .planner = "megatron",
                    .batch = 2,
                    .cluster = rated,
                    .cluster_bytes = sizeof rated - 1}};
  OPI_ASSERT_OK(run_strategy(&w, &strategy.v), &w.k.err);
  attack(&w, "strategy_make", &opi_struct_strategy_params, &strategy, run_strategy);
  ROOMY(opipe_machine_params)
  machine = {.v = {.struct_size = sizeof machine.v,
                   .devices = devices,
                   .n_devices = 1,
                   .devices_stride = sizeof devices[0]}};
  OPI_ASSERT_OK(run_machine(&w, &machine.v), &w.k.err);
  attack(&w, "cluster_of_machine", &opi_struct_machine_params, &machine, run_machine);
  close_world(&w);
}

static void attack_submits(world *w, void *params) {
  attack(w, "session_submit", &opi_struct_submit_params, params, run_submit);
  attack(w, "session_train_step", &opi_struct_submit_params, params, run_step);
  attack(w, "session_evaluate", &opi_struct_submit_params, params, run_evaluate);
}

static void test_sessions(void) {
  world w;
  opipe_binding_io inputs[1] = {kit_ids(ids, ids_shape)};
  open_world(&w);
  ROOMY(opipe_session_params)
  session = {.v = {.struct_size = sizeof session.v, .spin_us = 1}};
  OPI_ASSERT_OK(run_open(&w, &session.v), &w.k.err);
  attack(&w, "session_open", &opi_struct_session_params, &session, run_open);
  ROOMY(opipe_tuning_params) tuning = {.v = {.struct_size = sizeof tuning.v, .kind = "cpu"}};
  OPI_ASSERT_ERROR(run_tune(&w, &tuning.v), OPIPE_E_UNSUPPORTED, &w.k.err, "backend 'cpu' has no");
  attack(&w, "plan_tune", &opi_struct_tuning_params, &tuning, run_tune);
  ROOMY(opipe_submit_params)
  submit = {.v = {.struct_size = sizeof submit.v,
                  .io_stride = sizeof inputs[0],
                  .inputs = inputs,
                  .n_inputs = 1}};
  OPI_ASSERT_OK(run_submit(&w, &submit.v), &w.k.err);
  attack_submits(&w, &submit);
  submit.v.outputs = inputs; /* the other list, which has the same stride */
  submit.v.n_outputs = 1;
  submit.v.inputs = NULL;
  submit.v.n_inputs = 0;
  attack_submits(&w, &submit);
  ROOMY(opipe_train_clock)
  clock = {.v = {.struct_size = sizeof clock.v, .loss_scale = 1}};
  OPI_ASSERT_OK(run_clock(&w, &clock.v), &w.k.err);
  attack(&w, "session_set_clock", &opi_struct_train_clock, &clock, run_clock);
  close_world(&w);
}

static void test_graphs(void) {
  world w;
  const int64_t shape[1] = {2}, axes[1] = {0};
  const float content[2] = {1, 2};
  const char *in[2] = {"x", "c"}, *out[1] = {"y"};
  opipe_build_value x[1] = {{"x", shape, NULL, OPIPE_FLOAT, 1}},
                    y[1] = {{"y", shape, NULL, OPIPE_FLOAT, 1}};
  opipe_build_tensor tensors[1] = {{.name = "c",
                                    .shape = shape,
                                    .data = content,
                                    .n_bytes = sizeof content,
                                    .dtype = OPIPE_FLOAT,
                                    .rank = 1}};
  opipe_attr attrs[1] = {{"unknown", axes, 0, 0, OPIPE_ATTR_INTS, 1}};
  opipe_build_node nodes[1] = {{.op = "Add",
                                .inputs = in,
                                .outputs = out,
                                .attrs = attrs,
                                .n_inputs = 2,
                                .n_outputs = 1,
                                .n_attrs = 1}};
  opipe_build_opset opsets[1] = {{NULL, 17}};
  open_world(&w);
  ROOMY(opipe_build_graph) graph = {.v = opipe_build_graph_init()};
  graph.v.inputs = x, graph.v.outputs = y, graph.v.n_inputs = graph.v.n_outputs = 1;
  graph.v.tensors = tensors, graph.v.n_tensors = 1;
  graph.v.nodes = nodes, graph.v.n_nodes = 1;
  ROOMY(opipe_build_params) build = {.v = opipe_build_params_init()};
  build.v.graph = &graph.v, build.v.opsets = opsets, build.v.n_opsets = 1;
  OPI_ASSERT_OK(run_build(&w, &build.v), &w.k.err);
  graph.v.outputs = NULL, graph.v.n_outputs = 0; /* one of the lists of one stride at a time */
  attack(&w, "model_build", &opi_struct_build_params, &build, run_build);
  graph.v.inputs = NULL, graph.v.n_inputs = 0;
  graph.v.outputs = y, graph.v.n_outputs = 1;
  attack(&w, "model_build", &opi_struct_build_params, &build, run_build);
  ROOMY(opipe_build_graph) body = {.v = graph.v};
  attrs[0] = (opipe_attr){"body", &body, 0, 0, OPIPE_ATTR_GRAPH, 1}; /* looked at all the same */
  body.v.nodes = NULL, body.v.n_nodes = 0;
  body.v.values_stride = 4;
  w.run = run_build, w.call = "model_build", w.params = &build;
  expect_refused(&w, "opipe_build_graph", "outputs", "a body with a short stride");
  close_world(&w);
}

OPI_TEST_MAIN("params", OPI_TEST(test_contexts_and_models), OPI_TEST(test_plans),
              OPI_TEST(test_plays), OPI_TEST(test_planners), OPI_TEST(test_sessions),
              OPI_TEST(test_graphs))
