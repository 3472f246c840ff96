/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates: numbers of ranks, copies, tensor ranks and rows of a micro-batch, under each
 * schedule; then the cut, and which device is which.
 *
 * Small questions get all candidates: every cut, replicas of every rank, every distinguishable
 * order of devices. Others get a few cuts of each shape (balanced, with and without stashes; equal
 * blocks), and the devices in given order and by speed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/study/auto/space.h"

enum { ALL_DEVICES_MOST = 6, ALL_LAYERS_MOST = 24, ALL_ORDERS_MOST = 1024, DEVICES_ALL = 16 };
enum { IDLE_MOST = 24 /* at most one device in so many may be idle */ };
/* Above RANKS_ALL ranks, if there are more than DEVICES_MANY devices, only numbers that divide
 * devices or blocks are taken. */
enum { RANKS_ALL = 16, DEVICES_MANY = 64 };

typedef struct orders {
  const uint32_t **at; /* [n] */
  uint32_t n, room, length;
} orders;

typedef struct shapes {
  opi_space *space;
  bool all;
  uint32_t n_layers, n_blocks;
  orders of[ALL_DEVICES_MOST + 1]; /* by number of devices; of[0]: chosen orders of all devices */
  uint32_t *samples;               /* [n_samples] */
  uint32_t n_samples, room_samples;
  uint32_t *ends; /* [n_layers + 1] scratch */
} shapes;

/* ---- orders of devices ---- */

/* True if the two have the same place in every tier, so that they can be exchanged. */
static bool interchangeable(const opi_space *s, uint32_t a, uint32_t b) {
  const opi_cluster *c = s->question->planning.cluster;
  bool same = c->class_of[a] == c->class_of[b] && s->caps[a] == s->caps[b] &&
              c->node_of[a] == c->node_of[b];
  for (uint32_t t = 0; t < c->n_tiers && same; ++t) {
    const opi_tier *tier = &c->tiers[t];
    same =
        tier->group_of[a] == tier->group_of[b] &&
        tier->port_bytes_per_ns[tier->member_of[a]] == tier->port_bytes_per_ns[tier->member_of[b]];
  }
  return same;
}

/* True if a plan cannot tell two orders apart: equal kinds of devices that meet in the same tiers.
 */
static bool same_order(const opi_space *s, const uint32_t *a, const uint32_t *b, uint32_t n) {
  const opi_cluster *c = s->question->planning.cluster;
  for (uint32_t i = 0; i < n; ++i) {
    if (c->class_of[a[i]] != c->class_of[b[i]] || s->caps[a[i]] != s->caps[b[i]])
      return false;
    for (uint32_t t = 0; t < c->n_tiers; ++t) {
      const opi_tier *tier = &c->tiers[t];
      if (tier->port_bytes_per_ns[tier->member_of[a[i]]] !=
          tier->port_bytes_per_ns[tier->member_of[b[i]]])
        return false;
      for (uint32_t k = 0; k < i; ++k) {
        if ((tier->group_of[a[i]] == tier->group_of[a[k]]) !=
                (tier->group_of[b[i]] == tier->group_of[b[k]]) ||
            (tier->member_of[a[i]] == tier->member_of[a[k]]) !=
                (tier->member_of[b[i]] == tier->member_of[b[k]]))
          return false;
      }
    }
  }
  return true;
}

static opipe_status keep_order(opi_space *s, orders *to, const uint32_t *order) {
  for (uint32_t i = 0; i < to->n; ++i) {
    if (same_order(s, to->at[i], order, to->length))
      return OPIPE_OK;
  }
  if (!opi_arena_grow(&s->arena, (void **)&to->at, &to->room, to->n + 1, sizeof *to->at))
    return opi_fail_nomem(s->err, to->n * sizeof *to->at, "a planner");
  uint32_t *own = opi_arena_copy(&s->arena, order, to->length * sizeof *order);
  if (own == NULL)
    return opi_fail_nomem(s->err, to->length * sizeof *order, "a planner");
  to->at[to->n++] = own;
  return OPIPE_OK;
}

