/* SPDX-License-Identifier: Apache-2.0 */
/* A graph taken apart: per stage one program for each pass that the schedule uses, and the tensors
 * that outlive a program. A bound graph has forward nodes only, a training graph all.
 *
 *   stage s:  F ──cells──> B (= I + W in one)      F ──cells──> I ──cells──> W
 *               ╲ routes to later stages            I ╲ routes to earlier stages
 *
 * A *cell* is a tensor that a stage holds between its programs, one for every micro-batch in
 * flight: a request's input, a tensor received over a route, or one that a program of the stage
 * made for another of its programs (the stash), for other stages, or for the caller. Every boundary
 * slot of a program is tied to a cell. Known values are parameters or constants of the programs,
 * never cells; each stage that reads one has it. A parameter is identified by its initializer's
 * name.
 *
 * Any edge may be cut. A tensor goes from the stage that makes it straight to each stage that reads
 * it (one that skips stages has a route of its own); of the places of a stage (stretches.h) the
 * first receives it, and the others have it from there. Graph inputs are loaded by every stage that
 * reads them.
 *
 * A stage may be cut into *pieces* (pieces.c), each a stage of its own here: some tokens and rows
 * of the micro-batch, with some of the stage's phases. If a piece reads a stash that its stage's
 * forward left in another piece, it has a received cell, fed by a route *within* the instance. Keys
 * and values that a token slice hands to the next travel over routes too. */
#ifndef OPI_CUT_H
#define OPI_CUT_H

#include "loader/gradient/gradient.h"
#include "loader/shard/shard.h"
#include "partition/plan/plan.h"
#include "partition/schedule/actions.h"

enum { OPI_CELL_REQUEST = 0, OPI_CELL_RECEIVED = 1, OPI_CELL_MADE = 2 };

/* Token slices: the cell's role in the slice's states (loader/gradient). */
enum {
  OPI_STATE_PAST = 1,             /* from the slice before */
  OPI_STATE_PRESENT = 2,          /* for the slice after */
  OPI_STATE_PRESENT_GRADIENT = 3, /* from the slice after */
  OPI_STATE_PAST_GRADIENT = 4     /* for the slice before */
};

typedef struct opi_cell {
  const char *name; /* of the value */
  uint32_t stage;
  uint32_t value;       /* in the graph */
  uint32_t source;      /* OPI_CELL_* */
  uint32_t phase;       /* phase that makes it: MADE, and RECEIVED (in the other stage); REQUEST: F
                         */
  uint32_t readers;     /* phases of its own stage that read it, bits (1 << phase) */
  uint32_t port;        /* REQUEST: index in the graph's inputs */
  uint32_t route;       /* RECEIVED: the first of n_routes consecutive ones */
  uint32_t n_routes;    /* more than one: each brings some of its rows */
  uint32_t first_out;   /* the first route out of it; OPIPE_NONE: none; opi_route.next_out */
  uint32_t output;      /* index in the graph's outputs (the first), OPIPE_NONE: none */
  uint32_t state;       /* OPI_STATE_*, 0: none */
  uint32_t state_index; /* of the training's states */
  bool stash;           /* one program of the stage keeps it for another */
  bool held;            /* REQUEST: no request's input; the rank has it from run to run, at one
                           place for all numbers of rows (OPI_VALUE_HELD) */
  uint64_t n_bytes;
} opi_cell;

typedef struct opi_route {
  uint32_t value;
  uint32_t src_stage, dst_stage;
  uint32_t src_cell, dst_cell;
  uint32_t phase;    /* F: activations, to a later stage; I: gradients, to an earlier one */
  uint32_t index;    /* counts routes with equal src_stage, dst_stage and phase */
  uint32_t next_out; /* the next route out of the same cell; OPIPE_NONE: none */
  bool within;       /* between pieces of one instance: one place, or copied on its rank */
  bool offload;      /* within, of one stage: from its forward to its backward, by way of the host's
                        memory or in place (offloads.h) */
  bool empty;        /* no row of a micro-batch of this class goes this way */
  uint64_t src_bytes, dst_bytes; /* start of its rows in either cell */
  uint64_t n_bytes;
} opi_route;

