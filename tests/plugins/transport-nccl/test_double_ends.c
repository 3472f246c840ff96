/* SPDX-License-Identifier: Apache-2.0 */
/* How communicators of NCCL's double open, are split, fail and end; and the faults that it can be
 * told to have.
 * ctest: timeout=120 */
#include "double_kit.h"

static int sum(member *m, ncclComm_t comm) {
  return m->nccl.all_reduce(m->memory, m->memory, 1, NCCL_DOUBLE_FLOAT32, 0, comm, m->streams[0]);
}

static void need_result(member *m, int result, int wanted, const char *words) {
  need(result == wanted && strstr(m->nccl.last_error(NULL), words) != NULL, "%d, not %d: %s",
       result, wanted, m->nccl.last_error(NULL));
}

static void await_flag(member *m, int flag, int value) {
  while (atomic_load(&m->board->flags[flag]) < value)
    nap_us(100);
}

/* ---- opening ---- */

/* Rank 1 comes late: until then the communicator of rank 0 is in progress, and of no use. */
static void open_late(member *m) {
  nccl_double_config config = {.size = sizeof config, .magic = (unsigned)NCCL_DOUBLE_MAGIC};
  int result = 0;
  if (m->rank == 1) {
    await_flag(m, 0, 1);
    need_comm(m, 0);
  } else {
    ncclComm_t comm = NULL;
    need(m->nccl.get_id(&m->board->ids[0]) == NCCL_DOUBLE_SUCCESS, "ncclGetUniqueId");
    need(m->nccl.init(&comm, 2, m->board->ids[0], 0, &config) == NCCL_DOUBLE_IN_PROGRESS,
         "it is ready before all have come");
    for (int i = 0; i < 50; ++i, nap_us(200)) {
      need(m->nccl.get_error(comm, &result) == 0 && result == NCCL_DOUBLE_IN_PROGRESS,
           "it is ready before all have come: %d", result);
    }
    need_result(m, sum(m, comm), NCCL_DOUBLE_INVALID_ARGUMENT, "before the previous operation");
    atomic_store(&m->board->has_id[0], 1);
    atomic_store(&m->board->flags[0], 1);
    need(settle(m, comm) == NCCL_DOUBLE_SUCCESS, "it does not open");
    m->comms[0] = comm;
  }
  close_comm(m, 0);
}

static void test_opening_waits_for_all(void) {
  expect_team(2, open_late);
}

static void open_bare(member *m) {
  nccl_double_config config = {.size = sizeof config};
  need(m->nccl.get_id(&m->board->ids[0]) == NCCL_DOUBLE_SUCCESS, "ncclGetUniqueId");
  need_result(m, m->nccl.init(&m->comms[0], 1, m->board->ids[0], 0, &config),
              NCCL_DOUBLE_INVALID_ARGUMENT, "NCCL_CONFIG_INITIALIZER");
  need_result(m, m->nccl.init(&m->comms[0], 1, m->board->ids[0], 1, NULL),
              NCCL_DOUBLE_INVALID_ARGUMENT, "Invalid rank requested : 1/1");
  memset(&m->board->ids[0], 7, sizeof m->board->ids[0]);
  need_result(m, m->nccl.init(&m->comms[0], 1, m->board->ids[0], 0, NULL),
              NCCL_DOUBLE_INVALID_ARGUMENT, "a unique id");
}

static void test_arguments_are_looked_at(void) {
  expect_team(1, open_bare);
}

static void open_on_one_device(member *m) {
  const bool apart = getenv("NCCL_HOSTID") != NULL;
  const int result = open_comm(m, 0);
  if (apart) {
    need(result == NCCL_DOUBLE_SUCCESS, "%d: %s", result, m->nccl.last_error(NULL));
    close_comm(m, 0);
  } else {
    need_result(m, result, NCCL_DOUBLE_INVALID_USAGE,
                "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 0");
    need(m->nccl.abort(m->comms[0]) == NCCL_DOUBLE_SUCCESS, "ncclCommAbort");
  }
}

static void test_duplicate_gpus_are_refused(void) {
  static const char *const hosts[] = {"NCCL_HOSTID=a", "NCCL_HOSTID=b"};
  team t = {.n = 2, .devices = 1};
  if (!run_team(&t, open_on_one_device))
    return;
  if (t.ended != 2)
    OPI_FAIL("one host: %s", t.text);
  t = (team){.n = 2, .devices = 1, .environment = hosts};
  if (!run_team(&t, open_on_one_device))
    return;
  if (t.ended != 2)
    OPI_FAIL("two hosts: %s", t.text);
  OPI_ASSERT_INT(t.ended, 2);
}