/* Extends an order of `at` devices by each possible next one; depth at most 6. */
static opipe_status extend_order(opi_space *s, orders *to, uint32_t *order, uint32_t at,
                                 bool *taken) {
  if (at == to->length)
    return keep_order(s, to, order);
  for (uint32_t d = 0; d < s->question->planning.n_devices && to->n < ALL_ORDERS_MOST; ++d) {
    bool skip = taken[d];
    for (uint32_t e = 0; e < d && !skip; ++e)
      skip = !taken[e] && interchangeable(s, e, d);
    if (skip)
      continue;
    taken[d] = true;
    order[at] = d;
    OPI_TRY(extend_order(s, to, order, at + 1, taken));
    taken[d] = false;
  }
  return OPIPE_OK;
}

/* Time of all layers on each class of devices: times [n_classes]. */
static opipe_status time_classes(opi_space *s, double *times) {
  const opi_planning *q = &s->question->planning;
  for (uint32_t k = 0; k < q->cluster->n_classes; ++k) {
    uint32_t index = 0;
    OPI_TRY(opi_space_sums(s, k, q->samples, 1, &index));
    times[k] = s->sums[index].forward[q->layers->n_layers];
  }
  return OPIPE_OK;
}

/* The given order, and by speed in both directions. */
static opipe_status choose_orders(opi_space *s, orders *to) {
  const uint32_t n = s->question->planning.n_devices;
  uint32_t *sorted = opi_arena_copy(&s->arena, s->identity, n * sizeof *sorted);
  uint32_t *back = opi_arena_copy(&s->arena, s->identity, n * sizeof *back);
  const opi_cluster *c = s->question->planning.cluster;
  double *times = OPI_ARENA_ARRAY(&s->arena, double, c->n_classes);
  if (sorted == NULL || back == NULL || times == NULL)
    return opi_fail_nomem(s->err, n * sizeof *sorted, "a planner");
  OPI_TRY(keep_order(s, to, s->identity));
  if (s->equal_devices)
    return OPIPE_OK;
  OPI_TRY(time_classes(s, times));
  for (uint32_t i = 1; i < n; ++i) { /* stable */
    for (uint32_t k = i; k > 0 && times[c->class_of[sorted[k]]] < times[c->class_of[sorted[k - 1]]];
         --k) {
      const uint32_t swap = sorted[k];
      sorted[k] = sorted[k - 1];
      sorted[k - 1] = swap;
    }
  }
  for (uint32_t i = 0; i < n; ++i)
    back[i] = sorted[n - 1 - i];
  OPI_TRY(keep_order(s, to, sorted));
  return keep_order(s, to, back);
}

static opipe_status find_orders(shapes *x, uint32_t n_used, const orders **out) {
  uint32_t order[ALL_DEVICES_MOST];
  bool taken[ALL_DEVICES_MOST] = {false};
  orders *to = &x->of[x->all ? n_used : 0];
  *out = to;
  if (to->n > 0)
    return OPIPE_OK;
  to->length = x->all ? n_used : x->space->question->planning.n_devices;
  return x->all ? extend_order(x->space, to, order, 0, taken) : choose_orders(x->space, to);
}

/* ---- cuts ---- */

static opipe_status add_ends(shapes *x, opi_point *p, const uint32_t *ends) {
  const size_t n = (size_t)p->places->n_stages + 1;
  const opi_space *s = x->space;
  /* the cut is shared with the previous candidate if equal */
  const opi_point *last = s->n_points > 0 ? &s->points[s->n_points - 1] : NULL;
  if (last != NULL && last->places->n_stages == p->places->n_stages &&
      memcmp(last->ends, ends, n * sizeof *ends) == 0)
    p->ends = last->ends;
  else
    p->ends = opi_arena_copy(&x->space->arena, ends, n * sizeof *ends);
  if (p->ends == NULL)
    return opi_fail_nomem(s->err, n * sizeof *ends, "a planner");
  return opi_space_add(x->space, *p);
}

/* Advances to the next way to cut n_layers into n stages; false: that was the last. */
static bool next_cut(uint32_t *ends, uint32_t n, uint32_t n_layers) {
  for (uint32_t s = n; s-- > 1;) {
    if (ends[s] < n_layers - (n - s)) {
      ++ends[s];
      for (uint32_t k = s + 1; k < n; ++k)
        ends[k] = ends[k - 1] + 1;
      return true;
    }
  }
  return false;
}

