/* SPDX-License-Identifier: Apache-2.0 */
/* transport-shm between processes: messages into the receiver's memory, sums, and a process that is
 * killed at any instant is an error in the other. ctest: timeout=120
 */
#include <signal.h>

#include "tests/plugins/transport-shm/pair.h"

enum { MESSAGES = 200, KILLS = 8 };

static opipe_status exchange(end *e, uint32_t rank, uint64_t q) {
  const uint64_t n = 64 + q % 7 * 512;
  const opipe_region to = {e->slots, q % 2 * (BYTES / 2), BYTES / 2}, from = {e->own, 0, n};
  UNTIL(e, e->t->recv(e->in, q, &to, NULL, &e->err));
  UNTIL(e, e->t->reserve(e->out, q, &e->err));
  memset(opipe_host_at(&from), (int)(q + rank) % 251, n);
  UNTIL(e, e->t->send(e->out, q, &from, NULL, NULL, &e->err));
  UNTIL(e, e->t->test(e->out, q, &e->err));
  UNTIL(e, e->t->test(e->in, q, &e->err));
  const unsigned char *got = opipe_host_at(&to);
  for (uint64_t i = 0; i < n; ++i) {
    if (got[i] != (q + 1 - rank) % 251) {
      return opipe_fail(&e->err, OPIPE_E_INTERNAL, "message %llu is not whole",
                        (unsigned long long)q);
    }
  }
  return OPIPE_OK;
}

static opipe_status sum(end *e, uint32_t rank, uint64_t round) {
  const opipe_region all = {e->own, 0, SUMMED * sizeof(float)};
  float *values = opipe_host_at(&all);
  for (uint64_t i = 0; i < SUMMED; ++i)
    values[i] = (float)i * 0.1F + (float)rank;
  UNTIL(e, e->t->all_reduce(e->group, round, &all, SUMMED, OPIPE_FLOAT, NULL, NULL, &e->err));
  UNTIL(e, e->t->group_test(e->group, round, &e->err));
  for (uint64_t i = 0; i < SUMMED; ++i) {
    if (values[i] != (float)i * 0.1F + ((float)i * 0.1F + 1))
      return opipe_fail(&e->err, OPIPE_E_INTERNAL, "sum %llu is wrong", (unsigned long long)i);
  }
  return OPIPE_OK;
}

static opipe_status play(uint32_t rank, note *notes, uint64_t n_messages) {
  end e = {.patience_ns = UINT64_C(10000000000)};
  opipe_status status = open_end(&e, rank, notes);
  for (uint64_t q = 0; q < n_messages && status == OPIPE_OK; ++q) {
    status = exchange(&e, rank, q);
    if (status == OPIPE_OK && q % 10 == 0)
      status = sum(&e, rank, q / 10);
  }
  if (status < 0 && status != OPIPE_E_PEER)
    (void)fprintf(stderr, "rank %u: %s\n", rank, e.err.message);
  if (status == OPIPE_OK)
    close_end(&e);
  return status;
}

static pid_t begin(uint32_t rank, note *notes, uint64_t n_messages) {
  const pid_t pid = fork();
  if (pid == 0) {
    (void)alarm(20); /* never a hang */
    _exit(-play(rank, notes, n_messages) & 0x7f);
  }
  return pid;
}

static void test_messages_and_sums(void) {
  note *notes = new_board();
  const pid_t a = begin(0, notes, MESSAGES), b = begin(1, notes, MESSAGES);
  OPI_ASSERT_INT(status_of(a), 0);
  OPI_ASSERT_INT(status_of(b), 0);
  (void)munmap(notes, N_NOTES * sizeof *notes);
}

/* At any instant once both have met: the other ends with PEER, in time. */
static void test_a_killed_process_is_an_error_in_the_other(void) {
  for (uint32_t i = 0; i < KILLS; ++i) {
    note *notes = new_board();
    const pid_t pids[2] = {begin(0, notes, UINT64_MAX), begin(1, notes, UINT64_MAX)};
    const struct timespec pause = {.tv_nsec = (long)(200 + 13 * i) * 1000000};
    (void)nanosleep(&pause, NULL);
    const uint64_t start = now_ns(NULL);
    (void)kill(pids[i % 2], SIGKILL);
    OPI_ASSERT_INT(status_of(pids[i % 2]), 256 + SIGKILL);
    OPI_ASSERT_INT(status_of(pids[1 - i % 2]), -OPIPE_E_PEER & 0x7f);
    OPI_ASSERT(now_ns(NULL) - start < UINT64_C(2000000000));
    (void)munmap(notes, N_NOTES * sizeof *notes);
  }
}

OPI_TEST_MAIN("transport-shm between processes", OPI_TEST(test_messages_and_sums),
              OPI_TEST(test_a_killed_process_is_an_error_in_the_other))
