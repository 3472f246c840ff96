/* SPDX-License-Identifier: Apache-2.0 */
/* Teams for tests: several in one process, a thread each, and in child processes. Jobs have names
 * of this process, so that tests may run beside each other. */
#ifndef TESTS_TEAM_KIT_H
#define TESTS_TEAM_KIT_H

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/launch/launch.h"
#include "runtime/launch/team.h"
#include "tests/support/support.h"

enum { KIT_MOST = 32 };

typedef struct kit_member {
  opi_thread thread;
  uint32_t rank;
  struct kit_team *kit;
  opi_team *team;
  opipe_status status;
  opipe_error err;
} kit_member;

/* run: what every rank does with its open team; its status and err are the member's. */
typedef struct kit_team {
  uint32_t size;
  uint64_t timeout_ns, silence_ns;
  const char *job;
  const char *address;          /* NULL: a name on this machine */
  const char *tokens[KIT_MOST]; /* NULL: none */
  const char *boots[KIT_MOST];  /* machines; NULL: this one */
  opipe_status (*run)(kit_member *m);
  void *ctx;
  kit_member members[KIT_MOST];
} kit_team;

static inline const char *kit_job(const char *name) {
  static char job[128];
  (void)snprintf(job, sizeof job, "test-%d-%s", (int)getpid(), name);
  return job;
}

static inline opipe_status kit_open(const kit_team *k, uint32_t rank, opi_team **out,
                                    opipe_error *err) {
  const opi_team_env env = {opi_allocator_system(), NULL, NULL, k->boots[rank]};
  opipe_team_params params = opipe_team_params_init();
  params.rank = rank;
  params.size = k->size;
  params.job = k->job;
  params.launcher = "none";
  params.timeout_ns = k->timeout_ns;
  params.silence_ns = k->silence_ns;
  params.address = k->address;
  params.token = k->tokens[rank];
  return opi_team_open(&env, &params, out, err);
}

static inline void *kit_main(void *arg) {
  kit_member *m = arg;
  m->status = kit_open(m->kit, m->rank, &m->team, &m->err);
  if (m->status == OPIPE_OK)
    m->status = m->kit->run(m);
  opi_team_close(m->team);
  m->team = NULL;
  return NULL;
}

/* Runs all ranks as threads of this process. */
static inline void kit_run(kit_team *k) {
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t r = 0; r < k->size; ++r) {
    k->members[r] = (kit_member){.rank = r, .kit = k, .err = OPIPE_ERROR_INIT};
    OPI_ASSERT_OK_FATAL(
        opi_thread_start(&k->members[r].thread, "rank", kit_main, &k->members[r], &err), &err);
  }
  for (uint32_t r = 0; r < k->size; ++r)
    opi_thread_join(&k->members[r].thread);
}

/* A barrier, or a gather of bytes. */
static inline opipe_status kit_gather(opi_team *t, const char *name, uint64_t timeout_ns,
                                      opipe_error *err) {
  opipe_gather_params params = opipe_gather_params_init();
  params.name = name;
  params.timeout_ns = timeout_ns;
  return opi_team_gather(t, &params, err);
}

static inline void kit_sleep_ms(uint32_t ms) {
  const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  (void)nanosleep(&pause, NULL);
}

#endif /* TESTS_TEAM_KIT_H */
