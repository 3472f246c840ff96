/* SPDX-License-Identifier: Apache-2.0 */
/* Completes a plan, given which node is in which stage: devices, graphs, schedule, lists, exact
 * memory against the caps, times. */
#include <string.h>

#include "loader/passes/row_model.h"
#include "partition/lists/playlist.h"
#include "partition/make/making.h"
#include "partition/make/tensor.h"
#include "partition/make/ways.h"
#include "partition/make/work.h"
#include "partition/memory/predict.h"
#include "partition/plan/kernels.h"
#include "partition/plan/spec.h"
#include "partition/program/batch.h"
#include "partition/program/offloads.h"
#include "partition/program/records.h"
#include "partition/program/states.h"
#include "partition/schedule/compute_order.h"

enum { STEPS_REPLAYED = 1 << 21 };

/* One class of rows of a plan of passes. */
typedef struct built_class {
  opi_decision given;
  opi_dim_binding dims[OPI_ROW_DIMS];
  opi_cut_model *model;
  opi_lists *lists;
} built_class;

typedef struct finish {
  const opi_plan_env *env;
  opi_making *making;
  opi_plan *plan; /* making->plan */
  const opi_bound *bound;
  opi_rank_device *devices;  /* [n_ranks]; NULL: the plan was read */
  opi_backend_ref *backends; /* [n_ranks] */
  opi_cut_model *model;
  opi_lists *lists;
  built_class classes[OPI_GENERATION_CLASSES];
  opi_memory_more more[OPI_GENERATION_CLASSES];
  uint32_t n_classes;
  uint64_t *sums; /* [parameters] training: predicted bytes of sums; NULL: the plan was read */
  opi_arena scratch;
  opipe_error *err;
} finish;

/* ---- devices ---- */

static opipe_status open_device(finish *f, uint32_t r) {
  const opi_device_spec *spec = &f->plan->decided.devices[r];
  char why[OPI_KERNELS_WHY_ROOM];
  bool given = false;
  f->devices[r].alignment = spec->alignment;
  f->devices[r].memory_bytes = f->making->facts[r].memory_bytes;
  if (f->making->facts[r].described)
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
  /* Misfits are reported when a session opens. */
  return f->plan->predicted.kernels == NULL
             ? OPIPE_OK
             : opi_kernels_give(f->plan->predicted.kernels, &f->backends[r], f->devices[r].device,
                                &given, why, f->err);
}

/* Opens all devices that are not described. A plan that was read has its memory already and needs
 * none. */
static opipe_status open_devices(finish *f) {
  const uint32_t n = f->plan->decided.n_ranks;
  if (f->making->facts == NULL)
    return OPIPE_OK;
  f->devices = OPI_ARENA_ARRAY(&f->scratch, opi_rank_device, n);
  f->backends = OPI_ARENA_ARRAY(&f->scratch, opi_backend_ref, n);
  if (f->devices == NULL || f->backends == NULL)
    return opi_fail_nomem(f->err, n * sizeof(*f->devices), "devices");
  for (uint32_t r = 0; r < n; ++r)
    OPI_TRY(open_device(f, r));
  return OPIPE_OK;
}

/* If a request is split, the graph must carry the batch axis. */
static opipe_status check_batch(const finish *f) {
  if (!opi_plan_cuts_rows(&f->plan->decided) || f->plan->decided.binding.batch != NULL)
    return OPIPE_OK;
  const opipe_status status = opi_batch_prove(&f->plan->decided, f->env->model, f->env->bind,
                                              f->bound, &f->plan->arena, f->err);
  if (status < 0) {
    (void)opi_error_prefix(
        f->err, "%u micro-batch%s along '%.80s': ", f->plan->decided.n_microbatches,
        f->plan->decided.n_microbatches == 1 ? "" : "es",
        f->plan->decided.binding.batch_dim == NULL ? "" : f->plan->decided.binding.batch_dim);
  }
  return status;
}

