/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous emulated devices: what is queued is done later and in order, errors arrive with
 * events, queues wait for each other, are bounded, and end cleanly. ctest: timeout=120
 */
#include "tests/plugins/backend-emulated/inner.h"

enum { BYTES = 64, SOON_NS = 2000000 };
#define LONG_NS UINT64_C(30000000000)

typedef struct rig {
  const opipe_backend *t;
  opipe_instance *self;
  opipe_device *device;
  opipe_queue *queues[2];
  opipe_event *events[4];
  opipe_buffer *buffer;
  opipe_program *program;
  opipe_binding *binding;
  opipe_region low, high; /* halves of the buffer */
} rig;

static opipe_error err = OPIPE_ERROR_INIT;

static void open_device(rig *r, uint32_t index, const char *options) {
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .index = index,
      .options = options};
  memset(r, 0, sizeof *r);
  forget();
  gate(true);
  atomic_store(&inner.n_logged, 0);
  const opipe_plugin *plugin = &OPIPE_PLUGIN_STATIC(backend_emulated);
  OPI_ASSERT_OK_FATAL(plugin->open(&inner_host, &r->self, &err), &err);
  r->t = plugin->get_interface(r->self, OPIPE_BACKEND_ID);
  OPI_ASSERT_OK_FATAL(r->t->device_open(r->self, &params, &r->device, &err), &err);
}

static void open_rig(rig *r, uint32_t index, const char *options) {
  static const opipe_graph graph = {.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars),
                                    .n_scalars = RUN_SCALARS};
  const opipe_compile_params compile = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph), .graph = &graph};
  open_device(r, index, options);
  for (uint32_t i = 0; i < 2; ++i)
    OPI_ASSERT_OK_FATAL(r->t->queue_open(r->device, &r->queues[i], &err), &err);
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT_OK_FATAL(r->t->event_create(r->device, &r->events[i], &err), &err);
  OPI_ASSERT_OK_FATAL(r->t->buffer_alloc(r->device, 2 * (uint64_t)BYTES, 0, &r->buffer, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(r->t->compile(r->device, &compile, &r->program, &err), &err);
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients),
                                  .program = r->program};
  OPI_ASSERT_OK_FATAL(r->t->bind(r->device, &bind, &r->binding, &err), &err);
  r->low = (opipe_region){r->buffer, 0, BYTES};
  r->high = (opipe_region){r->buffer, BYTES, BYTES};
}

static void close_rig(rig *r) {
  for (uint32_t i = 0; i < 2; ++i)
    r->t->queue_close(r->queues[i]);
  for (uint32_t i = 0; i < 4; ++i)
    r->t->event_destroy(r->events[i]);
  r->t->binding_free(r->binding);
  r->t->program_free(r->program);
  r->t->buffer_free(r->buffer);
  r->t->device_close(r->device);
  OPIPE_PLUGIN_STATIC(backend_emulated).close(r->self);
}

static opipe_status run(const rig *r, uint32_t queue, char name, bool gated, opipe_status status) {
  const int64_t scalars[RUN_SCALARS] = {name, gated, status};
  return r->t->run(r->binding, r->queues[queue], scalars, RUN_SCALARS, &err);
}

static void record(const rig *r, uint32_t queue, uint32_t event) {
  OPI_ASSERT_OK(r->t->event_record(r->queues[queue], r->events[event], &err), &err);
}

static opipe_status settled(const rig *r, uint32_t event) {
  return r->t->event_sync(r->events[event], LONG_NS, &err);
}

static void rest(uint64_t ns) {
  const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
  (void)nanosleep(&t, NULL);
}

/* Held up by the first run: nothing behind it is done, whatever it is. */
static void test_calls_return_before_the_work(void) {
  rig r;
  unsigned char out[BYTES], back[BYTES] = {0};
  open_rig(&r, 16, "async=1");
  gate(false);
  memset(out, 1, sizeof out);
  OPI_ASSERT_OK(run(&r, 0, 'A', true, OPIPE_OK), &err);
  OPI_ASSERT_OK(r.t->write(r.queues[0], &r.low, out, &err), &err);
  OPI_ASSERT_OK(r.t->copy(r.queues[0], &r.high, &r.low, &err), &err);
  OPI_ASSERT_OK(r.t->read(r.queues[0], back, &r.high, &err), &err);
  record(&r, 0, 0);
  OPI_ASSERT_INT(r.t->event_poll(r.events[0], &err), OPIPE_PENDING);
  OPI_ASSERT_ERROR(r.t->event_sync(r.events[0], SOON_NS, &err), OPIPE_E_TIMEOUT, &err, "at work");
  OPI_ASSERT_STR(seen(), "");
  memset(out, 2, sizeof out); /* borrowed: it is read when the write is done */
  gate(true);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  OPI_ASSERT_OK(r.t->event_poll(r.events[0], &err), &err);
  OPI_ASSERT_STR(seen(), "Awcr");
  OPI_ASSERT(memcmp(back, out, sizeof out) == 0);
  close_rig(&r);
}

