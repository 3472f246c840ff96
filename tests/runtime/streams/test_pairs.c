/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of a plan: what cannot be one is refused by name, a cut apart with both stages; cuts that
 * are searched keep them together; they are part of the plan's decisions and of its file. A state
 * of fixed size (a recurrence), of a model written here, is carried on. */
#include <stdlib.h>

#include "tests/runtime/streams/cells.h"

/* ---- refusals ---- */

typedef struct refusal {
  opipe_state_pair pairs[2];
  uint32_t n;
  opipe_status status;
  const char *why;
} refusal;

static void test_refused_pairs(void) {
  static const refusal cases[] = {
      {{{"nobody", "past_k_0", 0}}, 1, OPIPE_E_NOTFOUND, "the model has no output 'nobody'"},
      {{{"present_k_0", "nobody", 0}}, 1, OPIPE_E_NOTFOUND, "the model has no input 'nobody'"},
      {{{"logits", "past_k_0", 0}}, 1, OPIPE_E_INVALID, "the output has shape [1, 4, 96]"},
      {{{"present_k_0", "input_ids", 0}},
       1,
       OPIPE_E_INVALID,
       "the output is float32, the input int64"},
      {{{"present_k_0", "past_k_0", 0}, {"present_k_0", "past_v_0", 0}},
       2,
       OPIPE_E_INVALID,
       "has the same tensor already"},
      {{{"present_k_0", "past_k_0", 0}, {"present_v_0", "past_k_0", 0}},
       2,
       OPIPE_E_INVALID,
       "has the same input already"},
      {{{"present_k_0", "past_k_0", UINT64_C(1) << 60}}, 1, OPIPE_E_LIMIT, "exceed 2^56 bytes"}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    host_kit k;
    opipe_plan_params params = opipe_plan_params_init();
    params.states = cases[i].pairs;
    params.n_states = cases[i].n;
    OPI_ASSERT_ERROR(kit_make(&k, NULL, &params), cases[i].status, &k.err, cases[i].why);
    kit_close(&k);
  }
}

static void test_refused_plans(void) {
  opipe_plan_params params = opipe_plan_params_init();
  host_kit k;
  params.n_streams = 2;
  OPI_ASSERT_ERROR(kit_make(&k, NULL, &params), OPIPE_E_INVALID, &k.err,
                   "n_streams is 2, there are no states");
  kit_close(&k);
  params.states = kit_pairs;
  params.n_states = PAIRS;
  params.n_stages = 2;
  params.schedule = "terapipe:slices=2";
  OPI_ASSERT_ERROR(kit_make(&k, NULL, &params), OPIPE_E_UNSUPPORTED, &k.err, "token slices");
  kit_close(&k);
  params.schedule = NULL;
  params.n_stages = 12; /* both attentions hold some nodes together */
  OPI_ASSERT_OK(kit_make(&k, NULL, &params), &k.err);
  kit_close(&k);
}

/* ---- the cut ---- */

/* Everything of a pair in the stage that the plan says. */
static void test_searched_cuts_keep_pairs_together(void) {
  for (uint32_t n = 1; n <= 8; ++n) {
    host_kit k;
    OPI_ASSERT_OK(kit_make_case(&k, &(plan_case){.n_stages = n}), &k.err);
    for (uint32_t i = 0;; ++i) {
      const char *name = NULL;
      uint32_t from = 0, to = 0;
      if (k.api->plan_cut_tensor(k.plan, i, &name, &from, &to, &k.err) != OPIPE_OK)
        break;
      OPI_ASSERT(strncmp(name, "present", 7) != 0 && strncmp(name, "past", 4) != 0);
    }
    kit_close(&k);
  }
}

/* ---- the file ---- */

static void take(const host_kit *k, const opipe_plan *plan, opi_test_text *out) {
  *out = (opi_test_text){NULL, 0};
  OPI_ASSERT_OK_FATAL(
      k->api->plan_write((opipe_plan *)(uintptr_t)plan, opi_test_take, out, (opipe_error *)NULL),
      (&(opipe_error){.message = "plan_write"}));
}

