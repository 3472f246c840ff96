/* SPDX-License-Identifier: Apache-2.0 */
/* The adapter in ONNX Runtime itself, called from C, so that sanitizers see it: sessions of the
 * oldest and the newest version below build/onnxruntime against its own provider, 8 threads of
 * mixed shapes with runs that are ended, one in mid-flight, sessions one after the other.
 * ctest: timeout=300 always
 */
#include <glob.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/plugins/host-onnxruntime/application.h"
#include "tests/support/support.h"

/* ThreadSanitizer sees only part of what ONNX Runtime's threads do among themselves. Its library
 * has these names too: they are found where they are visible. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
  return "ignore_noninstrumented_modules=1";
}

/* It wakes those that wait, who may destroy the condition before the call has returned. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) {
  return "race_top:^pthread_cond_destroy$";
}

enum { THREADS = 8, SHAPES = 6, IDS_MOST = 32, ONE_IN = 10 /* of a cover */ };
#define MODEL "tests/data/gpt_8block/model.onnx"

static const int64_t shapes[SHAPES][2] = {{1, 4}, {2, 8}, {1, 17}, {3, 5}, {1, 1}, {2, 12}};
static const char *const two_stages[][2] = {{"stages", "2"}, {"threads", "1"}};

static void fill_ids(int64_t ids[IDS_MOST], int shape) {
  for (int i = 0; i < IDS_MOST; ++i)
    ids[i] = (i * 7 + 3 + shape) % 50;
}

/* ONNX Runtime opens a library beside it by its bare name, which under a sanitizer is not looked
 * for there. */
