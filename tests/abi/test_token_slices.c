/* SPDX-License-Identifier: Apache-2.0 */
/* Inference in token slices (TeraPipe's prompts), through the host's table: streams of requests of
 * other rows and tokens have the bits of the plan's reference under every rule of delivery, from
 * plans that were written and read; a bad request fails alone; what cannot be sliced is refused;
 * masks of Dropout do not depend on how a request is cut. ctest: timeout=120 label=twice */
#include "loader/base/base.h"
#include "tests/abi/streams.h"

#define LLAMA "tests/data/llama_8block/model.onnx"
#define GPT "tests/data/gpt_8block/model.onnx"
#define ENCODER "tests/data/encoder/model.onnx"
#define DROPOUT "tests/data/odd/dropout_tokens/model.onnx"

/* Rows and tokens: those of the plan, other rows, other tokens. */
static const int64_t MIXED[REQUESTS][2] = {{ROWS, TOKENS}, {ROWS, TOKENS}, {3, TOKENS},
                                           {ROWS, MOST},   {2, 2},         {1, 1}};
static const stream LLAMA_MIXED = {"input_ids", MIXED, CLASSES, REQUESTS};

typedef struct plan_case {
  const char *schedule;
  uint32_t n_ranks, n_microbatches, replicas;
} plan_case;

static opipe_plan_params params_of(const plan_case *c, const char *transport) {
  return (opipe_plan_params){.struct_size = sizeof(opipe_plan_params),
                             .n_ranks = c->n_ranks,
                             .n_microbatches = c->n_microbatches,
                             .replicas = c->replicas,
                             .schedule = c->schedule,
                             .transport = transport};
}

/* ---- bits ---- */

static const plan_case CASES[] = {
    {"terapipe:slices=2", 2, 1, 0},       {"terapipe:slices=4", 4, 2, 0},
    {"seq1f1b:slices=3", 3, 3, 0},        {"terapipe:lengths=1+4+3", 2, 2, 0},
    {"terapipe:slices=3", 4, 4, 2},       {"terapipe:slices=3", 1, 1, 0},
    {"terapipe:lengths=3+2+2+1", 3, 1, 0}};

static void run_case(const plan_case *c, uint32_t rule, const answer *uncut) {
  static answer x[REQUESTS];
  host_kit k;
  const ruled_link link = link_of(rule);
  const opipe_plan_params params = params_of(c, c->n_ranks == 1 ? NULL : link.transport);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, &params), &k.err);
  read_again(&k, '0', '0');
  if (!has_bits_of_reference(&k, &LLAMA_MIXED, x)) {
    OPI_FAIL("%s on %u ranks, %u micro-batches, rule %s: other bits than the reference's",
             c->schedule, c->n_ranks, c->n_microbatches, link.rule);
  }
  const double worst = apart(x, uncut);
  if (!(worst <= 1e-5))
    OPI_FAIL("%s on %u ranks: %g from the uncut model", c->schedule, c->n_ranks, worst);
  kit_close(&k);
}

static void test_every_rule(void) {
  static answer uncut[REQUESTS];
  uint32_t n = 0;
  run_uncut(LLAMA, 0, &LLAMA_MIXED, uncut);
  for (uint32_t i = 0; i < OPI_COUNT(CASES); ++i) {
    for (uint32_t rule = 0; rule < (CASES[i].n_ranks == 1 ? 1u : (uint32_t)RULES); ++rule) {
      if (!opi_test_covers(i + rule, opi_test_sparse(3)))
        continue;
      run_case(&CASES[i], rule, uncut);
      ++n;
    }
  }
  OPI_ASSERT(n > 0);
}

/* A micro-batch enters when one has left, all slices of it. */
static void test_credits(void) {
  const plan_case c = {"terapipe:slices=4", 3, 2, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  check_credits(LLAMA, &params, &LLAMA_MIXED);
}

/* ---- one request that fails ---- */

static void test_failure_is_one_requests(void) {
  const plan_case c = {"terapipe:slices=4", 3, 2, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  check_bad_request(LLAMA, &params);
}

/* ---- refusals ---- */

static void refuse(const char *file, const char *schedule, int64_t tokens, const char *part) {
  host_kit k;
  const plan_case c = {schedule, 2, 1, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, file, ROWS, tokens, &params),
                   strstr(part, "slices") == part || strstr(part, " slices of ") != NULL
                       ? OPIPE_E_INVALID
                       : OPIPE_E_UNSUPPORTED,
                   &k.err, part);
  kit_close(&k);
}

static void test_refusals(void) {
  refuse(ENCODER, "terapipe:slices=2", TOKENS,
         "(Attention): tokens cannot be sliced: it is not causal: row 0 may read token");
  refuse(GPT, "terapipe:slices=9", TOKENS, ": 9 slices of 8 tokens");
  refuse(GPT, "terapipe:lengths=3+4", TOKENS, "slices have 7 tokens, the model's sequences 8");
  refuse(GPT, "seq1f1b:slices=2", 1, ": 2 slices of 1 tokens");
}

/* ---- masks ---- */

static void test_masks(void) {
  static const plan_case cuts[] = {{"gpipe", 2, 1, 0},
                                   {"gpipe", 2, 4, 0},
                                   {"gpipe", 3, 3, 0},
                                   {"gpipe", 4, 4, 2},
                                   {"terapipe:slices=4", 2, 1, 0},
                                   {"terapipe:lengths=1+5+2", 3, 2, 0},
                                   {"seq1f1b:slices=2", 4, 4, 2}};
  opipe_plan_params plans[OPI_COUNT(cuts)];
  for (size_t i = 0; i < OPI_COUNT(cuts); ++i)
    plans[i] = params_of(&cuts[i], NULL);
  check_masks(DROPOUT, plans, OPI_COUNT(cuts));
}

/* ---- memory ---- */

static void test_failing_allocations(void) {
  const plan_case c = {"terapipe:slices=3", 2, 2, 0};
  const opipe_plan_params params = params_of(&c, NULL);
  check_allocations(DROPOUT, &params);
}

OPI_TEST_MAIN("token slices of requests", OPI_TEST(test_every_rule), OPI_TEST(test_credits),
              OPI_TEST(test_failure_is_one_requests), OPI_TEST(test_refusals), OPI_TEST(test_masks),
              OPI_TEST(test_failing_allocations))
