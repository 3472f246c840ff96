/* SPDX-License-Identifier: Apache-2.0 */
/* Teams whose ranks are threads of this process: joining, collective calls, the board, stops, and
 * what is refused. */
#include <stdlib.h>

#include "tests/runtime/launch/team_kit.h"

enum { SIZE = 5, LONG = 300000 };

/* ---- collective calls ---- */

typedef struct parts {
  uint32_t n, rank, wrong;
} parts;

/* Rank r gives r * LONG / 4 bytes of value r. */
static opipe_status check_part(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  parts *p = ctx;
  const uint8_t *bytes = data;
  p->wrong += rank != p->n || n_bytes != (uint64_t)rank * LONG / 4;
  for (uint64_t i = 0; i < n_bytes; ++i)
    p->wrong += bytes[i] != rank;
  ++p->n;
  return OPIPE_OK;
}

static opipe_status check_told(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  parts *p = ctx;
  p->wrong += rank != 0 || n_bytes != 5 || memcmp(data, "plan!", 5) != 0;
  ++p->n;
  return OPIPE_OK;
}

static opipe_status gather_all(kit_member *m) {
  opipe_status status = OPIPE_OK;
  uint8_t *own = malloc(LONG * 2);
  if (own == NULL)
    return OPIPE_E_NOMEM;
  memset(own, (int)m->rank, LONG * 2);
  for (uint32_t i = 0; i < 5 && status == OPIPE_OK; ++i) {
    parts found = {0}, told = {0};
    opipe_gather_params params = opipe_gather_params_init();
    params.name = "sizes";
    params.data = own;
    params.n_bytes = (uint64_t)m->rank * LONG / 4;
    params.part = check_part;
    params.part_ctx = &found;
    status = opi_team_gather(m->team, &params, &m->err);
    if (status == OPIPE_OK)
      status = kit_gather(m->team, "barrier", UINT64_MAX, &m->err);
    params = opipe_gather_params_init();
    params.flags = OPIPE_GATHER_ROOT;
    params.name = "plan";
    params.data = m->rank == 0 ? "plan!" : NULL;
    params.n_bytes = m->rank == 0 ? 5 : 0;
    params.part = check_told;
    params.part_ctx = &told;
    if (status == OPIPE_OK)
      status = opi_team_gather(m->team, &params, &m->err);
    if (found.n != SIZE || found.wrong != 0 || told.n != 1 || told.wrong != 0) {
      status = opi_fail(&m->err, OPIPE_E_INTERNAL, "%u parts, %u wrong; %u told, %u wrong", found.n,
                        found.wrong, told.n, told.wrong);
    }
  }
  free(own);
  return status;
}

static void assert_all(const kit_team *k, opipe_status status, const char *says) {
  for (uint32_t r = 0; r < k->size; ++r) {
    opipe_error err = k->members[r].err;
    if (status == OPIPE_OK)
      OPI_ASSERT_OK(k->members[r].status, &err);
    else
      OPI_ASSERT_ERROR(k->members[r].status, status, &err, says);
  }
}

static void test_parts_come_to_all_in_order(void) {
  kit_team k = {.size = SIZE, .job = kit_job("gather"), .run = gather_all};
  kit_run(&k);
  assert_all(&k, OPIPE_OK, NULL);
}

static opipe_status refuse_some(kit_member *m) {
  opipe_gather_params params = opipe_gather_params_init();
  params.name = "prepare";
  if (m->rank >= 2) {
    params.refused = OPIPE_E_LIMIT;
    params.reason = m->rank == 2 ? "no memory here" : "none here either";
  }
  const opipe_status status = opi_team_gather(m->team, &params, &m->err);
  if (status != OPIPE_E_LIMIT)
    return opi_fail(&m->err, OPIPE_E_INTERNAL, "nobody refused");
  /* The team goes on. */
  opipe_error none = OPIPE_ERROR_INIT;
  return kit_gather(m->team, "after", UINT64_MAX, &none) == OPIPE_OK ? status : OPIPE_E_INTERNAL;
}

