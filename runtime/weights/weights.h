/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/weights, with tensors.h. The weights of a training session: on every rank a
 * parameter set (two under double buffering), a gradient set and optimizer state; the sums between
 * ranks; the step.
 *
 * A parameter belongs to every rank with a stage instance that reads it (replicas of a stage, ties
 * between stages). The rank holds it once, and its instances add to one gradient in the order of
 * the rank's records. Gradients are summed over all these ranks, in the order (stage, replica) of
 * their first readers, and every copy is updated alike, so that all copies keep equal bits. Sums
 * run through the transport's collects, or its all_reduce, one member per rank in that order, in
 * the layout that the backend accumulates in. Parameters that several stages read are summed at the
 * step, in dense form if their layouts differ. The norm is added up parameter by parameter in the
 * table's order. Without a transport (the reference) one thread calls for all ranks in turn until
 * all are done.
 */
#ifndef OPI_WEIGHTS_H
#define OPI_WEIGHTS_H

#include "partition/memory/weights.h"
#include "runtime/weights/tensors.h"

struct opi_param_part; /* partition/program/cut.h */

/* One stage instance. Its programs are compiled and not bound yet. All pointers are borrowed. */
typedef struct opi_weight_instance {
  uint32_t rank, stage, replica, n_programs;
  const opi_backend_ref *backend; /* NULL: there is no such instance (unequal replicas) */
  opipe_device *device;
  uint32_t device_index; /* among the backend's devices, for budgets */
  uint32_t alignment;    /* of the device, 0: unknown; used only if it is elsewhere */
  uint32_t elsewhere;    /* 1: in another session, without device, queue, endpoint, programs */
  uint32_t reserved;
  opipe_queue *queue;
  opipe_endpoint *endpoint;       /* NULL without a transport */
  opipe_program *const *programs; /* [n_programs] all that read its parameters or accumulate; NULL
                                     entries are skipped */
  const uint32_t *params;         /* [n_params] slots of the table below that the stage reads */
  const opipe_param_source *sources; /* [n_sources] with the rank's own data of what it reads; NULL:
                                        the table's */
  uint32_t n_params;
  uint32_t member; /* of the stage's tensor group */
} opi_weight_instance;

typedef struct opi_weights_options {
  const opipe_allocator *allocator;
  const opi_optimizer *optimizer;       /* copied, with its globs */
  const opi_weight_instance *instances; /* [n_stages * n_replicas * n_members]: (stage * n_replicas
                                           + replica) * n_members + member */
  const opipe_param_source *sources;    /* [n_sources] the parameter table: name, initial values;
                                           borrowed until close */
  const bool *trained;                  /* [n_sources] */
  const struct opi_param_part *const *parts; /* [n_sources] members' parts (opi_cut.parts), and with
                                         axis -1 their copies of whole parameters; NULL: none */
  opi_transport_ref transport;               /* table NULL: the reference */
  opi_budget *budget;                        /* may be NULL */
  uint32_t n_stages, n_replicas, n_ranks, n_sources;
  uint32_t n_members;      /* of a tensor group; 0: 1 */
  uint32_t n_versions;     /* 1; 2: double buffered */
  uint32_t keep_gradients; /* 1: the last step's gradients can be read until the next step */
  uint32_t hold;           /* 1: a step that is not finite ends all updates: OPI_SKIP_HELD */
  /* Needed if there are instances elsewhere: brings `data` of rank `holder` to all sessions. `had`:
   * the holder's own status of getting it. NULL: all instances are here. */
  opipe_status (*share)(void *ctx, uint32_t holder, void *data, uint64_t n_bytes, opipe_status had,
                        opipe_error *io_err);
  void *share_ctx;
} opi_weights_options;

/* Bytes of pinned host memory of the rank's weights; weights NULL: 0. */
uint64_t opi_weights_pinned(const opi_weights *weights, uint32_t rank);

/* Makes all sets and state. All endpoints must be open. Errors: LIMIT names the instance, the bytes
 * wanted and left; UNSUPPORTED names a backend that cannot train or a transport that cannot reduce.
 * [control] */
opipe_status opi_weights_open(const opi_weights_options *options, opi_weights **out_weights,
                              opipe_error *err);
/* Is the gradient of the parameter in `slot` summed over ranks in the layout that `rank` holds it
 * in? Then that layout. */
bool opi_weights_sums(const opi_weights *weights, uint32_t rank, uint32_t slot, uint64_t *out_key,
                      uint64_t *out_bytes);
