/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a followed session, whose calls the other process repeats, beside a session of the
 * same plan that both processes call themselves: one request at a time, in turns in one team of two
 * processes on one machine. Prints, for each round, medians in microseconds: of the call
 * session_submit at process 0, and of a request from its submit to its result.
 * Usage: bench_follow [--rounds N] [--count N]: requests of a turn
 */
#include <getopt.h>
#include <pthread.h>

#include "tests/abi/team_kit.h"

enum { TRAVELS = OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0, COUNT_MOST = 10000 };

static uint32_t n_rounds = 15, count = 200;

typedef struct pair {
  member *m;
  opipe_session *called, *followed;
} pair;

static uint64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* One request; the time of its submit and of all of it. */
static void ask(const member *m, opipe_session *session, uint64_t *out_submit,
                uint64_t *out_whole) {
  static const int64_t shape[] = {BATCH, SEQ};
  const opipe_binding_io io = ids_of("input_ids", shape, me == 0);
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_request *request = NULL;
  opipe_submit_params params = opipe_submit_params_init();
  params.n_inputs = 1;
  params.inputs = &io;
  const uint64_t began = now_ns();
  MUST_OK(m->k.api->session_submit(session, &params, &request, &err), &err);
  *out_submit = now_ns() - began;
  MUST_OK(m->k.api->request_wait(request, UINT64_MAX, &err), &err);
  *out_whole = now_ns() - began;
  m->k.api->request_release(request);
}

static int by_value(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static double median_us(uint64_t *ns) {
  qsort(ns, count, sizeof *ns, by_value);
  return (double)ns[count / 2] / 1e3;
}

/* A turn; medians to out [2]: submit, whole. */
static void take_turn(const member *m, opipe_session *session, double *out) {
  static uint64_t submits[COUNT_MOST], wholes[COUNT_MOST];
  for (uint32_t i = 0; i < count; ++i)
    ask(m, session, &submits[i], &wholes[i]);
  out[0] = median_us(submits);
  out[1] = median_us(wholes);
}

static void *follow(void *arg) {
  const pair *p = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  MUST_OK(p->m->k.api->session_follow(p->followed, &err), &err);
  return NULL;
}

static void race(void) {
  member m;
  pair p = {.m = &m};
  pthread_t follower;
  double got[2][2];
  join(&m, false);
  opipe_plan_params params = four_ranks(&m);
  params.n_stages = W;
  plan(&m, &params);
  opipe_session_params session = in_team(&m);
  session.flags = TRAVELS;
  MUST_OK(m.k.api->session_open(m.k.context, m.k.plan, &session, &p.called, &m.k.err), &m.k.err);
  session.flags = TRAVELS | OPIPE_SESSION_FOLLOWED;
  MUST_OK(m.k.api->session_open(m.k.context, m.k.plan, &session, &p.followed, &m.k.err), &m.k.err);
  MUST(me == 0 || pthread_create(&follower, NULL, follow, &p) == 0);
  for (uint32_t round = 0; round < n_rounds; ++round) {
    for (uint32_t turn = 0; turn < 2; ++turn) { /* the order turns with each round */
      const bool is_followed = (turn + round) % 2 == 1;
      if (me == 0 || !is_followed)
        take_turn(&m, is_followed ? p.followed : p.called, got[is_followed]);
    }
    if (me == 0) {
      printf("submit %.1f followed %.1f  request %.1f followed %.1f\n", got[0][0], got[1][0],
             got[0][1], got[1][1]);
    }
  }
  if (me == 0)
    m.k.api->session_close(p.followed);
  else
    MUST(pthread_join(follower, NULL) == 0);
  if (me == 1)
    m.k.api->session_close(p.followed);
  m.k.session = p.called;
  (void)fflush(stdout);
  leave(&m);
}

int main(int argc, char **argv) {
  static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                          {"count", required_argument, NULL, 'c'},
                                          {NULL, 0, NULL, 0}};
  char name[64];
  int option = 0, status = -1;
  while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
    const uint32_t n = optarg == NULL ? 0 : (uint32_t)strtoul(optarg, NULL, 10);
    if (option == 'r' && n > 0)
      n_rounds = n;
    else if (option == 'c' && n > 0 && n <= COUNT_MOST)
      count = n;
    else
      return 2;
  }
  (void)snprintf(name, sizeof name, "bench-%d", (int)getpid());
  job = name;
  const pid_t other = fork();
  me = other == 0 ? 1 : 0;
  race();
  if (other == 0)
    _exit(0);
  return waitpid(other, &status, 0) == other && status == 0 ? 0 : 1;
}
