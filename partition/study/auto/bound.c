/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds that no order of a candidate beats, computed without asking for an order. A rank computes
 * the passes of all its micro-batches, including sums over tensor groups. Before its first pass a
 * micro-batch must come through the earlier stages; after its last backward for inputs one must go
 * back through them; after its last pass come a stage's reduction and the step. Messages and
 * collectives count their time on an idle network.
 */
#include <math.h>
#include <string.h>

#include "partition/study/auto/space.h"

enum { MEMO = 4096 };

/* Time of a collective over given devices, memoised. */
typedef struct opi_collective_memo {
  uint64_t key, n_bytes;
  double ns;
} opi_collective_memo;

/* ---- collectives ---- */

static uint64_t hash_devices(uint32_t op, const uint32_t *devices, uint32_t n) {
  uint64_t h = UINT64_C(1469598103934665603) ^ op;
  for (uint32_t i = 0; i < n; ++i)
    h = (h ^ (devices[i] + 1)) * UINT64_C(1099511628211);
  return h ^ h >> 29;
}

static opipe_status collective_ns(opi_space *s, uint32_t op, const uint32_t *devices, uint32_t n,
                                  double n_bytes, double *out_ns) {
  *out_ns = 0;
  if (n < 2 || n_bytes < 1)
    return OPIPE_OK;
  const uint64_t bytes = (uint64_t)n_bytes, key = hash_devices(op, devices, n);
  if (s->memo == NULL) {
    s->memo = OPI_ARENA_ARRAY(&s->arena, opi_collective_memo, MEMO);
    if (s->memo == NULL)
      return opi_fail_nomem(s->err, MEMO * sizeof(opi_collective_memo), "a planner");
  }
  opi_collective_memo *m = &s->memo[(key ^ bytes * UINT64_C(0x9e3779b97f4a7c15) >> 40) % MEMO];
  if (m->key != key || m->n_bytes != bytes || m->n_bytes == 0) {
    const opi_groups one = {devices, n, 1};
    m->key = key;
    m->n_bytes = bytes;
    OPI_TRY(opi_cluster_collective_ns(s->question->planning.cluster, op, OPI_COLLECTIVE_AUTO, &one,
                                      bytes, s->arena.allocator, &m->ns, s->err));
  }
  *out_ns = m->ns;
  return OPIPE_OK;
}

/* ---- a point ---- */

typedef struct measure {
  opi_space *space;
  const opi_point *point;
  uint32_t n_ranks; /* including replicas that divide micro-batches */
  double first;     /* the first slice's share of the tokens */
  double sum;       /* time of all slices over that of the whole; 1 without slices */
  double first_ns;  /* the first slice's share of that time */
} measure;

static double share_of(const opi_point *p, uint32_t rank) {
  return p->shares == NULL ? 1 : p->shares[rank];
}

static uint32_t first_rank(const opi_point *p, uint32_t rank) {
  uint32_t first = 0;
  for (uint32_t r = 0; p->shares != NULL && r < rank; ++r)
    first += p->shares[r];
  return p->shares == NULL ? rank : first;
}

/* Sums of the rank's fastest replica, over all copies: a lower bound on its work. */
static const opi_sums *fastest(const measure *m, uint32_t rank) {
  const opi_point *p = m->point;
  const opi_space *s = m->space;
  const opi_cluster *c = s->question->planning.cluster;
  const uint32_t last = s->question->planning.layers->n_layers;
  if (s->equal_devices)
    return opi_sums_of(s, p, c->class_of[0]);
  const opi_sums *best = NULL;
  const bool any = p->places->n_replicas > 1; /* its stages are on other ranks too */
  const uint32_t at = any ? 0 : first_rank(p, rank);
  const uint32_t n = any ? m->n_ranks : p->shares == NULL ? 1 : p->shares[rank];
  for (uint32_t i = 0; i < n * p->copies; ++i) {
    const uint32_t device = opi_point_device(p, m->n_ranks, at + i % n, i / n, 0);
    const opi_sums *x = opi_sums_of(s, p, c->class_of[device]);
    if (best == NULL || x->forward[last] < best->forward[last])
      best = x;
  }
  return best;
}

