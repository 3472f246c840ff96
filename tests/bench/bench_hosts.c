/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of running inside ONNX Runtime, without Python: calls of a small model, and the largest
 * memory of a process that has one session. MODEL reads input_ids [BATCH, SEQ], makes logits.
 *
 *   bench_hosts call RUNTIME ADAPTER LIBRARY MODEL BATCH SEQ ROUNDS
 *       medians of a call, in turns: through the adapter, through the library alone, by ONNX
 *       Runtime's own provider; a line of JSON a round
 *   bench_hosts turns LIBRARY MODEL BATCH SEQ
 *       for every line of standard input, the median of calls of the library alone, in microseconds
 *   bench_hosts peak alone LIBRARY MODEL BATCH SEQ
 *   bench_hosts peak inside|as_it_is RUNTIME ADAPTER MODEL BATCH SEQ
 *   bench_hosts peak own RUNTIME MODEL BATCH SEQ
 *       VmHWM in KiB after a session was opened and has run three times; as_it_is: ONNX Runtime
 *       changes nothing in the graph
 */
#include <opipe/host.h>
#include <stdlib.h>
#include <time.h>

#include "tests/plugins/host-onnxruntime/application.h"

enum { RUNS_MOST = 4000 };
static uint64_t turn_ns = 400000000u; /* of calls, whose median is one figure */
static const char *const one_thread[][2] = {{"stages", "1"}, {"threads", "1"}};

typedef struct request {
  int64_t shape[2]; /* batch, seq */
  int64_t *ids;     /* [batch, seq] */
} request;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "bench_hosts: %s: %s\n", what, why);
  exit(1);
}

static request make_request(const char *batch, const char *seq) {
  request r = {.shape = {strtoll(batch, NULL, 10), strtoll(seq, NULL, 10)}};
  const int64_t n = r.shape[0] * r.shape[1];
  r.ids = calloc((size_t)n, sizeof *r.ids);
  if (r.ids == NULL)
    fail("ids", "out of memory");
  for (int64_t i = 0; i < n; ++i)
    r.ids[i] = (i * 7 + 3) % 300;
  return r;
}

static uint64_t now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the library alone ---- */

typedef struct alone {
  const opipe_api *api;
  opipe_context *context;
  opipe_session *session;
  opipe_binding_io in, out;
  int64_t out_shape[OPIPE_MAX_RANK];
} alone;

static opipe_error err = OPIPE_ERROR_INIT;

static void need(opipe_status status, const char *what) {
  if (status < 0)
    fail(what, err.message);
}

static alone *open_alone(const char *library, const char *path, const request *r) {
  alone *a = calloc(1, sizeof *a);
  opipe_get_api_fn get_api = NULL;
  opipe_model *model = NULL, *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_load_params load = opipe_load_params_init();
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_plan_params params = opipe_plan_params_init();
  opipe_tensor_info info = opipe_tensor_info_init();
  const opipe_dim dims[] = {{"input_ids.0", r->shape[0]}, {"input_ids.1", r->shape[1]}};
  const opipe_device_choice device = {.kind = "cpu", .threads = 1};
  void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (opened != NULL)
    *(void **)&get_api = dlsym(opened, "opipe_get_api");
  if (a == NULL || get_api == NULL)
    fail(library, dlerror());
  need(get_api(OPIPE_VIEW, &a->api, &err), library);
  need(a->api->context_create(NULL, &a->context, &err), "context");
  load.path = path;
  need(a->api->model_load(a->context, &load, &model, &err), path);
  bind.dims = dims, bind.n_dims = 2;
  need(a->api->model_bind(model, &bind, &bound, &err), "bind");
  params.n_stages = 1;
  params.devices = &device, params.n_devices = 1;
  need(a->api->plan_make(bound, &params, &plan, &err), "plan");
  need(a->api->session_open(a->context, plan, NULL, &a->session, &err), "session");
  need(a->api->model_output(bound, 0, &info, &err), "output");
  uint64_t n = 1;
  for (uint32_t d = 0; d < info.rank; ++d) {
    a->out_shape[d] = info.shape[d];
    n *= (uint64_t)info.shape[d];
  }
  a->in = (opipe_binding_io){.name = "input_ids",
                             .tensor = {.data = r->ids,
                                        .device_type = OPIPE_DL_CPU,
                                        .rank = 2,
                                        .dtype = {OPIPE_DL_INT, 64, 1},
                                        .shape = r->shape}};
  a->out = (opipe_binding_io){.name = "logits",
                              .tensor = {.data = malloc(n * sizeof(float)),
                                         .device_type = OPIPE_DL_CPU,
                                         .rank = (int32_t)info.rank,
                                         .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                         .shape = a->out_shape}};
  a->api->plan_destroy(plan); /* the session keeps what it needs */
  a->api->model_destroy(bound);
  a->api->model_destroy(model);
  return a;
}

