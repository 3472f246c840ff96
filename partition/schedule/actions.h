/* SPDX-License-Identifier: Apache-2.0 */
/* The action language: what every rank does, one after the other, independent of any graph.
 *
 *   compute records (a plugin's, a file's) -> order checked -> B split or merged -> messages placed
 *   -> receives placed -> reductions, frees, steps placed -> proven under the transport's rule
 *
 * A list holds the actions of all ranks, rank by rank; each pass makes a new list and leaves the
 * old one alone. A *problem* says what the list is about: which instance lives where, which stages
 * feed which. Stages usually form a chain; real models have edges that skip stages.
 */
#ifndef OPI_ACTIONS_H
#define OPI_ACTIONS_H

#include <opipe/schedule.h>

#include "loader/base/base.h"
#include "partition/plan/rules.h"

/* Kinds. Text: stage KIND micro-batch, as 2F0, 2SEND_F0; REDUCE, SCATTER, GATHER, UNSHARD, RESHARD
 * have no micro-batch, STEP neither (it belongs to the rank). */
enum {
  OPI_DO_F = 0, /* forward */
  OPI_DO_B,     /* whole backward: I and W in one */
  OPI_DO_I,     /* backward for the input */
  OPI_DO_W,     /* backward for the weights, after its I */
  OPI_DO_R,     /* forward once more, for the backward that follows */
  OPI_DO_SEND_F,
  OPI_DO_RECV_F,
  OPI_DO_SEND_B, /* stage: edge.dst, gradients travel backwards */
  OPI_DO_RECV_B, /* stage: edge.src */
  OPI_DO_REDUCE, /* gradients of one instance, over its replicas */
  OPI_DO_STEP,   /* optimizer, all instances of the rank */
  OPI_DO_FREE,   /* the stash of one (stage, micro-batch, slice) */
  OPI_DO_UNSHARD,
  OPI_DO_RESHARD,
  OPI_DO_OFFLOAD, /* the stash of one (stage, micro-batch, slice) leaves for the host's memory */
  OPI_DO_RELOAD,  /* it comes back, before what reads it */
  /* over the data group of an instance: its replicas, and those of all copies */
  OPI_DO_SCATTER, /* in place of REDUCE: each member gets its part of the sum */
  OPI_DO_GATHER,  /* weights, behind the STEP: each member has stepped its part */
  /* over the tensor group of an instance, for one pass of a micro-batch */
  OPI_DO_SUM_F, /* what a forward made is summed */
  OPI_DO_SUM_B,
  /* the same ranks, each with a part of the tokens: over the sequence group */
  OPI_DO_GATHER_F, /* in front of a forward: the parts are put together */
  OPI_DO_GATHER_B,
  OPI_DO_SCATTER_F, /* behind it: what it made is summed, each rank keeps its part */
  OPI_DO_SCATTER_B,
  OPI_DO_IDLE, /* an empty cell of a table aligned in time: a slot for the passes that count slots,
                  nothing to a rank */
  OPI_DO_KINDS
};

/* Phases, the parts of a stage's work: nodes of pass FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT. */
enum { OPI_PHASE_F = 0, OPI_PHASE_I = 1, OPI_PHASE_W = 2, OPI_PHASES = 3 };

/* flags: those of opipe_action (OPIPE_ACTION_OVERLAP_NEXT: this one and the next form an
 * OVERLAP_F_B container; OPIPE_ACTION_NEXT_STEP: of the next mini-batch). */
typedef struct opi_do {
  uint32_t stage; /* OPIPE_NONE: STEP */
  uint32_t microbatch;
  uint32_t edge; /* SEND_x, RECV_x: index in the problem's edges; else OPIPE_NONE */
  uint16_t replica;
  uint16_t peer; /* SEND_x, RECV_x: replica at the other end */
  uint16_t slice;
  uint16_t version;
  uint8_t kind; /* OPI_DO_* */
  uint8_t part;
  uint16_t flags;
} opi_do;

typedef struct opi_do_list {
  opi_arena arena;      /* of rank_first */
  opi_do *items;        /* rank by rank; a block of its own */
  uint32_t *rank_first; /* [n_ranks + 1] into items */
  uint32_t n_items, n_ranks, room;
} opi_do_list;

/* Activations go from src to dst, gradients back. */
typedef struct opi_stage_edge {
  uint32_t src, dst; /* stages, src < dst */
} opi_stage_edge;

