/* SPDX-License-Identifier: Apache-2.0 */
/* Models that generate, in a stand-in for the server: a response for each token, and one for each
 * end; or all in one. The tokens are those of the library's table. Wrong prompts, clients that
 * leave, failures of the server, more requests than sequences.
 * ctest: timeout=60 label=twice always */
#include <opipe/host.h>

#include "tests/plugins/host-triton/kit.h"

enum { INT64 = 9, TOKENS = 8, MANY = 24, LAST = 1, EACH = 100 };

#define CONTEXT                                            \
  "\"parameters\":{\"context\":{\"string_value\":\"64\"}," \
  "\"active\":{\"string_value\":\"4\"},\"stages\":{\"string_value\":\"2\"}}"
#define APART "," CONTEXT
#define AS_ONE "," CONTEXT ",\"model_transaction_policy\":{\"decoupled\":false}"

static const int64_t prompt[] = {3, 1, 4, 1, 5};

bool save_model(const char *path) {
  size_t n = 0;
  char *bytes = opi_test_read_file(opi_test_source("tests/data/rows/group_query/model.onnx"), &n);
  FILE *file = fopen(path, "wb");
  const bool good = bytes != NULL && file != NULL && fwrite(bytes, 1, n, file) == n;
  if (file != NULL)
    OPI_ASSERT(fclose(file) == 0);
  free(bytes);
  return good;
}

/* Ids by the library's table; returns their number. */
static uint32_t by_the_table(const char *sampling, uint32_t *out) {
  const opipe_generation_params generation = {
      .struct_size = sizeof generation, .context = 64, .active = 4};
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = 2, .generation = &generation};
  const opipe_load_params file = {
      .struct_size = sizeof file,
      .path = opi_test_source("tests/data/rows/group_query/model.onnx")};
  opipe_generate_params turn = opipe_generate_params_init();
  opipe_sequence_info info = opipe_sequence_info_init();
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_api *api = NULL;
  opipe_context *context = NULL;
  opipe_model *model = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  opipe_sequence *sequence = NULL;
  uint32_t ids[5];
  for (int i = 0; i < 5; ++i)
    ids[i] = (uint32_t)prompt[i];
  turn.ids = ids;
  turn.n_ids = 5;
  turn.sampling = sampling;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &api, &err), &err);
  OPI_ASSERT_OK_FATAL(api->context_create(NULL, &context, &err), &err);
  OPI_ASSERT_OK_FATAL(api->model_load(context, &file, &model, &err), &err);
  OPI_ASSERT_OK_FATAL(api->plan_make(model, &params, &plan, &err), &err);
  OPI_ASSERT_OK_FATAL(api->session_open(context, plan, NULL, &session, &err), &err);
  OPI_ASSERT_OK_FATAL(api->session_generate(session, &turn, &sequence, &err), &err);
  OPI_ASSERT_OK(api->sequence_wait(sequence, UINT32_MAX, UINT64_MAX, &err), &err);
  OPI_ASSERT_OK(api->sequence_info(sequence, &info, &err), &err);
  OPI_ASSERT_OK(api->sequence_ids(sequence, 5, info.n_tokens, out, &err), &err);
  api->session_close(session);
  api->plan_destroy(plan);
  api->model_destroy(model);
  api->context_destroy(context);
  return info.n_tokens;
}

/* text: of `sampling`, with room before it for its length. */
static tri_request ask(const int64_t *ids, int64_t n, char *text) {
  tri_request r = {.input = {.name = "ids",
                             .type = INT64,
                             .rank = 1,
                             .n_pieces = 1,
                             .shape = {n},
                             .data = (const char *)ids,
                             .n_bytes = (uint64_t)n * sizeof *ids},
                   .wanted = "*"};
  if (text != NULL) {
    const uint32_t length = (uint32_t)strlen(text + 4);
    memcpy(text, &length, 4);
    r.more = (tri_input){.name = "sampling",
                         .type = TRI_TYPE_BYTES,
                         .rank = 1,
                         .n_pieces = 2,
                         .shape = {1},
                         .data = text,
                         .n_bytes = length + 4};
  }
  return r;
}

