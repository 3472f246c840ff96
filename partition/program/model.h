/* SPDX-License-Identifier: Apache-2.0 */
/* From a plan and a model to the graphs of its row classes, cut: shared by the planner, which
 * predicts with them, and the runtime, which compiles them. A forward plan uses the bound graphs.
 */
#ifndef OPI_CUT_MODEL_H
#define OPI_CUT_MODEL_H

#include "partition/program/bind.h"
#include "partition/program/cut.h"

enum { OPI_ROW_CLASSES = 2 /* micro-batches have at most two row counts */ };

/* One token slice, in tensor groups of one member, for one number of rows; without slices there is
 * one, the whole. */
typedef struct opi_variant_slice {
  const opi_token_slice *tokens; /* a member's has its values; NULL: whole sequences, or derived */
  opi_training *training;        /* NULL: a forward plan */
  const opi_graph *graph; /* the training's graph, or the bound graph, with masks given by the run
                           */
  const uint32_t *stage;  /* [graph->n_nodes] */
  const opi_slice_state *states;    /* [n_states] values of the graph that slices hand on */
  const uint32_t *scalars;          /* [OPI_SCALAR_TABLE] of the graph; NULL: it reads none */
  const opi_token_output *outputs;  /* [n_outputs] of slices: the tokens' axis in each wanted output
                                     */
  const opi_port_part *input_parts; /* [graph->n_inputs] the member's; NULL: no tensor groups */
  const opi_port_part *output_parts; /* [graph->n_outputs] the host gets whole ones from member 0 */
  opi_cut *cut;
  int64_t first, length; /* tokens */
  uint32_t n_states, n_outputs;
} opi_variant_slice;

/* The inputs of Dropout that have a token axis, by the node's name: slices drop the same elements
 * as the whole sequence. */
typedef struct opi_token_axis {
  const char *node;
  int32_t axis;
} opi_token_axis;
typedef struct opi_token_axes {
  opi_token_axis *list;
  uint32_t n;
} opi_token_axes;

/* The graphs for one number of rows: of whole micro-batches of a class, or of pieces of them. All
 * have the same nodes and values. */
typedef struct opi_variant {
  int64_t rows;              /* 1 if the batch has no name */
  const opi_bound *bound;    /* of the model's base; NULL: derived from that and another
                                (variants.c) */
  opi_bound *own;            /* the same, if the model bound it */
  opi_variant_slice *slices; /* [n_slices * width] by slice, then by member of a tensor group */
  opi_token_slice **tokens;  /* [n_slices] owned; NULL: whole sequences, or derived */
  opi_shards **shards;       /* [n_slices] tensor groups: own the members' graphs; NULL: none, or
                                derived */
  opi_choices *choices[2];   /* [n_slices * width] what members' graphs, and their training graphs,
                                have without effect; NULL: other rows are not divided anew */
} opi_variant;

/* The bound graph of a slice, or of whole sequences; of a variant that is not derived. */
static inline const opi_bound *opi_variant_bound(const opi_variant *variant, uint32_t slice) {
  return variant->tokens == NULL ? variant->bound : variant->tokens[slice]->bound;
}

/* The part of a micro-batch that a stage of the view computes. */
typedef struct opi_piece {
  uint32_t variant;    /* OPIPE_NONE: none, the stage has fewer pieces */
  uint32_t graph;      /* index of its graph in the variant: slice * width + member */
  uint32_t slice;      /* of tokens */
  uint32_t share;      /* the stage's replica, if replicas share micro-batches */
  uint32_t phases;     /* bits */
  int64_t first, rows; /* of the micro-batch's rows */
} opi_piece;

/* A plan as its lists see it: piece k of stage s is stage s * n_pieces + k, and the requests of a
 * body follow each other. Built by opi_piece_plan_build, which fills the records once the schedule
 * has answered; arrays lie in the model's arena, or are the plan's if equal. Everything that pieces
 * do not change is read from `whole`. */
