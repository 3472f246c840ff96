/* SPDX-License-Identifier: Apache-2.0 */
/* A session in which nothing moves although all processes answer: the rank at the end of those that
 * wait for each other is named everywhere, with its process and what it is at. */
#include <stdatomic.h>

#include "tests/runtime/launch/team_kit.h"

enum { SIZE = 3, SESSION = 5, LIMIT_MS = 500, WAIT_MS = 8000 };

/* Rank r is in process r. peer: the rank that it waits for; itself: it works. */
typedef struct scene {
  uint32_t peers[SIZE], idle; /* idle: a bit for each rank without work */
  uint32_t moving;            /* a rank that moves; OPIPE_NONE: none */
  const char *says[3];        /* NULL: the session is not held to stand still */
  bool late;                  /* rank 2 tells only after the limit */
} scene;

typedef struct teller_of {
  const scene *scene;
  uint32_t rank;
  uint64_t since_ns;
} teller_of;

static uint32_t tell(void *ctx, opi_told *out, uint32_t room) {
  const teller_of *t = ctx;
  const uint32_t peer = t->scene->peers[t->rank];
  const bool idle = (t->scene->idle & 1u << t->rank) != 0, works = peer == t->rank;
  (void)room;
  *out = (opi_told){.rank = t->rank,
                    .state = idle    ? OPI_TOLD_IDLE
                             : works ? OPI_TOLD_WORKS
                                     : OPI_TOLD_WAITS,
                    .peer = works ? OPIPE_NONE : peer,
                    .still_ns = t->scene->moving == t->rank ? 0 : opi_clock_ns() - t->since_ns,
                    .limit_ns = LIMIT_MS * UINT64_C(1000000)};
  (void)snprintf(out->at, sizeof out->at, "%s of stage %u", works ? "forward" : "RECV", t->rank);
  return 1;
}

static opipe_status watch(kit_member *m) {
  const scene *s = m->kit->ctx;
  teller_of of = {s, m->rank, opi_clock_ns()};
  opi_teller teller = {NULL, tell, &of, SESSION};
  const uint32_t most = s->says[0] == NULL ? 5 * LIMIT_MS : WAIT_MS;
  opipe_error why = OPIPE_ERROR_INIT;
  if (s->late && m->rank == 2)
    kit_sleep_ms(LIMIT_MS * 3 / 2);
  opi_team_tell(m->team, &teller);
  for (uint32_t ms = 0; ms < most && why.status == OPIPE_OK; ms += 10) {
    (void)opi_team_check_session(m->team, SESSION, &why);
    kit_sleep_ms(10);
  }
  const opipe_status wanted = s->says[0] == NULL ? OPIPE_OK : OPIPE_E_TIMEOUT;
  opipe_status status = why.status == wanted ? OPIPE_OK : OPIPE_E_INTERNAL;
  for (uint32_t i = 0; i < OPI_COUNT(s->says) && s->says[i] != NULL; ++i)
    status = strstr(why.message, s->says[i]) == NULL ? OPIPE_E_INTERNAL : status;
  if (opi_team_check_session(m->team, SESSION + 1, NULL) < 0 || opi_team_check(m->team, NULL) < 0)
    status = OPIPE_E_INTERNAL; /* other sessions and the team go on */
  opi_team_untell(m->team, &teller);
  (void)kit_gather(m->team, "seen", UINT64_MAX, &m->err);
  return status < 0 ? opi_fail(&m->err, status, "status %d, '%s'", why.status, why.message)
                    : OPIPE_OK;
}