static void run(server *s, tri_request *r) {
  OPI_ASSERT(s->execute(&s->instance, &r, 1) == NULL);
  wait_for(r);
}

static const void *output(const tri_response *response, const char *name, uint64_t *out_bytes) {
  for (uint32_t i = 0; i < response->n_outputs; ++i) {
    if (strcmp(response->outputs[i].name, name) == 0) {
      *out_bytes = response->outputs[i].n_bytes;
      return response->outputs[i].data;
    }
  }
  *out_bytes = 0;
  return NULL;
}

static int32_t number(const tri_response *response, const char *name) {
  uint64_t n = 0;
  const int32_t *value = output(response, name, &n);
  return n == sizeof *value ? *value : -1;
}

/* Ids of an answer, in the order of responses; *out_end: of its end. */
static uint32_t gather(const tri_request *r, int32_t answer, uint32_t *out, int32_t *out_end) {
  const tri_response *list[256];
  uint32_t n = 0, n_ids = 0;
  for (const tri_response *at = r->response; at != NULL && n < 256; at = at->before)
    list[n++] = at;
  *out_end = -1;
  while (n-- > 0) {
    uint64_t n_bytes = 0, n_other = 0;
    const int64_t *ids = output(list[n], "token", &n_bytes);
    (void)output(list[n], "logprob", &n_other);
    if (number(list[n], "answer") != answer)
      continue;
    OPI_ASSERT(n_other * 2 == n_bytes);
    for (uint64_t i = 0; i < n_bytes / sizeof *ids; ++i)
      out[n_ids++] = (uint32_t)ids[i];
    *out_end = number(list[n], "end");
  }
  return n_ids;
}

static void test_tokens_come_one_by_one(void) {
  char text[] = "....temperature=0.8,seed=3,max_tokens=8,logprobs=0,n=2";
  uint32_t wanted[64], found[64];
  int32_t why = 0;
  server s;
  const uint32_t n = by_the_table("temperature=0.8,seed=3,max_tokens=8", wanted);
  OPI_ASSERT_INT(n, TOKENS);
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, APART)))
    return;
  OPI_ASSERT(strstr(s.model.completed, "\"decoupled\":true") != NULL);
  OPI_ASSERT(strstr(s.model.completed, "\"data_type\":\"TYPE_STRING\"") != NULL);
  tri_request r = ask(prompt, 5, text);
  run(&s, &r);
  OPI_ASSERT_INT(r.n_sent, (2 * TOKENS + 1) * EACH + LAST); /* two ends */
  OPI_ASSERT_INT(gather(&r, 0, found, &why), TOKENS);
  OPI_ASSERT_INT(why, OPIPE_END_TOKENS);
  OPI_ASSERT(memcmp(found, wanted, TOKENS * sizeof *found) == 0);
  OPI_ASSERT_INT(gather(&r, 1, found, &why), TOKENS);
  OPI_ASSERT(memcmp(found, wanted, TOKENS * sizeof *found) != 0);
  forget(&r);
  end(&s);
  OPI_ASSERT_INT(s.instance.n_good, 1);
}

static void test_tokens_come_at_once(void) {
  char text[] = "....temperature=0,max_tokens=100", two[] = "....n=2";
  uint32_t wanted[64], found[64];
  int32_t why = 0;
  server s;
  const uint32_t n = by_the_table("temperature=0", wanted);
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, AS_ONE)))
    return;
  tri_request r = ask(prompt, 5, text);
  run(&s, &r);
  OPI_ASSERT_INT(r.n_sent, LAST);
  OPI_ASSERT_INT(gather(&r, 0, found, &why), n); /* up to the context */
  OPI_ASSERT(n > 50 && memcmp(found, wanted, n * sizeof *found) == 0);
  forget(&r);
  r = ask(prompt, 5, two);
  run(&s, &r);
  if (OPI_ASSERT(r.response != NULL && r.response->error != NULL))
    OPI_ASSERT(strstr(r.response->error->text, "2 answers") != NULL);
  forget(&r);
  end(&s);
}

