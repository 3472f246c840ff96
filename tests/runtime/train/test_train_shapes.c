/* SPDX-License-Identifier: Apache-2.0 */
/* Mini-batches of other shapes than the plan's in one session: more or fewer samples, longer or
 * shorter sequences, in turns with the plan's own; same weights, same optimizer state.
 *
 * A series of such steps has the bits of the plan's reference; a first step of another shape is
 * close to the first step of a plan that was made for it. ctest: timeout=600 label=twice */
#include <stdio.h>

#include "tests/runtime/train/cases.h"

typedef struct size {
  int64_t rows, tokens;
} size;

enum { TURNS = 7, RANKS = 2, M = 4, CLASSES = 32 };
/* the plan's, uneven micro-batches, the plan's, longer, shorter with more samples, again, own */
static const size turns[TURNS] = {{8, 8}, {10, 8}, {8, 8}, {8, 11}, {12, 6}, {10, 8}, {8, 8}};

static const char *model_path(void) {
  return opi_test_source("tests/data/gpt_8block/model.onnx");
}

/* All in flight at once, as far as the session takes them, and two evaluations at the end. */
typedef struct series {
  double losses[TURNS], evaluated[2];
  float *weights, *logits;
  size_t n, n_logits;
} series;

static opipe_status submit(kit *k, opi_session *session, const kit_batch *batch,
                           opi_request **out_ticket) {
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = batch->n_inputs,
      .io_stride = sizeof(opipe_binding_io),
      .inputs = batch->inputs};
  return opi_train_step(session, &params, out_ticket, NULL, &k->err);
}

static opipe_status run_turns(kit *k, const kit_case *c, opi_session *session, series *out) {
  opi_request *tickets[TURNS] = {NULL};
  opipe_status status = OPIPE_OK;
  kit_batch batch;
  for (uint32_t i = 0; i < TURNS && status == OPIPE_OK; ++i) {
    status = kit_resize(k, turns[i].rows, turns[i].tokens);
    if (status == OPIPE_OK)
      status = kit_batch_random(k, c, CLASSES, 50 + i, &batch);
    if (status == OPIPE_OK)
      status = submit(k, session, &batch, &tickets[i]);
  }
  for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i) {
    status = kit_resize(k, turns[3 + i].rows, turns[3 + i].tokens);
    if (status == OPIPE_OK)
      status = kit_batch_random(k, c, CLASSES, 90, &batch);
    if (status == OPIPE_OK)
      status = kit_evaluate(k, session, &batch, &out->evaluated[i], &out->logits, &out->n_logits);
  }
  if (status == OPIPE_OK)
    status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
  for (uint32_t i = 0; i < TURNS && status == OPIPE_OK; ++i) {
    opi_train_result result = {.loss = 0};
    status = opi_train_report(tickets[i], &result, &k->err);
    out->losses[i] = result.loss;
  }
  for (uint32_t i = 0; i < TURNS; ++i)
    opi_request_release(tickets[i]);
  if (status == OPIPE_OK)
    status = kit_state(k, session, OPI_TENSOR_WEIGHT, &out->weights, &out->n);
  return status;
}

static opipe_status run_series(kit *k, const kit_case *c, uint32_t flags, series *out) {
  opi_session *session = NULL;
  opipe_status status = kit_session(k, flags, &session);
  if (status == OPIPE_OK)
    status = run_turns(k, c, session, out);
  opi_session_close(session);
  return status;
}

/* One step of size `at` from the first weights, by the kit's plan. */
static opipe_status first_step(kit *k, const kit_case *c, size at, kit_outcome *out) {
  opi_session *session = NULL;
  kit_batch batch;
  opipe_status status = kit_resize(k, at.rows, at.tokens);
  if (status == OPIPE_OK)
    status = kit_session(k, 0, &session);
  if (status == OPIPE_OK)
    status = kit_batch_random(k, c, CLASSES, 7, &batch);
  for (uint32_t s = 0; s < KIT_STEPS && status == OPIPE_OK; ++s)
    status = kit_step(k, session, &batch, &out->losses[s]);
  if (status == OPIPE_OK)
    status = kit_state(k, session, OPI_TENSOR_WEIGHT, &out->weights, &out->n);
  opi_session_close(session);
  return status;
}