/* All-reduces of one pass of layers [first, end) over the tensor group of copy 0. */
static opipe_status tensor_ns(const measure *m, const opi_sums *x, uint32_t rank, uint32_t first,
                              uint32_t end, double *out_ns) {
  const opi_point *p = m->point;
  const double n = x->n_sums[end] - x->n_sums[first];
  uint32_t devices[OPI_WIDTHS_MOST];
  *out_ns = 0;
  if (p->width == 1 || n == 0)
    return OPIPE_OK;
  for (uint32_t t = 0; t < p->width; ++t)
    devices[t] = opi_point_device(p, m->n_ranks, first_rank(p, rank), 0, t);
  const double n_bytes = (x->sum_bytes[end] - x->sum_bytes[first]) / n / opi_point_speed(p, rank) /
                         p->places->n_slices;
  double one = 0;
  OPI_TRY(collective_ns(m->space, OPI_OP_ALL_REDUCE, devices, p->width, floor(n_bytes), &one));
  *out_ns = one * n * p->places->n_slices;
  return OPIPE_OK;
}

/* Time of a message of the first slice across the boundary before layer `end`. */
static double hop_ns(const measure *m, const opi_sums *x, uint32_t src, uint32_t dst,
                     uint32_t end) {
  const opi_point *p = m->point;
  if (src == dst || p->shares != NULL || p->places->n_replicas > 1 || !m->space->equal_devices)
    return 0;
  const double n_bytes = x->cut[end] * m->first / (p->scattered ? p->width : 1);
  return opi_cluster_message_ns(m->space->question->planning.cluster,
                                opi_point_device(p, m->n_ranks, src, 0, 0),
                                opi_point_device(p, m->n_ranks, dst, 0, 0), (uint64_t)n_bytes);
}

/* Lists the ranks of one copy that hold a stage's gradients: the replicas of `rank`, or those of
 * the schedule.
 */
static uint32_t homes_of(const measure *m, uint32_t stage, uint32_t rank, uint32_t *out) {
  const opi_method_layout *l = m->point->places;
  const uint32_t first = first_rank(m->point, rank);
  uint32_t n = 0;
  for (uint32_t i = 0; l->n_replicas == 1 && i < share_of(m->point, rank); ++i)
    out[n++] = first + i;
  for (uint32_t k = 0; l->n_replicas > 1 && k < l->n_replicas; ++k) {
    const uint32_t at = l->instance_rank[stage * l->n_replicas + k];
    if (at != OPIPE_NONE && !opi_places_repeat(l, stage, k))
      out[n++] = at;
  }
  return n;
}

/* Time of reducing a stage's gradients over copies and replicas, and of gathering its weights. */
static opipe_status reduce_ns(const measure *m, uint32_t stage, uint32_t rank, double n_bytes,
                              double *out_ns) {
  const opi_point *p = m->point;
  const size_t most = m->n_ranks * (size_t)p->copies + m->n_ranks;
  double second = 0;
  *out_ns = 0;
  uint32_t *devices = opi_alloc_zero(m->space->arena.allocator, most, sizeof *devices);
  if (devices == NULL)
    return opi_fail_nomem(m->space->err, most * sizeof *devices, "a planner");
  uint32_t *homes = devices + m->n_ranks * (size_t)p->copies;
  const uint32_t n = homes_of(m, stage, rank, homes);
  for (uint32_t i = 0; i < n * p->copies; ++i)
    devices[i] = opi_point_device(p, m->n_ranks, homes[i % n], i / n, 0);
  opipe_status status =
      collective_ns(m->space, p->sharded ? OPI_OP_REDUCE_SCATTER : OPI_OP_ALL_REDUCE, devices,
                    n * p->copies, n_bytes, out_ns);
  if (status == OPIPE_OK && p->sharded)
    status = collective_ns(m->space, OPI_OP_ALL_GATHER, devices, n * p->copies, n_bytes, &second);
  *out_ns += second;
  opi_free(m->space->arena.allocator, devices, most * sizeof *devices);
  return status;
}

