/* SPDX-License-Identifier: Apache-2.0 */
/* From "which node in which stage" to a whole plan: devices, graphs, schedule, lists, exact memory
 * against the caps, times. */
#include <string.h>

#include "partition/lists/playlist.h"
#include "partition/make/make.h"
#include "partition/make/work.h"
#include "partition/memory/predict.h"
#include "partition/plan/kernels.h"
#include "partition/plan/spec.h"
#include "partition/program/batch.h"
#include "partition/program/records.h"
#include "partition/program/states.h"
#include "partition/schedule/compute_order.h"

enum { STEPS_REPLAYED = 1 << 21 };

typedef struct finish {
  const opi_plan_env *env;
  opi_plan *plan;
  const opi_bound *bound;
  opi_rank_device *devices;  /* [n_ranks]; NULL: the plan was read */
  opi_backend_ref *backends; /* [n_ranks] */
  opi_cut_model *model;
  opi_lists *lists;
  uint64_t *sums; /* [parameters] training: as predicted; NULL: the plan was read */
  opi_arena scratch;
  opipe_error *err;
} finish;

/* ---- devices ---- */

static opipe_status open_device(finish *f, uint32_t r) {
  const opi_device_spec *spec = &f->plan->devices[r];
  char why[OPI_KERNELS_WHY_ROOM];
  bool given = false;
  f->devices[r].alignment = spec->alignment;
  if (f->plan->facts[r].described)
    return OPIPE_OK;
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .index = spec->index,
      .memory_bytes = spec->memory_bytes,
      .threads = spec->threads,
      .options = spec->options[0] == '\0' ? NULL : spec->options};
  OPI_TRY(f->env->plugins->backend(f->env->plugins->ctx, spec->kind, &f->backends[r], f->err));
  f->devices[r].backend = &f->backends[r];
  f->devices[r].visitor = f->env->visitor;
  OPI_TRY(OPI_MAKE("backend", &f->backends[r], device_open, &f->devices[r].device, f->err,
                   f->backends[r].self, &params));
  /* What does not fit is said when a session opens. */
  return f->plan->kernels == NULL ? OPIPE_OK
                                  : opi_kernels_give(f->plan->kernels, &f->backends[r],
                                                     f->devices[r].device, &given, why, f->err);
}

/* Those that were not only described. A plan that was read has its memory, and needs none. */
static opipe_status open_devices(finish *f) {
  const uint32_t n = f->plan->n_ranks;
  if (f->plan->facts == NULL)
    return OPIPE_OK;
  f->devices = OPI_ARENA_ARRAY(&f->scratch, opi_rank_device, n);
  f->backends = OPI_ARENA_ARRAY(&f->scratch, opi_backend_ref, n);
  if (f->devices == NULL || f->backends == NULL)
    return opi_fail_nomem(f->err, n * sizeof(*f->devices), "devices");
  for (uint32_t r = 0; r < n; ++r)
    OPI_TRY(open_device(f, r));
  return OPIPE_OK;
}

/* The graph must carry the batch axis when a request is split. */
static opipe_status check_batch(const finish *f) {
  if (!opi_plan_cuts_rows(f->plan) || f->plan->batch != NULL)
    return OPIPE_OK;
  const opipe_status status =
      opi_batch_prove(f->plan, f->env->model, f->env->bind, f->bound, f->err);
  if (status < 0) {
    (void)opi_error_prefix(f->err, "%u micro-batch%s along '%.80s': ", f->plan->n_microbatches,
                           f->plan->n_microbatches == 1 ? "" : "es",
                           f->plan->batch_dim == NULL ? "" : f->plan->batch_dim);
  }
  return status;
}

/* ---- all of it ---- */

static opipe_status build_model(finish *f) {
  opi_cut_model_free(f->model);
  f->model = NULL;
  const opi_cut_sources from = {.plan = f->plan,
                                .file = f->env->model,
                                .base = f->env->bind,
                                .bound = f->plan->train == NULL ? f->bound : NULL};
  return opi_cut_model_build(&from, &f->model, f->err);
}

