/* SPDX-License-Identifier: Apache-2.0 */
/* The prediction: times and bytes of a decision, based on devices at hand or described. Execution
 * depends on it in one place only: lists order messages by the modelled times of stages.
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
  uint64_t boundary_bytes; /* received tensors, inputs and results of requests; if packed, the bytes
                              beyond the stashes */
  uint64_t gradient_bytes, optimizer_bytes, version_bytes, stash_bytes; /* training only */
  uint64_t state_bytes;  /* of the plan's n_streams; of a plan of passes: pages */
  uint64_t stream_bytes; /* of one stream, at its home; not in the total */
  uint64_t total_bytes;  /* sum, each piece rounded as allocated */
  uint64_t
      cap_bytes; /* given cap, possibly shared by several ranks (memory_with); UINT64_MAX: none */
  uint64_t
      device_bytes; /* all memory of the device, for all ranks on it; 0: unknown. Not written */
  uint64_t mapped_bytes;  /* of weight files used in place; not in the total */
  uint64_t host_bytes;    /* host memory for nodes that the device lacks; not in the total */
  uint64_t offload_bytes; /* host memory of offloaded stashes; not in the total */
  uint64_t staging_bytes; /* pinned host memory that messages of devices go through; not in the
                             total */
  uint64_t page_room;     /* plans of passes: pages that it has room for; UINT64_MAX: any */
  uint64_t n_fallback;    /* number of such nodes, in all programs of the rank */
  uint64_t n_rounded;     /* products of its stages that round the rows they multiply to 8 bits per
                             block (opipe_program_info) */
  bool estimated;         /* the device was described, not asked */
} opi_memory;

/* The cap of a rank: the given one, else its device's memory; UINT64_MAX: unknown. */
static inline uint64_t opi_memory_cap(const opi_memory *memory) {
  return memory->cap_bytes != UINT64_MAX || memory->device_bytes == 0 ? memory->cap_bytes
                                                                      : memory->device_bytes;
}

/* A tensor that crosses stages. */
typedef struct opi_crossing {
  const char *name;
  uint32_t src_stage, dst_stage;
  uint64_t n_bytes;     /* of a whole micro-batch with the most rows */
  uint64_t whole_bytes; /* tensor groups: if members sent whole values instead of their parts; 0:
                           they do */
  uint64_t
      message_bytes; /* of its largest message; slices and pieces of rows are sent separately */
} opi_crossing;

/* How messages from one rank to another travel (opipe/transport.h). */
typedef struct opi_way_told {
  uint32_t src_rank, dst_rank;
  uint32_t way;  /* OPIPE_WAY_* */
  char why[160]; /* why it is no better one; "": none is */
} opi_way_told;

/* Products that read few-bit weights, as stored in the model's file. */
typedef struct opi_few_bits {
  int64_t level; /* requested accuracy_level; 0: none */
  uint32_t bits; /* per weight: 2, 4, 8 */
  uint32_t n;    /* number of products */
} opi_few_bits;

/* Collectives of a stage's tensor group, for a micro-batch with the most rows. */
typedef struct opi_group_told {
  uint32_t n_forward, n_backward;
  uint64_t forward_bytes, backward_bytes; /* of a member's larger tensors */
} opi_group_told;

/* A product or table that could have been divided among the members of tensor groups. */
typedef struct opi_whole_told {
  const char *node, *why;
} opi_whole_told;

/* Outcome of the search for a better order (partition/study/improve). */
typedef struct opi_searched {
  double start_ns; /* predicted time of the starting order: of a mini-batch or a request */
  double bound_ns; /* no order of the stages on their ranks takes less */
  uint64_t moves;  /* orders tried; 0: no search */
} opi_searched;

/* Times of every stage, [n_stages], of one micro-batch. */
typedef struct opi_stage_times {
  double *stage_ns;             /* training: forward only */
  double *input_ns, *weight_ns; /* training: the two halves of the backward; NULL: forward plans */
} opi_stage_times;

