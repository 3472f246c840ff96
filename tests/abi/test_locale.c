/* SPDX-License-Identifier: Apache-2.0 */
/* A host with a decimal comma: what the library writes for other programs has the same bytes, what
 * it and its plugins read means the same, and the host's own text keeps its comma, in callbacks
 * too.
 */
#include <locale.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/abi/host_kit.h"

extern char **environ;

static const char *const GPT = "tests/data/gpt_8block/model.onnx";

/* ---- a locale with a comma, made here: few machines have one ---- */

static const char source[] =
    "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"<U002E>\"\n"
    "grouping 3;3\nEND LC_NUMERIC\n";

static bool make_comma(const char *folder) {
  char file[512], out[512];
  int status = 1;
  pid_t child = 0;
  (void)snprintf(file, sizeof file, "%s/source", folder);
  (void)snprintf(out, sizeof out, "%s/comma", folder);
  FILE *text = fopen(file, "w");
  if (text == NULL)
    return false;
  (void)fputs(source, text);
  (void)fclose(text);
  char *const words[] = {(char *)(uintptr_t) "localedef",
                         (char *)(uintptr_t) "--quiet",
                         (char *)(uintptr_t) "-c",
                         (char *)(uintptr_t) "-i",
                         file,
                         out,
                         NULL};
  if (posix_spawnp(&child, words[0], NULL, NULL, words, environ) != 0 ||
      waitpid(child, &status, 0) != child)
    return false;
  (void)setenv("LOCPATH", folder, 1);
  const bool set = setlocale(LC_NUMERIC, "comma") != NULL; /* its warnings end in status 1 */
  (void)setlocale(LC_NUMERIC, "C");
  return set;
}

static void remove_folder(const char *folder) {
  char *const words[] = {(char *)(uintptr_t) "rm", (char *)(uintptr_t) "-rf",
                         (char *)(uintptr_t)folder, NULL};
  pid_t child = 0;
  int status = 0;
  if (posix_spawnp(&child, words[0], NULL, NULL, words, environ) == 0)
    (void)waitpid(child, &status, 0);
}

static bool has_comma(void) {
  char text[16];
  (void)snprintf(text, sizeof text, "%.1f", 0.5);
  return text[1] == ',';
}

/* ---- texts that are written ---- */

typedef struct harvest {
  char *data;
  size_t n;
  bool comma;     /* the host's */
  uint32_t wrong; /* calls of a sink that found another locale than the host's */
} harvest;

static opipe_status reap(void *ctx, const void *data, size_t n) {
  harvest *h = ctx;
  char *grown = realloc(h->data, h->n + n + 1);
  if (grown == NULL)
    return OPIPE_E_NOMEM;
  h->data = grown;
  memcpy(h->data + h->n, data, n);
  h->n += n;
  h->data[h->n] = '\0';
  h->wrong += has_comma() != h->comma;
  return OPIPE_OK;
}