static opipe_status add_cuts(shapes *x, opi_point *p) {
  const opi_space *s = x->space;
  const uint32_t n = p->places->n_stages;
  uint32_t *ends = x->ends;
  if (x->all) {
    for (uint32_t k = 0; k < n; ++k)
      ends[k] = k;
    ends[n] = x->n_layers;
    do {
      OPI_TRY(add_ends(x, p, ends));
    } while (!s->overflow && next_cut(ends, n, x->n_layers));
    return OPIPE_OK;
  }
  const uint32_t *cuts[3] = {NULL, NULL, ends};
  OPI_TRY(opi_cut_balanced(x->space, p, false, &cuts[0]));
  OPI_TRY(opi_cut_balanced(x->space, p, true, &cuts[1]));
  if (!opi_even_stages(s->question->planning.layers, n, ends))
    cuts[2] = NULL;
  for (uint32_t k = 0; k < 3; ++k) {
    bool again = cuts[k] == NULL;
    for (uint32_t i = 0; i < k && !again; ++i)
      again = cuts[i] != NULL && memcmp(cuts[i], cuts[k], (n + 1) * sizeof *ends) == 0;
    if (!again)
      OPI_TRY(add_ends(x, p, cuts[k]));
  }
  return OPIPE_OK;
}

/* ---- shapes ---- */

static opipe_status add_placed(shapes *x, opi_point *p) {
  const opi_space *s = x->space;
  const uint32_t n_ranks = opi_point_ranks(p);
  for (uint32_t k = 0; k < s->question->planning.cluster->n_classes; ++k) {
    uint32_t unused = 0;
    OPI_TRY(opi_space_sums(x->space, k, p->samples, p->width, &unused));
  }
  const orders *found = NULL;
  OPI_TRY(find_orders(x, n_ranks * p->copies * p->width, &found));
  const bool apart = !x->all && p->copies > 1 && n_ranks > 1 && s->machine.n_nodes != 1;
  for (uint32_t i = 0; i < found->n; ++i) {
    p->order = found->at[i];
    p->place = OPI_PLACE_TENSOR_PIPELINE_DATA;
    OPI_TRY(add_cuts(x, p));
    if (!apart)
      continue;
    p->place = OPI_PLACE_TENSOR_DATA_PIPELINE;
    OPI_TRY(add_cuts(x, p));
  }
  return OPIPE_OK;
}

/* Recomputation, sharding and scattering, each without and with. */
static opipe_status add_features(shapes *x, opi_point *p) {
  const opi_auto *q = x->space->question;
  const bool train = opi_space_trains(x->space);
  const bool shards = train && opi_auto_widens(q) && p->copies > 1 && p->shares == NULL &&
                      p->places->n_replicas == 1 && x->space->equal_devices;
  const bool scatters =
      (q->hypothetical || opi_auto_scatters(q)) && p->width > 1 && p->places->n_stages > 1;
  for (uint32_t k = 0; k < 8; ++k) {
    p->recompute = (k & 1) != 0;
    p->sharded = (k & 2) != 0;
    p->scattered = (k & 4) != 0;
    if ((p->recompute && (!train || q->fixed.recompute == OPI_RECOMPUTES_NEVER)) ||
        (!p->recompute && train && q->fixed.recompute == OPI_RECOMPUTES_ALWAYS) ||
        (p->sharded && !shards) || (p->scattered && !scatters) ||
        (!q->hypothetical && !opi_point_runs(q, p)) ||
        (!x->all && scatters && !p->scattered && x->space->machine.n_nodes != 1))
      continue;
    OPI_TRY(add_placed(x, p));
  }
  return OPIPE_OK;
}

/* Distributes all devices, or the requested number, over fewer ranks as evenly as possible;
 * refinement then moves replicas to where they help. */
