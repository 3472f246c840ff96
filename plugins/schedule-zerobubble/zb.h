/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the zero-bubble schedules: the problem as numbers, orders, their replay, generators.
 *
 * All of them split a backward into I (input gradient, passed on) and W (weight gradient, which
 * nobody waits for). An order is made for the whole pipeline at once, as lists per rank; generators
 * that choose replay their candidates with the problem's costs and keep the best.
 * Memory of one plan() call is one opipe_work; nothing outlives the call.
 */
#ifndef OPIPE_SCHEDULE_ZEROBUBBLE_ZB_H
#define OPIPE_SCHEDULE_ZEROBUBBLE_ZB_H

#include <opipe/orders.h>

typedef struct zb_job zb_job; /* one plan() call, below */

enum { ZB_F = 0, ZB_I = 1, ZB_W = 2 };

/* Costs are scaled so that sums over a plan fit 64 bits; only their proportions matter here. */
typedef struct zb_model {
  uint32_t n_ranks, n_stages, chunks; /* chunks stages on every rank */
  uint32_t n_mb;
  const uint32_t *rank_of; /* [n_stages] */
  uint32_t *stage_of;      /* [n_ranks * chunks], rising per rank */
  uint64_t *ns[3];         /* of F, I, W [n_stages] */
  uint64_t *hop_ns;        /* [n_stages] from stage s to s + 1, 0 on the same rank */
  uint64_t *stash;         /* [n_stages] kept from the start of F to the end of W */
  uint64_t *cap;           /* [n_ranks] most stash at a time; UINT64_MAX: none */
  uint32_t stash_shift;    /* stashes and caps are in units of 2^stash_shift bytes */
} zb_model;

typedef struct zb_op {
  uint32_t stage;
  uint32_t microbatch;
  uint32_t pass; /* ZB_* */
} zb_op;

/* Lists of all ranks: rank r's at ops[r * room], n[r] of them. */
typedef struct zb_order {
  zb_op *ops;
  uint32_t *n;
  uint32_t room;
} zb_order;

/* The result of a replay. */
typedef struct zb_score {
  uint64_t makespan; /* from 0 to the end of the last op */
  uint64_t span;     /* largest over ranks of last end minus first start */
  bool complete;     /* every rank came to the end of its list */
  bool fits;         /* no rank's stash exceeds its cap */
} zb_score;

/* Scratch of replays and greedy runs, made once per plan. */
typedef struct zb_scratch {
  uint64_t *end[3];  /* of F, I, W [n_stages * n_mb]: 1 + time; 0: not yet */
  uint64_t *peak;    /* [n_ranks] of the last replay */
  uint64_t *held;    /* [n_ranks] */
  uint64_t *now;     /* [n_ranks] */
  uint64_t *first;   /* [n_ranks] */
  uint32_t *at;      /* [n_ranks] */
  uint32_t *cursor;  /* [n_ranks] */
  uint32_t *tree;    /* [2 * width] which rank is first, by halves */
  uint32_t width;    /* a power of two >= n_ranks */
  uint8_t *taken;    /* [n_ranks * room of an order] */
  uint32_t *done[3]; /* [n_stages] micro-batches through F, I, W */
} zb_scratch;

/* ---- model.c ---- */

opipe_status zb_model_make(opipe_work *work, const opipe_schedule_problem *problem,
                           zb_model *out_model, opipe_error *err);
/* Caps every rank at `units` times the largest stash of any rank under 1F1B of whole stages (all
 * chunks of a rank together count as one stage there). */
void zb_model_limit(zb_model *model, double units);
/* OPIPE_E_INVALID, with both numbers, when a rank cannot hold one micro-batch. */
opipe_status zb_model_check(const zb_model *model, const char *name, opipe_error *err);
uint64_t zb_bytes(const zb_model *model, uint64_t units);
opipe_status zb_order_make(opipe_work *work, const zb_model *model, zb_order *out_order,
                           opipe_error *err);
void zb_order_clear(const zb_model *model, zb_order *order);
void zb_order_copy(const zb_model *model, const zb_order *from, zb_order *to);
void zb_push(zb_order *order, uint32_t rank, uint32_t pass, uint32_t stage, uint32_t microbatch);
opipe_status zb_scratch_make(opipe_work *work, const zb_model *model, zb_scratch *out_scratch,
                             opipe_error *err);
