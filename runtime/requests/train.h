/* SPDX-License-Identifier: Apache-2.0 */
/* Training sessions: sessions whose plan trains.
 *
 *   opi_session_open -> opi_train_step -> opi_request_wait -> opi_train_report -> release, ...
 *                     opi_train_evaluate, opi_train_flush, opi_train_weights -> opi_session_close
 *
 * A ticket is an opi_request: poll, wait, output and release work as in inference. Steps are done
 * in the order of submission; step n + 1 may be submitted before step n has finished. Outputs of a
 * ticket:
 *
 *   0  "loss"  fp32, a scalar: the sum over the micro-batches
 *   1  logits  of the mini-batch, the loss's input; only of evaluations, if the loss has logits
 */
#ifndef OPI_TRAIN_H
#define OPI_TRAIN_H

#include "runtime/requests/serving.h"

/* check: STATE if the session is being closed, is of another process, or is for inference. refuse:
 * STATE for the last reason. */
opipe_status opi_train_check(const opi_session *session, opipe_error *err);
opipe_status opi_train_refuse(opipe_error *err);
/* Submits one mini-batch. Inputs are the model's and the labels (opi_train_spec.loss.labels), of
 * the whole batch and in any order; they are borrowed until the ticket has finished. With
 * loss.shift labels are given unshifted (row t of sample b is token t itself, int64 [batch,
 * tokens]). The only output is "loss". With double-buffered weights a ticket's loss comes with the
 * next step or a flush. OPIPE_PENDING: as submit. [any-thread] */
opipe_status opi_train_step(opi_session *session, const opipe_submit_params *params,
                            opi_request **out_ticket, opipe_request **out_handle, opipe_error *err);
/* Submits a forward without gradient and update; flushes first. Labels are needed for the loss. */
opipe_status opi_train_evaluate(opi_session *session, const opipe_submit_params *params,
                                opi_request **out_request, opipe_request **out_handle,
                                opipe_error *err);
/* Runs the rest of a double-buffered schedule, and waits until nothing is in flight. Host-driven:
 * OPIPE_PENDING as long as the caller has to drive. */
opipe_status opi_train_flush(opi_session *session, uint64_t timeout_ns, opipe_error *err);
/* To be called before weights, moments or the clock are read or written. Waits for steps submitted
 * before and holds those submitted later, until opi_train_go_on, which must follow an OPIPE_OK. One
 * thread at a time; others wait. OPIPE_E_STATE while the caller has to drive, and in a callback of
 * such a call. rest.c */
opipe_status opi_train_rest(opi_session *session, opipe_error *err);
/* The same for calls that only read weights and moments. It also succeeds for a failed session if
 * all ranks here have the weights of the same, last step. */
opipe_status opi_train_rest_to_read(opi_session *session, opipe_error *err);
void opi_train_go_on(opi_session *session);

typedef struct opi_train_result {
  opi_step_report step; /* of weights; evaluate: zeros */
  double loss;          /* of the mini-batch */
  double count;         /* valid labels (what the loss was divided by) */
  uint64_t step_ns;     /* wall time on the slowest rank */
} opi_train_result;
/* The report of a finished ticket; OPIPE_E_STATE before. */
opipe_status opi_train_report(opi_request *ticket, opi_train_result *out_result, opipe_error *err);

/* The session's weights, for get, set, save and load between steps (opi_train_rest). NULL: its plan
 * is for inference. */
opi_weights *opi_train_weights(opi_session *session);
/* Sets the number of mini-batches since training began, from which dropout's random numbers follow;
 * after a load. */
void opi_train_set_step(opi_session *session, uint64_t step);

#endif /* OPI_TRAIN_H */