static void free_classes(finish *f) {
  for (uint32_t k = 0; k < f->n_classes; ++k) {
    opi_lists_free(f->classes[k].lists);
    opi_cut_model_free(f->classes[k].model);
  }
  f->n_classes = 0;
}

static opipe_status build_model(finish *f) {
  free_classes(f);
  opi_cut_model_free(f->model);
  f->model = NULL;
  const opi_cut_sources from = {.plan = &f->plan->decided,
                                .times = &f->plan->predicted.times,
                                .file = f->env->model,
                                .base = f->env->bind,
                                .bound = f->bound};
  return opi_cut_model_build(&from, &f->model, f->err);
}

/* A plan of passes: models of all classes of rows but the largest, which is f->model and whose
 * lists hold for those that are cut alike; lists of the others. */
static opipe_status build_classes(finish *f, const uint32_t *alignment) {
  const opi_decision *plan = &f->plan->decided;
  const uint32_t n =
      plan->binding.generation.context == 0 ? 0 : opi_generation_classes(&plan->binding.generation);
  free_classes(f);
  for (uint32_t c = 0; c + 1 < n; ++c) {
    built_class *k = &f->classes[f->n_classes++];
    *k = (built_class){.given = *plan};
    k->given.binding.dims = k->dims;
    opi_row_model_dims(f->plan->rows, opi_generation_rows(&plan->binding.generation, c), k->dims);
    const opi_cut_sources from = {.plan = &k->given,
                                  .times = &f->plan->predicted.times,
                                  .file = f->env->model,
                                  .base = f->env->bind,
                                  .master = f->model->variants[0].slices[0].cut};
    OPI_TRY(opi_cut_model_build(&from, &k->model, f->err));
    OPI_TRY(opi_piece_plan_build(&k->given, k->model, f->err));
    if (!opi_cut_model_holds(f->model, k->model))
      OPI_TRY(opi_lists_build(k->model, alignment, false, plan->allocator, &k->lists, f->err));
    f->more[c] = (opi_memory_more){k->model, k->lists};
  }
  return OPIPE_OK;
}

/* True if the cell also exists when backwards run whole. Cells passed only from I to W of one stage
 * do not. */
static bool is_of_whole_backwards(const opi_cell *cell) {
  return cell->phase == OPI_PHASE_F || cell->source != OPI_CELL_MADE ||
         cell->first_out != OPIPE_NONE || cell->output != OPIPE_NONE || cell->state != 0;
}

/* Stash bytes per stage and micro-batch as shown to the schedule, independent of the passes it
 * chooses. The first of the replicas that divide a micro-batch counts, because it has the most
 * rows. */
static opipe_status sum_stashes(finish *f) {
  opi_plan *plan = f->plan;
  const opi_cut *cut = f->model->cuts[0];
  plan->predicted.stage_stash_bytes =
      OPI_ARENA_ARRAY(&plan->arena, uint64_t, plan->decided.n_stages);
  if (plan->predicted.stage_stash_bytes == NULL)
    return opi_fail_nomem(f->err, plan->decided.n_stages * sizeof(uint64_t), "a plan");
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    const opi_cell *cell = &cut->cells[c];
    if (cell->stash && is_of_whole_backwards(cell) && f->model->pieces[0][cell->stage].share == 0 &&
        cell->stage % f->model->n_members == 0)
      plan->predicted.stage_stash_bytes[cell->stage / f->model->n_pieces] += cell->n_bytes;
  }
  return OPIPE_OK;
}

/* True if all stages use exactly F and B, as the first model did. */
static bool is_plain(const finish *f, const uint32_t *used) {
  for (uint32_t s = 0; s < f->plan->decided.n_stages; ++s) {
    if (used[s] != (1u << OPI_PROGRAM_F | 1u << OPI_PROGRAM_B))
      return false;
  }
  return true;
}

