/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of the papers' planners, as candidates. */
#include <stdio.h>
#include <string.h>

#include "partition/schedule/compute_order.h"
#include "partition/study/auto/space.h"

/* Limit on the steps of a planner. */
static const double STEPS_MOST = 1 << 26;

/* ---- which method ---- */

/* The usable method with that spec; OPIPE_NONE: there is none. */
static uint32_t find_method(const opi_space *s, const char *spec) {
  for (uint32_t i = 0; i < s->n_methods; ++i) {
    if (s->methods[i].why == NULL && strcmp(s->methods[i].spec, spec) == 0)
      return i;
  }
  return OPIPE_NONE;
}

/* The same, except that options at their defaults are ignored: "x:key=value" matches plain x. */
static uint32_t find_preset(const opi_space *s, const char *spec) {
  char id[128];
  const uint32_t exact = find_method(s, spec);
  const char *colon = strchr(spec, ':');
  if (exact != OPIPE_NONE || colon == NULL)
    return exact;
  (void)snprintf(id, sizeof id, "%.*s", (int)(colon - spec), spec);
  const char *equals = strchr(colon, '=');
  const opipe_schedule_option *options = NULL;
  uint32_t n = 0;
  opi_schedule_ref ref;
  opipe_error err = OPIPE_ERROR_INIT;
  if (equals == NULL || strchr(colon, ',') != NULL ||
      s->plugins.schedule((void *)(uintptr_t)s, id, &ref, &err) < 0 ||
      opi_schedule_options(&ref, &options, &n, &err) < 0)
    return OPIPE_NONE;
  for (uint32_t i = 0; i < n; ++i) {
    const size_t length = (size_t)(equals - colon - 1);
    if (strncmp(options[i].key, colon + 1, length) == 0 && options[i].key[length] == '\0' &&
        options[i].preset != NULL && strcmp(options[i].preset, equals + 1) == 0)
      return find_method(s, id);
  }
  return OPIPE_NONE;
}

/* ---- a strategy as a point ---- */

static opipe_status check_order(const opi_space *s, const uint32_t *order, uint32_t n,
                                opi_point *io_point) {
  const uint32_t n_devices = s->question->planning.n_devices;
  for (uint32_t i = 0; i < n; ++i) {
    if (order[i] >= n_devices)
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "device %u of %u", order[i], n_devices);
  }
  io_point->order = order;
  return OPIPE_OK;
}

/* Lists the devices of the first pipeline by rank of the layout. Every further pipeline is offset
 * from the one before by the length of one. */
static opipe_status order_devices(opi_space *s, const opi_strategy *from, opi_point *p,
                                  uint32_t by_copies) {
  const opi_method_layout *l = p->places;
  const uint32_t n = opi_point_ranks(p), t = p->width, total = n * p->copies * t;
  const uint32_t n_devices = s->question->planning.n_devices;
  uint32_t *order = OPI_ARENA_ARRAY(&s->arena, uint32_t, total);
  if (order == NULL)
    return opi_fail_nomem(s->err, total * sizeof *order, "a planner");
  if (total > n_devices) {
    return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "it has %u devices, there are %u", total,
                    n_devices);
  }
  if (from->rank_devices != NULL) {
    if (from->n_ranks != n) {
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "it has %u ranks, its schedule lays out %u",
                      from->n_ranks, n);
    }
    memcpy(order, from->rank_devices, total * sizeof *order);
    return check_order(s, order, total, p);
  }
  for (uint32_t i = 0; i < l->n_stages * l->n_replicas; ++i) {
    const uint32_t stage = i / l->n_replicas, replica = i % l->n_replicas;
    const opi_strategy_stage *x = &from->stages[stage];
    const uint32_t rank = l->instance_rank[i];
    uint32_t first = p->shares == NULL ? rank : 0;
    for (uint32_t r = 0; p->shares != NULL && r < rank; ++r)
      first += p->shares[r];
    const uint32_t here = p->shares != NULL ? p->shares[rank] : 1;
    for (uint32_t c = 0; c < by_copies; ++c) {
      for (uint32_t k = 0; k < here * t; ++k) {
        const uint32_t at = by_copies > 1 ? c * t + k : replica * t + k;
        if (at >= x->n_devices) {
          return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "stage %u has %u devices", stage,
                          x->n_devices);
        }
        order[(c * n + first) * t + k] = x->devices[at];
      }
    }
  }
  for (uint32_t i = n * t * by_copies; i < total; ++i)
    order[i] = order[i - n * t * by_copies] + n * t * by_copies;
  return check_order(s, order, total, p);
}

