/* SPDX-License-Identifier: Apache-2.0 */
/* For writers of schedules: settings, layouts, records, working memory. Header only, as helpers.h;
 * nothing here is part of the ABI.
 *
 *   settings      opipe_setting_find, opipe_setting_int, opipe_setting_chunks
 *   layouts       opipe_layout_chunks: several stages per rank, in a loop or in a V
 *   records       opipe_action_of, opipe_emit_pass: one pass of one stage on its rank;
 *                 opipe_emit_forwards, opipe_emit_forwards_v: forward forms of loops and Vs
 *   memory        opipe_work: zeroed arrays from the host's allocator, freed together
 *   tables        OPIPE_SCHEDULE_TABLE, OPIPE_SCHEDULE_TABLE_PLAIN: with and without options
 *   idle cells    opipe_emit_idle, opipe_emit_idle_first; OPIPE_SCHEDULE_CELLS
 *   descriptors   OPIPE_SCHEDULE_PLUGIN: a schedule whose instance is the host's table;
 *                 OPIPE_SCHEDULE_PLUGIN_CELLS: one that was published as a table
 *
 * Thread rule: functions work only on their arguments.
 */
#ifndef OPIPE_ORDERS_H
#define OPIPE_ORDERS_H

#include "helpers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- settings ---- */

/* Value of `key`, the last if it was given several times; NULL: not given. */
static inline const char *opipe_setting_find(const opipe_schedule_setting *settings, uint32_t n,
                                             const char *key) {
  const char *found = NULL;
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(settings[i].key, key) == 0)
      found = settings[i].value;
  }
  return found;
}

/* Parses digits, at most `most`. False on anything else. */
static inline bool opipe_parse_count(const char *text, uint32_t most, uint32_t *out) {
  uint64_t n = 0;
  if (*text == '\0')
    return false;
  for (; *text != '\0'; ++text) {
    if (*text < '0' || *text > '9')
      return false;
    n = n * 10 + (uint64_t)(*text - '0');
    if (n > most)
      return false;
  }
  *out = (uint32_t)n;
  return true;
}

/* The number given for `key`, in [least, most]; `fallback` if it was not given. */
static inline opipe_status opipe_setting_int(const opipe_schedule_setting *settings, uint32_t n,
                                             const char *key, uint32_t least, uint32_t most,
                                             uint32_t fallback, uint32_t *out, opipe_error *err) {
  const char *text = opipe_setting_find(settings, n, key);
  *out = fallback;
  if (text != NULL && (!opipe_parse_count(text, most, out) || *out < least)) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s=%s is not an integer in [%u, %u]", key, text, least,
                      most);
  }
  return OPIPE_OK;
}

enum { OPIPE_CHUNKS_MOST = 4096 };

/* The row of an option `chunks`, and its value. */
#define OPIPE_OPTION_CHUNKS                                                          \
  {                                                                                  \
    "chunks", NULL, NULL,                                                            \
        "stages per rank (default: stages / ranks where both are given, else 2)", 1, \
        OPIPE_CHUNKS_MOST, 'i', 0                                                    \
  }
static inline opipe_status opipe_setting_chunks(const opipe_layout_request *request,
                                                uint32_t *out_chunks, opipe_error *err) {
  const uint32_t ranks = request->n_ranks, stages = request->n_stages;
  const bool both = ranks != 0 && stages != 0 && stages % ranks == 0;
  return opipe_setting_int(request->settings, request->n_settings, "chunks", 1, OPIPE_CHUNKS_MOST,
                           both ? stages / ranks : 2, out_chunks, err);
}

/* ---- layouts ---- */

/* With n ranks, stage s is on rank s mod n (LOOP), or stages go down the ranks and up again (V: 2
 * per rank, stage s on rank s, then on 2n - 1 - s). */
enum { OPIPE_PLACE_LOOP = 0, OPIPE_PLACE_V = 1 };