/* Asks the schedule for an order, then builds a model for the programs that it uses. */
static opipe_status ask_schedule(finish *f, const uint64_t *free_bytes) {
  opi_plan *plan = f->plan;
  opi_schedule_ref schedule;
  OPI_TRY(f->env->plugins->schedule(f->env->plugins->ctx, plan->decided.schedule.name, &schedule,
                                    f->err));
  OPI_TRY(opi_schedule_order(&schedule, &(opi_order_wish){.free_bytes = free_bytes}, plan, f->err));
  if (!opi_plan_trains(&plan->decided))
    return OPIPE_OK;
  uint32_t *used = OPI_ARENA_ARRAY(&f->scratch, uint32_t, plan->decided.n_stages);
  if (used == NULL)
    return opi_fail_nomem(f->err, plan->decided.n_stages * sizeof *used, "a schedule");
  opi_programs_used(&plan->decided, used);
  return is_plain(f, used) ? OPIPE_OK : build_model(f);
}

/* Number of bodies to replay until the steady state shows; limited to about a second for very long
 * lists. */
static uint32_t bodies_of(const finish *f) {
  const opi_decision *plan = &f->plan->decided;
  const uint32_t n_positions = f->lists->n_positions, n_steps = f->lists->n_steps;
  const uint32_t wanted = (2 * plan->n_stages + 4 + n_positions - 1) / n_positions + 1;
  const uint32_t most = n_steps == 0 ? wanted : STEPS_REPLAYED / n_steps;
  if (opi_plan_trains(plan) && !opi_plan_is_periodic(plan))
    return 1; /* a step is a barrier, so each is like the next */
  return wanted <= most ? wanted : most < 4 ? 4 : most;
}

/* Simulates a request or mini-batch alone, and the interval between them in the steady state. */
static opipe_status predict_times(finish *f) {
  enum { ALONE = 2 /* with prologue and epilogue */ };
  opi_plan *plan = f->plan;
  const opi_cut *cut = f->model->cuts[f->model->n_classes - 1];
  opi_replay_result times = {0}, alone = {0};
  OPI_TRY(opi_lists_replay(&f->model->piece_plan, f->lists, cut, bodies_of(f),
                           plan->decided.allocator, &times, f->err));
  alone = times;
  if (plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED) {
    OPI_TRY(opi_lists_replay(&f->model->piece_plan, f->lists, cut, ALONE, plan->decided.allocator,
                             &alone, f->err));
  }
  plan->predicted.request_ns = alone.request_ns;
  plan->predicted.interval_ns = times.interval_ns;
  return OPIPE_OK;
}

/* Builds lists and counts memory for the current order. */
static opipe_status predict(finish *f, const uint32_t *alignment, opi_memory *out_memory) {
  opi_plan *plan = f->plan;
  opi_lists_free(f->lists);
  f->lists = NULL;
  OPI_TRY(opi_records_check(&plan->decided, f->model->variants[0].slices[0].cut, f->err));
  OPI_TRY(opi_piece_plan_build(&plan->decided, f->model, f->err)); /* the schedule has answered */
  if (opi_plan_trains(&plan->decided))
    OPI_TRY(opi_reductions_place(&plan->decided, f->model, f->err));
  OPI_TRY(opi_lists_build(f->model, alignment, false, plan->decided.allocator, &f->lists, f->err));
  plan->predicted.n_made_in_place = f->lists->n_made_in_place / f->lists->n_positions;
  plan->predicted.n_copied = f->lists->n_copied / f->lists->n_positions;
  plan->predicted.copied_bytes = f->lists->copied_bytes / f->lists->n_positions;
  OPI_TRY(predict_times(f));
  if (f->devices == NULL)
    return OPIPE_OK;
  if (opi_plan_trains(&plan->decided) && f->sums == NULL) {
    f->sums = OPI_ARENA_ARRAY(&f->scratch, uint64_t, f->model->cuts[0]->n_params);
    if (f->sums == NULL)
      return opi_fail_nomem(f->err, f->model->cuts[0]->n_params * sizeof *f->sums, "a prediction");
  }
  OPI_TRY(build_classes(f, alignment));
  return opi_memory_predict(&plan->decided, plan->predicted.n_streams, f->model, f->lists, f->more,
                            f->n_classes, f->devices, 0, out_memory, f->sums, f->err);
}

