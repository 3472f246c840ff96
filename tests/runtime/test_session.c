/* SPDX-License-Identifier: Apache-2.0 */
/* The rest of a session's contract: misuse is refused with both sides named, limits hold, memory is
 * counted, hosts may drive the ranks, the step loop allocates nothing, and every failing allocation
 * leaves nothing behind. ctest: timeout=120
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "partition/lists/lists.h"
#include "partition/memory/predict.h"
#include "partition/program/assign.h"
#include "partition/program/model.h"
#include "runtime/trace/trace.h"
#include "tests/runtime/toy.h"

/* ---- every allocation of the process is counted ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if !defined(SANITIZED) && defined(__GLIBC__)
#define COUNTS_MALLOC 1
static _Atomic uint64_t n_mallocs;
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n) {
  atomic_fetch_add(&n_mallocs, 1);
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
  atomic_fetch_add(&n_mallocs, 1);
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
  atomic_fetch_add(&n_mallocs, 1);
  return __libc_realloc(p, n);
}
#endif

static const toy_plan three_ranks = {.n_nodes = 12,
                                     .n_stages = 3,
                                     .n_ranks = 3,
                                     .n_microbatches = 2,
                                     .depth = 2,
                                     .rows = 5,
                                     .seq = 2};

static opipe_session_params session_params(void) {
  return (opipe_session_params){
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes), .spin_us = UINT32_MAX};
}

static bool open_toy(toy *t, const toy_plan *plan, const opipe_session_params *params) {
  opipe_error err = OPIPE_ERROR_INIT;
  const bool made =
      opi_test_check_ok(toy_make(t, plan, &OPIPE_PLUGIN_STATIC(transport_local), &err), err.message,
                        "toy_make", __FILE__, __LINE__, false);
  return made && opi_test_check_ok(toy_open(t, params, &err), err.message, "toy_open", __FILE__,
                                   __LINE__, false);
}

static opipe_tensor floats(void *data, const int64_t *shape, int32_t rank) {
  return (opipe_tensor){.data = data,
                        .device_type = OPIPE_DL_CPU,
                        .rank = rank,
                        .dtype = {.code = OPIPE_DL_FLOAT, .bits = 32, .lanes = 1},
                        .shape = shape};
}

/* ---- misuse ---- */

static opipe_status submit_raw(toy *t, const opipe_binding_io *inputs, uint32_t n,
                               const opipe_binding_io *outputs, uint32_t n_outputs,
                               opipe_error *err) {
  opi_request *request = NULL;
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = n,
      .io_stride = sizeof(opipe_binding_io),
      .n_outputs = n_outputs,
      .inputs = inputs,
      .outputs = outputs};
  const opipe_status status = opi_session_submit(t->session, &params, &request, NULL, err);
  opi_request_release(request);
  return status;
}

