/* SPDX-License-Identifier: Apache-2.0 */
/* Generation through the library's table: the same bits by library threads, by a host that drives
 * every rank and by the reference, over stages, replicas and tensor groups, with bytes as
 * predicted; forks and cancels of a host that drives; callbacks may neither wait nor drive; a close
 * during generation ends every turn once. ctest: timeout=60 */
#include "tests/abi/generate_kit.h"

enum { TOKENS = 20 };

/* A turn whose callbacks try what they may not call. */
typedef struct trying {
  told told;
  const opipe_api *api;
  opipe_session *session;
  uint32_t n_refused;
  uint32_t cancels_at;      /* at this token it cancels itself and another; 0: never */
  opipe_sequence **cancels; /* the other; NULL: none */
} trying;

static uint32_t cancels_at; /* of the first prompt's turn that is begun next */
static opipe_sequence **cancels;

/* Stages, copies, members of a group. */
typedef struct form {
  uint32_t n_stages, replicas, tensor; /* 0 as 1 */
} form;

static uint32_t ranks_of(const form *f) {
  return f->n_stages * (f->replicas == 0 ? 1 : f->replicas) * (f->tensor == 0 ? 1 : f->tensor);
}

static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  trying *t = ctx;
  opipe_generation_info info = opipe_generation_info_init();
  opipe_error why = OPIPE_ERROR_INIT;
  t->n_refused += t->api->session_generation(t->session, &info, &why) == OPIPE_OK &&
                  t->api->sequence_wait(sequence, 1, 0, &why) == OPIPE_E_STATE &&
                  t->api->session_drive(t->session, 0, 0, &why) == OPIPE_E_STATE &&
                  t->api->sequence_truncate(sequence, 1, &why) == OPIPE_E_STATE;
  (void)told_token(&t->told, sequence, token, err);
  if (t->told.n == t->cancels_at) {
    t->n_refused += t->api->sequence_cancel(sequence, &why) < 0;
    t->n_refused += t->cancels != NULL && t->api->sequence_cancel(*t->cancels, &why) < 0;
  }
  return OPIPE_OK;
}

static void open(host_kit *k, const form *f, const opipe_session_params *session) {
  const opipe_generation_params generation = {
      .struct_size = sizeof generation, .context = 64, .rows = 8, .groups = 2, .active = 4};
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = f->n_stages,
                                    .replicas = f->replicas,
                                    .tensor = f->tensor,
                                    .generation = &generation};
  OPI_ASSERT_OK_FATAL(
      kit_generate(k, NULL, opi_test_source("tests/data/rows/group_query/model.onnx"), &params,
                   session),
      &k->err);
}

static void begin(host_kit *k, const char *sampling, trying *t, opipe_sequence **out) {
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    uint32_t prompt[16];
    opipe_generate_params p = told_turn(i, prompt, sampling, &t[i]);
    t[i] = (trying){.api = k->api, .session = k->session};
    if (i == 0) {
      t[i].cancels_at = cancels_at;
      t[i].cancels = cancels;
    }
    p.on_token = on_token;
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

static uint32_t drive(const host_kit *k, uint32_t n_ranks, uint32_t n_rounds) {
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t n_failed = 0;
  for (uint32_t i = 0; i < n_rounds * n_ranks; ++i)
    n_failed += k->api->session_drive(k->session, i % n_ranks, 1000, &err) < 0;
  return n_failed;
}

static void run(const form *f, const opipe_session_params *session, trying *t) {
  host_kit k;
  opipe_sequence *sequences[PROMPTS];
  const uint32_t n_ranks = ranks_of(f);
  const bool by_host = session->threads == OPIPE_THREADS_HOST;
  open(&k, f, session);
  begin(&k, "temperature=0.8,seed=5,top_k=6,max_tokens=20", t, sequences);
  while (by_host && !all_ended(&k, sequences))
    OPI_ASSERT_FATAL(drive(&k, n_ranks, 1) == 0);
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    OPI_ASSERT_OK(k.api->sequence_wait(sequences[i], UINT32_MAX, UINT64_MAX, &k.err), &k.err);
    OPI_ASSERT_INT(t[i].told.end, OPIPE_END_TOKENS);
    OPI_ASSERT_INT(t[i].told.n, TOKENS);
    OPI_ASSERT_INT(t[i].n_refused, TOKENS);
    k.api->sequence_release(sequences[i]);
  }
  opipe_generation_info info = opipe_generation_info_init();
  OPI_ASSERT_OK(k.api->session_generation(k.session, &info, &k.err), &k.err);
  OPI_ASSERT_INT(info.tokens, PROMPTS * TOKENS);
  OPI_ASSERT_INT(info.open, 0);
  OPI_ASSERT_INT(info.free_pages + info.kept_pages, info.n_pages);
  OPI_ASSERT(info.bubble >= 0 && info.bubble <= 1 && info.working_ns > 0);
  if ((session->flags & OPIPE_SESSION_REFERENCE) == 0) {
    OPI_ASSERT_INT(info.n_active, 4 * (f->replicas == 0 ? 1 : f->replicas));
    OPI_ASSERT(kit_bytes_as_predicted(&k, 0, n_ranks));
  }
  kit_close(&k);
}

