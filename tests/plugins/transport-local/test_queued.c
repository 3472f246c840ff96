/* SPDX-License-Identifier: Apache-2.0 */
/* transport-local among ranks of one device without host addresses: once every member's collect has
 * answered OK, `done` is recorded and the values are there, and nobody has asked for them; on two
 * devices, and without the backend's `sum`, they go through host memory. ctest: timeout=60
 */
#define OPIPE_HELPERS_HOST_DEVICE
#include <opipe/collect.h>
#include <opipe/helpers.h>
#include <stdlib.h>

#include "tests/support/support.h"

enum { RANKS = 3, VALUES = 90, REGIONS = 3, ROOM = 8192 };
extern const opipe_plugin OPIPE_PLUGIN_STATIC(transport_local);

/* ---- a device that only its queues reach ---- */

static uint64_t device_number[RANKS]; /* of the rank's opening */
static opipe_device *devices[RANKS];
static uint32_t n_sums, n_reads, n_records;

static opipe_status no_host(opipe_buffer *buffer, void **out_data, opipe_error *err) {
  (void)buffer, (void)out_data;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "only queues reach the device's memory");
}

static opipe_status native(opipe_device *device, uint32_t what, const void *object,
                           uint64_t *out_native, opipe_error *err) {
  (void)err;
  *out_native = 2;
  for (uint32_t r = 0; r < RANKS && what == OPIPE_NATIVE_DEVICE; ++r) {
    if (devices[r] == device)
      *out_native = device_number[r];
  }
  if (what == OPIPE_NATIVE_BUFFER)
    *out_native = (uint64_t)(uintptr_t)((const opipe_buffer *)object)->data;
  return OPIPE_OK;
}

static opipe_status sum(opipe_queue *queue, uint32_t dtype, const opipe_region *dst,
                        const opipe_region *src, uint32_t n, opipe_error *err) {
  const uint64_t size = opipe_sum_size(dtype), n_values = dst->n_bytes / size;
  opipe_sum all;
  (void)queue, (void)err;
  ++n_sums;
  for (uint32_t m = 0; m < n; ++m) {
    OPI_ASSERT(src[m].buffer->device == queue->device); /* borrowed where it is another's */
    opipe_sum_add(&all, dtype, opipe_host_at(&src[m]), 0, n_values, m == 0);
  }
  opipe_sum_round(&all, dtype, opipe_host_at(dst), n_values);
  return OPIPE_OK;
}

static opipe_status counted_read(opipe_queue *queue, void *dst, const opipe_region *src,
                                 opipe_error *err) {
  ++n_reads;
  return opipe_host_read(queue, dst, src, err);
}

static opipe_status counted_record(opipe_queue *queue, opipe_event *event, opipe_error *err) {
  ++n_records;
  return opipe_host_event_record(queue, event, err);
}

static const opipe_backend far_backend = {.struct_size = (uint32_t)sizeof far_backend,
                                          .buffer_alloc = opipe_host_buffer_alloc,
                                          .buffer_free = opipe_host_buffer_free,
                                          .buffer_host = no_host,
                                          .buffer_import = opipe_host_buffer_import,
                                          .native = native,
                                          .event_create = opipe_host_event_create,
                                          .event_destroy = opipe_host_event_destroy,
                                          .event_record = counted_record,
                                          .event_wait = opipe_host_event_wait,
                                          .event_poll = opipe_host_event_poll,
                                          .event_sync = opipe_host_event_sync,
                                          .write = opipe_host_write,
                                          .read = counted_read,
                                          .copy = opipe_host_copy,
                                          .sum = sum};

/* ---- three ranks ---- */

static void *reallocate(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes, size_t align) {
  void *fresh = NULL;
  (void)ctx;
  if (new_bytes != 0 && posix_memalign(&fresh, align < 16 ? 16 : align, new_bytes) != 0)
    return NULL;
  if (fresh != NULL && ptr != NULL)
    memcpy(fresh, ptr, old_bytes < new_bytes ? old_bytes : new_bytes);
  if (new_bytes == 0 || fresh != NULL)
    free(ptr);
  return fresh;
}

static const opipe_host host = {
    .struct_size = sizeof host, .abi_major = OPIPE_ABI_MAJOR, .realloc = reallocate};

typedef struct place {
  const opipe_transport *t;
  opipe_instance *self;
  opipe_world *world;
  opipe_backend backend;
  opipe_queue *queues[RANKS];
  opipe_endpoint *ends[RANKS];
  opipe_buffer *buffers[RANKS];
  opipe_memory *memories[RANKS];
  opipe_event *done[RANKS];
  opipe_collective *members[RANKS];
  opipe_region lists[RANKS][2][REGIONS];
  opipe_error err;
} place;

