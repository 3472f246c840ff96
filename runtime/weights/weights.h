/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a training session: per stage instance (stage, replica) a parameter set (two of them
 * under double buffering), a gradient set and optimizer state; who sums what with whom; the step.
 *
 * A parameter belongs to every instance whose stage reads it (replicas of a stage; ties between
 * stages). Each has its own copy, gradient and state; gradients are summed over all of them in the
 * order (stage, replica), then every copy is updated alike, so all copies keep equal bits. Within a
 * stage the sum runs over its replicas through the transport's all_reduce, one region per
 * instance; ties between stages are then added in dense form.
 */
#ifndef OPI_WEIGHTS_H
#define OPI_WEIGHTS_H

#include "partition/plan.h"
#include "runtime/budget.h"

/* One stage instance as the executor has built it; programs are compiled, nothing is bound. All
 * borrowed. */
typedef struct opi_weight_instance {
  uint32_t rank, stage, replica, n_programs;
  const opi_backend_ref *backend;
  opipe_device *device;
  opipe_queue *queue;
  opipe_endpoint *endpoint;
  opipe_program *const *programs; /* [n_programs] all that read its parameters or accumulate */
  const uint32_t *params;         /* [n_params] slots of the table below that the stage reads */
  uint32_t n_params;
} opi_weight_instance;

typedef struct opi_weights_options {
  const opipe_allocator *allocator;
  const opi_optimizer *optimizer;
  const opi_weight_instance *instances; /* [n_stages * n_replicas], stage * n_replicas + replica */
  const opipe_param_source *sources;    /* [n_sources] the parameter table: name, initial values */
  const bool *trained;                  /* [n_sources] */
  opi_transport_ref transport;
  opi_budget *budget;
  uint32_t n_stages, n_replicas, n_ranks, n_sources;
  uint32_t n_versions;     /* 1; 2: double buffered */
  uint32_t keep_gradients; /* 1: gradients of the last step can be read until the next */
} opi_weights_options;

typedef struct opi_weights opi_weights;

/* Makes all sets and state. Errors: LIMIT names instance, bytes wanted and left. [control] */
opipe_status opi_weights_open(const opi_weights_options *options, opi_weights **out_weights,
                              opipe_error *err);
void opi_weights_close(opi_weights *weights); /* accepts NULL */
/* For bind. version 0: newest. */
opipe_params *opi_weights_params(opi_weights *weights, uint32_t instance, uint32_t version);
opipe_params *opi_weights_gradients(opi_weights *weights, uint32_t instance);

/* -- on the rank's own thread; OPIPE_PENDING: a peer is not there yet, call again. None allocates
 * -- */
/* Sums the gradients of (stage, replica) over the replicas of its stage. Every replica calls it
 * once per mini-batch. */
opipe_status opi_weights_reduce(opi_weights *weights, uint32_t instance, opipe_error *err);
/* After its instances' reductions: ties, norm, clip, update of all instances of `rank`. */
opipe_status opi_weights_step(opi_weights *weights, uint32_t rank, opipe_error *err);

/* -- between steps [control] -- */
typedef struct opi_step_report {
  uint64_t step;
  double gradient_norm; /* of all parameters, before clipping, loss scale taken out */
  double lr, loss_scale;
  uint32_t skipped; /* 1: an overflow under loss scaling, no update */
  uint32_t reserved;
} opi_step_report;
void opi_weights_report(const opi_weights *weights, opi_step_report *out_report);
double opi_weights_loss_scale(const opi_weights *weights); /* for the next step */

enum { OPI_STATE_WEIGHT = 0, OPI_STATE_GRADIENT = 1, OPI_STATE_FIRST = 2, OPI_STATE_SECOND = 3 };
/* Dense fp32 (weights: the initializer's own type) by name; `version` of double-buffered weights.
 * set changes every copy. Errors: NOTFOUND names what there is; INVALID both byte counts. */
opipe_status opi_weights_get(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
opipe_status opi_weights_set(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, const void *src, uint64_t n_bytes, opipe_error *err);
uint64_t opi_weights_step_count(const opi_weights *weights);
void opi_weights_set_step_count(opi_weights *weights, uint64_t step);

/* Exact bytes of one instance by category, before anything is allocated: params, gradients,
 * optimizer, versions. Used by the plan's prediction with the same numbers. */

#endif /* OPI_WEIGHTS_H */
