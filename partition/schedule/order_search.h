/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a search for better orders; plan making is handed the table,
 * partition/study/improve fills it in. Also the names of schedules that belong to no plugin. */
#ifndef OPI_ORDER_SEARCH_H
#define OPI_ORDER_SEARCH_H

#include "partition/schedule/ask.h"

/* Whether spec is "search", with or without options; NULL: no. */
bool opi_is_search(const char *spec);
/* Whether the name is an order of another system, for comparison; NULL: no. */
bool opi_is_baseline(const char *schedule);

/* The effort of a search. Zeros are presets. */
typedef struct opi_improve_effort {
  uint64_t moves; /* 0: OPI_IMPROVE_MOVES */
  uint64_t seed;
  bool whole;    /* backwards are not split */
  bool no_exact; /* small problems are searched too, not solved */
} opi_improve_effort;

typedef struct opi_search_request {
  opi_improve_effort effort;
  const char *from; /* NULL: the best */
} opi_search_request;

/* Makes lists, proof, bytes against caps and times of the plan's current actions. */
typedef opipe_status (*opi_finish_fn)(void *ctx, opipe_error *err);

typedef struct opi_order_search {
  /* Parses spec into a new request; NULL, or a spec that is no search, only initializes it.
   * Allocates in `arena`. Errors: INVALID, an unknown option, a number out of range, a search that
   * starts from a search. */
  opipe_status (*parse)(const char *spec, opi_arena *arena, opi_search_request *out_request,
                        opipe_error *err);
  /* Finds the schedule, "NAME:key=value" in `arena`, whose order takes the least time by the
   * question's costs. Errors: UNSUPPORTED, there is none. */
  opipe_status (*best)(const opi_plugins *plugins, const opi_question *question, opi_arena *arena,
                       const char **out_spec, opipe_error *err);
  /* Improves the plan's order, which fits and has its times, and keeps it if nothing better is
   * found; either way the plan records the search (schedule, settings, searched). Without
   * request->from, the best named schedule in the same places is a second start. Errors:
   * UNSUPPORTED, double-buffered weights, recomputation as actions, copies that take requests in
   * turn; NOMEM; errors of finish() except LIMIT. */
  opipe_status (*improve)(const opi_plugins *plugins, const opi_search_request *request,
                          const char *from, opi_plan *plan, opi_finish_fn finish, void *ctx,
                          opipe_error *err);
} opi_order_search;

#endif /* OPI_ORDER_SEARCH_H */
