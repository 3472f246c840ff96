/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the question and builds everything that candidates share. */
#include "partition/study/auto/space.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "partition/schedule/compute_order.h"

enum { BATCH_MOST = 1 << 24 };

/* ---- the question ---- */

static opipe_status check_question(const opi_auto *q, opipe_error *err) {
  const opi_planning *p = &q->planning;
  if (p->batch == 0 || p->batch > BATCH_MOST) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "planner 'auto': a %s of %" PRIu64 " samples; it must have 1 to %d",
                    q->mode == OPIPE_MODE_TRAIN ? "mini-batch" : "request", p->batch, BATCH_MOST);
  }
  if (p->n_devices > p->cluster->n_devices) {
    return opi_fail(err, OPIPE_E_INVALID, "planner 'auto': %u devices of a cluster of %u",
                    p->n_devices, p->cluster->n_devices);
  }
  if (q->objective >= OPI_AUTO_OBJECTIVES || q->mode > OPIPE_MODE_TRAIN) {
    return opi_fail(err, OPIPE_E_INVALID, "planner 'auto': objective %u of %d, mode %u of 2",
                    q->objective, OPI_AUTO_OBJECTIVES, q->mode);
  }
  if (q->objective == OPI_AUTO_LATENCY && q->mode == OPIPE_MODE_TRAIN) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "planner 'auto': objective 'latency' is of requests; training has 'step', "
                    "'throughput', 'memory'");
  }
  if (!(p->state_bytes >= 0) || !(q->limit_ns >= 0) || !(q->budget_s >= 0) || !(q->slice_ns >= 0)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "planner 'auto': %g bytes of state per byte of parameters, a limit of %g ns, a "
                    "budget of %g s, %g ns for a slice: below 0",
                    p->state_bytes, q->limit_ns, q->budget_s, q->slice_ns);
  }
  if (q->budget_s > 0 && q->now_ns == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "planner 'auto': a time budget without a clock");
  if (q->n_schedules == 0 || q->plugins == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "planner 'auto': there is no schedule to choose from");
  if (p->layers->whole != NULL && (q->fixed.microbatches > 1 || q->fixed.pipelines > 1)) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "planner 'auto': %u micro-batches and %u copies of the pipeline (0: not given), "
        "but the batch must be one micro-batch: %s",
        q->fixed.microbatches, q->fixed.pipelines, p->layers->whole);
  }
  for (uint32_t k = 0; q->class_layers != NULL && k < p->cluster->n_classes; ++k) {
    const uint32_t n = q->class_layers[k]->n_layers;
    if (n != p->layers->n_layers) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "planner 'auto': device class %u has times of %u layers, the model %u", k, n,
                      p->layers->n_layers);
    }
  }
  return OPIPE_OK;
}

static void fill_question(opi_space *s) {
  opi_auto *q = &s->own;
  opi_planning *p = &q->planning;
  p->n_devices = p->n_devices == 0 ? p->cluster->n_devices : p->n_devices;
  p->judged = true; /* the papers' answers are played */
  p->samples = p->samples == 0 ? p->layers->samples[0] : p->samples;
  p->samples = p->samples > p->batch ? (uint32_t)p->batch : p->samples;
  p->state_bytes = p->state_bytes == 0 ? 4 : p->state_bytes;
  q->dtype = q->dtype == 0 ? OPIPE_FLOAT : q->dtype;
  q->n_threads = q->n_threads == 0 ? 1 : q->n_threads;
  q->fixed.microbatches = p->layers->whole != NULL ? 1 : q->fixed.microbatches;
  if (q->mode == OPIPE_MODE_FORWARD && q->objective == OPI_AUTO_STEP)
    q->objective = OPI_AUTO_LATENCY;
}

/* True if a plan cannot tell the two devices apart except by position. */
static bool alike(const opi_space *s, uint32_t a, uint32_t b) {
  return s->own.planning.cluster->class_of[a] == s->own.planning.cluster->class_of[b] &&
         s->caps[a] == s->caps[b];
}