/* Stash bytes that one micro-batch leaves on the rank. */
static uint64_t stash_of_one(const opi_plan *plan, uint32_t rank) {
  const uint32_t first = rank - rank % opi_plan_width(&plan->decided);
  uint64_t most = 0;
  for (uint32_t k = 0; k < plan->decided.n_replicas; ++k) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < plan->decided.n_stages; ++s) {
      const bool here = opi_plan_rank(&plan->decided, s, k) == first;
      sum += here ? plan->predicted.stage_stash_bytes[s] : 0;
    }
    most = sum > most ? sum : most;
  }
  return most;
}

/* Lowers io_free, the bytes that the schedule may fill with stashes, after a prediction exceeded a
 * cap: all bytes that nothing else needs, less `excess` in case slots are larger than their
 * contents, but at least one micro-batch, since the next prediction knows the slots exactly. False:
 * everything fits, or nothing is left to take.
 */
static bool leave_for_stashes(const finish *f, const opi_memory *memory, uint64_t *io_free) {
  const opi_plan *plan = f->plan;
  const uint64_t *told = f->making->told.bytes;
  bool less = false;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &memory[r];
    const uint64_t cap = told == NULL ? m->cap_bytes : told[r];
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

/* Asks for an order without a bound; if it does not fit, for one within the memory that is left. If
 * the schedule ignores the bound or finds no such order, the first answer stands. */
static opipe_status fit_schedule(finish *f, const uint32_t *alignment) {
  enum { ATTEMPTS = 4 };
  opi_plan *plan = f->plan;
  opi_told_caps *told = &f->making->told;
  const size_t n_ranks = plan->decided.n_ranks;
  uint64_t *left = OPI_ARENA_ARRAY(&f->scratch, uint64_t, n_ranks);
  opi_memory *memory = OPI_ARENA_ARRAY(&f->scratch, opi_memory, n_ranks);
  if (left == NULL || memory == NULL)
    return opi_fail_nomem(f->err, n_ranks * sizeof *memory, "a prediction");
  for (size_t r = 0; r < n_ranks; ++r)
    left[r] = UINT64_MAX;
  told->bounded = told->refused = false;
  OPI_TRY(ask_schedule(f, NULL));
  OPI_TRY(predict(f, alignment, plan->predicted.memory));
  if (!opi_plan_trains(&plan->decided))
    return OPIPE_OK;
  memcpy(memory, plan->predicted.memory, n_ranks * sizeof *memory);
  for (uint32_t i = 0; i < ATTEMPTS && leave_for_stashes(f, memory, left); ++i) {
    told->bounded = true;
    const opipe_status status = ask_schedule(f, left);
    told->refused = status == OPIPE_E_LIMIT || status == OPIPE_E_INVALID;
    if (told->refused) /* because of the caps */
      return OPIPE_OK;
    OPI_TRY(status);
    OPI_TRY(predict(f, alignment, memory));
    memcpy(plan->predicted.memory, memory, n_ranks * sizeof *memory);
  }
  return OPIPE_OK;
}

/* Whether backwards run in parts on all devices, as far as these are here. */
static bool have_parts(const finish *f) {
  bool all = true;
  for (uint32_t r = 0; f->devices != NULL && r < f->plan->decided.n_ranks; ++r) {
    const opi_backend_ref *b = f->devices[r].backend;
    all = all && (b == NULL ||
                  (OPIPE_HAS(b->table, opipe_backend, run_part) && b->table->run_part != NULL));
  }
  return all;
}

/* Bytes of sums follow from devices' layouts. If the plan was read, they are taken from its file.
 */
static opipe_status keep_playlist(const finish *f) {
  const opi_playlist_facts facts = {.sums = f->sums,
                                    .file = f->devices == NULL ? f->plan->predicted.play : NULL,
                                    .in_parts = have_parts(f)};
  opi_playlist *play = NULL;
  OPI_TRY(opi_playlist_build(f->model, f->lists, &facts, &f->plan->arena, &play, f->err));
  if (f->devices == NULL && f->plan->predicted.play != NULL)
    OPI_TRY(opi_playlist_keep_bytes(play, f->plan->predicted.play, f->err));
  f->plan->predicted.play = play;
  return OPIPE_OK;
}

/* ---- offloads ---- */

/* The rate of copies between a rank's device and the host, which only plans that offload need. */
static opipe_status ask_rate(const finish *f, uint32_t r) {
  const opi_rank_device *d = &f->devices[r];
  double rate = 0;
  if (d->backend == NULL || !OPIPE_HAS(d->backend->table, opipe_backend, host_rate) ||
      d->backend->table->host_rate == NULL)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK("backend", d->backend, host_rate, f->err, d->device, &rate));
  if (!(rate >= 0 && rate <= 1e18)) {
    return opi_fail(f->err, OPIPE_E_ABI,
                    "backend '%s' moves %g bytes per second to the host and back (0 to 1e18)",
                    d->backend->id, rate);
  }
  f->plan->decided.devices[r].host_bytes_per_ns = rate * 1e-9;
  return OPIPE_OK;
}