static void test_arguments_are_copied(void) {
  rig r;
  int64_t scalars[RUN_SCALARS] = {'B', 0, OPIPE_OK};
  open_rig(&r, 0, "async=1");
  opipe_update update = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay), .lr = 0.5};
  gate(false);
  OPI_ASSERT_OK(run(&r, 0, 'A', true, OPIPE_OK), &err);
  OPI_ASSERT_OK(r.t->run(r.binding, r.queues[0], scalars, RUN_SCALARS, &err), &err);
  update.weight = update.gradient = r.low;
  OPI_ASSERT_OK(r.t->update(r.queues[0], &update, &err), &err);
  OPI_ASSERT_OK(r.t->sum_squares(r.queues[0], &r.low, &r.high, &err), &err);
  opipe_region zeroed = r.high;
  OPI_ASSERT_OK(r.t->fill_zero(r.queues[0], &zeroed, &err), &err);
  record(&r, 0, 0);
  memset(scalars, 0, sizeof scalars);
  memset(&update, 0, sizeof update);
  memset(&zeroed, 0, sizeof zeroed);
  gate(true);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  OPI_ASSERT_STR(seen(), "ABusz");
  OPI_ASSERT(inner.lr == 0.5);
  close_rig(&r);
}

static void test_data_errors_are_told_once(void) {
  rig r;
  open_rig(&r, 0, "async=1");
  record(&r, 0, 0);
  OPI_ASSERT_OK(run(&r, 0, 'A', false, OPIPE_E_INVALID), &err);
  OPI_ASSERT_OK(run(&r, 0, 'B', false, OPIPE_E_INVALID), &err);
  record(&r, 0, 1);
  record(&r, 0, 2);
  OPI_ASSERT_OK(settled(&r, 2), &err);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  for (uint32_t i = 0; i < 2; ++i) /* the first of several; asking does not use it up */
    OPI_ASSERT_ERROR(settled(&r, 1), OPIPE_E_INVALID, &err, "run A fails");
  OPI_ASSERT_ERROR(r.t->event_poll(r.events[1], &err), OPIPE_E_INVALID, &err, "run A fails");
  OPI_ASSERT_OK(run(&r, 0, 'C', false, OPIPE_OK), &err); /* the device goes on */
  record(&r, 0, 1);
  OPI_ASSERT_OK(settled(&r, 1), &err);
  OPI_ASSERT_STR(seen(), "ABC");
  close_rig(&r);
}

static void test_device_errors_stay(void) {
  rig r;
  open_rig(&r, 0, "async=1");
  OPI_ASSERT_OK(run(&r, 0, 'A', false, OPIPE_E_INVALID), &err);
  OPI_ASSERT_OK(run(&r, 0, 'B', false, OPIPE_E_DEVICE), &err);
  record(&r, 0, 0);
  record(&r, 0, 1);
  OPI_ASSERT_ERROR(settled(&r, 0), OPIPE_E_DEVICE, &err, "run B fails");
  OPI_ASSERT_ERROR(settled(&r, 1), OPIPE_E_DEVICE, &err, "run B fails");
  OPI_ASSERT_OK(run(&r, 0, 'C', false, OPIPE_E_INVALID), &err);
  record(&r, 0, 0);
  OPI_ASSERT_ERROR(settled(&r, 0), OPIPE_E_DEVICE, &err, "run B fails");
  OPI_ASSERT_OK(run(&r, 1, 'D', false, OPIPE_OK), &err);                /* of that queue alone */
  OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[0], &err), &err); /* hands on nothing */
  record(&r, 1, 2);
  OPI_ASSERT_OK(settled(&r, 2), &err);
  close_rig(&r);
}

