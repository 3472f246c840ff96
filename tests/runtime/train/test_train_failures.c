/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that fails, and one that stalls, under every schedule: every ticket ends with an error
 * that names rank, stage and pass (of a stall also who waits), within the watchdog's time; the
 * session closes at once; the same plan opens again and trains as before. ctest: timeout=300 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/runtime/train/cases.h"

enum { RANKS = 4, MICROBATCHES = 4, TICKETS = 3, CULPRIT = RANKS - 1 };
static const int64_t ROWS = 8, TOKENS = 8;
static const uint64_t WATCHDOG_NS = UINT64_C(400000000);
/* Delay that a loaded machine may add; far below the stall. */
static const double SLACK_S = 8; /* of a busy machine; a hang is waited for longer */
enum { STALL_MS = 20000 };

static double now_s(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct failing {
  kit k;
  kit_batch batches[TICKETS];
  const kit_schedule *schedule;
  char name[600];
} failing;

static opipe_status make_plan(failing *f, const char *last_options) {
  kit_case c = {
      .schedule = f->name,
      .n_ranks = RANKS,
      .n_microbatches = MICROBATCHES,
      .device = "emulated",
      .device_options = "time_us=10",
      .last_options = last_options,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = kit_optimizers[0].spec}};
  return kit_plan(&f->k, &c);
}

static void submit(failing *f, opi_session *session, uint32_t n, opi_request **tickets) {
  for (uint32_t i = 0; i < n; ++i) {
    const opipe_submit_params params = {
        .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
        .n_inputs = f->batches[i].n_inputs,
        .io_stride = sizeof(opipe_binding_io),
        .inputs = f->batches[i].inputs};
    tickets[i] = NULL;
    (void)opi_train_step(session, &params, &tickets[i], NULL,
                         &f->k.err); /* it may have failed by now */
  }
}

/* "..., stage 5 ...": does that stage live on the culprit? */
static bool names_its_stage(const failing *f, const char *message) {
  const opi_decision *plan = &f->k.plan->decided;
  const char *at = strstr(message, "stage ");
  const unsigned long stage = at == NULL ? OPIPE_NONE : strtoul(at + strlen("stage "), NULL, 10);
  for (uint32_t r = 0; stage < plan->n_stages && r < plan->n_replicas; ++r) {
    if (opi_plan_rank(plan, (uint32_t)stage, r) == CULPRIT)
      return true;
  }
  return false;
}

static bool names_a_pass(const char *message) {
  return strstr(message, "forward") != NULL || strstr(message, "backward") != NULL;
}

static void judge(const failing *f, const char *message, bool stall, const char *what) {
  char rank[60], peer[60];
  (void)snprintf(rank, sizeof rank, stall ? "watchdog: rank %d has been in" : "rank %d, stage ",
                 CULPRIT);
  (void)snprintf(peer, sizeof peer, "waiting for rank %d", CULPRIT);
  const bool right = strstr(message, rank) != NULL && names_its_stage(f, message) &&
                     names_a_pass(message) && strstr(message, "micro-batch ") != NULL &&
                     (!stall || strstr(message, peer) != NULL);
  if (!right)
    OPI_FAIL("%s, %s: %s", f->schedule->name, what, message);
}

/* The first mini-batch is whole, the second meets the fault, the third comes too late. Returns the
 * first one's loss. */