static kit_case case_of(const kit_schedule *schedule, char *text, size_t room) {
  const uint32_t n_ranks = (schedule->traits & KIT_FOUR) != 0 ? 4 : RANKS;
  kit_schedule_name(schedule, n_ranks, M, text, room);
  return kit_case_of(text, strcmp(schedule->name, "sequential") == 0 ? 1 : n_ranks, M, true);
}

static void compare_series(const char *what, const series *a, const series *b) {
  for (uint32_t i = 0; i < TURNS; ++i) {
    if (a->losses[i] != b->losses[i]) {
      OPI_FAIL("%s: loss %.9g at turn %u, the reference has %.9g", what, a->losses[i], i,
               b->losses[i]);
    }
  }
  OPI_ASSERT(a->evaluated[0] == b->evaluated[0] && a->evaluated[1] == b->evaluated[1]);
  OPI_ASSERT_INT(a->n, b->n);
  OPI_ASSERT_INT(a->n_logits, b->n_logits);
  OPI_ASSERT_BITS(a->weights, b->weights, a->n, OPIPE_FLOAT);
  OPI_ASSERT_BITS(a->logits, b->logits, a->n_logits, OPIPE_FLOAT);
}

static void compare(kit *k, const kit_schedule *schedule) {
  char name[4200];
  series a, b;
  kit_outcome guest, own;
  const kit_case c = case_of(schedule, name, sizeof name);
  OPI_ASSERT_OK_FATAL(kit_resize(k, turns[0].rows, turns[0].tokens), &k->err);
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  if (run_series(k, &c, 0, &a) < 0 || run_series(k, &c, OPIPE_SESSION_REFERENCE, &b) < 0) {
    OPI_FAIL("%s: %s", schedule->name, k->err.message);
    return;
  }
  compare_series(schedule->name, &a, &b);
  OPI_ASSERT_OK_FATAL(first_step(k, &c, turns[1], &guest), &k->err);
  if (strstr(schedule->name, "lengths=") == NULL) {
    OPI_ASSERT_OK_FATAL(kit_resize(k, turns[1].rows, turns[1].tokens), &k->err);
    OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
    OPI_ASSERT_OK_FATAL(first_step(k, &c, turns[1], &own), &k->err);
    kit_compare(schedule->name, &guest, &own, 1e-5);
  }
}

static void test_every_schedule(void) {
  uint32_t n = 0;
  for (size_t i = 0; i < kit_n_schedules; ++i) {
    kit k;
    if ((kit_schedules[i].traits & KIT_BOUNDED) != 0 || !opi_test_covers(i, opi_test_sparse(3)))
      continue;
    OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), turns[0].rows, turns[0].tokens), &k.err);
    compare(&k, &kit_schedules[i]);
    kit_close(&k);
    ++n;
  }
  OPI_ASSERT(n > 0);
}

