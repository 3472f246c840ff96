/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule `search`: "search[:moves=N,seed=N,from=SPEC]". SPEC extends to the end and names the
 * schedule to start from; without it, the best of the available ones. */
#ifndef OPI_IMPROVE_ASK_H
#define OPI_IMPROVE_ASK_H

#include "partition/study/improve/improve.h"

/* Summary and options for lists of schedules. Returns the number of options. */
extern const char *const opi_search_summary;
uint32_t opi_search_options(const opipe_schedule_option **out_options);
/* As opi_order_search specifies. */
opipe_status opi_search_parse(const char *spec, opi_arena *arena, opi_search_request *out_request,
                              opipe_error *err);

/* As opi_order_ask (partition/schedule/ask.h), with or without a search. always: improves the order
 * of any schedule. A search that gives only the number of ranks has as many stages, and vice versa.
 * out_improved: NULL, or zeros without a search. Errors: of opi_order_ask, opi_named_best,
 * opi_improve_order. */
opipe_status opi_search_ask(const opi_plugins *plugins, const opi_question *question, bool always,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opi_improved *out_improved, opipe_error *err);

#endif /* OPI_IMPROVE_ASK_H */