static void test_wrong_requests_are_refused(void) {
  static float x[5 * 2 * TOY_WIDTH], p[TOY_WIDTH];
  static const int64_t x_shape[3] = {5, 2, TOY_WIDTH}, p_shape[1] = {TOY_WIDTH},
                       bad_shape[3] = {5, 2, 7};
  toy t = {.allocator = NULL};
  const opipe_session_params params = session_params();
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  const opipe_binding_io good[2] = {{.name = "x", .tensor = floats(x, x_shape, 3)},
                                    {.name = "p", .tensor = floats(p, p_shape, 1)}};
  opipe_binding_io io[3] = {good[0], good[1], good[0]};
  OPI_ASSERT_OK(submit_raw(&t, io, 2, NULL, 0, &err), &err);
  OPI_ASSERT_ERROR(submit_raw(&t, io, 1, NULL, 0, &err), OPIPE_E_INVALID, &err, "'p' is missing");
  OPI_ASSERT_ERROR(submit_raw(&t, io, 3, NULL, 0, &err), OPIPE_E_INVALID, &err,
                   "'x' is given twice");
  io[0].name = "z";
  OPI_ASSERT_ERROR(submit_raw(&t, io, 2, NULL, 0, &err), OPIPE_E_NOTFOUND, &err, "no input 'z'");
  io[0] = good[0];
  io[0].tensor.shape = bad_shape;
  OPI_ASSERT_ERROR(submit_raw(&t, io, 2, NULL, 0, &err), OPIPE_E_INVALID, &err, "[5, 2, 7]");
  io[0] = good[0];
  io[0].tensor.dtype.bits = 64;
  OPI_ASSERT_ERROR(submit_raw(&t, io, 2, NULL, 0, &err), OPIPE_E_INVALID, &err, "float64");
  io[0] = good[0];
  io[0].tensor.data = NULL;
  OPI_ASSERT_ERROR(submit_raw(&t, io, 2, NULL, 0, &err), OPIPE_E_INVALID, &err, "no data");
  io[0] = good[0];
  io[0].tensor.device_type = OPIPE_DL_CUDA;
  OPI_ASSERT_ERROR(submit_raw(&t, io, 2, NULL, 0, &err), OPIPE_E_UNSUPPORTED, &err, "type 2");
  io[0] = good[0];
  io[0].ready.kind = OPIPE_FENCE_NATIVE_STREAM;
  OPI_ASSERT_ERROR(submit_raw(&t, io, 2, NULL, 0, &err), OPIPE_E_UNSUPPORTED, &err, "kind 2");
  opipe_binding_io out = {.name = "y", .tensor = floats(x, p_shape, 1)};
  OPI_ASSERT_ERROR(submit_raw(&t, good, 2, &out, 1, &err), OPIPE_E_INVALID, &err, "[5, 2, 8]");
  out.name = "nothing";
  OPI_ASSERT_ERROR(submit_raw(&t, good, 2, &out, 1, &err), OPIPE_E_NOTFOUND, &err,
                   "no output 'nothing'");
  OPI_ASSERT(toy_round(&t, 5, 2, 3, 0));
  OPI_ASSERT_ERROR(opi_session_drive(t.session, 0, 0, &err), OPIPE_E_STATE, &err,
                   "threads of its own");
  toy_end(&t);
}

static void test_wrong_options_are_refused(void) {
  toy t = {.allocator = NULL};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_session_params params = session_params();
  OPI_ASSERT_OK_FATAL(toy_make(&t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), &err),
                      &err);
  params.max_in_flight = (1u << 20) + 1;
  OPI_ASSERT_ERROR(toy_open(&t, &params, &err), OPIPE_E_INVALID, &err, "max_in_flight 1048577");
  t.env.transport_options = "speed=9";
  OPI_ASSERT_ERROR(toy_open(&t, NULL, &err), OPIPE_E_INVALID, &err, "speed=9");
  toy_end(&t);
}

/* ---- limits ---- */

static void test_in_flight_is_limited(void) {
  toy t = {.faults = {.stall_node = "node_h6", .stall_ms = 20}};
  opipe_session_params params = session_params();
  toy_request r[4];
  opipe_error err = OPIPE_ERROR_INIT;
  params.max_in_flight = 3;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT_INT(toy_submit(&t, 5, 2, i, 0, 0, &r[i], &err), i == 3 ? OPIPE_PENDING : OPIPE_OK);
  for (uint32_t i = 0; i < 3; ++i) {
    OPI_ASSERT_OK(opi_request_wait(r[i].request, UINT64_MAX, &err), &err);
    OPI_ASSERT(toy_check(&t, &r[i]));
  }
  toy_release(&r[3]);
  OPI_ASSERT(toy_round(&t, 5, 2, 9, 0)); /* finished ones do not count, released or not */
  for (uint32_t i = 0; i < 3; ++i)
    toy_release(&r[i]);
  toy_end(&t);
}

static void test_shapes_are_cached_and_evicted(void) {
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params();
  opipe_session_info info = {.struct_size = (uint32_t)sizeof info};
  opipe_memory_info before = {.struct_size = (uint32_t)sizeof before}, after = before;
  opipe_error err = OPIPE_ERROR_INIT;
  params.max_shapes = 4; /* one is the plan's own: 5 rows in 3 + 2 */
  if (!open_toy(&t, &three_ranks, &params))
    return;
  OPI_ASSERT_OK(opi_session_memory(t.session, 1, &before, &err), &err);
  for (uint32_t i = 0; i < 5; ++i)
    OPI_ASSERT(toy_round(&t, 5, 2, i, 0));
  OPI_ASSERT_OK(opi_session_info(t.session, &info, &err), &err);
  OPI_ASSERT_INT(info.shapes_compiled, 1);
  OPI_ASSERT_INT(info.requests_done, 5);
  for (uint32_t i = 0; i < 12; ++i)
    OPI_ASSERT(toy_round(&t, 4, 1 + i % 4, i, 0)); /* three places */
  OPI_ASSERT_OK(opi_session_info(t.session, &info, &err), &err);
  OPI_ASSERT_INT(info.shapes_compiled, 1 + 12); /* four take turns */
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT(toy_round(&t, 5, 2, i, 0));
  OPI_ASSERT_OK(opi_session_info(t.session, &info, &err), &err);
  OPI_ASSERT_INT(info.requests_done, 21);
  OPI_ASSERT_OK(opi_session_memory(t.session, 1, &after, &err), &err);
  OPI_ASSERT_INT(after.params_bytes, before.params_bytes);
  toy_end(&t);
}