static opipe_status ask_rates(const finish *f) {
  for (uint32_t r = 0; f->devices != NULL && r < f->plan->decided.n_ranks; ++r)
    OPI_TRY(ask_rate(f, r));
  return OPIPE_OK;
}

/* Offloads what matches, unless caps are to decide. */
static opipe_status choose_offloads(finish *f) {
  opi_decision *plan = &f->plan->decided;
  const char *glob = f->making->offload;
  if (glob == NULL)
    return OPIPE_OK; /* a plan that was read has its rates */
  OPI_TRY(opi_offload_check(plan, f->err));
  OPI_TRY(ask_rates(f));
  if (f->making->offload_least)
    return OPIPE_OK;
  OPI_TRY(opi_offload_match(plan, f->model, glob, &f->plan->arena, &plan->offload, &plan->n_offload,
                            f->err));
  return opi_offload_split(plan, f->model, f->err);
}

static opipe_status check_bytes(const finish *f, opipe_error *err) {
  const opi_plan *plan = f->plan;
  const uint64_t most = f->making->offload_bytes;
  OPI_TRY(opi_plan_check_caps(plan, err));
  for (uint32_t r = 0; most != 0 && r < plan->decided.n_ranks; ++r) {
    const uint64_t bytes = plan->predicted.memory[r].offload_bytes;
    if (bytes > most) {
      return opi_fail(
          err, OPIPE_E_LIMIT,
          "rank %u: stashes that wait in the host's memory need %llu bytes of it, which "
          "exceeds their cap of %llu",
          r, (unsigned long long)bytes, (unsigned long long)most);
    }
  }
  return OPIPE_OK;
}

/* Predicts the current order with the first n of the plan's names. */
static opipe_status offload_first(finish *f, const uint32_t *alignment, const char **names,
                                  uint32_t n, opipe_error *err) {
  opi_plan *plan = f->plan;
  plan->decided.offload = names;
  plan->decided.n_offload = n;
  OPI_TRY(build_model(f));
  OPI_TRY(predict(f, alignment, plan->predicted.memory));
  return check_bytes(f, err);
}

/* The order exceeds a cap: offloads as few tensors as make it fit, those with most bytes first. */
static opipe_status offload_least(finish *f, const uint32_t *alignment) {
  const char **names = NULL;
  uint32_t n = 0, low = 0;
  OPI_TRY(opi_offload_match(&f->plan->decided, f->model, f->making->offload, &f->plan->arena,
                            &names, &n, f->err));
  const opipe_status status = offload_first(f, alignment, names, n, f->err);
  if (status == OPIPE_E_LIMIT)
    return opi_error_prefix(f->err, "with all stashes offloaded: ");
  OPI_TRY(status);
  uint32_t high = n, last = n; /* low does not fit, high does */
  while (high - low > 1) {
    opipe_error own = OPIPE_ERROR_INIT;
    last = low + (high - low) / 2;
    const opipe_status fits = offload_first(f, alignment, names, last, &own);
    if (fits < 0 && fits != OPIPE_E_LIMIT)
      return fits;
    if (fits == OPIPE_OK)
      high = last;
    else
      low = last;
  }
  return last == high ? OPIPE_OK : offload_first(f, alignment, names, high, f->err);
}

