/* SPDX-License-Identifier: Apache-2.0 */
/* Judges a candidate: asks its schedule for an order, lowers it and plays it on the cluster. */
#include <math.h>
#include <string.h>

#include "partition/study/auto/space.h"

enum { STREAM_ROUNDS = 4 }; /* rounds over a pipeline's ranks until the steady state shows */

typedef struct judge {
  const opi_space *space;
  const opi_point *point;
  opi_arena arena;
  opi_stage_load *stages;    /* [n_stages] of the slowest instance */
  opi_stage_load *instances; /* [n_stages * n_replicas]; NULL: devices are equal */
  double *fixed;             /* [ranks of one copy] bytes independent of the order */
  double *slack;             /* [ranks of one copy] bytes left for stashes */
  double *slices;            /* [n_slices] shares of a stage's time; NULL: by tokens */
  bool *again;               /* [n_stages] all true (recompute) or none */
  uint32_t *devices;         /* [ranks of the order * copies beside it] */
  uint32_t n_ranks;          /* of one copy, including replicas that divide micro-batches */
  uint32_t n_replicas;       /* of the order */
  bool must_fit;             /* if false, it is played even if it does not fit */
  uint64_t n_asked;          /* actions of orders that were not played */
  uint32_t inside, beside;   /* copies within the order; copies of the whole order */
  opipe_error *err;
} judge;

/* ---- loads of stages ---- */

static uint32_t copy_rank(const judge *j, uint32_t stage, uint32_t replica, uint32_t *out_copy) {
  const opi_method_layout *l = j->point->places;
  if (j->point->shares != NULL) {
    const uint32_t rank = l->instance_rank[stage];
    uint32_t first = 0;
    *out_copy = 0;
    for (uint32_t r = 0; r < rank; ++r)
      first += j->point->shares[r];
    return replica < j->point->shares[rank] ? first + replica : OPIPE_NONE;
  }
  *out_copy = replica / l->n_replicas;
  return l->instance_rank[stage * l->n_replicas + replica % l->n_replicas];
}

/* The slowest class in the tensor group (and in copies beside the order). */
static const opi_sums *slowest(const judge *j, uint32_t rank, uint32_t copy) {
  const opi_space *s = j->space;
  const opi_cluster *c = s->question->planning.cluster;
  const uint32_t last = s->question->planning.layers->n_layers;
  const opi_sums *worst = NULL;
  for (uint32_t i = 0; i < j->beside * j->point->width; ++i) {
    const uint32_t device = opi_point_device(j->point, j->n_ranks, rank, copy + i / j->point->width,
                                             i % j->point->width);
    const opi_sums *x = opi_sums_of(s, j->point, c->class_of[device]);
    if (worst == NULL || x->forward[last] > worst->forward[last])
      worst = x;
    if (s->equal_devices)
      break;
  }
  return worst;
}

/* Time to read and write a byte on a device; 0: unknown. */
static double byte_ns(const judge *j, uint32_t rank) {
  const opi_cluster *c = j->space->question->planning.cluster;
  const uint32_t device = opi_point_device(j->point, j->n_ranks, rank, 0, 0);
  const double rate = c->descriptions[device].bandwidth;
  return rate > 0 ? 2e9 / rate : 0;
}

static opi_stage_load load_of(const judge *j, uint32_t stage, uint32_t rank, uint32_t copy) {
  const opi_point *p = j->point;
  const opi_sums *x = slowest(j, rank, copy);
  const opi_auto *q = j->space->question;
  const uint32_t a = p->ends[stage], b = p->ends[stage + 1];
  const bool train = opi_space_trains(j->space);
  const double slices = p->places->n_slices > 1 ? p->places->n_slices * (double)(b - a) : 0;
  const double params = x->params[b] - x->params[a], n_sums = x->n_sums[b] - x->n_sums[a];
  const double state = train ? q->planning.state_bytes : 0;
  opi_stage_load load = {
      .forward_ns = x->forward[b] - x->forward[a] + slices * q->slice_ns,
      .flops = (x->flops[b] - x->flops[a]) * (train ? 1 : 1 / 3.0) / p->width,
      .send_bytes = b == q->planning.layers->n_layers ? 0 : x->cut[b],
      .stash_bytes = train ? x->stash[b] - x->stash[a] : 0,
      .fixed_bytes = opi_point_fixed_bytes(j->space, p, params),
      .tensor_sums = (uint32_t)n_sums,
      .tensor_bytes = n_sums > 0 ? (x->sum_bytes[b] - x->sum_bytes[a]) / n_sums : 0};
  if (!train)
    return load;
  load.input_ns = x->input[b] - x->input[a] + slices * q->slice_ns;
  load.weight_ns = x->weight[b] - x->weight[a] + slices * q->slice_ns;
  load.input_bytes = a == 0 || !p->recompute ? 0 : x->cut[a];
  load.gradient_bytes = params;
  load.step_ns = params * state * byte_ns(j, rank);
  return load;
}