typedef struct opi_piece_plan {
  const opi_decision *whole; /* the plan in question; borrowed, must outlive this */
  uint32_t n_ranks;          /* the plan's */
  uint32_t n_stages;         /* pieces of all stages */
  uint32_t n_replicas;
  uint32_t n_pieces;       /* of a stage of the plan */
  bool trains;             /* the lists hold mini-batches, not requests */
  bool apart;              /* replicas share micro-batches, and each is a piece on its own rank */
  uint32_t *instance_rank; /* [n_stages * n_replicas]; OPIPE_NONE: no such replica */
  uint32_t *whole_of;      /* the same index: instance of the plan; OPIPE_NONE: there is none */
  uint32_t n_positions;    /* requests that the lists hold, in sequence */
  uint32_t n_microbatches; /* in all requests */
  opipe_action *actions;   /* [n_actions] */
  uint32_t n_actions;
  uint32_t *rank_first;   /* [n_ranks + 1] into actions */
  uint32_t *last_of;      /* [the plan's actions] tensor groups: the record's last place in its
                             rank's list, from 0; NULL: records have one place */
  uint32_t *reduce_after; /* [instances of the plan] action after which the sum over replicas
                             stands; OPIPE_NONE: at the end of its rank. NULL: there is no sum */
  opi_stage_times times;  /* [n_stages] of the pieces */
} opi_piece_plan;

/* Rank of instance (stage, replica) of the pieces. */
static inline uint32_t opi_piece_rank(const opi_piece_plan *pieces, uint32_t stage,
                                      uint32_t replica) {
  return pieces->instance_rank[stage * pieces->n_replicas + replica];
}

/* Whether a stage of the pieces is an odd place, where nothing is computed but sums. */
static inline bool opi_piece_sums(const opi_piece_plan *pieces, uint32_t stage) {
  return opi_piece_place_of(pieces->whole, stage % pieces->n_pieces).place % 2 == 1;
}

typedef struct opi_cut_model {
  const opipe_allocator *allocator;
  opi_arena arena;
  const opi_cut *master; /* the cut with the parameter table; NULL: the base's first slice's */
  opi_cut *table;        /* tensor groups: the table of all members alone; NULL: the master's */
  opi_variant *variants;
  uint32_t n_variants, room_variants;
  uint32_t base;                      /* the variant that was bound, which has the most rows */
  opi_piece *pieces[OPI_ROW_CLASSES]; /* [n_stages * n_pieces] */
  opi_cut *cuts[OPI_ROW_CLASSES];     /* of all pieces together */
  uint32_t n_classes, n_slices;
  uint32_t n_members;   /* of a tensor group; 1: none */
  uint32_t n_places;    /* of a stage; 1: no stretches */
  const bool *scatters; /* [n_stages * n_stages] of the plan, by from * n_stages + to: whole values
                           go from one to the other in the members' parts; NULL: none does */
  uint8_t *sums;       /* [n_stages * n_places] phases in which members make results together there,
                          bits (1 << OPI_PHASE_*); NULL: no tensor groups */
  bool *splits;        /* the same index: a whole backward computes I and W apart there: W while the
                          sum of I's results travels */
  uint32_t n_pieces;   /* of a stage: tokens, rows and phases (opi_plan_pieces), for each place and
                          member of a tensor group */
  uint32_t loss_stage; /* stage of the plan that makes the loss: the last one, unless its nodes do
                          not lead to the loss; OPIPE_NONE: no training */
  int64_t n_tokens;    /* of a sequence; 0 without slices */
  const opi_stage_times *times; /* of the plan's stages; NULL: not known. Borrowed */
  uint32_t n_positions;         /* requests that the piece plan must hold; 0: as many as needed */
  opi_token_axes token_axes;
  opi_kept_blocks *blocks; /* [n_slices] tensor groups: what recomputation keeps; NULL: none */
  opi_piece_plan piece_plan;
} opi_cut_model;

static inline const opi_variant_slice *opi_variant_slice_of(const opi_cut_model *model,
                                                            uint32_t class, uint32_t view_stage) {
  const opi_piece *piece = &model->pieces[class][view_stage];
  return &model->variants[piece->variant].slices[piece->graph];
}
/* Graphs of a variant. */
static inline uint32_t opi_model_graphs(const opi_cut_model *model) {
  return model->n_slices * model->n_members;
}
/* Pieces of one place of a stage. */
static inline uint32_t opi_pieces_of_place(const opi_cut_model *model) {
  return model->n_pieces / model->n_places;
}