static opipe_status take_ends(opi_space *s, const opi_strategy *from, opi_point *p) {
  uint32_t *ends = OPI_ARENA_ARRAY(&s->arena, uint32_t, (size_t)from->n_stages + 1);
  if (ends == NULL)
    return opi_fail_nomem(s->err, from->n_stages * sizeof *ends, "a planner");
  for (uint32_t k = 0; k < from->n_stages; ++k)
    ends[k + 1] = from->stages[k].end;
  p->ends = ends;
  return OPIPE_OK;
}

/* Takes each rank's number of replicas beside the tensor group, if stages have any. */
static opipe_status take_shares(opi_space *s, const opi_strategy *from, opi_point *p) {
  const opi_method_layout *l = p->places;
  uint32_t *shares = OPI_ARENA_ARRAY(&s->arena, uint32_t, l->n_ranks);
  bool any = false;
  if (shares == NULL)
    return opi_fail_nomem(s->err, l->n_ranks * sizeof *shares, "a planner");
  for (uint32_t k = 0; k < l->n_stages && l->n_replicas == 1; ++k) {
    shares[l->instance_rank[k]] = from->stages[k].n_devices / p->width;
    any = any || from->stages[k].n_devices > p->width;
  }
  p->shares = any ? shares : NULL;
  return OPIPE_OK;
}

static opipe_status make_point(opi_space *s, const opi_strategy *from, uint32_t method,
                               bool by_copies, opi_point *out) {
  const uint32_t width = from->width == 0 ? 1 : from->width;
  uint32_t alike = from->stages[0].n_devices / width;
  for (uint32_t k = 0; k < from->n_stages; ++k) {
    if (from->stages[k].n_devices != alike * width)
      alike = 1;
  }
  opi_point p = {
      .method = method, .width = width, .copies = from->pipelines, .origin = from->planner};
  p.recompute = from->recompute && opi_space_trains(s);
  p.sharded = from->sharded;
  p.scattered = from->scattered;
  p.place = OPI_PLACE_TENSOR_PIPELINE_DATA;
  p.microbatches = from->microbatches;
  if (by_copies) {
    p.copies *= alike;
    p.microbatches = (p.microbatches + alike - 1) / alike;
  }
  const uint64_t share = (s->question->planning.batch + p.copies - 1) / p.copies;
  if (width > OPI_WIDTHS_MOST || p.microbatches == 0 || opi_point_rows(s, &p) == 0) {
    return opi_fail(s->err, OPIPE_E_UNSUPPORTED,
                    "width %u, %u micro-batches in each of %u copies for %llu samples", width,
                    p.microbatches, p.copies, (unsigned long long)s->question->planning.batch);
  }
  p.samples = (uint32_t)((share + p.microbatches - 1) / p.microbatches);
  OPI_TRY(opi_space_lay_out(s, method, 0, from->n_stages, p.microbatches, &p.places));
  if (p.places == NULL || p.places->n_stages != from->n_stages ||
      p.places->n_ranks > s->question->planning.n_devices) {
    return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "schedule '%s': %s", s->methods[method].spec,
                    s->why);
  }
  if (!by_copies)
    OPI_TRY(take_shares(s, from, &p));
  OPI_TRY(take_ends(s, from, &p));
  for (uint32_t r = 0; p.shares != NULL && r < p.places->n_ranks; ++r) {
    if (p.shares[r] > p.samples || p.shares[r] == 0) {
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "%u replicas cut %u samples", p.shares[r],
                      p.samples);
    }
  }
  OPI_TRY(order_devices(s, from, &p, by_copies ? alike : 1));
  for (uint32_t k = 0; k < s->question->planning.cluster->n_classes; ++k) {
    uint32_t unused = 0;
    OPI_TRY(opi_space_sums(s, k, p.samples, p.width, &unused));
  }
  *out = p;
  return OPIPE_OK;
}