static opipe_status add_even_shares(shapes *x, opi_point *p) {
  const opi_auto *q = x->space->question;
  const uint32_t n = p->places->n_ranks;
  const uint32_t wanted =
      q->fixed.n_ranks != 0 ? q->fixed.n_ranks : q->planning.n_devices / p->width;
  const uint32_t most = n == 0 ? 0 : (wanted + n - 1) / n;
  if (wanted <= n || most > opi_point_rows(x->space, p))
    return OPIPE_OK;
  uint32_t *shares = OPI_ARENA_ARRAY(&x->space->arena, uint32_t, n);
  if (shares == NULL)
    return opi_fail_nomem(x->space->err, n * sizeof *shares, "a planner");
  for (uint32_t r = 0; r < n; ++r)
    shares[r] = wanted / n + (r < wanted % n);
  p->shares = shares;
  return add_features(x, p);
}

/* Tries every distribution of devices as replicas that divide micro-batches. */
static opipe_status add_shares(shapes *x, opi_point *p) {
  const opi_space *s = x->space;
  const uint32_t n = p->places->n_ranks, most = s->question->planning.n_devices / p->width;
  const uint32_t rows = opi_point_rows(s, p);
  uint32_t shares[ALL_DEVICES_MOST], used = n;
  if (!opi_space_trains(s) || p->copies != 1 || p->places->n_replicas != 1 ||
      p->places->n_slices != 1 || n > most)
    return OPIPE_OK;
  if (!x->all)
    return add_even_shares(x, p);
  for (uint32_t r = 0; r < n; ++r)
    shares[r] = 1;
  for (;;) {
    uint32_t r = 0;
    while (r < n && (used == most || shares[r] == rows)) { /* counts up, the first digit fastest */
      used -= shares[r] - 1;
      shares[r++] = 1;
    }
    if (r == n)
      return OPIPE_OK;
    ++shares[r];
    ++used;
    if (s->question->fixed.n_ranks != 0 && used != s->question->fixed.n_ranks)
      continue;
    p->shares = opi_arena_copy(&x->space->arena, shares, n * sizeof *shares);
    if (p->shares == NULL)
      return opi_fail_nomem(s->err, n * sizeof *shares, "a planner");
    OPI_TRY(add_features(x, p));
    if (s->overflow)
      return OPIPE_OK;
  }
}

/* The next number to try: all, or 1, 2, 3, 4, 6, 8, 12, 16 ... */
static uint32_t next_samples(const shapes *x, uint32_t b) {
  return x->all || b < 4 ? b + 1 : (b & (b - 1)) == 0 ? b + b / 2 : b + b / 3;
}

/* Rows of a micro-batch: the ways to split a copy's share of the mini-batch. */
static opipe_status find_samples(shapes *x, uint32_t copies) {
  const opi_space *s = x->space;
  const uint32_t share = (uint32_t)((s->question->planning.batch + copies - 1) / copies);
  const uint32_t wanted = s->question->fixed.microbatches;
  x->n_samples = 0;
  for (uint32_t b = 1; b <= share; b = next_samples(x, b)) {
    const uint32_t n = (share + b - 1) / b, even = (share + n - 1) / n;
    if (wanted != 0 && (wanted % copies != 0 || wanted / copies > share))
      break;
    const uint32_t rows = wanted != 0 ? (share + wanted / copies - 1) / (wanted / copies) : even;
    if (x->n_samples > 0 && x->samples[x->n_samples - 1] >= rows)
      continue;
    if (!opi_arena_grow(&x->space->arena, (void **)&x->samples, &x->room_samples, x->n_samples + 1,
                        sizeof *x->samples))
      return opi_fail_nomem(s->err, x->n_samples * sizeof *x->samples, "a planner");
    x->samples[x->n_samples++] = rows;
  }
  return OPIPE_OK;
}

/* True if several stages run in sequence on one rank with no backward behind which reductions could
 * hide: equivalent to a single stage, which is a candidate too. */
static bool is_one_stage(const shapes *x, const opi_method_layout *places) {
  const opi_auto *q = x->space->question;
  return !opi_space_trains(x->space) && places->n_ranks == 1 && places->n_stages > 1 &&
         q->fixed.schedule == NULL && q->fixed.n_stages == 0;
}