static void open_other_version(member *m) {
  int version = 0;
  need(m->nccl.get_version(&version) == 0 && version == (m->rank == 0 ? 22809 : 22700),
       "version %d", version);
  need_result(m, open_comm(m, 0), NCCL_DOUBLE_INVALID_USAGE,
              "Mismatched NCCL version detected : rank 1 version 22700 rank 0 version 22809");
  (void)m->nccl.abort(m->comms[0]);
}

static void test_versions_that_differ_are_refused(void) {
  static const char *const versions[] = {NULL, "OPIPE_NCCL_DOUBLE_VERSION=22700"};
  team t = {.n = 2, .environment = versions};
  if (!run_team(&t, open_other_version))
    return;
  if (t.ended != 2)
    OPI_FAIL("%s", t.text);
  OPI_ASSERT_INT(t.ended, 2);
}

/* Even and odd ranks, the higher rank first; the last one is in none. */
static void split(member *m) {
  float *value = (float *)(void *)m->memory;
  const bool out = m->rank == 3;
  ncclComm_t made = NULL;
  int n = 0, rank = -1;
  need_comm(m, 0);
  for (int k = 0; k < 2; ++k) {
    const int result =
        m->nccl.split(m->comms[0], out ? NCCL_DOUBLE_NO_COLOR : m->rank % 2, -m->rank, &made, NULL);
    need(settle(m, m->comms[0]) == NCCL_DOUBLE_SUCCESS, "ncclCommSplit: %d", result);
    need((made == NULL) == out, "who has a communicator");
    if (out)
      continue;
    need(m->nccl.count(made, &n) == 0 && m->nccl.rank(made, &rank) == 0, "ncclCommCount");
    need(n == (m->rank == 1 ? 1 : 2) && rank == (m->rank == 0 ? 1 : 0), "rank %d of %d", rank, n);
    *value = (float)(m->rank + 1);
    launched(m, made, sum(m, made));
    finish(m, 0);
    need(*value == (m->rank == 1 ? 2.0f : 4.0f), "the sum is %g", *value);
    launched(m, made, m->nccl.finalize(made));
    need(m->nccl.destroy(made) == NCCL_DOUBLE_SUCCESS, "ncclCommDestroy");
  }
  close_comm(m, 0);
}

static void test_splits(void) {
  expect_team(4, split);
}

/* ---- streams, memory ---- */

static void use_stream_early(member *m) {
  CUevent event = NULL;
  need_comm(m, 0);
  need(m->driver.event_create(&event, CUDA_EVENT_DISABLE_TIMING) == CUDA_OK, "cuEventCreate");
  for (int i = 0; i < 50; ++i) {
    const int result = sum(m, m->comms[0]);
    if (result == NCCL_DOUBLE_IN_PROGRESS)
      (void)m->driver.event_record(event, m->streams[0]);
    launched(m, m->comms[0], result);
  }
}

static void test_streams_are_used_behind_launches_only(void) {
  expect_words(2, use_stream_early, "a stream is used before the launch that it expects");
}

static void free_early(member *m) {
  need_comm(m, 0);
  if (m->rank == 0) {
    launched(m, m->comms[0], sum(m, m->comms[0]));
    finish(m, 0);
    launched(m, m->comms[0], sum(m, m->comms[0]));
    (void)m->driver.memory_free((CUdeviceptr)(uintptr_t)m->memory);
  } else {
    launched(m, m->comms[0], sum(m, m->comms[0]));
    finish(m, 0);
    await_flag(m, 0, 1); /* never */
  }
}

static void test_memory_is_not_freed_early(void) {
  expect_words(2, free_early, "memory is freed that queued work uses");
}

static void read_outside(member *m) {
  need_comm(m, 0);
  (void)m->nccl.all_reduce(m->memory + ROOM - 4, m->memory, 2, NCCL_DOUBLE_FLOAT32, 0, m->comms[0],
                           m->streams[0]);
}

static void test_memory_is_the_devices(void) {
  expect_words(1, read_outside, "ncclAllReduce: 8 bytes at");
}

/* ---- failures ---- */

