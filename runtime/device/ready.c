/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the set-up of the local endpoints until messages can use what was opened on them. */
#include "runtime/device/ready.h"

#include <inttypes.h>
#include <time.h>

#include "runtime/base/base.h"

enum { AGAIN_NS = 100000 };

static opipe_status check_board(const opipe_board *board, opipe_error *err) {
  char why[OPIPE_BOARD_BYTES + 1];
  uint64_t n = sizeof why - 1;
  if (board == NULL || board->look(board->ctx, OPI_READY_REFUSED, why, &n, err) != OPIPE_OK)
    return OPIPE_OK;
  why[n] = '\0';
  return opi_fail(err, OPIPE_E_PEER, "%s", why);
}

opipe_status opi_endpoints_ready(const opi_ready *what, opipe_error *err) {
  const opi_transport_ref *via = what->transport;
  const struct timespec again = {.tv_nsec = AGAIN_NS};
  if (via->table->endpoint_ready == NULL)
    return OPIPE_OK;
  const uint64_t until = opi_later_ns(opi_clock_ns(), what->timeout_ns);
  for (;;) {
    uint32_t waits = OPIPE_NONE;
    for (uint32_t i = 0; i < what->n; ++i) {
      const opipe_status status =
          OPI_POLL("transport", via, endpoint_ready, err, what->endpoint(what->ctx, i));
      if (status < 0)
        return status;
      if (status == OPIPE_PENDING && waits == OPIPE_NONE)
        waits = i;
    }
    if (waits == OPIPE_NONE)
      return OPIPE_OK;
    OPI_TRY(check_board(what->board, err));
    if (opi_clock_ns() >= until) {
      return opi_fail(err, OPIPE_E_TIMEOUT,
                      "transport '%s': the endpoint of rank %u was not ready within %" PRIu64 " ms",
                      via->id, waits, what->timeout_ns / 1000000);
    }
    (void)nanosleep(&again, NULL);
  }
}
