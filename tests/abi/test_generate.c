/* SPDX-License-Identifier: Apache-2.0 */
/* Generation through the library's table: the same tokens by library threads, by a host that drives
 * every rank, by the reference and over two stages; callbacks may not call the table; a close
 * during generation ends every turn once. ctest: timeout=60 */
#include "tests/abi/host_kit.h"

enum { PROMPTS = 6, TOKENS = 20 };

typedef struct told {
  const opipe_api *api;
  opipe_session *session;
  uint32_t ids[64], n, n_ends, end, n_refused;
} told;

static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  told *t = ctx;
  opipe_generation_info info = opipe_generation_info_init();
  opipe_error why = OPIPE_ERROR_INIT;
  (void)err;
  t->n_refused += t->api->session_generation(t->session, &info, &why) == OPIPE_E_STATE &&
                  t->api->sequence_cancel(sequence, &why) == OPIPE_E_STATE;
  t->ids[t->n++ % 64] = token->id;
  return OPIPE_OK;
}

static void on_end(void *ctx, opipe_sequence *sequence, uint32_t reason, const opipe_error *why) {
  told *t = ctx;
  (void)sequence, (void)why;
  t->end = reason;
  ++t->n_ends;
}

static void open(host_kit *k, uint32_t n_stages, const opipe_session_params *session) {
  const opipe_generation_params generation = {
      .struct_size = sizeof generation, .context = 64, .rows = 8, .groups = 2, .active = 4};
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = n_stages, .generation = &generation};
  const opipe_load_params load = {
      .struct_size = sizeof load,
      .path = opi_test_source("tests/data/rows/group_query/model.onnx")};
  memset(k, 0, sizeof *k);
  k->err = (opipe_error)OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_load(k->context, &load, &k->model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->model, &params, &k->plan, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, session), &k->err);
}

static void begin(host_kit *k, const char *sampling, told *t, opipe_sequence **out) {
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    uint32_t prompt[16];
    opipe_generate_params p = opipe_generate_params_init();
    t[i] = (told){.api = k->api, .session = k->session};
    for (uint32_t j = 0; j < 3 + 2 * i; ++j)
      prompt[j] = (7 * i + 3 * j) % 23;
    p.ids = prompt;
    p.n_ids = 3 + 2 * i;
    p.sampling = sampling;
    p.ctx = &t[i];
    p.on_token = on_token;
    p.on_end = on_end;
    OPI_ASSERT_OK_FATAL(k->api->session_generate(k->session, &p, &out[i], &k->err), &k->err);
  }
}

static bool all_ended(const host_kit *k, opipe_sequence *const *sequences) {
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    opipe_sequence_info info = opipe_sequence_info_init();
    if (k->api->sequence_info(sequences[i], &info, NULL) < 0 || info.end == OPIPE_END_NONE)
      return false;
  }
  return true;
}

static void run(uint32_t n_stages, const opipe_session_params *session, told *t) {
  host_kit k;
  opipe_sequence *sequences[PROMPTS];
  open(&k, n_stages, session);
  begin(&k, "temperature=0.8,seed=5,top_k=6,max_tokens=20", t, sequences);
  for (uint32_t i = 0; session->threads == OPIPE_THREADS_HOST && !all_ended(&k, sequences); ++i)
    OPI_ASSERT_FATAL(k.api->session_drive(k.session, i % n_stages, 1000, &k.err) >= 0);
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    OPI_ASSERT_OK(k.api->sequence_wait(sequences[i], UINT32_MAX, UINT64_MAX, &k.err), &k.err);
    OPI_ASSERT_INT(t[i].end, OPIPE_END_TOKENS);
    OPI_ASSERT_INT(t[i].n, TOKENS);
    OPI_ASSERT_INT(t[i].n_refused, TOKENS);
    k.api->sequence_release(sequences[i]);
  }
  opipe_generation_info info = opipe_generation_info_init();
  OPI_ASSERT_OK(k.api->session_generation(k.session, &info, &k.err), &k.err);
  OPI_ASSERT_INT(info.tokens, PROMPTS * TOKENS);
  OPI_ASSERT_INT(info.open, 0);
  OPI_ASSERT(info.bubble >= 0 && info.bubble <= 1 && info.working_ns > 0);
  kit_close(&k);
}