static void test_memory_cap_refuses_larger_shapes(void) {
  toy_plan plan = three_ranks;
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params();
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  plan.memory_bytes = 64 * 1024;
  if (!open_toy(&t, &plan, &params))
    return;
  OPI_ASSERT(toy_round(&t, 5, 2, 1, 0));
  OPI_ASSERT_ERROR(toy_submit(&t, 50, 60, 1, 0, 0, &r, &err), OPIPE_E_LIMIT, &err, "65536");
  toy_release(&r);
  OPI_ASSERT(toy_round(&t, 5, 2, 1, 0));
  toy_end(&t);
}

static uint64_t total_of(toy *t, uint32_t rank) {
  opipe_memory_info memory = {.struct_size = (uint32_t)sizeof memory};
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK(opi_session_memory(t->session, rank, &memory, &err), &err);
  return memory.total_bytes;
}

static void test_idle_shapes_make_room(void) {
  toy_plan plan = three_ranks;
  opipe_session_params params = session_params();
  uint64_t one = 0, two = UINT64_MAX;
  toy free_toy = {.allocator = NULL}, capped = {.allocator = NULL};
  opipe_session_info info = {.struct_size = (uint32_t)sizeof info};
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&free_toy, &plan, &params))
    return;
  for (uint32_t turn = 0; turn < 2; ++turn) { /* memory of one such shape, and of two */
    OPI_ASSERT(toy_round(&free_toy, 10, 11 - turn, 1, 0));
    for (uint32_t r = 0; r < 3; ++r) {
      const uint64_t total = total_of(&free_toy, r);
      if (turn == 0)
        one = total > one ? total : one;
      else
        two = r == 0 || total > two ? total : two;
    }
  }
  toy_end(&free_toy);
  OPI_ASSERT_FATAL(two > one);
  plan.memory_bytes = one + (two - one) / 2;
  if (!open_toy(&capped, &plan, &params))
    return;
  for (uint32_t i = 0; i < 6; ++i)
    OPI_ASSERT(toy_round(&capped, 10, 11 - i % 2, i, 0));
  OPI_ASSERT(toy_round(&capped, 5, 2, 1, 0));
  OPI_ASSERT_OK(opi_session_info(capped.session, &info, &err), &err);
  OPI_ASSERT_INT(info.shapes_compiled, 1 + 6); /* each had to make room for the other */
  toy_end(&capped);
}

typedef struct submitter {
  toy *t;
  uint32_t seed;
  uint32_t n_wrong;
} submitter;

static void *submit_many(void *arg) {
  submitter *s = arg;
  for (uint32_t i = 0; i < 40; ++i) {
    toy_request r;
    opipe_error err = OPIPE_ERROR_INIT;
    const uint32_t seed = s->seed * 1000 + i;
    opipe_status status = toy_submit(s->t, 1 + seed % 6, 1 + seed % 4, seed, 0, 0, &r, &err);
    while (status == OPIPE_PENDING) {
      toy_release(&r);
      (void)sched_yield();
      status = toy_submit(s->t, 1 + seed % 6, 1 + seed % 4, seed, 0, 0, &r, &err);
    }
    if (status == OPIPE_OK)
      status = opi_request_wait(r.request, UINT64_MAX, &err);
    if (status < 0)
      printf("request %u: %s\n", seed, err.message);
    s->n_wrong += status != OPIPE_OK || !toy_check(s->t, &r);
    toy_release(&r);
  }
  return NULL;
}

