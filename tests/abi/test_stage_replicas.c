/* SPDX-License-Identifier: Apache-2.0 */
/* Inference by replicas of single stages (opipe_plan_params.stage_replicas), through the host's
 * table: streams of requests of other rows and tokens have the bits of the plan's reference under
 * every rule of delivery, from plans that were written and read, and are close to the uncut model;
 * rows come back in their order; a bad request fails alone; masks of Dropout do not depend on the
 * cut; what cannot be cut is refused. ctest: timeout=240 label=twice */
#include "loader/base/base.h"
#include "tests/abi/streams.h"

#define LLAMA "tests/data/llama_8block/model.onnx"
#define DROPOUT "tests/data/odd/dropout_tokens/model.onnx"

/* Rows and tokens: those of the plan, other rows, other tokens, fewer rows than micro-batches
 * take. */
static const int64_t MIXED[REQUESTS][2] = {{ROWS, TOKENS}, {ROWS, TOKENS}, {3, TOKENS},
                                           {ROWS, MOST},   {2, 2},         {3, 1}};
static const stream LLAMA_MIXED = {"input_ids", MIXED, CLASSES, REQUESTS};

typedef struct plan_case {
  const char *schedule;
  uint32_t list[4], n, n_microbatches;
} plan_case;

static opipe_plan_params params_of(const plan_case *c, const char *transport) {
  return (opipe_plan_params){.struct_size = sizeof(opipe_plan_params),
                             .n_microbatches = c->n_microbatches,
                             .stage_replicas = c->list,
                             .n_stage_replicas = c->n,
                             .schedule = c->schedule,
                             .transport = transport};
}

/* ---- bits ---- */

/* `sequential` gives credits, from every replica of the last stage to every one of the first. */
static const plan_case CASES[] = {{"gpipe", {2, 1}, 2, 2},      {"1f1b", {1, 2}, 2, 1},
                                  {"gpipe", {1, 2, 1}, 3, 2},   {"sequential", {2, 1, 2}, 3, 2},
                                  {"looped-bfs", {2, 1}, 2, 2}, {"interleaved", {1, 2}, 2, 2},
                                  {"sequential", {1, 2}, 2, 2}, {"gpipe", {2, 2}, 2, 1}};

static void run_case(const plan_case *c, uint32_t rule, const stream *s, const answer *uncut) {
  static answer x[REQUESTS];
  host_kit k;
  opipe_plan_info info = {.struct_size = sizeof info};
  uint32_t n_ranks = 0;
  const ruled_link link = link_of(rule);
  const opipe_plan_params params = params_of(c, link.transport);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, &params), &k.err);
  const char credits = strcmp(c->schedule, "sequential") == 0 ? '1' : '0';
  read_again(&k, credits, credits);
  OPI_ASSERT_OK_FATAL(k.api->plan_info(k.plan, &info, &k.err), &k.err);
  for (uint32_t i = 0; i < c->n; ++i)
    n_ranks += c->list[i];
  OPI_ASSERT_INT(info.n_ranks, n_ranks);
  if (!has_bits_of_reference(&k, s, x)) {
    OPI_FAIL("%s, replicas %u %u %u, %u micro-batches, rule %s: other bits than the reference's",
             c->schedule, c->list[0], c->list[1], c->list[2], c->n_microbatches, link.rule);
  }
  const double worst = apart(x, uncut);
  if (!(worst <= 1e-5)) {
    OPI_FAIL("%s, replicas %u %u %u: %g from the uncut model", c->schedule, c->list[0], c->list[1],
             c->list[2], worst);
  }
  kit_close(&k);
}

static void test_every_rule(void) {
  static answer uncut[REQUESTS];
  uint32_t n = 0;
  run_uncut(LLAMA, 0, &LLAMA_MIXED, uncut);
  for (uint32_t i = 0; i < OPI_COUNT(CASES); ++i) {
    for (uint32_t rule = 0; rule < RULES; ++rule) {
      if (!opi_test_covers(i + rule, opi_test_sparse(3)))
        continue;
      run_case(&CASES[i], rule, &LLAMA_MIXED, uncut);
      ++n;
    }
  }
  OPI_ASSERT(n > 0);
}

/* Token slices of shares: every replica has its rows of each slice. Requests have the plan's
 * tokens, since slices are those of a length. */
static void test_slices(void) {
  static const int64_t shapes[REQUESTS][2] = {{ROWS, TOKENS}, {3, TOKENS},    {ROWS, TOKENS},
                                              {2, TOKENS},    {ROWS, TOKENS}, {3, TOKENS}};
  static const stream s = {"input_ids", shapes, CLASSES, REQUESTS};
  static const plan_case cases[] = {{"terapipe:slices=2", {2, 1}, 2, 1},
                                    {"terapipe:slices=3", {1, 2}, 2, 1}};
  static answer uncut[REQUESTS];
  run_uncut(LLAMA, 0, &s, uncut);
  for (uint32_t i = 0; i < OPI_COUNT(cases); ++i)
    run_case(&cases[i], i, &s, uncut);
}