static void test_a_refusal_is_everybodys_answer(void) {
  kit_team k = {.size = SIZE, .job = kit_job("refusal"), .run = refuse_some};
  kit_run(&k);
  assert_all(&k, OPIPE_E_LIMIT, "process 2 (pid");
  assert_all(&k, OPIPE_E_LIMIT, "no memory here");
}

static opipe_status call_others(kit_member *m) {
  return kit_gather(m->team, m->rank == 3 ? "save" : "step", UINT64_MAX, &m->err);
}

static void test_calls_of_other_names_are_refused(void) {
  kit_team k = {.size = SIZE, .job = kit_job("names"), .run = call_others};
  kit_run(&k);
  assert_all(&k, OPIPE_E_STATE, "is at the collective call 'save' where process 0 is at 'step'");
}

static opipe_status wait_in_vain(kit_member *m) {
  if (m->rank == 2) { /* comes too late */
    kit_sleep_ms(300);
    return kit_gather(m->team, "late", UINT64_MAX, &m->err);
  }
  return kit_gather(m->team, "late", m->rank == 0 ? OPI_SECOND / 10 : UINT64_MAX, &m->err);
}

static void test_a_late_process_is_named(void) {
  kit_team k = {.size = 3, .job = kit_job("late"), .run = wait_in_vain};
  kit_run(&k);
  for (uint32_t r = 0; r < k.size; ++r) {
    opipe_error err = k.members[r].err;
    OPI_ASSERT_ERROR(k.members[r].status, r == 0 ? OPIPE_E_TIMEOUT : OPIPE_E_PEER, &err,
                     "s in 'late' for process 2");
  }
}

static opipe_status leave_early(kit_member *m) {
  return m->rank == 1 ? OPIPE_OK : kit_gather(m->team, "end", UINT64_MAX, &m->err);
}

static void test_who_waits_for_one_that_left_is_told(void) {
  kit_team k = {.size = 3, .job = kit_job("left"), .run = leave_early};
  kit_run(&k);
  for (uint32_t r = 0; r < k.size; r += 2) {
    opipe_error err = k.members[r].err;
    OPI_ASSERT_ERROR(k.members[r].status, OPIPE_E_PEER, &err, "has left the team");
    OPI_ASSERT(strstr(err.message, "process 1") != NULL);
  }
}

static opipe_status abort_one(kit_member *m) {
  if (m->rank == 2)
    return opi_team_abort(m->team, "loss is NaN", &m->err);
  return kit_gather(m->team, "step", UINT64_MAX, &m->err);
}

static void test_an_abort_names_rank_and_reason(void) {
  kit_team k = {.size = SIZE, .job = kit_job("abort"), .run = abort_one};
  kit_run(&k);
  for (uint32_t r = 0; r < k.size; ++r) {
    opipe_error err = k.members[r].err;
    if (r == 2)
      OPI_ASSERT_OK(k.members[r].status, &err);
    else
      OPI_ASSERT_ERROR(k.members[r].status, OPIPE_E_PEER, &err, "has aborted: loss is NaN");
  }
}

/* ---- the board ---- */

static opipe_status look(opi_team *t, const char *key, char found[64], uint64_t *out_n,
                         opipe_error *err) {
  *out_n = 64;
  return opi_team_look(t, key, found, out_n, err);
}