/* A play divides by the number of replicas; scales up so that the largest share comes out right. */
static void round_up(const opi_point *p, uint32_t rank, opi_stage_load *io) {
  const double by = p->shares == NULL ? 1 : p->shares[rank] / opi_point_speed(p, rank);
  io->forward_ns *= by;
  io->input_ns *= by;
  io->weight_ns *= by;
  io->stash_bytes *= by;
  io->input_bytes *= by;
  io->tensor_bytes *= by;
}

static double longer(double a, double b) {
  return a > b ? a : b;
}

static opipe_status make_loads(judge *j) {
  const opi_method_layout *l = j->point->places;
  const uint32_t n = l->n_stages * j->n_replicas;
  j->stages = OPI_ARENA_ARRAY(&j->arena, opi_stage_load, l->n_stages);
  j->instances = OPI_ARENA_ARRAY(&j->arena, opi_stage_load, n);
  j->fixed = OPI_ARENA_ARRAY(&j->arena, double, j->n_ranks);
  j->again = OPI_ARENA_ARRAY(&j->arena, bool, l->n_stages);
  if (j->stages == NULL || j->instances == NULL || j->fixed == NULL || j->again == NULL)
    return opi_fail_nomem(j->err, n * sizeof(opi_stage_load), "a planner");
  memset(j->again, j->point->recompute, l->n_stages * sizeof *j->again);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t stage = i / j->n_replicas;
    uint32_t copy = 0;
    const uint32_t rank = copy_rank(j, stage, i % j->n_replicas, &copy);
    if (rank == OPIPE_NONE)
      continue;
    opi_stage_load x = load_of(j, stage, rank, copy);
    round_up(j->point, l->instance_rank[stage * l->n_replicas], &x);
    opi_stage_load *worst = &j->stages[stage];
    j->instances[i] = x;
    if (copy == 0 && !opi_places_repeat(l, i / j->n_replicas, i % j->n_replicas))
      j->fixed[rank] += x.fixed_bytes;
    if (worst->fixed_bytes == 0 && worst->forward_ns == 0)
      *worst = x;
    worst->forward_ns = longer(worst->forward_ns, x.forward_ns);
    worst->input_ns = longer(worst->input_ns, x.input_ns);
    worst->weight_ns = longer(worst->weight_ns, x.weight_ns);
    worst->step_ns = longer(worst->step_ns, x.step_ns);
  }
  if (j->space->equal_devices)
    j->instances = NULL;
  return OPIPE_OK;
}

static opipe_status time_slices(judge *j) {
  const uint32_t n = j->point->places->n_slices;
  double sum = 0, first = 0;
  if (n < 2 || j->space->curves == NULL)
    return OPIPE_OK;
  j->slices = OPI_ARENA_ARRAY(&j->arena, double, n);
  if (j->slices == NULL)
    return opi_fail_nomem(j->err, n * sizeof *j->slices, "a planner");
  opi_point_slices(j->space, j->point, j->slices, &sum, &first);
  return OPIPE_OK;
}

/* ---- the order ---- */

/* Numbers devices as a play does: by rank of the order, then by copy beside it and tensor rank.
 * Also finds the least bytes left on any copy of a rank. */
static opipe_status place(judge *j) {
  const opi_point *p = j->point;
  const uint32_t n = j->n_ranks, t = p->width;
  j->devices = OPI_ARENA_ARRAY(&j->arena, uint32_t, (size_t)n * p->copies * t);
  j->slack = OPI_ARENA_ARRAY(&j->arena, double, n);
  if (j->devices == NULL || j->slack == NULL)
    return opi_fail_nomem(j->err, (uint64_t)n * p->copies * t * sizeof(uint32_t), "a planner");
  for (uint32_t rank = 0; rank < n; ++rank) {
    j->slack[rank] = INFINITY;
    for (uint32_t i = 0; i < p->copies * t; ++i) {
      const uint32_t copy = i / t, device = opi_point_device(p, n, rank, copy, i % t);
      const uint32_t at = j->inside > 1 ? (copy * n + rank) * t : rank * p->copies * t + copy * t;
      const double slack = j->space->caps[device] - j->fixed[rank];
      j->devices[at + i % t] = device;
      j->slack[rank] = slack < j->slack[rank] ? slack : j->slack[rank];
    }
  }
  return OPIPE_OK;
}

