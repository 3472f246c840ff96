/* SPDX-License-Identifier: Apache-2.0 */
/* A host whose processes make one plan and open sessions together, without the command: every case
 * runs in processes of its own, forked before any of them has a context. */
#ifndef TESTS_ABI_TEAM_KIT_H
#define TESTS_ABI_TEAM_KIT_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/abi/host_kit.h"

enum { BATCH = 4, SEQ = 8, W = 2 };

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const char *job; /* of this case */
static uint32_t me;     /* of this process */

/* In a child: the case fails with its line. */
#define MUST(holds)                                                                     \
  do {                                                                                  \
    if (!(holds)) {                                                                     \
      (void)fprintf(stderr, "process %u: %s:%d: %s\n", me, __FILE__, __LINE__, #holds); \
      _exit(1);                                                                         \
    }                                                                                   \
  } while (0)
#define MUST_OK(status, error)                                                                  \
  do {                                                                                          \
    const opipe_status must_ = (status);                                                        \
    if (must_ != OPIPE_OK) {                                                                    \
      (void)fprintf(stderr, "process %u: %s:%d: %s: %d: %s\n", me, __FILE__, __LINE__, #status, \
                    (int)must_, (error)->message);                                              \
      _exit(1);                                                                                 \
    }                                                                                           \
  } while (0)
#define MUST_SAY(error, text)                                                               \
  do {                                                                                      \
    if (strstr((error)->message, (text)) == NULL) {                                         \
      (void)fprintf(stderr, "process %u: %s:%d: '%s' lacks '%s'\n", me, __FILE__, __LINE__, \
                    (error)->message, (text));                                              \
      _exit(1);                                                                             \
    }                                                                                       \
  } while (0)

/* Runs `child` in W processes; the statuses that they must end with. */
static inline void run_case(const char *name, void (*child)(void), const int *ends) {
  char text[128];
  pid_t pids[W];
  (void)snprintf(text, sizeof text, "test-%d-%s", (int)getpid(), name);
  job = text;
  (void)fflush(NULL);
  for (uint32_t r = 0; r < W; ++r) {
    pids[r] = fork();
    if (pids[r] == 0) {
      me = r;
      child();
      _exit(0);
    }
  }
  for (uint32_t r = 0; r < W; ++r) {
    int status = -1;
    OPI_ASSERT(waitpid(pids[r], &status, 0) == pids[r]);
    OPI_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == (ends == NULL ? 0 : ends[r]));
  }
}

/* ---- in a child ---- */

typedef struct member {
  host_kit k;
  opipe_team *team;
} member;

static inline opipe_train_options training(void) {
  opipe_train_options t = opipe_train_options_init();
  t.loss = OPIPE_LOSS_CROSS_ENTROPY;
  t.output = "logits";
  t.labels = "labels";
  t.shift = 1;
  t.optimizer = OPIPE_OPTIMIZER_SGD;
  t.lr = 0.01;
  return t;
}

/* A context, a team of the case's job and a bound model. */
static inline void join_as(member *m, const opipe_context_params *context, uint32_t flags,
                           uint64_t timeout_ns) {
  const opipe_load_params load = {.struct_size = sizeof load, .path = opi_test_source(GPT)};
  const opipe_dim dims[] = {{"batch", BATCH}, {"seq", SEQ}};
  opipe_team_params params = opipe_team_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  memset(m, 0, sizeof *m);
  m->k.err = (opipe_error)OPIPE_ERROR_INIT;
  host_kit *k = &m->k;
  MUST_OK(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  MUST_OK(k->api->context_create(context, &k->context, &k->err), &k->err);
  params.rank = me;
  params.size = W;
  params.job = job;
  params.launcher = "none";
  params.timeout_ns = timeout_ns;
  MUST_OK(k->api->team_open(k->context, &params, &m->team, &k->err), &k->err);
  MUST_OK(k->api->model_load(k->context, &load, &k->model, &k->err), &k->err);
  bind.flags = flags;
  bind.dims = dims;
  bind.n_dims = 2;
  MUST_OK(k->api->model_bind(k->model, &bind, &k->bound, &k->err), &k->err);
}

static inline void join(member *m, bool trains) {
  join_as(m, NULL, OPIPE_BIND_DEFAULTS | (trains ? OPIPE_BIND_TRAIN : 0u), 0);
}

static const opipe_device_choice one_thread = {.kind = "cpu", .threads = 1};

static inline opipe_plan_params four_ranks(const member *m) {
  opipe_plan_params p = opipe_plan_params_init();
  p.n_stages = 4;
  p.n_microbatches = 2;
  p.transport = "shm";
  p.schedule = "1f1b";
  p.team = m->team;
  p.devices = &one_thread;
  p.n_devices = 1;
  return p;
}

static inline void plan(member *m, const opipe_plan_params *params) {
  MUST_OK(m->k.api->plan_make(m->k.bound, params, &m->k.plan, &m->k.err), &m->k.err);
}

static inline opipe_session_params in_team(const member *m) {
  opipe_session_params p = opipe_session_params_init();
  p.team = m->team;
  return p;
}

static inline void open_session(member *m) {
  const opipe_session_params p = in_team(m);
  MUST_OK(kit_open(&m->k, &p), &m->k.err);
}

static inline void leave(member *m) {
  opipe_gather_params end = opipe_gather_params_init();
  end.name = "end";
  m->k.api->session_close(m->k.session);
  MUST_OK(m->k.api->team_gather(m->team, &end, &m->k.err), &m->k.err);
  m->k.session = NULL;
  m->k.api->team_close(m->team);
  kit_close(&m->k);
}

/* ---- process 0's bytes, compared ---- */

typedef struct comparison {
  const void *mine;
  uint64_t n;
  bool same;
} comparison;

static inline opipe_status compare(void *ctx, uint32_t rank, const void *data, uint64_t n) {
  comparison *c = ctx;
  (void)rank;
  c->same = c->same && n == c->n && memcmp(data, c->mine, n) == 0;
  return OPIPE_OK;
}

static inline bool is_same_everywhere(member *m, const void *bytes, uint64_t n) {
  comparison c = {bytes, n, true};
  opipe_gather_params all = opipe_gather_params_init();
  all.name = "compare";
  all.data = bytes;
  all.n_bytes = n;
  all.part = compare;
  all.part_ctx = &c;
  MUST_OK(m->k.api->team_gather(m->team, &all, &m->k.err), &m->k.err);
  return c.same;
}

static int64_t ids[2 * BATCH * SEQ];
static bool has_ids;

static inline opipe_binding_io ids_of(const char *name, const int64_t *shape, bool has_data) {
  for (uint32_t i = 0; i < 2 * BATCH * SEQ && !has_ids; ++i)
    ids[i] = (i * 37 + 11) % 344;
  has_ids = true; /* requests may still read them */
  opipe_binding_io io = kit_ids(ids, shape);
  io.name = name;
  io.tensor.data = has_data ? ids : NULL;
  return io;
}

#endif /* TESTS_ABI_TEAM_KIT_H */
