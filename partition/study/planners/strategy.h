/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to planners and their answers.
 *
 * A planner is a pure function of layers, cluster and sizes: the same question gives the same
 * strategy. A strategy says which layers are placed where, in which copies and pieces, and under
 * which schedule. Its times and bytes are the planner's own, by the formulas of its paper; the
 * simulator finds the actual ones.
 */
#ifndef OPI_STRATEGY_H
#define OPI_STRATEGY_H

#include "partition/study/cluster/cluster.h"
#include "partition/study/layers/layers.h"
#include "partition/study/planners/slices.h"

/* The question. All borrowed. */
typedef struct opi_planning {
  const opi_layers *layers;
  const opi_cluster *cluster;
  const opipe_allocator *allocator;
  uint32_t n_devices; /* the first n_devices of the cluster; 0: all. If they are on several nodes,
                         these are equal */
  uint64_t batch;     /* samples per mini-batch */
  uint32_t samples; /* per micro-batch, for planners that take it as input (dapple, pipedream); each
                       of r replicas computes 1 / r of it. 0: the profile's smallest */
  bool judged; /* the caller judges the answer: then devices of several kinds count as the first
                  one, and caps that a paper's search ignores are not checked. Otherwise both are
                  refused */
  double state_bytes; /* device memory per byte of parameters: weights, gradients, optimizer state;
                         0: 4 (Adam, one type) */
} opi_planning;

typedef struct opi_strategy_stage {
  uint32_t first, end;            /* layers [first, end) */
  uint32_t n_devices;             /* in one pipeline: replicas * width */
  const uint32_t *devices;        /* [n_devices] of the first pipeline, by replica */
  double forward_ns, backward_ns; /* of one micro-batch, with all replicas at work */
  uint64_t memory_bytes;          /* of the fullest device */
  const char *last;               /* name of the last layer; NULL: unknown */
} opi_strategy_stage;

typedef struct opi_strategy {
  opi_arena arena;
  const char *planner;
  const char *schedule; /* id, with options after ':' */
  opi_strategy_stage *stages;
  uint32_t n_stages; /* including those of all chunks */
  uint32_t chunks;   /* stages per device, in turn: stage s is at place s mod (n_stages / chunks) */
  uint32_t pipelines;            /* equal copies of the whole, which divide the mini-batch */
  uint32_t width;                /* tensor-parallel devices per replica */
  uint32_t samples;              /* per micro-batch */
  uint32_t microbatches;         /* per pipeline and mini-batch */
  const opi_slice_group *groups; /* [n_groups] token slices; NULL: none */
  uint32_t n_groups;
  const uint32_t
      *rank_devices; /* [pipelines * n_ranks * width] device of rank r, copy c, tensor rank t: [(c *
                        n_ranks + r) * width + t]; NULL: further pipelines follow the first */
  uint32_t n_ranks;  /* per pipeline, if rank_devices is set: in the order of its stages */
  bool recompute;    /* the forward runs again before the backward */
  bool sharded;      /* each copy holds a part of the optimizer's state */
  bool scattered;    /* tensor ranks send parts between stages, receivers gather them */
  bool counts_bytes; /* the objective is in bytes, not ns */
  double objective;  /* the minimised value, in the unit of the planner's paper (ns), or bytes */
  double step_ns; /* of a mini-batch: by the same formulas, without updates; auto: as played, with
                     updates */
  uint64_t memory_bytes; /* of the fullest device */
} opi_strategy;

void opi_strategy_free(opi_strategy *strategy); /* accepts NULL */
/* For people, and as JSON; equal strategies give equal bytes. forward: requests, not mini-batches.
 */
void opi_strategy_describe(const opi_strategy *strategy, const opi_layers *layers, bool forward,
                           opi_text *text);
void opi_strategy_write(const opi_strategy *strategy, opi_text *text);
/* The same without the closing brace, so that members can be added. */
void opi_strategy_write_open(const opi_strategy *strategy, opi_text *text);

/* ---- shared by planners (strategy.c) ---- */

/* The link between two devices when nothing else uses it. Rates: 0, no limit. */
typedef struct opi_reach {
  double bytes_per_ns, latency_ns;         /* of one message */
  double sum_bytes_per_ns, sum_latency_ns; /* of collectives */
  double port_bytes_per_ns;                /* shared by the devices of a node */
} opi_reach;

/* A cluster in the terms of the papers: equal nodes of equal devices, one rate inside, one between.
 */
typedef struct opi_machine {
  const opi_cluster *cluster;
  uint32_t n_devices, n_nodes, per_node;
  uint64_t memory_bytes; /* per device; UINT64_MAX: no limit */
  opi_reach inside, across;
} opi_machine;
/* Checks the question, fills in defaults, and derives the machine. Errors: INVALID names what is
 * wrong, with the numbers; that includes nodes and devices that differ. */