static void open_rank(place *p, uint32_t r) {
  static const uint32_t ranks[RANKS] = {1, 0, 2};
  static const opipe_device_params device = {.struct_size =
                                                 (uint32_t)OPIPE_END(opipe_device_params, options)};
  const opipe_collective_params group = {
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, n_regions),
      .n_ranks = RANKS,
      .ranks = ranks,
      .id = 3,
      .n_bytes = VALUES * sizeof(float),
      .n_regions = REGIONS};
  OPI_ASSERT_OK_FATAL(opipe_host_device_open(&host, &device, &devices[r], &p->err), &p->err);
  OPI_ASSERT_OK_FATAL(opipe_host_queue_open(devices[r], &p->queues[r], &p->err), &p->err);
  OPI_ASSERT_OK_FATAL(opipe_host_event_create(devices[r], &p->done[r], &p->err), &p->err);
  OPI_ASSERT_OK_FATAL(
      opipe_host_buffer_alloc(devices[r], ROOM, OPIPE_BUFFER_BOUNDARY, &p->buffers[r], &p->err),
      &p->err);
  const opipe_endpoint_params end = {
      .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved),
      .rank = r,
      .backend = &p->backend,
      .device = devices[r],
      .queue = p->queues[r]};
  OPI_ASSERT_OK_FATAL(p->t->endpoint_open(p->world, &end, &p->ends[r], &p->err), &p->err);
  OPI_ASSERT_OK_FATAL(
      p->t->memory_register(p->ends[r], p->buffers[r], ROOM, &p->memories[r], &p->err), &p->err);
  OPI_ASSERT_OK_FATAL(p->t->collective_open(p->ends[r], &group, &p->members[r], &p->err), &p->err);
}

static void setup(place *p, bool one_device, bool sums) {
  static const opipe_world_params world = {
      .struct_size = (uint32_t)OPIPE_END(opipe_world_params, options), .n_ranks = RANKS};
  const opipe_plugin *plugin = &OPIPE_PLUGIN_STATIC(transport_local);
  memset(p, 0, sizeof *p);
  p->backend = far_backend;
  p->backend.sum = sums ? sum : NULL;
  n_sums = n_reads = n_records = 0;
  OPI_ASSERT_OK_FATAL(plugin->open(&host, &p->self, &p->err), &p->err);
  p->t = plugin->get_interface(p->self, OPIPE_TRANSPORT_ID);
  OPI_ASSERT_OK_FATAL(p->t->world_open(p->self, &world, &p->world, &p->err), &p->err);
  for (uint32_t r = 0; r < RANKS; ++r) {
    device_number[r] = one_device ? 7 : r;
    open_rank(p, r);
  }
}

static void teardown(place *p) {
  for (uint32_t r = 0; r < RANKS; ++r)
    p->t->collective_close(p->members[r]);
  for (uint32_t r = 0; r < RANKS; ++r) {
    p->t->memory_drop(p->memories[r]);
    p->t->endpoint_close(p->ends[r]);
    opipe_host_buffer_free(p->buffers[r]);
    opipe_host_event_destroy(p->done[r]);
    opipe_host_queue_close(p->queues[r]);
    opipe_host_device_close(devices[r]);
  }
  p->t->world_close(p->world);
  OPIPE_PLUGIN_STATIC(transport_local).close(p->self);
}

/* ---- meetings ---- */

static const uint64_t parts[RANKS] = {30, 0, 60};

/* Rank r's value i; its member is 1 - r for ranks 0 and 1. */
static float value_of(uint32_t r, uint64_t i) {
  return (float)(1000 * r + i);
}

static uint32_t member_of(uint32_t r) {
  return r < 2 ? 1 - r : r;
}

static float *at(const place *p, uint32_t r, uint64_t offset) {
  const opipe_region region = {p->buffers[r], offset, 0};
  return opipe_host_at(&region);
}

/* `from` in two pieces or one, `to` in one, apart from it. */
static opipe_collect collect_of(place *p, uint32_t r, uint32_t kind) {
  const uint64_t own = parts[member_of(r)];
  const uint64_t from = kind == OPIPE_COLLECT_ALL_GATHER ? own : VALUES;
  const uint64_t to = kind == OPIPE_COLLECT_REDUCE_SCATTER ? own : VALUES;
  const uint64_t first = r == 1 ? from / 3 : from;
  p->lists[r][0][0] = (opipe_region){p->buffers[r], 0, first * sizeof(float)};
  p->lists[r][0][1] = (opipe_region){p->buffers[r], 1024, (from - first) * sizeof(float)};
  p->lists[r][1][0] = (opipe_region){p->buffers[r], 4096, to * sizeof(float)};
  for (uint64_t i = 0; i < from; ++i)
    *at(p, r, i < first ? i * 4 : 1024 + (i - first) * 4) = value_of(r, i);
  memset(at(p, r, 4096), 0, VALUES * sizeof(float));
  return (opipe_collect){.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                         .kind = kind,
                         .dtype = OPIPE_FLOAT,
                         .n_from = 2,
                         .n_to = 1,
                         .from = p->lists[r][0],
                         .to = p->lists[r][1],
                         .parts = kind == OPIPE_COLLECT_ALL_REDUCE ? NULL : parts,
                         .done = p->done[r]};
}

