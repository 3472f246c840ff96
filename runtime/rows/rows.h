/* SPDX-License-Identifier: Apache-2.0 */
/* Passes computed by a session of a plan for generation: each is a request, padded to the smallest
 * class of rows that has room for it.
 *
 *   begin: arrays of a group ► submit      end: wait ► the request's logits      finish: release
 *
 * A group's arrays are read by ranks until its pass has ended. Passes run on every rank in the
 * order in which they began, so pages are written and read in that order. Other requests of the
 * session must not run meanwhile: they would write into its pages. */
#ifndef OPI_PASS_ROWS_H
#define OPI_PASS_ROWS_H

#include "runtime/generate/generate.h"
#include "runtime/requests/requests.h"

/* How a pass is submitted where other processes must hear of it; submit NULL: opi_session_submit.
 */
typedef struct opi_pass_caller {
  void *ctx;
  opipe_status (*submit)(void *ctx, const opipe_submit_params *params, opi_request **out_request,
                         opipe_error *err);
} opi_pass_caller;

/* Replicas of the session's plan, each with pages of its own: `home` of opi_rows_open. The
 * reference has one. */
uint32_t opi_rows_homes(const opi_session *session);
/* The session must outlive the runner. The pool's n_sequences is a proposal. Errors: STATE: the
 * plan is not one for generation; UNSUPPORTED, by name: a model with other inputs than ids, or
 * whose logits are not one row for each token. */
opipe_status opi_rows_open(opi_session *session, const opi_pass_caller *caller, uint32_t home,
                           opi_pass_runner *out_runner, opi_pass_facts *out_facts,
                           opipe_error *err);
/* Waits for passes in flight and drops them. Accepts a zeroed runner. */
void opi_rows_close(opi_pass_runner *runner);

#endif /* OPI_PASS_ROWS_H */