opipe_status opi_point_of_strategy(opi_space *s, const opi_strategy *strategy, bool by_copies,
                                   opi_point *out_point) {
  const uint32_t method = find_preset(s, strategy->schedule);
  if (method == OPIPE_NONE) {
    return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "schedule '%s' is not among those to choose from",
                    strategy->schedule);
  }
  return make_point(s, strategy, method, by_copies, out_point);
}

/* ---- all of them ---- */

/* Checks restrictions that depend on the question. */
static bool allowed(const opi_space *s, const opi_point *p) {
  const opi_auto *q = s->question;
  const opi_auto_fixed *f = &q->fixed;
  uint32_t parts = p->places->n_parts;
  for (uint32_t r = 0; p->shares != NULL && r < p->places->n_ranks; ++r)
    parts = p->shares[r] > parts ? p->shares[r] : parts;
  if (p->shares != NULL && p->copies > 1 && !q->hypothetical)
    return false; /* no session executes that */
  return parts <= opi_point_rows(s, p) && (q->hypothetical || opi_point_runs(q, p)) &&
         (f->width == 0 || f->width == p->width) &&
         (f->n_stages == 0 || f->n_stages == p->places->n_stages) &&
         (f->n_ranks == 0 || f->n_ranks == opi_point_ranks(p) * p->copies) &&
         (f->pipelines == 0 || f->pipelines == p->copies) &&
         (f->microbatches == 0 || f->microbatches == p->microbatches * p->copies) &&
         (f->recompute == OPI_RECOMPUTES_FREE ||
          (f->recompute == OPI_RECOMPUTES_ALWAYS) == p->recompute);
}

/* The number of replicas if all stages have the same; 0 otherwise. */
static uint32_t replicas_alike(const opi_strategy *s) {
  const uint32_t n = s->stages[0].n_devices;
  for (uint32_t k = 1; k < s->n_stages; ++k) {
    if (s->stages[k].n_devices != n)
      return 0;
  }
  return n / (s->width == 0 ? 1 : s->width);
}

/* Adds the strategy with replicas that divide micro-batches and with copies instead; many equal
 * replicas only as copies. */
static opipe_status add_under(opi_space *s, const opi_strategy *strategy, uint32_t method) {
  enum { CUTTING_MOST = 16 };
  for (uint32_t by_copies = replicas_alike(strategy) > CUTTING_MOST; by_copies < 2; ++by_copies) {
    opi_point point;
    const opipe_status status = make_point(s, strategy, method, by_copies == 1, &point);
    if (status == OPIPE_E_NOMEM)
      return status;
    if (status == OPIPE_OK && allowed(s, &point))
      OPI_TRY(opi_space_add(s, point));
  }
  return OPIPE_OK;
}

/* Adds the strategy under its own schedule or, if that is not available, under all with one stage
 * per rank. */
static opipe_status add_strategy(opi_space *s, const opi_strategy *strategy) {
  const uint32_t own = find_preset(s, strategy->schedule);
  for (uint32_t m = 0; m < s->n_methods; ++m) {
    if (own == OPIPE_NONE ? s->methods[m].why != NULL || s->methods[m].chunks != 1 : m != own)
      continue;
    OPI_TRY(add_under(s, strategy, m));
  }
  return OPIPE_OK;
}