/* The work of a program's phases, each from 0 to 1, that is done once the gradient of a parameter
 * is complete. */
typedef struct opi_gradient_end {
  double done[3]; /* [OPI_PHASES] */
  bool is_given;  /* the program adds to the gradient */
} opi_gradient_end;

typedef struct opi_program {
  opipe_graph graph; /* n_nodes 0: nothing to compute, or not used */
  uint32_t *cells;   /* [graph.n_boundaries] index in the cut's cells */
  bool *writes;      /* [graph.n_boundaries] */
  uint32_t *params;  /* [n_params] slots of the parameter table that it reads or accumulates */
  uint32_t n_params;
  opi_gradient_end *ends; /* [n_params] NULL: it gives no gradients */
  uint32_t phases;        /* of its nodes, bits (1 << OPI_PHASE_*) */
  double flops, bytes;    /* of one micro-batch */
} opi_program;

/* A member's part of a parameter, as its own row of the parameter table. The row's source has the
 * part's name, shape and bytes, and data only if the part is one piece of the whole tensor. */
typedef struct opi_param_part {
  opipe_param_source whole; /* data: of the bound graph */
  int32_t axis;
  uint32_t member;
  uint32_t flags; /* OPI_PART_* */
  uint32_t n_runs;
  const opi_shard_run *runs; /* [n_runs] rising: see opi_shard_segments */
} opi_param_part;

/* A member's part of an input or output of the graph. */
typedef struct opi_port_part {
  int32_t axis;              /* -1: all members have it whole */
  uint32_t n_runs;           /* 0 with an axis: the member has no entries */
  bool shared;               /* other members have some of its entries, too */
  int64_t n_whole;           /* entries along the axis of the whole tensor */
  const opi_shard_run *runs; /* [n_runs] rising, of the whole tensor */
} opi_port_part;

/* A value that the members of a tensor group make together, at an odd place of a stage
 * (stretches.h). Tensors are [outer, n, inner]; n is parts[m] of member m, or the sum of all parts.
 *
 *   SUM      in, out: outer 1, n 1, inner elements
 *   GATHER   in: n = parts[m]; out: the sum
 *   SCATTER  in: the sum; out: n = parts[m] of the sum over members
 */
typedef struct opi_group_value {
  const char *name; /* of the result in member 0 */
  uint32_t kind;    /* OPI_COLLECTIVE_* */
  uint32_t dtype;
  uint64_t outer, inner;
  uint64_t n_bytes;         /* of the larger tensor of a member that has most */
  const int64_t *parts;     /* [width] SUM: NULL */
  const uint32_t *in_cell;  /* [width] cells by member */
  const uint32_t *out_cell; /* [width]; OPIPE_NONE: nobody reads it there */
} opi_group_value;

/* Values that are made in one meeting of the members: all of a phase at one place. */
typedef struct opi_group_meeting {
  uint32_t at;    /* member 0's piece, a stage of the cut */
  uint32_t stage; /* of the plan */
  uint32_t place; /* odd */
  uint32_t phase; /* OPI_PHASE_* */
  uint32_t n_values;
  const opi_group_value *values; /* [n_values] in the order of nodes */
} opi_group_meeting;

