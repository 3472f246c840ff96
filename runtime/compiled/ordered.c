/* SPDX-License-Identifier: Apache-2.0 */
/* Events by which batches of messages are queued with the work of asynchronous devices, where the
 * transport can do that (recv_after): one behind the work before a batch, one of the transport's
 * behind the batch, for each end of a message.
 */
#include "runtime/compiled/build.h"

static bool can_order(const opi_compiled *t) {
  const opi_setup *s = t->setup;
  const opipe_transport *table = s->transport;
  return !s->reference && s->plan->decided.link.rule == OPIPE_RULE_GROUPED &&
         OPIPE_HAS(table, opipe_transport, recv_after) && table->recv_after != NULL &&
         table->batch_begin != NULL;
}

/* The rank's, if its device is asynchronous; NULL: it is not, or elsewhere. */
static opi_rank *queueing(const opi_setup *s, uint32_t r) {
  return opi_rank_is_here(s, r) && s->ranks[r].event != NULL ? &s->ranks[r] : NULL;
}

static opipe_status make_end(opi_rank *rank, opi_message_end *end, opipe_error *err) {
  if (rank == NULL)
    return OPIPE_OK;
  OPI_TRY(OPI_MAKE_RANK(rank, event_create, &end->ready, err, rank->device));
  return OPI_MAKE_RANK(rank, event_create, &end->done, err, rank->device);
}

/* An operation that stands alone is a batch, too. */
static void batch_all(opi_lists *lists, uint32_t r) {
  uint32_t left = 0;
  for (uint32_t i = lists->rank_first[r]; i < lists->rank_first[r + 1]; ++i) {
    opi_step *step = &lists->steps[i];
    left = step->batch != 0 ? step->batch : left;
    if (left == 0 && (step->kind == OPI_ACT_POST || step->kind == OPI_ACT_SEND))
      step->batch = left = 1;
    left -= left != 0 ? 1 : 0;
  }
}

opipe_status opi_batches_make(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  if (!can_order(t))
    return OPIPE_OK;
  for (uint32_t i = 0; i < t->lists->n_messages; ++i) {
    opi_message_run *m = &t->messages[i];
    OPI_TRY(make_end(queueing(s, m->src_rank), &m->src, err));
    OPI_TRY(make_end(queueing(s, m->dst_rank), &m->dst, err));
  }
  for (uint32_t i = 0; i < s->n_here; ++i) {
    if (queueing(s, s->here[i]) != NULL)
      batch_all(t->lists, s->here[i]);
  }
  return OPIPE_OK;
}

static void free_end(const opi_rank *rank, opi_message_end *end) {
  if (end->ready != NULL)
    rank->backend->event_destroy(end->ready);
  if (end->done != NULL)
    rank->backend->event_destroy(end->done);
  *end = (opi_message_end){NULL, NULL};
}

void opi_batches_stop(opi_compiled *t) {
  const opi_rank *ranks = t->setup->ranks;
  for (uint32_t i = 0; t->messages != NULL && i < t->lists->n_messages; ++i) {
    opi_message_run *m = &t->messages[i];
    free_end(&ranks[m->src_rank], &m->src);
    free_end(&ranks[m->dst_rank], &m->dst);
  }
}
