/* SPDX-License-Identifier: Apache-2.0 */
/* Defects of transports between processes: things left behind, a board that is misused. */
#ifndef CONFORMANCE_SEEDED_TRANSPORT_LEFT_H
#define CONFORMANCE_SEEDED_TRANSPORT_LEFT_H

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "seeded.h"

static void *sleep_for_ever(void *arg) {
  const struct timespec hour = {.tv_sec = 3600};
  for (;;)
    (void)nanosleep(&hour, arg);
  return NULL;
}

/* Takes, when a world is opened, things that stay when it is closed. False: refused. */
static bool leave_behind(const opipe_world_params *params, opipe_error *err) {
  pthread_t thread;
  if (seeded("descriptor-left"))
    (void)syscall(SYS_memfd_create, "left", 0u);
  if (seeded("mapping-left"))
    (void)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (seeded("thread-left"))
    (void)!pthread_create(&thread, NULL, sleep_for_ever, NULL);
  if (!OPIPE_HAS(params, opipe_world_params, board) || params->board == NULL)
    return true;
  const opipe_board *board = params->board;
  if (seeded("board-key-twice")) {
    (void)board->post(board->ctx, "seeded", "1", 1, err);
    return board->post(board->ctx, "seeded", "2", 1, err) == OPIPE_OK;
  }
  if (seeded("board-key-long")) {
    static char key[2 * OPIPE_BOARD_KEY];
    memset(key, 'k', sizeof key - 1);
    return board->post(board->ctx, key, "1", 1, err) == OPIPE_OK;
  }
  return true;
}

#endif /* CONFORMANCE_SEEDED_TRANSPORT_LEFT_H */
