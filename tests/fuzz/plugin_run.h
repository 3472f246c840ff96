/* SPDX-License-Identifier: Apache-2.0 */
/* Uses a plugin as the library does: lists it, asks it for an order, plans a small model with it,
 * runs one request. Every refusal must say why, with a status that the ABI knows and the plugin's
 * name; what ends well must have the bits that the unchanged plugins give.
 */
#ifndef TESTS_FUZZ_PLUGIN_RUN_H
#define TESTS_FUZZ_PLUGIN_RUN_H

#include <jansson.h>

#include "opipe/host.h"
#include "tests/fuzz/plugin_bytes.h"
#include "tests/loader/wire/writer.h"

enum { ROWS = 4, WIDTH = 8, RANKS = 2, ELEMS = ROWS * WIDTH, TRIES = 20000 };

extern const opipe_plugin *const opi_static_plugins[];

static struct { uint64_t listed, ordered, planned, ran, refused; } total;

/* ---- the host's memory ---- */

/* Refuses what nobody needs here: a number that was believed comes out as lack of memory. */
enum { BLOCK_MOST = 64 << 20 };
static void *limited_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  const opipe_allocator *system = opi_allocator_system();
  (void)ctx;
  return new_size > BLOCK_MOST ? NULL
                               : system->realloc(system->ctx, ptr, old_size, new_size, align);
}

/* ---- the model: tanh(x a + (b + c)) d^T, rows free, b + c and d^T folded ---- */

static bytes write_model(void) {
  static const int64_t square[] = {WIDTH, WIDTH}, row[] = {WIDTH};
  static const int64_t rows[] = {-1, WIDTH};
  static const char *const names[] = {"a", "d", "b", "c"};
  bytes graph = {NULL, 0, 0};
  float data[WIDTH * WIDTH];
  for (uint32_t i = 0; i < WIDTH * WIDTH; ++i)
    data[i] = (float)((i * 37u) % 19u) / 19.0f - 0.4f;
  w_sub(&graph, 1, w_node("MatMul", NULL, NULL, "x a", "m"));
  w_sub(&graph, 1, w_node("Add", NULL, NULL, "b c", "bc"));
  w_sub(&graph, 1, w_node("Add", NULL, NULL, "m bc", "s"));
  w_sub(&graph, 1, w_node("Tanh", NULL, NULL, "s", "t"));
  w_sub(&graph, 1, w_node("Transpose", NULL, NULL, "d", "dt"));
  w_sub(&graph, 1, w_node("MatMul", NULL, NULL, "t dt", "u"));
  w_sub(&graph, 1, w_node("Sigmoid", NULL, NULL, "u", "y"));
  for (uint32_t i = 0; i < OPI_COUNT(names); ++i) {
    w_sub(&graph, 5,
          w_tensor(names[i], OPIPE_FLOAT, i < 2 ? square : row, i < 2 ? 2 : 1, data,
                   (i < 2 ? WIDTH : 1) * WIDTH * sizeof(float)));
  }
  w_sub(&graph, 11, w_value("x", OPIPE_FLOAT, rows, 2));
  w_sub(&graph, 12, w_value("y", OPIPE_FLOAT, rows, 2));
  return w_model(graph, 10);
}

/* ---- judged ---- */

static void must_say(bool condition, const char *what, const opipe_error *err) {
  if (!condition)
    (void)fprintf(stderr, "status %d, message: %.495s\n", err->status, err->message);
  must(condition, what);
}

/* id: whose name the message holds where the plugin was at fault; NULL: nobody's. */
static void must_refuse(opipe_status status, const opipe_error *err, const char *id) {
  ++total.refused;
  must_say(status >= OPIPE_E_INTERNAL && status < 0, "a status that the ABI does not know", err);
  must_say(err->status == status, "a status in the error that is not the call's", err);
  must_say(memchr(err->message, '\0', sizeof err->message) != NULL, "a message without end", err);
  must_say(err->message[0] != '\0', "a refusal without a reason", err);
  /* The transport hands on what a rank's backend says, and does not know its name. */
  const bool handed_on = strstr(err->message, "transport 'local'") != NULL ||
                         strstr(err->message, ": its backend gives no") != NULL;
  must_say(id == NULL || wrong.struck == 0 || handed_on || strstr(err->message, id) != NULL,
           "a refusal that names nobody", err);
  must_say(status != OPIPE_E_INTERNAL || strstr(err->message, "is struck") != NULL ||
               strstr(err->message, "without a message") != NULL,
           "a plugin's fault is told as the library's", err);
}

