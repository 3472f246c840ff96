/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters are read and written between steps, whatever other threads submit: a checkpoint has
 * the weights of one step, so has what is read in one call, and a load spoils no step. Steps
 * submitted before are waited for; later ones begin afterwards. ctest: timeout=120
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
enum {
  BATCH = 2,
  SEQ = 8,
  N = BATCH * SEQ,
  STEPS_MOST = 4000,
  SAVES = 6,
  READS = 12,
  PARAMS = 256
};
static const int64_t shape[2] = {BATCH, SEQ};
static int64_t ids[N];

static void open_training(host_kit *k, const char *schedule, uint32_t flags) {
  opipe_train_options train = opipe_train_options_init();
  opipe_plan_params plan = opipe_plan_params_init();
  opipe_session_params session = opipe_session_params_init();
  train.loss = OPIPE_LOSS_CROSS_ENTROPY;
  train.output = "logits";
  train.labels = "labels";
  train.ignore = -100;
  train.shift = 1;
  train.optimizer = OPIPE_OPTIMIZER_SGD;
  train.momentum = 0.9;
  train.lr = 0.01;
  plan.n_stages = 2;
  plan.n_microbatches = 2;
  plan.schedule = schedule;
  plan.train = &train;
  session.flags = flags;
  OPI_ASSERT_OK_FATAL(kit_plan_training(k, GPT, BATCH, SEQ, &plan), &k->err);
  OPI_ASSERT_OK_FATAL(kit_open(k, &session), &k->err);
  for (int64_t i = 0; i < N; ++i)
    ids[i] = (i * 37 + 11) % 344;
}

static opipe_submit_params batch_of(opipe_binding_io inputs[2]) {
  opipe_submit_params params = opipe_submit_params_init();
  inputs[0] = kit_ids(ids, shape);
  inputs[1] = kit_ids(ids, shape);
  inputs[1].name = "labels";
  params.inputs = inputs;
  params.n_inputs = 2;
  return params;
}

/* ---- weights and moments of all parameters, by one call ---- */

typedef struct all {
  opipe_tensor_read tensors[2 * PARAMS];
  opipe_read_params params;
  char *data;
  uint64_t n_bytes;
} all;

static void list_all(host_kit *k, all *a) {
  opipe_parameter_info info = opipe_parameter_info_init();
  *a = (all){.params = opipe_read_params_init()};
  for (uint32_t i = 0; k->api->session_parameter(k->session, i, &info, NULL) == OPIPE_OK; ++i) {
    for (uint32_t state = 0; info.trained && state < 2; ++state) {
      OPI_ASSERT_FATAL(a->params.n_tensors < 2 * PARAMS);
      a->tensors[a->params.n_tensors++] = (opipe_tensor_read){
          .name = info.name, .n_bytes = info.n_bytes, .state = state * OPIPE_STATE_FIRST_MOMENT};
      a->n_bytes += info.n_bytes;
    }
  }
  a->data = calloc(1, a->n_bytes);
  OPI_ASSERT_FATAL(a->data != NULL && a->params.n_tensors > 20);
  for (uint64_t i = 0, at = 0; i < a->params.n_tensors; at += a->tensors[i++].n_bytes)
    a->tensors[i].data = a->data + at;
  a->params.tensors = a->tensors;
}

/* A number of all of it, and of which step it is. */
static uint64_t read_all(host_kit *k, all *a, uint64_t *out_step, opipe_error *err) {
  opipe_train_clock clock = opipe_train_clock_init();
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  OPI_ASSERT_OK(k->api->session_read(k->session, &a->params, &clock, err), err);
  for (uint64_t i = 0; i + 8 <= a->n_bytes; i += 8) {
    uint64_t word = 0;
    memcpy(&word, a->data + i, sizeof word);
    hash = (hash ^ word) * UINT64_C(0x100000001b3);
  }
  *out_step = clock.steps;
  return hash;
}

/* ---- a thread that trains as fast as it can ---- */

typedef struct trainer {
  host_kit *k;
  _Atomic uint32_t stop, n_done;
  uint32_t n_failed;
  double loss[STEPS_MOST];
  uint64_t step[STEPS_MOST];
} trainer;