static opipe_status finish_all(finish *f) {
  opi_plan *plan = f->plan;
  uint32_t *alignment = OPI_ARENA_ARRAY(&f->scratch, uint32_t, plan->decided.n_ranks);
  if (f->making->facts != NULL)
    plan->predicted.memory = OPI_ARENA_ARRAY(&plan->arena, opi_memory, plan->decided.n_ranks);
  if (alignment == NULL || plan->predicted.memory == NULL)
    return opi_fail_nomem(f->err, plan->decided.n_ranks * sizeof *plan->predicted.memory, "a plan");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    alignment[r] = plan->decided.devices[r].alignment;
  OPI_TRY(check_batch(f));
  OPI_TRY(opi_states_place(&plan->decided, f->bound->graph, f->err));
  OPI_TRY(open_devices(f));
  if (f->making->offload != NULL)
    plan->decided.n_offload = 0;
  OPI_TRY(build_model(f));
  if (opi_plan_trains(&plan->decided))
    OPI_TRY(sum_stashes(f));
  OPI_TRY(opi_plan_name_crossings(plan, f->model, f->err));
  OPI_TRY(opi_tensor_compare(&plan->decided, f->model, f->err));
  if (f->making->specs)
    OPI_TRY(opi_shardings_check(f->env->model, f->model, f->err));
  OPI_TRY(choose_offloads(f));
  OPI_TRY(opi_states_divide(f->model, &plan->decided, &plan->arena, f->err));
  OPI_TRY(plan->decided.actions == NULL ? fit_schedule(f, alignment)
                                        : predict(f, alignment, plan->predicted.memory));
  OPI_TRY(opi_tensor_tell(plan, f->model, f->err)); /* of the programs that the schedule uses */
  if (f->making->offload_least && opi_plan_check_caps(plan, NULL) == OPIPE_E_LIMIT)
    OPI_TRY(offload_least(f, alignment));
  OPI_TRY(opi_plan_find_ways(f->env, plan, f->model, f->lists, f->more, f->n_classes, f->devices,
                             f->err));
  OPI_TRY(keep_playlist(f));
  opi_plan_count_work(plan, f->making->facts, f->model);
  OPI_TRY(opi_plan_count_few_bits(plan, f->model, f->err));
  return check_bytes(f, f->err);
}

static bool all_asked(const opi_making *making) {
  for (uint32_t r = 0; making->facts != NULL && r < making->plan->decided.n_ranks; ++r) {
    if (making->facts[r].described)
      return false;
  }
  return making->facts != NULL;
}

opipe_status opi_making_finish(opi_making *making, const opi_bound *bound, opipe_error *err) {
  opi_plan *plan = making->plan;
  finish f = {.making = making, .plan = plan, .bound = bound, .err = err};
  opi_plan_env env = *making->env;
  env.model = opi_plan_model(plan, making->env->model);
  f.env = &env;
  opi_arena_init(&f.scratch, plan->decided.allocator, 0);
  const opipe_status status = finish_all(&f);
  plan->predicted.counted = status == OPIPE_OK && all_asked(making);
  for (uint32_t r = 0; f.devices != NULL && f.backends != NULL && r < plan->decided.n_ranks; ++r) {
    if (f.devices[r].device != NULL)
      f.backends[r].table->device_close(f.devices[r].device);
  }
  free_classes(&f);
  opi_lists_free(f.lists);
  opi_cut_model_free(f.model);
  opi_arena_release(&f.scratch);
  return status;
}

opipe_status opi_plan_finish(const opi_plan_env *env, opi_plan *plan, const opi_device_facts *facts,
                             const opi_bound *bound, opipe_error *err) {
  opi_making making = {.env = env, .plan = plan, .facts = facts};
  return opi_making_finish(&making, bound, err);
}
