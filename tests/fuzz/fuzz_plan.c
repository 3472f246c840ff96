/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reading of plans. A refusal names what it refuses. An accepted plan is harmless: it is
 * written, read and written again with the same bytes, described, put into the model file, and,
 * every fourth time, run: with the bits of its reference, in the memory that was predicted. The
 * model is the one whose fingerprint stands in the bytes. Without a model the bytes are played, or
 * refused; what is accepted with its model and written plays alone as it does with it. Plugins are
 * linked in.
 */
#define _GNU_SOURCE 1
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/plans.h"
#include "tests/support/support.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { SHARE_RUN = 4 };

static plan_tally n;

__attribute__((destructor)) static void report(void) {
  if (n.tried == 0)
    return; /* other processes do the work */
  (void)fprintf(stderr,
                "%llu plans: %llu refused, %llu accepted, of these %llu ran, %llu trained, %llu "
                "were refused when they were to; %llu played without their models\n",
                (unsigned long long)n.tried, (unsigned long long)n.refused,
                (unsigned long long)n.accepted, (unsigned long long)n.ran,
                (unsigned long long)n.trained, (unsigned long long)n.not_opened,
                (unsigned long long)n.played);
}

/* ---- seeds ---- */

/* Adds a folder of the plans that the library makes, unless single inputs are to be run. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  struct stat info;
  const plan_bench *bench = plan_bench_get();
  const size_t count = (size_t)*argc;
  for (size_t i = 1; i < count; ++i) {
    if ((*argv)[i][0] != '-' && stat((*argv)[i], &info) == 0 && S_ISREG(info.st_mode))
      return 0;
  }
  char **longer = calloc(count + 4, sizeof *longer);
  if (longer == NULL)
    return 0;
  longer[0] = (*argv)[0]; /* in front: what is given wins */
  longer[1] = (char *)(uintptr_t) "-max_len=65536";
  longer[2] = (char *)(uintptr_t) "-mutate_depth=2";
  memcpy(longer + 3, *argv + 1, (count - 1) * sizeof *longer);
  longer[count + 2] = (char *)(uintptr_t)opi_test_tmpdir();
  for (uint32_t i = 0; i < bench->n_seeds; ++i) {
    char name[40];
    (void)snprintf(name, sizeof name, "seed-%02u.json", i);
    must(opi_test_write_file(opi_test_tmp(name), bench->seeds[i].text, bench->seeds[i].n),
         "a seed cannot be written");
  }
  *argv = longer; /* until the process ends */
  *argc += 3;
  return 0;
}

/* ---- properties that must hold ---- */

static bool names_something(const char *message) {
  return strlen(message) >= 12 && strpbrk(message, "'\"0123456789") != NULL;
}

void plan_must_refuse(const char *what, opipe_status status, const opipe_error *err) {
  char text[700];
  const bool input = status == OPIPE_E_INVALID || status == OPIPE_E_UNSUPPORTED ||
                     status == OPIPE_E_LIMIT || status == OPIPE_E_NOTFOUND;
  if (input && names_something(err->message))
    return;
  (void)snprintf(text, sizeof text, "%s is refused with status %d: '%s'", what, (int)status,
                 err->message);
  must(false, text);
}

static void must_do(const char *what, opipe_status status, const opipe_error *err) {
  char text[700];
  (void)snprintf(text, sizeof text, "an accepted plan cannot be %s: %s", what, err->message);
  must(status == OPIPE_OK, text);
}

/* Every form of a plan that plays is made; the same bytes twice. */
static void play_alone(const plan_bench *b, const void *data, size_t size) {
  const opipe_play_params params = {.struct_size = (uint32_t)sizeof params};
  opipe_error err = OPIPE_ERROR_INIT;
  plan_text once = {.data = NULL}, twice = {.data = NULL};
  const opipe_status status = b->api->plan_file_play(b->context, data, size, &params,
                                                     OPIPE_PLAY_HTML, plan_take, &once, &err);
  if (status < 0) {
    plan_must_refuse("a plan without its model", status, &err);
  } else {
    must_do("played again",
            b->api->plan_file_play(b->context, data, size, &params, OPIPE_PLAY_HTML, plan_take,
                                   &twice, &err),
            &err);
    must(once.n == twice.n && memcmp(once.data, twice.data, once.n) == 0,
         "a plan is played otherwise the second time");
    ++n.played;
  }
  free(once.data);
  free(twice.data);
}

