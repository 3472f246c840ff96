/* SPDX-License-Identifier: Apache-2.0 */
/* Plays and timed orders as tracks of a page. */
#ifndef OPI_PLAY_PAGE_H
#define OPI_PLAY_PAGE_H

#include "partition/schedule/events.h"
#include "partition/study/page/page.h"
#include "partition/study/simulate/order_play.h"
#include "partition/study/simulate/report.h"

/* Adds a lane for each played rank, with the stashes of its programs and its idle time, and one for
 * each pair of ranks that exchanged messages. Figures are opi_play_describe's. A double-buffered
 * order shows the causes of a period in the middle. Errors: NOMEM. */
opipe_status opi_page_add_play(opi_page *page, const char *name, const opi_problem *problem,
                               const opi_order_played *played, const opi_play_report *report,
                               opi_arena *arena, opipe_error *err);

/* Bytes of an order's stages and ranks. */
typedef struct opi_page_kept {
  const double *stash;       /* [n_stages] per micro-batch, from its forward to its backward */
  const double *fixed, *cap; /* [n_ranks] always kept; 0: no cap */
} opi_page_kept;

/* The same for an order without links: costs per stage, a delay `comm` of messages. kept NULL:
 * stashes are counted in stage activations. figures: JSON; step: of a mini-batch. Errors: as
 * opi_timeline_build. */
opipe_status opi_page_add_order(opi_page *page, const char *name, const opi_problem *problem,
                                const opi_do_list *list, const opi_costs *costs,
                                const opi_page_kept *kept, const char *figures, double step,
                                opi_arena *arena, opipe_error *err);

#endif /* OPI_PLAY_PAGE_H */