/* The sources of a model. All borrowed; bound and master must outlive it. */
typedef struct opi_cut_sources {
  const opi_decision *plan; /* stage_of_node and actions must be set (actions NULL: every stage of a
                               training plan uses F and B). Must outlive the model */
  const opi_stage_times *times; /* of its stages, for the lists; NULL: all 0. Must outlive the model
                                 */
  uint32_t n_positions;         /* requests that the lists must hold; 0: as many as needed */
  const opi_model *file;
  const opi_bind_options *base; /* evaluator and logger */
  const opi_cut *master;  /* of the same plan with other dimensions, whose parameter table to use;
                             NULL: a table of its own */
  const opi_bound *bound; /* the graph of the most rows, whose nodes the plan's stage_of_node
                             counts; NULL: it is bound here. Ignored by training plans, whose graphs
                             have bindings of their own */
  opi_bind_fn bind;       /* NULL: opi_bind */
} opi_cut_sources;
opipe_status opi_cut_model_build(const opi_cut_sources *from, opi_cut_model **out_model,
                                 opipe_error *err);
void opi_cut_model_free(opi_cut_model *model); /* accepts NULL */
/* Whether lists of the model hold for the other, of the same plan: opi_cut_holds, and one class of
 * rows in each. */
static inline bool opi_cut_model_holds(const opi_cut_model *model, const opi_cut_model *other) {
  return model->n_classes == 1 && other->n_classes == 1 &&
         opi_cut_holds(model->cuts[0], other->cuts[0]);
}

/* Lists the activations that cross stages in the plan, by src, dst, index. */
opipe_status opi_plan_name_crossings(opi_plan *plan, const opi_cut_model *model, opipe_error *err);

/* Slots of the parameter table that the programs of `stage` read or accumulate, rising, in all
 * members of its tensor group. Allocates in `arena`. */
opipe_status opi_stage_params(const opi_cut_model *model, uint32_t stage, opi_arena *arena,
                              uint32_t **out_params, uint32_t *out_n, opipe_error *err);
/* The same of one member; OPIPE_NONE: of all. */
opipe_status opi_member_params(const opi_cut_model *model, uint32_t stage, uint32_t member,
                               opi_arena *arena, uint32_t **out_params, uint32_t *out_n,
                               opipe_error *err);

/* The values of a bound graph that must carry the batch: all of them; in training, all that the
 * loss needs, where a loss made by the graph ends the batch in sums. Lies in `arena`. */
opipe_status opi_batch_part(const opi_decision *plan, const opi_graph *g, opi_arena *arena,
                            opi_carry_part *out, opipe_error *err);

/* rows_tie.c: tensors that replicas sharing micro-batches cannot hand on. Marks the nodes
 * [g->n_nodes] that make and read them, and the positions [n_nodes + 1] where a cut would send one,
 * unless too few positions would remain. g: bound, of a micro-batch; the plan's batch is proven. */
opipe_status opi_rows_tie(const opi_decision *plan, const opi_model *file, const opi_graph *g,
                          bool *out_stays, bool *out_closed, opipe_error *err);

/* masks.c. The batch's dimension in the inputs of g: in_carry [n_inputs]. Keys and values of
 * earlier tokens have it first, alone or with the heads: [batch, heads, tokens, size], [batch *
 * heads, size, tokens], [1, batch * heads, tokens, size]. */
void opi_place_batch(const opi_decision *plan, const opi_model *model, const opi_graph *g,
                     opi_carry *in_carry);
/* masks.c: follows tokens through the inputs of Dropout: [n_values] in `scratch`; *out_carry NULL:
 * no axis is known. */
opipe_status opi_token_carry_of(const opi_token_axes *axes, const opi_graph *g, opi_arena *scratch,
                                opi_carry **out_carry, opipe_error *err);
/* The member of a tensor group whose graph it is. */
typedef struct opi_train_member {
  const opi_bound *whole; /* the graph that is divided */
  const opi_shard_member *of;
  const opi_divided_classes *classes; /* NULL: the loss reads whole logits */
  const bool *apart;                  /* [the plan's stages] opi_gradient_options.apart */
  opi_choices *choices;               /* of its training graph; NULL: none */
  opi_kept_blocks *blocks;            /* of all members and variants */
} opi_train_member;
/* masks.c: the graph `bound` of a micro-batch `whole`, or of a slice or member of it, with masks
 * given by the run's scalars, if it drops anything: out_slice's graph and scalars. member: whose
 * graph it is; NULL: of no tensor group. Allocates in `arena`. Errors: UNSUPPORTED, a slice's rows
 * cannot be numbered as the whole's are. */
