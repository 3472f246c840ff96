/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that were changed by hand, for inference and for training: what does not hold is refused by
 * name; what holds is read, in time, and runs with the bits of its reference. Found by
 * tests/fuzz/fuzz_plan.c or on the way to it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "loader/base/base.h"
#include "tests/abi/host_kit.h"

static const char *const LLAMA = "tests/data/llama_attention/model.onnx";

/* The first `from` of the plan becomes `to`; refused with a message that holds `says`. NULL: read.
 */
typedef struct edit {
  const char *from, *to, *says;
} edit;

static char *replace(const opi_test_text *plan, const edit *e, size_t *out_n) {
  const char *at = strstr(plan->data, e->from);
  if (at == NULL) {
    OPI_FAIL("the plan has no '%s'", e->from);
    return NULL;
  }
  const size_t before = (size_t)(at - plan->data), from = strlen(e->from), to = strlen(e->to);
  char *copy = malloc(plan->n + to + 1);
  OPI_ASSERT_FATAL(copy != NULL);
  memcpy(copy, plan->data, before);
  memcpy(copy + before, e->to, to);
  memcpy(copy + before + to, at + from, plan->n - before - from + 1);
  *out_n = plan->n - from + to;
  kit_take_out_hash(copy, out_n);
  return copy;
}

/* Written, read and written again: the same bytes. */
static void write_again(host_kit *k, opipe_plan *plan, const edit *e) {
  opi_test_text first = {.data = NULL}, second = {.data = NULL};
  opipe_plan *again = NULL;
  OPI_ASSERT_OK_FATAL(k->api->plan_write(plan, opi_test_take, &first, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_read(k->model, first.data, first.n, &again, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_write(again, opi_test_take, &second, &k->err), &k->err);
  if (first.n != second.n || memcmp(first.data, second.data, first.n) != 0)
    OPI_FAIL("'%s' in place of '%s': written otherwise once it was read again", e->to, e->from);
  k->api->plan_destroy(again);
  free(first.data);
  free(second.data);
}

static void read_edited(host_kit *k, const opi_test_text *plan, const edit *e) {
  opipe_plan *out = NULL;
  size_t n = 0;
  char *copy = replace(plan, e, &n);
  if (copy == NULL)
    return;
  k->err.message[0] = '\0';
  const opipe_status status = k->api->plan_read(k->model, copy, n, &out, &k->err);
  const bool good = e->says == NULL ? status == OPIPE_OK
                                    : status < 0 && status != OPIPE_E_INTERNAL &&
                                          strstr(k->err.message, e->says) != NULL;
  if (!good)
    OPI_FAIL("'%s' in place of '%s': status %d, '%s'", e->to, e->from, (int)status, k->err.message);
  if (status == OPIPE_OK) {
    write_again(k, out, e);
    k->api->plan_destroy(out);
  }
  free(copy);
}

static void read_all(host_kit *k, const edit *edits, size_t n) {
  opi_test_text plan = {.data = NULL};
  OPI_ASSERT_OK_FATAL(k->api->plan_write(k->plan, opi_test_take, &plan, &k->err), &k->err);
  for (size_t i = 0; i < n; ++i)
    read_edited(k, &plan, &edits[i]);
  free(plan.data);
}

static void test_edited_inference_plans(void) {
  static const edit edits[] = {
      {"\"depth\": 2", "\"depth\": 3", NULL},
      {"\"in_flight\": 0", "\"in_flight\": 65536", NULL},
      {"\"in_flight\": 0", "\"in_flight\": 65537", "\"in_flight\" must be"},
      {"\"actions\": [\n    \"0F0", "\"actions\": [\n    \"3F0",
       "rank 0, step 0: 3F0: stage 3 of 2"},
      {"\"0F0 0F1\"", "\"0F0 9999999F1\"", "stage 9999999 of 2"},
      {"\"0F0 0F1\"", "\"0F0 999999999F1\"", "'999999999F1': the stage is above 16777216"},
      {"\"0F0 0F1\"", "\"0F0 0F7\"", "micro-batch 7 of 2"},
      {"\"0F0 0F1\"", "\"0F0 -1F1\"", "'-1F1': there is no such kind of action"},
      {"\"0F0 0F1\"", "\"0F0 0F 1\"", "'0F': the micro-batch is missing"},
      {"\"0F0 0F1\"", "\"0F0 0B1\"", "'0B1': the plan is for inference"},
      {"\"0F0 0F1\"", "\"0F0 0F1@ 0\"", "'0F1@': there is more text"},
      {"\"0F0 0F1\"", "\"0F0 0F1 0SUM_F1\"", "'0SUM_F1': plans hold F, B, I and W; no session"},
      {"\"0F0 0F1\"", "\"0F0 0OFFLOAD0 0F1\"", "'0OFFLOAD0': plans hold F, B, I and W; no session"},
      {"\"0F0 0F1\"", "\"0F0 0SEND_F0 0F1\"", "'0SEND_F0': plans hold F, B, I and W"},
      {"\"peak_flops\": ", "\"peak_flops\": -", "\"peak_flops\" must be a number"},
      {"\"peak_flops\": ", "\"peak_flops\": 1e31, \"was\": ", "\"peak_flops\" must be a number"},
      {"\"settings\": {}", "\"settings\": []", "\"settings\" must be an object"},
      {"\"settings\": {},", "", "\"settings\" must be an object"},
      {"\"cost\": \"rates\"", "\"cost\": \"guess\"", "\"cost\" is 'guess'"},
      {"\"time_ns\": ", "\"time_ns\": -", "\"time_ns\" must be a number from 0"},
      {"\"time_ns\": ", "\"time_ns\": 1e300, \"was\": ", "\"time_ns\" must be a number from 0"},
      {"\"batch_dim\": \"batch\"", "\"batch_dim\": \"gpipe\"",
       "'gpipe' is not one of its dimensions"},
      {"\"batch_rows\": 4", "\"batch_rows\": 5", "\"batch_rows\" is 5, dimension 'batch' is 4"},
      {"\"bound_ns\": ", "\"bound_ns\": -0.0, \"was\": ", NULL},
      {"\"bound_ns\": ", "\"bound_ns\": -", "\"bound_ns\" must be a number from 0"},
  };
  host_kit k;
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = 2, .n_microbatches = 2};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, 4, 4, &params), &k.err);
  read_all(&k, edits, OPI_COUNT(edits));
  kit_close(&k);
}