static opipe_status add_shape(shapes *x, uint32_t method, uint32_t ranks, uint32_t width,
                              uint32_t copies) {
  const opi_auto *q = x->space->question;
  const uint32_t share = (uint32_t)((q->planning.batch + copies - 1) / copies);
  OPI_TRY(find_samples(x, copies));
  for (uint32_t i = 0; i < x->n_samples && !x->space->overflow; ++i) {
    opi_point p = {.method = method,
                   .width = width,
                   .copies = copies,
                   .samples = x->samples[i],
                   .microbatches = (share + x->samples[i] - 1) / x->samples[i]};
    if (q->fixed.microbatches != 0)
      p.microbatches = q->fixed.microbatches / copies;
    OPI_TRY(opi_space_lay_out(x->space, method, ranks, 0, p.microbatches, &p.places));
    if (p.places == NULL || p.places->n_stages > x->n_layers || is_one_stage(x, p.places) ||
        (q->fixed.n_stages != 0 && p.places->n_stages != q->fixed.n_stages) ||
        p.places->n_parts > opi_point_rows(x->space, &p)) {
      ++x->space->n_refused;
      continue;
    }
    if (q->fixed.n_ranks == 0 || p.places->n_ranks * copies == q->fixed.n_ranks)
      OPI_TRY(add_features(x, &p));
    OPI_TRY(add_shares(x, &p));
  }
  return OPIPE_OK;
}

/* ---- how many of each ---- */

/* Numbers of copies of `ranks * width` devices: all; or as many as fit, and the most that divide
 * the mini-batch; only divisors of a given number of micro-batches. */
static opipe_status add_copies(shapes *x, uint32_t method, uint32_t ranks, uint32_t width) {
  const opi_auto *q = x->space->question;
  const uint32_t room = q->planning.n_devices / (ranks * width);
  const uint32_t given = q->fixed.microbatches;
  uint32_t most = room < q->planning.batch ? room : (uint32_t)q->planning.batch;
  while (given != 0 && most > 1 && given % most != 0)
    --most;
  uint32_t even = most;
  while (even > 1 && (q->planning.batch % even != 0 || (given != 0 && given % even != 0)))
    --even;
  for (uint32_t copies = 1; copies <= most && !x->space->overflow; ++copies) {
    const uint32_t wanted = q->fixed.n_ranks != 0 && q->fixed.pipelines == 0
                                ? (q->fixed.n_ranks % ranks != 0 ? 1 : q->fixed.n_ranks / ranks)
                                : q->fixed.pipelines;
    if (wanted != 0
            ? copies != wanted
            : !x->all && copies != most && copies != even && q->objective != OPI_AUTO_MEMORY)
      continue;
    if (!x->all && wanted == 0 && q->objective == OPI_AUTO_MEMORY && copies != most &&
        copies != even && copies != 1)
      continue;
    OPI_TRY(add_shape(x, method, ranks, width, copies));
  }
  return OPIPE_OK;
}

static bool takes_ranks(const shapes *x, uint32_t ranks, uint32_t width) {
  const opi_auto *q = x->space->question;
  const uint32_t n = q->planning.n_devices / width;
  if (q->fixed.n_ranks != 0 && (q->fixed.n_ranks < ranks || q->fixed.n_ranks % ranks != 0))
    return opi_space_trains(x->space) && ranks < q->fixed.n_ranks; /* with replicas of some ranks */
  if (q->fixed.n_ranks != 0)
    return true;
  if (n > DEVICES_MANY && ranks > RANKS_ALL && n % ranks != 0 && x->n_blocks % ranks != 0)
    return false;
  return x->all || n <= DEVICES_ALL || n % ranks <= n / IDLE_MOST;
}

/* True if the weights and their state can fit on that many ranks at all, however layers are cut. */
static bool has_room(const shapes *x, uint32_t ranks, uint32_t width) {
  const opi_space *s = x->space;
  const opi_auto *q = s->question;
  const opi_method_layout places = {.versions = OPIPE_VERSIONS_ONE};
  const opi_point least = {.places = &places,
                           .copies = q->planning.n_devices / (ranks * width),
                           .sharded = opi_auto_widens(q)};
  double params = 0, cap = 0;
  for (uint32_t i = 0; i < x->n_layers; ++i) {
    const opi_layer l = opi_layers_at(q->planning.layers, i, 1);
    params += (double)l.param_bytes / (l.width_share > 0 ? width : 1);
  }
  for (uint32_t i = 0; i < q->planning.n_devices; ++i)
    cap = fmax(cap, s->caps[i]);
  return opi_point_fixed_bytes(s, &least, params) <= cap * ranks * (1 + 1e-9);
}