opipe_status opi_planning_check(const char *planner, opi_planning *io_planning,
                                opi_machine *out_machine, opipe_error *err);

/* Checks that some layer takes time at some number of samples; without times all plans are equal.
 * Errors: INVALID. */
opipe_status opi_planning_check_times(const char *planner, const opi_layers *layers,
                                      opipe_error *err);

opipe_status opi_strategy_new(const char *planner, uint32_t n_stages,
                              const opipe_allocator *allocator, opi_strategy **out_strategy,
                              opipe_error *err);
/* Gives the stage devices first, first + 1, ... */
opipe_status opi_strategy_place(opi_strategy *strategy, uint32_t stage, uint32_t first, uint32_t n,
                                opipe_error *err);

/* The longest run of similar layers: the blocks of a transformer; all layers if there is none. */
void opi_layers_blocks(const opi_layers *layers, uint32_t *out_first, uint32_t *out_end);
/* Ends of n stages with equally many blocks; layers before and after the blocks go to the first and
 * last stage. out_ends [n + 1]. False: the number of blocks is not a multiple of n. */
bool opi_even_stages(const opi_layers *layers, uint32_t n, uint32_t *out_ends);

/* ns of n_bytes at a rate; 0 without a limit. */
static inline double opi_bytes_ns(double n_bytes, double bytes_per_ns) {
  return bytes_per_ns > 0 ? n_bytes / bytes_per_ns : 0;
}

/* ---- the planners ---- */

typedef opipe_status (*opi_planner_fn)(const opi_planning *planning, opi_strategy **out_strategy,
                                       opipe_error *err);
/* dapple.c. Fan et al., PPoPP'21, section 4: over (layer, devices, placement), pivot stage. */
opipe_status opi_plan_dapple(const opi_planning *planning, opi_strategy **out_strategy,
                             opipe_error *err);
/* pipedream.c. Narayanan et al., SOSP'19, section 3.1: the slowest stage of a hierarchy. */
opipe_status opi_plan_pipedream(const opi_planning *planning, opi_strategy **out_strategy,
                                opipe_error *err);
/* two_bw.c. Narayanan et al., ICML'21, algorithm 1. */
opipe_status opi_plan_2bw(const opi_planning *planning, opi_strategy **out_strategy,
                          opipe_error *err);
/* chimera.c. Li and Hoefler, SC'21, equation 1. */
opipe_status opi_plan_chimera(const opi_planning *planning, opi_strategy **out_strategy,
                              opipe_error *err);
/* megatron.c. Narayanan et al., SC'21, takeaways 1 to 3. */
opipe_status opi_plan_megatron(const opi_planning *planning, opi_strategy **out_strategy,
                               opipe_error *err);

/* terapipe.c. Li et al., ICML'21, section 3: token slices and rows that go together, over all
 * depths and tensor widths. Errors: also INVALID, the costs of token slices are unknown
 * (opi_layers.slices). */
opipe_status opi_plan_terapipe(const opi_planning *planning, opi_strategy **out_strategy,
                               opipe_error *err);
/* Several answers of a planner, best first: out_strategies [most], *out_n of them, at least one.
 * Errors: as for its best. */
typedef opipe_status (*opi_ranked_fn)(const opi_planning *planning, uint32_t most,
                                      opi_strategy **out_strategies, uint32_t *out_n,
                                      opipe_error *err);
/* One answer for every depth and tensor width. */
opipe_status opi_plan_terapipe_ranked(const opi_planning *planning, uint32_t most,
                                      opi_strategy **out_strategies, uint32_t *out_n,
                                      opipe_error *err);

/* Slices `rows` rows for given stages: ends [n_stages + 1]. together: the most rows per group,
 * tried as 1, 2, 4, ...; unit: as in opi_slice_problem. Errors: as opi_slices_plan. */
typedef struct opi_slice_question {
  const opi_planning *planning; /* checked */
  const opi_machine *machine;
  const uint32_t *ends;
  uint32_t n_stages, width, rows, together, unit;
  uint32_t n_even; /* not 0: every row on its own, in n_even even slices */
} opi_slice_question;
opipe_status opi_terapipe_slices(const opi_slice_question *question, opi_slicing *out_slicing,
                                 opipe_error *err);
/* ns that a device of stage s computes for a slice, forward and backward. */
double opi_terapipe_compute_ns(const opi_slice_question *question, uint32_t stage, uint32_t rows,
                               uint32_t length, uint32_t before);

/* "dapple", "pipedream", "2bw", "chimera", "megatron", "terapipe"; NULL for other names. */
opi_planner_fn opi_planner_find(const char *name);
/* The function that gives several answers with different slice lengths; NULL for planners that do
 * not choose lengths. */
opi_ranked_fn opi_planner_slicings(const char *name);
/* Their names as a comma-separated list, for messages. */
const char *opi_planner_names(void);

#endif /* OPI_STRATEGY_H */