static void test_many_threads_submit_many_shapes(void) {
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params();
  pthread_t threads[3];
  submitter s[3];
  params.max_shapes = 5;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  for (uint32_t i = 0; i < 3; ++i) {
    s[i] = (submitter){.t = &t, .seed = i};
    OPI_ASSERT_FATAL(pthread_create(&threads[i], NULL, submit_many, &s[i]) == 0);
  }
  for (uint32_t i = 0; i < 3; ++i) {
    (void)pthread_join(threads[i], NULL);
    OPI_ASSERT_INT(s[i].n_wrong, 0);
  }
  toy_end(&t);
}

static void test_sessions_share_the_budget(void) {
  opi_budget *budget = NULL;
  uint64_t charged = 0, one = 0, cap = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = session_params();
  OPI_ASSERT_OK_FATAL(opi_budget_create(opi_allocator_system(), &budget, &err), &err);
  toy a = {.env = {.budget = budget}}, b = {.env = {.budget = budget}};
  if (!open_toy(&a, &three_ranks, &params))
    return;
  opi_budget_state(budget, "toy", 1, &one, &cap);
  OPI_ASSERT(one > 0 && cap == UINT64_MAX);
  opipe_memory_info memory = {.struct_size = (uint32_t)sizeof memory};
  OPI_ASSERT_OK(opi_session_memory(a.session, 1, &memory, &err), &err);
  OPI_ASSERT_INT(one, memory.total_bytes);
  OPI_ASSERT_OK(opi_budget_cap(budget, "toy", 1, one + one / 2, &err), &err);
  OPI_ASSERT_OK(toy_make(&b, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  OPI_ASSERT_ERROR(toy_open(&b, &params, &err), OPIPE_E_LIMIT, &err, "toy:1");
  opi_budget_state(budget, "toy", 1, &charged, &cap);
  OPI_ASSERT_INT(charged, one);
  OPI_ASSERT_OK(opi_budget_cap(budget, "toy", 1, 2 * one, &err), &err);
  OPI_ASSERT_OK(toy_open(&b, &params, &err), &err);
  opi_budget_state(budget, "toy", 1, &charged, &cap);
  OPI_ASSERT_INT(charged, 2 * one);
  toy_end(&a);
  toy_end(&b);
  opi_budget_state(budget, "toy", 1, &charged, &cap);
  OPI_ASSERT_INT(charged, 0);
  opi_budget_free(budget);
}

/* ---- predicted = measured ---- */

static void test_measured_memory_is_the_prediction(void) {
  toy t = {.allocator = NULL};
  opi_memory predicted[3];
  opi_rank_device devices[3];
  const uint32_t alignment[3] = {64, 64, 64};
  const opipe_session_params params = session_params();
  opi_cut_model *model = NULL;
  opi_lists *lists = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  const opi_bind_options base = {.allocator = t.allocator};
  const opi_cut_sources from = {.plan = &t.plan->decided,
                                .times = &t.plan->predicted.times,
                                .file = &t.model,
                                .base = &base,
                                .bind = t.env.source.bind};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &model, &err), &err);
  OPI_ASSERT_INT(model->n_classes, 2);
  OPI_ASSERT_OK_FATAL(opi_piece_plan_build(&t.plan->decided, model, &err), &err);
  OPI_ASSERT_OK_FATAL(opi_lists_build(model, alignment, false, t.allocator, &lists, &err), &err);
  for (uint32_t r = 0; r < 3; ++r) {
    const opipe_device_params open = {
        .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options), .index = r};
    devices[r] = (opi_rank_device){.backend = &t.backends[r], .alignment = alignment[r]};
    OPI_ASSERT_OK_FATAL(
        toy_backend.device_open(t.backends[r].self, &open, &devices[r].device, &err), &err);
  }
  OPI_ASSERT_OK(opi_memory_predict(&t.plan->decided, t.plan->predicted.n_streams, model, lists, NULL, 0,
                                   devices, 0, predicted, NULL, &err),
                &err);
  for (uint32_t r = 0; r < 3; ++r) {
    opipe_memory_info found = {.struct_size = (uint32_t)sizeof found};
    OPI_ASSERT_OK(opi_session_memory(t.session, r, &found, &err), &err);
    OPI_ASSERT_INT(found.params_bytes, predicted[r].params_bytes);
    OPI_ASSERT_INT(found.activation_bytes, predicted[r].activation_bytes);
    OPI_ASSERT_INT(found.workspace_bytes, predicted[r].workspace_bytes);
    OPI_ASSERT_INT(found.boundary_bytes, predicted[r].boundary_bytes);
    OPI_ASSERT_INT(found.total_bytes, predicted[r].total_bytes);
    toy_backend.device_close(devices[r].device);
  }
  opi_lists_free(lists);
  opi_cut_model_free(model);
  toy_end(&t);
}