static void end_step(trainer *t, opipe_request *ticket) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_train_report report = opipe_train_report_init();
  const uint32_t n = atomic_load(&t->n_done);
  if (t->k->api->request_wait(ticket, UINT64_MAX, &err) != OPIPE_OK ||
      t->k->api->request_report(ticket, &report, &err) != OPIPE_OK)
    ++t->n_failed;
  t->loss[n] = report.loss;
  t->step[n] = report.step;
  atomic_store(&t->n_done, n + 1);
  t->k->api->request_release(ticket);
}

/* Three steps are under way, always. */
static void *train(void *arg) {
  trainer *t = arg;
  opipe_binding_io inputs[2];
  const opipe_submit_params params = batch_of(inputs);
  opipe_request *tickets[3] = {NULL, NULL, NULL};
  for (uint32_t i = 0; i < STEPS_MOST - 3 && atomic_load(&t->stop) == 0; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    if (tickets[i % 3] != NULL)
      end_step(t, tickets[i % 3]);
    if (t->k->api->session_submit_wait(t->k->session, OPIPE_START_STEP, &params, UINT64_MAX,
                                       &tickets[i % 3], &err) != OPIPE_OK) {
      ++t->n_failed;
      tickets[i % 3] = NULL;
    }
  }
  for (uint32_t i = 0; i < 3; ++i) {
    if (tickets[i] != NULL)
      end_step(t, tickets[i]);
  }
  return NULL;
}

static void await_steps(trainer *t, uint32_t n) {
  const struct timespec again = {.tv_nsec = 200000};
  while (atomic_load(&t->n_done) < n)
    (void)nanosleep(&again, NULL);
}

/* The parameters of a run without any such call after each step, and each step's loss. */
typedef struct course {
  uint64_t hash[STEPS_MOST];
  double loss[STEPS_MOST];
} course;

static course *run_course(const char *schedule, uint64_t n_steps) {
  host_kit k;
  all a;
  opipe_binding_io inputs[2];
  course *c = calloc(1, sizeof *c);
  uint64_t step = 0;
  OPI_ASSERT_FATAL(c != NULL);
  open_training(&k, schedule, 0);
  list_all(&k, &a);
  const opipe_submit_params params = batch_of(inputs);
  c->hash[0] = read_all(&k, &a, &step, &k.err);
  for (uint64_t i = 1; i <= n_steps; ++i) {
    opipe_request *ticket = NULL;
    opipe_train_report report = opipe_train_report_init();
    OPI_ASSERT_OK_FATAL(k.api->session_train_step(k.session, &params, &ticket, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->request_wait(ticket, UINT64_MAX, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->request_report(ticket, &report, &k.err), &k.err);
    k.api->request_release(ticket);
    c->loss[i] = report.loss;
    c->hash[i] = read_all(&k, &a, &step, &k.err);
    OPI_ASSERT_INT(step, i);
  }
  free(a.data);
  kit_close(&k);
  return c;
}

static void test_what_is_saved_and_read_is_of_one_step(void) {
  host_kit k, other;
  all a, b;
  static trainer t;
  pthread_t thread;
  uint64_t hash[READS + SAVES], step[READS + SAVES];
  char path[32];
  memset(&t, 0, sizeof t);
  t.k = &k;
  open_training(&k, "1f1b", 0);
  list_all(&k, &a);
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, train, &t) == 0);
  await_steps(&t, 3);
  for (uint32_t i = 0; i < READS; ++i)
    hash[i] = read_all(&k, &a, &step[i], &k.err);
  for (uint32_t i = 0; i < SAVES; ++i) {
    (void)snprintf(path, sizeof path, "at%u", i);
    OPI_ASSERT_OK(k.api->session_save(k.session, opi_test_tmp(path), NULL, &k.err), &k.err);
  }
  atomic_store(&t.stop, 1);
  OPI_ASSERT_INT(pthread_join(thread, NULL), 0);
  OPI_ASSERT_INT(t.n_failed, 0);
  kit_close(&k);
  open_training(&other, "1f1b", 0);
  list_all(&other, &b);
  for (uint32_t i = 0; i < SAVES; ++i) {
    (void)snprintf(path, sizeof path, "at%u", i);
    OPI_ASSERT_OK(other.api->session_load(other.session, opi_test_tmp(path), NULL, &other.err),
                  &other.err);
    hash[READS + i] = read_all(&other, &b, &step[READS + i], &other.err);
  }
  kit_close(&other);
  course *c = run_course("1f1b", step[READS + SAVES - 1]);
  for (uint32_t i = 0; i < READS + SAVES; ++i) {
    opi_test_check(step[i] > 0 && step[i] < STEPS_MOST && hash[i] == c->hash[step[i]], __FILE__,
                   __LINE__, false, "%s %u is not what step %llu left", i < READS ? "read" : "save",
                   i, (unsigned long long)step[i]);
  }
  OPI_ASSERT(step[READS + SAVES - 1] > step[0]); /* it trained meanwhile */
  free(a.data);
  free(b.data);
  free(c);
}

