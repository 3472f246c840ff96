/* SPDX-License-Identifier: Apache-2.0 */
/* A better order for a plan that is made: searched by the times of its stages and links, taken
 * where the play of the lists that run says that it is better, and it fits. */
#ifndef OPI_IMPROVE_PLAN_H
#define OPI_IMPROVE_PLAN_H

#include "partition/study/improve/ask.h"

/* Lists, proof, bytes against caps and times of the plan's actions, as they are now. */
typedef opipe_status (*opi_finish_fn)(void *ctx, opipe_error *err);

/* The plan has an order that fits, with its times. It keeps that one unless a better one is found;
 * it says that it was searched either way (schedule, settings, searched). Without request->from the
 * best named schedule in the same places is another beginning. Errors: UNSUPPORTED, double-buffered
 * weights, recomputation as actions, copies that take requests in turn; NOMEM; what finish() says
 * but LIMIT. */
opipe_status opi_improve_plan(const opi_plugins *plugins, const opi_search_request *request,
                              const char *from, opi_plan *plan, opi_finish_fn finish, void *ctx,
                              opipe_error *err);

#endif /* OPI_IMPROVE_PLAN_H */
