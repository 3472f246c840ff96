/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule `search`: "search[:moves=N,seed=N,from=SPEC]". SPEC, which takes the rest, is the
 * schedule to begin with; without it the best of those that are there. */
#ifndef OPI_IMPROVE_ASK_H
#define OPI_IMPROVE_ASK_H

#include "partition/study/improve/improve.h"

/* What lists of schedules say of it. Returns how many options there are. */
extern const char *const opi_search_summary;
uint32_t opi_search_options(const opipe_schedule_option **out_options);
/* As opi_order_search has it. */
opipe_status opi_search_parse(const char *spec, opi_arena *arena, opi_search_request *out_request,
                              opipe_error *err);

/* As opi_order_ask (partition/schedule/ask.h), with a search or without one; always: improves
 * whatever is asked. A search that says only ranks has as many stages, one that says only stages as
 * many ranks. out_improved: NULL, or zeros without a search. Errors: of opi_order_ask,
 * opi_named_best, opi_improve_order. */
opipe_status opi_search_ask(const opi_plugins *plugins, const opi_question *question, bool always,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opi_improved *out_improved, opipe_error *err);

#endif /* OPI_IMPROVE_ASK_H */
