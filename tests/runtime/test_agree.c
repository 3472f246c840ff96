/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks compare their plans: over both transports, on synchronous and on queued devices, all ranks
 * from one thread and every rank from one of its own (as processes would). Whoever differs is named
 * with its neighbour, and nobody goes on. ctest: timeout=120
 */
#include <pthread.h>

#include "runtime/session/agree.h"
#include "tests/runtime/toy.h"

enum { RANKS = 4 };

typedef struct world {
  toy t;
  opipe_world *world;
  opi_agree_rank ranks[RANKS];
  uint32_t n;
} world;

static opipe_error err = OPIPE_ERROR_INIT;

static void open_world(world *w, const opipe_plugin *plugin, const char *options, uint32_t n,
                       uint32_t device_flags) {
  static const toy_plan shape = {.n_nodes = 4,
                                 .n_stages = 4,
                                 .n_ranks = 4,
                                 .n_microbatches = 1,
                                 .depth = 1,
                                 .rows = 1,
                                 .seq = 1};
  memset(w, 0, sizeof *w);
  w->n = n;
  w->t.faults.device_flags = device_flags;
  OPI_ASSERT_OK_FATAL(toy_make(&w->t, &shape, plugin, &err), &err);
  const opipe_transport *via = w->t.env.transport.table;
  const opipe_world_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_world_params, options),
      .n_ranks = n,
      .options = options};
  OPI_ASSERT_OK_FATAL(via->world_open(w->t.transport_self, &params, &w->world, &err), &err);
  for (uint32_t r = 0; r < n; ++r) {
    opi_agree_rank *rank = &w->ranks[r];
    const opipe_device_params device = {.struct_size =
                                            (uint32_t)OPIPE_END(opipe_device_params, options)};
    *rank = (opi_agree_rank){
        .backend = &w->t.backends[0], .plan = {7, 0x1234}, .index = r, .alignment = 64};
    OPI_ASSERT_OK_FATAL(
        toy_backend.device_open(w->t.backends[0].self, &device, &rank->device, &err), &err);
    OPI_ASSERT_OK_FATAL(toy_backend.queue_open(rank->device, &rank->queue, &err), &err);
    if ((device_flags & OPIPE_DEVICE_SYNCHRONOUS) == 0)
      OPI_ASSERT_OK_FATAL(toy_backend.event_create(rank->device, &rank->event, &err), &err);
    const opipe_endpoint_params end = {
        .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
        .rank = r,
        .backend = rank->backend->table,
        .device = rank->device,
        .queue = rank->queue};
    OPI_ASSERT_OK_FATAL(via->endpoint_open(w->world, &end, &rank->endpoint, &err), &err);
  }
}

static void close_world(world *w) {
  const opipe_transport *via = w->t.env.transport.table;
  for (uint32_t r = 0; r < w->n; ++r)
    via->endpoint_close(w->ranks[r].endpoint);
  via->world_close(w->world);
  for (uint32_t r = 0; r < w->n; ++r) {
    toy_backend.event_destroy(w->ranks[r].event);
    toy_backend.queue_close(w->ranks[r].queue);
    toy_backend.device_close(w->ranks[r].device);
  }
  toy_end(&w->t);
}

static opi_agree_params params_of(const world *w, uint32_t first, uint32_t n) {
  return (opi_agree_params){.transport = &w->t.env.transport,
                            .world = w->world,
                            .ranks = &w->ranks[first],
                            .n_ranks_here = n,
                            .n_ranks = w->n,
                            .timeout_ns = UINT64_C(5000000000),
                            .allocator = opi_allocator_system()};
}

/* ---- every rank from a thread of its own ---- */

typedef struct caller {
  const world *w;
  uint32_t rank;
  opipe_status status;
  opipe_error err;
  pthread_t thread;
} caller;

static void *call(void *arg) {
  caller *c = arg;
  const opi_agree_params params = params_of(c->w, c->rank, 1);
  c->err = (opipe_error)OPIPE_ERROR_INIT;
  c->status = opi_agree(&params, &c->err);
  return NULL;
}

static void call_apart(const world *w, caller *callers) {
  for (uint32_t r = 0; r < w->n; ++r) {
    callers[r] = (caller){.w = w, .rank = r};
    OPI_ASSERT_FATAL(pthread_create(&callers[r].thread, NULL, call, &callers[r]) == 0);
  }
  for (uint32_t r = 0; r < w->n; ++r)
    OPI_ASSERT_FATAL(pthread_join(callers[r].thread, NULL) == 0);
}

/* ---- */

static const struct {
  const opipe_plugin *plugin;
  const char *options;
} transports[] = {{&OPIPE_PLUGIN_STATIC(transport_local), NULL},
                  {&OPIPE_PLUGIN_STATIC(transport_emulated), NULL},
                  {&OPIPE_PLUGIN_STATIC(transport_emulated), "rule=stream,latency_us=300"}};
static const uint32_t devices[] = {OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS,
                                   OPIPE_DEVICE_HOST_MEMORY};

static void test_equal_plans_agree(void) {
  for (size_t i = 0; i < 3 * 2 * RANKS; ++i) {
    const size_t t = i % 3, d = i / 3 % 2;
    const uint32_t n = (uint32_t)(i / 6) + 1;
    caller callers[RANKS];
    world w;
    open_world(&w, transports[t].plugin, transports[t].options, n, devices[d]);
    const opi_agree_params params = params_of(&w, 0, n);
    OPI_ASSERT_OK(opi_agree(&params, &err), &err);
    OPI_ASSERT_OK(opi_agree(&params, &err), &err); /* nothing is left of the first time */
    call_apart(&w, callers);
    for (uint32_t r = 0; r < n; ++r)
      OPI_ASSERT_OK(callers[r].status, &callers[r].err);
    close_world(&w);
  }
}