static opipe_status look_at_devices(opi_space *s) {
  const opi_cluster *c = s->own.planning.cluster;
  const uint32_t n = s->own.planning.n_devices;
  uint32_t *identity = OPI_ARENA_ARRAY(&s->arena, uint32_t, n);
  s->caps = OPI_ARENA_ARRAY(&s->arena, double, n);
  if (identity == NULL || s->caps == NULL)
    return opi_fail_nomem(s->err, n * sizeof(double), "a planner");
  s->identity = identity;
  s->equal_devices = true;
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t own = c->descriptions[i].memory_bytes, given = s->own.memory_bytes;
    const uint64_t cap = own == 0 || (given != 0 && given < own) ? given : own;
    identity[i] = i;
    s->caps[i] = cap == 0 || s->own.uncapped ? INFINITY : (double)cap - (double)s->own.spare_bytes;
    s->equal_devices = s->equal_devices && alike(s, i, 0);
  }
  opi_planning planning = s->own.planning;
  opipe_error unused = OPIPE_ERROR_INIT;
  s->equal_nodes = opi_planning_check("auto", &planning, &s->machine, &unused) == OPIPE_OK;
  s->machine.n_devices = n;
  return OPIPE_OK;
}

/* ---- schedules, looked up once ---- */

static opipe_status find_ref(void *ctx, const char *name, opi_schedule_ref *out_ref,
                             opipe_error *err) {
  const opi_space *s = ctx;
  const char *id = opi_schedule_plugin(name);
  for (uint32_t i = 0; i < s->n_refs; ++i) {
    if (strcmp(s->refs[i].id, id) == 0) {
      *out_ref = s->refs[i];
      return OPIPE_OK;
    }
  }
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "schedule '%s' is not among those to choose from", id);
}

static opipe_status find_schedules(opi_space *s) {
  const opi_auto *q = &s->own;
  s->refs = OPI_ARENA_ARRAY(&s->arena, opi_schedule_ref, q->n_schedules + 1);
  if (s->refs == NULL)
    return opi_fail_nomem(s->err, q->n_schedules * sizeof *s->refs, "a planner");
  for (uint32_t i = 0; i <= q->n_schedules; ++i) {
    const char *spec = i < q->n_schedules ? q->schedules[i] : q->fixed.schedule;
    opi_schedule_ref ref;
    if (spec == NULL)
      continue;
    char *id = opi_arena_strndup(&s->arena, spec, strcspn(spec, ":"));
    if (id == NULL)
      return opi_fail_nomem(s->err, strlen(spec), "a planner");
    if (find_ref(s, id, &ref, s->err) == OPIPE_OK)
      continue;
    OPI_TRY(q->plugins->schedule(q->plugins->ctx, opi_schedule_plugin(id), &ref, s->err));
    ref.id = opi_schedule_plugin(id);
    s->refs[s->n_refs++] = ref;
  }
  s->plugins = (opi_plugins){.ctx = s, .schedule = find_ref};
  return OPIPE_OK;
}

opipe_status opi_space_open(const opi_auto *question, opi_space *out, opipe_error *err) {
  *out = (opi_space){.own = *question, .points_most = OPI_POINTS_MOST, .err = err};
  out->question = &out->own;
  out->began_ns = question->budget_s > 0 && question->now_ns != NULL ? question->now_ns() : 0;
  opi_arena_init(&out->arena, question->planning.allocator, 0);
  opipe_status status = check_question(question, err);
  if (status == OPIPE_OK) {
    fill_question(out);
    status = look_at_devices(out);
  }
  if (status == OPIPE_OK)
    status = opi_slices_know(out);
  if (status == OPIPE_OK)
    status = find_schedules(out);
  if (status < 0)
    opi_space_close(out);
  return status;
}

bool opi_space_spent(const opi_space *s, double share) {
  const opi_auto *q = s->question;
  return q->budget_s > 0 && (double)(q->now_ns() - s->began_ns) * 1e-9 >= q->budget_s * share;
}

void opi_space_close(opi_space *space) {
  opi_arena_release(&space->arena);
}

/* ---- sums ---- */

