/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions on real models: requests of two shapes in turn, two sessions at once, closing with
 * requests in flight, and the finite check's message. ctest: timeout=240
 */
#include <math.h>

#include "tests/matrix/kit.h"

enum { TURNS = 6, IN_FLIGHT = 4 };

typedef struct fixture {
  mx_folder *folder;
  mx_model m;
  opipe_plan *plan;
} fixture;

static bool start(fixture *f, const char *name, uint32_t stages) {
  opipe_error err = OPIPE_ERROR_INIT;
  memset(f, 0, sizeof *f);
  const opipe_plan_params params = {.struct_size = sizeof params, .n_stages = stages};
  const bool ok = mx_folder_read(name, &f->folder, &err) >= 0 &&
                  mx_open(&f->m, NULL, f->folder) >= 0 && mx_bind(&f->m, 0, true) >= 0 &&
                  f->m.api->plan_make(f->m.bound, &params, &f->plan, &f->m.err) >= 0;
  if (!ok)
    OPI_FAIL("%s: %s%s", name, err.message, f->m.err.message);
  return ok;
}

static void stop(fixture *f) {
  if (f->m.api != NULL)
    f->m.api->plan_destroy(f->plan);
  mx_close(&f->m);
  mx_folder_free(f->folder);
}

static opipe_status open_session(fixture *f, uint32_t flags, opipe_session **out) {
  const opipe_session_params params = {
      .struct_size = sizeof params, .flags = flags, .max_in_flight = IN_FLIGHT};
  return f->m.api->session_open(f->m.context, f->plan, &params, out, &f->m.err);
}

/* Submits set 0, 1, 0, 1 before the first is waited for; each must match its data set. */
static void alternate(fixture *f, opipe_session *session, const char *name) {
  static mx_io io[IN_FLIGHT];
  opipe_request *requests[IN_FLIGHT] = {NULL};
  for (uint32_t i = 0; i < IN_FLIGHT; ++i) {
    OPI_ASSERT_OK_FATAL(mx_inputs(&f->m, &f->folder->sets[i % 2], &io[i]), &f->m.err);
    OPI_ASSERT_OK_FATAL(mx_submit(&f->m, session, &io[i], &requests[i]), &f->m.err);
  }
  for (uint32_t i = 0; i < IN_FLIGHT; ++i) {
    mx_result result;
    const opipe_status status = mx_collect(&f->m, requests[i], &result);
    const char *wrong = status == OPIPE_OK
                            ? mx_matches_set(f->folder, &f->folder->sets[i % 2], &result)
                            : f->m.err.message;
    if (wrong != NULL)
      OPI_FAIL("%s, request %u, data set %u: %s", name, i, i % 2, wrong);
    mx_result_free(&result);
  }
}

static void test_two_shapes_alternate(void) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names);
  if (n == 0)
    OPI_SKIP("there are no model folders");
  for (size_t i = 0; i < n; ++i) {
    fixture f;
    opipe_session *session = NULL;
    if (strncmp(names[i], "modern/", 7) != 0)
      continue;
    const bool started = start(&f, names[i], 2 + (uint32_t)i % 3);
    if (started && f.folder->n_sets >= 2) {
      OPI_ASSERT_OK(open_session(&f, 0, &session), &f.m.err);
      for (int t = 0; session != NULL && t < TURNS; ++t)
        alternate(&f, session, names[i]);
    }
    if (f.m.api != NULL)
      f.m.api->session_close(session);
    stop(&f);
  }
}

static void test_two_sessions_at_once(void) {
  fixture f;
  opipe_session *two[2] = {NULL, NULL};
  if (opi_test_shared("models") == NULL)
    return;
  if (start(&f, "modern/gpt2/infer", 3)) {
    for (int s = 0; s < 2; ++s)
      OPI_ASSERT_OK_FATAL(open_session(&f, 0, &two[s]), &f.m.err);
    for (int t = 0; t < TURNS; ++t)
      alternate(&f, two[t % 2], "modern/gpt2/infer");
    f.m.api->session_close(two[0]);
    alternate(&f, two[1], "modern/gpt2/infer, the other closed");
    f.m.api->session_close(two[1]);
  }
  stop(&f);
}

static void test_closing_with_requests_in_flight(void) {
  static mx_io io;
  fixture f;
  if (opi_test_shared("models") == NULL)
    return;
  if (start(&f, "modern/llama/infer", 4)) {
    for (int t = 0; t < 20; ++t) {
      opipe_session *session = NULL;
      opipe_request *request = NULL;
      OPI_ASSERT_OK_FATAL(open_session(&f, 0, &session), &f.m.err);
      OPI_ASSERT_OK_FATAL(mx_inputs(&f.m, f.m.set, &io), &f.m.err);
      for (uint32_t i = 0; i < IN_FLIGHT; ++i)
        OPI_ASSERT_OK(mx_submit(&f.m, session, &io, &request), &f.m.err);
      f.m.api->session_close(session);
    }
  }
  stop(&f);
}

/* A NaN in a float input: the message names rank, stage, request and node. */
static void test_the_finite_check_names_the_place(void) {
  static const char *const words[] = {"rank", "stage", "request", "node '", "NaN"};
  static mx_io io;
  fixture f;
  opipe_session *session = NULL;
  opipe_request *request = NULL;
  if (opi_test_shared("models") == NULL)
    return;
  if (start(&f, "modern/vit/infer", 2)) {
    float *pixels = (float *)(uintptr_t)f.folder->sets[0].inputs[0].data;
    pixels[5] = NAN;
    OPI_ASSERT_OK_FATAL(open_session(&f, OPIPE_SESSION_CHECK_FINITE, &session), &f.m.err);
    OPI_ASSERT_OK_FATAL(mx_inputs(&f.m, f.m.set, &io), &f.m.err);
    OPI_ASSERT_OK_FATAL(mx_submit(&f.m, session, &io, &request), &f.m.err);
    OPI_ASSERT(f.m.api->request_wait(request, UINT64_C(30000000000), &f.m.err) < 0);
    for (size_t w = 0; w < sizeof words / sizeof words[0]; ++w) {
      if (strstr(f.m.err.message, words[w]) == NULL)
        OPI_FAIL("no \"%s\" in: %s", words[w], f.m.err.message);
    }
    f.m.api->request_release(request);
    f.m.api->session_close(session);
  }
  stop(&f);
}

OPI_TEST_MAIN("sessions on models", OPI_TEST(test_two_shapes_alternate),
              OPI_TEST(test_two_sessions_at_once), OPI_TEST(test_closing_with_requests_in_flight),
              OPI_TEST(test_the_finite_check_names_the_place))