/* Borrowed arrays. Instance index: stage * n_replicas + replica. */
typedef struct opi_problem {
  uint32_t n_ranks, n_stages, n_replicas, n_microbatches, n_slices, n_parts;
  uint32_t mode;                 /* OPIPE_MODE_* */
  uint32_t versions;             /* OPIPE_VERSIONS_* */
  uint32_t sync;                 /* OPIPE_SYNC_* */
  const uint32_t *instance_rank; /* OPIPE_NONE: there is no such instance */
  /* [n_stages] Not NULL: each micro-batch of the stage is cut along its rows between that many
   * replicas, which all compute it. NULL: each micro-batch passes one replica of a stage, read off
   * the records. */
  const uint32_t *stage_shares;
  const uint32_t *slice_lengths; /* [n_slices] tokens, for times; NULL: equal */
  const opi_stage_edge *edges;   /* [n_edges] */
  uint32_t n_edges;
  /* Groups. The ranks of a list are those of one copy: there are n_copies of all of them, each with
   * micro-batches of its own, and of each n_tensor that do the same with parts of the weights. */
  uint32_t n_copies, n_tensor; /* 0 as 1 */
  bool sharded;   /* of the optimizer's state each member of a data group has a part: SCATTER and
                     GATHER in place of REDUCE */
  bool sequence;  /* each rank of a tensor group has a part of the tokens: GATHER_x, SCATTER_x in
                     place of SUM_x */
  bool scattered; /* each sends its part between stages, and the receivers gather: GATHER_x */
  uint32_t send_slots; /* messages of one stream sent and not yet received; 0: any number. A send
                          waits for its slot */
  uint32_t recv_slots; /* of one stream posted and not yet consumed; 0: any number */
  const uint64_t *stash_bytes;      /* by instance, one whole micro-batch; NULL: 1 each */
  const uint64_t *rank_stash_bytes; /* [n_ranks] cap of stashes; NULL: none */
} opi_problem;

/* ---- lists ---- */

enum { OPI_ACTIONS_MOST = 1 << 27 }; /* of one list */

/* With room for `n_items` (0: not known); further ones make more. Errors: LIMIT, more than
 * OPI_ACTIONS_MOST. */
opipe_status opi_do_list_create(const opipe_allocator *allocator, uint32_t n_ranks,
                                uint64_t n_items, opi_do_list **out_list, opipe_error *err);
void opi_do_list_free(opi_do_list *list); /* accepts NULL */
/* Appends to the rank that is being filled; ranks are filled in rising order, opi_do_list_rank
 * begins one and, with n_ranks, ends the last. */
opipe_status opi_do_list_add(opi_do_list *list, opi_do item, opipe_error *err);
void opi_do_list_rank(opi_do_list *list, uint32_t rank);
/* From a plugin's records, in each rank's order. Errors: INVALID, a record out of range. */
opipe_status opi_do_list_from_records(const opi_problem *problem, const opipe_action *records,
                                      uint32_t n_records, const opipe_allocator *allocator,
                                      opi_do_list **out_list, opipe_error *err);
/* One record as an action (without its recomputation), and the other way. False: there is none. */
bool opi_do_of_record(const opipe_action *record, opi_do *out_item);
bool opi_record_of_do(const opi_do *item, uint32_t rank, opipe_action *out_record);
/* The chain 0 -> 1 -> ... into edges [n_stages - 1]. */
void opi_edges_chain(opi_stage_edge *edges, uint32_t n_stages);
/* Without the actions of one kind. */
opipe_status opi_do_list_without(const opi_do_list *list, uint32_t kind,
                                 const opipe_allocator *allocator, opi_do_list **out_list,
                                 opipe_error *err);
bool opi_do_is_compute(uint32_t kind); /* F B I W R */
bool opi_do_is_message(uint32_t kind); /* SEND_x RECV_x */
bool opi_do_has_microbatch(uint32_t kind);
bool opi_do_is_group(uint32_t kind); /* SUM_x GATHER_x SCATTER_x: of a pass */
/* Of such a kind: is it of backwards, and does it stand in front of its pass? */
bool opi_do_group_is_backward(uint32_t kind);
bool opi_do_group_is_before(uint32_t kind);
const char *opi_do_kind_name(uint32_t kind);
/* "2F0", "3SEND_F1>5" into buffer [room], which is returned. */
const char *opi_do_text(const opi_problem *problem, const opi_do *item, char *buffer, size_t room);

/* ---- passes: pure; the result is the caller's ---- */

/* Of each rank alone: range, home, exactly once per pass (a B, or an I and a W), F before B before
 * its W in each rank, slices forward in rising and backward in falling order, the replica of a
 * micro-batch. A stash that is offloaded is once, behind its forward, and reloaded before its
 * backward, with two computes between: beside the first it leaves, the second may have its room.
 * Collectives of a pass stand directly around it, once each, the same for all of a stage. Errors:
 * INVALID with rank, step, action. */
opipe_status opi_pass_check(const opi_problem *problem, const opi_do_list *list,
                            const opipe_allocator *allocator, opipe_error *err);
