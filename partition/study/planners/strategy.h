/* SPDX-License-Identifier: Apache-2.0 */
/* What a planner is asked, and what it answers.
 *
 * A planner is a pure function of layers, cluster and sizes: the same question, the same strategy.
 * A strategy says which layers stand where, in which copies and pieces, and under which schedule;
 * the times and bytes in it are the planner's own, by the formulas of its paper. What a strategy
 * really takes is for the simulator to say.
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
  uint32_t n_devices; /* the cluster's first so many; 0: all. Where they are on several nodes, these
                         are equal */
  uint64_t batch;     /* samples of a mini-batch */
  uint32_t samples;   /* of a micro-batch, for planners that are told it (dapple, pipedream); a
                         replica of r computes 1 / r of it. 0: as many as the profile's smallest */
  bool judged;        /* by who asks: then devices of several kinds count as the first one, and
                         caps that a paper's search does not know are not looked at. Else both are
                         refused */
  double state_bytes; /* device memory per byte of parameters: weights, gradients, optimizer's
                         state; 0: 4 (Adam, one type) */
} opi_planning;

typedef struct opi_strategy_stage {
  uint32_t first, end;            /* layers [first, end) */
  uint32_t n_devices;             /* in one pipeline: replicas * width */
  const uint32_t *devices;        /* [n_devices] of the first pipeline, replica by replica */
  double forward_ns, backward_ns; /* of one micro-batch, all replicas at work */
  uint64_t memory_bytes;          /* of the fullest of its devices */
  const char *last;               /* name of its last layer; NULL: not known */
} opi_strategy_stage;

typedef struct opi_strategy {
  opi_arena arena;
  const char *planner;
  const char *schedule; /* id, with options behind a ':' */
  opi_strategy_stage *stages;
  uint32_t n_stages;     /* of the model; with `chunks`, of all of them */
  uint32_t chunks;       /* stages of a device that follow each other in turns: stage s is on place
                            s mod (n_stages / chunks); 1: one */
  uint32_t pipelines;    /* equal copies of the whole, which share out the mini-batch */
  uint32_t width;        /* tensor-parallel devices of a replica */
  uint32_t samples;      /* of a micro-batch */
  uint32_t microbatches; /* of one pipeline in a mini-batch */
  const opi_slice_group *groups; /* [n_groups] token slices; NULL: none */
  uint32_t n_groups;
  const uint32_t *rank_devices; /* [pipelines * n_ranks * width] of rank r, copy c, tensor rank t:
                                   [(c * n_ranks + r) * width + t]; NULL: further pipelines stand
                                   behind the first */
  uint32_t n_ranks;             /* of one pipeline, with rank_devices: in the order of its stages */
  bool recompute;               /* the forward runs again before the backward */
  bool sharded;                 /* each copy has its part of the optimizer's state */
  bool scattered;        /* tensor ranks send their part between stages, receivers gather it */
  bool counts_bytes;     /* the objective is bytes, not ns */
  double objective;      /* what the planner made least, in its paper's unit (ns), or bytes */
  double step_ns;        /* of a mini-batch: by the same formulas, updates left out; of auto's,
                            played, with them */
  uint64_t memory_bytes; /* of the fullest device */
} opi_strategy;

void opi_strategy_free(opi_strategy *strategy); /* accepts NULL */
/* For people, and for machines: JSON, the same value the same bytes. forward: of requests, not of
 * mini-batches. */
void opi_strategy_describe(const opi_strategy *strategy, const opi_layers *layers, bool forward,
                           opi_text *text);
void opi_strategy_write(const opi_strategy *strategy, opi_text *text);
/* The same without the brace that closes it: more members may follow. */
void opi_strategy_write_open(const opi_strategy *strategy, opi_text *text);

/* ---- what planners share (strategy.c) ---- */

