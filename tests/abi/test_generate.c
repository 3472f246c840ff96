/* SPDX-License-Identifier: Apache-2.0 */
/* Generation through the library's table: the same bits by library threads, by a host that drives
 * every rank and by the reference, over stages, replicas and tensor groups, with bytes as
 * predicted; forks and cancels of a host that drives; callbacks may not call the table; a close
 * during generation ends every turn once. ctest: timeout=60 */
#include "tests/abi/host_kit.h"

enum { PROMPTS = 6, TOKENS = 20 };

typedef struct told {
  const opipe_api *api;
  opipe_session *session;
  uint32_t ids[64], n, n_ends, end, n_refused;
  uint64_t bits;            /* of all rows of logits */
  uint32_t cancels_at;      /* at this token it cancels itself and another; 0: never */
  opipe_sequence **cancels; /* the other; NULL: none */
} told;

static uint32_t cancels_at; /* of the first prompt's turn that is begun next */
static opipe_sequence **cancels;

/* Stages, copies, members of a group. */
typedef struct form {
  uint32_t n_stages, replicas, tensor; /* 0 as 1 */
} form;

static uint32_t ranks_of(const form *f) {
  return f->n_stages * (f->replicas == 0 ? 1 : f->replicas) * (f->tensor == 0 ? 1 : f->tensor);
}

static opipe_status on_logits(void *ctx, opipe_sequence *sequence, uint32_t position, void *row,
                              uint32_t n_vocab, uint32_t dtype, int64_t *io_id, opipe_error *err) {
  told *t = ctx;
  (void)sequence, (void)position, (void)dtype, (void)io_id, (void)err;
  for (uint32_t i = 0; i < n_vocab; ++i)
    t->bits = (t->bits ^ ((const uint32_t *)row)[i]) * UINT64_C(1099511628211);
  return OPIPE_OK;
}

static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  told *t = ctx;
  opipe_generation_info info = opipe_generation_info_init();
  opipe_error why = OPIPE_ERROR_INIT;
  (void)err;
  t->n_refused += t->api->session_generation(t->session, &info, &why) == OPIPE_OK &&
                  t->api->sequence_wait(sequence, 1, 0, &why) == OPIPE_E_STATE &&
                  t->api->sequence_truncate(sequence, 1, &why) == OPIPE_E_STATE;
  t->ids[t->n++ % 64] = token->id;
  if (t->n == t->cancels_at) {
    t->n_refused += t->api->sequence_cancel(sequence, &why) < 0;
    t->n_refused += t->cancels != NULL && t->api->sequence_cancel(*t->cancels, &why) < 0;
  }
  return OPIPE_OK;
}

static void on_end(void *ctx, opipe_sequence *sequence, uint32_t reason, const opipe_error *why) {
  told *t = ctx;
  (void)sequence, (void)why;
  t->end = reason;
  ++t->n_ends;
}

static void open(host_kit *k, const form *f, const opipe_session_params *session) {
  const opipe_generation_params generation = {
      .struct_size = sizeof generation, .context = 64, .rows = 8, .groups = 2, .active = 4};
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = f->n_stages,
                                    .replicas = f->replicas,
                                    .tensor = f->tensor,
                                    .generation = &generation};
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
    if (i == 0) {
      t[i].cancels_at = cancels_at;
      t[i].cancels = cancels;
    }
    for (uint32_t j = 0; j < 3 + 2 * i; ++j)
      prompt[j] = (7 * i + 3 * j) % 23;
    p.ids = prompt;
    p.n_ids = 3 + 2 * i;
    p.sampling = sampling;
    p.ctx = &t[i];
    p.on_logits = on_logits;
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

static void check_bytes(const host_kit *k, uint32_t n_ranks) {
  for (uint32_t r = 0; r < n_ranks; ++r) {
    opipe_memory_info p = opipe_memory_info_init(), q = opipe_memory_info_init();
    OPI_ASSERT(k->api->plan_memory(k->plan, r, &p, NULL) == OPIPE_OK &&
               k->api->session_memory(k->session, r, &q, NULL) == OPIPE_OK);
    OPI_ASSERT(p.params_bytes == q.params_bytes && p.activation_bytes == q.activation_bytes &&
               p.workspace_bytes == q.workspace_bytes && p.boundary_bytes == q.boundary_bytes &&
               p.state_bytes == q.state_bytes && p.total_bytes == q.total_bytes);
    OPI_ASSERT(q.state_bytes != 0);
  }
}