static opipe_status post_and_look(kit_member *m) {
  char key[32], text[64];
  uint64_t n = 0;
  const uint64_t until = opi_clock_ns() + 10 * OPI_SECOND;
  (void)snprintf(key, sizeof key, "address-%u", m->rank);
  (void)snprintf(text, sizeof text, "shm of %u", m->rank);
  opipe_status status = opi_team_post(m->team, key, text, strlen(text), &m->err);
  for (uint32_t r = 0; r < m->kit->size && status == OPIPE_OK; ++r) {
    char wanted[64], found[64] = "";
    (void)snprintf(key, sizeof key, "address-%u", r);
    (void)snprintf(wanted, sizeof wanted, "shm of %u", r);
    while ((status = look(m->team, key, found, &n, &m->err)) == OPIPE_PENDING &&
           opi_clock_ns() < until)
      kit_sleep_ms(1);
    if (status == OPIPE_OK && (n != strlen(wanted) || memcmp(found, wanted, n) != 0))
      status = opi_fail(&m->err, OPIPE_E_INTERNAL, "'%s' in place of '%s'", found, wanted);
  }
  if (status == OPIPE_OK)
    status = kit_gather(m->team, "looked", UINT64_MAX, &m->err);
  return status;
}

static void test_everybody_sees_the_board(void) {
  kit_team k = {.size = SIZE, .job = kit_job("board"), .run = post_and_look};
  kit_run(&k);
  assert_all(&k, OPIPE_OK, NULL);
}

static void test_the_board_has_bounds(void) {
  opi_team *t = NULL;
  uint8_t bytes[OPI_POST_MOST + 1] = {0};
  char key[200];
  uint64_t n = 8;
  opipe_error err = OPIPE_ERROR_INIT;
  const kit_team k = {.size = 1};
  memset(key, 'k', sizeof key - 1);
  key[sizeof key - 1] = '\0';
  OPI_ASSERT_OK_FATAL(kit_open(&k, 0, &t, &err), &err);
  OPI_ASSERT_INT(opi_team_look(t, "a", bytes, &n, &err), OPIPE_PENDING);
  OPI_ASSERT_ERROR(opi_team_post(t, "a", bytes, sizeof bytes, &err), OPIPE_E_LIMIT, &err,
                   "4097 bytes, at most 4096");
  OPI_ASSERT_ERROR(opi_team_post(t, key, bytes, 1, &err), OPIPE_E_INVALID, &err,
                   "a key of 199 bytes, 1 to 127");
  OPI_ASSERT_OK(opi_team_post(t, "a", bytes, OPI_POST_MOST, &err), &err);
  OPI_ASSERT_ERROR(opi_team_look(t, "a", bytes, &n, &err), OPIPE_E_LIMIT, &err,
                   "4096 bytes, there is room for 8");
  OPI_ASSERT_ERROR(opi_team_post(t, "a", bytes, 3, &err), OPIPE_E_STATE, &err,
                   "'a' is taken: it has 4096 bytes, now it is posted with 3");
  opi_team_close(t);
}

/* ---- stops ---- */

enum { STEPS = 600, STOPS = 6, ROOM = 16 };
typedef struct stops {
  uint64_t at[SIZE][ROOM];
  uint32_t what[SIZE][ROOM], n[SIZE];
} stops;

/* Every rank runs at a speed of its own. Two of them ask; all ask for the same; one asks for three
 * things at once. */
static opipe_status run_steps(kit_member *m) {
  stops *s = m->kit->ctx;
  opipe_status status = OPIPE_OK;
  for (uint64_t step = 0; step < STEPS && status == OPIPE_OK; ++step) {
    uint32_t what = 0;
    if (m->rank == 3 && step == 50)
      status = opi_team_stop(m->team, 10, &m->err);
    if (m->rank == 0 && step == 90)
      status = opi_team_stop(m->team, 12, &m->err);
    if (step == 150 && status == OPIPE_OK)
      status = opi_team_stop(m->team, 33, &m->err);
    for (uint32_t i = 41; m->rank == 1 && step == 250 && i <= 43 && status == OPIPE_OK; ++i)
      status = opi_team_stop(m->team, i, &m->err);
    if (status == OPIPE_OK)
      status = opi_team_step(m->team, step, &what, &m->err);
    if (what != 0 && s->n[m->rank] < ROOM) {
      s->at[m->rank][s->n[m->rank]] = step;
      s->what[m->rank][s->n[m->rank]++] = what;
    }
    if ((step + m->rank) % 7 == 0)
      kit_sleep_ms(m->rank % 3);
    if (step % 100 == 99 && status == OPIPE_OK) /* steps depend on each other now and then */
      status = kit_gather(m->team, "step", UINT64_MAX, &m->err);
  }
  return status;
}