static const opi_layers *layers_of(const opi_space *s, uint32_t class_, double *out_factor) {
  const opi_auto *q = s->question;
  const opi_cluster *c = q->planning.cluster;
  *out_factor = 1;
  if (q->class_layers != NULL)
    return q->class_layers[class_];
  uint32_t first = 0;
  while (first + 1 < c->n_devices && c->class_of[first] != class_)
    ++first;
  const double here = opi_cluster_flops(c, first, q->dtype, UINT64_MAX);
  const double there = opi_cluster_flops(c, 0, q->dtype, UINT64_MAX);
  if (here > 0 && there > 0)
    *out_factor = there / here;
  return q->planning.layers;
}

static void fill_sums(const opi_space *s, opi_sums *out) {
  double factor = 1;
  const opi_layers *layers = layers_of(s, out->class_, &factor);
  for (uint32_t i = 0; i < layers->n_layers; ++i) {
    const opi_layer l = opi_layers_at(layers, i, out->samples);
    const double part = 1 - l.width_share + l.width_share / out->width;
    out->forward[i + 1] = out->forward[i] + l.forward_ns * part * factor;
    out->input[i + 1] = out->input[i] + l.input_ns * part * factor;
    out->weight[i + 1] = out->weight[i] + l.weight_ns * part * factor;
    out->stash[i + 1] = out->stash[i] + (double)l.stash_bytes * part;
    out->params[i + 1] =
        out->params[i] + (double)l.param_bytes / (l.width_share > 0 ? out->width : 1);
    out->sum_bytes[i + 1] = out->sum_bytes[i] + (double)l.width_bytes;
    out->n_sums[i + 1] = out->n_sums[i] + (l.width_bytes > 0 && out->width > 1 ? 2 : 0);
    out->flops[i + 1] = out->flops[i] + 3 * l.flops;
    out->cut[i + 1] = (double)l.cut_bytes;
  }
}

opipe_status opi_space_sums(opi_space *s, uint32_t class_, uint32_t samples, uint32_t width,
                            uint32_t *out_index) {
  const size_t n = (size_t)s->question->planning.layers->n_layers + 1;
  for (uint32_t i = 0; i < s->n_sums; ++i) {
    const opi_sums *x = &s->sums[i];
    *out_index = i;
    if (x->class_ == class_ && x->samples == samples && x->width == width)
      return OPIPE_OK;
  }
  double *numbers = OPI_ARENA_ARRAY(&s->arena, double, 9 * n);
  if (numbers == NULL ||
      !opi_arena_grow(&s->arena, (void **)&s->sums, &s->room_sums, s->n_sums + 1, sizeof *s->sums))
    return opi_fail_nomem(s->err, 9 * n * sizeof(double), "a planner");
  opi_sums *x = &s->sums[s->n_sums];
  *x = (opi_sums){.class_ = class_, .samples = samples, .width = width};
  double **const all[] = {&x->forward,   &x->input, &x->weight, &x->stash, &x->params,
                          &x->sum_bytes, &x->flops, &x->n_sums, &x->cut};
  for (size_t i = 0; i < OPI_COUNT(all); ++i)
    *all[i] = numbers + i * n;
  fill_sums(s, x);
  *out_index = s->n_sums++;
  return OPIPE_OK;
}

const opi_sums *opi_sums_of(const opi_space *s, const opi_point *p, uint32_t class_) {
  for (uint32_t i = 0; i < s->n_sums; ++i) {
    const opi_sums *x = &s->sums[i];
    if (x->class_ == class_ && x->samples == p->samples && x->width == p->width)
      return x;
  }
  return NULL;
}

/* ---- layouts ---- */

static bool same_places(const opi_method_layout *a, const opi_decision *b) {
  const uint32_t slices = b->n_slices == 0 ? 1 : b->n_slices;
  return a != NULL && a->n_ranks == b->n_ranks && a->n_stages == b->n_stages &&
         a->n_replicas == b->n_replicas && a->n_slices == slices && a->n_parts == b->n_parts &&
         a->versions == b->versions && a->slice_lengths == NULL && b->slice_lengths == NULL &&
         memcmp(a->instance_rank, b->instance_rank,
                (size_t)a->n_stages * a->n_replicas * sizeof(uint32_t)) == 0;
}