static void test_plan_files(void) {
  host_kit k;
  opi_test_text text, again;
  opipe_plan *read = NULL;
  OPI_ASSERT_OK_FATAL(kit_make_case(&k, &(plan_case){.n_stages = 2, .n_streams = 3}), &k.err);
  take(&k, k.plan, &text);
  OPI_ASSERT(strstr(text.data,
                    "{\"output\": \"present_k_0\", \"input\": \"past_k_0\", "
                    "\"capacity\": 512}") != NULL);
  OPI_ASSERT(strstr(text.data, "\"streams\": 3") != NULL);
  OPI_ASSERT_OK(k.api->plan_read(k.model, text.data, text.n, &read, &k.err), &k.err);
  take(&k, read, &again);
  OPI_ASSERT(text.n == again.n && memcmp(text.data, again.data, text.n) == 0);
  k.api->plan_destroy(read);
  char *at = strstr(text.data, "past_v_1"); /* the hash says that it was changed */
  OPI_ASSERT_FATAL(at != NULL);
  memcpy(strstr(text.data, "\"capacity\": 512"), "\"capacity\": 511", 15);
  OPI_ASSERT_ERROR(k.api->plan_read(k.model, text.data, text.n, &read, &k.err), OPIPE_E_INVALID,
                   &k.err, "\"hash\"");
  free(text.data);
  free(again.data);
  kit_close(&k);
}

/* ---- a recurrence: s' = tanh(a s) + x, y = s' + sigmoid(x) ---- */

enum { ROUNDS = 5 };

static bytes recurrence(void) {
  static const float a[STATE] = {0.5f, 0.25f, -0.5f, 1, 2, -1};
  const int64_t dims[2] = {1, STATE};
  bytes graph = {0}, model = {0}, opset = {0};
  w_sub(&graph, 1, w_node("Mul", "scale", NULL, "s a", "t"));
  w_sub(&graph, 1, w_node("Tanh", "bend", NULL, "t", "u"));
  w_sub(&graph, 1, w_node("Add", "carry", NULL, "u x", "s_next"));
  w_sub(&graph, 1, w_node("Sigmoid", "look", NULL, "x", "v"));
  w_sub(&graph, 1, w_node("Add", "answer", NULL, "s_next v", "y"));
  w_text(&graph, 2, "recurrence");
  w_sub(&graph, 5, w_tensor("a", OPIPE_FLOAT, dims, 2, a, sizeof a));
  w_sub(&graph, 11, w_value("x", OPIPE_FLOAT, dims, 2));
  w_sub(&graph, 11, w_value("s", OPIPE_FLOAT, dims, 2));
  w_sub(&graph, 12, w_value("y", OPIPE_FLOAT, dims, 2));
  w_sub(&graph, 12, w_value("s_next", OPIPE_FLOAT, dims, 2));
  w_num(&model, 1, 8);
  w_num(&opset, 2, 17);
  w_sub(&model, 8, opset);
  w_sub(&model, 7, graph);
  return model;
}

static void test_a_recurrence(void) {
  const bytes file = recurrence();
  host_kit k;
  for (uint32_t n = 0; n < 3; ++n) {
    const char *cut = n == 2 ? "s_next" : NULL; /* the next stage reads it too */
    float s[2][STATE] = {{0.1f, -0.2f, 0.3f, 0.4f}}, y[STATE], z[STATE], last[STATE];
    opipe_session_info info = opipe_session_info_init();
    OPI_ASSERT_OK_FATAL(cell_open(&k, &file, cut, n < 2 ? n + 1 : 0, 0), &k.err);
    opipe_state *state = kit_state(&k);
    for (uint32_t i = 0; i < ROUNDS; ++i) {
      const float x[STATE] = {(float)i, 0.5f, -(float)i, 1};
      cell_step(&k, state, x, i == 0 ? s[0] : NULL, y, NULL);
      cell_step(&k, NULL, x, s[i % 2], z, s[(i + 1) % 2]);
      OPI_ASSERT(memcmp(y, z, sizeof y) == 0);
    }
    OPI_ASSERT_OK(k.api->state_get(state, 0, NULL, last, sizeof last, &k.err), &k.err);
    OPI_ASSERT(memcmp(last, s[ROUNDS % 2], sizeof last) == 0);
    OPI_ASSERT_OK(k.api->session_info(k.session, &info, &k.err), &k.err);
    OPI_ASSERT(info.shapes_compiled == 1); /* one shape, whatever the turn */
    kit_close(&k);
  }
  free(file.data);
}

static void test_cuts_apart(void) {
  const bytes file = recurrence();
  host_kit k;
  OPI_ASSERT_ERROR(cell_open(&k, &file, "t", 0, 0), OPIPE_E_INVALID, &k.err,
                   "state 's_next' -> 's': stage 1 makes the output (node 'carry'), stage 0 reads");
  kit_close(&k);
  OPI_ASSERT_ERROR(cell_open(&k, &file, NULL, 5, 0), OPIPE_E_INVALID, &k.err, "5 stages need 4");
  kit_close(&k);
  free(file.data);
}

OPI_TEST_MAIN("pairs of a plan", OPI_TEST(test_refused_pairs), OPI_TEST(test_refused_plans),
              OPI_TEST(test_searched_cuts_keep_pairs_together), OPI_TEST(test_plan_files),
              OPI_TEST(test_a_recurrence), OPI_TEST(test_cuts_apart))
