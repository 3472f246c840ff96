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
  OPI_DO_FREE,   /* frees the stash of one (stage, micro-batch, slice) */
  OPI_DO_UNSHARD,
  OPI_DO_RESHARD,
  OPI_DO_OFFLOAD, /* Moves the stash of one (stage, micro-batch, slice) to the host's memory. */
  OPI_DO_RELOAD,  /* Brings it back, before its reader. */
  /* over the data group of an instance: its replicas in all copies */
  OPI_DO_SCATTER, /* in place of REDUCE: each member gets its part of the sum */
  OPI_DO_GATHER,  /* weights, behind the STEP: each member has stepped its part */
  /* over the tensor group of an instance, for one pass of a micro-batch */
  OPI_DO_SUM_F, /* sums what a forward made */
  OPI_DO_SUM_B,
  /* over the sequence group: the same ranks, each with a part of the tokens */
  OPI_DO_GATHER_F, /* before a forward: puts the parts together */
  OPI_DO_GATHER_B,
  OPI_DO_SCATTER_F, /* after it: sums the results, each rank keeps its part */
  OPI_DO_SCATTER_B,
  OPI_DO_IDLE, /* an empty cell of a table aligned in time: a slot for the passes that count slots,
                  no work for a rank */
  OPI_DO_KINDS
};

/* Phases, the parts of a stage's work: nodes of pass FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT. */
enum { OPI_PHASE_F = 0, OPI_PHASE_I = 1, OPI_PHASE_W = 2, OPI_PHASES = 3 };

/* flags: as in opipe_action (OPIPE_ACTION_OVERLAP_NEXT: this action and the next form an
 * OVERLAP_F_B container; OPIPE_ACTION_NEXT_STEP: the action belongs to the next mini-batch). */
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
  /* [n_stages] Not NULL: the stage's replicas share every micro-batch, each with a part of its
   * rows; the array says how many. NULL: each micro-batch passes one replica of a stage, as the
   * records say. */
  const uint32_t *stage_shares;
  const uint32_t *slice_lengths; /* [n_slices] tokens, for times; NULL: equal */
  const opi_stage_edge *edges;   /* [n_edges] */
  uint32_t n_edges;
  /* Groups. A list holds the ranks of one copy. There are n_copies copies, each with micro-batches
   * of its own, and n_tensor ranks do the same work with parts of the weights. */
  uint32_t n_copies, n_tensor; /* 0 as 1 */
  bool sharded;   /* each member of a data group keeps a part of the optimizer's state: SCATTER and
                     GATHER in place of REDUCE */
  bool sequence;  /* each rank of a tensor group has a part of the tokens: GATHER_x and SCATTER_x in
                     place of SUM_x */
  bool scattered; /* each sends its part to the next stage, and the receivers gather: GATHER_x */
  uint32_t send_slots; /* most messages of one stream sent and not yet received; 0: any number. A
                          send waits for its slot */
  uint32_t recv_slots; /* most messages of one stream posted and not yet consumed; 0: any number */
  const uint64_t *stash_bytes;      /* by instance, for one whole micro-batch; NULL: 1 each */
  const uint64_t *rank_stash_bytes; /* [n_ranks] cap of stashes; NULL: none */
} opi_problem;

/* ---- lists ---- */

enum { OPI_ACTIONS_MOST = 1 << 27 }; /* in one list */

/* Creates a list with room for `n_items` (0: unknown); it grows as needed. Errors: LIMIT, more than
 * OPI_ACTIONS_MOST actions. */
opipe_status opi_do_list_create(const opipe_allocator *allocator, uint32_t n_ranks,
                                uint64_t n_items, opi_do_list **out_list, opipe_error *err);
void opi_do_list_free(opi_do_list *list); /* accepts NULL */
/* Appends to the rank being filled. Ranks are filled in rising order: opi_do_list_rank begins one
 * and, with n_ranks, ends the last. */
opipe_status opi_do_list_add(opi_do_list *list, opi_do item, opipe_error *err);
void opi_do_list_rank(opi_do_list *list, uint32_t rank);
/* From a plugin's records, in each rank's order. Errors: INVALID, a record out of range. */
opipe_status opi_do_list_from_records(const opi_problem *problem, const opipe_action *records,
                                      uint32_t n_records, const opipe_allocator *allocator,
                                      opi_do_list **out_list, opipe_error *err);
/* Converts one record to an action (without its recomputation), and back. False: it has no
 * counterpart. */
bool opi_do_of_record(const opipe_action *record, opi_do *out_item);
bool opi_record_of_do(const opi_do *item, uint32_t rank, opipe_action *out_record);
/* Fills edges [n_stages - 1] with the chain 0 -> 1 -> ... */
void opi_edges_chain(opi_stage_edge *edges, uint32_t n_stages);
/* Copies the list without the actions of one kind. */
opipe_status opi_do_list_without(const opi_do_list *list, uint32_t kind,
                                 const opipe_allocator *allocator, opi_do_list **out_list,
                                 opipe_error *err);
bool opi_do_is_compute(uint32_t kind); /* F B I W R */
bool opi_do_is_message(uint32_t kind); /* SEND_x RECV_x */
bool opi_do_has_microbatch(uint32_t kind);
bool opi_do_is_group(uint32_t kind); /* SUM_x GATHER_x SCATTER_x: collectives of a pass */
/* For kinds of collectives of a pass: whether the pass is a backward, and whether the collective
 * stands in front of it. */
