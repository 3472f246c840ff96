/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of training in two shapes; see turns.h. */
#include "tests/matrix/turns.h"

#include <math.h>
#include <stdio.h>

#include "tests/runtime/train/memory.h"

typedef struct size {
  int64_t rows, tokens;
} size;

/* Sizes of plans; and fewer rows, other tokens, more rows of fewer tokens. */
static const size OWN = {8, 8}, OTHERS[] = {{5, 8}, {8, 6}, {11, 5}};
static const uint32_t MICROBATCHES[] = {2, 3, 4}, RANKS[] = {2, 4};
enum { TURNS = 5, EVALUATIONS = 2, CLASSES = 32, WAYS_MOST = 64 };
static const double CLOSE = 1e-5;
static const opi_costs GIVEN = {.forward = 1, .input = 1, .weight = 1};

/* ---- schedules ---- */

typedef struct way {
  kit_schedule schedule;
  uint32_t copies;  /* of the whole pipeline; 0: 1 */
  uint32_t list[2]; /* replicas of each of two ranks, which cut micro-batches; 0: none */
} way;

static const way replicated[] = {
    {{"gpipe", 0}, 2, {0}},
    {{"1f1b", 0}, 3, {0}},
    {{"interleaved:chunks=2", 0}, 2, {0}},
    {{"chimera", 0}, 2, {0}},
    {{"chimera:concat=halving", KIT_HALVED}, 2, {0}},
    {{"2bw", KIT_BUFFERED}, 2, {0}},
    {{"zb-h1", 0}, 2, {0}},
    {{"zbv", 0}, 2, {0}},
    {{"terapipe:slices=4", KIT_SLICED}, 2, {0}},
    {{"1f1b", 0}, 0, {2, 1}},
    {{"zb-h1", 0}, 0, {1, 2}},
    {{"interleaved:chunks=2", 0}, 0, {2, 1}},
    {{"2bw", KIT_BUFFERED}, 0, {2, 1}},
    {{"zbv", 0}, 0, {2, 1}},
    {{"looped-bfs:chunks=2", 0}, 0, {1, 2}},
    {{"dualpipev", 0}, 0, {1, 2}},
    {{"terapipe:slices=2", KIT_SLICED}, 0, {2, 1}},
    {{"file", KIT_WRITTEN | KIT_SLICED}, 0, {1, 2}},
    {{"file", KIT_WRITTEN | KIT_SLICED | KIT_HALVED}, 0, {0}},
};

/* The schedules of one replica that are not bound by memory, and the replicated ones. */
static size_t list_ways(way ways[WAYS_MOST]) {
  size_t n = 0;
  for (size_t i = 0; i < kit_n_schedules && n < WAYS_MOST; ++i) {
    if ((kit_schedules[i].traits & KIT_BOUNDED) == 0)
      ways[n++].schedule = kit_schedules[i];
  }
  for (size_t i = 0; i < OPI_COUNT(replicated) && n < WAYS_MOST; ++i)
    ways[n++] = replicated[i];
  return n;
}

/* One case; indices but for `way`. */
typedef struct choice {
  const way *way;
  uint32_t model, other, ranks, microbatches, optimizer;
  uint32_t start; /* 1: the other shape comes first */
  uint32_t given; /* 1: times of stages and messages are given, the same for every shape */
} choice;

/* How often a value of a dimension has passed; plans for the other shape that were compared, or
 * were of another cut. */
typedef struct seen {
  uint32_t ways[WAYS_MOST], models[16], others[OPI_COUNT(OTHERS)], ranks[OPI_COUNT(RANKS)],
      microbatches[OPI_COUNT(MICROBATCHES)], optimizers[2], starts[2], given[2];
  uint32_t alike, unlike;
} seen;

static uint32_t ranks_of(const choice *c) {
  return c->way->list[0] != 0 ? 2 : RANKS[c->ranks];
}