static void test_another_plan_is_named(void) {
  for (size_t i = 0; i < 3 * 2 * RANKS; ++i) {
    const size_t t = i % 3, d = i / 3 % 2;
    const uint32_t odd = (uint32_t)(i / 6);
    caller callers[RANKS];
    world w;
    char wanted[96];
    open_world(&w, transports[t].plugin, transports[t].options, RANKS, devices[d]);
    w.ranks[odd].plan[1] = 0x1235;
    const opi_agree_params params = params_of(&w, 0, RANKS);
    const char *const other = "plan 00000000000000070000000000001235";
    (void)snprintf(wanted, sizeof wanted, odd == RANKS - 1 ? "rank %u %s" : "rank %u holds %s", odd,
                   other); /* rank 0 looks first, at the last one's */
    OPI_ASSERT_ERROR(opi_agree(&params, &err), OPIPE_E_INVALID, &err, wanted);
    close_world(&w);
    open_world(&w, transports[t].plugin, transports[t].options, RANKS, devices[d]);
    w.ranks[odd].plan[1] = 0x1235;
    call_apart(&w, callers);
    uint32_t told = 0;
    for (uint32_t r = 0; r < RANKS; ++r) { /* others may have been done, or hear of the abort */
      told += callers[r].status == OPIPE_E_INVALID;
      OPI_ASSERT(callers[r].status >= 0 || strstr(callers[r].err.message, other) != NULL);
    }
    OPI_ASSERT(told >= 1);
    close_world(&w);
  }
}

/* The same plan with another table of measured kernels, or without one: other bits, silently. */
static void test_another_table_of_kernels_is_named(void) {
  for (size_t i = 0; i < 2 * 2 * 2; ++i) {
    const size_t t = i % 2, d = i / 2 % 2;
    const bool has_none = i / 4 == 1;
    caller callers[RANKS];
    world w;
    char wanted[160];
    open_world(&w, transports[t].plugin, transports[t].options, RANKS, devices[d]);
    for (uint32_t r = 0; r < RANKS; ++r) {
      w.ranks[r].kernels[0] = 9;
      w.ranks[r].kernels[1] = 0xabcd;
    }
    const opi_agree_params params = params_of(&w, 0, RANKS);
    OPI_ASSERT_OK(opi_agree(&params, &err), &err);
    w.ranks[2].kernels[0] = has_none ? 0 : 9;
    w.ranks[2].kernels[1] = has_none ? 0 : 0xabce;
    (void)snprintf(wanted, sizeof wanted,
                   "the plan of rank 2 has kernels 000000000000000%c%016x, that of rank 1 "
                   "0000000000000009000000000000abcd (0: none)",
                   has_none ? '0' : '9', has_none ? 0u : 0xabceu);
    OPI_ASSERT_ERROR(opi_agree(&params, &err), OPIPE_E_INVALID, &err, wanted);
    close_world(&w);
    open_world(&w, transports[t].plugin, transports[t].options, RANKS, devices[d]);
    w.ranks[2].kernels[1] = 0xabce;
    call_apart(&w, callers);
    uint32_t told = 0;
    for (uint32_t r = 0; r < RANKS; ++r) {
      told += callers[r].status == OPIPE_E_INVALID &&
              strstr(callers[r].err.message, "all ranks of a run need the same ones") != NULL;
    }
    OPI_ASSERT(told >= 1);
    close_world(&w);
  }
}

static void test_a_silent_rank_is_named(void) {
  world w;
  open_world(&w, &OPIPE_PLUGIN_STATIC(transport_emulated), "lose=1:2:0", 3, devices[0]);
  opi_agree_params params = params_of(&w, 0, 3);
  params.timeout_ns = 50000000;
  OPI_ASSERT_ERROR(opi_agree(&params, &err), OPIPE_E_TIMEOUT, &err,
                   "rank 2 has not heard within 50 ms which plan rank 1 holds");
  close_world(&w);
}

static opipe_status read_nothing(opipe_queue *queue, void *dst, const opipe_region *src,
                                 opipe_error *e) {
  (void)queue;
  (void)dst;
  (void)src;
  (void)e;
  return OPIPE_PENDING;
}

/* No plan is taken for another one where the backend never read it. */
static void test_a_backend_that_reads_nothing_is_named(void) {
  world w;
  opipe_backend table = toy_backend;
  table.read = read_nothing;
  const opi_backend_ref backend = {.table = &table, .id = "toy"};
  open_world(&w, &OPIPE_PLUGIN_STATIC(transport_local), NULL, 2, devices[0]);
  const opi_backend_ref *right = w.ranks[1].backend;
  w.ranks[1].backend = &backend;
  const opi_agree_params params = params_of(&w, 0, 2);
  OPI_ASSERT_ERROR(opi_agree(&params, &err), OPIPE_E_DEVICE, &err,
                   "backend 'toy': read answered 1");
  w.ranks[1].backend = right;
  close_world(&w);
}

OPI_TEST_MAIN("agree", OPI_TEST(test_equal_plans_agree), OPI_TEST(test_another_plan_is_named),
              OPI_TEST(test_another_table_of_kernels_is_named),
              OPI_TEST(test_a_silent_rank_is_named),
              OPI_TEST(test_a_backend_that_reads_nothing_is_named))