bool opi_do_group_is_backward(uint32_t kind);
bool opi_do_group_is_before(uint32_t kind);
const char *opi_do_kind_name(uint32_t kind);
/* Writes "2F0" or "3SEND_F1>5" into buffer [room] and returns it. */
const char *opi_do_text(const opi_problem *problem, const opi_do *item, char *buffer, size_t room);

/* ---- passes: pure; the caller owns the result ---- */

/* Checks each rank alone: range, home, every pass exactly once (a B, or an I and a W), F before B
 * and I before W, slices rising in forwards and falling in backwards, the replica of a micro-batch.
 * A stash is offloaded at most once, after its forward, and reloaded before its backward with two
 * computes between: the stash leaves during the first, and the second may use its memory.
 * Collectives of a pass stand directly around it, once each, the same for all passes of a stage.
 * Errors: INVALID with rank, step and action. */
opipe_status opi_pass_check(const opi_problem *problem, const opi_do_list *list,
                            const opipe_allocator *allocator, opipe_error *err);
/* B -> I, W; and back: I directly followed by its W (actions of other kinds may stand between) ->
 * B. */
opipe_status opi_pass_split(const opi_do_list *list, const opipe_allocator *allocator,
                            opi_do_list **out_list, opipe_error *err);
opipe_status opi_pass_merge(const opi_do_list *list, const opipe_allocator *allocator,
                            opi_do_list **out_list, opipe_error *err);
/* Puts an R in front of every backward (of its first part) of the stages [n_stages] that compute
 * their forward again. The list must not hold an R of these stages yet. */
opipe_status opi_pass_recompute(const opi_do_list *list, const bool *stages,
                                const opipe_allocator *allocator, opi_do_list **out_list,
                                opipe_error *err);
/* Places sends after their producers. Each receive is appended to the peer's list at the same
 * moment, which makes a global order of messages that is safe under every rule. Errors: INVALID, a
 * deadlock with its cycle. */
opipe_status opi_pass_messages(const opi_problem *problem, const opi_do_list *list,
                               const opipe_allocator *allocator, opi_do_list **out_list,
                               opipe_error *err);
/* Moves each receive to just before the (depth - 1)-th compute in front of its consumer; depth >=
 * 1, 1: just before the consumer. The lower rank of a pair never moves a receive after its own send
 * to the other. */
opipe_status opi_pass_defer(const opi_problem *problem, const opi_do_list *list, uint32_t depth,
                            const opipe_allocator *allocator, opi_do_list **out_list,
                            opipe_error *err);
/* Places UNSHARD before first use and RESHARD after, with at most max_active stages at a time. */
opipe_status opi_pass_unshard(const opi_do_list *list, uint32_t max_active,
                              const opipe_allocator *allocator, opi_do_list **out_list,
                              opipe_error *err);
/* Places REDUCE of every instance (of those with replicas only, unless `all`), as problem->sync
 * says. */
opipe_status opi_pass_reduce(const opi_problem *problem, const opi_do_list *list, bool all,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err);
/* Places FREE after the last reader of every stash, STEP after the rank's last backward or REDUCE.
 */
opipe_status opi_pass_finish(const opi_problem *problem, const opi_do_list *list,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err);

typedef struct opi_lowering {
  uint32_t receive_depth; /* 0: early, as placed; else opi_pass_defer's depth */
  bool messages_only;     /* no reductions, frees and steps */
} opi_lowering;
/* LIMIT if the problem's lowered orders would exceed OPI_ACTIONS_MOST actions; only counts. */
opipe_status opi_lower_limit(const opi_problem *problem, opipe_error *err);
/* Places the collectives of the problem's groups in a list with steps: SUM_x (GATHER_x and
 * SCATTER_x) directly around each pass, or around the pair that the pass is part of; collectives
 * for copies and sharded states around every STEP. Collectives already in the list are not added
 * again, except where its replicas begin their sums. */
opipe_status opi_pass_groups(const opi_problem *problem, const opi_do_list *list,
                             const opipe_allocator *allocator, opi_do_list **out_list,
                             opipe_error *err);
/* Places OFFLOAD after the forwards of the stages [n_stages], and RELOAD one compute before the
 * stash's reader, where at least two computes lie between. The list must hold no messages and no
 * OFFLOAD or RELOAD yet. Forwards of the next mini-batch keep their stash. Errors: INVALID, an
 * incomplete list. */
opipe_status opi_pass_offload(const opi_problem *problem, const opi_do_list *list,
                              const bool *stages, const opipe_allocator *allocator,
                              opi_do_list **out_list, opipe_error *err);
/* Runs all passes: limit, check, reduce, messages, defer, finish, groups. */
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

/* Proves a lowered list. Checked are: opi_pass_check's rules; every message once, at both ends and
 * at home; the order of matching; dependencies and deadlocks (reported as the cycle, with rank,
 * step and action); STEP, FREE and sums, each at most once and on all ranks or none; sums over
 * replicas, by all of them and in one way; versions (double-buffered: prologue, bodies and
 * epilogue); slots; caps. A sum starts at its place and runs in the background, and STEP waits for
 * it; a rank blocks in a GATHER until its whole group has come. Errors: INVALID (with the reason),
 * LIMIT (a cap). */
opipe_status opi_proof_check(const opi_problem *problem, const opi_do_list *list, uint32_t rule,
                             const opipe_allocator *allocator, opi_proof *out_proof,
                             opipe_error *err);

#endif /* OPI_ACTIONS_H */
