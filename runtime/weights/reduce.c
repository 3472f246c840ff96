/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of gradients: over the replicas of a stage as soon as they are complete, all parameters at
 * once; over stages, at the step, in the table's order.
 *
 * Nothing here waits. A rank that holds several instances starts all their parts before it asks for
 * a sum, so that two instances of one rank can be members of one group.
 */
#include "runtime/weights/state.h"

/* ---- replicas ---- */

static opipe_status fold(opi_instance *instance, opipe_error *err) {
  for (uint32_t k = 0; k < instance->n_trained; ++k) {
    OPI_TRY(OPI_ASK("backend", instance->env.backend, gradients_fold, err, instance->gradients,
                    instance->env.queue, instance->trained[k].slot));
  }
  return OPIPE_OK;
}

/* Is there anything to add to the instance's gradient of a parameter? */
static bool is_shared(const opi_instance *instance, const opi_weight_param *p) {
  return instance->has_replicas && !p->tied;
}

static opipe_status begin_sum(opi_instance *instance, opipe_error *err) {
  OPI_TRY(fold(instance, err));
  for (uint32_t k = 0; k < instance->n_trained; ++k)
    instance->trained[k].summed = !is_shared(instance, &instance->trained[k]);
  instance->sum = OPI_SUM_RUNS;
  return OPIPE_OK;
}

/* Gives all parts that have not been given. */
static opipe_status start_parts(opi_weights *w, opi_instance *instance, opipe_error *err) {
  for (uint32_t k = 0; k < instance->n_trained; ++k) {
    opi_weight_param *p = &instance->trained[k];
    if (p->summed || p->replicas.pending != 0)
      continue;
    const opipe_status status =
        opi_member_start(w, instance, &p->replicas, &p->gradient, OPIPE_FLOAT, err);
    if (status < 0)
      return status;
  }
  return OPIPE_OK;
}

/* Asks for all sums that are not there. */
static opipe_status test_parts(opi_weights *w, opi_instance *instance, bool *io_moved,
                               opipe_error *err) {
  bool all = true;
  for (uint32_t k = 0; k < instance->n_trained; ++k) {
    opi_weight_param *p = &instance->trained[k];
    if (!p->summed && p->replicas.pending != 0) {
      const opipe_status status = opi_member_test(w, instance, &p->replicas, err);
      if (status < 0)
        return status;
      p->summed = status == OPIPE_OK;
      *io_moved = *io_moved || p->summed;
    }
    all = all && p->summed;
  }
  if (all)
    instance->sum = OPI_SUM_DONE;
  return OPIPE_OK;
}

/* All sums that have begun, until none moves any more. */
static opipe_status advance_rank(opi_weights *w, opi_weight_rank *rank, opipe_error *err) {
  bool moved = true, pending = true;
  while (moved && pending) {
    moved = pending = false;
    for (uint32_t i = 0; i < rank->n_instances; ++i) {
      if (rank->instances[i]->sum == OPI_SUM_RUNS)
        OPI_TRY(start_parts(w, rank->instances[i], err));
    }
    for (uint32_t i = 0; i < rank->n_instances; ++i) {
      if (rank->instances[i]->sum != OPI_SUM_RUNS)
        continue;
      OPI_TRY(test_parts(w, rank->instances[i], &moved, err));
      pending = pending || rank->instances[i]->sum == OPI_SUM_RUNS;
    }
    moved = moved && rank->n_instances > 1;
  }
  return pending ? OPIPE_PENDING : OPIPE_OK;
}

opipe_status opi_weights_reduce(opi_weights *weights, uint32_t index, opipe_error *err) {
  opi_instance *instance = &weights->instances[weights->instance_at[index]];
  if (instance->sum != OPI_SUM_IDLE) {
    return opi_fail(err, OPIPE_E_STATE,
                    "stage %u, replica %u: its gradients are reduced a second time",
                    instance->env.stage, instance->env.replica);
  }
  OPI_TRY(begin_sum(instance, err));
  const opipe_status status = advance_rank(weights, &weights->ranks[instance->env.rank], err);
  return status < 0 ? status : OPIPE_OK;
}