/* The families of today: masks, encoders and decoders, tied heads, rotary positions. */
static void test_models(void) {
  for (size_t i = 0; i < kit_n_subjects; ++i) {
    const kit_subject *subject = &kit_subjects[i];
    const char *path =
        subject->shared ? opi_test_shared(subject->path) : opi_test_source(subject->path);
    kit k;
    series a, b;
    const kit_case c = kit_case_of("1f1b", RANKS, M, true);
    if (path == NULL || !opi_test_covers(i, opi_test_sparse(2)))
      continue;
    OPI_ASSERT_OK_FATAL(kit_open(&k, path, turns[0].rows, turns[0].tokens), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    if (run_series(&k, &c, 0, &a) < 0 || run_series(&k, &c, OPIPE_SESSION_REFERENCE, &b) < 0)
      OPI_FAIL("%s: %s", subject->name, k.err.message);
    else
      compare_series(subject->name, &a, &b);
    kit_close(&k);
  }
}

/* ---- steps that a session cannot take ---- */

static kit_case plain_case(void) {
  return kit_case_of("1f1b", RANKS, M, false);
}

static opipe_status one_step(kit *k, const kit_case *c, opi_session *session, size at,
                             double *out_loss) {
  kit_batch batch;
  OPI_TRY(kit_resize(k, at.rows, at.tokens));
  OPI_TRY(kit_batch_random(k, c, CLASSES, 7, &batch));
  return kit_step(k, session, &batch, out_loss);
}

/* The caps have room for the plan's own shape, and not for a much larger one. */
static void test_caps(void) {
  kit k;
  opi_session *session = NULL;
  double before = 0, after = 0, fresh = 0;
  uint64_t caps[RANKS];
  kit_case c = plain_case();
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  for (uint32_t r = 0; r < RANKS; ++r)
    caps[r] = k.plan->predicted.memory[r].total_bytes + 65536;
  c.caps = caps;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK_FATAL(one_step(&k, &c, session, (size){8, 8}, &before), &k.err);
  for (uint32_t i = 0; i < 2; ++i) {
    OPI_ASSERT_ERROR(one_step(&k, &c, session, (size){64, 32}, &after), OPIPE_E_LIMIT, &k.err,
                     "rank 0");
  }
  OPI_ASSERT_OK_FATAL(one_step(&k, &c, session, (size){8, 8}, &after), &k.err);
  OPI_ASSERT(after < before); /* the refused ones left nothing behind: the second step */
  opi_session_close(session);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK_FATAL(one_step(&k, &c, session, (size){8, 8}, &fresh), &k.err);
  OPI_ASSERT_OK_FATAL(one_step(&k, &c, session, (size){8, 8}, &fresh), &k.err);
  OPI_ASSERT(fresh == after);
  opi_session_close(session);
  kit_close(&k);
}

static void test_wrong_sizes(void) {
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  double loss = 0;
  const kit_case c = plain_case();
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_ERROR(one_step(&k, &c, session, (size){3, 8}, &loss), OPIPE_E_INVALID, &k.err,
                   "a mini-batch of 3 rows cannot be cut into 4 micro-batches");
  OPI_ASSERT_OK_FATAL(kit_resize(&k, 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, CLASSES, 7, &batch), &k.err);
  batch.shapes[batch.n_inputs - 1][1] = 5; /* labels of 5 tokens for inputs of 8 */
  OPI_ASSERT_ERROR(
      kit_step(&k, session, &batch, &loss), OPIPE_E_INVALID, &k.err,
      "input 'labels' of a mini-batch has shape [8, 5], beside the others it is [8, 8]");
  OPI_ASSERT_OK(one_step(&k, &c, session, (size){8, 8}, &loss), &k.err);
  opi_session_close(session);
  kit_close(&k);
}

/* ---- many of them ---- */

static uint64_t bytes_of(kit *k, opi_session *session) {
  opipe_memory_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_memory_info, mapped_bytes)};
  OPI_ASSERT_OK(opi_session_memory(session, 0, &info, &k->err), &k->err);
  return info.total_bytes;
}

/* More shapes than places: the one used longest ago goes, and comes again. Memory stays bounded. */
static void test_more_than_places(void) {
  static const char *const schedules[] = {"1f1b", "2bw"};
  enum { SHAPES = 7, ROUNDS = 3 };
  for (size_t i = 0; i < OPI_COUNT(schedules); ++i) {
    kit k;
    opi_session *sessions[2] = {NULL};
    uint64_t first = 0;
    const kit_case c = kit_case_of(schedules[i], RANKS, M, false);
    OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    k.max_shapes = 4;
    OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &sessions[0]), &k.err);
    OPI_ASSERT_OK_FATAL(kit_session(&k, OPIPE_SESSION_REFERENCE, &sessions[1]), &k.err);
    for (uint32_t round = 0; round < ROUNDS; ++round) {
      for (int64_t t = 0; t < SHAPES; ++t) {
        double losses[2] = {0, 1};
        for (uint32_t s = 0; s < 2; ++s) {
          OPI_ASSERT_OK_FATAL(one_step(&k, &c, sessions[s], (size){8 + t, 8 - t}, &losses[s]),
                              &k.err);
        }
        OPI_ASSERT(losses[0] == losses[1]);
      }
      first = round == 0 ? bytes_of(&k, sessions[0]) : first;
      OPI_ASSERT_INT(bytes_of(&k, sessions[0]), first);
    }
    opipe_session_info info = {.struct_size =
                                   (uint32_t)OPIPE_END(opipe_session_info, shapes_compiled)};
    OPI_ASSERT_OK(opi_session_info(sessions[0], &info, &k.err), &k.err);
    OPI_ASSERT_INT(info.shapes_compiled, 1 + (SHAPES - 1) * ROUNDS);
    opi_session_close(sessions[0]);
    opi_session_close(sessions[1]);
    kit_close(&k);
  }
}

OPI_TEST_MAIN("training in several shapes", OPI_TEST(test_every_schedule), OPI_TEST(test_models),
              OPI_TEST(test_caps), OPI_TEST(test_wrong_sizes), OPI_TEST(test_more_than_places))