/* ---- hosts that drive ---- */

static void test_one_thread_drives_all_ranks(void) {
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params();
  toy_request r[5];
  opipe_error err = OPIPE_ERROR_INIT;
  params.threads = OPIPE_THREADS_HOST;
  params.max_in_flight = 5;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  OPI_ASSERT_INT(opi_session_drive(t.session, 0, 0, &err), OPIPE_PENDING); /* nothing to do */
  OPI_ASSERT_ERROR(opi_session_drive(t.session, 3, 0, &err), OPIPE_E_INVALID, &err, "rank 3 of 3");
  for (uint32_t i = 0; i < 5; ++i)
    OPI_ASSERT_OK(toy_submit(&t, 5, 2, i, 0, 0, &r[i], &err), &err);
  OPI_ASSERT_INT(opi_session_drive(t.session, 2, 0, &err), OPIPE_OK);      /* its receives */
  OPI_ASSERT_INT(opi_session_drive(t.session, 2, 0, &err), OPIPE_PENDING); /* waits for rank 1 */
  OPI_ASSERT_INT(opi_request_poll(r[0].request, &err), OPIPE_PENDING);
  for (uint32_t turn = 0; turn < 100 && opi_request_poll(r[4].request, &err) == OPIPE_PENDING;
       ++turn) {
    for (uint32_t rank = 0; rank < 3; ++rank)
      OPI_ASSERT(opi_session_drive(t.session, rank, 0, &err) >= 0);
  }
  for (uint32_t i = 0; i < 5; ++i) {
    OPI_ASSERT_OK(opi_request_poll(r[i].request, &err), &err);
    OPI_ASSERT(toy_check(&t, &r[i]));
    toy_release(&r[i]);
  }
  toy_end(&t);
}

/* ---- traces ---- */

static uint32_t count_boxes(const opi_test_text *trace, const char *what) {
  uint32_t n = 0;
  for (const char *at = trace->data; at != NULL && (at = strstr(at, what)) != NULL; ++at)
    ++n;
  return n;
}

/* Before any request and while one is unfinished there is nothing to show; then one box for every
 * program of the last request that had rows, as it ran and as it was planned. The toy's devices
 * finish later and tell no time of theirs: the host's is taken, and that is said. */
static void test_the_last_request_is_traced(void) {
  toy t = {.faults = {.device_flags = OPIPE_DEVICE_HOST_MEMORY}};
  opipe_session_params params = session_params();
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_test_text trace = {NULL, 0};
  params.threads = OPIPE_THREADS_HOST;
  params.flags |= OPIPE_SESSION_TRACE;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  OPI_ASSERT_ERROR(
      opi_session_trace(t.session, OPIPE_TRACE_CHROME, NULL, opi_test_take, &trace, &err),
      OPIPE_E_STATE, &err, "no request has been computed");
  static const uint32_t requests[] = {5, 1}; /* rows; the second leaves a micro-batch out */
  for (uint32_t i = 0; i < OPI_COUNT(requests); ++i) {
    const uint32_t rows = requests[i];
    OPI_ASSERT_OK(toy_submit(&t, rows, 2, rows, 0, 0, &r, &err), &err);
    OPI_ASSERT_ERROR(
        opi_session_trace(t.session, OPIPE_TRACE_CHROME, NULL, opi_test_take, &trace, &err),
        OPIPE_E_STATE, &err, "1 are unfinished");
    for (uint32_t k = 0; k < 300 && opi_request_poll(r.request, &err) == OPIPE_PENDING; ++k)
      OPI_ASSERT(opi_session_drive(t.session, k % 3, 0, &err) >= 0);
    OPI_ASSERT(toy_check(&t, &r));
    toy_release(&r);
    trace = (opi_test_text){NULL, 0};
    OPI_ASSERT_OK(
        opi_session_trace(t.session, OPIPE_TRACE_CHROME, NULL, opi_test_take, &trace, &err), &err);
    const uint32_t n_rows =
        rows < t.plan->decided.n_microbatches ? rows : t.plan->decided.n_microbatches;
    OPI_ASSERT_INT(count_boxes(&trace, "\"ph\": \"X\", \"pid\": 1"),
                   t.plan->decided.n_stages * n_rows);
    OPI_ASSERT_INT(count_boxes(&trace, "\"ph\": \"X\", \"pid\": 0"),
                   t.plan->decided.n_stages * n_rows);
    OPI_ASSERT_INT(count_boxes(&trace, "\"clock\": \"host\""), t.plan->decided.n_ranks);
    free(trace.data);
    trace = (opi_test_text){NULL, 0};
  }
  OPI_ASSERT_OK(opi_session_trace(t.session, OPIPE_TRACE_SVG, NULL, opi_test_take, &trace, &err),
                &err);
  OPI_ASSERT(trace.data != NULL && strstr(trace.data, "<svg") != NULL);
  free(trace.data);
  toy_end(&t);
}

