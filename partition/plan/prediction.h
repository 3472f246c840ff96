/* SPDX-License-Identifier: Apache-2.0 */
/* The prediction: times and bytes of a decision, from devices at hand or from descriptions of them.
 * Nothing that runs depends on it but the modelled order in which the lists place messages, which
 * takes the stages' times.
 */
#ifndef OPI_PLAN_PREDICTION_H
#define OPI_PLAN_PREDICTION_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of one rank by category. */
typedef struct opi_memory {
  uint64_t params_bytes;     /* in the backend's layouts */
  uint64_t activation_bytes; /* temporaries of programs */
  uint64_t workspace_bytes;  /* scratch of kernels */
  uint64_t boundary_bytes;   /* of received tensors, request inputs and results: in a packed buffer
                                what it has beside the stashes */
  uint64_t gradient_bytes, optimizer_bytes, version_bytes, stash_bytes; /* training */
  uint64_t state_bytes;  /* of the plan's n_streams */
  uint64_t stream_bytes; /* of one of them, where its home is; not in total */
  uint64_t total_bytes;  /* sum, each piece rounded as it is allocated */
  uint64_t cap_bytes;    /* that was given, maybe for several ranks together (memory_with);
                            UINT64_MAX: none */
  uint64_t device_bytes; /* that the device has in all, for all ranks on it; 0: not known. Not
                            written */
  uint64_t mapped_bytes; /* of weight files used in place; not in total */
  uint64_t host_bytes;   /* of the host, for nodes that the device lacks; not in total */
  uint64_t n_fallback;   /* such nodes, in all programs of the rank */
  uint64_t n_rounded;    /* products of its stages that round the rows they multiply to 8 bits a
                            block: opipe_program_info */
  bool estimated;        /* the device was described, not asked */
} opi_memory;

/* The cap of a rank: the one that was given, else what its device has; UINT64_MAX: not known. */
static inline uint64_t opi_memory_cap(const opi_memory *memory) {
  return memory->cap_bytes != UINT64_MAX || memory->device_bytes == 0 ? memory->cap_bytes
                                                                      : memory->device_bytes;
}

/* A tensor that crosses stages. */
typedef struct opi_crossing {
  const char *name;
  uint32_t src_stage, dst_stage;
  uint64_t n_bytes;       /* of a whole micro-batch, of the most rows */
  uint64_t message_bytes; /* of the largest of its messages: slices and pieces of rows are sent by
                             themselves */
} opi_crossing;

/* Products that read weights of few bits, as the model's file has them. */
typedef struct opi_few_bits {
  int64_t level; /* the accuracy_level that they ask for; 0: none */
  uint32_t bits; /* of a weight: 2, 4, 8 */
  uint32_t n;    /* products */
} opi_few_bits;

/* What a search for its order came to (partition/study/improve). */
typedef struct opi_searched {
  double start_ns; /* predicted of the order that it began with: a mini-batch, or a request */
  double bound_ns; /* no order of the stages on their ranks takes less */
  uint64_t moves;  /* orders that were looked at; 0: it was not searched */
} opi_searched;

/* Times of every stage, [n_stages], of one micro-batch. */
typedef struct opi_stage_times {
  double *stage_ns;             /* training: of its forward */
  double *input_ns, *weight_ns; /* training: of the two halves of its backward; NULL: forward */
} opi_stage_times;

/* Written by making a plan, or read from its file. Pointers lead into the arena of the plan. All of
 * it is written into the plan's file outside the hash, except `counted` and what its parts say. */
typedef struct opi_prediction {
  /* Before the order: what stages cost, and by which costs (OPI_COST_*). */
  opi_stage_times times;
  uint64_t *stage_stash_bytes; /* [n_stages] training: kept from F to B, one micro-batch */
  double bound_ns; /* lower bound max(sum / p, largest node) on the interval of one micro-batch */
  uint32_t cost_kind;
  /* How the decision was found. */
  opi_searched searched;
  const char *planner;       /* who decided; NULL: no planner */
  const char *stopped;       /* what ended its search before it was through: "work", "clock"; NULL:
                                no */
  uint32_t *cluster_devices; /* [n_ranks] of the planner's cluster, by rank; NULL: rank r is device
                                r. For playing alone */
  /* Once the lists stand (make/finish.c). */
  opi_memory *memory;              /* [n_ranks] */
  bool counted;                    /* memory is exact: the devices were asked here. Not written */
  uint32_t n_streams;              /* whose states the bytes count */
  const struct opi_playlist *play; /* what playing its lists takes (partition/lists/playlist.h) */
  opi_crossing *crossings;         /* [n_crossings] tensors that cross stages, by src, dst */
  uint32_t n_crossings;
  uint32_t n_made_in_place, n_copied; /* tensors between ranks in a mini-batch or request: made
                                         where they are read, and sent there */
  uint64_t copied_bytes;
  double request_ns; /* simulated time of one request, or mini-batch, alone */
  double
      interval_ns; /* simulated steady-state time between requests of a stream, or mini-batches */
  double flops, peak_flops; /* make/work.h. Of a request or mini-batch, nothing that is computed
                               again; of all devices together, by their nominal rates, 0: not known
                             */
  opi_few_bits *few_bits;   /* [n_few_bits] make/work.h. By bits, then level */
  uint32_t n_few_bits;
  const struct opi_kernels *kernels; /* plan/kernels.h: chosen by measuring; NULL: none */
} opi_prediction;

enum { OPI_COST_RATES = 0, OPI_COST_MEASURED = 1, OPI_COST_GIVEN = 2 };
/* "rates", "measured", "given" */
const char *opi_cost_name(uint32_t kind);

#endif /* OPI_PLAN_PREDICTION_H */