typedef struct text {
  char *data;
  size_t n;
} text;

static opipe_status append(void *ctx, const void *data, size_t n) {
  text *t = ctx;
  char *more = realloc(t->data, t->n + n + 1);
  must(more != NULL, "the target has no memory");
  memcpy(more + t->n, data, n);
  t->data = more;
  t->n += n;
  t->data[t->n] = '\0';
  return OPIPE_OK;
}

/* Text of lines without control characters; JSON that reads. */
static void must_read(text *t, bool json, const char *what) {
  json_error_t why;
  if (json) {
    json_t *value = json_loadb(t->data == NULL ? "" : t->data, t->n, 0, &why);
    if (value == NULL) {
      (void)fprintf(stderr, "%s: %s at %d\n%.2000s\n", what, why.text, why.position,
                    t->data == NULL ? "" : t->data);
    }
    must(value != NULL, "JSON that does not read");
    json_decref(value);
  }
  for (size_t i = 0; i < t->n; ++i)
    must((unsigned char)t->data[i] >= ' ' || t->data[i] == '\n', "control characters in a list");
  free(t->data);
  *t = (text){NULL, 0};
}

/* ---- one host ---- */

typedef struct host {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *model, *bound;
  opipe_plan *plan;
  opipe_session *session;
  opipe_request *request;
  const char *id; /* of the plugin at hand */
  bool listed;    /* the texts of the plugin were asked for */
  const char *backend, *schedule, *transport, *options;
  uint32_t threads;
  opipe_error err;
  float out[ELEMS];
} host;

static void silent(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx, (void)level, (void)file, (void)line, (void)msg;
}

/* The plugin at hand, then those of the build that are not called as it is. */
static opipe_status host_open(host *h, const opipe_plugin *plugin) {
  static const opipe_allocator allocator = {NULL, limited_realloc};
  static const char *const others[] = {"cpu", "gpipe", "local", "1f1b", "csv"};
  const opipe_context_params params = {.struct_size = sizeof params,
                                       .allocator = &allocator,
                                       .log = silent,
                                       .cores = 2,
                                       .flags = OPIPE_CONTEXT_ONLY_STATIC};
  h->err = (opipe_error)OPIPE_ERROR_INIT;
  must(opipe_get_api(OPIPE_VIEW, &h->api, &h->err) >= 0, h->err.message);
  must(h->api->context_create(&params, &h->context, &h->err) >= 0, h->err.message);
  opipe_status status = OPIPE_OK;
  if (plugin != NULL)
    status = h->api->context_register_static(h->context, plugin, &h->err);
  for (uint32_t i = 0; status >= 0 && opi_static_plugins[i] != NULL; ++i) {
    const opipe_plugin *other = opi_static_plugins[i];
    bool wanted = false;
    for (uint32_t k = 0; k < OPI_COUNT(others); ++k)
      wanted = wanted || strcmp(other->id, others[k]) == 0;
    if (wanted && (plugin == NULL || other->kind != plugin->kind || strcmp(other->id, h->id) != 0))
      must(h->api->context_register_static(h->context, other, &h->err) >= 0, h->err.message);
  }
  return status;
}

static void host_close(host *h) {
  if (h->session != NULL && h->request != NULL)
    h->api->request_release(h->request);
  h->api->session_close(h->session);
  h->api->plan_destroy(h->plan);
  h->api->model_destroy(h->bound);
  h->api->model_destroy(h->model);
  h->api->context_destroy(h->context);
}