/* Is it there with whole backwards too? What only I leaves for W of its own stage is not. */
static bool is_of_whole_backwards(const opi_cell *cell) {
  return cell->phase == OPI_PHASE_F || cell->source != OPI_CELL_MADE ||
         cell->first_out != OPIPE_NONE || cell->output != OPIPE_NONE || cell->state != 0;
}

/* What a micro-batch leaves behind in an instance of each stage, for the schedule's eyes, and so
 * the same whatever passes its order is made of: of replicas that cut it, the first has the most of
 * its rows. */
static opipe_status sum_stashes(finish *f) {
  opi_plan *plan = f->plan;
  const opi_cut *cut = f->model->cuts[0];
  plan->stage_stash_bytes = OPI_ARENA_ARRAY(&plan->arena, uint64_t, plan->n_stages);
  if (plan->stage_stash_bytes == NULL)
    return opi_fail_nomem(f->err, plan->n_stages * sizeof(uint64_t), "a plan");
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    const opi_cell *cell = &cut->cells[c];
    if (cell->stash && is_of_whole_backwards(cell) && f->model->pieces[0][cell->stage].share == 0)
      plan->stage_stash_bytes[cell->stage / f->model->n_pieces] += cell->n_bytes;
  }
  return OPIPE_OK;
}

/* Do all stages use F and B and nothing else, as the first model did? */
static bool is_plain(const finish *f, const uint32_t *used) {
  for (uint32_t s = 0; s < f->plan->n_stages; ++s) {
    if (used[s] != (1u << OPI_PROGRAM_F | 1u << OPI_PROGRAM_B))
      return false;
  }
  return true;
}

/* A model for the programs that the schedule uses. */
static opipe_status ask_schedule(finish *f) {
  opi_plan *plan = f->plan;
  opi_schedule_ref schedule;
  OPI_TRY(f->env->plugins->schedule(f->env->plugins->ctx, plan->schedule, &schedule, f->err));
  OPI_TRY(opi_schedule_order(&schedule, plan, f->err));
  if (plan->train == NULL)
    return OPIPE_OK;
  uint32_t *used = OPI_ARENA_ARRAY(&f->scratch, uint32_t, plan->n_stages);
  if (used == NULL)
    return opi_fail_nomem(f->err, plan->n_stages * sizeof *used, "a schedule");
  opi_programs_used(plan, used);
  return is_plain(f, used) ? OPIPE_OK : build_model(f);
}

/* How many bodies show the steady state: of very long lists as many as take about a second. */
static uint32_t bodies_of(const finish *f) {
  const opi_plan *plan = f->plan;
  const uint32_t n_positions = f->lists->n_positions, n_steps = f->lists->n_steps;
  const uint32_t wanted = (2 * plan->n_stages + 4 + n_positions - 1) / n_positions + 1;
  const uint32_t most = n_steps == 0 ? wanted : STEPS_REPLAYED / n_steps;
  if (plan->train != NULL && !opi_plan_is_periodic(plan))
    return 1; /* a step is a barrier: one is like the next */
  return wanted <= most ? wanted : most < 4 ? 4 : most;
}

/* Simulated times: of a request or mini-batch alone, and between them in a steady state. */
static opipe_status predict_times(finish *f) {
  enum { ALONE = 2 /* a prologue and an epilogue */ };
  opi_plan *plan = f->plan;
  const opi_cut *cut = f->model->cuts[f->model->n_classes - 1];
  opi_replay_result times = {0}, alone = {0};
  OPI_TRY(opi_lists_replay(&f->model->piece_plan, f->lists, cut, bodies_of(f), plan->allocator,
                           &times, f->err));
  alone = times;
  if (plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED) {
    OPI_TRY(opi_lists_replay(&f->model->piece_plan, f->lists, cut, ALONE, plan->allocator, &alone,
                             f->err));
  }
  plan->request_ns = alone.request_ns;
  plan->interval_ns = times.interval_ns;
  return OPIPE_OK;
}