typedef struct opi_cut {
  opi_arena arena;
  const opi_graph *graph;       /* borrowed */
  const opi_training *training; /* borrowed; NULL: a bound graph */
  opi_cell *cells;              /* by stage */
  uint32_t *cell_first;         /* [n_stages + 1] */
  opi_route *routes;
  opi_program *programs;       /* [n_stages * n_kinds] */
  uint32_t *used;              /* [n_stages] bit (1 << OPI_PROGRAM_*) */
  uint32_t *phases;            /* [n_stages] phases it computes, bit (1 << OPI_PHASE_*); 0: none */
  uint32_t *forward_of;        /* [n_stages] the stage that computes its forward */
  opipe_param_source *sources; /* [n_params] the parameter table */
  bool *trained;               /* [n_params] */
  const opi_param_part *const *parts; /* [n_params] NULL entries: whole, the same in all members;
                                         NULL: no tensor groups */
  uint32_t *output_cell;       /* [graph->n_outputs * n_pieces] OPIPE_NONE: no node makes it, or
                                  there is no such piece */
  uint32_t *output_port;       /* [graph->n_outputs] the input that is passed through as this
                                  output; else OPIPE_NONE */
  opi_group_meeting *meetings; /* [n_meetings] by piece, then by phase */
  uint32_t n_meetings;
  uint32_t n_stages, n_cells, n_routes, n_params;
  uint32_t n_kinds;  /* of programs: OPI_PROGRAMS, 1 (F) of a bound graph */
  uint32_t n_pieces; /* of a stage; each may have a part of an output */
} opi_cut;

/* The source of a cut. All borrowed. */
typedef struct opi_cut_source {
  const opi_graph *graph;        /* bound; for a training: its graph */
  const opi_training *training;  /* NULL: forward only */
  const uint32_t *stage;         /* [graph->n_nodes] */
  const opi_slice_state *states; /* [n_states] states that token slices hand on; values of the graph
                                  */
  uint32_t n_states;
  const uint32_t *scalars; /* [OPI_SCALAR_TABLE] values of the graph; NULL: there are none */
  const uint32_t *used;    /* [n_stages] training: the programs that the schedule's records use,
                              bits (1 << OPI_PROGRAM_*); NULL: F everywhere */
  uint32_t n_stages;
  uint32_t n_places;     /* of a stage cut into stretches (stretches.h), each a stage here; else 0.
                            Gradients of weights alone may travel between these */
  const opi_cut *master; /* cut of the same model for another number of rows, whose parameter table
                            to use (a known value that only this one has becomes a constant); NULL:
                            its own table */
  const uint32_t *rows;  /* [graph->n_values] with a master: slot of each parameter in its table,
                            OPIPE_NONE: a constant; NULL: found by name */
} opi_cut_source;

/* Cells and routes follow from the graph's nodes and values alone, so graphs that differ only in
 * extents are cut alike. Near-linear in nodes, values and stages. Errors: INVALID, the tensor that
 * would travel against the direction of its pass, with both stages. */
opipe_status opi_cut_build(const opi_cut_source *source, const opipe_allocator *allocator,
                           opi_cut **out_cut, opipe_error *err);
void opi_cut_free(opi_cut *cut); /* accepts NULL */
/* Fills first_out and next_out from the routes. */
void opi_cut_link_routes(opi_cut *cut);

/* Whether the content is known before any run (constant or parameter); and whether it stays outside
 * the programs: an initializer of more than one number, a matrix of codes, or one larger than 1
 * KiB. */
bool opi_value_is_known(const opi_value *value);
bool opi_value_is_param(const opi_value *value);
opipe_param_source opi_param_source_of(const opi_value *value);
/* Whether two sources are one parameter: equal in name, type, shape and content. */
bool opi_same_source(const opipe_param_source *a, const opipe_param_source *b);

/* Whether the other's cells and routes are the same, with at most as many bytes: lists and places
 * made of this one hold for it. Cuts in which tensor groups meet are alike with none. */
bool opi_cut_holds(const opi_cut *cut, const opi_cut *other);

static inline const opi_program *opi_program_of(const opi_cut *cut, uint32_t stage,
                                                uint32_t program) {
  return &cut->programs[stage * cut->n_kinds + program];
}
/* The cell in which the stage makes an output of the graph; OPIPE_NONE: it does not. Slices, and
 * replicas that share micro-batches, have a part each. */