/* Every list, twice: the second one tells of plugins that are open, or were refused. */
static void host_list(host *h) {
  text t = {NULL, 0};
  for (uint32_t i = 0; i < 4; ++i) {
    must(h->api->context_plugins(h->context, i % 2, append, &t, &h->err) >= 0, h->err.message);
    must(t.n != 0 && strstr(t.data, h->id) != NULL, "a list without the plugin");
    must_read(&t, i % 2 == 1, "plugins");
  }
  for (uint32_t format = 0; format < 2; ++format) {
    const opipe_status status = h->api->schedule_list(h->context, format, append, &t, &h->err);
    if (status < 0) {
      must_refuse(status, &h->err, h->id);
      free(t.data);
      t = (text){NULL, 0};
    } else {
      must_read(&t, format == 1, "schedules");
    }
  }
  ++total.listed;
}

/* ---- an order ---- */

static void host_order(host *h, uint32_t flags, uint32_t n_ranks, uint32_t n_stages,
                       uint32_t n_microbatches, uint32_t replicas) {
  const opipe_order_params params = {.struct_size = sizeof params,
                                     .flags = flags,
                                     .schedule = h->schedule,
                                     .n_ranks = n_ranks,
                                     .n_stages = n_stages,
                                     .n_microbatches = n_microbatches,
                                     .replicas = replicas};
  opipe_order_info info = {.struct_size = sizeof info};
  opipe_order *order = NULL, *lowered = NULL;
  text t = {NULL, 0};
  h->err = (opipe_error)OPIPE_ERROR_INIT;
  opipe_status status = h->api->order_make(h->context, &params, &order, &h->err);
  if (status != OPIPE_OK) {
    must_refuse(status, &h->err, h->id);
    return;
  }
  ++total.ordered;
  must(h->api->order_info(order, &info, &h->err) == OPIPE_OK, h->err.message);
  must(h->api->order_write(order, OPIPE_FORMAT_JSON, 0, append, &t, &h->err) == OPIPE_OK,
       h->err.message);
  must_read(&t, true, "an order");
  status = h->api->order_lower(order, 0, 0, &lowered, &h->err);
  if (status != OPIPE_OK) /* an order that stands still */
    must_refuse(status, &h->err, NULL);
  /* an order of millions is checked once, so that inputs end in time */
  const uint32_t n_rules = info.n_actions < 1u << 14 ? 6 : 1;
  for (uint32_t rule = 0; lowered != NULL && rule < n_rules; ++rule) {
    status = h->api->order_check(lowered, rule, &h->err);
    if (status != OPIPE_OK)
      must_refuse(status, &h->err, NULL);
  }
  status = h->api->order_simulate(order, NULL, OPIPE_FORMAT_JSON, append, &t, &h->err);
  if (status != OPIPE_OK)
    must_refuse(status, &h->err, NULL);
  else
    must_read(&t, true, "a simulation");
  h->api->order_destroy(lowered);
  h->api->order_destroy(order);
}

/* ---- a plan and one request ---- */

static opipe_status host_load(host *h) {
  static bytes model;
  static const opipe_dim dims[] = {{"n", ROWS}};
  if (model.data == NULL)
    model = write_model();
  const opipe_load_params load = {
      .struct_size = sizeof load, .data = model.data, .n_bytes = model.n};
  const opipe_bind_options bind = {
      .struct_size = sizeof bind, .dims = dims, .n_dims = 1, .dims_stride = sizeof(opipe_dim)};
  opipe_status status = h->api->model_load(h->context, &load, &h->model, &h->err);
  must_say(status == OPIPE_OK, "the model does not load", &h->err);
  return h->api->model_bind(h->model, &bind, &h->bound, &h->err);
}