static uint64_t whole_bytes(double bytes) {
  return bytes >= 1e18 ? UINT64_MAX : bytes > 0 ? (uint64_t)bytes : 0;
}

/* Asks the schedule with times and bytes of stages, and the bytes left on each rank. */
static opipe_status ask(judge *j, opi_order **out_order) {
  const opi_point *p = j->point;
  const opi_method_layout *l = p->places;
  const uint32_t n = l->n_stages, n_ranks = j->n_ranks * j->inside;
  double *ms = OPI_ARENA_ARRAY(&j->arena, double, 3 * (size_t)n);
  uint64_t *stash = OPI_ARENA_ARRAY(&j->arena, uint64_t, n);
  uint64_t *left = OPI_ARENA_ARRAY(&j->arena, uint64_t, n_ranks);
  if (ms == NULL || stash == NULL || left == NULL)
    return opi_fail_nomem(j->err, n * 3 * sizeof(double), "a planner");
  for (uint32_t r = 0; r < n_ranks; ++r)
    left[r] = whole_bytes(j->slack[r % j->n_ranks]);
  for (uint32_t s = 0; s < n; ++s) {
    const opi_stage_load *x = &j->stages[s];
    ms[s] = x->forward_ns * 1e-6;
    ms[n + s] = (x->input_ns + (p->recompute ? x->forward_ns : 0)) * 1e-6;
    ms[2 * n + s] = x->weight_ns * 1e-6;
    /* replicas that divide a micro-batch keep only their rows of it */
    const double part =
        p->shares == NULL ? 1 : 1.0 / p->shares[l->instance_rank[s * l->n_replicas]];
    /* with recomputation, one micro-batch at a time has its full stash, which reduces the room */
    stash[s] = whole_bytes(part * (p->recompute ? x->input_bytes : x->stash_bytes));
    const uint32_t rank = p->shares == NULL ? l->instance_rank[s * l->n_replicas] : s;
    const uint64_t once = p->recompute ? whole_bytes(x->stash_bytes) : 0;
    for (uint32_t c = 0; p->shares == NULL && c < j->inside; ++c) {
      uint64_t *at = &left[c * j->n_ranks + rank];
      *at = *at == UINT64_MAX ? *at : *at > once ? *at - once : 0;
    }
  }
  const opi_costs costs = {.stage_forward = ms,
                           .stage_input = ms + n,
                           .stage_weight = ms + 2 * (size_t)n,
                           .n_stages = n};
  const opi_question question = {.schedule = j->space->methods[p->method].spec,
                                 .mode = j->space->question->mode,
                                 .n_ranks = n_ranks,
                                 .n_microbatches = p->microbatches * j->inside,
                                 .replicas = j->inside,
                                 .n_rank_replicas = p->shares == NULL ? 0 : l->n_ranks,
                                 .rank_replicas = p->shares,
                                 .costs = &costs,
                                 .stash_bytes = stash,
                                 .free_bytes = left};
  opi_plugins plugins = j->space->plugins;
  OPI_TRY(opi_order_ask(&plugins, &question, j->arena.allocator, out_order, j->err));
  if ((*out_order)->problem.n_stages == n)
    return OPIPE_OK;
  const uint32_t found = (*out_order)->problem.n_stages;
  opi_order_free(*out_order);
  *out_order = NULL;
  return opi_fail(j->err, OPIPE_E_INVALID, "it lays out %u stages, and %u before", found, n);
}

/* A stream repeats the lists of one request, as sessions do. */
static opipe_status ask_stream(judge *j, uint32_t requests, opi_order **out_order) {
  opi_order *once = NULL;
  OPI_TRY(ask(j, &once));
  if (requests == 1) {
    *out_order = once;
    return OPIPE_OK;
  }
  const opipe_status status =
      opi_order_repeat(once, requests, j->arena.allocator, out_order, j->err);
  opi_order_free(once);
  return status;
}

/* Refuses an order that keeps more micro-batches than fit. */
static opipe_status check_room(judge *j, const opi_order *order) {
  if (!j->must_fit || !opi_order_must_exceed(order, j->stages, j->instances, j->point->recompute,
                                             j->slack, j->n_ranks))
    return OPIPE_OK;
  j->n_asked = order->list->n_items;
  return opi_fail(j->err, OPIPE_E_LIMIT, "a rank keeps more than its device has left");
}

