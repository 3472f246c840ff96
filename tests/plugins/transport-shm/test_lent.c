/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory that is lent to a process which lives and does not answer: it is waited for once,
 * not once for each buffer, and waited for again when it has answered. ctest: timeout=60
 */
#include <signal.h>
#include <sys/prctl.h>

#include "tests/plugins/transport-shm/pair.h"

enum { LENT = 4, LENT_BYTES = 4096, TRIES = 500 };

/* ---- a device whose memory other processes open, as far as the transport asks ---- */

static int n_closed, n_left; /* buffers that were taken back; n_left: that may be open still */

static opipe_status no_address(opipe_buffer *buffer, void **out_data, opipe_error *err) {
  (void)buffer, (void)out_data;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "memory of a device");
}

static opipe_status no_handle(opipe_device *device, uint32_t what, const void *object,
                              uint64_t *out_native, opipe_error *err) {
  (void)device, (void)what, (void)object, (void)out_native;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "memory of a device");
}

static opipe_status reach_all(opipe_instance *self, uint32_t index, uint32_t other,
                              uint32_t *out_reach, opipe_error *err) {
  (void)self, (void)index, (void)other, (void)err;
  *out_reach = OPIPE_REACH_SHARED;
  return OPIPE_OK;
}

static opipe_status share(opipe_buffer *buffer, opipe_shared *out_shared, opipe_error *err) {
  (void)buffer, (void)err;
  memset(out_shared, 0, sizeof *out_shared);
  out_shared->n_bytes = LENT_BYTES;
  return OPIPE_OK;
}

static void unshare(opipe_buffer *buffer, uint32_t all_closed) {
  (void)buffer;
  ++*(all_closed != 0 ? &n_closed : &n_left);
}

static opipe_backend sharing_table(void) {
  opipe_backend table = host_memory;
  table.struct_size = (uint32_t)OPIPE_END(opipe_backend, event_open);
  table.buffer_host = no_address;
  table.native = no_handle;
  table.buffer_import = opipe_host_buffer_import;
  table.device_reach = reach_all;
  table.buffer_share = share;
  table.buffer_unshare = unshare;
  return table;
}

/* ---- two processes, joined by a group ---- */

static opipe_status open_rank(end *e, uint32_t rank, note *notes, const opipe_backend *backend) {
  static const uint32_t both[2] = {0, 1};
  e->patience_ns = UINT64_C(10000000000);
  TRY(open_world(e, rank, notes));
  const opipe_endpoint_params params = {.struct_size = (uint32_t)sizeof params,
                                        .rank = rank,
                                        .backend = backend,
                                        .device = e->device,
                                        .queue = e->queue,
                                        .backend_id = "host",
                                        .device_index = rank};
  TRY(e->t->endpoint_open(e->world, &params, &e->endpoint, &e->err));
  return e->t->group_open(e->endpoint, both, 2, 64, &e->group, &e->err);
}

static void close_rank(end *e) {
  e->t->group_close(e->group);
  e->t->endpoint_close(e->endpoint);
  e->t->world_close(e->world);
  opipe_host_queue_close(e->queue);
  opipe_host_device_close(e->device);
  e->plugin->close(e->self);
}

/* It meets the other, and stops; once it goes on its helper answers what has come. */
static pid_t begin_other(note *notes) {
  const pid_t pid = fork();
  if (pid != 0)
    return pid;
  end e = {.plugin = NULL};
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (open_rank(&e, 1, notes, &host_memory) < 0 || await_ready(&e) < 0)
    _exit(1);
  (void)raise(SIGSTOP);
  for (;;)
    (void)pause();
}

static void nap(void) {
  const struct timespec pause = {.tv_nsec = 10000000};
  (void)nanosleep(&pause, NULL);
}

static opipe_memory *lend(end *e, opipe_buffer *buffer) {
  opipe_memory *memory = NULL;
  OPI_ASSERT_OK_FATAL(e->t->memory_register(e->endpoint, buffer, LENT_BYTES, &memory, &e->err),
                      &e->err);
  return memory;
}

static void test_a_silent_process_is_waited_for_once(void) {
  const opipe_backend table = sharing_table();
  opipe_buffer *buffers[LENT];
  opipe_memory *lent[LENT];
  end e = {.plugin = NULL};
  note *notes = new_board();
  int status = 0;
  const pid_t other = begin_other(notes);
  OPI_ASSERT_FATAL(other > 0);
  OPI_ASSERT_OK_FATAL(open_rank(&e, 0, notes, &table), &e.err);
  for (int i = 0; i < LENT; ++i) {
    OPI_ASSERT_OK_FATAL(
        opipe_host_buffer_alloc(e.device, LENT_BYTES, OPIPE_BUFFER_BOUNDARY, &buffers[i], &e.err),
        &e.err);
    lent[i] = lend(&e, buffers[i]);
  }
  OPI_ASSERT_OK_FATAL(await_ready(&e), &e.err);
  OPI_ASSERT_FATAL(waitpid(other, &status, WUNTRACED) == other && WIFSTOPPED(status));
  const uint64_t start = now_ns(NULL);
  e.t->memory_drop(lent[0]);
  const uint64_t first = now_ns(NULL);
  for (int i = 1; i < LENT; ++i)
    e.t->memory_drop(lent[i]);
  OPI_ASSERT(first - start >= UINT64_C(2000000000));
  OPI_ASSERT(now_ns(NULL) - first < (first - start) / 2);
  OPI_ASSERT_INT(n_left, LENT);
  (void)kill(other, SIGCONT);
  for (int i = 0; i < TRIES && n_closed == 0; ++i) {
    e.t->memory_drop(lend(&e, buffers[0]));
    nap();
  }
  OPI_ASSERT_INT(n_closed, 1);
  (void)kill(other, SIGKILL);
  OPI_ASSERT_INT(status_of(other), 256 + SIGKILL);
  for (int i = 0; i < LENT; ++i)
    opipe_host_buffer_free(buffers[i]);
  close_rank(&e);
  (void)munmap(notes, N_NOTES * sizeof *notes);
}

OPI_TEST_MAIN("device memory that is lent", OPI_TEST(test_a_silent_process_is_waited_for_once))