zb_score zb_replay(const zb_model *model, const zb_order *order, zb_scratch *scratch);
/* True when `a` is the better one: complete, fitting, then makespan, then span. */
bool zb_better(const zb_score *a, const zb_score *b);
opipe_status zb_emit(const opipe_schedule_problem *problem, const zb_model *model,
                     const zb_order *order, opipe_emit_fn emit, void *emit_ctx, opipe_error *err);

/* cells.c: the same of job->best, slot by slot over all ranks, with the idle cells of PyTorch's
 * table of the interleaved form: those that its generator counts, then those in which a forward
 * waits for the one of the stage before. */
opipe_status zb_emit_slots(zb_job *job, opipe_emit_fn emit, void *emit_ctx, opipe_error *err);

/* ---- generators: fill a cleared order ---- */

/* Rank r: F x, then I x - (p-1-r) * ahead, then W x - (p-1) * ahead. ahead 1: ZB-H1, 2: ZB-H2. */
void zb_lagged(const zb_model *model, uint32_t ahead, zb_order *order);
/* Interleaved 1F1B with one warm-up forward per hop and W later by `rank` micro-batches. */
void zb_interleaved(const zb_model *model, zb_order *order);
/* The hand-made ZBV: four phases per rank, for at least 2p - 1 micro-batches. */
void zb_v_phases(const zb_model *model, zb_order *order);

/* How a greedy run decides. */
enum { ZB_INPUT_FIRST = 0, ZB_FORWARD_FIRST = 1, ZB_ALTERNATE = 2 };
enum { ZB_WEIGHT_FITS = 0, ZB_WEIGHT_IDLE = 1, ZB_WEIGHT_NEXT = 2 };
typedef struct zb_policy {
  uint32_t prefer;       /* between an F and an I that are both ready */
  uint32_t weight;       /* W: only where it delays nothing; in any gap; right after its I */
  bool forward_shallow;  /* among F: the lower stage first */
  bool input_shallow;    /* among I: the lower stage first */
  const uint64_t *cap;   /* [n_ranks] in place of the model's; every one holds a micro-batch */
  const zb_order *given; /* then: its ops as early as they can be without needing more memory */
  bool mirrored;         /* with `given`, both reversed: as late as they can be */
} zb_policy;
/* Runs all ranks by the clock under the policy and the caps. Loop-free layouts (line and V). */
void zb_greedy(const zb_model *model, const zb_policy *policy, zb_scratch *scratch,
               zb_order *order);
/* ---- search.c ---- */

/* One plan() call. */
struct zb_job {
  opipe_work work;
  const opipe_schedule_problem *problem;
  zb_model model;
  zb_scratch scratch;
  zb_order best;     /* the order that is emitted */
  zb_score score;    /* of `best`; complete false: there is none yet */
  zb_order trial[2]; /* for generators */
  uint64_t runs;     /* greedy runs that a long plan may still take */
};

/* `work` and `problem` are set; makes the rest. */
opipe_status zb_job_start(zb_job *job, opipe_error *err);
/* Replays trial[k] and keeps it in `best` if it is better, which it returns. */
bool zb_offer(zb_job *job, uint32_t k);
/* Offers what every policy makes under the model's caps. */
void zb_search(zb_job *job);
/* Starts from `best`: moves ops as early, then as late as memory allows, and offers each step. */
void zb_improve(zb_job *job);

/* V-Half, or V-Min (`least`): the blocks of the method, improved within their memory. */
opipe_status zb_v_blocks(zb_job *job, bool least, const char *name, opipe_error *err);

/* ---- family.c ---- */

/* The schedules of this folder by id ("zb-h1", ...). */
opipe_status zb_options(const char *id, const opipe_schedule_option **out_options,
                        uint32_t *out_count, opipe_error *err);
opipe_status zb_lay_out(const char *id, const opipe_layout_request *request,
                        opipe_layout *io_layout, opipe_error *err);
opipe_status zb_plan(const char *id, const opipe_host *host, const opipe_schedule_problem *problem,
                     opipe_emit_fn emit, void *emit_ctx, opipe_error *err);
/* With the idle cells of a published table. Errors also: UNSUPPORTED, there is none. */
opipe_status zb_cells(const char *id, const opipe_host *host, const opipe_schedule_problem *problem,
                      opipe_emit_fn emit, void *emit_ctx, opipe_error *err);

#endif /* OPIPE_SCHEDULE_ZEROBUBBLE_ZB_H */
