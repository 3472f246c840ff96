/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and memory of training on the doubles: scores stay in their half type, the host waits for
 * no micro-batch, a checkpoint copies a tensor once. ctest: timeout=240 */
#include "partition/program/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "tests/plugins/backend-cuda/training.h"

enum { ROWS = 4, TOKENS = 8, CLASSES = 20, RANKS = 2 };

static kit_case case_of(uint32_t n_ranks, uint32_t m, uint32_t compute) {
  kit_case c = kit_case_of("1f1b", n_ranks, m, true);
  c.spec.compute = compute;
  c.device = "cuda";
  return c;
}

static void open_kit(kit *k, const kit_case *c) {
  OPI_ASSERT_OK_FATAL(kit_open(k, opi_test_source(ct_subjects[0].path), ROWS, TOKENS), &k->err);
  OPI_ASSERT_OK_FATAL(kit_plan(k, c), &k->err);
}

/* ---- scores ---- */

static uint32_t count_kernels(kit *k, const opipe_graph *graph) {
  const opi_backend_ref *backend = &k->backends[0];
  const opipe_device_params open = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options), .threads = 1};
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = OPIPE_COMPILE_OWNED,
      .graph = graph};
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, n_kernels)};
  opipe_device *device = NULL;
  opipe_program *program = NULL;
  OPI_ASSERT_OK_FATAL(backend->table->device_open(backend->self, &open, &device, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(backend->table->compile(device, &params, &program, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(backend->table->program_info(program, &info, &k->err), &k->err);
  backend->table->program_free(program);
  backend->table->device_close(device);
  return info.n_kernels;
}

/* The loss of a step reads scores of bf16: the copy of fp32 that the model gives is an
 * evaluation's, one kernel more. */
static void test_steps_make_no_scores_of_fp32(void) {
  const kit_case c = case_of(2, 2, OPIPE_BFLOAT16);
  kit k;
  opi_cut_model *model = NULL;
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  open_kit(&k, &c);
  const opi_bind_options base = {.evaluator = k.evaluator, .allocator = opi_allocator_system()};
  const opi_cut_sources from = {.plan = &k.plan->decided, .file = k.model, .base = &base};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &model, &k.err), &k.err);
  const opi_cut *cut = model->cuts[0];
  const uint32_t stage = cut->n_stages - 1;
  const char *name = cut->cells[opi_output_cell_at(cut, 1, stage)].name;
  opipe_graph graph = opi_program_of(cut, stage, OPI_PROGRAM_F)->graph;
  opipe_value *values = OPI_ARENA_ARRAY(&k.arena, opipe_value, graph.n_values);
  OPI_ASSERT_FATAL(values != NULL);
  memcpy(values, graph.values, graph.n_values * sizeof *values);
  const uint32_t n = count_kernels(&k, &graph);
  uint32_t v = 0;
  while (v + 1 < graph.n_values && strcmp(values[v].name, name) != 0)
    ++v;
  OPI_ASSERT_STR(values[v].name, name);
  OPI_ASSERT_INT(values[v].dtype, OPIPE_FLOAT);
  OPI_ASSERT_INT(values[v].role, OPIPE_VALUE_TEMP);
  if (values[v].role == OPIPE_VALUE_TEMP) {
    values[v].role = OPIPE_VALUE_OUTPUT;
    values[v].slot = graph.n_boundaries++;
  }
  graph.values = values;
  OPI_ASSERT_INT(count_kernels(&k, &graph), n + 1);
  opi_cut_model_free(model);
  kit_close(&k);
}

/* ---- waits ---- */

typedef struct waits {
  uint64_t streams, events, pageable;
} waits;

static const opipe_backend *real;
static _Atomic uint64_t n_event_waits;

/* Counts calls that find the event not done. */
static opipe_status counted_sync(opipe_event *event, uint64_t timeout_ns, opipe_error *err) {
  opipe_error none = OPIPE_ERROR_INIT;
  n_event_waits += real->event_poll(event, &none) == OPIPE_PENDING;
  return real->event_sync(event, timeout_ns, err);
}

typedef void facts_fn(cuda_double_facts *out);

static facts_fn *find_facts(void) {
  void *driver = dlopen(opi_test_build("tests/cuda/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  facts_fn *facts = NULL;
  *(void **)(void *)&facts = dlsym(driver, "cuda_double_look");
  OPI_ASSERT_FATAL(facts != NULL);
  return facts;
}

static waits look(facts_fn *facts) {
  cuda_double_facts now;
  facts(&now);
  return (waits){now.waits, n_event_waits, now.pageable};
}

/* Waits of a step of m micro-batches, after some have run. */
static waits waits_of_step(uint32_t m) {
  const kit_case c = case_of(RANKS, m, OPIPE_FLOAT);
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  double loss = 0;
  opipe_backend counting;
  facts_fn *facts = find_facts();
  open_kit(&k, &c);
  real = k.backends[0].table;
  counting = *real;
  counting.event_sync = counted_sync;
  for (uint32_t r = 0; r < k.plan->decided.n_ranks; ++r)
    k.backends[r].table = &counting;
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  for (uint32_t step = 0; step < 2; ++step) {
    OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, CLASSES, 3 + step, &batch), &k.err);
    OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss), &k.err);
  }
  const waits before = look(facts);
  OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss), &k.err);
  const waits after = look(facts);
  opi_session_close(session);
  kit_close(&k);
  return (waits){after.streams - before.streams, after.events - before.events,
                 after.pageable - before.pageable};
}

