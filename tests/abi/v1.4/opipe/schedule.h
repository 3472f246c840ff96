/* SPDX-License-Identifier: Apache-2.0 */
/* Interface "opipe.schedule/1": what each rank computes, and in which order.
 *
 * A schedule plugin emits *compute order only*. The core inserts and places communication,
 * reductions and frees, then proves the result (completeness, dependencies, deadlock, memory)
 * before anything runs. A bad plugin can be refused; it cannot hang or corrupt. Both calls are
 * pure: the same arguments give the same records, without I/O, clock or global state, on any thread
 * at any time.
 *
 *   layout(ranks, micro-batches, options)
 *       -> stages, replicas, the rank of each stage instance, slices, halves, versions, sync policy
 *   plan(problem: the layout, costs and bytes per instance)
 *       -> one 32-byte record per action, in each rank's order
 * Between the two calls the core cuts the model into that many stages.
 */
#ifndef OPIPE_SCHEDULE_H
#define OPIPE_SCHEDULE_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPIPE_SCHEDULE_ID "opipe.schedule/1"

/* One action of one rank. The order of a rank's records is the order in which they are emitted. */
typedef struct opipe_action {
  uint32_t rank;
  uint32_t stage;
  uint32_t microbatch; /* 0 .. M - 1, counted over the whole mini-batch and all replicas */
  uint16_t replica;    /* instance of the stage */
  uint16_t slice;      /* token slice, 0 when slices == 1 */
  uint8_t part;        /* half of a backward, 0 when parts == 1 */
  uint8_t pass; /* OPIPE_PASS_FORWARD, _BACKWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT or _UPDATE */
  uint16_t version;  /* weight version, 0 = newest */
  uint32_t flags;    /* OPIPE_ACTION_* */
  uint64_t reserved; /* 0 */
} opipe_action;
OPIPE_FROZEN_SIZE(opipe_action, 32);

/* NEXT_STEP (double-buffered versions only): a forward of the next mini-batch. The records are then
 * the body of an endless stream: the flagged ones, in order, are its prologue, and the body without
 * them is its epilogue. */
/* RECOMPUTE (B and I only): a backward that computes its forward's values again. Orders with it are
 * proven and played, but no plan executes one: training has its own option for recomputation
 * (opipe_train_options). OVERLAP_NEXT: a forward that shares a slot with the rank's next action; a
 * rank that cannot overlap them runs one after the other. Any other flag is refused. */
enum { OPIPE_ACTION_RECOMPUTE = 1u, OPIPE_ACTION_OVERLAP_NEXT = 2u, OPIPE_ACTION_NEXT_STEP = 4u };

/* An option of a schedule: NAME:key=value. type: 'i' integer in [min, max], 's' one of `choices`
 * ("a|b|c"), 'x' number, 't' text. */
typedef struct opipe_schedule_option {
  const char *key;
  const char *choices; /* type 's' only, else NULL */
  const char *preset;  /* default when the key is not given; NULL: none */
  const char *help;    /* one line */
  double min;
  double max;
  uint32_t type;
  uint32_t reserved; /* 0 */
} opipe_schedule_option;
OPIPE_FROZEN_SIZE(opipe_schedule_option, 56);

/* An option as given. The caller has checked `value` for type, range and choices. */
typedef struct opipe_schedule_setting {
  const char *key;
  const char *value;
} opipe_schedule_setting;
OPIPE_FROZEN_SIZE(opipe_schedule_setting, 16);

enum { OPIPE_MODE_FORWARD = 0, OPIPE_MODE_TRAIN = 1 }; /* forwards only; forwards and backwards */

/* The arguments of layout(); borrowed for the call. */
typedef struct opipe_layout_request {
  uint32_t struct_size;
  uint32_t mode;     /* OPIPE_MODE_* */
  uint32_t n_ranks;  /* 0: the plugin decides how many n_stages needs */
  uint32_t n_stages; /* 0: the plugin decides from n_ranks. One of the two is non-zero */
  uint32_t n_microbatches;
  uint32_t n_settings;
  const opipe_schedule_setting
      *settings; /* only keys that the plugin lists, checked for type and range */
} opipe_layout_request;

/* Weight versions. ONE: a single version, flushed every mini-batch. DOUBLE_BUFFERED: two versions,
 * no flush; a micro-batch goes back with the version that it went forward with (Narayanan et al.,
 * PipeDream-2BW, section 3.1). */
enum { OPIPE_VERSIONS_ONE = 0, OPIPE_VERSIONS_DOUBLE_BUFFERED = 1 };
/* When gradients of replicas are summed. END: at the end of the mini-batch. EAGER: as soon as an
 * instance has its last one. EAGER_OPT: the same, but only where a bubble hides it (Li and Hoefler,
 * Chimera, figure 4). */