static opipe_status host_plan(host *h, uint32_t n_microbatches, uint32_t cost) {
  const opipe_device_choice device = {
      .kind = h->backend, .options = h->options, .threads = h->threads};
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = RANKS,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof(opipe_device_choice),
                                    .n_microbatches = n_microbatches,
                                    .schedule = h->schedule,
                                    .transport = h->transport,
                                    .cost = cost};
  text t = {NULL, 0};
  const opipe_status status = h->api->plan_make(h->bound, &params, &h->plan, &h->err);
  if (status == OPIPE_OK) {
    must(h->api->plan_write(h->plan, append, &t, &h->err) == OPIPE_OK, h->err.message);
    must_read(&t, true, "a plan");
    must(h->api->plan_describe(h->plan, OPIPE_FORMAT_TEXT, append, &t, &h->err) == OPIPE_OK,
         h->err.message);
    free(t.data);
    ++total.planned;
  }
  return status;
}

/* One request, all ranks driven by this thread in turn. */
static opipe_status host_run(host *h) {
  static float in[ELEMS];
  static const int64_t shape[] = {ROWS, WIDTH};
  const opipe_session_params session = {.struct_size = sizeof session,
                                        .threads = OPIPE_THREADS_HOST,
                                        .watchdog_ns = 20000000,
                                        .spin_us = 0};
  for (uint32_t i = 0; i < ELEMS; ++i)
    in[i] = (float)i / ELEMS - 0.3f;
  const opipe_binding_io input_io = {.name = "x",
                                     .tensor = {.data = in,
                                                .device_type = OPIPE_DL_CPU,
                                                .rank = 2,
                                                .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                                .shape = shape}};
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = 1,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = &input_io};
  opipe_session_info info = {.struct_size = sizeof info};
  opipe_tensor out = {.data = NULL};
  OPI_TRY(h->api->session_open(h->context, h->plan, &session, &h->session, &h->err));
  must(h->session != NULL, "an open session that is none");
  must(h->api->session_info(h->session, &info, &h->err) == OPIPE_OK, h->err.message);
  for (uint32_t r = 0; r < info.n_ranks; ++r) {
    opipe_memory_info memory = {.struct_size = sizeof memory};
    OPI_TRY(h->api->session_memory(h->session, r, &memory, &h->err));
  }
  OPI_TRY(h->api->session_submit(h->session, &submit, &h->request, &h->err));
  opipe_status status = h->api->request_poll(h->request, &h->err);
  for (uint32_t i = 0; status == OPIPE_PENDING && i < TRIES; ++i) {
    (void)h->api->session_drive(h->session, i % info.n_ranks, i < 64 ? 0 : 1000000, NULL);
    status = h->api->request_poll(h->request, &h->err);
  }
  must(status <= 0, "a request that never ends");
  if (status == OPIPE_OK)
    status = h->api->request_output(h->request, 0, &out, &h->err);
  if (status == OPIPE_OK)
    memcpy(h->out, out.data, sizeof h->out);
  return status;
}

/* The result of the request with the unchanged plugins. */
static const float *wanted(void) {
  static host h;
  if (h.api != NULL)
    return h.out;
  h = (host){
      .id = "gpipe", .backend = "cpu", .schedule = "gpipe", .transport = "local", .threads = 1};
  must_say(host_open(&h, NULL) == OPIPE_OK, "no host", &h.err);
  must_say(host_load(&h) == OPIPE_OK, "no model", &h.err);
  must_say(host_plan(&h, 2, OPIPE_COST_RATES) == OPIPE_OK, "no plan", &h.err);
  must_say(host_run(&h) == OPIPE_OK, "no result", &h.err);
  host_close(&h);
  return h.out;
}

static void host_infer(host *h, uint32_t n_microbatches, uint32_t cost) {
  const float *right = wanted();
  h->err = (opipe_error)OPIPE_ERROR_INIT;
  opipe_status status = host_load(h);
  if (status == OPIPE_OK)
    status = host_plan(h, n_microbatches, cost);
  if (status == OPIPE_OK)
    status = host_run(h);
  if (status != OPIPE_OK) {
    must_refuse(status, &h->err, h->id);
    return;
  }
  ++total.ran;
  must(memcmp(h->out, right, sizeof h->out) == 0, "another result than the unchanged plugins'");
}

#endif /* TESTS_FUZZ_PLUGIN_RUN_H */