typedef struct driver {
  toy *t;
  uint32_t rank;
  _Atomic uint32_t *stop;
  opipe_status status;
} driver;

static void *drive_rank(void *arg) {
  driver *d = arg;
  while (atomic_load(d->stop) == 0 && d->status >= 0)
    d->status = opi_session_drive(d->t->session, d->rank, 1000000, NULL);
  return NULL;
}

static void test_host_threads_drive(void) {
  toy t = {.allocator = NULL};
  opipe_session_params params = session_params();
  _Atomic uint32_t stop = 0;
  driver d[3];
  pthread_t threads[3];
  params.threads = OPIPE_THREADS_HOST;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  for (uint32_t r = 0; r < 3; ++r) {
    d[r] = (driver){.t = &t, .rank = r, .stop = &stop};
    OPI_ASSERT_FATAL(pthread_create(&threads[r], NULL, drive_rank, &d[r]) == 0);
  }
  for (uint32_t i = 0; i < 10; ++i)
    OPI_ASSERT(toy_round(&t, 5, 2, i, 0));
  atomic_store(&stop, 1);
  for (uint32_t r = 0; r < 3; ++r) {
    (void)pthread_join(threads[r], NULL);
    OPI_ASSERT(d[r].status >= 0);
  }
  toy_end(&t);
}

/* ---- fences, pinned inputs ---- */

static void test_host_flags_hold_a_request_back(void) {
  static float x[5 * 2 * TOY_WIDTH], p[TOY_WIDTH];
  static const int64_t x_shape[3] = {5, 2, TOY_WIDTH}, p_shape[1] = {TOY_WIDTH};
  uint32_t ready = 0, done = 0;
  toy t = {.allocator = NULL};
  const opipe_session_params params = session_params();
  opi_request *request = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  const opipe_binding_io io[2] = {{.name = "x",
                                   .tensor = floats(x, x_shape, 3),
                                   .ready = {.kind = OPIPE_FENCE_HOST_FLAG, .handle = &ready},
                                   .done = {.kind = OPIPE_FENCE_HOST_FLAG, .handle = &done}},
                                  {.name = "p", .tensor = floats(p, p_shape, 1)}};
  const opipe_submit_params submit = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = 2,
      .io_stride = sizeof(opipe_binding_io),
      .inputs = io};
  OPI_ASSERT_OK_FATAL(opi_session_submit(t.session, &submit, &request, NULL, &err), &err);
  OPI_ASSERT_ERROR(opi_request_wait(request, 5000000, &err), OPIPE_E_TIMEOUT, &err, "not finished");
  OPI_ASSERT_INT(__atomic_load_n(&done, __ATOMIC_ACQUIRE), 0);
  __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
  OPI_ASSERT_OK(opi_request_wait(request, UINT64_MAX, &err), &err);
  OPI_ASSERT_INT(__atomic_load_n(&done, __ATOMIC_ACQUIRE), 1);
  opi_request_release(request);
  toy_end(&t);
}

static void test_needed_values_are_part_of_the_shape(void) {
  toy t = {.needs_value = true};
  const opipe_session_params params = session_params();
  opipe_session_info info = {.struct_size = (uint32_t)sizeof info};
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  for (uint32_t i = 0; i < 12; ++i)
    OPI_ASSERT(toy_round(&t, 5, 2, i % 3, 0)); /* p differs with the seed */
  OPI_ASSERT_OK(opi_session_info(t.session, &info, &err), &err);
  OPI_ASSERT_INT(info.shapes_compiled, 1 + 3);
  toy_end(&t);
}