static opipe_status lower(judge *j, opi_order *order, opi_do_list **out_list) {
  const opi_lowering how = {.receive_depth = 1};
  const opipe_allocator *allocator = j->arena.allocator;
  opi_do_list *again = NULL;
  if (j->point->recompute)
    OPI_TRY(opi_pass_recompute(order->list, j->again, allocator, &again, j->err));
  const opipe_status status = opi_lower_order(&order->problem, again == NULL ? order->list : again,
                                              &how, allocator, out_list, j->err);
  opi_do_list_free(again);
  return status;
}

/* ---- figures ---- */

/* The fullest device, of equals the one with the smallest cap, and the largest excess over a cap.
 */
static void read_memory(const judge *j, const opi_order_played *played, opi_judged *out) {
  const uint32_t n = played->result.n_classes, copies = played->play.n_tensor * played->play.n_data;
  const bool nearest = j->space->question->nearest;
  out->n_over = 0;
  out->bytes = -1;
  out->over_bytes = -INFINITY;
  for (uint32_t list = 0; list < played->play.n_lists; ++list) {
    double peak = 0;
    for (uint32_t k = 0; k < n; ++k)
      peak = longer(peak, played->result.peak_bytes[list * n + k]);
    const double bytes = peak + j->fixed[list % j->n_ranks];
    for (uint32_t c = 0; c < copies; ++c) {
      const uint32_t device = played->play.device[list * copies + c];
      const double cap = nearest ? opi_space_own_cap(j->space, device) : j->space->caps[device];
      const double over = isfinite(cap) ? bytes - cap : -INFINITY;
      out->n_over += over > 0;
      if (over > out->over_bytes)
        out->over_device = device;
      out->over_bytes = longer(out->over_bytes, over);
      if (bytes < out->bytes || (bytes == out->bytes && cap >= out->cap_bytes))
        continue;
      out->bytes = bytes;
      out->cap_bytes = cap;
      out->device = device;
    }
  }
}

/* From the last pass of a micro-batch to the end. */
static double exposed(const opi_order_played *played, bool periodic) {
  const uint32_t n = played->result.n_classes;
  double last = 0;
  if (periodic)
    return 0;
  for (uint32_t i = 0; i < played->play.list_first[played->play.n_lists]; ++i) {
    const opi_play_op *op = &played->play.ops[i];
    if (op->kind != OPI_PLAY_COMPUTE || played->list->items[op->item].kind == OPI_DO_STEP)
      continue;
    for (uint32_t k = 0; k < n; ++k)
      last = longer(last, played->result.end[(size_t)i * n + k]);
  }
  return played->step_ns - last;
}

static void read_times(const judge *j, const opi_order_played *played, opi_judged *out) {
  const uint32_t n = played->play.n_lists * played->result.n_classes;
  const bool stale = j->point->places->versions != OPIPE_VERSIONS_ONE;
  double busiest = 0;
  for (uint32_t r = 0; r < n; ++r)
    busiest = longer(busiest, played->result.busy_ns[r]);
  out->step_ns = out->interval_ns = played->step_ns;
  out->compute_ns = played->bubble_overhead >= 0 && played->step_ns > 0
                        ? played->step_ns / (1 + played->bubble_overhead)
                        : busiest;
  out->bubble = played->bubble;
  out->utilisation = played->utilisation;
  out->exposed_ns = exposed(played, stale && opi_space_trains(j->space));
  out->n_ops = (uint64_t)played->play.list_first[played->play.n_lists] * played->result.n_classes;
}

/* Plays the order and fills `out`; the arena of its result is the judge's. */
static opipe_status play_order(judge *j, uint32_t requests, const opi_order_play *more,
                               opi_shown *out) {
  const opi_point *p = j->point;
  const opi_order_play how = {.cluster = j->space->question->planning.cluster,
                              .stages = j->stages,
                              .instances = j->instances,
                              .device = j->devices,
                              .slice_times = j->slices,
                              .n_tensor = p->width,
                              .n_data = j->beside,
                              .dtype = j->space->question->dtype,
                              .collective = more == NULL ? OPI_COLLECTIVE_AUTO : more->collective,
                              .waits_for_reductions = more != NULL && more->waits_for_reductions,
                              .sharded = p->sharded || (more != NULL && more->sharded),
                              .scattered = p->scattered || (more != NULL && more->scattered)};
  out->order = NULL;
  out->list = NULL;
  OPI_TRY(ask_stream(j, requests, &out->order));
  opipe_status status = check_room(j, out->order);
  if (status == OPIPE_OK)
    status = lower(j, out->order, &out->list);
  if (status == OPIPE_OK) {
    status =
        opi_order_play_run(&out->order->problem, out->list, &how, &j->arena, &out->played, j->err);
  }
  if (status < 0) {
    opi_do_list_free(out->list);
    opi_order_free(out->order);
  }
  return status;
}