static const char *constraint(const choice *c, int64_t rows) {
  const kit_schedule *s = &c->way->schedule;
  const uint32_t m = MICROBATCHES[c->microbatches], n = c->way->copies == 0 ? 1 : c->way->copies;
  if (m < n)
    return "replicas of the pipeline need a micro-batch each";
  if ((s->traits & KIT_BUFFERED) != 0 && m / n < ranks_of(c))
    return "needs as many micro-batches as stages";
  if (c->way->list[0] != 0 && rows / m < 2)
    return "replicas, which cannot share a micro-batch of 1 row";
  return kit_constraint(&kit_subjects[c->model], rows, s, ranks_of(c), m);
}

/* ---- a model with two shapes ---- */

/* The weights after one step of the uncut model. */
typedef struct uncut {
  double loss;
  float *weights;
  size_t n;
} uncut;

typedef struct bench {
  kit k;
  opi_arena data;              /* of batches and uncut models; the kit's is emptied by cases */
  kit_batch batches[2][TURNS]; /* by shape: own, other */
  uncut uncut[2][2];           /* by shape, optimizer */
  opi_dim_binding dims[2][4];  /* by shape */
  kit_place place;             /* of the cases' plans */
} bench;

static kit_case uncut_case(uint32_t optimizer) {
  return kit_case_of("gpipe", 1, 1, optimizer != 0);
}

static opipe_status train_uncut(bench *b, uint32_t shape, uint32_t optimizer) {
  kit *k = &b->k;
  uncut *u = &b->uncut[shape][optimizer];
  opi_session *session = NULL;
  const kit_case c = uncut_case(optimizer);
  OPI_TRY(kit_plan(k, &c));
  OPI_TRY(kit_session(k, 0, &session));
  opipe_status status = kit_step(k, session, &b->batches[shape][0], &u->loss);
  if (status == OPIPE_OK)
    status = kit_state(k, session, OPI_TENSOR_WEIGHT, &u->weights, &u->n);
  opi_session_close(session);
  return status;
}

/* Leaves the kit in the plan's own shape. */
static opipe_status open_bench(bench *b, const kit_subject *subject, size other) {
  const kit_case c = uncut_case(0);
  kit *k = &b->k;
  memset(b, 0, sizeof *b);
  opi_arena_init(&b->data, opi_allocator_system(), 0);
  OPI_TRY(kit_open(k, kit_subject_path(subject), other.rows, other.tokens));
  for (uint32_t shape = 2; shape-- > 0;) {
    memcpy(b->dims[shape], k->dims, sizeof k->dims);
    for (uint32_t t = 0; t < TURNS; ++t)
      OPI_TRY(kit_batch_random(k, &c, CLASSES, 60 + 10 * shape + t, &b->batches[shape][t]));
    for (uint32_t optimizer = 0; optimizer < 2; ++optimizer)
      OPI_TRY(train_uncut(b, shape, optimizer));
    if (shape == 1)
      OPI_TRY(kit_resize(k, OWN.rows, OWN.tokens));
  }
  b->data = k->arena;
  opi_arena_init(&k->arena, opi_allocator_system(), 0);
  return OPIPE_OK;
}

static void close_bench(bench *b) {
  kit_close(&b->k);
  opi_arena_release(&b->data);
}

static opipe_status make_plan(bench *b, const choice *c) {
  char name[600];
  const uint32_t m = MICROBATCHES[c->microbatches];
  const bool listed = c->way->list[0] != 0;
  kit_schedule_name(&c->way->schedule, ranks_of(c), m, name, sizeof name);
  const uint32_t copies = c->way->copies == 0 ? 1 : c->way->copies;
  kit_case k = kit_case_of(name, listed ? 0 : ranks_of(c) * copies, m, c->optimizer != 0);
  k.stages = c->given ? &GIVEN : NULL;
  k.spec.replicas = c->way->copies;
  k.spec.rank_replicas = listed ? c->way->list : NULL;
  k.spec.n_rank_replicas = listed ? 2 : 0;
  k.transport = b->place.transport;
  k.device = b->place.device;
  k.device_options = b->place.device_options;
  k.device_index = b->place.device_index;
  return kit_plan(&b->k, &k);
}

/* ---- turns ---- */

typedef struct turns {
  double losses[TURNS], evaluated[EVALUATIONS];
  float *first, *last, *logits[EVALUATIONS]; /* weights after the first step, after the last */
  size_t n_first, n_last, n_logits[EVALUATIONS];
} turns;