static void test_faults_by_option_arrive_late(void) {
  rig r;
  open_rig(&r, 0, "async=1,fail_run=1,fail_late=3");
  OPI_ASSERT_ERROR(run(&r, 0, 'A', false, OPIPE_OK), OPIPE_E_DEVICE, &err, "run 1 fails");
  record(&r, 0, 0); /* no event repeats an error of the call */
  OPI_ASSERT_OK(run(&r, 0, 'B', false, OPIPE_OK), &err);
  record(&r, 0, 1);
  OPI_ASSERT_OK(run(&r, 0, 'C', false, OPIPE_OK), &err);
  record(&r, 0, 2);
  OPI_ASSERT_ERROR(settled(&r, 2), OPIPE_E_DEVICE, &err, "run 3 fails late");
  OPI_ASSERT_OK(settled(&r, 0), &err);
  OPI_ASSERT_OK(settled(&r, 1), &err);
  OPI_ASSERT_STR(seen(), "BC");
  close_rig(&r);
}

/* The wait is for the place that the event meant when it was called: the second place, on a queue
 * that is free, does not end it. */
static void test_queues_wait_for_each_other(void) {
  rig r;
  opipe_queue *third = NULL;
  open_rig(&r, 0, "async=1");
  OPI_ASSERT_OK_FATAL(r.t->queue_open(r.device, &third, &err), &err);
  gate(false);
  OPI_ASSERT_OK(run(&r, 0, 'A', true, OPIPE_OK), &err);
  record(&r, 0, 0);
  OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[0], &err), &err);
  OPI_ASSERT_OK(r.t->event_wait(r.queues[0], r.events[0], &err), &err); /* of itself: nothing */
  OPI_ASSERT_OK(run(&r, 1, 'B', false, OPIPE_OK), &err);
  record(&r, 1, 1);
  OPI_ASSERT_OK(r.t->event_record(third, r.events[0], &err), &err);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  OPI_ASSERT_ERROR(r.t->event_sync(r.events[1], SOON_NS, &err), OPIPE_E_TIMEOUT, &err, "at work");
  OPI_ASSERT_STR(seen(), "");
  gate(true);
  OPI_ASSERT_OK(settled(&r, 1), &err);
  OPI_ASSERT_STR(seen(), "AB");
  r.t->queue_close(third);
  OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[0], &err), &err); /* of a closed queue */
  OPI_ASSERT_OK(r.t->event_poll(r.events[0], &err), &err);
  record(&r, 1, 0);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  close_rig(&r);
}

/* Two queues hand a counter back and forth through the device's memory, a hundred times. */
static void test_queues_take_turns(void) {
  enum { TURNS = 100 };
  rig r;
  unsigned char given[TURNS], got[TURNS] = {0};
  open_rig(&r, 16, "async=1");
  for (uint32_t i = 0; i < TURNS; ++i) {
    const opipe_region one = {r.buffer, i % 2, 1}, two = {r.buffer, (i + 1) % 2, 1};
    given[i] = (unsigned char)(i + 1);
    OPI_ASSERT_OK(r.t->write(r.queues[0], &one, &given[i], &err), &err);
    record(&r, 0, 0);
    OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[0], &err), &err);
    OPI_ASSERT_OK(r.t->copy(r.queues[1], &two, &one, &err), &err);
    record(&r, 1, 1);
    OPI_ASSERT_OK(r.t->event_wait(r.queues[0], r.events[1], &err), &err);
    OPI_ASSERT_OK(r.t->read(r.queues[0], &got[i], &two, &err), &err);
  }
  record(&r, 0, 2);
  OPI_ASSERT_OK(settled(&r, 2), &err);
  OPI_ASSERT(memcmp(given, got, sizeof given) == 0);
  close_rig(&r);
}

static void test_full_queues_refuse(void) {
  rig r;
  unsigned char byte = 0;
  open_rig(&r, 0, "async=1,queue=3");
  gate(false);
  OPI_ASSERT_OK(run(&r, 0, 'A', true, OPIPE_OK), &err);
  OPI_ASSERT_OK(run(&r, 0, 'B', false, OPIPE_OK), &err);
  record(&r, 0, 0);
  const opipe_region one = {r.buffer, 0, 1};
  OPI_ASSERT_ERROR(r.t->read(r.queues[0], &byte, &one, &err), OPIPE_E_NOMEM, &err,
                   "3 operations wait in the queue, which has room for 3");
  OPI_ASSERT_ERROR(r.t->event_record(r.queues[0], r.events[0], &err), OPIPE_E_NOMEM, &err, "3");
  OPI_ASSERT_ERROR(r.t->event_record(r.queues[0], r.events[1], &err), OPIPE_E_NOMEM, &err, "3");
  OPI_ASSERT_OK(r.t->event_poll(r.events[1], &err), &err); /* never recorded */
  gate(true);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  for (uint32_t i = 0; i < 10; ++i) { /* round the ring */
    OPI_ASSERT_OK(r.t->read(r.queues[0], &byte, &one, &err), &err);
    record(&r, 0, 0);
    OPI_ASSERT_OK(settled(&r, 0), &err);
  }
  OPI_ASSERT_STR(seen(), "ABrrrrrrrrrr");
  close_rig(&r);
}