opipe_status opi_forward_draws(const opi_decision *plan, const opi_model *model,
                               const opi_bind_options *base, const opi_bound *whole,
                               const opi_bound *bound, const opi_token_axes *axes,
                               const opi_train_member *member, opi_arena *arena,
                               opi_variant_slice *io_slice, opipe_error *err);
/* masks.c: an axis of the whole graph (*io_carry, NULL: none) in a member's; member NULL, or one
 * without rows of values: io_carry stays. */
opipe_status opi_member_carry(const opi_train_member *member, opi_arena *scratch,
                              opi_carry **io_carry, opipe_error *err);

/* Training graph of a bound micro-batch under the plan's spec. stage_of_node NULL: one stage; slice
 * NULL: whole sequences; axes NULL: masks need not be those of slices; member NULL: `bound` is of
 * no tensor group. */
opipe_status opi_train_gradient(const opi_decision *plan, const opi_model *model,
                                const opi_bound *bound, const uint32_t *stage_of_node,
                                const opi_token_slice *slice, const opi_token_axes *axes,
                                const opi_train_member *member, const opi_bind_options *base,
                                opi_training **out_training, opipe_error *err);
/* The value that training minimises, or to which its loss is attached; OPIPE_NONE: not certain. */
uint32_t opi_train_target(const opi_decision *plan, const opi_graph *g);

/* slices.c: cuts the sequences of a variant, whose whole graph is bound, by the plan's layout. */
opipe_status opi_slices_cut(const opi_decision *plan, const opi_model *file,
                            const opi_bind_options *base, opi_variant *variant,
                            opi_cut_model *model, opipe_error *err);
/* slices.c: rescales slices that were made for another number of tokens than the plan's dimensions
 * have: given lengths in the same proportions; a forward plan keeps only slices with tokens.
 * *out_left [the number before]: each slice's new index, OPIPE_NONE: none; NULL: all are kept.
 * Allocates in `arena`. */
opipe_status opi_slices_scale(const opi_model *file, opi_decision *plan, opi_arena *arena,
                              const uint32_t **out_left, opipe_error *err);
/* slices.c: fills model->token_axes for `whole`, a graph of `rows` rows. None if nothing drops, or
 * if the model has no token dimension that could be sliced. */
opipe_status opi_token_axes_find(const opi_decision *plan, const opi_model *file,
                                 const opi_bind_options *base, int64_t rows, const opi_bound *whole,
                                 opi_cut_model *model, opipe_error *err);
/* variants.c. The variant of this many rows (0: the batch has no name), noted if new. */
opipe_status opi_variant_note(opi_cut_model *model, int64_t rows, uint32_t *out_variant,
                              opipe_error *err);
/* Makes the graphs and cuts of all noted variants; used [n_stages]: OPI_PROGRAM_* as bits. Errors:
 * those of binding and differentiating; UNSUPPORTED, a graph that changes with the rows. */
opipe_status opi_variants_build(const opi_cut_sources *from, const uint32_t *used,
                                opi_cut_model *model, opipe_error *err);
void opi_variants_free(opi_cut_model *model);
/* pieces.c: the tokens and rows of a micro-batch of class `c` that each piece has, and its variant.
 * Called once more when the number of places is known. Errors: INVALID, fewer rows than pieces. */
opipe_status opi_pieces_place(const opi_decision *plan, uint32_t c, int64_t rows,
                              opi_cut_model *model, opipe_error *err);
/* The batch axis in the values of a graph. */
typedef struct opi_piece_axes {
  opi_carry *carry; /* [n_values] */
  bool *mixed;      /* [n_values] */
} opi_piece_axes;
/* pieces.c: the cut of class `c` with every piece of a stage as a stage. axes [opi_model_graphs]:
 * of the first variant's graphs; NULL: no rows of micro-batches are cut. Errors: UNSUPPORTED, the
 * tensor whose rows are not contiguous, or that no token slice passes on. */