opipe_status opi_weights_progress(opi_weights *weights, uint32_t rank, opipe_error *err) {
  return advance_rank(weights, &weights->ranks[rank], err);
}

bool opi_weights_is_summed(const opi_weights *weights, uint32_t index) {
  return weights->instances[weights->instance_at[index]].sum == OPI_SUM_DONE;
}

opipe_status opi_rank_sum(opi_weights *weights, opi_weight_rank *rank, opipe_error *err) {
  for (uint32_t i = 0; i < rank->n_instances; ++i) {
    if (rank->instances[i]->sum == OPI_SUM_IDLE)
      OPI_TRY(begin_sum(rank->instances[i], err));
  }
  return advance_rank(weights, rank, err);
}

/* ---- ties ---- */

static opi_weight_param *param_of(const opi_instance *instance, uint32_t slot) {
  for (uint32_t k = 0; k < instance->n_trained; ++k) {
    if (instance->trained[k].slot == slot)
      return &instance->trained[k];
  }
  return NULL;
}

static opipe_region dense_region(const opi_instance *instance, const opi_weight_param *p) {
  return (opipe_region){.buffer = instance->dense, .n_bytes = p->dense_bytes};
}

static opipe_status start_tie(opi_weights *w, opi_instance *instance, opi_weight_param *p,
                              opipe_error *err) {
  if (!p->dense)
    return opi_member_start(w, instance, &p->tie, &p->gradient, OPIPE_FLOAT, err);
  const opipe_region dense = dense_region(instance, p);
  if (!p->tie.asked) {
    OPI_TRY(OPI_ASK("backend", instance->env.backend, params_export, err, instance->gradients,
                    instance->env.queue, p->slot, &dense));
  }
  return opi_member_start(w, instance, &p->tie, &dense, OPIPE_FLOAT, err);
}

static opipe_status end_tie(opi_weights *w, opi_instance *instance, opi_weight_param *p,
                            opipe_error *err) {
  const opipe_status status = opi_member_test(w, instance, &p->tie, err);
  if (status != OPIPE_OK || !p->dense)
    return status;
  const opipe_region dense = dense_region(instance, p);
  return OPI_ASK("backend", instance->env.backend, params_import, err, instance->gradients,
                 instance->env.queue, p->slot, &dense);
}

static opipe_status run_tie(opi_weights *w, opi_weight_rank *rank, uint32_t slot, bool start,
                            opipe_error *err) {
  bool pending = false;
  for (uint32_t i = 0; i < rank->n_instances; ++i) {
    opi_instance *instance = rank->instances[i];
    opi_weight_param *p = param_of(instance, slot);
    if (p == NULL || (start ? p->tie_started : p->tie_ended))
      continue;
    const opipe_status status =
        start ? start_tie(w, instance, p, err) : end_tie(w, instance, p, err);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING) {
      pending = true;
      continue;
    }
    if (start)
      p->tie_started = true;
    else
      p->tie_ended = true;
  }
  return pending ? OPIPE_PENDING : OPIPE_OK;
}

static void reset_tie(opi_weight_rank *rank, uint32_t slot) {
  for (uint32_t i = 0; i < rank->n_instances; ++i) {
    opi_weight_param *p = param_of(rank->instances[i], slot);
    if (p != NULL)
      p->tie_started = p->tie_ended = false;
  }
}

opipe_status opi_rank_ties(opi_weights *weights, opi_weight_rank *rank, opipe_error *err) {
  while (rank->tie < weights->n_ties) {
    const uint32_t slot = weights->ties[rank->tie];
    opipe_status status = run_tie(weights, rank, slot, true, err);
    if (status == OPIPE_OK)
      status = run_tie(weights, rank, slot, false, err);
    if (status != OPIPE_OK)
      return status;
    reset_tie(rank, slot);
    ++rank->tie;
  }
  rank->tie = 0;
  return OPIPE_OK;
}