typedef struct running {
  bench *b;
  const choice *c;
  opi_session *session;
  opi_request *tickets[TURNS];
  bool reference;
  char what[240];
  uint64_t measured[64]; /* bytes of each rank with both shapes */
} running;

static opipe_status submit(running *r, uint32_t turn) {
  const kit_batch *batch = &r->b->batches[(turn + r->c->start) % 2][turn];
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = batch->n_inputs,
      .io_stride = sizeof(opipe_binding_io),
      .inputs = batch->inputs};
  return opi_train_step(r->session, &params, &r->tickets[turn], NULL, &r->b->k.err);
}

static opipe_status evaluate(running *r, uint32_t i, turns *out) {
  const kit_batch *batch = &r->b->batches[(i + r->c->start + 1) % 2][0];
  return kit_evaluate(&r->b->k, r->session, batch, &out->evaluated[i], &out->logits[i],
                      &out->n_logits[i]);
}

static opipe_status flush(running *r) {
  return opi_train_flush(r->session, UINT64_C(60000000000), &r->b->k.err);
}

/* The plan's memory while no other shape has been there. */
static opipe_status check_memory(running *r) {
  if (r->reference || memory_as_predicted(&r->b->k, r->session, r->what))
    return OPIPE_OK;
  return opi_fail(&r->b->k.err, OPIPE_E_INTERNAL, "memory is not as predicted");
}

/* Step, weights; two steps in flight, the other shape evaluated; a step, the first evaluated; the
 * last step. */
static opipe_status take_turns(running *r, turns *out) {
  kit *k = &r->b->k;
  OPI_TRY(check_memory(r));
  OPI_TRY(submit(r, 0));
  OPI_TRY(flush(r));
  if (r->c->start == 0)
    OPI_TRY(check_memory(r));
  OPI_TRY(kit_state(k, r->session, OPI_TENSOR_WEIGHT, &out->first, &out->n_first));
  OPI_TRY(submit(r, 1));
  OPI_TRY(submit(r, 2));
  OPI_TRY(evaluate(r, 0, out));
  OPI_TRY(submit(r, 3));
  OPI_TRY(evaluate(r, 1, out));
  OPI_TRY(submit(r, 4));
  OPI_TRY(flush(r));
  for (uint32_t t = 0; t < TURNS; ++t) {
    opi_train_result result = {.loss = 0};
    OPI_TRY(opi_train_report(r->tickets[t], &result, &k->err));
    out->losses[t] = result.loss;
  }
  return kit_state(k, r->session, OPI_TENSOR_WEIGHT, &out->last, &out->n_last);
}

/* With both shapes there: what belongs to weights as predicted, and all of it charged for. */
static opipe_status check_charge(running *r) {
  kit *k = &r->b->k;
  uint64_t charged = 0, cap = 0, total = 0;
  for (uint32_t i = 0; i < k->plan->decided.n_ranks; ++i) {
    const opi_memory *p = &k->plan->predicted.memory[i];
    opipe_memory_info m = {.struct_size = (uint32_t)sizeof m};
    OPI_TRY(opi_session_memory(r->session, i, &m, &k->err));
    total += r->measured[i] = m.total_bytes;
    if (m.params_bytes != p->params_bytes || m.gradient_bytes != p->gradient_bytes ||
        m.optimizer_bytes != p->optimizer_bytes || m.version_bytes != p->version_bytes ||
        m.total_bytes < p->total_bytes) {
      return opi_fail(&k->err, OPIPE_E_INTERNAL,
                      "rank %u with both shapes: parameters %llu (predicted %llu), gradients %llu "
                      "(%llu), total %llu (at least %llu)",
                      i, (unsigned long long)m.params_bytes, (unsigned long long)p->params_bytes,
                      (unsigned long long)m.gradient_bytes, (unsigned long long)p->gradient_bytes,
                      (unsigned long long)m.total_bytes, (unsigned long long)p->total_bytes);
    }
  }
  const opipe_device_choice device = kit_place_device(&r->b->place);
  opi_budget_state(k->budget, device.kind, device.index, &charged, &cap);
  return charged == total ? OPIPE_OK
                          : opi_fail(&k->err, OPIPE_E_INTERNAL,
                                     "the context is charged %llu bytes, devices handed out %llu",
                                     (unsigned long long)charged, (unsigned long long)total);
}