/* Lists and memory of the order at hand. */
static opipe_status predict(finish *f, const uint32_t *alignment, opi_memory *out_memory) {
  opi_plan *plan = f->plan;
  opi_lists_free(f->lists);
  f->lists = NULL;
  OPI_TRY(opi_records_check(plan, f->model->variants[0].slices[0].cut, f->err));
  OPI_TRY(opi_piece_plan_build(plan, f->model, f->err)); /* the schedule has spoken */
  if (plan->train != NULL)
    OPI_TRY(opi_reductions_place(plan, f->model, f->err));
  OPI_TRY(opi_lists_build(f->model, alignment, false, plan->allocator, &f->lists, f->err));
  plan->n_made_in_place = f->lists->n_made_in_place / f->lists->n_positions;
  plan->n_copied = f->lists->n_copied / f->lists->n_positions;
  plan->copied_bytes = f->lists->copied_bytes / f->lists->n_positions;
  OPI_TRY(predict_times(f));
  if (f->devices == NULL)
    return OPIPE_OK;
  if (plan->train != NULL && f->sums == NULL) {
    f->sums = OPI_ARENA_ARRAY(&f->scratch, uint64_t, f->model->cuts[0]->n_params);
    if (f->sums == NULL)
      return opi_fail_nomem(f->err, f->model->cuts[0]->n_params * sizeof *f->sums, "a prediction");
  }
  return opi_memory_predict(plan, f->model, f->lists, f->devices, 0, out_memory, f->sums, f->err);
}

/* Bytes of the stashes that one micro-batch leaves on the rank. */
static uint64_t stash_of_one(const opi_plan *plan, uint32_t rank) {
  uint64_t most = 0;
  for (uint32_t k = 0; k < plan->n_replicas; ++k) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < plan->n_stages; ++s)
      sum += opi_plan_rank(plan, s, k) == rank ? plan->stage_stash_bytes[s] : 0;
    most = sum > most ? sum : most;
  }
  return most;
}

/* What the schedule may fill with stashes, from a prediction that is over a cap: all that nothing
 * else needs, less `excess` where slots are larger than what they hold, but one micro-batch at
 * least: the next prediction knows its slots exactly. False: it fits, or nothing is left to take.
 */
static bool leave_for_stashes(const opi_plan *plan, const opi_memory *memory, uint64_t *io_free) {
  bool less = false;
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const opi_memory *m = &memory[r];
    const uint64_t cap = plan->told_bytes == NULL ? m->cap_bytes : plan->told_bytes[r];
    const uint64_t excess = m->total_bytes > cap ? m->total_bytes - cap : 0;
    const uint64_t others = m->total_bytes - m->stash_bytes, one = stash_of_one(plan, r);
    uint64_t room = cap > others ? cap - others : 0;
    if (cap == UINT64_MAX)
      continue;
    if (io_free[r] < UINT64_MAX && excess > 0)
      room = io_free[r] > excess ? io_free[r] - excess : 0;
    room = room > one ? room : one;
    less = less || (excess > 0 && room < io_free[r]);
    io_free[r] = io_free[r] < room ? io_free[r] : room;
  }
  return less;
}

/* Asks for an order without a bound; where that does not fit, for one within the memory that is
 * left. A schedule that takes no notice, or finds none, leaves the first answer. */