opipe_status opi_pieces_compose(const opi_decision *plan, uint32_t c, const opi_piece_axes *axes,
                                opi_cut_model *model, opipe_error *err);
/* members.c. Errors: UNSUPPORTED, what tensor groups are not combined with; INVALID, a width that
 * does not divide the ranks, with both numbers. */
opipe_status opi_tensor_check(const opi_decision *plan, opipe_error *err);
/* members.c: fills model->scatters. */
opipe_status opi_members_scatter(const opi_decision *plan, opi_cut_model *model, opipe_error *err);
/* members.c: where samples lie in the values of a bound graph: *out [n_values] in `arena`;
 * NULL: the batch has no name. */
opipe_status opi_members_samples(const opi_decision *plan, const opi_model *file,
                                 const opi_graph *g, opi_arena *arena, const opi_carry **out,
                                 opipe_error *err);
/* members.c: OPI_SHARD_* of all the plan's graphs. */
uint32_t opi_tensor_flags(const opi_decision *plan);
/* members.c: divides the graph of a variant's slice among the members of tensor groups, by the
 * stages of its nodes, into variant->shards. target: the value of `bound` that a loss
 * reads; OPIPE_NONE: found as in whole sequences. *out_classes [width]: parts of the logits that a
 * loss reads; NULL: they are whole. Errors: UNSUPPORTED, nothing can be divided, with reasons. */
opipe_status opi_members_divide(const opi_decision *plan, const opi_model *file,
                                const opi_bind_options *base, const opi_bound *bound,
                                const uint32_t *stages, uint32_t target, uint32_t slice,
                                opi_variant *variant, opi_cut_model *model,
                                const int64_t **out_classes, opipe_error *err);
/* members.c: the parts of a member's inputs and outputs, whose training graph, if any, is made. */
opipe_status opi_members_ports(const opi_bound *whole, const opi_shard_member *member,
                               opi_variant_slice *io_slice, opi_arena *arena, opipe_error *err);
/* members.c: cuts stages into stretches, alike in all members and variants: sets n_places and the
 * stages of nodes, which count places from then on. Errors: UNSUPPORTED, members whose collectives
 * differ. */
opipe_status opi_members_stretch(const opi_decision *plan, opi_cut_model *model, opipe_error *err);
/* member_records.c: fills sums and splits from the stretches of the base. */
opipe_status opi_members_split(const opi_decision *plan, opi_cut_model *model, opipe_error *err);
/* piece_plan.c: puts a record of the plan at a place of its stage, as a member's. */
void opi_action_place(const opi_decision *plan, const opi_cut_model *model, uint32_t place,
                      uint32_t member, opipe_action *io_action);
/* member_records.c: how many records the plan's record `a` has at the places of its stage. */
uint32_t opi_member_records_count(const opi_decision *plan, const opi_cut_model *model, uint32_t a);
/* Writes a member's, in the order in which its rank runs them, from list[*io_n] on, and notes the
 * last one's index in last_of [the plan's actions] (NULL: not wanted). Returns the records of the
 * plan that they are: 1; 2 of a pair, which take turns at every sum. */
uint32_t opi_member_records_add(const opi_decision *plan, const opi_cut_model *model, uint32_t a,
                                uint32_t member, opipe_action *list, uint32_t *io_n,
                                uint32_t *last_of);
/* member_params.c: the parameter table of all members; out_rows [opi_model_graphs][n_values of the
 * graph]: see opi_cut_source. Allocates in the model's arena. */
opipe_status opi_members_table(opi_cut_model *model, const uint32_t ***out_rows, opipe_error *err);
/* member_annotate.c: the divided parameters as IR 11 can say it; those that it cannot are logged as
 * a warning, by name. Allocates in `arena`. Errors: NOMEM. */
opipe_status opi_shards_annotated(const opi_decision *plan, const opi_cut_model *model,
                                  const opi_model *file, const opi_logger *logger, opi_arena *arena,
                                  const opi_annotated_shards **out_shards, opipe_error *err);
/* piece_plan.c: fills model->piece_plan. A forward plan's records are filled only by the first call
 * after opi_cut_model_build: the number of requests in a body follows from the cut. */
opipe_status opi_piece_plan_build(const opi_decision *plan, opi_cut_model *model, opipe_error *err);

#endif /* OPI_CUT_MODEL_H */