double opi_point_fixed_bytes(const opi_space *s, const opi_point *p, double params) {
  const double state = s->question->planning.state_bytes;
  if (!opi_space_trains(s))
    return params;
  const double versions = p->places->versions == OPIPE_VERSIONS_ONE ? 0 : params;
  const double kept = state < 2 ? state : 2; /* weights and gradients */
  return p->sharded ? params * (kept + (state - kept) / p->copies) + versions
                    : params * state + versions;
}

typedef struct rank_sum {
  double forward, backward, weight; /* of a micro-batch, over all of the rank's stages */
  double input;                     /* of its backward, without recomputation */
  double head, tail, reduce_bytes, params, kept;
} rank_sum;

static opipe_status add_stage(const measure *m, uint32_t stage, uint32_t rank, double head,
                              double tail, rank_sum *io) {
  const opi_point *p = m->point;
  const uint32_t first = p->ends[stage], end = p->ends[stage + 1];
  const opi_sums *x = fastest(m, rank);
  const double slices = p->places->n_slices > 1 ? p->places->n_slices * (double)(end - first) : 0;
  const double beside = slices * m->space->question->slice_ns; /* in every pass */
  const double share = opi_point_speed(p, rank);
  const double forward = ((x->forward[end] - x->forward[first]) * m->sum + beside) / share;
  double sums = 0;
  OPI_TRY(tensor_ns(m, x, rank, first, end, &sums));
  const double params = x->params[end] - x->params[first];
  const double stash = (x->stash[end] - x->stash[first]) / share;
  io->forward += forward + sums;
  if (opi_space_trains(m->space)) {
    io->input += ((x->input[end] - x->input[first]) * m->sum + beside) / share + sums;
    io->backward += io->input + (p->recompute ? forward + sums : 0);
    io->weight += ((x->weight[end] - x->weight[first]) * m->sum + beside) / share;
    io->kept = fmax(io->kept, stash / p->places->n_slices / p->places->n_parts);
  }
  io->head = fmin(io->head, head);
  io->tail = fmin(io->tail, tail);
  io->reduce_bytes = fmin(io->reduce_bytes, params);
  io->params += params;
  return OPIPE_OK;
}

/* Adds up the stages of each rank of the layout, each once. sums [n_ranks]. */
static opipe_status add_stages(const measure *m, rank_sum *sums) {
  const opi_method_layout *l = m->point->places;
  double head = 0, tail = 0;
  for (uint32_t r = 0; r < l->n_ranks; ++r)
    sums[r] = (rank_sum){.head = INFINITY, .tail = INFINITY, .reduce_bytes = INFINITY};
  for (uint32_t s = 0; s < l->n_stages; ++s) {
    const uint32_t rank = l->instance_rank[s * l->n_replicas];
    rank_sum one = {.head = INFINITY, .tail = INFINITY, .reduce_bytes = INFINITY};
    OPI_TRY(add_stage(m, s, rank, head, tail, &one));
    for (uint32_t k = 0; k < l->n_replicas; ++k) {
      const uint32_t at = l->instance_rank[s * l->n_replicas + k];
      if (at == OPIPE_NONE)
        continue;
      rank_sum *to = &sums[at];
      to->forward += one.forward / l->n_replicas;
      to->backward += one.backward / l->n_replicas;
      to->weight += one.weight / l->n_replicas;
      to->head = fmin(to->head, one.head);
      to->tail = fmin(to->tail, one.tail);
      to->reduce_bytes = fmin(to->reduce_bytes, one.reduce_bytes);
      to->params += opi_places_repeat(l, s, k) ? 0 : one.params;
      to->kept = fmax(to->kept, one.kept);
    }
    if (s + 1 < l->n_stages) {
      const uint32_t next = l->instance_rank[(s + 1) * l->n_replicas];
      const double hop = hop_ns(m, fastest(m, rank), rank, next, m->point->ends[s + 1]);
      head += one.forward * m->first_ns + hop;
      if (opi_space_trains(m->space)) /* requests do not come back */
        tail += one.input * m->first_ns / l->n_parts + hop;
    }
  }
  return OPIPE_OK;
}

/* Reduction of the stage that reduces fastest: some rank computes for at least the mean time and
 * then reduces one of its stages. */