static void load_beside(const char *library) {
  char path[1024];
  const char *slash = strrchr(library, '/');
  (void)snprintf(path, sizeof path, "%.*s/libonnxruntime_providers_shared.so",
                 (int)(slash - library), library);
  (void)dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Opens the version that is installed there, or skips the test. */
static bool open_version(app *a, const char *version) {
  char pattern[1024];
  glob_t found = {0};
  (void)snprintf(pattern, sizeof pattern,
                 "%s/%s/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.1.*",
                 opi_test_source("build/onnxruntime"), version);
  const bool is_there = glob(pattern, 0, NULL, &found) == 0;
  if (is_there)
    load_beside(found.gl_pathv[0]);
  const bool good =
      is_there && app_open(a, found.gl_pathv[0], opi_test_build("lib/libopipe-ort-ep.so"));
  globfree(&found);
  if (is_there)
    return opi_test_check(good, __FILE__, __LINE__, false, "%s: %s", version, app_why);
  opi_test_skip("build/onnxruntime/%s is not there (./dev test --all installs it)", version);
  return false;
}

static ort_session *open_session(const app *a, bool ours) {
  ort_session *session =
      app_session(a, opi_test_source(MODEL), ours ? two_stages : NULL, ours ? 2 : 1);
  opi_test_check(session != NULL, __FILE__, __LINE__, false, "%s", app_why);
  return session;
}

/* ---- threads ---- */

typedef struct shared {
  const app *a;
  ort_session *session;
  float *wanted[SHAPES]; /* of the CPU provider */
  size_t n[SHAPES];
  int n_runs;
} shared;

typedef struct caller {
  const shared *s;
  int seed, n_bad, n_ended, n_done;
  char why[256]; /* of the first that was bad */
  pthread_t thread;
} caller;

static bool is_close(const float *found, const float *wanted, size_t n) {
  float most = 0, away = 0;
  for (size_t i = 0; i < n; ++i) {
    const float size = wanted[i] < 0 ? -wanted[i] : wanted[i];
    const float off = found[i] < wanted[i] ? wanted[i] - found[i] : found[i] - wanted[i];
    most = size > most ? size : most;
    away = off > away ? off : away;
  }
  return away <= 1e-5f * most;
}

static void *end_soon(void *arg) {
  void **both = arg;
  (void)usleep(300);
  (void)app_good(both[0], ORT(((const app *)both[0])->ort, RunOptionsSetTerminate)(both[1]));
  return NULL;
}

/* One run; ends: 0 not at all, 1 before it begins, 2 while it may be under way. */
static void call(caller *c, int shape, int ends) {
  const shared *s = c->s;
  int64_t ids[IDS_MOST];
  ort_run_options *how = NULL;
  ort_value *out = NULL;
  pthread_t timer;
  size_t n = 0;
  fill_ids(ids, shape);
  bool good = app_good(s->a, ORT(s->a->ort, CreateRunOptions)(&how));
  if (good && ends == 1)
    good = app_good(s->a, ORT(s->a->ort, RunOptionsSetTerminate)(how));
  void *both[] = {(void *)(uintptr_t)s->a, how};
  const bool timed = ends == 2 && pthread_create(&timer, NULL, end_soon, both) == 0;
  good = good && app_run(s->a, s->session, how, ids, shapes[shape][0], shapes[shape][1], &out);
  if (timed)
    (void)pthread_join(timer, NULL);
  const float *found = good ? app_content(s->a, out, &n) : NULL;
  if (good && ends != 1 && n == s->n[shape] && is_close(found, s->wanted[shape], n)) {
    ++c->n_done;
  } else if (!good && ends != 0 && strstr(app_why, "terminate") != NULL) {
    ++c->n_ended;
  } else if (c->n_bad++ == 0) {
    (void)snprintf(c->why, sizeof c->why, "shape %d, ends %d: %.200s", shape, ends,
                   good ? "the result is wrong" : app_why);
  }
  app_release(s->a, out);
  if (how != NULL)
    ORT(s->a->ort, ReleaseRunOptions)(how);
}

static void *call_often(void *arg) {
  caller *c = arg;
  for (int i = 0; i < c->s->n_runs; ++i)
    call(c, (c->seed + i) % SHAPES, i % 5 != 4 ? 0 : i % 10 == 4 ? 1 : 2);
  return NULL;
}

static bool fill_wanted(shared *s) {
  ort_session *plain = open_session(s->a, false);
  bool good = plain != NULL;
  for (int i = 0; good && i < SHAPES; ++i) {
    int64_t ids[IDS_MOST];
    ort_value *out = NULL;
    fill_ids(ids, i);
    good = app_run(s->a, plain, NULL, ids, shapes[i][0], shapes[i][1], &out);
    const float *found = good ? app_content(s->a, out, &s->n[i]) : NULL;
    s->wanted[i] = malloc(s->n[i] * sizeof(float) + 1);
    good = good && found != NULL && s->wanted[i] != NULL;
    if (good)
      memcpy(s->wanted[i], found, s->n[i] * sizeof(float));
    app_release(s->a, out);
  }
  if (plain != NULL)
    ORT(s->a->ort, ReleaseSession)(plain);
  return opi_test_check(good, __FILE__, __LINE__, false, "%s", app_why);
}

static void expect_threads(const char *version) {
  app a;
  if (!open_version(&a, version))
    return;
  shared s = {.a = &a, .n_runs = opi_test_is_cover() ? 200 / ONE_IN : 200};
  caller callers[THREADS];
  int n_ended = 0, n_done = 0;
  if (fill_wanted(&s) && (s.session = open_session(&a, true)) != NULL) {
    for (int i = 0; i < THREADS; ++i) {
      callers[i] = (caller){.s = &s, .seed = i};
      OPI_ASSERT_FATAL(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]) == 0);
    }
    for (int i = 0; i < THREADS; ++i) {
      OPI_ASSERT_INT(pthread_join(callers[i].thread, NULL), 0);
      opi_test_check(callers[i].n_bad == 0, __FILE__, __LINE__, false, "%d were bad, the first: %s",
                     callers[i].n_bad, callers[i].why);
      n_ended += callers[i].n_ended;
      n_done += callers[i].n_done;
    }
    OPI_ASSERT_INT(n_done + n_ended, THREADS * s.n_runs);
    OPI_ASSERT(n_ended >= THREADS * s.n_runs / 10); /* runs that were over before they began */
    ORT(a.ort, ReleaseSession)(s.session);
  }
  for (int i = 0; i < SHAPES; ++i)
    free(s.wanted[i]);
  app_close(&a);
}

/* ---- sessions ---- */

static void expect_sessions(const char *version) {
  const int n = opi_test_is_cover() ? 200 / ONE_IN : 200;
  int64_t ids[IDS_MOST];
  app a;
  if (!open_version(&a, version))
    return;
  fill_ids(ids, 0);
  for (int i = 0; i < n; ++i) {
    ort_value *out = NULL;
    ort_session *session = open_session(&a, true);
    if (session == NULL)
      break;
    if (i % 4 != 3 && !app_run(&a, session, NULL, ids, 1, 4 + i % 3, &out)) /* some never run */
      OPI_FAIL("session %d: %s", i, app_why);
    app_release(&a, out);
    ORT(a.ort, ReleaseSession)(session);
  }
  app_close(&a);
}

/* The stages of a run are ours: its trace says so. */
static void expect_trace(const char *version) {
  const char *path = opi_test_tmp(version);
  const char *const own[][2] = {{"stages", "2"}, {"trace", path}};
  int64_t ids[IDS_MOST];
  ort_value *out = NULL;
  size_t n = 0;
  app a;
  if (!open_version(&a, version))
    return;
  fill_ids(ids, 0);
  ort_session *session = app_session(&a, opi_test_source(MODEL), own, 2);
  if (OPI_ASSERT(session != NULL)) {
    OPI_ASSERT(app_run(&a, session, NULL, ids, 1, 4, &out));
    app_release(&a, out);
    ORT(a.ort, ReleaseSession)(session);
    char *text = opi_test_read_file(path, &n);
    OPI_ASSERT(text != NULL && strstr(text, "\"rank 1\"") != NULL);
    free(text);
  }
  app_close(&a);
}