static void release_order(opi_shown *shown) {
  opi_order_played_release(&shown->played, shown->list);
  opi_do_list_free(shown->list);
  opi_order_free(shown->order);
}

static opipe_status play(judge *j, uint32_t requests, opi_judged *out) {
  opi_shown shown;
  OPI_TRY(play_order(j, requests, NULL, &shown));
  read_memory(j, &shown.played, out);
  read_times(j, &shown.played, out);
  release_order(&shown);
  return OPIPE_OK;
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
  while (b != 0) {
    const uint32_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* The interval of a stream: the difference between n and 2 n requests, with n chosen to fill whole
 * rounds of the ranks; at least the busiest rank's compute time per request. */
static opipe_status play_stream(judge *j, opi_judged *out) {
  const uint32_t ranks = j->point->places->n_ranks, m = j->point->microbatches;
  const uint32_t unit = ranks / common_divisor(ranks, m);
  const uint32_t n = unit * ((STREAM_ROUNDS * ranks + m * unit - 1) / (m * unit));
  opi_judged few, many;
  OPI_TRY(play(j, 1, out));
  OPI_TRY(play(j, n, &few));
  OPI_TRY(play(j, 2 * n, &many));
  out->interval_ns = longer((many.step_ns - few.step_ns) / n, many.compute_ns / (2.0 * n));
  out->bytes = many.bytes;
  out->cap_bytes = many.cap_bytes;
  out->over_bytes = many.over_bytes;
  out->over_device = many.over_device;
  out->n_over = many.n_over;
  out->device = many.device;
  out->n_ops += few.n_ops + many.n_ops;
  return OPIPE_OK;
}

/* Prepares everything about a point that does not depend on the order. The arena must be released,
 * on failure too. */
static opipe_status open_judge(const opi_space *space, const opi_point *point, judge *j,
                               opipe_error *err) {
  const bool order_has_copies = !space->equal_devices && point->shares == NULL;
  *j = (judge){.space = space,
               .point = point,
               .n_ranks = opi_point_ranks(point),
               .inside = order_has_copies ? point->copies : 1,
               .beside = order_has_copies ? 1 : point->copies,
               .err = err};
  j->n_replicas = point->places->n_replicas * j->inside;
  for (uint32_t r = 0; point->shares != NULL && r < point->places->n_ranks; ++r)
    j->n_replicas = point->shares[r] > j->n_replicas ? point->shares[r] : j->n_replicas;
  opi_arena_init(&j->arena, space->arena.allocator, 0);
  OPI_TRY(make_loads(j));
  OPI_TRY(time_slices(j));
  return place(j);
}

opipe_status opi_point_show(const opi_space *space, const opi_point *point,
                            const opi_order_play *more, opi_shown *out, opipe_error *err) {
  judge j;
  opipe_status status = open_judge(space, point, &j, err);
  if (status == OPIPE_OK)
    status = play_order(&j, 1, more, out);
  out->arena = j.arena;
  if (status < 0)
    opi_arena_release(&out->arena);
  return status;
}

void opi_shown_release(opi_shown *shown) {
  release_order(shown);
  opi_arena_release(&shown->arena);
}

opipe_status opi_point_judge(const opi_space *space, const opi_point *point, bool must_fit,
                             opi_judged *out, opipe_error *err) {
  judge j;
  *out = (opi_judged){.cap_bytes = INFINITY, .over_bytes = -INFINITY};
  opipe_status status = open_judge(space, point, &j, err);
  j.must_fit = must_fit;
  if (status == OPIPE_OK) {
    status = space->question->objective == OPI_AUTO_THROUGHPUT && !opi_space_trains(space)
                 ? play_stream(&j, out)
                 : play(&j, 1, out);
  }
  out->n_ops += j.n_asked;
  opi_arena_release(&j.arena);
  return status;
}

double opi_judged_key(const opi_space *space, const opi_judged *x) {
  const opi_auto *q = space->question;
  if (q->nearest)
    return fmax(x->over_bytes, 0);
  if (x->over_bytes > 0)
    return INFINITY;
  if (q->objective == OPI_AUTO_MEMORY)
    return q->limit_ns > 0 && x->step_ns > q->limit_ns ? INFINITY : x->bytes;
  return q->objective == OPI_AUTO_THROUGHPUT ? x->interval_ns : x->step_ns;
}