static void test_all_stop_at_one_step(void) {
  static stops found;
  kit_team k = {.size = SIZE, .job = kit_job("stop"), .run = run_steps, .ctx = &found};
  kit_run(&k);
  assert_all(&k, OPIPE_OK, NULL);
  OPI_ASSERT_INT(found.n[0], STOPS);
  OPI_ASSERT(found.what[0][0] + found.what[0][1] == 22);
  OPI_ASSERT(found.at[0][0] < found.at[0][1]);
  OPI_ASSERT_INT(found.what[0][2], 33); /* once */
  for (uint32_t i = 0; i < 3; ++i)
    OPI_ASSERT_INT(found.what[0][3 + i], 41 + i);
  for (uint32_t r = 1; r < SIZE; ++r) {
    OPI_ASSERT_INT(found.n[r], STOPS);
    for (uint32_t i = 0; i < STOPS; ++i) {
      OPI_ASSERT_INT(found.at[r][i], found.at[0][i]);
      OPI_ASSERT_INT(found.what[r][i], found.what[0][i]);
    }
  }
}

static void test_steps_rise(void) {
  opi_team *t = NULL;
  uint32_t what = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  const kit_team k = {.size = 1};
  OPI_ASSERT_OK_FATAL(kit_open(&k, 0, &t, &err), &err);
  OPI_ASSERT_OK(opi_team_step(t, 7, &what, &err), &err);
  OPI_ASSERT_ERROR(opi_team_step(t, 7, &what, &err), OPIPE_E_INVALID, &err, "step 7 after step 7");
  OPI_ASSERT_ERROR(opi_team_stop(t, 0, &err), OPIPE_E_INVALID, &err, "the number is 0");
  OPI_ASSERT_OK(opi_team_stop(t, 15, &err), &err);
  OPI_ASSERT_OK(opi_team_step(t, 9, &what, &err), &err);
  OPI_ASSERT_INT(what, 15);
  OPI_ASSERT_OK(opi_team_step(t, 10, &what, &err), &err);
  OPI_ASSERT_INT(what, 0);
  opi_team_close(t);
}

/* ---- who is in it ---- */

static opipe_status tell_moves(kit_member *m) {
  char at[32];
  opipe_status status = OPIPE_OK;
  (void)snprintf(at, sizeof at, "step %u", 10 + m->rank);
  status = opi_team_moved(m->team, 100 + m->rank, at, &m->err);
  kit_sleep_ms(200); /* heartbeats: 20 ms */
  if (m->rank == 0 && status == OPIPE_OK) {
    opi_text text;
    opi_text_init(&text, opi_allocator_system());
    status = opi_team_describe(m->team, OPIPE_FORMAT_JSON, &text, &m->err);
    if (status == OPIPE_OK && strstr(text.data, "\"moves\": 102, \"at\": \"step 12\"") == NULL)
      status = opi_fail(&m->err, OPIPE_E_INTERNAL, "%.400s", text.data);
    opi_text_release(&text);
  }
  return status == OPIPE_OK ? kit_gather(m->team, "told", UINT64_MAX, &m->err) : status;
}

static void test_heartbeats_carry_moves(void) {
  kit_team k = {
      .size = 3, .job = kit_job("moves"), .run = tell_moves, .silence_ns = OPI_SECOND / 10};
  kit_run(&k);
  assert_all(&k, OPIPE_OK, NULL);
}

/* ---- opening ---- */