/* Reading takes time in proportion to the file's length, not to its square. */
static void test_many_stages_without_nodes(void) {
  enum { MANY = 60000, ROOM = 48 };
  static char stages[MANY * ROOM], actions[MANY * ROOM];
  host_kit k;
  size_t n = 0, m = 0;
  opi_test_text plan = {.data = NULL}, longer = plan;
  const opipe_plan_params params = {.struct_size = sizeof params, .n_stages = 2};
  const edit at_stages = {"]}\n  ],\n  \"actions\"", stages, NULL};
  const edit at_actions = {"\"1F0\"", actions, NULL};
  n = (size_t)snprintf(stages, sizeof stages, "]}");
  m = (size_t)snprintf(actions, sizeof actions, "\"1F0");
  for (uint32_t s = 2; s < MANY; ++s) {
    n += (size_t)snprintf(stages + n, sizeof stages - n,
                          ", {\"rank\": 1, \"time_ns\": 1, \"nodes\": []}");
    m += (size_t)snprintf(actions + m, sizeof actions - m, " %uF0", s);
  }
  (void)snprintf(stages + n, sizeof stages - n, "\n  ],\n  \"actions\"");
  (void)snprintf(actions + m, sizeof actions - m, "\"");
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, 4, 4, &params), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_write(k.plan, opi_test_take, &plan, &k.err), &k.err);
  longer.data = replace(&plan, &at_stages, &longer.n);
  OPI_ASSERT_FATAL(longer.data != NULL);
  read_edited(&k, &longer, &at_actions);
  free(longer.data);
  free(plan.data);
  kit_close(&k);
}