/* Same cut, same order. */
static bool are_alike(const opi_decision *a, const opi_decision *b) {
  return a->n_nodes == b->n_nodes && a->n_actions == b->n_actions &&
         memcmp(a->stage_of_node, b->stage_of_node, a->n_nodes * sizeof *a->stage_of_node) == 0 &&
         memcmp(a->actions, b->actions, a->n_actions * sizeof *a->actions) == 0;
}

/* The other shape takes boundaries and stashes of its own, and an arena where the plan's is too
 * small: what a plan for that shape predicts, if it is cut and ordered alike. In the place of the
 * kit's plan. */
static bool check_other(const running *r, seen *s) {
  kit *k = &r->b->k;
  opi_plan *own = k->plan;
  bool same = true;
  if (strstr(r->c->way->schedule.name, "lengths=") != NULL) /* of the plan's own tokens */
    return true;
  k->plan = NULL;
  memcpy(k->dims, r->b->dims[1], sizeof k->dims);
  const opipe_status status = make_plan(r->b, r->c);
  memcpy(k->dims, r->b->dims[0], sizeof k->dims);
  OPI_ASSERT_OK(status, &k->err);
  const bool alike = status == OPIPE_OK && are_alike(&own->decided, &k->plan->decided);
  for (uint32_t i = 0; alike && i < own->decided.n_ranks; ++i) {
    const opi_memory *p = &own->predicted.memory[i], *q = &k->plan->predicted.memory[i];
    const uint64_t arena = q->activation_bytes + q->workspace_bytes;
    const bool larger = arena > p->activation_bytes + p->workspace_bytes;
    const uint64_t wanted =
        p->total_bytes + q->boundary_bytes + q->stash_bytes + (larger ? arena : 0);
    same = same && r->measured[i] == wanted;
    if (r->measured[i] != wanted) {
      OPI_FAIL("%s: rank %u has %llu bytes with both shapes, the plans of the two predict %llu",
               r->what, i, (unsigned long long)r->measured[i], (unsigned long long)wanted);
    }
  }
  ++*(alike ? &s->alike : &s->unlike);
  opi_plan_free(own);
  return same;
}

static opipe_status train(running *r, turns *out) {
  kit *k = &r->b->k;
  memset(r->tickets, 0, sizeof r->tickets);
  memset(out, 0, sizeof *out);
  OPI_TRY(kit_session(k, r->reference ? OPIPE_SESSION_REFERENCE : 0, &r->session));
  opipe_status status = take_turns(r, out);
  if (status == OPIPE_OK && !r->reference)
    status = check_charge(r);
  for (uint32_t t = 0; t < TURNS; ++t)
    opi_request_release(r->tickets[t]);
  opi_session_close(r->session);
  r->session = NULL;
  return status;
}

/* ---- comparing ---- */

static bool same_floats(const float *a, const float *b, size_t n, size_t m) {
  return n == m && n != 0 && memcmp(a, b, n * sizeof *a) == 0;
}

static bool same_bits(const running *r, const turns *a, const turns *b) {
  bool same = true;
  for (uint32_t t = 0; t < TURNS; ++t) {
    same = same && a->losses[t] == b->losses[t];
    if (a->losses[t] != b->losses[t]) {
      OPI_FAIL("%s: loss %.17g at turn %u, the reference has %.17g", r->what, a->losses[t], t,
               b->losses[t]);
    }
  }
  for (uint32_t i = 0; i < EVALUATIONS; ++i) {
    if (a->evaluated[i] == b->evaluated[i] &&
        same_floats(a->logits[i], b->logits[i], a->n_logits[i], b->n_logits[i]))
      continue;
    OPI_FAIL("%s: evaluation %u is %.17g, the reference's %.17g, or its logits differ", r->what, i,
             a->evaluated[i], b->evaluated[i]);
    same = false;
  }
  if (!same_floats(a->first, b->first, a->n_first, b->n_first)) {
    OPI_FAIL("%s: other weights than the reference's after the first step", r->what);
    same = false;
  }
  if (!same_floats(a->last, b->last, a->n_last, b->n_last)) {
    OPI_FAIL("%s: other weights than the reference's after the last step", r->what);
    same = false;
  }
  return same;
}

