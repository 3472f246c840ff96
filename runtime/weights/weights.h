/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/weights, with tensors.h. Weights of a training session: per rank a parameter set
 * (two of them under double buffering), a gradient set and optimizer state; who sums what with
 * whom; the step.
 *
 * A parameter belongs to every rank with a stage instance that reads it (replicas of a stage; ties
 * between stages), which holds it once: instances of one rank add to one gradient, in the order of
 * the rank's records. Gradients are summed over all these ranks, in the order (stage, replica) of
 * their first readers, then every copy is updated alike, so all copies keep equal bits. Sums run
 * through the transport's all_reduce, one member per rank in that order, on the layout that the
 * backend accumulates in; parameters that several stages, or several instances of a rank, read are
 * summed once at the step, in dense form where their layouts differ. The norm is added up parameter
 * by parameter in the table's order, so that it does not depend on who holds what. Without a
 * transport (the reference) one thread calls for all ranks in turn until all are done.
 */
#ifndef OPI_WEIGHTS_H
#define OPI_WEIGHTS_H

#include "partition/memory/weights.h"
#include "runtime/weights/tensors.h"

/* One stage instance as the executor has built it; programs are compiled, nothing is bound. All
 * borrowed. */
typedef struct opi_weight_instance {
  uint32_t rank, stage, replica, n_programs;
  const opi_backend_ref *backend; /* NULL: there is no such instance (unequal replicas) */
  opipe_device *device;
  uint32_t device_index; /* of the backend's devices: for budgets */
  uint32_t alignment;    /* of the device, 0: not known; asked for only elsewhere */
  uint32_t elsewhere;    /* 1: of another session; there is no device, queue, endpoint, program */
  uint32_t reserved;
  opipe_queue *queue;
  opipe_endpoint *endpoint;       /* NULL without a transport */
  opipe_program *const *programs; /* [n_programs] all that read its parameters or accumulate; NULL
                                     entries are passed over */
  const uint32_t *params;         /* [n_params] slots of the table below that the stage reads */
  uint32_t n_params;
} opi_weight_instance;

typedef struct opi_weights_options {
  const opipe_allocator *allocator;
  const opi_optimizer *optimizer;       /* copied, globs too */
  const opi_weight_instance *instances; /* [n_stages * n_replicas], stage * n_replicas + replica */
  const opipe_param_source *sources;    /* [n_sources] the parameter table: name, initial values;
                                           borrowed until close */
  const bool *trained;                  /* [n_sources] */
  opi_transport_ref transport;          /* table NULL: the reference */
  opi_budget *budget;                   /* may be NULL */
  uint32_t n_stages, n_replicas, n_ranks, n_sources;
  uint32_t n_versions;     /* 1; 2: double buffered */
  uint32_t keep_gradients; /* 1: gradients of the last step can be read until the next */
  uint32_t hold;           /* 1: a step that is not finite ends all updates: OPI_SKIP_HELD */
  uint32_t reserved;
  /* With instances elsewhere: `data` of rank `holder` comes to all sessions; `had`: how it was come
   * by there. Else NULL. */
  opipe_status (*share)(void *ctx, uint32_t holder, void *data, uint64_t n_bytes, opipe_status had,
                        opipe_error *io_err);
  void *share_ctx;
} opi_weights_options;

/* Pinned host memory that the rank's weights have; weights NULL: none. */
uint64_t opi_weights_pinned(const opi_weights *weights, uint32_t rank);

/* Makes all sets and state; all endpoints must be open. Errors: LIMIT names instance, bytes wanted
 * and left; UNSUPPORTED a backend that cannot train, a transport that cannot reduce. [control] */
opipe_status opi_weights_open(const opi_weights_options *options, opi_weights **out_weights,
                              opipe_error *err);
void opi_weights_close(opi_weights *weights); /* before the endpoints; accepts NULL */
/* For bind: set `set` (0 .. n_versions - 1) of an instance. Which set holds which version changes
 * with every step: bind a program to each, run the binding of opi_weights_set_of(). NULL: the
 * instance reads no parameters. */
opipe_params *opi_weights_params(opi_weights *weights, uint32_t instance, uint32_t set);
opipe_params *opi_weights_gradients(opi_weights *weights, uint32_t instance);

/* -- on the rank's own thread; OPIPE_PENDING: a peer is not there yet, call again. None allocates
 * or blocks -- */
/* The set that holds `version` (0: newest, 1: one older) for this rank now. */
uint32_t opi_weights_set_of(const opi_weights *weights, uint32_t rank, uint32_t version);
/* Before the rank's first backward of a mini-batch: clears gradients that were kept for reading. */
opipe_status opi_weights_begin(opi_weights *weights, uint32_t rank, opipe_error *err);
/* The gradients of (stage, replica) are complete: starts their sum over the replicas of the stage.
 * Once per mini-batch, or never (then the step does it). Does not wait: OPIPE_OK. */
opipe_status opi_weights_reduce(opi_weights *weights, uint32_t instance, opipe_error *err);
/* Moves the sums of this rank on, for idle moments. OPIPE_OK: nothing is under way; PENDING. */
opipe_status opi_weights_progress(opi_weights *weights, uint32_t rank, opipe_error *err);
/* Has the sum of an instance that began in this mini-batch ended? On its rank's thread. */
bool opi_weights_is_summed(const opi_weights *weights, uint32_t instance);
/* After the rank's last backward: what is left of the sums, ties, norm, clip, update of all
 * instances of `rank`. `finite`: is what this rank has of the loss a number? All ranks learn of it
 * with the norms. lr: the host's learning rate; NULL: the optimizer's. OPIPE_OK: the new version is
 * there. */
opipe_status opi_weights_step(opi_weights *weights, uint32_t rank, bool finite, const double *lr,
                              opipe_error *err);

/* Double-buffered ranks whose gradients nothing scales (opi_optimizer_steps_alone) judge their own
 * part and do not wait for each other's norms: the rank's report is whole once this, called between
 * programs and while the rank is idle, has answered OPIPE_OK. PENDING: call again. Elsewhere there
 * is nothing to settle. */
opipe_status opi_weights_settle(opi_weights *weights, uint32_t rank, opipe_error *err);
bool opi_weights_lags(const opi_weights *weights,
                      uint32_t rank); /* is there something to settle? */

/* Why a step changed no parameter. */
enum {
  OPI_SKIP_NONE = 0,       /* it was applied */
  OPI_SKIP_OVERFLOW = 1,   /* the norm, under a loss scale above 1, which is halved */
  OPI_SKIP_NOT_FINITE = 2, /* loss or norm */
  OPI_SKIP_HELD = 3        /* a step before was not finite, and nothing is applied since */
};

typedef struct opi_step_report {
  uint64_t step;        /* mini-batches done, this one included */
  double gradient_norm; /* of all parameters, before clipping, loss scale taken out */
  double lr, loss_scale;
  uint32_t skipped; /* OPI_SKIP_* */
  uint32_t reserved;
} opi_step_report;
/* Of the rank's last step; all ranks that hold anything have the same, the others have none. On the
 * rank's thread, or between steps. */
void opi_weights_report(const opi_weights *weights, uint32_t rank, opi_step_report *out_report);
/* The first rank here that has one. */
uint32_t opi_weights_reporter(const opi_weights *weights);
/* For the rank's next mini-batch. */
double opi_weights_loss_scale(const opi_weights *weights, uint32_t rank);

#endif /* OPI_WEIGHTS_H */