static opipe_status plan_training(host_kit *k, const char *schedule, uint32_t n_microbatches) {
  const opipe_train_glob glob = {"*", 1, 0};
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .labels = "labels",
                                     .ignore = -100,
                                     .globs = &glob,
                                     .n_globs = 1,
                                     .globs_stride = sizeof(opipe_train_glob),
                                     .lr = 0.1};
  const opipe_plan_params plan = {.struct_size = sizeof plan,
                                  .n_ranks = 2,
                                  .n_microbatches = n_microbatches,
                                  .schedule = schedule,
                                  .train = &train};
  return kit_plan_training(k, LLAMA, 4, 4, &plan);
}

static void test_edited_training_plans(void) {
  static const edit edits[] = {
      {"\"lr\": 0.1", "\"lr\": 0.2", NULL},
      {"\"lr\": 0.1", "\"lr\": -0.1", "lr is -0.1, it must be 0 to 1e+30"},
      {"[\"*\", true]", "[\"*\", 1]", "\"trainable\" must hold [glob, boolean]"},
      {"\"labels\": \"labels\"", "\"labels\": 7", "\"labels\" must be a string"},
      {"\"loss_scaling\": 0", "\"loss_scaling\": 1", "loss_scaling is 1 and compute is fp32"},
      {"\"smoothing\": 0", "\"smoothing\": 0, \"output\": null", "\"output\" must be a string"},
      {"\"input_ns\": [", "\"input_ns\": [-", "\"input_ns\" must be a number from 0"},
      {"\"weight_ns\": [", "\"weight_ns\": [\"1\", ", "\"weight_ns\" has 3 numbers for 2"},
      {"\"ranks\": [0, 1]", "\"ranks\": [1, 0]", "stage 0 is on rank 0, \"ranks\" has rank 1"},
  };
  host_kit k;
  OPI_ASSERT_OK_FATAL(plan_training(&k, "1f1b", 2), &k.err);
  read_all(&k, edits, OPI_COUNT(edits));
  kit_close(&k);
}

#define PIN(dtype, shape, bytes)                                                  \
  "\"pins\": [{\"input\": \"input_ids\", \"dtype\": " dtype ", \"shape\": " shape \
  ", \"bytes\": \"" bytes "\"}]"

static void test_edited_pins(void) {
  static const edit edits[] = {
      {"\"pins\": []", "\"pins\": [7]", "\"input\" must be a string"},
      {"\"pins\": []", PIN("7", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "00"),
       "rank 17, at most 16"},
      {"\"pins\": []", PIN("7", "[1, -1]", "00"), "pin 'input_ids': axis 1 must be an integer"},
      {"\"pins\": []", PIN("7", "[1.5]", "00"), "axis 0 must be an integer"},
      {"\"pins\": []", PIN("7", "[1, 1]", "00"), "has 1 bytes, its shape says 8"},
      {"\"pins\": []", PIN("7", "[4611686018427387904, 2]", ""), "pin 'input_ids' has 0 bytes"},
      {"\"pins\": []", PIN("65", "[1, 1]", "00"), "\"dtype\" must be"},
      {"\"pins\": []", PIN("9", "[2]", "010g"), "pin 'input_ids': byte 1 is not hexadecimal"},
  };
  host_kit k;
  const opipe_plan_params params = {.struct_size = sizeof params, .n_stages = 2};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, 4, 4, &params), &k.err);
  read_all(&k, edits, OPI_COUNT(edits));
  kit_close(&k);
}

/* The nodes of the second stage are moved to the first, in a copy of the plan's text. */
static char *without_second_stage(const opi_test_text *plan) {
  static const char key[] = "\"nodes\": [";
  const char *first = strstr(plan->data, key);
  const char *first_end = first == NULL ? NULL : strchr(first, ']');
  const char *second = first_end == NULL ? NULL : strstr(first_end, key);
  const char *second_end = second == NULL ? NULL : strchr(second, ']');
  char *copy = malloc(plan->n + 3);
  OPI_ASSERT_FATAL(second_end != NULL && copy != NULL);
  second += strlen(key);
  (void)snprintf(copy, plan->n + 3, "%.*s, %.*s%.*s%s", (int)(first_end - plan->data), plan->data,
                 (int)(second_end - second), second, (int)(second - first_end), first_end,
                 second_end);
  return copy;
}