static void check_played(const plan_bench *b, opipe_plan *plan, const plan_text *file) {
  const opipe_play_params params = {.struct_size = (uint32_t)sizeof params};
  opipe_error err = OPIPE_ERROR_INIT;
  plan_text own = {.data = NULL}, alone = {.data = NULL};
  must_do("played", b->api->plan_play(plan, &params, OPIPE_PLAY_JSON, plan_take, &own, &err), &err);
  must_do("played without its model",
          b->api->plan_file_play(b->context, file->data, file->n, &params, OPIPE_PLAY_JSON,
                                 plan_take, &alone, &err),
          &err);
  must(own.n == alone.n && memcmp(own.data, alone.data, own.n) == 0,
       "a plan that was written is played otherwise without its model");
  free(own.data);
  free(alone.data);
}

static void check_round_trip(const plan_bench *b, opipe_model *file, opipe_plan *plan) {
  opipe_error err = OPIPE_ERROR_INIT;
  plan_text once = {.data = NULL}, twice = {.data = NULL};
  opipe_plan *again = NULL;
  must_do("written", b->api->plan_write(plan, plan_take, &once, &err), &err);
  must_do("read again", b->api->plan_read(file, once.data, once.n, &again, &err), &err);
  must_do("written twice", b->api->plan_write(again, plan_take, &twice, &err), &err);
  must(once.n == twice.n && memcmp(once.data, twice.data, once.n) == 0,
       "a plan that was written, read and written has other bytes");
  check_played(b, again, &once);
  b->api->plan_destroy(again);
  free(once.data);
  free(twice.data);
}

static void check_described(const plan_bench *b, opipe_plan *plan) {
  opipe_error err = OPIPE_ERROR_INIT;
  plan_text text = {.data = NULL};
  opipe_plan_info info = {.struct_size = (uint32_t)sizeof info};
  must_do("described", b->api->plan_describe(plan, OPIPE_FORMAT_TEXT, plan_take, &text, &err),
          &err);
  must_do("asked", b->api->plan_info(plan, &info, &err), &err);
  must(text.n > 0 && info.n_ranks > 0 && info.n_stages > 0, "a plan of nothing");
  must(info.request_ns >= 0 && info.interval_ns >= 0 && info.bound_ns >= 0, "times below 0");
  for (uint32_t r = 0; r < info.n_ranks; ++r) {
    opipe_memory_info m = {.struct_size = (uint32_t)sizeof m};
    must_do("asked for memory", b->api->plan_memory(plan, r, &m, &err), &err);
    must(m.total_bytes <= m.cap_bytes, "a plan above its cap");
  }
  free(text.data);
}

static void check_annotated(const plan_bench *b, opipe_plan *plan) {
  opipe_error err = OPIPE_ERROR_INIT;
  plan_text text = {.data = NULL};
  opipe_model *model = NULL;
  opipe_model_info info = {.struct_size = (uint32_t)sizeof info};
  must_do("put into the file", b->api->plan_annotate(plan, plan_take, &text, &err), &err);
  const opipe_load_params load = {
      .struct_size = (uint32_t)sizeof load, .data = text.data, .n_bytes = text.n};
  must_do("loaded with the file", b->api->model_load(b->context, &load, &model, &err), &err);
  must_do("seen in the file", b->api->model_info(model, &info, &err), &err);
  must(info.n_annotated_stages <= plan_behind(plan)->decided.n_stages,
       "the file has more stages than the plan");
  b->api->model_destroy(model);
  free(text.data);
}

/* ---- the target ---- */

static uint32_t hash(const uint8_t *data, size_t size) {
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < size; ++i)
    h = (h ^ data[i]) * 16777619u;
  return h >> 7;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const plan_bench *b = plan_bench_get();
  opipe_model *file = b->models[0].file;
  opipe_plan *plan = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t i = 0; i < PLAN_MODELS; ++i) {
    const char *print = b->models[i].fingerprint;
    if (size > 0 && memmem(data, size, print, strlen(print)) != NULL)
      file = b->models[i].file;
  }
  ++n.tried;
  play_alone(b, size == 0 ? (const void *)"" : data, size);
  const opipe_status status =
      b->api->plan_read(file, size == 0 ? (const void *)"" : data, size, &plan, &err);
  if (status < 0) {
    plan_must_refuse("a plan", status, &err);
    ++n.refused;
    return 0;
  }
  ++n.accepted;
  check_round_trip(b, file, plan);
  check_described(b, plan);
  const uint32_t choice = hash(data, size);
  if (choice % SHARE_RUN == 0)
    check_annotated(b, plan);
  if (choice % SHARE_RUN == 1)
    plan_run(b, plan, choice / SHARE_RUN, &n);
  b->api->plan_destroy(plan);
  return 0;
}
