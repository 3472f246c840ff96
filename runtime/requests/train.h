/* SPDX-License-Identifier: Apache-2.0 */
/* Training sessions: a session whose plan has a training part.
 *
 *   opi_session_open -> opi_train_step -> opi_request_wait -> opi_train_report -> release, ...
 *                     opi_train_evaluate, opi_train_flush, opi_train_weights -> opi_session_close
 *
 * A ticket is an opi_request: poll, wait, output, release work on it as ever; so do
 * opi_session_drive, opi_session_memory, opi_session_info. Steps are done in the order of
 * submission; step n + 1 may be submitted before step n has finished. Outputs of a ticket:
 *
 *   0  "loss"  fp32, rank 0: sum over the micro-batches
 *   1  logits  what the loss judges, of the mini-batch: only of evaluate, where there is one
 */
#ifndef OPI_TRAIN_H
#define OPI_TRAIN_H

#include "runtime/requests/serving.h"

/* STATE: the session is being closed or of another process; or its plan is for inference, which
 * alone is said by refuse. */
opipe_status opi_train_check(const opi_session *session, opipe_error *err);
opipe_status opi_train_refuse(opipe_error *err);
/* One mini-batch: inputs are the model's and the labels (opi_train_spec.loss.labels), whole batch,
 * any order; borrowed until the ticket has finished. With loss.shift labels are given unshifted
 * (row t of sample b is the token t itself, int64 [batch, tokens]). No outputs may be given but
 * "loss". With double-buffered weights a ticket's loss arrives only with the next step or a flush.
 * OPIPE_PENDING as submit. [any-thread] */
opipe_status opi_train_step(opi_session *session, const opipe_submit_params *params,
                            opi_request **out_ticket, opipe_request **out_handle, opipe_error *err);
/* Forward only, no gradient, no update; flushes first. Labels are needed, for the loss. */
opipe_status opi_train_evaluate(opi_session *session, const opipe_submit_params *params,
                                opi_request **out_request, opipe_request **out_handle,
                                opipe_error *err);
/* Runs what a double-buffered schedule has left over, and waits until nothing is in flight.
 * Host-driven: OPIPE_PENDING, while it is for the caller to drive. */
opipe_status opi_train_flush(opi_session *session, uint64_t timeout_ns, opipe_error *err);
/* Between steps, for what reads or writes weights, moments, clock: waits for the steps that were
 * submitted before, and holds back those that are submitted later, until opi_train_go_on, which
 * follows where OPIPE_OK was answered. One thread at a time, others wait. OPIPE_E_STATE while it is
 * for the caller to drive, and inside a callback of such a call. rest.c */
opipe_status opi_train_rest(opi_session *session, opipe_error *err);
/* The same for what only reads weights and moments: also of a session that has failed, where all
 * ranks here have those of one and the same step, the last that was done. */
opipe_status opi_train_rest_to_read(opi_session *session, opipe_error *err);
void opi_train_go_on(opi_session *session);

typedef struct opi_train_result {
  opi_step_report step; /* of weights; evaluate: zeros */
  double loss;          /* of the mini-batch */
  double count;         /* valid labels (what the loss was divided by) */
  uint64_t step_ns;     /* wall time on the slowest rank */
} opi_train_result;
/* Of a finished ticket; OPIPE_E_STATE before. */
opipe_status opi_train_report(opi_request *ticket, opi_train_result *out_result, opipe_error *err);

/* The session's, for get, set, save and load: only between steps (opi_train_rest). NULL: its plan
 * is for inference. */
opi_weights *opi_train_weights(opi_session *session);
/* A live session takes the plan's spec; this changes the dropout seed's stream position after a
 * load: mini-batches since training began. */
void opi_train_set_step(opi_session *session, uint64_t step);

#endif /* OPI_TRAIN_H */