static void play_plan(host_kit *k, harvest *h) {
  opipe_play_params params = opipe_play_params_init();
  for (uint32_t format = 0; OPI_TEST_STUDY && format <= OPIPE_PLAY_HTML; ++format)
    OPI_ASSERT_OK(k->api->plan_play(k->plan, &params, format, reap, h, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->plan_describe(k->plan, 0, reap, h, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->plan_describe(k->plan, 1, reap, h, &k->err), &k->err);
}

static void write_strategy(host_kit *k, harvest *h) {
  opipe_profile *profile = NULL;
  opipe_strategy *strategy = NULL;
  if (!OPI_TEST_STUDY) /* test_study.c */
    return;
  kit_strategy(k, &profile, &strategy);
  for (uint32_t format = 0; format < 2; ++format) {
    OPI_ASSERT_OK(k->api->strategy_describe(strategy, format, reap, h, &k->err), &k->err);
    OPI_ASSERT_OK(k->api->profile_describe(profile, format, reap, h, &k->err), &k->err);
  }
  k->api->strategy_destroy(strategy);
  k->api->profile_destroy(profile);
}

static opipe_train_options train_options(void) {
  opipe_train_options train = opipe_train_options_init();
  train.loss = OPIPE_LOSS_CROSS_ENTROPY;
  train.output = "logits";
  train.labels = "labels";
  train.lr = 0.001;
  return train;
}

static void plan_for_training(const char *schedule, harvest *h) {
  host_kit k;
  const opipe_train_options train = train_options();
  opipe_plan_params params = opipe_plan_params_init();
  params.train = &train;
  params.n_stages = 2;
  params.n_microbatches = 2;
  params.schedule = schedule;
  const opipe_status status = kit_plan_training(&k, GPT, 4, 8, &params);
  OPI_ASSERT_OK(status, &k.err);
  if (status == OPIPE_OK) {
    OPI_ASSERT_OK(k.api->plan_write(k.plan, reap, h, &k.err), &k.err);
    play_plan(&k, h);
  }
  kit_close(&k);
}

/* ---- texts that are read ---- */

/* A ratio of dropout stands as text in a plan. */
static void read_ratio(harvest *h) {
  host_kit k = {.err = OPIPE_ERROR_INIT};
  opipe_load_params load = opipe_load_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_plan_params params = opipe_plan_params_init();
  const opipe_train_options train = train_options();
  const opipe_dim dims[] = {{"batch", 4}, {"seq", 8}};
  harvest plan = {.comma = h->comma};
  opipe_plan *again = NULL;
  load.path = opi_test_source(GPT);
  params.train = &train;
  bind.flags = OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN | OPIPE_BIND_DROPOUT_RATIO;
  bind.dropout_ratio = 0.125;
  bind.dims = dims;
  bind.n_dims = 2;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k.api, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->context_create(NULL, &k.context, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->model_load(k.context, &load, &k.model, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->model_bind(k.model, &bind, &k.bound, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &params, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->plan_write(k.plan, reap, &plan, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->plan_read(k.model, plan.data, plan.n, &again, &k.err), &k.err);
  if (again != NULL)
    OPI_ASSERT_OK(k.api->plan_write(again, reap, h, &k.err), &k.err);
  k.api->plan_destroy(again);
  free(plan.data);
  kit_close(&k);
}

/* Times differ from run to run: here is no comma between digits but between numbers. */
static void trace(host_kit *k, bool comma) {
  for (uint32_t format = 0; format < (OPI_TEST_STUDY ? 3 : 2); ++format) {
    harvest h = {.comma = comma};
    OPI_ASSERT_OK(k->api->session_trace(k->session, format, reap, &h, &k->err), &k->err);
    uint32_t n_odd = 0;
    for (size_t i = 2; i + 1 < h.n; ++i) {
      const bool quoted = h.data[i] == ',' && h.data[i - 1] >= '0' && h.data[i - 1] <= '9' &&
                          h.data[i + 1] >= '0' && h.data[i + 1] <= '9';
      size_t first = i;
      while (quoted && first > 0 && h.data[first - 1] >= '0' && h.data[first - 1] <= '9')
        --first;
      n_odd += quoted && first > 1 && (h.data[first - 1] == '"' || h.data[first - 1] == ' ') &&
               (h.data[first - 2] == '=' || h.data[first - 2] == ':');
    }
    OPI_ASSERT_INT(n_odd, 0);
    OPI_ASSERT_INT(h.wrong, 0);
    free(h.data);
  }
}

static void serve(host_kit *k, bool comma) {
  static int64_t ids[16];
  const int64_t shape[] = {2, 8};
  const opipe_binding_io input = kit_ids(ids, shape);
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(kit_open(k, NULL), &k->err);
  OPI_ASSERT_OK_FATAL(kit_submit(k, &input, &request), &k->err);
  OPI_ASSERT_OK(k->api->request_wait(request, UINT64_C(30000000000), &k->err), &k->err);
  k->api->request_release(request);
  trace(k, comma);
}

static void do_all(bool comma, harvest *h) {
  host_kit k;
  const opipe_plan_params two = {
      .struct_size = sizeof two, .n_stages = 2, .transport = "emulated:latency_us=0.5"};
  h->comma = comma;
  OPI_ASSERT(setlocale(LC_NUMERIC, comma ? "comma" : "C") != NULL);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 2, 8, &two), &k.err);
  play_plan(&k, h);
  serve(&k, comma);
  write_strategy(&k, h);
  kit_close(&k);
  plan_for_training("zb-auto:memory=1.5", h);
  read_ratio(h);
  OPI_ASSERT(has_comma() == comma); /* it is the host's again */
  OPI_ASSERT_INT(h->wrong, 0);
  (void)setlocale(LC_NUMERIC, "C");
}

static void compare(const char *folder) {
  harvest plain = {.n = 0}, other = {.n = 0};
  if (!make_comma(folder)) {
    OPI_SKIP("no locale with a comma can be made (localedef)");
    return;
  }
  do_all(false, &plain);
  do_all(true, &other);
  OPI_ASSERT(plain.n > 10000);
  OPI_ASSERT_INT(other.n, plain.n);
  OPI_ASSERT(other.n == plain.n && memcmp(plain.data, other.data, plain.n) == 0);
  free(plain.data);
  free(other.data);
}

static void test_a_decimal_comma(void) {
  char folder[] = "/tmp/opipe-locale-XXXXXX";
  OPI_ASSERT_FATAL(mkdtemp(folder) != NULL);
  compare(folder);
  remove_folder(folder);
}

OPI_TEST_MAIN("a host with a decimal comma", OPI_TEST(test_a_decimal_comma))