static bool close_first(const running *r, const turns *a, kit_tally *tally) {
  const uncut *u = &r->b->uncut[r->c->start][r->c->optimizer];
  const double loss = fabs(a->losses[0] - u->loss) / (CLOSE * fabs(u->loss));
  double far = 0, most = 0;
  for (size_t i = 0; i < u->n && a->n_first == u->n; ++i) {
    const double d = fabs((double)a->first[i] - (double)u->weights[i]);
    far = !(d <= far) ? d : far;
    most = fmax(most, fabs((double)u->weights[i]));
  }
  if (a->n_first != u->n || !(loss <= 1) || !(far <= CLOSE * most)) {
    OPI_FAIL("%s: first loss %.9g, that of the uncut model %.9g; weights %g apart (largest %g)",
             r->what, a->losses[0], u->loss, far, most);
    return false;
  }
  tally->worst_loss = fmax(tally->worst_loss, loss);
  tally->worst_weights = fmax(tally->worst_weights, far / (CLOSE * most));
  return true;
}

/* ---- one case ---- */

/* Fails in the plan, or at the first step of the other shape. */
static bool refused(const running *r, opipe_status status, const char *text) {
  const char *message = r->b->k.err.message;
  const bool right = status < 0 && strstr(message, text) != NULL;
  if (!right) {
    OPI_FAIL("%s: status %d, %s; to be refused with: %s", r->what, status,
             status < 0 ? message : "it runs", text);
  }
  return right;
}

static void run_case(bench *b, const choice *c, kit_tally *tally, seen *s, uint32_t *io_passed) {
  running r = {.b = b, .c = c};
  turns whole, reference;
  const uint32_t failures = tally->failed;
  (void)snprintf(r.what, sizeof r.what,
                 "%s, %s, %u copies, replicas %u %u, %u ranks, %u micro-batches, %s, %lld x %lld "
                 "%s %lld x %lld",
                 kit_subjects[c->model].name, c->way->schedule.name, c->way->copies,
                 c->way->list[0], c->way->list[1], ranks_of(c), MICROBATCHES[c->microbatches],
                 kit_optimizers[c->optimizer].name, (long long)OWN.rows, (long long)OWN.tokens,
                 c->start == 0 ? "before" : "after", (long long)OTHERS[c->other].rows,
                 (long long)OTHERS[c->other].tokens);
  const char *own = constraint(c, OWN.rows), *other = constraint(c, OTHERS[c->other].rows);
  OPI_ASSERT_OK_FATAL(opi_budget_create(opi_allocator_system(), &b->k.budget, &b->k.err),
                      &b->k.err);
  opipe_status status = make_plan(b, c);
  if (own == NULL && status == OPIPE_OK)
    status = train(&r, &whole);
  if (own != NULL || other != NULL) {
    ++*(refused(&r, status, own != NULL ? own : other) ? &tally->refused : &tally->failed);
  } else {
    r.reference = true;
    if (status == OPIPE_OK)
      status = train(&r, &reference);
    if (status != OPIPE_OK)
      OPI_FAIL("%s: %s", r.what, b->k.err.message);
    const bool same = status == OPIPE_OK && same_bits(&r, &whole, &reference);
    const bool near = status == OPIPE_OK && close_first(&r, &whole, tally);
    const bool accounted = !same || c->given == 0 || check_other(&r, s);
    ++*(same && near && accounted ? &tally->passed : &tally->failed);
    *io_passed += tally->failed == failures;
  }
  opi_budget_free(b->k.budget);
  b->k.budget = NULL;
  opi_arena_release(&b->k.arena);
  opi_arena_init(&b->k.arena, opi_allocator_system(), 0);
}

