/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a schedule's text: one row per rank, cells by ',' or blanks, an empty cell is idle.
 *
 *   cell    action | (action;action)OVERLAP_F_B
 *   action  stage [@replica] KIND [micro-batch] [/slice] [~part] ['version] [+] [>peer [@replica]]
 *   KIND    F B I W R compute (R: the forward once more, in front of its B or I);
 *           SEND_F RECV_F SEND_B RECV_B REDUCE REDUCE_GRAD STEP FREE are passed over: the library
 *           places them; UNSHARD RESHARD OFFLOAD RELOAD, and what groups do, are refused
 *
 * A row may begin with its number, as "rank 2:"; a cell '-' is idle too. Lines that begin with '#'
 * are no rows (of their keys, ranks= and sync= are heeded), empty lines at the end neither: ranks
 * there that do nothing are known from ranks= alone. The text is hostile.
 */
#ifndef OPIPE_SCHEDULE_CSV_PARSE_H
#define OPIPE_SCHEDULE_CSV_PARSE_H

#include <opipe/orders.h>

/* B is the backward for the input and BW the whole one, as in older files. */
enum { CSV_B_IS_WHOLE = 0, CSV_B_IS_INPUT = 1 };

typedef opipe_status (*csv_visit_fn)(void *ctx, const opipe_action *action, uint32_t step,
                                     opipe_error *err);

typedef struct csv_head {
  uint32_t ranks; /* the header's, else rows */
  uint32_t sync;  /* OPIPE_SYNC_* */
} csv_head;

/* Calls `visit` for every compute action in order; `step` counts the row's actions of all kinds.
 * Errors: INVALID with rank, step and cell; what visit returns below zero. */
opipe_status csv_parse(const char *text, uint32_t dialect, csv_visit_fn visit, void *ctx,
                       csv_head *out_head, opipe_error *err);

#endif /* OPIPE_SCHEDULE_CSV_PARSE_H */