/* Rank 1's third launch meets a fault: rank 0 notices nothing but by what it is asked to. */
static void meet_fault(member *m) {
  const bool told = getenv("OPIPE_NCCL_DOUBLE_REMOTE") != NULL;
  const char *fault = getenv("OPIPE_NCCL_DOUBLE_FAULT");
  need_comm(m, 0);
  for (int k = 0; k < 2; ++k) {
    launched(m, m->comms[0], sum(m, m->comms[0]));
    finish(m, 0);
  }
  int error = sum(m, m->comms[0]);
  if (error == NCCL_DOUBLE_IN_PROGRESS)
    error = settle(m, m->comms[0]); /* a fault may come before the launch has settled */
  for (int i = 0; i < (told ? 25000 : 300) && error == 0; ++i, nap_us(200)) {
    need(m->driver.stream_query(m->streams[0]) == CUDA_NOT_READY, "the sum is over");
    need(m->nccl.get_error(m->comms[0], &error) == NCCL_DOUBLE_SUCCESS, "ncclCommGetAsyncError");
  }
  if (fault != NULL && strncmp(fault, "error", 5) == 0)
    need_result(m, error, NCCL_DOUBLE_REMOTE_ERROR, "the test lets launch 3 fail");
  else if (told)
    need_result(m, error, NCCL_DOUBLE_REMOTE_ERROR, "rank 1 (process ");
  else
    need(error == 0, "rank %d notices: %d", m->rank, error);
  need(m->nccl.abort(m->comms[0]) == NCCL_DOUBLE_SUCCESS, "ncclCommAbort");
  finish(m, 0);
}

static void try_fault(const char *own, const char *others, int dies) {
  const char *const environment[] = {others, own};
  team t = {.n = 2, .environment = environment, .dies = dies};
  if (!run_team(&t, meet_fault))
    return;
  if (t.ended != (dies != 0 ? 1 : 2))
    OPI_FAIL("%s: %d came to their end: %s", own, t.ended, t.text);
  OPI_ASSERT(t.ended > 0);
}

static void test_faults_are_as_asked(void) {
  try_fault("OPIPE_NCCL_DOUBLE_FAULT=silent@3", NULL, 0);
  try_fault("OPIPE_NCCL_DOUBLE_FAULT=error@3", NULL, 0);
  try_fault("OPIPE_NCCL_DOUBLE_FAULT=die@3", NULL, 2);
  try_fault("OPIPE_NCCL_DOUBLE_FAULT=die@3", "OPIPE_NCCL_DOUBLE_REMOTE=1", 2);
}

/* Rank 1 never finalizes: rank 0's stays in progress. */
static void finalize_alone(member *m) {
  int error = 0;
  need_comm(m, 0);
  if (m->rank == 0) {
    need(m->nccl.finalize(m->comms[0]) == NCCL_DOUBLE_IN_PROGRESS, "ncclCommFinalize");
    for (int i = 0; i < 50; ++i, nap_us(200)) {
      need(m->nccl.get_error(m->comms[0], &error) == 0 && error == NCCL_DOUBLE_IN_PROGRESS,
           "it is final before the other: %d", error);
    }
    atomic_store(&m->board->flags[0], 1);
  }
  await_flag(m, 0, 1);
  if (m->rank == 0)
    need(m->nccl.abort(m->comms[0]) == NCCL_DOUBLE_SUCCESS, "ncclCommAbort");
}

static void test_finalizing_waits_for_all(void) {
  expect_team(2, finalize_alone);
}

static void use_closed(member *m) {
  need_comm(m, 0);
  close_comm(m, 0);
  (void)m->nccl.group_start();
  (void)sum(m, m->comms[0]);
}

static void test_closed_communicators_are_named(void) {
  expect_words(1, use_closed, "the communicator is not open, or has been closed");
}

/* A connection that is first used when others have been for a while. */
static void connect_late(member *m) {
  need_comm(m, 0);
  for (int k = 0; k < 2; ++k)
    launched(m, m->comms[0], sum(m, m->comms[0]));
  finish(m, 0);
  const int result =
      m->rank == 0 ? m->nccl.send(m->memory, 1, NCCL_DOUBLE_INT8, 1, m->comms[0], m->streams[0])
                   : m->nccl.recv(m->memory, 1, NCCL_DOUBLE_INT8, 0, m->comms[0], m->streams[0]);
  launched(m, m->comms[0], result);
  finish(m, 0);
  close_comm(m, 0);
}

static void test_late_connections_are_named(void) {
  expect_team(2, connect_late);
  (void)setenv("OPIPE_NCCL_DOUBLE_LATE", "die", 1);
  expect_words(2, connect_late, "a connection is made lazily");
  (void)unsetenv("OPIPE_NCCL_DOUBLE_LATE");
}

OPI_TEST_MAIN("ends of NCCL's double", OPI_TEST(test_opening_waits_for_all),
              OPI_TEST(test_arguments_are_looked_at), OPI_TEST(test_duplicate_gpus_are_refused),
              OPI_TEST(test_versions_that_differ_are_refused), OPI_TEST(test_splits),
              OPI_TEST(test_streams_are_used_behind_launches_only),
              OPI_TEST(test_memory_is_not_freed_early), OPI_TEST(test_memory_is_the_devices),
              OPI_TEST(test_faults_are_as_asked), OPI_TEST(test_finalizing_waits_for_all),
              OPI_TEST(test_closed_communicators_are_named),
              OPI_TEST(test_late_connections_are_named))