static void test_who_has_not_come_is_named(void) {
  opi_team *t = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const kit_team k = {.size = 3, .job = kit_job("alone"), .timeout_ns = OPI_SECOND / 5};
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_TIMEOUT, &err,
                   "2 of the 3 processes of job 'test-");
  OPI_ASSERT(strstr(err.message, "rank 1, 2") != NULL);
  OPI_ASSERT_ERROR(kit_open(&k, 1, &t, &err), OPIPE_E_TIMEOUT, &err, "process 0 of job 'test-");
  OPI_ASSERT(strstr(err.message, "nothing listens at @onnx-pipe/") != NULL);
}

static void test_params_are_checked(void) {
  const opi_team_env env = {opi_allocator_system(), NULL, NULL, NULL};
  opi_team *t = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_team_params params = opipe_team_params_init();
  params.launcher = "none";
  params.size = 2;
  OPI_ASSERT_ERROR(opi_team_open(&env, &params, &t, &err), OPIPE_E_INVALID, &err,
                   "a team of 2 processes needs a place to meet");
  params.rank = 2;
  OPI_ASSERT_ERROR(opi_team_open(&env, &params, &t, &err), OPIPE_E_INVALID, &err,
                   "rank 2 of 2 processes");
  params.rank = 0;
  params.silence_ns = 1;
  OPI_ASSERT_ERROR(opi_team_open(&env, &params, &t, &err), OPIPE_E_INVALID, &err,
                   "silence_ns is 1, at least 100000000");
}

/* A second process 0 of the same job. */
static opipe_status open_second(kit_member *m) {
  opi_team *second = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  if (m->rank == 0 && kit_open(m->kit, 0, &second, &err) != OPIPE_E_STATE)
    status = opi_fail(&m->err, OPIPE_E_INTERNAL, "two of rank 0: %s", err.message);
  if (m->rank == 0 && strstr(err.message, "is rank 0 of a job of this name") == NULL)
    status = opi_fail(&m->err, OPIPE_E_INTERNAL, "%s", err.message);
  err = (opipe_error)OPIPE_ERROR_INIT;
  if (m->rank == 1 && kit_open(m->kit, 1, &second, &err) != OPIPE_E_STATE)
    status = opi_fail(&m->err, OPIPE_E_INTERNAL, "two of rank 1: %s", err.message);
  if (m->rank == 1 && strstr(err.message, "says it is rank 1 of job") == NULL)
    status = opi_fail(&m->err, OPIPE_E_INTERNAL, "%s", err.message);
  return status == OPIPE_OK ? kit_gather(m->team, "both", UINT64_MAX, &m->err) : status;
}

static void test_a_second_job_of_one_name_is_refused(void) {
  kit_team k = {.size = 2, .job = kit_job("twice"), .run = open_second};
  kit_run(&k);
  assert_all(&k, OPIPE_OK, NULL);
}

/* One says that there are 3, the others 2: nobody waits. */
static void *open_other_size(void *arg) {
  kit_member *m = arg;
  m->status = kit_open(m->kit, m->rank, &m->team, &m->err);
  opi_team_close(m->team);
  return NULL;
}

static void test_other_sizes_are_everybodys_refusal(void) {
  kit_team two = {.size = 2, .job = kit_job("sizes"), .timeout_ns = 20 * OPI_SECOND};
  kit_team three = two;
  kit_member a = {.rank = 0, .kit = &two}, b = {.rank = 2, .kit = &three};
  opipe_error err = OPIPE_ERROR_INIT;
  const uint64_t began = opi_clock_ns();
  three.size = 3;
  OPI_ASSERT_OK_FATAL(opi_thread_start(&a.thread, "a", open_other_size, &a, &err), &err);
  OPI_ASSERT_OK_FATAL(opi_thread_start(&b.thread, "b", open_other_size, &b, &err), &err);
  opi_thread_join(&a.thread);
  opi_thread_join(&b.thread);
  OPI_ASSERT_ERROR(a.status, OPIPE_E_INVALID, &a.err, "says it is rank 2 of 3");
  OPI_ASSERT_ERROR(b.status, OPIPE_E_INVALID, &b.err, "says there are 2");
  OPI_ASSERT(opi_clock_ns() - began < 5 * OPI_SECOND);
}