static void test_a_load_spoils_no_step(void) {
  host_kit k;
  static trainer t;
  pthread_t thread;
  uint64_t most = 0;
  memset(&t, 0, sizeof t);
  t.k = &k;
  open_training(&k, "1f1b", 0);
  OPI_ASSERT_OK_FATAL(k.api->session_save(k.session, opi_test_tmp("first"), NULL, &k.err), &k.err);
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, train, &t) == 0);
  for (uint32_t i = 0; i < 20; ++i) {
    await_steps(&t, 5 * i + 3);
    OPI_ASSERT_OK(k.api->session_load(k.session, opi_test_tmp("first"), NULL, &k.err), &k.err);
  }
  atomic_store(&t.stop, 1);
  OPI_ASSERT_INT(pthread_join(thread, NULL), 0);
  OPI_ASSERT_INT(t.n_failed, 0);
  kit_close(&k);
  const uint32_t n = atomic_load(&t.n_done);
  for (uint32_t i = 0; i < n; ++i)
    most = t.step[i] > most ? t.step[i] : most;
  OPI_ASSERT(n > most); /* it did begin again */
  course *c = run_course("1f1b", most);
  for (uint32_t i = 0; i < n; ++i) {
    opi_test_check(t.loss[i] == c->loss[t.step[i]], __FILE__, __LINE__, false,
                   "step %llu has the loss %g, not %g", (unsigned long long)t.step[i], t.loss[i],
                   c->loss[t.step[i]]);
  }
  free(c);
}

/* ---- before and after ---- */

typedef struct reader {
  host_kit *k;
  opipe_train_clock clock;
  opipe_status status;
  _Atomic uint32_t begun, done;
  opipe_error err;
} reader;

static void *read_clock(void *arg) {
  reader *r = arg;
  atomic_store(&r->begun, 1);
  r->status = r->k->api->session_clock(r->k->session, &r->clock, &r->err);
  atomic_store(&r->done, 1);
  return NULL;
}

/* A step whose flag is set behind a later submit is waited for, and not the later one. */
static void check_order(const char *schedule, uint32_t flags) {
  host_kit k;
  pthread_t thread;
  uint32_t flag = 0;
  opipe_binding_io held[2], plain[2];
  opipe_submit_params first = batch_of(held), later = batch_of(plain);
  opipe_request *one = NULL, *two = NULL;
  const struct timespec soon = {.tv_nsec = 30000000};
  reader r = {.k = &k, .clock = opipe_train_clock_init(), .err = OPIPE_ERROR_INIT};
  open_training(&k, schedule, flags);
  held[1].ready = (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = &flag};
  OPI_ASSERT_OK_FATAL(k.api->session_train_step(k.session, &first, &one, &k.err), &k.err);
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, read_clock, &r) == 0);
  while (atomic_load(&r.begun) == 0) {
  }
  (void)nanosleep(&soon, NULL);
  OPI_ASSERT_INT(atomic_load(&r.done), 0);
  OPI_ASSERT_OK_FATAL(k.api->session_train_step(k.session, &later, &two, &k.err), &k.err);
  OPI_ASSERT_INT(k.api->request_wait(two, 1000000, &k.err), OPIPE_E_TIMEOUT);
  __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
  OPI_ASSERT_OK(k.api->session_flags_set(k.session, &k.err), &k.err);
  OPI_ASSERT_INT(pthread_join(thread, NULL), 0);
  OPI_ASSERT_OK(r.status, &r.err);
  OPI_ASSERT_INT(r.clock.steps, 1);
  OPI_ASSERT_OK(k.api->request_wait(two, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->session_clock(k.session, &r.clock, &k.err), &k.err);
  OPI_ASSERT_INT(r.clock.steps, 2);
  k.api->request_release(two);
  k.api->request_release(one);
  kit_close(&k);
}