/* Lays out `chunks` stages on every rank, with one replica, one slice, one part; for both modes.
 * One of the request's two numbers may be 0. name: for messages. */
static inline opipe_status opipe_layout_chunks(const opipe_layout_request *request,
                                               opipe_layout *io_layout, uint32_t chunks,
                                               uint32_t place, const char *name, opipe_error *err) {
  uint64_t ranks = request->n_ranks != 0 ? request->n_ranks : request->n_stages / chunks;
  const uint64_t stages = ranks * chunks;
  if (request->mode > OPIPE_MODE_TRAIN) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "schedule '%s' has no form for mode %u", name,
                      request->mode);
  }
  if (request->n_stages != 0 && stages != request->n_stages) {
    return request->n_ranks != 0
               ? opipe_fail(err, OPIPE_E_INVALID,
                            "schedule '%s' puts %u stage%s on each rank: %u stages on %u ranks do "
                            "not fit",
                            name, chunks, chunks == 1 ? "" : "s", request->n_stages,
                            request->n_ranks)
               : opipe_fail(
                     err, OPIPE_E_INVALID,
                     "schedule '%s' puts %u stages on each rank: %u stages are not a multiple "
                     "of %u",
                     name, chunks, request->n_stages, chunks);
  }
  if (stages == 0 || stages > UINT32_MAX / 4 || request->n_microbatches == 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule '%s': %u ranks, %u stages, %u micro-batches cannot be laid out",
                      name, request->n_ranks, request->n_stages, request->n_microbatches);
  }
  const opipe_status status =
      opipe_layout_plain(io_layout, (uint32_t)ranks, (uint32_t)stages, name, err);
  for (uint64_t s = 0; s < stages && status >= 0; ++s) {
    const bool up = place == OPIPE_PLACE_V && s >= ranks;
    io_layout->instance_rank[s] = (uint32_t)(up ? 2 * ranks - 1 - s : s % ranks);
  }
  return status;
}

/* ---- records ---- */

/* Record of one pass of (stage, micro-batch) on its rank, for layouts of one replica. */
static inline opipe_action opipe_action_of(const opipe_schedule_problem *problem, uint32_t stage,
                                           uint32_t microbatch, uint32_t pass) {
  opipe_action action;
  memset(&action, 0, sizeof action);
  action.rank = problem->layout->instance_rank[stage];
  action.stage = stage;
  action.microbatch = microbatch;
  action.pass = (uint8_t)pass;
  return action;
}

/* Emits such a record. */
static inline opipe_status opipe_emit_pass(const opipe_schedule_problem *problem,
                                           opipe_emit_fn emit, void *emit_ctx, uint32_t stage,
                                           uint32_t microbatch, uint32_t slice, uint32_t pass,
                                           uint32_t flags, opipe_error *err) {
  opipe_action action = opipe_action_of(problem, stage, microbatch, pass);
  action.slice = (uint16_t)slice;
  action.flags = flags;
  return emit(emit_ctx, &action, 1, err);
}

/* Emits the forward form of any layout of one replica: every rank computes its micro-batches in
 * order, each one's token slices in rising order, in groups of `group` micro-batches that pass its
 * stages in rising order (0: one group of all). */
static inline opipe_status opipe_emit_forwards(const opipe_schedule_problem *problem,
                                               uint32_t group, opipe_emit_fn emit, void *emit_ctx,
                                               opipe_error *err) {
  const opipe_layout *layout = problem->layout;
  const uint64_t n = problem->n_microbatches;
  const uint64_t step = group != 0 ? group : n;
  const uint64_t n_slices = layout->n_slices != 0 ? layout->n_slices : 1;
  for (uint64_t first = 0; first < n; first += step) {
    const uint64_t end = n - first < step ? n : first + step;
    for (uint32_t stage = 0; stage < layout->n_stages; ++stage) {
      for (uint64_t u = first * n_slices; u < end * n_slices; ++u) {
        const opipe_status status =
            opipe_emit_pass(problem, emit, emit_ctx, stage, (uint32_t)(u / n_slices),
                            (uint32_t)(u % n_slices), OPIPE_PASS_FORWARD, 0, err);
        if (status < 0)
          return status;
      }
    }
  }
  return OPIPE_OK;
}