/* The instance's trained parameters: slots, rising, and for each the bucket that it is summed in
 * (OPIPE_NONE: in none). Room for all that it reads. Returns their number. [control] */
uint32_t opi_weights_trained(const opi_weights *weights, uint32_t instance, uint32_t *out_slots,
                             uint32_t *out_buckets);
void opi_weights_close(opi_weights *weights); /* before the endpoints; accepts NULL */
/* Set `set` (0 .. n_versions - 1) of an instance, for bind. The version that a set holds changes
 * with every step: bind a program to each set, and run the binding of opi_weights_set_of(). NULL:
 * the instance reads no parameters. */
opipe_params *opi_weights_params(opi_weights *weights, uint32_t instance, uint32_t set);
opipe_params *opi_weights_gradients(opi_weights *weights, uint32_t instance);

/* ---- on the rank's own thread; OPIPE_PENDING: call again, a peer is not there yet. None of these
 * allocates or blocks. ---- */

/* The rank's set that now holds `version` (0: newest, 1: one older). */
uint32_t opi_weights_set_of(const opi_weights *weights, uint32_t rank, uint32_t version);
/* Clears gradients that were kept for reading, before the rank's first backward of a mini-batch. */
opipe_status opi_weights_begin(opi_weights *weights, uint32_t rank, opipe_error *err);
/* Starts the sum of an instance's gradients, which are complete, over the replicas of its stage. To
 * be called once per mini-batch, or never: then the step does it. Does not wait: OPIPE_OK. */
opipe_status opi_weights_reduce(opi_weights *weights, uint32_t instance, opipe_error *err);
/* Says beforehand that the gradients of the `n` parameters of opi_weights_trained with the highest
 * slots are complete, so that their sums start. */
opipe_status opi_weights_pass(opi_weights *weights, uint32_t instance, uint32_t n,
                              opipe_error *err);
/* Makes progress with the rank's sums, when it is idle. OPIPE_OK: no sum is under way. */
opipe_status opi_weights_progress(opi_weights *weights, uint32_t rank, opipe_error *err);
/* Is there a sum of the rank that should have started, and has not yet? */
bool opi_weights_starts(const opi_weights *weights, uint32_t rank);
/* Is the instance's sum of this mini-batch done? */
bool opi_weights_is_summed(const opi_weights *weights, uint32_t instance);
/* The step, after the rank's last backward: the rest of the sums, ties, norm, clip, and the update
 * of all instances of `rank`. `finite`: is the rank's part of the loss a number? All ranks learn of
 * it with the norms. lr: the host's learning rate; NULL: the optimizer's. OPIPE_OK: the new version
 * is there. */
opipe_status opi_weights_step(opi_weights *weights, uint32_t rank, bool finite, const double *lr,
                              opipe_error *err);

/* Double-buffered ranks whose gradients nothing scales (opi_optimizer_steps_alone) judge their own
 * part and do not wait for each other's norms. The rank's report is complete once this, called
 * between programs and while the rank is idle, has answered OPIPE_OK. Other sessions have nothing
 * to settle. */
opipe_status opi_weights_settle(opi_weights *weights, uint32_t rank, opipe_error *err);
bool opi_weights_lags(const opi_weights *weights, uint32_t rank); /* is there a step to settle? */

/* Why a step changed no parameter. */
enum {
  OPI_SKIP_NONE = 0,       /* it was applied */
  OPI_SKIP_OVERFLOW = 1,   /* the norm overflowed under a loss scale above 1, which is halved */
  OPI_SKIP_NOT_FINITE = 2, /* the loss or the norm is not finite */
  OPI_SKIP_HELD = 3        /* an earlier step was not finite, and updates are held since */
};

typedef struct opi_step_report {
  uint64_t step;        /* mini-batches done, this one included */
  double gradient_norm; /* of all parameters, before clipping, loss scale taken out */
  double lr, loss_scale;
  uint32_t skipped; /* OPI_SKIP_* */
  uint32_t reserved;
} opi_step_report;
/* The report of the rank's last step. All ranks that hold parameters have the same, the others have
 * none. On the rank's thread, or between steps. */
void opi_weights_report(const opi_weights *weights, uint32_t rank, opi_step_report *out_report);
/* The first rank here that has a report. */
uint32_t opi_weights_reporter(const opi_weights *weights);
/* The loss scale of the rank's next mini-batch. */
double opi_weights_loss_scale(const opi_weights *weights, uint32_t rank);

#endif /* OPI_WEIGHTS_H */