static uint32_t drive(const host_kit *k, uint32_t n_ranks, uint32_t n_rounds) {
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t n_failed = 0;
  for (uint32_t i = 0; i < n_rounds * n_ranks; ++i)
    n_failed += k->api->session_drive(k->session, i % n_ranks, 1000, &err) < 0;
  return n_failed;
}

static void run(const form *f, const opipe_session_params *session, told *t) {
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
    OPI_ASSERT_INT(t[i].end, OPIPE_END_TOKENS);
    OPI_ASSERT_INT(t[i].n, TOKENS);
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
    check_bytes(&k, n_ranks);
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
  static const form forms[] = {{2}, {2, .replicas = 2}, {2, .tensor = 2}, {1, 2, 2}};
  static told alone[PROMPTS], other[PROMPTS];
  const opipe_session_params *const how[] = {&library, &by_host};
  for (size_t f = 0; f < sizeof forms / sizeof forms[0]; ++f) {
    run(&forms[f], &reference, alone);
    for (size_t i = 0; i < sizeof how / sizeof how[0]; ++i) {
      run(&forms[f], how[i], other);
      for (uint32_t p = 0; p < PROMPTS; ++p) {
        OPI_ASSERT(memcmp(alone[p].ids, other[p].ids, TOKENS * sizeof(uint32_t)) == 0);
        OPI_ASSERT(alone[p].bits == other[p].bits);
      }
    }
  }
}

/* ---- a host that drives: forks and cancels while passes are under way ---- */

static opipe_sequence *fork_in_flight(const host_kit *k, uint32_t n_ranks, opipe_sequence *of,
                                      told *t) {
  opipe_sequence *fork = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_E_STATE;
  for (uint32_t i = 0; i < 10000 && status == OPIPE_E_STATE; ++i) {
    OPI_ASSERT_FATAL(k->api->session_drive(k->session, i % n_ranks, 0, &err) >= 0);
    status = k->api->sequence_fork(of, NULL, t, &fork, &err);
  }
  OPI_ASSERT_OK_FATAL(status, &err);
  return fork;
}

static void test_a_host_that_drives_forks_and_cancels(void) {
  static told alone[PROMPTS], t[PROMPTS], of_fork;
  const form two = {2};
  host_kit k;
  opipe_sequence *sequences[PROMPTS];
  run(&two, &reference, alone); /* bits of the others */
  open(&k, &two, &by_host);
  begin(&k, "temperature=0.8,seed=5,top_k=6,max_tokens=20", t, sequences);
  while (t[0].n < 3)
    OPI_ASSERT_FATAL(drive(&k, 2, 1) == 0);
  OPI_ASSERT_OK(k.api->sequence_cancel(sequences[1], &k.err), &k.err);
  OPI_ASSERT_INT(t[1].end, OPIPE_END_CANCELLED);
  of_fork = (told){.api = k.api, .session = k.session};
  opipe_sequence *fork = fork_in_flight(&k, 2, sequences[2], &of_fork);
  const uint32_t n_before = t[2].n;
  k.api->sequence_release(sequences[3]); /* in flight, too */
  opipe_sequence_info info = opipe_sequence_info_init();
  while (info.end == OPIPE_END_NONE || t[0].end == 0 || t[2].end == 0 || t[4].end == 0 ||
         t[5].end == 0) {
    OPI_ASSERT_FATAL(drive(&k, 2, 1) == 0);
    OPI_ASSERT_OK_FATAL(k.api->sequence_info(fork, &info, &k.err), &k.err);
  }
  OPI_ASSERT_INT(info.branch, 1);
  OPI_ASSERT_INT(of_fork.n + n_before, TOKENS);
  OPI_ASSERT(t[1].n_ends == 1 && t[3].n_ends == 1 && of_fork.n_ends == 1);
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    OPI_ASSERT(memcmp(alone[i].ids, t[i].ids, t[i].n * sizeof(uint32_t)) == 0);
    OPI_ASSERT(i == 1 || i == 3 || (t[i].n == TOKENS && t[i].bits == alone[i].bits));
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
  static told t[PROMPTS];
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
    OPI_ASSERT_INT(t[p].end, cancelled ? OPIPE_END_CANCELLED : OPIPE_END_TOKENS);
    OPI_ASSERT(t[p].n_ends == 1 && (cancelled || t[p].n == TOKENS));
  }
  OPI_ASSERT_INT(t[0].n, 5);
  OPI_ASSERT_INT(t[0].n_refused, 5);
  kit_close(&k);
}

static void test_a_callback_cancels(void) {
  cancel_inside(&library);
  cancel_inside(&by_host);
}

static void test_a_close_ends_every_turn_once(void) {
  static told t[PROMPTS];
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
    OPI_ASSERT_INT(t[i].n_ends, 1);
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