/* Emits the forward form of a V: every rank runs ahead by the micro-batches that fit between its
 * two stages, then alternates between the upper and the lower stage. */
static inline opipe_status opipe_emit_forwards_v(const opipe_schedule_problem *problem,
                                                 opipe_emit_fn emit, void *emit_ctx,
                                                 opipe_error *err) {
  const uint64_t n = problem->n_microbatches;
  const uint64_t p = problem->layout->n_ranks;
  for (uint64_t rank = 0; rank < p; ++rank) {
    const uint64_t ahead = 2 * (p - rank) - 1;
    for (uint64_t x = 0; x < n + ahead; ++x) {
      opipe_status status = OPIPE_OK;
      if (x >= ahead) {
        status = opipe_emit_pass(problem, emit, emit_ctx, (uint32_t)(2 * p - 1 - rank),
                                 (uint32_t)(x - ahead), 0, OPIPE_PASS_FORWARD, 0, err);
      }
      if (status >= 0 && x < n) {
        status = opipe_emit_pass(problem, emit, emit_ctx, (uint32_t)rank, (uint32_t)x, 0,
                                 OPIPE_PASS_FORWARD, 0, err);
      }
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}

/* ---- idle cells ---- */

/* Emits n idle cells of a rank, for opipe_schedule_cells. */
static inline opipe_status opipe_emit_idle(opipe_emit_fn emit, void *emit_ctx, uint32_t rank,
                                           uint32_t n, opipe_error *err) {
  opipe_action action;
  opipe_status status = OPIPE_OK;
  memset(&action, 0, sizeof action);
  action.rank = rank;
  action.pass = OPIPE_CELL_IDLE;
  for (uint32_t i = 0; i < n && status >= 0; ++i)
    status = emit(emit_ctx, &action, 1, err);
  return status;
}

/* Emits idle cells so that every rank begins one slot after the previous one. */
static inline opipe_status opipe_emit_idle_first(const opipe_schedule_problem *problem,
                                                 opipe_emit_fn emit, void *emit_ctx,
                                                 opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (uint32_t rank = 0; rank < problem->layout->n_ranks && status >= 0; ++rank)
    status = opipe_emit_idle(emit, emit_ctx, rank, rank, err);
  return status;
}

/* ---- working memory ---- */

typedef struct opipe_work_block {
  struct opipe_work_block *next;
  size_t size;
} opipe_work_block;

/* Initialise with {host, NULL}; free with opipe_work_end. */
typedef struct opipe_work {
  const opipe_host *host;
  opipe_work_block *blocks;
} opipe_work;

/* A zeroed array of n elements; NULL: out of memory, or the size overflows. */
static inline void *opipe_work_array(opipe_work *work, uint64_t n, size_t element_size) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(n, (uint64_t)element_size, &bytes) ||
      __builtin_add_overflow(bytes, (uint64_t)sizeof(opipe_work_block), &bytes) ||
      bytes > SIZE_MAX / 2)
    return NULL;
  opipe_work_block *block =
      (opipe_work_block *)work->host->realloc(work->host->ctx, NULL, 0, (size_t)bytes, 16);
  if (block == NULL)
    return NULL;
  memset(block, 0, (size_t)bytes);
  block->next = work->blocks;
  block->size = (size_t)bytes;
  work->blocks = block;
  return block + 1;
}

static inline void opipe_work_end(opipe_work *work) {
  while (work->blocks != NULL) {
    opipe_work_block *block = work->blocks;
    work->blocks = block->next;
    work->host->realloc(work->host->ctx, block, block->size, 0, 16);
  }
}