static void expect(server *s, tri_request r, int code, const char *part) {
  run(s, &r);
  const tri_error *e = r.response == NULL ? NULL : r.response->error;
  opi_test_check(e != NULL && e->code == code && strstr(e->text, part) != NULL && r.n_sent == LAST,
                 __FILE__, __LINE__, false, "%s: %d %s", part, e == NULL ? 0 : e->code,
                 e == NULL ? "no error" : e->text);
  forget(&r);
}

static void test_wrong_requests_are_refused(void) {
  static const int64_t wrong[] = {1, -7}, far[] = {1, 77}, many[64] = {1};
  char key[] = "....beams=2", fine[] = "....max_tokens=1";
  server s;
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, APART)))
    return;
  expect(&s, ask(wrong, 2, NULL), TRI_ERROR_INVALID_ARG, "-7 at place 1");
  expect(&s, ask(far, 2, NULL), TRI_ERROR_INVALID_ARG, "id 77 at place 1, the vocabulary has 24");
  expect(&s, ask(many, 64, NULL), TRI_ERROR_UNAVAILABLE, "65");
  expect(&s, ask(prompt, 5, key), TRI_ERROR_INVALID_ARG, "beams");
  tri_request r = ask(prompt, 5, fine);
  r.more.n_bytes -= 1;
  expect(&s, r, TRI_ERROR_INVALID_ARG, "one text is needed");
  r = ask(prompt, 5, NULL);
  r.is_cancelled = 1;
  expect(&s, r, TRI_ERROR_CANCELLED, "cancelled");
  double_fails = DOUBLE_AT_RequestOutputCount;
  expect(&s, ask(prompt, 5, NULL), 1, "does not go");
  end(&s);
  OPI_ASSERT_INT(s.instance.n_bad, 7);
  OPI_ASSERT(begin(&s, "") && !load(&s, APART ",\"max_batch_size\":4"));
  OPI_ASSERT(s.error != NULL && strstr(s.error->text, "max_batch_size is 4") != NULL);
  end(&s);
}

/* A client leaves; more requests than there are sequences; an end with requests under way. */
static void test_requests_come_and_go(void) {
  static tri_request r[MANY];
  uint32_t found[64], first[64];
  int32_t why = 0;
  server s;
  if (!begin(&s, "") || !OPI_ASSERT(load(&s, APART)))
    return;
  for (int k = 0; k < MANY; ++k) {
    tri_request *one = &r[k];
    static char texts[MANY][40];
    (void)snprintf(texts[k], sizeof texts[k], "....temperature=0,max_tokens=%d", 5 + k % 3);
    r[k] = ask(prompt, 5, texts[k]);
    OPI_ASSERT(s.execute(&s.instance, &one, 1) == NULL);
    if (k % 5 == 4)
      __atomic_store_n(&r[k].is_cancelled, 1, __ATOMIC_RELEASE);
  }
  for (int k = 4; k < MANY; k += 5) { /* it may have ended before anybody looked */
    wait_for(&r[k]);
    OPI_ASSERT_INT(r[k].n_sent % EACH, LAST);
    forget(&r[k]);
  }
  end(&s);
  OPI_ASSERT_INT(gather(&r[0], 0, first, &why), 5);
  for (int k = 0; k < MANY; ++k) {
    OPI_ASSERT_INT(r[k].n_released, 1);
    if (k % 5 == 4)
      continue;
    OPI_ASSERT_INT(r[k].n_sent % EACH, LAST);
    OPI_ASSERT_INT(gather(&r[k], 0, found, &why), 5 + k % 3);
    OPI_ASSERT(memcmp(found, first, 5 * sizeof *found) == 0);
    forget(&r[k]);
  }
  OPI_ASSERT_INT(s.instance.n_good + s.instance.n_bad, MANY);
}

OPI_TEST_MAIN("host-triton-generate", OPI_TEST(test_tokens_come_one_by_one),
              OPI_TEST(test_tokens_come_at_once), OPI_TEST(test_wrong_requests_are_refused),
              OPI_TEST(test_requests_come_and_go))