/* ---- the matrix ---- */

static void count_seen(seen *s, const choice *c, size_t at, uint32_t n) {
  s->ways[at] += n;
  s->models[c->model] += n;
  s->others[c->other] += n;
  s->ranks[c->ranks] += n;
  s->microbatches[c->microbatches] += n;
  s->optimizers[c->optimizer] += n;
  s->starts[c->start] += n;
  s->given[c->given] += n;
}

static void need(const uint32_t *n, size_t length, const char *dimension) {
  for (size_t i = 0; i < length; ++i) {
    if (n[i] == 0)
      OPI_FAIL("no case passed with value %zu of %s", i, dimension);
  }
}

static void draw(opi_test_random *random, choice *c) {
  c->ranks = (uint32_t)(opi_test_next(random) % OPI_COUNT(RANKS));
  c->microbatches = (uint32_t)(opi_test_next(random) % OPI_COUNT(MICROBATCHES));
  c->optimizer = (uint32_t)(opi_test_next(random) % 2);
  c->start = (uint32_t)(opi_test_next(random) % 2);
  c->given = (uint32_t)(opi_test_next(random) % 2);
}

/* The cases of a model with one other shape. */
static void run_bench(uint32_t model, uint32_t other, bool full, const kit_place *places,
                      uint32_t n_places, const way *ways, size_t n_ways, kit_tally *tally,
                      seen *s) {
  enum { SEED = 40 };
  static bench b;
  opi_test_random random = {SEED + model * OPI_COUNT(OTHERS) + other};
  const size_t n_models = kit_n_subjects;
  const opipe_status status = open_bench(&b, &kit_subjects[model], OTHERS[other]);
  OPI_ASSERT_OK(status, &b.k.err);
  for (size_t w = 0; w < n_ways && status == OPIPE_OK; ++w) {
    for (uint32_t i = 0; i < (full ? 2u : 1u); ++i) {
      choice c = {.way = &ways[w], .model = model, .other = other};
      uint32_t passed = 0;
      b.place = places[(w + i) % n_places];
      draw(&random, &c);
      if (!full && w % n_models != model)
        continue;
      run_case(&b, &c, tally, s, &passed);
      count_seen(s, &c, w, passed);
    }
  }
  close_bench(&b);
}

void mx_turns(bool full, const kit_place *places, uint32_t n_places, kit_tally *tally) {
  static way ways[WAYS_MOST];
  const size_t n_ways = list_ways(ways);
  seen s = {.starts = {0}};
  bool all = true;
  memset(tally, 0, sizeof *tally);
  OPI_ASSERT_FATAL(n_ways < WAYS_MOST && kit_n_subjects <= OPI_COUNT(s.models));
  for (uint32_t model = 0; model < kit_n_subjects; ++model) {
    if (kit_subject_path(&kit_subjects[model]) == NULL) {
      all = false;
      continue;
    }
    for (uint32_t other = 0; other < OPI_COUNT(OTHERS); ++other) {
      if (full || opi_test_covers(model + other, OPI_COUNT(OTHERS)))
        run_bench(model, other, full, places, n_places, ways, n_ways, tally, &s);
    }
  }
  if (all && full)
    need(s.ways, n_ways, "the schedules");
  if (all) {
    need(s.models, kit_n_subjects, "the models");
    need(s.others, OPI_COUNT(OTHERS), "the other shapes");
    need(s.ranks, OPI_COUNT(RANKS), "the ranks");
    need(s.microbatches, OPI_COUNT(MICROBATCHES), "the micro-batches");
    need(s.optimizers, 2, "the optimizers");
    need(s.starts, 2, "which shape comes first");
    need(s.given, 2, "given times");
    /* else the memory of both shapes is hardly looked at; a cover has few, and declared times of
     * messages move cuts */
    if (n_places == 1 && places->transport == NULL &&
        s.alike <= (full ? 2 * s.unlike : s.unlike / 2)) {
      OPI_FAIL("two shapes in turn: %u are alike, %u are not: their memory is hardly looked at",
               s.alike, s.unlike);
    }
  }
  kit_tally_print("two shapes in turn", tally);
}