static void test_what_comes_later_begins_afterwards(void) {
  check_order("1f1b", 0);
  check_order("2bw", 0);
  check_order("1f1b", OPIPE_SESSION_REFERENCE);
}

/* A double-buffered step that nobody follows: whoever lets it go, a flush that came before ends it.
 */
static void test_a_flush_ends_what_was_held(void) {
  for (uint32_t i = 0; i < 10; ++i) {
    host_kit k;
    pthread_t thread;
    uint32_t flag = 0;
    opipe_binding_io held[2];
    opipe_submit_params params = batch_of(held);
    opipe_request *one = NULL;
    const struct timespec soon = {.tv_nsec = 3000000};
    reader r = {.k = &k, .clock = opipe_train_clock_init(), .err = OPIPE_ERROR_INIT};
    open_training(&k, "2bw", 0);
    held[1].ready = (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = &flag};
    OPI_ASSERT_OK_FATAL(k.api->session_train_step(k.session, &params, &one, &k.err), &k.err);
    OPI_ASSERT_FATAL(pthread_create(&thread, NULL, read_clock, &r) == 0);
    while (atomic_load(&r.begun) == 0) {
    }
    (void)nanosleep(&soon, NULL);
    __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
    OPI_ASSERT_INT(pthread_join(thread, NULL), 0);
    OPI_ASSERT_OK(r.status, &r.err);
    OPI_ASSERT_INT(r.clock.steps, 1);
    k.api->request_release(one);
    kit_close(&k);
  }
}

/* ---- wrong arguments ---- */

static void test_a_read_is_refused_as_a_whole(void) {
  host_kit k;
  all a;
  opipe_train_clock clock = opipe_train_clock_init();
  open_training(&k, "1f1b", 0);
  list_all(&k, &a);
  opipe_tensor_read *last = &a.tensors[a.params.n_tensors - 1];
  const opipe_tensor_read good = *last;
  memset(a.data, 0x5a, a.n_bytes);
  clock.steps = 77;
  last->n_bytes += 4;
  OPI_ASSERT_ERROR(k.api->session_read(k.session, &a.params, &clock, &k.err), OPIPE_E_INVALID,
                   &k.err, "bytes, the buffer");
  *last = good;
  last->name = "nobody";
  OPI_ASSERT_ERROR(k.api->session_read(k.session, &a.params, &clock, &k.err), OPIPE_E_NOTFOUND,
                   &k.err, "no parameter is called 'nobody'");
  *last = good;
  last->data = NULL;
  OPI_ASSERT_ERROR(k.api->session_read(k.session, &a.params, &clock, &k.err), OPIPE_E_INVALID,
                   &k.err, "has no memory to read into");
  *last = good;
  last->state = OPIPE_STATE_GRADIENT;
  OPI_ASSERT_ERROR(k.api->session_read(k.session, &a.params, &clock, &k.err), OPIPE_E_STATE, &k.err,
                   "gradients are not kept");
  *last = good;
  last->state = 5;
  OPI_ASSERT_ERROR(k.api->session_read(k.session, &a.params, &clock, &k.err), OPIPE_E_INVALID,
                   &k.err, "state is 5, known are 0 to 4");
  *last = good;
  for (uint64_t i = 0; i < a.n_bytes; ++i) {
    if (a.data[i] != 0x5a) {
      OPI_ASSERT(false); /* something was written */
      break;
    }
  }
  OPI_ASSERT_INT(clock.steps, 77);
  OPI_ASSERT_OK(k.api->session_read(k.session, &a.params, &clock, &k.err), &k.err);
  OPI_ASSERT_INT(clock.steps, 0);
  free(a.data);
  kit_close(&k);
}

OPI_TEST_MAIN("snapshots", OPI_TEST(test_what_is_saved_and_read_is_of_one_step),
              OPI_TEST(test_a_load_spoils_no_step),
              OPI_TEST(test_what_comes_later_begins_afterwards),
              OPI_TEST(test_a_flush_ends_what_was_held),
              OPI_TEST(test_a_read_is_refused_as_a_whole))
