/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes of some steps of training, and how far two of them are apart; see kit.h. */
#include <math.h>
#include <stdio.h>

#include "tests/runtime/train/kit.h"

enum { STEPS = KIT_STEPS, FLUSHED = 2 };

opipe_status kit_train_in(kit *k, opi_session *session, const kit_case *c, int64_t n_classes,
                          kit_outcome *out) {
  kit_batch batch;
  opi_request *tickets[STEPS] = {NULL};
  opipe_status status = OPIPE_OK;
  for (uint32_t s = 0; s < STEPS && status == OPIPE_OK; ++s) {
    status = kit_batch_random(k, c, n_classes, 100 + s, &batch);
    const opipe_submit_params params = {
        .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
        .n_inputs = batch.n_inputs,
        .io_stride = sizeof(opipe_binding_io),
        .inputs = batch.inputs};
    if (status == OPIPE_OK) /* some steps in flight at once */
      status = opi_train_step(session, &params, &tickets[s], NULL, &k->err);
    if (s == FLUSHED && status == OPIPE_OK)
      status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
  }
  if (status == OPIPE_OK)
    status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
  for (uint32_t s = 0; s < STEPS && status == OPIPE_OK; ++s) {
    opi_train_result result = {.loss = 0};
    status = opi_train_report(tickets[s], &result, &k->err);
    out->losses[s] = result.loss;
  }
  for (uint32_t s = 0; s < STEPS; ++s)
    opi_request_release(tickets[s]);
  return status != OPIPE_OK ? status
                            : kit_state(k, session, OPI_TENSOR_WEIGHT, &out->weights, &out->n);
}

opipe_status kit_train(kit *k, const kit_case *c, int64_t n_classes, uint32_t flags,
                       kit_outcome *out) {
  opi_session *session = NULL;
  opipe_status status = kit_session(k, flags, &session);
  if (status == OPIPE_OK)
    status = kit_train_in(k, session, c, n_classes, out);
  opi_session_close(session);
  return status;
}

void kit_compare(const char *what, const kit_outcome *a, const kit_outcome *b, double tolerance) {
  double far = 0, most = 0;
  bool same = a->n == b->n;
  for (uint32_t s = 0; s < STEPS; ++s) {
    if (tolerance == 0 ? a->losses[s] != b->losses[s]
                       : !(fabs(a->losses[s] - b->losses[s]) <= tolerance * fabs(b->losses[s])))
      OPI_FAIL("%s: loss %.9g at step %u, wanted %.9g", what, a->losses[s], s, b->losses[s]);
  }
  for (size_t i = 0; same && i < a->n; ++i) {
    const double d = fabs((double)a->weights[i] - (double)b->weights[i]);
    far = d > far || d != d ? d : far;
    most = fabs((double)b->weights[i]) > most ? fabs((double)b->weights[i]) : most;
  }
  if (!same || !(far <= tolerance * most))
    OPI_FAIL("%s: weights are %g apart (largest %g)", what, far, most);
}

kit_case kit_case_of(const char *schedule, uint32_t n_ranks, uint32_t m, bool adam) {
  const opi_optimizer sgd = {.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.9};
  const opi_optimizer adamw = {.kind = OPIPE_OPTIMIZER_ADAMW,
                               .lr = 0.001,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .epsilon = 1e-4,
                               .decay = 0.01,
                               .clip_norm = 1.0};
  return (kit_case){
      .schedule = schedule,
      .n_ranks = n_ranks,
      .n_microbatches = m,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = adam ? adamw : sgd}};
}