/* Micro-batches at a time between all replicas of the first stage and all of the last: as many
 * streams of credits as there are pairs of them on two ranks. */
static void test_credits(void) {
  const plan_case c = {"gpipe", {2, 1, 2}, 3, 2};
  const opipe_plan_params params = params_of(&c, NULL);
  check_credits(LLAMA, &params, &LLAMA_MIXED);
}

/* One replica of every stage is what it was without the list. */
static void test_ones(void) {
  opi_test_text with = {NULL, 0}, without = {NULL, 0};
  const plan_case c = {"gpipe", {1, 1}, 2, 2};
  for (uint32_t i = 0; i < 2; ++i) {
    host_kit k;
    opipe_plan_params params = params_of(&c, NULL);
    params.n_stages = 2;
    params.n_stage_replicas = i == 0 ? 0 : 2;
    OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, &params), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->plan_write(k.plan, opi_test_take, i == 0 ? &without : &with, &k.err),
                        &k.err);
    kit_close(&k);
  }
  OPI_ASSERT_STR(with.data, without.data);
  free(with.data);
  free(without.data);
}

/* ---- requests that fail ---- */

static void test_failure_is_one_requests(void) {
  const plan_case c = {"1f1b", {1, 2, 1}, 3, 2};
  const opipe_plan_params params = params_of(&c, NULL);
  check_bad_request(LLAMA, &params);
}

/* A request with fewer rows than replicas is refused when it comes; the session goes on. */
static void test_too_few_rows(void) {
  static const int64_t one[REQUESTS][2] = {{1, TOKENS}, {ROWS, TOKENS}};
  static const stream s = {"input_ids", one, CLASSES, REQUESTS};
  static int64_t ids[2][ROWS * MOST];
  static answer out[2];
  const plan_case c = {"gpipe", {2, 1}, 2, 2};
  const opipe_plan_params params = params_of(&c, NULL);
  opipe_request *request = NULL;
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, &params), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_ERROR(submit(&k, &s, 0, ids[0], &out[0], &request), OPIPE_E_INVALID, &k.err,
                   "stage 0 has 2 replicas, which cannot share a micro-batch of 1 row");
  OPI_ASSERT_OK_FATAL(submit(&k, &s, 1, ids[1], &out[1], &request), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(request);
  kit_close(&k);
}

/* ---- refusals ---- */

static void refuse(const char *file, int64_t rows, const opipe_plan_params *params, int32_t status,
                   const char *words) {
  host_kit k;
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, file, rows, TOKENS, params), status, &k.err, words);
  kit_close(&k);
}

static void test_refusals(void) {
  static const plan_case two = {"gpipe", {2, 1}, 2, 1};
  static const plan_case three = {"gpipe", {3, 1}, 2, 2};
  static const opipe_state_pair pair = {.output = "present", .input = "past"};
  opipe_plan_params params = params_of(&three, NULL);
  refuse(LLAMA, ROWS, &params, OPIPE_E_INVALID,
         "stage 0 has 3 replicas, which cannot share a micro-batch of 2 rows");
  params = params_of(&two, NULL);
  params.states = &pair;
  params.n_states = 1;
  params.states_stride = sizeof pair;
  refuse(LLAMA, ROWS, &params, OPIPE_E_UNSUPPORTED,
         "states: replicas of single stages (2 of the first) cut every request");
  params = params_of(&two, NULL);
  params.replicas = 2;
  refuse(LLAMA, ROWS, &params, OPIPE_E_INVALID, "give only one");
  params.replicas = 0;
  params.n_ranks = 4;
  refuse(LLAMA, ROWS, &params, OPIPE_E_INVALID, "take 3 ranks, not 4");
}

/* ---- masks ---- */

static void test_masks(void) {
  static const plan_case cuts[] = {{"gpipe", {2, 1}, 2, 1}, {"1f1b", {1, 2, 1}, 3, 2}};
  opipe_plan_params plans[OPI_COUNT(cuts)];
  for (size_t i = 0; i < OPI_COUNT(cuts); ++i)
    plans[i] = params_of(&cuts[i], NULL);
  check_masks(DROPOUT, plans, OPI_COUNT(cuts));
}

/* ---- memory ---- */

static void test_failing_allocations(void) {
  const plan_case c = {"gpipe", {2, 1}, 2, 2};
  const opipe_plan_params params = params_of(&c, NULL);
  check_allocations(DROPOUT, &params);
}

OPI_TEST_MAIN("replicas of single stages", OPI_TEST(test_every_rule), OPI_TEST(test_credits),
              OPI_TEST(test_slices), OPI_TEST(test_ones), OPI_TEST(test_failure_is_one_requests),
              OPI_TEST(test_too_few_rows), OPI_TEST(test_refusals), OPI_TEST(test_masks),
              OPI_TEST(test_failing_allocations))