static void test_the_host_waits_for_no_micro_batch(void) {
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  for (uint32_t m = 1; m <= 4; m *= 2) {
    const waits n = waits_of_step(m);
    OPI_ASSERT_INT((int64_t)n.streams, 0);
    OPI_ASSERT_INT((int64_t)n.events, 0);
    OPI_ASSERT_INT((int64_t)n.pageable, 0); /* the ranks' norms, too, are summed by the device */
  }
}

/* ---- checkpoints ---- */

/* Tensors of a session's checkpoint: all weights, and moments of those that are trained. */
static uint64_t count_tensors(const opi_weights *weights) {
  opi_weight_info info;
  uint64_t n = 0;
  for (uint32_t i = 0; opi_weights_info(weights, i, &info); ++i)
    n += 1 + (info.trained != 0 ? opi_weights_moments(weights) : 0);
  return n;
}

static void test_a_checkpoint_copies_every_tensor_once(void) {
  static const uint64_t position[OPI_POSITION] = {0};
  const kit_case c = case_of(RANKS, 2, OPIPE_FLOAT);
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  cuda_double_facts before, after;
  double loss[2] = {0};
  if (!ct_has_doubles())
    OPI_SKIP("%s", CT_WHY);
  facts_fn *facts = find_facts();
  open_kit(&k, &c);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, CLASSES, 3, &batch), &k.err);
  for (uint32_t saves = 0; saves < 2; ++saves) {
    OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
    OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss[saves]), &k.err);
    opi_weights *weights = opi_train_weights(session);
    facts(&before);
    for (uint32_t s = 0; s < saves; ++s) {
      OPI_ASSERT_OK_FATAL(opi_checkpoint_save(opi_allocator_system(), weights,
                                              opi_test_tmp("checkpoint"), position, &k.err),
                          &k.err);
    }
    facts(&after);
    OPI_ASSERT_INT((int64_t)(after.reads - before.reads),
                   (int64_t)(saves * count_tensors(weights)));
    OPI_ASSERT_INT((int64_t)(after.writes - before.writes), 0);
    OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss[saves]), &k.err);
    opi_session_close(session);
  }
  OPI_ASSERT(loss[0] == loss[1]); /* a save leaves no trace */
  kit_close(&k);
}

OPI_TEST_MAIN("memory of training on doubles of CUDA", OPI_TEST(test_steps_make_no_scores_of_fp32),
              OPI_TEST(test_the_host_waits_for_no_micro_batch),
              OPI_TEST(test_a_checkpoint_copies_every_tensor_once))