static void test_tokens_are_the_same_whoever_drives(void) {
  static told alone[PROMPTS], other[PROMPTS];
  const opipe_session_params how[] = {
      {.struct_size = sizeof how[0], .spin_us = UINT32_MAX},
      {.struct_size = sizeof how[0], .spin_us = UINT32_MAX, .threads = OPIPE_THREADS_HOST},
      {.struct_size = sizeof how[0], .spin_us = UINT32_MAX, .flags = OPIPE_SESSION_REFERENCE}};
  run(1, &how[0], alone);
  for (uint32_t n_stages = 1; n_stages <= 2; ++n_stages) {
    for (size_t i = 0; i < sizeof how / sizeof how[0]; ++i) {
      run(n_stages, &how[i], other);
      for (uint32_t p = 0; p < PROMPTS; ++p)
        OPI_ASSERT(memcmp(alone[p].ids, other[p].ids, TOKENS * sizeof(uint32_t)) == 0);
    }
  }
}

static void test_a_close_ends_every_turn_once(void) {
  static told t[PROMPTS];
  host_kit k;
  opipe_sequence *sequences[PROMPTS];
  const opipe_session_params params = {.struct_size = sizeof params, .spin_us = UINT32_MAX};
  const opipe_submit_params nothing = {.struct_size = sizeof nothing};
  opipe_request *request = NULL;
  open(&k, 2, &params);
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &nothing, &request, &k.err), OPIPE_E_STATE,
                   &k.err, "use session_generate");
  begin(&k, "temperature=1", t, sequences); /* up to the context */
  OPI_ASSERT_OK(k.api->sequence_wait(sequences[0], 2, UINT64_MAX, &k.err), &k.err);
  k.api->session_close(k.session);
  k.session = NULL;
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    OPI_ASSERT_INT(t[i].n_ends, 1);
    OPI_ASSERT_ERROR(k.api->sequence_cancel(sequences[i], &k.err), OPIPE_E_STATE, &k.err,
                     "sequence_cancel");
  }
  kit_close(&k);
}

static void test_params_are_checked_whole(void) {
  static const uint32_t prompt[2] = {1, 2};
  const opipe_session_params session = {.struct_size = sizeof session, .spin_us = UINT32_MAX};
  host_kit k;
  opipe_sequence *sequence = NULL;
  opipe_generate_params p = opipe_generate_params_init();
  open(&k, 1, &session);
  p.n_ids = 2;
  OPI_ASSERT_ERROR(k.api->session_generate(k.session, &p, &sequence, &k.err), OPIPE_E_INVALID,
                   &k.err, "ids");
  p.ids = prompt;
  p.struct_size = 9;
  OPI_ASSERT_ERROR(k.api->session_generate(k.session, &p, &sequence, &k.err), OPIPE_E_ABI, &k.err,
                   "struct_size is 9");
  p.struct_size = sizeof p;
  p.sampling = "max_tokens=1";
  OPI_ASSERT_OK_FATAL(k.api->session_generate(k.session, &p, &sequence, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->sequence_wait(sequence, 1, UINT64_MAX, &k.err), &k.err);
  p.salt = 7;
  OPI_ASSERT_ERROR(k.api->sequence_append(sequence, &p, &k.err), OPIPE_E_INVALID, &k.err,
                   "salt is 7");
  kit_close(&k);
}

OPI_TEST_MAIN("generate", OPI_TEST(test_tokens_are_the_same_whoever_drives),
              OPI_TEST(test_a_close_ends_every_turn_once), OPI_TEST(test_params_are_checked_whole))