static void expect_refusals(const char *version) {
  static const char *const cases[][3] = {{"stages", "many", "stages=many is no number"},
                                         {"memory", "10KiB", "exceeds its cap"},
                                         {"library", "/no/such.so", "/no/such.so"},
                                         {"plan", "/no/plan.json", "/no/plan.json"}};
  app a;
  if (!open_version(&a, version))
    return;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    const char *const own[][2] = {{cases[i][0], cases[i][1]}};
    ort_session *session = app_session(&a, opi_test_source(MODEL), own, 1);
    if (OPI_ASSERT(session == NULL)) {
      opi_test_check(strstr(app_why, cases[i][2]) != NULL, __FILE__, __LINE__, false, "%s=%s: %s",
                     cases[i][0], cases[i][1], app_why);
    }
  }
  app_close(&a);
}

/* ---- the end of a run that is under way ---- */

enum { LONG_SEQ = 16, LONG_MOST = 8192 /* rows */, LONG_US = 300000, ENDS = 5 };

static uint64_t now_us(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

typedef struct ending {
  const app *a;
  ort_run_options *how;
  useconds_t after_us;
} ending;

static void *end_later(void *arg) {
  const ending *e = arg;
  (void)usleep(e->after_us);
  (void)app_good(e->a, ORT(e->a->ort, RunOptionsSetTerminate)(e->how));
  return NULL;
}

/* A run that is ended after an eighth of its time; true: inside the fused node. */
static bool is_ended(const app *a, ort_session *session, const int64_t *ids, int64_t rows,
                     uint64_t full_us) {
  ending e = {.a = a, .after_us = (useconds_t)(full_us / 8)};
  ort_value *out = NULL;
  pthread_t timer;
  OPI_ASSERT_FATAL(app_good(a, ORT(a->ort, CreateRunOptions)(&e.how)));
  OPI_ASSERT_FATAL(pthread_create(&timer, NULL, end_later, &e) == 0);
  const bool good = app_run(a, session, e.how, ids, rows, LONG_SEQ, &out);
  OPI_ASSERT_INT(pthread_join(timer, NULL), 0);
  app_release(a, out);
  ORT(a->ort, ReleaseRunOptions)(e.how);
  return !good && strstr(app_why, "onnx-pipe: terminate is set") != NULL;
}

static void expect_end(const char *version) {
  int64_t *ids = calloc((size_t)LONG_MOST * LONG_SEQ, sizeof *ids);
  int64_t rows = 8;
  uint64_t us = 0;
  ort_value *out = NULL;
  bool ended = false;
  app a;
  OPI_ASSERT_FATAL(ids != NULL);
  ort_session *session = open_version(&a, version) ? open_session(&a, true) : NULL;
  while (session != NULL && us < LONG_US && rows < LONG_MOST) { /* until it takes long enough */
    rows *= 2;
    for (int again = 0; again < 2; ++again) { /* the first of a shape compiles it */
      const uint64_t start = now_us();
      if (!OPI_ASSERT(app_run(&a, session, NULL, ids, rows, LONG_SEQ, &out)))
        break;
      us = now_us() - start;
      app_release(&a, out);
    }
  }
  for (int i = 0; session != NULL && !ended && i < ENDS; ++i)
    ended = is_ended(&a, session, ids, rows, us);
  if (session != NULL) {
    opi_test_check(ended, __FILE__, __LINE__, false, "%s: none of %d runs of %llu us was ended: %s",
                   version, ENDS, (unsigned long long)us, app_why);
    OPI_ASSERT(app_run(&a, session, NULL, ids, 2, LONG_SEQ, &out)); /* others go on */
    app_release(&a, out);
    ORT(a.ort, ReleaseSession)(session);
    app_close(&a);
  }
  free(ids);
}

#define BOTH(what)                         \
  static void test_##what##_oldest(void) { \
    expect_##what("oldest");               \
  }                                        \
  static void test_##what##_newest(void) { \
    expect_##what("newest");               \
  }
BOTH(threads)
BOTH(sessions)
BOTH(trace)
BOTH(refusals)
BOTH(end)

OPI_TEST_MAIN("host-onnxruntime application", OPI_TEST(test_threads_oldest),
              OPI_TEST(test_sessions_oldest), OPI_TEST(test_trace_oldest),
              OPI_TEST(test_refusals_oldest), OPI_TEST(test_end_oldest),
              OPI_TEST(test_threads_newest), OPI_TEST(test_sessions_newest),
              OPI_TEST(test_trace_newest), OPI_TEST(test_refusals_newest),
              OPI_TEST(test_end_newest))
