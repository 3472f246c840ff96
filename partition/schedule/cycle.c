/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a deadlock: from a blocked rank to the rank it waits for, and on, until one repeats.
 * Only the cycle is reported; ranks that merely wait for it are left out. */
#include <stdio.h>

#include "partition/schedule/proof.h"

enum { PLACES_MOST = 160 }; /* bytes of two places */

opipe_status opi_tell_cycle(const opi_problem *problem, const opi_do_list *list, uint32_t rank,
                            opi_wait_fn fn, const void *ctx, const char *what, opi_arena *arena,
                            opipe_error *err) {
  char text[460];
  size_t at = 0;
  uint32_t left_out = 0;
  uint8_t *seen = OPI_ARENA_ARRAY(arena, uint8_t, list->n_ranks);
  if (seen == NULL)
    return opi_fail_nomem(err, list->n_ranks, "a deadlock's cycle");
  for (uint32_t pass = 0; pass < 2; ++pass) { /* first to the cycle, then around it */
    for (;;) {
      const opi_wait wait = fn(ctx, rank);
      const opi_do_place here = opi_place_of(problem, list, rank, wait.item);
      if (wait.maker == OPIPE_NONE)
        return opi_fail(err, OPIPE_E_INVALID, "%s waits for an action that no rank has", here.text);
      const uint32_t next = opi_rank_of_item(list, wait.maker);
      const opi_do_place on = opi_place_of(problem, list, next, wait.maker);
      if (pass == 1 && at + PLACES_MOST < sizeof text) {
        const int n = snprintf(text + at, sizeof text - at, "%s%s waits for %s",
                               at == 0 ? "" : "; ", here.text, on.text);
        at += n < 0 ? 0 : (size_t)n;
      } else if (pass == 1) {
        ++left_out;
      }
      seen[rank] = (uint8_t)(seen[rank] + 1);
      rank = next;
      if (seen[rank] == pass + 1)
        break;
    }
  }
  if (left_out > 0)
    (void)snprintf(text + at, sizeof text - at, "; and %u more", left_out);
  return opi_fail(err, OPIPE_E_INVALID, "%s: %s", what, text);
}