static void *open_the_gate(void *unused) {
  rest(50000000);
  gate(true);
  return unused;
}

/* A minute of modelled time is left, events are destroyed while their records are on their way. */
static void test_closing_finishes_the_work(void) {
  rig r;
  pthread_t thread;
  unsigned char byte = 7;
  open_rig(&r, 0, "async=1,time_us=60000000");
  const opipe_region one = {r.buffer, 5, 1};
  const uint64_t start = host_now(NULL);
  gate(false);
  OPI_ASSERT_OK(run(&r, 0, 'A', true, OPIPE_OK), &err);
  OPI_ASSERT_OK(run(&r, 0, 'B', false, OPIPE_OK), &err);
  OPI_ASSERT_OK(r.t->write(r.queues[0], &one, &byte, &err), &err);
  for (uint32_t i = 0; i < 4; ++i) {
    record(&r, 0, i);
    OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[i], &err), &err);
    r.t->event_destroy(r.events[i]);
    r.events[i] = NULL;
  }
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, open_the_gate, NULL) == 0);
  r.t->queue_close(r.queues[0]);
  r.queues[0] = NULL;
  OPI_ASSERT_STR(seen(), "ABw");
  (void)pthread_join(thread, NULL);
  close_rig(&r);
  OPI_ASSERT(host_now(NULL) - start < UINT64_C(20000000000));
}

static void test_memory_of_a_device_alone(void) {
  static const uint32_t both = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  rig r;
  void *data = NULL;
  opipe_device_info info = {.struct_size = sizeof info};
  open_rig(&r, 16, "async=1");
  OPI_ASSERT_ERROR(r.t->buffer_host(r.buffer, &data, &err), OPIPE_E_UNSUPPORTED, &err,
                   "device 16: its memory has no host addresses");
  OPI_ASSERT(data == NULL);
  for (uint32_t i = 16; i < 32; ++i) {
    OPI_ASSERT_OK(r.t->device_query(r.self, i, &info, &err), &err);
    OPI_ASSERT_INT(info.flags & both, 0);
  }
  OPI_ASSERT_OK(r.t->device_query(r.self, 15, &info, &err), &err);
  OPI_ASSERT_INT(info.flags & both, OPIPE_DEVICE_HOST_MEMORY);
  OPI_ASSERT_ERROR(r.t->device_query(r.self, 32, &info, &err), OPIPE_E_NOTFOUND, &err, "0 to 31");
  close_rig(&r);
}

/* Three runs of 20 ms, and a copy of 0: each is there when it has taken its time, not before. */
static void test_modelled_times_are_those_of_the_synchronous_form(void) {
  static const char *const options[2] = {"time_us=20000", "time_us=20000,async=1"};
  for (uint32_t form = 0; form < 2; ++form) {
    rig r;
    unsigned char byte = 3, back = 0;
    open_rig(&r, 0, options[form]);
    const opipe_region one = {r.buffer, 0, 1};
    OPI_ASSERT_OK(r.t->write(r.queues[0], &one, &byte, &err), &err);
    const uint64_t start = host_now(NULL);
    for (uint32_t i = 0; i < 3; ++i) {
      OPI_ASSERT_OK(run(&r, 0, 'A', false, OPIPE_OK), &err);
      record(&r, 0, i);
    }
    OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[2], &err), &err);
    OPI_ASSERT_OK(run(&r, 1, 'B', false, OPIPE_OK), &err);
    OPI_ASSERT_OK(r.t->read(r.queues[1], &back, &one, &err), &err);
    record(&r, 1, 3);
    OPI_ASSERT_INT(r.t->event_poll(r.events[0], &err), OPIPE_PENDING);
    for (uint32_t i = 0; i < 4; ++i) {
      OPI_ASSERT_OK(settled(&r, i), &err);
      const uint64_t taken = host_now(NULL) - start, wanted = (i + 1) * UINT64_C(20000000);
      OPI_ASSERT(taken >= wanted && taken < wanted + UINT64_C(2000000000));
    }
    OPI_ASSERT_INT(back, 3);
    close_rig(&r);
  }
}