static opipe_status keep_places(opi_space *s, const opi_decision *plan,
                                const opi_method_layout **out) {
  const size_t n = (size_t)plan->n_stages * plan->n_replicas;
  if (!same_places(s->last_places, plan)) {
    opi_method_layout *x = OPI_ARENA_NEW(&s->arena, opi_method_layout);
    if (x == NULL)
      return opi_fail_nomem(s->err, sizeof *x, "a planner");
    *x = (opi_method_layout){
        .n_ranks = plan->n_ranks,
        .n_stages = plan->n_stages,
        .n_replicas = plan->n_replicas,
        .n_slices = plan->n_slices == 0 ? 1 : plan->n_slices,
        .n_parts = plan->n_parts == 0 ? 1 : plan->n_parts,
        .versions = plan->versions,
        .instance_rank = opi_arena_copy(&s->arena, plan->instance_rank, n * sizeof(uint32_t))};
    if (plan->slice_lengths != NULL) {
      x->slice_lengths =
          opi_arena_copy(&s->arena, plan->slice_lengths, x->n_slices * sizeof(uint32_t));
    }
    if (x->instance_rank == NULL || (plan->slice_lengths != NULL && x->slice_lengths == NULL))
      return opi_fail_nomem(s->err, n * sizeof(uint32_t), "a planner");
    s->last_places = x;
  }
  *out = s->last_places;
  return OPIPE_OK;
}

opipe_status opi_space_lay_out(opi_space *s, uint32_t method, uint32_t n_ranks, uint32_t n_stages,
                               uint32_t microbatches, const opi_method_layout **out_places) {
  const opi_question q = {.schedule = s->methods[method].spec,
                          .mode = s->question->mode,
                          .n_ranks = n_ranks,
                          .n_stages = n_stages,
                          .n_microbatches = microbatches};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_schedule_ref ref;
  opi_plan *plan = NULL;
  *out_places = NULL;
  OPI_TRY(opi_plan_new(s->arena.allocator, &plan, s->err));
  opipe_status status = opi_order_lay_out(&s->plugins, &q, plan, &ref, &err);
  if (status == OPIPE_OK)
    status = opi_slices_check(s, &plan->decided, &err);
  if (status == OPIPE_OK)
    status = keep_places(s, &plan->decided, out_places);
  else
    (void)opi_text_line(s->why, err.message);
  opi_plan_free(plan);
  return status == OPIPE_E_NOMEM ? status : OPIPE_OK;
}

double opi_places_first_slice(const opi_method_layout *places) {
  double all = 0;
  for (uint32_t i = 0; places->slice_lengths != NULL && i < places->n_slices; ++i)
    all += places->slice_lengths[i];
  return all > 0 ? places->slice_lengths[0] / all : 1.0 / places->n_slices;
}

/* ---- points ---- */

opipe_status opi_space_add(opi_space *s, opi_point point) {
  opi_bounds bounds;
  if (s->overflow || s->n_points >= s->points_most) {
    s->overflow = true;
    return OPIPE_OK;
  }
  for (uint32_t k = 0; k < s->question->planning.cluster->n_classes; ++k) {
    uint32_t unused = 0;
    OPI_TRY(opi_space_sums(s, k, point.samples, point.width, &unused));
  }
  OPI_TRY(opi_point_bound(s, &point, &bounds));
  if (bounds.bytes > 0) {
    ++s->n_refused;
    return OPIPE_OK;
  }
  point.bound = bounds.ns;
  point.guess = bounds.guess;
  point.index = s->n_points;
  if (!opi_arena_grow(&s->arena, (void **)&s->points, &s->room_points, s->n_points + 1,
                      sizeof *s->points))
    return opi_fail_nomem(s->err, s->n_points * sizeof *s->points, "a planner");
  s->points[s->n_points++] = point;
  return OPIPE_OK;
}