static const opipe_session_params library = {.struct_size = sizeof library, .spin_us = UINT32_MAX},
                                  by_host = {.struct_size = sizeof by_host,
                                             .spin_us = UINT32_MAX,
                                             .threads = OPIPE_THREADS_HOST},
                                  reference = {.struct_size = sizeof reference,
                                               .spin_us = UINT32_MAX,
                                               .flags = OPIPE_SESSION_REFERENCE};

static void test_bits_are_the_same_whoever_drives(void) {
  static const form forms[] = {{2}, {1, 2, 2}}; /* mixes have the others */
  static trying alone[PROMPTS], other[PROMPTS];
  const opipe_session_params *const how[] = {&library, &by_host};
  for (size_t f = 0; f < sizeof forms / sizeof forms[0]; ++f) {
    run(&forms[f], &reference, alone);
    for (size_t i = 0; i < sizeof how / sizeof how[0]; ++i) {
      run(&forms[f], how[i], other);
      for (uint32_t p = 0; p < PROMPTS; ++p) {
        OPI_ASSERT(memcmp(alone[p].told.ids, other[p].told.ids, TOKENS * sizeof(uint32_t)) == 0);
        OPI_ASSERT(alone[p].told.bits == other[p].told.bits);
      }
    }
  }
}

/* ---- a host that drives: forks and cancels while passes are under way ---- */

static void test_a_host_that_drives_forks_and_cancels(void) {
  static trying alone[PROMPTS], t[PROMPTS], of_fork;
  const form two = {2};
  host_kit k;
  opipe_sequence *sequences[PROMPTS];
  run(&two, &reference, alone); /* bits of the others */
  open(&k, &two, &by_host);
  begin(&k, "temperature=0.8,seed=5,top_k=6,max_tokens=20", t, sequences);
  while (t[0].told.n < 3)
    OPI_ASSERT_FATAL(drive(&k, 2, 1) == 0);
  OPI_ASSERT_OK(k.api->sequence_cancel(sequences[1], &k.err), &k.err);
  OPI_ASSERT_INT(t[1].told.end, OPIPE_END_CANCELLED);
  of_fork = (trying){.api = k.api, .session = k.session};
  opipe_sequence *fork = NULL; /* rows of it are in flight */
  const uint32_t n_before = t[2].told.n;
  OPI_ASSERT_OK_FATAL(k.api->sequence_fork(sequences[2], NULL, &of_fork, &fork, &k.err), &k.err);
  k.api->sequence_release(sequences[3]); /* in flight, too */
  opipe_sequence_info info = opipe_sequence_info_init();
  while (info.end == OPIPE_END_NONE || t[0].told.end == 0 || t[2].told.end == 0 ||
         t[4].told.end == 0 || t[5].told.end == 0) {
    OPI_ASSERT_FATAL(drive(&k, 2, 1) == 0);
    OPI_ASSERT_OK_FATAL(k.api->sequence_info(fork, &info, &k.err), &k.err);
  }
  OPI_ASSERT_INT(info.branch, 1);
  OPI_ASSERT_INT(of_fork.told.n + n_before, TOKENS);
  OPI_ASSERT(t[1].told.n_ends == 1 && t[3].told.n_ends == 1 && of_fork.told.n_ends == 1);
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    OPI_ASSERT(memcmp(alone[i].told.ids, t[i].told.ids, t[i].told.n * sizeof(uint32_t)) == 0);
    OPI_ASSERT(i == 1 || i == 3 || (t[i].told.n == TOKENS && t[i].told.bits == alone[i].told.bits));
    if (i != 3)
      k.api->sequence_release(sequences[i]);
  }
  k.api->sequence_release(fork);
  opipe_generation_info all = opipe_generation_info_init();
  OPI_ASSERT_OK(k.api->session_generation(k.session, &all, &k.err), &k.err);
  OPI_ASSERT(all.open == 0 && all.free_pages + all.kept_pages == all.n_pages);
  kit_close(&k);
}