static uint32_t n_wrong(const place *p, uint32_t r, uint32_t kind) {
  const uint64_t own = parts[member_of(r)];
  const uint64_t first = member_of(r) == 2 ? 30 : 0;
  uint32_t n = 0;
  for (uint64_t i = 0; i < VALUES; ++i) {
    float wanted = 0;
    if (kind == OPIPE_COLLECT_ALL_GATHER)
      wanted = i < 30 ? value_of(1, i) : value_of(2, i - 30);
    else if (kind == OPIPE_COLLECT_ALL_REDUCE)
      wanted = value_of(1, i) + value_of(0, i) + value_of(2, i);
    else if (i < own)
      wanted = value_of(1, first + i) + value_of(0, first + i) + value_of(2, first + i);
    n += *at(p, r, 4096 + i * 4) != wanted;
  }
  return n;
}

/* One thread calls `collect` for all in turn until all have answered OK; it asks for nothing else.
 */
static void meet(place *p, uint64_t sequence, const opipe_collect *all) {
  bool given[RANKS] = {false};
  uint32_t n = 0;
  for (int turn = 0; turn < 8 && n < RANKS; ++turn) {
    for (uint32_t r = 0; r < RANKS; ++r) {
      if (given[r])
        continue;
      const opipe_status status = p->t->collect(p->members[r], sequence, &all[r], &p->err);
      OPI_ASSERT(status >= 0);
      given[r] = status == OPIPE_OK;
      n += given[r];
    }
  }
  OPI_ASSERT_INT(n, RANKS);
}

static void test_nobody_polls_on_one_device(void) {
  place p;
  setup(&p, true, true);
  for (uint32_t kind = 0; kind < OPIPE_COLLECT_KINDS; ++kind) {
    opipe_collect all[RANKS];
    for (uint32_t r = 0; r < RANKS; ++r) {
      all[r] = collect_of(&p, r, kind);
      p.done[r]->event.n_recorded = 0;
    }
    meet(&p, kind, all);
    for (uint32_t r = 0; r < RANKS; ++r) {
      OPI_ASSERT_INT(n_wrong(&p, r, kind), 0);
      OPI_ASSERT(p.done[r]->event.n_recorded != 0);
    }
  }
  OPI_ASSERT_INT(n_reads, 0); /* nothing went through the host */
  OPI_ASSERT(n_sums > 0);
  OPI_ASSERT_OK(p.t->collect_test(p.members[0], 2, &p.err), &p.err);
  teardown(&p);
}

static void meet_and_test(bool one_device, bool sums) {
  place p;
  setup(&p, one_device, sums);
  for (uint32_t kind = 0; kind < OPIPE_COLLECT_KINDS; ++kind) {
    opipe_collect all[RANKS];
    uint32_t n_done = 0;
    for (uint32_t r = 0; r < RANKS; ++r)
      all[r] = collect_of(&p, r, kind);
    meet(&p, kind, all);
    for (int turn = 0; turn < 8 && n_done < RANKS; ++turn) {
      n_done = 0;
      for (uint32_t r = 0; r < RANKS; ++r)
        n_done += p.t->collect_test(p.members[r], kind, &p.err) == OPIPE_OK;
    }
    OPI_ASSERT_INT(n_done, RANKS);
    for (uint32_t r = 0; r < RANKS; ++r)
      OPI_ASSERT_INT(n_wrong(&p, r, kind), 0);
  }
  OPI_ASSERT(n_reads > 0);
  OPI_ASSERT_INT(n_sums, 0);
  teardown(&p);
}

static void test_through_host_memory_on_several_devices(void) {
  meet_and_test(false, true);
}

static void test_without_sum_sums_go_through_host_memory(void) {
  meet_and_test(true, false);
}

OPI_TEST_MAIN("transport-local, queued", OPI_TEST(test_nobody_polls_on_one_device),
              OPI_TEST(test_through_host_memory_on_several_devices),
              OPI_TEST(test_without_sum_sums_go_through_host_memory))