/* Rough number of a planner's steps, where it can explode: cuts times devices taken from every node
 * (DAPPLE); cuts of every range of layers (PipeDream). */
static double steps_of(const opi_space *s, const char *planner) {
  const double layers = s->question->planning.layers->n_layers;
  const double node = s->machine.per_node, nodes = s->machine.n_nodes;
  if (strcmp(planner, "pipedream") == 0)
    return layers * layers * layers * (node * node + nodes * nodes) / 12;
  if (strcmp(planner, "dapple") != 0)
    return 0;
  double placements = 1; /* how full the nodes are, regardless of which is which */
  for (uint32_t i = 1; i <= s->machine.per_node; ++i)
    placements *= (nodes + i) / i;
  return placements * placements + placements * layers * layers;
}

/* True if the spec's schedule may be chosen; if a schedule was given, only that one. */
static bool is_offered(const opi_space *s, const char *spec) {
  const char *given = s->question->fixed.schedule;
  const size_t length = strcspn(spec, ":");
  char id[128];
  opi_schedule_ref ref;
  opipe_error unused = OPIPE_ERROR_INIT;
  if (given != NULL && (strcspn(given, ":") != length || memcmp(given, spec, length) != 0))
    return false;
  (void)snprintf(id, sizeof id, "%.*s", (int)length, spec);
  return s->plugins.schedule((void *)(uintptr_t)s, id, &ref, &unused) == OPIPE_OK;
}

/* True if lengths of token slices may be chosen; not if the given schedule states them. */
static bool cuts_tokens(const opi_space *s) {
  const opi_auto *q = s->question;
  return q->causal && s->curves != NULL &&
         (q->fixed.schedule == NULL || strchr(q->fixed.schedule, ':') == NULL);
}

/* For a planner that chooses lengths: adds a method for each of its answers. */
static opipe_status add_slicings(opi_space *s, opi_ranked_fn slicings) {
  enum { SLICINGS_MOST = 8 };
  opi_strategy *found[SLICINGS_MOST];
  uint32_t n = 0;
  opipe_status status = slicings(&s->question->planning, SLICINGS_MOST, found, &n, s->err);
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t method = OPIPE_NONE;
    if (status == OPIPE_OK && is_offered(s, found[i]->schedule))
      status = opi_method_add(s, found[i]->schedule, &method);
    if (status == OPIPE_OK && method != OPIPE_NONE)
      status = add_under(s, found[i], method);
    opi_strategy_free(found[i]);
  }
  return status;
}

/* Adds the planner's best answer, for training. */
static opipe_status add_best(opi_space *s, const char *name) {
  const opi_planner_fn plan = opi_planner_find(name);
  opi_strategy *strategy = NULL;
  if (!opi_space_trains(s) || plan == NULL || steps_of(s, name) > STEPS_MOST)
    return OPIPE_OK;
  OPI_TRY(plan(&s->question->planning, &strategy, s->err));
  const opipe_status status = add_strategy(s, strategy);
  opi_strategy_free(strategy);
  return status;
}

opipe_status opi_named_add(opi_space *s) {
  opipe_error *err = s->err, unused = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  if (!s->equal_nodes)
    return OPIPE_OK;
  s->err = &unused; /* a planner without an answer is no error */
  for (const char *at = opi_planner_names(); *at != '\0' && status != OPIPE_E_NOMEM;) {
    char name[64];
    const size_t n = strcspn(at, ",");
    (void)snprintf(name, sizeof name, "%.*s", (int)n, at);
    const opi_ranked_fn slicings = cuts_tokens(s) ? opi_planner_slicings(name) : NULL;
    status = slicings != NULL ? add_slicings(s, slicings) : add_best(s, name);
    at += n + strspn(at + n, ", ");
  }
  s->err = err;
  return status == OPIPE_E_NOMEM ? opi_fail_nomem(err, 1, "a planner") : OPIPE_OK;
}