/* ---- a host's own all-gather ---- */

typedef struct exchange {
  opi_lock lock;
  uint32_t n_in;
  uint8_t all[3][512];
} exchange;
typedef struct exchange_end {
  exchange *shared;
  uint32_t rank;
} exchange_end;

static opipe_status swap_bytes(void *ctx, const void *mine, uint64_t n, void *out_all,
                               uint64_t timeout_ns) {
  const exchange_end *end = ctx;
  exchange *x = end->shared;
  (void)timeout_ns;
  if (n > sizeof x->all[0])
    return OPIPE_E_LIMIT;
  opi_lock_take(&x->lock);
  memcpy(x->all[end->rank], mine, n);
  ++x->n_in;
  opi_lock_signal(&x->lock);
  while (x->n_in < 3)
    opi_lock_wait(&x->lock, opi_clock_ns() + OPI_SECOND);
  for (uint32_t r = 0; r < 3; ++r)
    memcpy((uint8_t *)out_all + r * n, x->all[r], n);
  opi_lock_give(&x->lock);
  return OPIPE_OK;
}

static void *open_by_host(void *arg) {
  kit_member *m = arg;
  exchange_end end = {m->kit->ctx, m->rank};
  const opi_team_env env = {opi_allocator_system(), NULL, NULL, NULL};
  opipe_team_params params = opipe_team_params_init();
  params.rank = m->rank;
  params.size = 3;
  params.launcher = "none";
  params.all_gather = swap_bytes;
  params.all_gather_ctx = &end;
  m->status = opi_team_open(&env, &params, &m->team, &m->err);
  if (m->status == OPIPE_OK)
    m->status = kit_gather(m->team, "here", UINT64_MAX, &m->err);
  opi_team_close(m->team);
  return NULL;
}

static void test_a_host_tells_where_to_meet(void) {
  exchange x = {.n_in = 0};
  kit_team k = {.size = 3, .ctx = &x};
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_lock_init(&x.lock, &err), &err);
  for (uint32_t r = 0; r < 3; ++r) {
    k.members[r] = (kit_member){.rank = r, .kit = &k, .err = OPIPE_ERROR_INIT};
    OPI_ASSERT_OK_FATAL(
        opi_thread_start(&k.members[r].thread, "rank", open_by_host, &k.members[r], &err), &err);
  }
  for (uint32_t r = 0; r < 3; ++r)
    opi_thread_join(&k.members[r].thread);
  assert_all(&k, OPIPE_OK, NULL);
  opi_lock_destroy(&x.lock);
}

OPI_TEST_MAIN("team", OPI_TEST(test_parts_come_to_all_in_order),
              OPI_TEST(test_a_refusal_is_everybodys_answer),
              OPI_TEST(test_calls_of_other_names_are_refused),
              OPI_TEST(test_a_late_process_is_named),
              OPI_TEST(test_who_waits_for_one_that_left_is_told),
              OPI_TEST(test_an_abort_names_rank_and_reason),
              OPI_TEST(test_everybody_sees_the_board), OPI_TEST(test_the_board_has_bounds),
              OPI_TEST(test_all_stop_at_one_step), OPI_TEST(test_steps_rise),
              OPI_TEST(test_heartbeats_carry_moves), OPI_TEST(test_who_has_not_come_is_named),
              OPI_TEST(test_params_are_checked), OPI_TEST(test_a_second_job_of_one_name_is_refused),
              OPI_TEST(test_other_sizes_are_everybodys_refusal),
              OPI_TEST(test_a_host_tells_where_to_meet))