/* Tensor groups, as `plan` describes them (make/tensor.h). Not written into the plan's file. */
typedef struct opi_tensor_told {
  opi_group_told *groups; /* [n_stages]; NULL: no tensor groups, or no model is known */
  opi_whole_told *whole;  /* [n_whole] products and tables that stay whole */
  opi_whole_told *mixed;  /* [n_mixed] nodes and outputs that rows are gathered for */
  uint32_t n_whole, n_mixed, n_divided;
} opi_tensor_told;

/* Plays of a plan of passes (make/passes_play.h). slice_rows 0: unknown. */
typedef struct opi_pass_played {
  /* All active sequences generate, each with half its context; idle: share of the stages' time. */
  double tokens_per_s, idle;
  /* Prompts: slices of at most slice_rows rows, none longer than slice_ns on all stages (0: any);
   * one as long as the context takes prompt_ns in n_slices slices, alone. */
  uint32_t slice_rows, n_slices;
  double slice_ns, prompt_ns;
  /* As many copies of the whole model as there are ranks would be faster, with so many bytes for
   * each; replicas 0: they would not. */
  uint32_t replicas;
  double replicas_tokens_per_s;
  uint64_t replica_bytes;
} opi_pass_played;

/* Written by making a plan, or read from its file. Pointers lead into the plan's arena. All fields
 * are written into the plan's file, outside the hash, except `counted` and those marked in the
 * structs above. */
typedef struct opi_prediction {
  /* Before the order: costs of stages, and their source (OPI_COST_*). */
  opi_stage_times times;
  uint64_t *stage_stash_bytes; /* [n_stages] training: kept from F to B of one micro-batch */
  double bound_ns; /* lower bound max(sum / p, largest node) on the interval of one micro-batch */
  uint32_t cost_kind;
  /* How the decision was found. */
  opi_searched searched;
  const char *planner;       /* name of the planner; NULL: none */
  const char *stopped;       /* limit that ended its search early: "work", "clock"; NULL: none */
  uint32_t *cluster_devices; /* [n_ranks] device of the planner's cluster for each rank; NULL: rank
                                r is device r. Only for playing */
  /* Known once the lists exist (make/finish.c). */
  opi_memory *memory; /* [n_ranks] */
  bool counted;       /* memory is exact, because the devices were asked here. Not written */
  uint32_t n_streams; /* number of streams whose states are counted */
  const struct opi_playlist *play; /* costs of playing the lists (partition/plan/playlist.h) */
  opi_crossing *crossings;         /* [n_crossings] by src, dst */
  uint32_t n_crossings;
  opi_way_told *ways; /* [n_ways] pairs of ranks with messages, both devices of which were asked */
  uint32_t n_ways;
  uint32_t n_made_in_place, n_copied; /* tensors between ranks per mini-batch or request: produced
                                         where they are read; sent there */
  uint64_t copied_bytes;
  double request_ns;        /* simulated time of one request or mini-batch alone */
  double interval_ns;       /* simulated time between requests of a stream, or mini-batches */
  double flops, peak_flops; /* make/work.h. Work of a request or mini-batch without recomputation;
                               nominal rates of all devices, 0: unknown */
  opi_few_bits *few_bits;   /* [n_few_bits] make/work.h. Sorted by bits, then level */
  uint32_t n_few_bits;
  opi_tensor_told tensor;
  /* Plans of passes: a pass of class c takes pass_ns[c], its longest stage stage_ns[c], both
   * without keys; keys take key_ns for each that each row sees. */
  double pass_ns[32], stage_ns[32], key_ns;
  uint32_t pages_rank; /* leaves least room for pages; OPIPE_NONE: the pages were given */
  opi_pass_played passes;
  const struct opi_kernels *kernels; /* plan/kernels.h: chosen by measuring; NULL: none */
} opi_prediction;

enum { OPI_COST_RATES = 0, OPI_COST_MEASURED = 1, OPI_COST_GIVEN = 2 };
/* "rates", "measured", "given" */
const char *opi_cost_name(uint32_t kind);
/* OPIPE_WAY_*: a word for files, "peer"; and for people, behind "messages". */
const char *opi_way_name(uint32_t way);
const char *opi_way_words(uint32_t way);

#endif /* OPI_PLAN_PREDICTION_H */