static void test_memory_changes_when_its_time_has_come(void) {
  rig r;
  unsigned char byte = 3, back = 0;
  void *data = NULL;
  open_rig(&r, 0, "async=1,time_us=300000");
  const opipe_region one = {r.buffer, 0, 1};
  OPI_ASSERT_OK(r.t->buffer_host(r.buffer, &data, &err), &err);
  OPI_ASSERT_OK(run(&r, 0, 'A', false, OPIPE_OK), &err);
  const uint64_t start = host_now(NULL);
  OPI_ASSERT_OK(r.t->write(r.queues[0], &one, &byte, &err), &err);
  OPI_ASSERT_OK(r.t->read(r.queues[0], &back, &one, &err), &err);
  record(&r, 0, 0);
  rest(20000000);
  const bool changed = strcmp(seen(), "A") != 0;
  OPI_ASSERT(!changed || host_now(NULL) - start > 250000000);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  OPI_ASSERT(back == 3 && *(unsigned char *)data == 3);
  close_rig(&r);
}

/* A call that must not be made while work uses its object is logged, and does no harm. */
static void test_misuse_is_logged(void) {
  rig r;
  pthread_t thread;
  open_rig(&r, 0, "async=1");
  gate(false);
  OPI_ASSERT_OK(run(&r, 0, 'A', true, OPIPE_OK), &err);
  OPI_ASSERT_OK(r.t->fill_zero(r.queues[0], &r.low, &err), &err);
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, open_the_gate, NULL) == 0);
  r.t->binding_free(r.binding);
  r.binding = NULL;
  OPI_ASSERT_INT(atomic_load(&inner.n_logged), 1);
  OPI_ASSERT(strstr(inner.logged, "binding_free of an object that queued work uses") != NULL);
  (void)pthread_join(thread, NULL);
  record(&r, 0, 0);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  close_rig(&r);
  OPI_ASSERT_INT(atomic_load(&inner.n_logged), 1);
}

static void test_the_thread_is_no_trouble_to_the_process(void) {
  rig r;
  open_rig(&r, 0, "async=1");
  OPI_ASSERT_OK(run(&r, 0, 'A', false, OPIPE_OK), &err);
  record(&r, 0, 0);
  OPI_ASSERT_OK(settled(&r, 0), &err);
  OPI_ASSERT_STR(inner.thread_name, "opipe-emulated");
  OPI_ASSERT(inner.blocks_term && !inner.blocks_segv);
  close_rig(&r);
}

static void test_hot_calls_do_not_allocate(void) {
  rig r;
  unsigned char byte = 1;
  open_rig(&r, 0, "async=1");
  const opipe_region one = {r.buffer, 0, 1};
  const unsigned before = atomic_load(&inner.n_allocations);
  for (uint32_t i = 0; i < 20; ++i) {
    OPI_ASSERT_OK(r.t->write(r.queues[0], &one, &byte, &err), &err);
    OPI_ASSERT_OK(run(&r, 0, 'A', false, OPIPE_OK), &err);
    record(&r, 0, i % 4);
    OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[i % 4], &err), &err);
    OPI_ASSERT_OK(settled(&r, i % 4), &err);
  }
  OPI_ASSERT_INT(atomic_load(&inner.n_allocations) - before, 0);
  close_rig(&r);
}

static void test_wrong_options_are_refused(void) {
  static const char *const wrong[] = {"async=2", "async=on", "queue=0", "queue=65537"};
  rig r;
  open_device(&r, 0, "async=0");
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    const opipe_device_params params = {
        .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options), .options = wrong[i]};
    opipe_device *device = NULL;
    OPI_ASSERT_ERROR(r.t->device_open(r.self, &params, &device, &err), OPIPE_E_INVALID, &err,
                     wrong[i]);
  }
  r.t->device_close(r.device);
  OPIPE_PLUGIN_STATIC(backend_emulated).close(r.self);
}

OPI_TEST_MAIN("backend-emulated, asynchronous", OPI_TEST(test_calls_return_before_the_work),
              OPI_TEST(test_arguments_are_copied), OPI_TEST(test_data_errors_are_told_once),
              OPI_TEST(test_device_errors_stay), OPI_TEST(test_faults_by_option_arrive_late),
              OPI_TEST(test_queues_wait_for_each_other), OPI_TEST(test_queues_take_turns),
              OPI_TEST(test_full_queues_refuse), OPI_TEST(test_closing_finishes_the_work),
              OPI_TEST(test_memory_of_a_device_alone),
              OPI_TEST(test_modelled_times_are_those_of_the_synchronous_form),
              OPI_TEST(test_memory_changes_when_its_time_has_come), OPI_TEST(test_misuse_is_logged),
              OPI_TEST(test_the_thread_is_no_trouble_to_the_process),
              OPI_TEST(test_hot_calls_do_not_allocate), OPI_TEST(test_wrong_options_are_refused))
