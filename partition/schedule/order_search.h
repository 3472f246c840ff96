/* SPDX-License-Identifier: Apache-2.0 */
/* A search for better orders, as whoever makes plans is handed it: partition/study/improve fills
 * the table in. And the names of schedules that no plugin has. */
#ifndef OPI_ORDER_SEARCH_H
#define OPI_ORDER_SEARCH_H

#include "partition/schedule/ask.h"

/* "search", with or without options? NULL: no. */
bool opi_is_search(const char *spec);
/* The name of an order of another system, to be compared with? NULL: no. */
bool opi_is_baseline(const char *schedule);

/* How far to look. Zeros are presets. */
typedef struct opi_improve_effort {
  uint64_t moves; /* 0: OPI_IMPROVE_MOVES */
  uint64_t seed;
  bool whole;    /* backwards are not cut in halves */
  bool no_exact; /* small problems too are searched, not solved */
} opi_improve_effort;

typedef struct opi_search_request {
  opi_improve_effort effort;
  const char *from; /* NULL: the best */
} opi_search_request;

/* Lists, proof, bytes against caps and times of the plan's actions, as they are now. */
typedef opipe_status (*opi_finish_fn)(void *ctx, opipe_error *err);

typedef struct opi_order_search {
  /* spec may be NULL, and need be no search: then the request begins with it. In `arena`. Errors:
   * INVALID, an option that there is not, a number out of range, a search from a search. */
  opipe_status (*parse)(const char *spec, opi_arena *arena, opi_search_request *out_request,
                        opipe_error *err);
  /* The schedule, "NAME:key=value" in `arena`, whose order takes least by the question's costs.
   * Errors: UNSUPPORTED, there is none. */
  opipe_status (*best)(const opi_plugins *plugins, const opi_question *question, opi_arena *arena,
                       const char **out_spec, opipe_error *err);
  /* The plan has an order that fits, with its times. It keeps that one unless a better one is
   * found; it says that it was searched either way (schedule, settings, searched). Without
   * request->from the best named schedule in the same places is another beginning. Errors:
   * UNSUPPORTED, double-buffered weights, recomputation as actions, copies that take requests in
   * turn; NOMEM; what finish() says but LIMIT. */
  opipe_status (*improve)(const opi_plugins *plugins, const opi_search_request *request,
                          const char *from, opi_plan *plan, opi_finish_fn finish, void *ctx,
                          opipe_error *err);
} opi_order_search;

#endif /* OPI_ORDER_SEARCH_H */