static void test_memory_of_a_rank_without_weights(void) {
  host_kit k;
  opi_test_text text = {.data = NULL};
  OPI_ASSERT_OK_FATAL(plan_training(&k, "1f1b", 2), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_write(k.plan, opi_test_take, &text, &k.err), &k.err);
  char *edited = without_second_stage(&text);
  size_t n = strlen(edited);
  kit_take_out_hash(edited, &n);
  k.api->plan_destroy(k.plan);
  k.plan = NULL;
  OPI_ASSERT_OK_FATAL(k.api->plan_read(k.model, edited, n, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  for (uint32_t r = 0; r < 2; ++r) {
    opipe_memory_info p = {.struct_size = sizeof p}, m = p;
    OPI_ASSERT_OK(k.api->plan_memory(k.plan, r, &p, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->session_memory(k.session, r, &m, &k.err), &k.err);
    OPI_ASSERT_INT(p.flags, OPIPE_MEMORY_ESTIMATED); /* the prediction was for other stages */
    OPI_ASSERT_INT((int64_t)m.optimizer_bytes, (int64_t)p.optimizer_bytes);
    OPI_ASSERT((m.params_bytes == 0) == (r == 1));
    OPI_ASSERT((p.params_bytes == 0) == (r == 1));
  }
  kit_close(&k);
  free(edited);
  free(text.data);
}

/* ---- orders that no schedule gives ---- */

enum { ROWS = 4, WIDTH = 4, CLASSES = 96, REQUESTS = 3 };

typedef struct run {
  int64_t ids[REQUESTS][ROWS * WIDTH];
  float logits[REQUESTS][ROWS * WIDTH * CLASSES];
  uint32_t may_write; /* a flag that the first request waits for before it stores its results */
} run;

static void submit_all(host_kit *k, run *r, opipe_request **out) {
  static const int64_t ids_shape[] = {ROWS, WIDTH}, logits_shape[] = {ROWS, WIDTH, CLASSES};
  opipe_tensor_info info = {.struct_size = sizeof info};
  opi_test_random random = {3};
  OPI_ASSERT_OK_FATAL(k->api->model_output(k->bound, 0, &info, &k->err), &k->err);
  OPI_ASSERT_INT(info.shape[2], CLASSES);
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    for (uint32_t e = 0; e < ROWS * WIDTH; ++e)
      r->ids[i][e] = (int64_t)(opi_test_next(&random) % 16);
    const opipe_binding_io input = kit_ids(r->ids[i], ids_shape);
    opipe_binding_io output = {.name = info.name,
                               .tensor = {.data = r->logits[i],
                                          .device_type = OPIPE_DL_CPU,
                                          .rank = 3,
                                          .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                          .shape = logits_shape}};
    if (i == 0)
      output.ready = (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = &r->may_write};
    const opipe_submit_params params = {.struct_size = sizeof params,
                                        .n_inputs = 1,
                                        .io_stride = sizeof(opipe_binding_io),
                                        .inputs = &input,
                                        .n_outputs = 1,
                                        .outputs = &output};
    OPI_ASSERT_OK_FATAL(k->api->session_submit(k->session, &params, &out[i], &k->err), &k->err);
  }
}

static void drive(host_kit *k, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) {
    for (uint32_t rank = 0; rank < 2; ++rank)
      OPI_ASSERT(k->api->session_drive(k->session, rank, 0, &k->err) >= 0);
  }
}

/* The last stage computes its first micro-batch and cannot store it, while the stage before goes on
 * as far as it may. */
static void run_plan(host_kit *k, opipe_plan *plan, uint32_t flags, run *r) {
  opipe_request *requests[REQUESTS] = {NULL};
  const bool reference = (flags & OPIPE_SESSION_REFERENCE) != 0;
  const opipe_session_params params = {
      .struct_size = sizeof params,
      .flags = flags,
      .threads = reference ? OPIPE_THREADS_LIBRARY : OPIPE_THREADS_HOST,
      .max_in_flight = REQUESTS,
      .spin_us = UINT32_MAX};
  OPI_ASSERT_OK_FATAL(k->api->session_open(k->context, plan, &params, &k->session, &k->err),
                      &k->err);
  r->may_write = reference;
  submit_all(k, r, requests);
  if (!reference)
    drive(k, 10);
  __atomic_store_n(&r->may_write, 1, __ATOMIC_RELEASE);
  if (!reference)
    drive(k, 20);
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    OPI_ASSERT_OK(k->api->request_wait(requests[i], UINT64_C(10000000000), &k->err), &k->err);
    k->api->request_release(requests[i]);
  }
  k->api->session_close(k->session);
  k->session = NULL;
}

