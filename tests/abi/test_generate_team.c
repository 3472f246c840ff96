/* SPDX-License-Identifier: Apache-2.0 */
/* Generation over two processes, as stages, as a tensor group and as replicas: the bits of the
 * reference in one, bytes as predicted in both; calls that belong to process 0 are refused
 * elsewhere; a process that dies ends every turn with a reason that names it. ctest: timeout=60 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/abi/generate_kit.h"
#include "tests/abi/team_kit.h"

enum { TOKENS = 12 };

static opipe_status (*tells)(void *, opipe_sequence *, const opipe_token *,
                             opipe_error *) = told_token;

static void begin(host_kit *k, opipe_session *session, const char *sampling, told *t,
                  opipe_sequence **out) {
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    uint32_t prompt[16];
    opipe_generate_params p = told_turn(i, prompt, sampling, &t[i]);
    p.on_token = tells;
    t[i] = (told){.n = 0};
    MUST_OK(k->api->session_generate(session, &p, &out[i], &k->err), &k->err);
  }
}

static void generate(host_kit *k, opipe_session *session, told *t) {
  opipe_sequence *sequences[PROMPTS];
  begin(k, session, "temperature=0.8,seed=5,top_k=6,max_tokens=12", t, sequences);
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    MUST_OK(k->api->sequence_wait(sequences[i], UINT32_MAX, UINT64_MAX, &k->err), &k->err);
    MUST(t[i].end == OPIPE_END_TOKENS && t[i].n == TOKENS && t[i].n_ends == 1);
    k->api->sequence_release(sequences[i]);
  }
}

static const opipe_generation_params generation = {
    .struct_size = sizeof generation, .context = 64, .rows = 8, .groups = 2, .active = 4};

/* A rank for each process. */
typedef struct form {
  uint32_t n_stages, replicas, tensor;
} form;
static const form *how; /* of this case */
static const form stages = {2, 0, 0}, group = {1, 0, 2}, replicas = {1, 2, 0};

static opipe_plan_params two_ranks(const member *m) {
  opipe_plan_params p = opipe_plan_params_init();
  p.n_stages = how->n_stages;
  p.replicas = how->replicas;
  p.tensor = how->tensor;
  p.transport = "shm";
  p.team = m->team;
  p.devices = &one_thread;
  p.n_devices = 1;
  p.generation = &generation;
  return p;
}

static void begin_member(member *m) {
  opipe_team_params params = opipe_team_params_init();
  host_kit *k = &m->k;
  memset(m, 0, sizeof *m);
  MUST_OK(kit_load(k, NULL, opi_test_source("tests/data/rows/group_query/model.onnx")), &k->err);
  params.rank = me;
  params.size = W;
  params.job = job;
  params.launcher = "none";
  MUST_OK(k->api->team_open(k->context, &params, &m->team, &k->err), &k->err);
}

static uint64_t shapes(host_kit *k) {
  opipe_session_info info = opipe_session_info_init();
  MUST_OK(k->api->session_info(k->session, &info, &k->err), &k->err);
  return info.shapes_compiled;
}

static void be_refused(host_kit *k) {
  const uint32_t ids_given[] = {1, 2};
  opipe_generate_params p = opipe_generate_params_init();
  opipe_sequence *sequence = NULL;
  p.ids = ids_given;
  p.n_ids = 2;
  MUST(k->api->session_generate(k->session, &p, &sequence, &k->err) == OPIPE_E_INVALID);
  MUST_SAY(&k->err, "process 1 follows process 0");
}

/* The same plan by its reference, in process 0 alone. */
static void generate_alone(member *m, told *t) {
  const opipe_session_params reference = {
      .struct_size = sizeof reference, .spin_us = UINT32_MAX, .flags = OPIPE_SESSION_REFERENCE};
  opipe_plan_params p = two_ranks(m);
  host_kit *k = &m->k;
  opipe_plan *alone = NULL;
  opipe_session *session = NULL;
  p.team = NULL;
  p.transport = "local";
  MUST_OK(k->api->plan_make(k->model, &p, &alone, &k->err), &k->err);
  MUST_OK(k->api->session_open(k->context, alone, &reference, &session, &k->err), &k->err);
  generate(k, session, t);
  k->api->session_close(session);
  k->api->plan_destroy(alone);
}