static bool takes_width(const shapes *x, uint32_t width) {
  const opi_auto *q = x->space->question;
  if (q->fixed.width != 0)
    return width == q->fixed.width && (width == 1 || opi_auto_widens(q));
  const uint32_t node = x->space->equal_nodes ? x->space->machine.per_node : OPI_WIDTHS_MOST;
  const bool splits = q->planning.layers->at[0].width_share > 0 ||
                      q->planning.layers->at[x->n_layers / 2].width_share > 0;
  return width == 1 || (opi_auto_widens(q) && splits &&
                        (x->all || (node % width == 0 && (width & (width - 1)) == 0)));
}

static bool takes_method(const shapes *x, uint32_t method) {
  const opi_method *m = &x->space->methods[method];
  return m->why == NULL && !m->named && (x->all || !m->minor);
}

static opipe_status add_ranks(shapes *x, uint32_t method, uint32_t width) {
  const opi_auto *q = x->space->question;
  for (uint32_t ranks = 1; ranks <= q->planning.n_devices / width && ranks <= x->n_layers;
       ++ranks) {
    if (x->space->n_points > 0 && opi_space_spent(x->space, 0.5))
      x->space->hurried = true;
    if (x->space->overflow || x->space->hurried)
      return OPIPE_OK;
    if (!takes_ranks(x, ranks, width))
      continue;
    if (has_room(x, ranks, width))
      OPI_TRY(add_copies(x, method, ranks, width));
    else
      ++x->space->n_refused;
  }
  return OPIPE_OK;
}

static opipe_status add_all(shapes *x) {
  const opi_auto *q = x->space->question;
  const uint32_t before = x->space->n_points;
  const uint32_t widest =
      q->planning.n_devices < OPI_WIDTHS_MOST ? q->planning.n_devices : OPI_WIDTHS_MOST;
  uint32_t n_usable = 0, n_widths = 0, nth = 0;
  for (uint32_t m = 0; m < x->space->n_methods; ++m)
    n_usable += takes_method(x, m);
  for (uint32_t width = 1; width <= widest; ++width)
    n_widths += takes_width(x, width);
  for (uint32_t i = 0; i < x->space->n_methods * widest; ++i) {
    const uint32_t m = i / widest, width = i % widest + 1;
    if (!takes_method(x, m) || !takes_width(x, width))
      continue;
    if (x->all && x->space->overflow)
      return OPIPE_OK;
    if (!x->all) { /* each gets its share of the room and whatever its predecessors left */
      x->space->overflow = false;
      x->space->points_most =
          before + (uint32_t)((uint64_t)(OPI_POINTS_MOST - before) * ++nth / (n_usable * n_widths));
    }
    OPI_TRY(add_ranks(x, m, width));
  }
  return OPIPE_OK;
}

opipe_status opi_shapes_all(opi_space *s) {
  shapes x = {.space = s, .n_layers = s->question->planning.layers->n_layers};
  x.ends = OPI_ARENA_ARRAY(&s->arena, uint32_t, (size_t)x.n_layers + 1);
  if (x.ends == NULL)
    return opi_fail_nomem(s->err, x.n_layers * sizeof(uint32_t), "a planner");
  uint32_t first = 0, end = 0;
  opi_layers_blocks(s->question->planning.layers, &first, &end);
  x.n_blocks = end - first;
  const uint32_t n_named = s->n_points; /* the papers' plans */
  x.all = s->question->planning.n_devices <= ALL_DEVICES_MOST && x.n_layers <= ALL_LAYERS_MOST;
  OPI_TRY(add_all(&x));
  s->complete = x.all && !s->overflow && !s->hurried;
  if (!x.all || !s->overflow)
    return OPIPE_OK;
  x.all = false; /* too many: use chosen ones */
  x.of[0] = (orders){.n = 0};
  s->n_points = n_named;
  s->n_refused = 0;
  s->overflow = false;
  return add_all(&x);
}