static opipe_status least_reduce_ns(const measure *m, double *out_ns) {
  const opi_point *p = m->point;
  const opi_sums *x = fastest(m, 0);
  *out_ns = INFINITY;
  for (uint32_t s = 0; s < p->places->n_stages; ++s) {
    double ns = 0;
    OPI_TRY(reduce_ns(m, s, 0, x->params[p->ends[s + 1]] - x->params[p->ends[s]], &ns));
    *out_ns = fmin(*out_ns, ns);
  }
  return OPIPE_OK;
}

/* Combines the sums of all ranks. */
static opipe_status bound_ranks(const measure *m, const rank_sum *sums, opi_bounds *out) {
  const opi_point *p = m->point;
  const opi_method_layout *l = p->places;
  const bool stale = l->versions != OPIPE_VERSIONS_ONE, several = l->n_replicas > 1;
  const double n = p->microbatches;
  double mean = 0, worst = 0, whole = 0;
  uint32_t last = 0;
  for (uint32_t r = 0; r < l->n_ranks; ++r) {
    const rank_sum *x = &sums[r];
    const double fixed = opi_point_fixed_bytes(m->space, p, x->params);
    const double input = x->forward + x->backward, work = input + x->weight;
    const double least = x->head + fmax(n * work, n * input + x->tail);
    out->bytes = fmax(
        out->bytes,
        fixed + x->kept - m->space->caps[opi_point_device(p, m->n_ranks, first_rank(p, r), 0, 0)]);
    mean += (stale ? n * work : x->head + n * work) / l->n_ranks;
    if (x->head + n * work > worst) {
      worst = x->head + n * work;
      last = r;
    }
    out->ns = fmax(out->ns, stale ? n * work / 2 : least);
    whole = fmax(whole, stale ? n * work : x->head + n * work + x->tail);
  }
  double reduce = 0;
  if (opi_space_trains(m->space)) {
    OPI_TRY(several ? least_reduce_ns(m, &reduce)
                    : reduce_ns(m, 0, last, sums[last].reduce_bytes, &reduce));
  }
  if (several)
    out->ns = stale ? mean / 2 : mean + reduce;
  else if (!stale)
    out->ns = fmax(out->ns, worst + reduce);
  double mean_stage = 0;
  for (uint32_t r = 0; r < l->n_ranks; ++r)
    mean_stage += (sums[r].forward + sums[r].backward + sums[r].weight) / l->n_stages;
  const double idle = mean_stage * m->space->methods[p->method].idle *
                      (l->n_ranks - 1); /* the idle share of its trial */
  out->guess =
      fmax(fmax(out->ns, whole), fmax(worst, n * mean_stage * l->n_stages / l->n_ranks + idle)) +
      (stale ? 0 : reduce);
  return OPIPE_OK;
}

opipe_status opi_point_bound(opi_space *s, const opi_point *p, opi_bounds *out) {
  const uint32_t n = p->places->n_ranks;
  measure m = {.space = s,
               .point = p,
               .n_ranks = opi_point_ranks(p),
               .first = opi_places_first_slice(p->places)};
  opi_point_slices(s, p, NULL, &m.sum, &m.first_ns);
  *out = (opi_bounds){.bytes = -INFINITY};
  rank_sum *sums = opi_alloc_zero(s->arena.allocator, n, sizeof *sums);
  if (sums == NULL)
    return opi_fail_nomem(s->err, n * sizeof *sums, "a planner");
  opipe_status status = add_stages(&m, sums);
  if (status == OPIPE_OK)
    status = bound_ranks(&m, sums, out);
  if (s->question->objective == OPI_AUTO_THROUGHPUT && !opi_space_trains(s)) {
    double busiest = 0;
    for (uint32_t r = 0; r < n; ++r)
      busiest = fmax(busiest, sums[r].forward * p->microbatches);
    out->guess = out->ns = busiest; /* the interval of a stream */
  } else if (s->question->objective == OPI_AUTO_MEMORY) {
    out->ns = out->guess = 0;
    for (uint32_t r = 0; r < n; ++r) {
      const double bytes = opi_point_fixed_bytes(s, p, sums[r].params) + sums[r].kept;
      const uint32_t device = opi_point_device(p, m.n_ranks, first_rank(p, r), 0, 0);
      out->ns = fmax(out->ns, s->question->nearest ? bytes - opi_space_own_cap(s, device) : bytes);
    }
    out->guess = out->ns;
  }
  opi_free(s->arena.allocator, sums, n * sizeof *sums);
  return status;
}