static void run_alone(void *ctx, const request *r) {
  const alone *a = ctx;
  opipe_submit_params params = opipe_submit_params_init();
  opipe_request *sent = NULL;
  (void)r;
  params.inputs = &a->in, params.n_inputs = 1;
  params.outputs = &a->out, params.n_outputs = 1;
  need(a->api->session_submit_wait(a->session, OPIPE_START_REQUEST, &params, UINT64_MAX, &sent,
                                   &err),
       "submit");
  need(a->api->request_wait(sent, UINT64_MAX, &err), "wait");
  a->api->request_release(sent);
}

/* ---- inside ONNX Runtime ---- */

typedef struct inside {
  app a;
  ort_session *session;
} inside;

/* adapter NULL: its own provider. */
static inside *open_inside(const char *runtime, const char *adapter, const char *path,
                           bool as_it_is) {
  inside *i = calloc(1, sizeof *i);
  if (i == NULL || !app_open(&i->a, runtime, adapter))
    fail(runtime, app_why);
  i->a.as_it_is = as_it_is;
  i->session =
      app_session(&i->a, path, adapter == NULL ? NULL : one_thread, adapter == NULL ? 1 : 2);
  if (i->session == NULL)
    fail(path, app_why);
  return i;
}

static void run_inside(void *ctx, const request *r) {
  const inside *i = ctx;
  ort_value *out = NULL;
  if (!app_run(&i->a, i->session, NULL, r->ids, r->shape[0], r->shape[1], &out))
    fail("run", app_why);
  app_release(&i->a, out);
}

/* ---- calls ---- */

static int by_value(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Median microseconds of a call, of so many as take so long. */
static double turn(void (*run)(void *, const request *), void *ctx, const request *r) {
  static uint64_t times[RUNS_MOST];
  size_t n = 0;
  run(ctx, r);
  for (const uint64_t end = now_ns() + turn_ns; n < RUNS_MOST && now_ns() < end; ++n) {
    const uint64_t start = now_ns();
    run(ctx, r);
    times[n] = now_ns() - start;
  }
  qsort(times, n, sizeof *times, by_value);
  const uint64_t median = times[n / 2];
  return (double)median / 1000;
}

static void measure_calls(char **names, const request *r, long rounds) {
  inside *through = open_inside(names[0], names[1], names[3], false);
  inside *own = open_inside(names[0], NULL, names[3], false);
  alone *bare = open_alone(names[2], names[3], r);
  const struct {
    const char *name;
    void (*run)(void *, const request *);
    void *ctx;
  } ways[] = {
      {"inside", run_inside, through}, {"alone", run_alone, bare}, {"own", run_inside, own}};
  for (long round = 0; round < rounds; ++round) {
    double us[3];
    for (int k = 0; k < 3; ++k) { /* the first of one round is the last of the next */
      const int way = round % 2 == 0 ? k : 2 - k;
      us[way] = turn(ways[way].run, ways[way].ctx, r);
    }
    printf("{\"%s\": %.2f, \"%s\": %.2f, \"%s\": %.2f}\n", ways[0].name, us[0], ways[1].name, us[1],
           ways[2].name, us[2]);
    (void)fflush(stdout);
  }
}

static void measure_turns(const char *library, const char *path, const request *r) {
  alone *bare = open_alone(library, path, r);
  turn_ns = 100000000u; /* as python.py's */
  for (int c = getchar(); c != EOF; c = getchar()) {
    if (c == '\n') {
      printf("%.2f\n", turn(run_alone, bare, r));
      (void)fflush(stdout);
    }
  }
}

/* ---- memory ---- */

static long peak_kib(void) {
  char line[256];
  long kib = -1;
  FILE *file = fopen("/proc/self/status", "r");
  while (file != NULL && kib < 0 && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "VmHWM:", 6) == 0)
      kib = strtol(line + 6, NULL, 10);
  }
  if (file != NULL)
    (void)fclose(file);
  return kib;
}

static void measure_peak(void (*run)(void *, const request *), void *ctx, const request *r) {
  for (int i = 0; i < 3; ++i)
    run(ctx, r);
  printf("%ld\n", peak_kib());
}

int main(int argc, char **argv) {
  request r = {.ids = NULL};
  if (argc < 6)
    fail("usage", "bench_hosts call|turns|peak ..., see its source");
  if (strcmp(argv[1], "call") == 0 && argc == 9) {
    r = make_request(argv[6], argv[7]);
    measure_calls(argv + 2, &r, strtol(argv[8], NULL, 10));
    return 0;
  }
  r = make_request(argv[argc - 2], argv[argc - 1]);
  if (strcmp(argv[1], "turns") == 0 && argc == 6) {
    measure_turns(argv[2], argv[3], &r);
  } else if (strcmp(argv[2], "alone") == 0) {
    measure_peak(run_alone, open_alone(argv[3], argv[4], &r), &r);
  } else if (argc == 8) {
    measure_peak(run_inside,
                 open_inside(argv[3], argv[4], argv[5], strcmp(argv[2], "as_it_is") == 0), &r);
  } else {
    measure_peak(run_inside, open_inside(argv[3], NULL, argv[4], false), &r);
  }
  return 0;
}