static opipe_status fit_schedule(finish *f, const uint32_t *alignment) {
  enum { ATTEMPTS = 4 };
  opi_plan *plan = f->plan;
  const size_t n_ranks = plan->n_ranks;
  uint64_t *left = OPI_ARENA_ARRAY(&f->scratch, uint64_t, n_ranks);
  opi_memory *memory = OPI_ARENA_ARRAY(&f->scratch, opi_memory, n_ranks);
  if (left == NULL || memory == NULL)
    return opi_fail_nomem(f->err, n_ranks * sizeof *memory, "a prediction");
  for (size_t r = 0; r < n_ranks; ++r)
    left[r] = UINT64_MAX;
  plan->order_bounded = plan->order_refused = false;
  OPI_TRY(ask_schedule(f));
  OPI_TRY(predict(f, alignment, plan->memory));
  if (plan->train == NULL)
    return OPIPE_OK;
  memcpy(memory, plan->memory, n_ranks * sizeof *memory);
  for (uint32_t i = 0; i < ATTEMPTS && leave_for_stashes(plan, memory, left); ++i) {
    plan->free_bytes = left;
    plan->order_bounded = true;
    const opipe_status status = ask_schedule(f);
    plan->free_bytes = NULL;
    plan->order_refused = status == OPIPE_E_LIMIT || status == OPIPE_E_INVALID;
    if (plan->order_refused) /* told by the caps */
      return OPIPE_OK;
    OPI_TRY(status);
    OPI_TRY(predict(f, alignment, memory));
    memcpy(plan->memory, memory, n_ranks * sizeof *memory);
  }
  return OPIPE_OK;
}

/* What sums move follows from devices' layouts: of a plan that was read, its file knows. */
static opipe_status keep_playlist(const finish *f) {
  opi_playlist *play = NULL;
  OPI_TRY(opi_playlist_build(f->model, f->lists, f->sums, &f->plan->arena, &play, f->err));
  if (f->devices == NULL && f->plan->play != NULL)
    OPI_TRY(opi_playlist_keep_bytes(play, f->plan->play, f->err));
  f->plan->play = play;
  return OPIPE_OK;
}

static opipe_status finish_all(finish *f) {
  opi_plan *plan = f->plan;
  uint32_t *alignment = OPI_ARENA_ARRAY(&f->scratch, uint32_t, plan->n_ranks);
  if (plan->facts != NULL)
    plan->memory = OPI_ARENA_ARRAY(&plan->arena, opi_memory, plan->n_ranks);
  if (alignment == NULL || plan->memory == NULL)
    return opi_fail_nomem(f->err, plan->n_ranks * sizeof *plan->memory, "a plan");
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    alignment[r] = plan->devices[r].alignment;
  OPI_TRY(check_batch(f));
  OPI_TRY(opi_states_place(plan, f->bound->graph, f->err));
  OPI_TRY(open_devices(f));
  OPI_TRY(build_model(f));
  if (plan->train != NULL)
    OPI_TRY(sum_stashes(f));
  OPI_TRY(opi_plan_name_crossings(plan, f->model, f->err));
  OPI_TRY(plan->actions == NULL ? fit_schedule(f, alignment) : predict(f, alignment, plan->memory));
  OPI_TRY(keep_playlist(f));
  opi_plan_count_work(plan, f->model);
  OPI_TRY(opi_plan_count_few_bits(plan, f->model, f->err));
  return opi_plan_check_caps(plan, f->err);
}

static bool all_asked(const opi_plan *plan) {
  for (uint32_t r = 0; plan->facts != NULL && r < plan->n_ranks; ++r) {
    if (plan->facts[r].described)
      return false;
  }
  return plan->facts != NULL;
}

opipe_status opi_plan_finish(const opi_plan_env *env, opi_plan *plan, const opi_bound *bound,
                             opipe_error *err) {
  finish f = {.env = env, .plan = plan, .bound = bound, .err = err};
  opi_arena_init(&f.scratch, plan->allocator, 0);
  const opipe_status status = finish_all(&f);
  plan->counted = status == OPIPE_OK && all_asked(plan);
  for (uint32_t r = 0; f.devices != NULL && f.backends != NULL && r < plan->n_ranks; ++r) {
    if (f.devices[r].device != NULL)
      f.backends[r].table->device_close(f.devices[r].device);
  }
  opi_lists_free(f.lists);
  opi_cut_model_free(f.model);
  opi_arena_release(&f.scratch);
  return status;
}