/* ---- all of them ---- */

/* True if no device has room for some layer, however it is cut and sharded. */
static bool is_too_large(const opi_space *s, const opi_sums *x) {
  const opi_planning *q = &s->question->planning;
  const opi_method_layout places = {.versions = OPIPE_VERSIONS_ONE};
  const opi_point least = {.places = &places,
                           .copies = q->n_devices / x->width,
                           .sharded = opi_auto_widens(s->question)};
  double cap = 0, most = 0;
  for (uint32_t i = 0; i < q->n_devices; ++i)
    cap = fmax(cap, s->caps[i]);
  for (uint32_t i = 0; i < q->layers->n_layers; ++i)
    most = fmax(most, opi_point_fixed_bytes(s, &least, x->params[i + 1] - x->params[i]));
  return most > cap * (1 + 1e-9);
}

/* Time for which ranks wait on sums over a tensor group, in all passes of a micro-batch. Counted
 * for devices inside a node that are at least as near to each other as to others; else 0. */
static opipe_status least_sums_ns(opi_space *s, const opi_sums *x, double *out_ns) {
  const opi_machine *m = &s->machine;
  const uint32_t last = s->question->planning.layers->n_layers;
  const double n = x->n_sums[last], inside = m->inside.sum_bytes_per_ns;
  const bool nearer =
      m->n_nodes == 1 ||
      (m->inside.sum_latency_ns <= m->across.sum_latency_ns &&
       (inside == 0 || (m->across.sum_bytes_per_ns > 0 && inside >= m->across.sum_bytes_per_ns)));
  uint32_t devices[OPI_WIDTHS_MOST];
  double one = 0;
  *out_ns = 0;
  if (x->width == 1 || n == 0 || !s->equal_devices || !s->equal_nodes || !nearer ||
      x->width > m->per_node || x->width > OPI_WIDTHS_MOST)
    return OPIPE_OK;
  for (uint32_t t = 0; t < x->width; ++t)
    devices[t] = t;
  double least = INFINITY; /* stages take the mean of their layers */
  for (uint32_t i = 0; i < last; ++i) {
    const double layer = x->n_sums[i + 1] - x->n_sums[i];
    if (layer > 0)
      least = fmin(least, (x->sum_bytes[i + 1] - x->sum_bytes[i]) / layer);
  }
  OPI_TRY(collective_ns(s, OPI_OP_ALL_REDUCE, devices, x->width, floor(least), &one));
  *out_ns = one * n * (opi_space_trains(s) ? 2 : 1);
  return OPIPE_OK;
}

double opi_space_bound(opi_space *s) {
  const opi_auto *q = s->question;
  const opi_cluster *c = q->planning.cluster;
  const uint32_t last = q->planning.layers->n_layers;
  double best = INFINITY;
  if (q->objective == OPI_AUTO_MEMORY)
    return 0;
  for (uint32_t i = 0; i < s->n_sums; ++i) {
    const opi_sums *at = &s->sums[i];
    double rate = 0; /* micro-batches per ns of all devices, by group */
    double group_ns = 0;
    if (is_too_large(s, at) || least_sums_ns(s, at, &group_ns) < 0)
      continue;
    for (uint32_t d = 0; d < q->planning.n_devices; ++d) {
      const opi_point point = {.samples = at->samples, .width = at->width};
      const opi_sums *x = opi_sums_of(s, &point, c->class_of[d]);
      const double ns = x == NULL
                            ? 0
                            : group_ns + x->forward[last] +
                                  (opi_space_trains(s) ? x->input[last] + x->weight[last] : 0);
      rate = ns > 0 ? rate + 1 / ns / at->width : INFINITY;
    }
    best = fmin(best, (double)q->planning.batch / at->samples / rate);
  }
  return isfinite(best) ? best : 0;
}