static double run_badly(failing *f, bool stall) {
  const bool buffered = (f->schedule->traits & KIT_BUFFERED) != 0; /* bodies hold two of them */
  const char *what = stall ? "stalled" : "failed";
  opi_session *session = NULL;
  opi_request *tickets[TICKETS] = {NULL};
  opi_train_result first = {.loss = 0};
  OPI_ASSERT_OK_FATAL(kit_session(&f->k, 0, &session), &f->k.err);
  const double start = now_s();
  submit(f, session, TICKETS, tickets);
  for (uint32_t i = 0; i < TICKETS; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    if (tickets[i] == NULL) {
      judge(f, f->k.err.message, stall, what);
      continue;
    }
    const opipe_status status = opi_request_wait(tickets[i], UINT64_C(10000000000), &err);
    if (i == 0 && !buffered) {
      OPI_ASSERT_OK(status, &err);
      OPI_ASSERT_OK(opi_train_report(tickets[i], &first, &err), &err);
    } else if (status < 0) {
      judge(f, err.message, stall, what);
    }
    if (i > 0 && status >= 0)
      OPI_FAIL("%s, %s: mini-batch %u has status %d", f->schedule->name, what, i, status);
    opi_request_release(tickets[i]);
  }
  opi_session_close(session);
  const double took = now_s() - start, allowed = 1e-9 * (double)WATCHDOG_NS + SLACK_S;
  if (took > allowed)
    OPI_FAIL("%s, %s: over after %.3g s, %.3g allowed", f->schedule->name, what, took, allowed);
  return first.loss;
}

/* The plan once more: its device counts from 0, so the first mini-batch is whole again. */
static void run_again(failing *f, double loss, const char *what) {
  const bool buffered = (f->schedule->traits & KIT_BUFFERED) != 0;
  opi_session *session = NULL;
  double again = 0;
  OPI_ASSERT_OK_FATAL(kit_session(&f->k, 0, &session), &f->k.err);
  OPI_ASSERT_OK(kit_step(&f->k, session, &f->batches[0], &again), &f->k.err);
  if (!(again > 0) || (!buffered && again != loss)) {
    OPI_FAIL("%s, opened again after it %s: loss %.9g, it was %.9g", f->schedule->name, what, again,
             loss);
  }
  opi_session_close(session);
}

/* Runs of the culprit's device in a mini-batch. */
static uint32_t count_runs(const opi_decision *plan) {
  return plan->rank_first[CULPRIT + 1] - plan->rank_first[CULPRIT];
}

/* late: in the mini-batch's last program of the rank, when the others may be at the step. */
static void check(failing *f, bool stall, bool late) {
  char options[100];
  OPI_ASSERT_OK_FATAL(make_plan(f, NULL), &f->k.err);
  const uint32_t n = count_runs(&f->k.plan->decided), at = n + (late ? n : n / 2);
  if (stall)
    (void)snprintf(options, sizeof options, "time_us=10,stall_run=%u:%d", at, STALL_MS);
  else
    (void)snprintf(options, sizeof options, "time_us=10,fail_run=%u", at);
  OPI_ASSERT_OK_FATAL(make_plan(f, options), &f->k.err);
  f->k.watchdog_ns = WATCHDOG_NS;
  const double loss = run_badly(f, stall);
  f->k.watchdog_ns = 0;
  run_again(f, loss, stall ? "stalled" : "failed");
}

static void check_all(bool stall) {
  const kit_case c = {.spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels"}}};
  failing f;
  OPI_ASSERT_OK_FATAL(
      kit_open(&f.k, opi_test_source("tests/data/gpt_8block/model.onnx"), ROWS, TOKENS), &f.k.err);
  for (uint32_t i = 0; i < TICKETS; ++i)
    OPI_ASSERT_OK_FATAL(kit_batch_random(&f.k, &c, 32, i, &f.batches[i]), &f.k.err);
  for (uint32_t i = 0; i < TICKETS; ++i) {
    for (uint32_t p = 0; p < f.batches[i].n_inputs; ++p)
      f.batches[i].inputs[p].tensor.shape = f.batches[i].shapes[p];
  }
  for (size_t i = 0; i < kit_n_schedules; ++i) {
    if (!opi_test_covers(i / 2 + stall, 4))
      continue;
    f.schedule = &kit_schedules[i];
    kit_schedule_name(f.schedule, RANKS, MICROBATCHES, f.name, sizeof f.name);
    if ((f.schedule->traits & KIT_BOUNDED) == 0)
      check(&f, stall, i % 2 == (stall ? 0 : 1));
  }
  kit_close(&f.k);
}

static void test_failing_rank(void) {
  check_all(false);
}

static void test_stalled_rank(void) {
  check_all(true);
}

OPI_TEST_MAIN("training failures", OPI_TEST(test_failing_rank), OPI_TEST(test_stalled_rank))
