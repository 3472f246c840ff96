/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the training tests: a model with plugins and evaluator, plans, sessions, seeded
 * batches, weights and gradients by name. */
#ifndef TESTS_TRAIN_KIT_H
#define TESTS_TRAIN_KIT_H

#include "abi/registry/registry.h"
#include "partition/make/make.h"
#include "runtime/device/budget.h"
#include "runtime/session/session.h"
#include "tests/support/support.h"

enum { KIT_INPUTS = 16, KIT_RESIZES = 64 };

typedef struct kit {
  opi_registry *registry;
  opi_plugins plugins;
  opi_evaluator *evaluator;
  opi_model *model;
  opi_dim_binding dims[4];
  uint32_t n_dims;
  opi_bound *bound; /* of the whole batch: what inputs look like */
  opi_bound *earlier[KIT_RESIZES];
  uint32_t n_earlier;
  opi_plan *plan;
  opi_backend_ref backends[64];
  opi_transport_ref transport;
  const char *transport_options;
  uint32_t bind_flags;
  uint32_t dropout;     /* OPI_DROPOUT_*, of the plans to come */
  uint64_t watchdog_ns; /* 0: 5 s */
  uint32_t max_shapes;  /* of sessions, 0: the library's */
  opi_budget *budget;   /* of sessions; NULL: none */
  const bool *local;    /* [ranks] those of sessions, NULL: all */
  uint32_t threads;     /* OPIPE_THREADS_* of sessions */
  opi_arena arena;
  opipe_error err;
} kit;

/* Where plans run; what is NULL or 0 is the library's choice, or the test's. */
typedef struct kit_place {
  const char *transport;
  const char *device, *device_options; /* of all ranks */
  uint32_t device_index;
  uint32_t spread; /* ranks take this many devices in turn; 0: one */
} kit_place;
/* The place's device for every rank, with one thread each; "cpu" without. */
opipe_device_choice kit_place_device(const kit_place *place);

/* The plan and options of a case. */
typedef struct kit_case {
  const char *schedule;
  const char *cut;                            /* as opipe_plan_params */
  uint32_t n_ranks, n_stages, n_microbatches; /* one of n_ranks and n_stages may be 0 */
  uint64_t memory_bytes;
  uint32_t cost;           /* OPIPE_COST_* */
  const opi_costs *stages; /* given times of the stages in ms; NULL: none */
  uint32_t depth;          /* slots of boundary tensors; 0: the planner's */
  const uint64_t *caps;    /* [n_ranks] instead of memory_bytes, 0: none; NULL: all alike */
  const char *device, *device_options, *transport;
  uint32_t device_index;
  uint32_t spread;     /* as in kit_place; at most 8 ranks */
  const char *offload; /* as opipe_plan_params, with the next */
  uint64_t offload_bytes;
  uint32_t tensor;          /* members of a tensor group; 0: 1 */
  bool sequence;            /* their sequence form */
  const char *last_options; /* of the last rank's device, NULL: as the others */
  opi_train_spec spec;
} kit_case;

/* One mini-batch: every input of the model and the labels. */
typedef struct kit_batch {
  opipe_binding_io inputs[KIT_INPUTS];
  int64_t shapes[KIT_INPUTS][OPIPE_MAX_RANK];
  uint32_t n_inputs;
} kit_batch;

/* Plugins linked in, ended by NULL; NULL: those in the build's folder. */
extern const opipe_plugin *const *kit_static_plugins;
/* Dimensions that are free: axis 0 is the batch, the first other one has `tokens`, further ones two
 * less each. */
opipe_status kit_open(kit *k, const char *model_path, int64_t batch, int64_t tokens);
void kit_close(kit *k);
/* Batches and plans from here on are of another shape: dimensions as in kit_open. The earlier
 * `bound` is freed with the kit. */
opipe_status kit_resize(kit *k, int64_t batch, int64_t tokens);
opipe_status kit_plan(kit *k, const kit_case *c);
opipe_status kit_read_plan(kit *k, const char *json, size_t n_bytes);
opipe_status kit_session(kit *k, uint32_t flags, opi_session **out_session);
/* Seeded inputs; labels below `n_classes`, some of them -100. */
opipe_status kit_batch_random(kit *k, const kit_case *c, int64_t n_classes, uint64_t seed,
                              kit_batch *out_batch);
/* Labels for a batch: the caller's data. */
void kit_batch_add(kit_batch *batch, const char *name, uint32_t dtype, const int64_t *shape,
                   uint32_t rank, void *data);
opipe_status kit_step(kit *k, opi_session *session, const kit_batch *batch, double *out_loss);
opipe_status kit_evaluate(kit *k, opi_session *session, const kit_batch *batch, double *out_loss,
                          float **out_logits, size_t *out_n);
/* All trained weights (state: OPI_STATE_*), one after the other, in the kit's arena. */
opipe_status kit_state(kit *k, opi_session *session, uint32_t state, float **out_data,
                       size_t *out_n);

/* outcomes.c: SGD with momentum, or AdamW with clipping; labels of cross entropy */
enum { KIT_STEPS = 4 };
typedef struct kit_outcome {
  double losses[KIT_STEPS];
  float *weights;
  size_t n;
} kit_outcome;
kit_case kit_case_of(const char *schedule, uint32_t n_ranks, uint32_t m, bool adam);
/* Some seeded mini-batches, several in flight, one flush between them, in a session of its own, or
 * in one that is open. */
opipe_status kit_train(kit *k, const kit_case *c, int64_t n_classes, uint32_t flags,
                       kit_outcome *out);
opipe_status kit_train_in(kit *k, opi_session *session, const kit_case *c, int64_t n_classes,
                          kit_outcome *out);
/* Fails the test where losses or weights are further apart, relative to the largest of b; 0: where
 * a bit differs. */
void kit_compare(const char *what, const kit_outcome *a, const kit_outcome *b, double tolerance);

/* references.c: a tensor of a safetensors file (fp32); NULL: not there. */
typedef struct kit_tensors {
  char *data;
  size_t n_bytes;
  void *root;
} kit_tensors;
bool kit_tensors_open(kit_tensors *t, const char *path);
void kit_tensors_close(kit_tensors *t);
const float *kit_tensors_find(const kit_tensors *t, const char *name, size_t *out_n);
/* A TensorProto file as an input named `name`, or by its own name. */
opipe_status kit_batch_pb(kit *k, kit_batch *batch, const char *path, const char *name);
/* A number of a JSON file's top object. */
double kit_json_number(const char *path, const char *name);

#endif /* TESTS_TRAIN_KIT_H */
