/* SPDX-License-Identifier: Apache-2.0 */
/* A timed order as a picture: one lane per rank, one box per compute. */
#ifndef OPI_DRAW_H
#define OPI_DRAW_H

#include "partition/schedule/events.h"

/* SVG 1.1, no script, no font files. Errors: as opi_timeline_build; LIMIT above 200000 computes. */
opipe_status opi_draw_order(const opi_problem *problem, const opi_do_list *list,
                            const opi_costs *costs, const opipe_allocator *allocator,
                            opi_text *text, opipe_error *err);

#endif /* OPI_DRAW_H */