static const scene scenes[] = {
    /* 0 waits for 1, 1 for 2, which is in a program. */
    {{1, 2, 2},
     0,
     OPIPE_NONE,
     {"rank 2 of process 2 (pid ", ") has been in the forward of stage 2 for ",
      "; rank 1 of process 1 (pid "}},
    /* The same, and nobody is blamed in place of the one that has not told yet. */
    {{1, 2, 2},
     0,
     OPIPE_NONE,
     {"rank 2 of process 2 (pid ", "has been in the forward of stage 2"},
     true},
    /* All wait for 0. */
    {{0, 0, 0}, 0, OPIPE_NONE, {"rank 0 of process 0 (pid ", "has been in the forward of stage 0"}},
    /* 2 has nothing to do although 1 waits for it. */
    {{1, 2, 0},
     1u << 2,
     OPIPE_NONE,
     {"rank 2 of process 2", "has nothing left to do; rank 1 of process 1"}},
    /* A cycle. */
    {{1, 2, 0}, 0, OPIPE_NONE, {"has been held up at RECV of stage", "has waited for it at RECV"}},
    /* A sum over all has no single peer: who works holds it up. */
    {{OPIPE_NONE, 1, OPIPE_NONE},
     0,
     OPIPE_NONE,
     {"rank 1 of process 1", "has been in the forward of stage 1"}},
    /* Something moves. */
    {{1, 2, 2}, 0, 2, {NULL}},
    /* Nobody has work. */
    {{1, 2, 2}, 7, OPIPE_NONE, {NULL}}};

/* All scenes at once: each takes as long as its limit. */
static void test_who_holds_up_all_others_is_named(void) {
  static kit_team teams[OPI_COUNT(scenes)];
  static char jobs[OPI_COUNT(scenes)][128];
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t i = 0; i < OPI_COUNT(scenes); ++i) {
    (void)snprintf(jobs[i], sizeof jobs[i], "test-%d-standing-%u", (int)getpid(), i);
    teams[i] = (kit_team){.size = SIZE,
                          .job = jobs[i],
                          .silence_ns = OPI_SECOND, /* a heartbeat in 200 ms */
                          .run = watch,
                          .ctx = (void *)(uintptr_t)&scenes[i]};
    for (uint32_t r = 0; r < SIZE; ++r) {
      kit_member *m = &teams[i].members[r];
      *m = (kit_member){.rank = r, .kit = &teams[i], .err = OPIPE_ERROR_INIT};
      OPI_ASSERT_OK_FATAL(opi_thread_start(&m->thread, "rank", kit_main, m, &err), &err);
    }
  }
  for (uint32_t i = 0; i < OPI_COUNT(scenes); ++i) {
    for (uint32_t r = 0; r < SIZE; ++r) {
      opi_thread_join(&teams[i].members[r].thread);
      OPI_ASSERT_OK(teams[i].members[r].status, &teams[i].members[r].err);
    }
  }
}

/* A death names what the ranks of the process were at. */
static opipe_status die(kit_member *m) {
  const scene s = {{1, 2, 2}, 0, OPIPE_NONE, {NULL}};
  teller_of of = {&s, m->rank, opi_clock_ns()};
  opi_teller teller = {NULL, tell, &of, SESSION};
  opi_team_tell(m->team, &teller);
  kit_sleep_ms(300);
  if (m->rank == 1)
    (void)opi_team_abort(m->team, "of this test", NULL);
  opipe_status status = kit_gather(m->team, "over", UINT64_MAX, &m->err);
  opi_team_untell(m->team, &teller);
  return status;
}

static void test_an_abort_names_what_its_ranks_were_at(void) {
  kit_team k = {.size = SIZE, .job = kit_job("aborts"), .silence_ns = OPI_SECOND / 2, .run = die};
  kit_run(&k);
  for (uint32_t r = 0; r < SIZE; ++r) {
    OPI_ASSERT_ERROR(k.members[r].status, OPIPE_E_PEER, &k.members[r].err,
                     "has aborted: of this test");
    OPI_ASSERT_ERROR(k.members[r].status, OPIPE_E_PEER, &k.members[r].err,
                     "; rank 1 at RECV of stage 1");
  }
}

OPI_TEST_MAIN("standing", OPI_TEST(test_who_holds_up_all_others_is_named),
              OPI_TEST(test_an_abort_names_what_its_ranks_were_at))