static void compare_order(host_kit *k, const opi_test_text *text, const edit *order) {
  static run x, y;
  opipe_plan *plan = NULL;
  size_t n = 0;
  char *copy = replace(text, order, &n);
  OPI_ASSERT_OK_FATAL(k->api->plan_read(k->model, copy, n, &plan, &k->err), &k->err);
  run_plan(k, plan, 0, &x);
  run_plan(k, plan, OPIPE_SESSION_REFERENCE, &y);
  if (memcmp(x.logits, y.logits, sizeof x.logits) != 0)
    OPI_FAIL("order %s: other bits than the reference's", order->to);
  k->api->plan_destroy(plan);
  free(copy);
}

/* The last stage takes micro-batches in another order than they are made, so that slots are free in
 * another order than they are filled. */
static void test_any_order_has_the_bits_of_its_reference(void) {
  static const edit orders[] = {{"\"1F0 1F1 1F2 1F3\"", "\"1F1 1F0 1F3 1F2\"", NULL},
                                {"\"1F0 1F1 1F2 1F3\"", "\"1F3 1F2 1F1 1F0\"", NULL},
                                {"\"0F0 0F1 0F2 0F3\"", "\"0F3 0F2 0F1 0F0\"", NULL}};
  static const char *const transports[] = {"local", "emulated:rule=tag", "emulated:rule=stream"};
  for (uint32_t t = 0; t < OPI_COUNT(transports); ++t) {
    host_kit k;
    opi_test_text text = {.data = NULL};
    const opipe_plan_params params = {.struct_size = sizeof params,
                                      .n_stages = 2,
                                      .n_microbatches = 4,
                                      .depth = 4,
                                      .transport = transports[t]};
    OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, WIDTH, &params), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->plan_write(k.plan, opi_test_take, &text, &k.err), &k.err);
    for (size_t i = 0; i < OPI_COUNT(orders); ++i)
      compare_order(&k, &text, &orders[i]);
    free(text.data);
    kit_close(&k);
  }
}

/* Copies of the pipeline that take requests in turn. */
static void test_edited_copies(void) {
  static const edit edits[] = {
      {"\"ranks\": [0, 1]", "\"ranks\": [0, 0]", "2 copies of the pipeline take requests"},
      {"\"ranks\": [0, 1]", "\"ranks\": [1, 0]", "\"ranks\" has rank 1"},
      {"\"copies\": 2", "\"copies\": 3", "\"copies\" must be an integer from 0 to 2"},
      {"    \"\"\n", "    \"0@1F0\"\n", "micro-batch 0 passes stage 0 in replica 0"},
      {"\"0F0\",\n    \"\"", "\"\",\n    \"0@1F0\"", "2 copies of the pipeline take requests"},
  };
  host_kit k;
  const opipe_plan_params params = {.struct_size = sizeof params, .n_stages = 1, .replicas = 2};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, 4, 4, &params), &k.err);
  read_all(&k, edits, OPI_COUNT(edits));
  kit_close(&k);
}

OPI_TEST_MAIN("plan reader", OPI_TEST(test_edited_inference_plans), OPI_TEST(test_edited_copies),
              OPI_TEST(test_edited_training_plans), OPI_TEST(test_edited_pins),
              OPI_TEST(test_memory_of_a_rank_without_weights),
              OPI_TEST(test_many_stages_without_nodes),
              OPI_TEST(test_any_order_has_the_bits_of_its_reference))