/* ---- allocations ---- */

static void test_the_step_loop_allocates_nothing(void) {
#ifndef COUNTS_MALLOC
  OPI_SKIP("the sanitizer has malloc to itself");
#else
  toy t = {.allocator = NULL};
  const opipe_session_params params = session_params();
  toy_request r[2];
  opipe_error err = OPIPE_ERROR_INIT;
  if (!open_toy(&t, &three_ranks, &params))
    return;
  for (uint32_t i = 0; i < 10; ++i)
    OPI_ASSERT(toy_round(&t, i % 2 == 0 ? 5 : 3, 2, i, 0));
  for (uint32_t i = 0; i < 50; ++i) {
    OPI_ASSERT_OK(toy_submit(&t, 5, 2, i, 0, 0, &r[0], &err),
                  &err); /* the test's own buffers: before counting */
    OPI_ASSERT_OK(opi_request_wait(r[0].request, UINT64_MAX, &err), &err);
    const int64_t shape_p[1] = {TOY_WIDTH};
    const opipe_binding_io io[2] = {{.name = "x", .tensor = floats(r[0].x, r[0].shape_x, 3)},
                                    {.name = "p", .tensor = floats(r[0].p, shape_p, 1)}};
    const opipe_submit_params submit = {
        .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
        .n_inputs = 2,
        .io_stride = sizeof(opipe_binding_io),
        .inputs = io};
    const uint64_t before = atomic_load(&n_mallocs);
    opi_request *request = NULL;
    const opipe_status status = opi_session_submit(t.session, &submit, &request, NULL, &err);
    if (status == OPIPE_OK)
      (void)opi_request_wait(request, UINT64_MAX, &err);
    opi_request_release(request);
    const uint64_t after = atomic_load(&n_mallocs);
    toy_release(&r[0]);
    OPI_ASSERT_OK(status, &err);
    if (i >= 2) {
      OPI_ASSERT_INT(after - before,
                     0); /* the first use of a pool entry makes its results' memory */
    }
  }
  toy_end(&t);
#endif
}

static opipe_status open_and_run(opi_test_memory *memory, void *arg) {
  toy t = {.allocator = &memory->allocator};
  const opipe_session_params *params = arg;
  toy_request r = {.request = NULL};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = toy_make(&t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), &err);
  if (status == OPIPE_OK)
    status = toy_open(&t, params, &err);
  if (status == OPIPE_OK)
    status = toy_submit(&t, 4, 1, 1, 0, 0, &r, &err); /* a shape of its own */
  if (status == OPIPE_OK)
    status = opi_request_wait(r.request, UINT64_MAX, &err);
  toy_release(&r);
  toy_end(&t);
  return status;
}

static void test_every_failing_allocation_is_survived(void) {
  opipe_session_params params = session_params();
  const uint64_t n = opi_test_every_allocation(open_and_run, &params, 3000);
  OPI_ASSERT(n > 100 && n < 3000);
  params.flags = OPIPE_SESSION_REFERENCE;
  OPI_ASSERT(opi_test_every_allocation(open_and_run, &params, 3000) > 100);
}

OPI_TEST_MAIN("session", OPI_TEST(test_wrong_requests_are_refused),
              OPI_TEST(test_wrong_options_are_refused), OPI_TEST(test_in_flight_is_limited),
              OPI_TEST(test_shapes_are_cached_and_evicted),
              OPI_TEST(test_memory_cap_refuses_larger_shapes), OPI_TEST(test_idle_shapes_make_room),
              OPI_TEST(test_many_threads_submit_many_shapes),
              OPI_TEST(test_sessions_share_the_budget),
              OPI_TEST(test_measured_memory_is_the_prediction),
              OPI_TEST(test_one_thread_drives_all_ranks), OPI_TEST(test_host_threads_drive),
              OPI_TEST(test_the_last_request_is_traced),
              OPI_TEST(test_host_flags_hold_a_request_back),
              OPI_TEST(test_needed_values_are_part_of_the_shape),
              OPI_TEST(test_the_step_loop_allocates_nothing),
              OPI_TEST(test_every_failing_allocation_is_survived))