enum { OPIPE_SYNC_END = 0, OPIPE_SYNC_EAGER = 1, OPIPE_SYNC_EAGER_OPT = 2 };

/* Filled by layout(). instance_rank [n_stages * n_replicas] (index stage * n_replicas + replica) is
 * the caller's memory, with room for `instance_room` entries. If that is too small, layout returns
 * OPIPE_E_LIMIT with a message and with n_stages and n_replicas set, and is called again. */
typedef struct opipe_layout {
  uint32_t struct_size;
  uint32_t n_ranks;
  uint32_t n_stages;
  uint32_t n_replicas; /* instances of each stage */
  uint32_t n_slices;   /* token slices of a micro-batch, 1: none; in forward mode too since 1.1 */
  uint32_t n_parts;    /* parts of a backward along the batch, 1: none; forward mode: 1 */
  uint32_t versions;   /* OPIPE_VERSIONS_* */
  uint32_t sync;       /* OPIPE_SYNC_* */
  uint32_t instance_room;
  uint32_t in_flight; /* forward mode: micro-batches between entering the first and leaving the last
                         stage, at most 65536; 0: no limit */
  uint32_t *instance_rank;
  const uint32_t
      *slice_lengths; /* [n_slices] in tokens; the plugin's memory until close; NULL: equal lengths
                       */
} opipe_layout;

/* The result of the cut; borrowed for the call. Arrays are indexed [stage * n_replicas + replica]
 * and hold values for one whole micro-batch, in nanoseconds and bytes; each value may be 0. */
typedef struct opipe_schedule_problem {
  uint32_t struct_size;
  uint32_t mode;
  uint32_t n_microbatches;
  uint32_t n_settings;
  const opipe_schedule_setting *settings;
  const opipe_layout *layout;
  const uint64_t *forward_ns;
  const uint64_t *backward_input_ns;  /* 0 in forward mode */
  const uint64_t *backward_weight_ns; /* 0 in forward mode */
  const uint64_t *transfer_ns;        /* to the next stage */
  const uint64_t *stash_bytes;        /* activations kept from F to B */
  const uint64_t *rank_memory_bytes;  /* [n_ranks] left for stashes; UINT64_MAX: no cap */
} opipe_schedule_problem;

/* Takes `n` records, copied. plan() must return a negative status as it is; the order is refused
 * for that reason whatever plan() returns. [callback: the caller's thread] */
typedef opipe_status (*opipe_emit_fn)(void *ctx, const opipe_action *actions, uint32_t n,
                                      opipe_error *err);

typedef struct opipe_schedule {
  uint32_t struct_size;
  uint32_t reserved;
  /* Lists the schedule's options; static memory of the plugin. [any-thread] */
  opipe_status (*options)(opipe_instance *self, const opipe_schedule_option **out_options,
                          uint32_t *out_count, opipe_error *err);
  /* Fills the layout. Pure. Errors: OPIPE_E_INVALID with the constraint and both numbers;
   * OPIPE_E_UNSUPPORTED: the schedule has no form for the mode. [any-thread] */
  opipe_status (*layout)(opipe_instance *self, const opipe_layout_request *request,
                         opipe_layout *io_layout, opipe_error *err);
  /* Pure. Emits every (stage, micro-batch, slice, part) exactly once per pass. [any-thread] */
  opipe_status (*plan)(opipe_instance *self, const opipe_schedule_problem *problem,
                       opipe_emit_fn emit, void *emit_ctx, opipe_error *err);
} opipe_schedule;

/* Optional interface of schedules that were published as tables: their cells, including idle ones,
 * which follow from the publication's own counting and not from a clock. Not settled: the id ends
 * in "/0". */
#define OPIPE_SCHEDULE_CELLS_ID "opipe.schedule.cells/0"
enum { OPIPE_CELL_IDLE = 255 }; /* opipe_action.pass of an idle cell; only its rank counts */
typedef struct opipe_schedule_cells {
  uint32_t struct_size;
  uint32_t reserved;
  /* As plan() in mode TRAIN, with an idle record for every empty cell of the table. Errors also:
   * OPIPE_E_UNSUPPORTED when no table exists for these settings. [any-thread] */
  opipe_status (*cells)(opipe_instance *self, const opipe_schedule_problem *problem,
                        opipe_emit_fn emit, void *emit_ctx, opipe_error *err);
} opipe_schedule_cells;

#include "frozen/schedule.h"
static const opipe_struct_row opipe_rows_of_OPIPE_KIND_SCHEDULE[] OPIPE_UNUSED = {
    OPIPE_ROWS_ABI, OPIPE_ROWS_TYPES, OPIPE_ROWS_SCHEDULE};

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_SCHEDULE_H */