/* How two devices reach each other, alone. Rates: 0, no limit. */
typedef struct opi_reach {
  double bytes_per_ns, latency_ns;         /* of one message */
  double sum_bytes_per_ns, sum_latency_ns; /* of collectives */
  double port_bytes_per_ns;                /* that the devices of a node share */
} opi_reach;

/* A cluster as papers see it: equal nodes of equal devices, one rate inside, one between them. */
typedef struct opi_machine {
  const opi_cluster *cluster;
  uint32_t n_devices, n_nodes, per_node;
  uint64_t memory_bytes; /* of a device; UINT64_MAX: no limit */
  opi_reach inside, across;
} opi_machine;
/* Is the question one that can be answered? Fills what was left out of it, and the machine. Errors:
 * INVALID names what is wrong, with the numbers (nodes and devices that differ among them). */
opipe_status opi_planning_check(const char *planner, opi_planning *io_planning,
                                opi_machine *out_machine, opipe_error *err);

/* Does any layer take time, at any number of samples? Without times all plans are as good. Errors:
 * INVALID. */
opipe_status opi_planning_check_times(const char *planner, const opi_layers *layers,
                                      opipe_error *err);

opipe_status opi_strategy_new(const char *planner, uint32_t n_stages,
                              const opipe_allocator *allocator, opi_strategy **out_strategy,
                              opipe_error *err);
/* Devices first, first + 1, ... of a stage. */
opipe_status opi_strategy_place(opi_strategy *strategy, uint32_t stage, uint32_t first, uint32_t n,
                                opipe_error *err);

/* The run of alike layers that is longest: the blocks of a transformer, else all layers. */
void opi_layers_blocks(const opi_layers *layers, uint32_t *out_first, uint32_t *out_end);
/* Ends of n stages with equally many blocks, what stands before and behind with the first and the
 * last: ends [n + 1]. False: their number is no multiple of n. */
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
 * depths and tensor widths. Errors: also INVALID, it is not known what slices of tokens take
 * (opi_layers.slices). */
opipe_status opi_plan_terapipe(const opi_planning *planning, opi_strategy **out_strategy,
                               opipe_error *err);
/* Several answers of a planner, from the best: out_strategies [most], *out_n of them, at least one.
 * Errors: as of its best. */
typedef opipe_status (*opi_ranked_fn)(const opi_planning *planning, uint32_t most,
                                      opi_strategy **out_strategies, uint32_t *out_n,
                                      opipe_error *err);
/* One for every depth and tensor width. */
opipe_status opi_plan_terapipe_ranked(const opi_planning *planning, uint32_t most,
                                      opi_strategy **out_strategies, uint32_t *out_n,
                                      opipe_error *err);

/* Slices of `rows` rows over stages that are given: ends [n_stages + 1]. together: the most rows
 * that may go together, 1, 2, 4, ... in each group; unit: as in opi_slice_problem. Errors: as
 * opi_slices_plan. */
typedef struct opi_slice_question {
  const opi_planning *planning; /* checked */
  const opi_machine *machine;
  const uint32_t *ends;
  uint32_t n_stages, width, rows, together, unit;
  uint32_t n_even; /* not 0: every row by itself in so many even slices */
} opi_slice_question;
opipe_status opi_terapipe_slices(const opi_slice_question *question, opi_slicing *out_slicing,
                                 opipe_error *err);
/* ns that a device of stage s computes for a slice, forward and backward. */
double opi_terapipe_compute_ns(const opi_slice_question *question, uint32_t stage, uint32_t rows,
                               uint32_t length, uint32_t before);

/* "dapple", "pipedream", "2bw", "chimera", "megatron", "terapipe"; NULL: no such planner. */
opi_planner_fn opi_planner_find(const char *name);
/* NULL: a planner that does not choose lengths of token slices. Of one that does, several answers,
 * each with lengths of its own. */
opi_ranked_fn opi_planner_slicings(const char *name);
/* Their names, one after the other, as messages list them. */
const char *opi_planner_names(void);

#endif /* OPI_STRATEGY_H */