/* B -> I, W; and I directly followed by its W (other actions of other kinds apart) -> B. */
opipe_status opi_pass_split(const opi_do_list *list, const opipe_allocator *allocator,
                            opi_do_list **out_list, opipe_error *err);
opipe_status opi_pass_merge(const opi_do_list *list, const opipe_allocator *allocator,
                            opi_do_list **out_list, opipe_error *err);
/* An R in front of every backward (its first part) of stages [n_stages] that compute their forward
 * again. The list has none of these stages yet. */
opipe_status opi_pass_recompute(const opi_do_list *list, const bool *stages,
                                const opipe_allocator *allocator, opi_do_list **out_list,
                                opipe_error *err);
/* Sends behind their producers, each with its receive put at the end of the peer's list at the same
 * moment (a global order of messages: safe under every rule). Errors: INVALID, a deadlock with its
 * cycle. */
opipe_status opi_pass_messages(const opi_problem *problem, const opi_do_list *list,
                               const opipe_allocator *allocator, opi_do_list **out_list,
                               opipe_error *err);
/* Receives moved to just before the (depth - 1)-th compute in front of their consumer; depth >= 1,
 * 1: just before it. The lower rank of a pair never moves one behind its own send to the other. */
opipe_status opi_pass_defer(const opi_problem *problem, const opi_do_list *list, uint32_t depth,
                            const opipe_allocator *allocator, opi_do_list **out_list,
                            opipe_error *err);
/* UNSHARD before first use, RESHARD after, at most max_active stages at a time. */
opipe_status opi_pass_unshard(const opi_do_list *list, uint32_t max_active,
                              const opipe_allocator *allocator, opi_do_list **out_list,
                              opipe_error *err);
/* REDUCE of every instance (of those with replicas only, unless `all`), placed by problem->sync. */
opipe_status opi_pass_reduce(const opi_problem *problem, const opi_do_list *list, bool all,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err);
/* FREE behind the last reader of every stash; STEP behind the rank's last backward or REDUCE. */
opipe_status opi_pass_finish(const opi_problem *problem, const opi_do_list *list,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err);

typedef struct opi_lowering {
  uint32_t receive_depth; /* 0: early, as placed; else opi_pass_defer's depth */
  bool messages_only;     /* no reductions, frees and steps */
} opi_lowering;
/* LIMIT where the problem's orders come to more than OPI_ACTIONS_MOST actions once lowered; by
 * counting alone. */
opipe_status opi_lower_limit(const opi_problem *problem, opipe_error *err);
/* The collectives that the problem's groups ask for, in a list with steps: SUM_x (GATHER_x and
 * SCATTER_x) directly around its pass, or around the pair that it is part of; what copies and
 * sharded states need around every STEP. Those that the list has are left out, but where its
 * replicas begin their sums. */
opipe_status opi_pass_groups(const opi_problem *problem, const opi_do_list *list,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err);
/* OFFLOAD behind the forwards of stages [n_stages] and RELOAD one compute before what reads the
 * stash, where at least two computes lie between. The list has no messages, and none of these yet;
 * forwards of the next mini-batch keep what they have. Errors: INVALID, a list that is not whole.
 */
opipe_status opi_pass_offload(const opi_problem *problem, const opi_do_list *list,
                              const bool *stages, const opipe_allocator *allocator,
                              opi_do_list **out_list, opipe_error *err);
/* All of them: limit, check, reduce, messages, defer, finish, groups. */
opipe_status opi_lower_order(const opi_problem *problem, const opi_do_list *order,
                             const opi_lowering *how, const opipe_allocator *allocator,
                             opi_do_list **out_list, opipe_error *err);

/* ---- proof ---- */

typedef struct opi_proof {
  uint64_t *peak_stash; /* [n_ranks] bytes, or with stash_bytes NULL in 1/scale micro-batches;
                           caller's memory, may be NULL */
  uint32_t scale;       /* out: n_slices * n_parts without stash_bytes, else 1 */
  uint32_t n_messages;  /* out */
} opi_proof;

/* The whole proof of a lowered list: opi_pass_check, every message once at both ends and at home,
 * order of matching, dependencies and deadlock (the cycle, with rank, step and action), no STEP,
 * FREE or sum twice and none lacking where others are, sums over
 * replicas by all of them and in one way, versions (double-buffered: prologue, bodies and
 * epilogue), slots, caps. A sum begins where it stands and runs beside, the STEP waits for it; a
 * rank stands still in a GATHER until all of its group have come. Errors: INVALID (what is wrong),
 * LIMIT (a cap). */
opipe_status opi_proof_check(const opi_problem *problem, const opi_do_list *list, uint32_t rule,
                             const opipe_allocator *allocator, opi_proof *out_proof,
                             opipe_error *err);

#endif /* OPI_ACTIONS_H */