/* A callback cancels its own turn, and another's if the host drives: each ends once, when it has
 * returned. */
static void cancel_inside(const opipe_session_params *session) {
  static trying t[PROMPTS];
  const form two = {2};
  const bool driven = session->threads == OPIPE_THREADS_HOST;
  host_kit k;
  opipe_sequence *sequences[PROMPTS] = {NULL};
  open(&k, &two, session);
  cancels_at = 5;
  cancels = driven ? &sequences[1] : NULL; /* nothing is computed before it is there */
  begin(&k, "temperature=0.8,seed=5,top_k=6,max_tokens=20", t, sequences);
  cancels_at = 0;
  while (driven && !all_ended(&k, sequences))
    OPI_ASSERT_FATAL(drive(&k, 2, 1) == 0);
  for (uint32_t p = 0; p < PROMPTS; ++p) {
    const bool cancelled = p == 0 || (p == 1 && driven);
    const opipe_status status = k.api->sequence_wait(sequences[p], UINT32_MAX, UINT64_MAX, &k.err);
    OPI_ASSERT_INT(status, cancelled ? OPIPE_E_CANCELLED : OPIPE_OK);
    OPI_ASSERT_INT(t[p].told.end, cancelled ? OPIPE_END_CANCELLED : OPIPE_END_TOKENS);
    OPI_ASSERT(t[p].told.n_ends == 1 && (cancelled || t[p].told.n == TOKENS));
  }
  OPI_ASSERT_INT(t[0].told.n, 5);
  OPI_ASSERT_INT(t[0].n_refused, 5);
  kit_close(&k);
}

static void test_a_callback_cancels(void) {
  cancel_inside(&library);
  cancel_inside(&by_host);
}

static void test_a_close_ends_every_turn_once(void) {
  static trying t[PROMPTS];
  host_kit k;
  opipe_sequence *sequences[PROMPTS];
  const form two = {2};
  const opipe_submit_params nothing = {.struct_size = sizeof nothing};
  opipe_request *request = NULL;
  open(&k, &two, &library);
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &nothing, &request, &k.err), OPIPE_E_STATE,
                   &k.err, "use session_generate");
  begin(&k, "temperature=1", t, sequences); /* up to the context */
  OPI_ASSERT_OK(k.api->sequence_wait(sequences[0], 2, UINT64_MAX, &k.err), &k.err);
  k.api->session_close(k.session);
  k.session = NULL;
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    OPI_ASSERT_INT(t[i].told.n_ends, 1);
    OPI_ASSERT_ERROR(k.api->sequence_cancel(sequences[i], &k.err), OPIPE_E_STATE, &k.err,
                     "sequence_cancel");
  }
  kit_close(&k);
}

static void test_params_are_checked_whole(void) {
  static const uint32_t prompt[2] = {1, 2};
  const form one = {1};
  host_kit k;
  opipe_sequence *sequence = NULL;
  opipe_generate_params p = opipe_generate_params_init();
  open(&k, &one, &library);
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

OPI_TEST_MAIN("generate", OPI_TEST(test_bits_are_the_same_whoever_drives),
              OPI_TEST(test_a_host_that_drives_forks_and_cancels),
              OPI_TEST(test_a_callback_cancels), OPI_TEST(test_a_close_ends_every_turn_once),
              OPI_TEST(test_params_are_checked_whole))