/* ---- tables and descriptors ---- */

/* The schedule's table; options() returns the array `options_` (static memory of the plugin). */
#define OPIPE_SCHEDULE_TABLE(table_, options_, layout_, plan_) \
  OPIPE_SCHEDULE_TABLE_(table_, options_, sizeof(options_) / sizeof((options_)[0]), layout_, plan_)
/* Table of a schedule without options. */
#define OPIPE_SCHEDULE_TABLE_PLAIN(table_, layout_, plan_) \
  OPIPE_SCHEDULE_TABLE_(table_, NULL, 0, layout_, plan_)
#define OPIPE_SCHEDULE_TABLE_(table_, options_, n_, layout_, plan_)                   \
  static opipe_status opipe_list_options(opipe_instance *self,                        \
                                         const opipe_schedule_option **out_options,   \
                                         uint32_t *out_count, opipe_error *err) {     \
    (void)self;                                                                       \
    (void)err;                                                                        \
    *out_options = options_;                                                          \
    *out_count = (uint32_t)(n_);                                                      \
    return OPIPE_OK;                                                                  \
  }                                                                                   \
  static const opipe_schedule table_ = {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, \
                                        opipe_list_options, layout_, plan_}

#define OPIPE_SCHEDULE_CELLS(table_, cells_)                                                       \
  static const opipe_schedule_cells table_ = {(uint32_t)OPIPE_END(opipe_schedule_cells, cells), 0, \
                                              cells_}

/* Descriptor of a schedule that needs working memory: `self->host` is the host's table. */
#define OPIPE_SCHEDULE_PLUGIN(id_, version_, license_, summary_, table_) \
  OPIPE_SCHEDULE_PLUGIN_(id_, version_, license_, summary_, table_, NULL)
#define OPIPE_SCHEDULE_PLUGIN_CELLS(id_, version_, license_, summary_, table_, cells_table_) \
  OPIPE_SCHEDULE_PLUGIN_(id_, version_, license_, summary_, table_, &(cells_table_))
#define OPIPE_SCHEDULE_PLUGIN_(id_, version_, license_, summary_, table_, cells_)               \
  static opipe_status opipe_hosted_open(const opipe_host *host, opipe_instance **out_self,      \
                                        opipe_error *err) {                                     \
    opipe_instance *self =                                                                      \
        (opipe_instance *)host->realloc(host->ctx, NULL, 0, sizeof(opipe_instance), 16);        \
    if (self == NULL) {                                                                         \
      return opipe_fail(err, OPIPE_E_NOMEM, "schedule '%s': no memory for an instance", (id_)); \
    }                                                                                           \
    self->host = host;                                                                          \
    *out_self = self;                                                                           \
    return OPIPE_OK;                                                                            \
  }                                                                                             \
  static void opipe_hosted_close(opipe_instance *self) {                                        \
    if (self != NULL) {                                                                         \
      const opipe_host *host = self->host;                                                      \
      host->realloc(host->ctx, self, sizeof(opipe_instance), 0, 16);                            \
    }                                                                                           \
  }                                                                                             \
  static const void *opipe_hosted_interface(opipe_instance *self, const char *id) {             \
    (void)self;                                                                                 \
    if (strcmp(id, OPIPE_SCHEDULE_CELLS_ID) == 0) {                                             \
      return cells_;                                                                            \
    }                                                                                           \
    return strcmp(id, OPIPE_SCHEDULE_ID) == 0 ? &(table_) : NULL;                               \
  }                                                                                             \
  extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;                                   \
  const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_SCHEDULE, 0),          \
                                            id_,                                                \
                                            version_,                                           \
                                            license_,                                           \
                                            summary_,                                           \
                                            opipe_hosted_open,                                  \
                                            opipe_hosted_close,                                 \
                                            opipe_hosted_interface}

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_ORDERS_H */