static void same_bits(void) {
  static told alone[PROMPTS], together[PROMPTS];
  member m;
  begin_member(&m);
  const opipe_plan_params p = two_ranks(&m);
  host_kit *k = &m.k;
  MUST_OK(k->api->plan_make(k->model, &p, &k->plan, &k->err), &k->err);
  open_session(&m);
  const uint64_t n_shapes = shapes(k);
  MUST(n_shapes == 4);
  MUST(kit_bytes_as_predicted(k, me, 1));
  if (me == 0) {
    generate(k, k->session, together);
    generate_alone(&m, alone);
    for (uint32_t i = 0; i < PROMPTS; ++i) {
      MUST(memcmp(alone[i].ids, together[i].ids, TOKENS * sizeof(uint32_t)) == 0);
      MUST(alone[i].bits == together[i].bits);
    }
    opipe_generation_info info = opipe_generation_info_init();
    MUST_OK(k->api->session_generation(k->session, &info, &k->err), &k->err);
    MUST(info.tokens == PROMPTS * TOKENS && info.open == 0);
  } else {
    be_refused(k);
    MUST_OK(k->api->session_follow(k->session, &k->err), &k->err);
  }
  MUST(kit_bytes_as_predicted(k, me, 1));
  MUST(shapes(k) == n_shapes);
  leave(&m);
}

/* ---- a process dies ---- */

static atomic_bool *dying; /* in memory of both */

static void pause_a_while(void) {
  const struct timespec pause = {.tv_nsec = 200000};
  (void)nanosleep(&pause, NULL);
}

/* However slow the machine is, no turn gets to its end before process 1 dies. */
static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  const told *t = ctx;
  while (t->n > 7 && !atomic_load(dying))
    pause_a_while();
  return told_token(ctx, sequence, token, err);
}

static void *die_later(void *arg) {
  const host_kit *k = arg;
  opipe_session_info info = opipe_session_info_init();
  while (info.requests_done < 6) {
    MUST_OK(k->api->session_info(k->session, &info, NULL), &k->err);
    pause_a_while();
  }
  atomic_store(dying, true);
  (void)syscall(SYS_exit_group, 0); /* passes are in flight, and nothing is said; the _exit of a
                                       sanitizer would let threads go on for a second */
  return NULL;
}

/* Every turn has ended, and no page is taken. */
static void check_all_ended(host_kit *k, opipe_sequence *const *sequences, const told *t) {
  opipe_generation_info info = opipe_generation_info_init();
  for (uint32_t i = 0; i < PROMPTS; ++i) {
    const opipe_status status =
        k->api->sequence_wait(sequences[i], UINT32_MAX, UINT64_C(20000000000), &k->err);
    MUST(status < 0 && status != OPIPE_E_TIMEOUT);
    MUST(t[i].n_ends == 1 && t[i].end == OPIPE_END_FAILED && t[i].why.status < 0);
    MUST_SAY(&t[i].why, "process 1");
  }
  MUST_OK(k->api->session_generation(k->session, &info, &k->err), &k->err);
  MUST(info.active == 0 && info.waiting == 0 && info.in_flight == 0);
  MUST(info.free_pages + info.kept_pages == info.n_pages);
}

static void one_dies(void) {
  static told t[PROMPTS];
  opipe_sequence *sequences[PROMPTS], *late = NULL;
  member m;
  begin_member(&m);
  const opipe_plan_params p = two_ranks(&m);
  host_kit *k = &m.k;
  MUST_OK(k->api->plan_make(k->model, &p, &k->plan, &k->err), &k->err);
  open_session(&m);
  if (me == 1) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, die_later, k) == 0);
    (void)k->api->session_follow(k->session, &k->err);
    (void)pthread_join(thread, NULL);
  }
  tells = on_token;
  begin(k, k->session, "temperature=1,seed=3", t, sequences); /* up to the context */
  check_all_ended(k, sequences, t);
  const uint32_t prompt[] = {1, 2, 3};
  opipe_generate_params again = opipe_generate_params_init();
  again.ids = prompt;
  again.n_ids = 3;
  MUST_OK(k->api->session_generate(k->session, &again, &late, &k->err), &k->err);
  MUST(k->api->sequence_wait(late, 1, UINT64_C(20000000000), &k->err) < 0);
  MUST_SAY(&k->err, "process 1");
  k->api->session_close(k->session);
  k->session = NULL;
  k->api->team_close(m.team);
  kit_close(k);
}

static void test_bits_are_those_of_one_process(void) {
  const form *const all[] = {&stages, &group, &replicas};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    how = all[i];
    run_case("bits", same_bits, NULL);
  }
}

static void test_a_dead_process_ends_every_turn(void) {
  how = &stages;
  dying = mmap(NULL, sizeof *dying, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(dying != MAP_FAILED);
  run_case("dies", one_dies, NULL);
  OPI_ASSERT(atomic_load(dying) && munmap(dying, sizeof *dying) == 0);
}

OPI_TEST_MAIN("generate_team", OPI_TEST(test_bits_are_those_of_one_process),
              OPI_TEST(test_a_dead_process_ends_every_turn))