static inline uint32_t opi_output_cell_at(const opi_cut *cut, uint32_t output, uint32_t stage) {
  const uint32_t cell = cut->output_cell[output * cut->n_pieces + stage % cut->n_pieces];
  return cell != OPIPE_NONE && cut->cells[cell].stage == stage ? cell : OPIPE_NONE;
}
/* Whether a node makes it. */
static inline bool opi_output_is_made(const opi_cut *cut, uint32_t output) {
  uint32_t k = 0;
  while (k < cut->n_pieces && cut->output_cell[output * cut->n_pieces + k] == OPIPE_NONE)
    ++k;
  return k < cut->n_pieces;
}
/* Whether only evaluations make it. A training step returns the loss, output 0; other outputs leave
 * F only for readers within the step, not for the caller. */
static inline bool opi_cell_is_evaluated(const opi_cut *cut, const opi_cell *cell) {
  return cut->training != NULL && cell->source == OPI_CELL_MADE && cell->phase == OPI_PHASE_F &&
         cell->output != OPIPE_NONE && cell->output != 0 && cell->readers == 0 &&
         cell->state == 0 && cell->first_out == OPIPE_NONE;
}
/* Whether the stage makes such a cell. */
static inline bool opi_stage_evaluates(const opi_cut *cut, uint32_t stage) {
  uint32_t c = cut->cell_first[stage];
  while (c < cut->cell_first[stage + 1] && !opi_cell_is_evaluated(cut, &cut->cells[c]))
    ++c;
  return c < cut->cell_first[stage + 1];
}
static inline const opi_program *opi_forward_of(const opi_cut *cut, uint32_t stage) {
  return opi_program_of(cut, stage, OPI_PROGRAM_F);
}
/* The cell at a boundary slot of a program. */
static inline const opi_cell *opi_cell_of(const opi_cut *cut, const opi_program *program,
                                          uint32_t slot) {
  return &cut->cells[program->cells[slot]];
}
/* Bytes of the largest cell of stages `first` to `end` (OPIPE_NONE: the last). */
static inline uint64_t opi_largest_cell(const opi_cut *cut, uint32_t first, uint32_t end) {
  const uint32_t stop = cut->cell_first[end == OPIPE_NONE ? cut->n_stages : end];
  uint64_t most = 0;
  for (uint32_t c = cut->cell_first[first]; c < stop; ++c)
    most = cut->cells[c].n_bytes > most ? cut->cells[c].n_bytes : most;
  return most;
}
/* Phases of a program, as bits. */
static inline uint32_t opi_program_phases(uint32_t program) {
  static const uint32_t phases[OPI_PROGRAMS] = {
      1u << OPI_PHASE_F, 1u << OPI_PHASE_I | 1u << OPI_PHASE_W, 1u << OPI_PHASE_I,
      1u << OPI_PHASE_W, 1u << OPI_PHASE_F};
  return phases[program];
}
/* ---- records.c ---- */

/* The program that an action runs; OPIPE_NONE: none of training's. */
uint32_t opi_action_program(const opipe_action *action);
/* Programs that the records use, by stage: out_used [n_stages]. */
void opi_programs_used(const opi_decision *plan, uint32_t *out_used);
/* Whether it is a forward of the next mini-batch. */
static inline bool opi_action_is_next(const opipe_action *action) {
  return (action->flags & OPIPE_ACTION_NEXT_STEP) != 0;
}
/* The row class of a micro-batch; in lists, of any request of the body. */
static inline uint32_t opi_row_class_of(const opi_decision *plan, uint32_t microbatch) {
  const uint32_t n = plan->n_microbatches;
  const int64_t extra = plan->binding.batch_dim == NULL ? 0 : plan->binding.batch_rows % n;
  return extra != 0 && (int64_t)(microbatch % n) >= extra ? 1 : 0;
}

#endif /* OPI_CUT_H */
