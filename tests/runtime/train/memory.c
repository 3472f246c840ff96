/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of training plans against devices, caps and budgets; see memory.h. */
#include "tests/runtime/train/memory.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "loader/base/sizes.h"

enum { ROWS = 8, TOKENS = 8, CLASSES = 20, UNIT = 64 };

const memory_row memory_rows[MEMORY_ROWS] = {
    {"sequential", 4, 4, false},
    {"gpipe", 4, 8, false},
    {"gpipe", 1, 1, false},
    {"1f1b", 4, 8, false},
    {"1f1b", 2, 3, false},
    {"1f1b:policy=pb", 4, 8, false},
    {"1f1b:eager=1", 3, 4, false},
    {"1f1b:depth=2", 4, 8, false},
    {"interleaved", 2, 4, false},
    {"interleaved:warmup=torch", 2, 8, false},
    {"looped-bfs", 2, 4, false},
    {"chimera", 4, 4, false},
    {"chimera", 2, 8, false},
    {"chimera:sync=eager", 4, 4, false},
    {"chimera:sync=eager-opt", 4, 8, false},
    {"chimera:concat=doubling", 4, 8, false},
    {"chimera:concat=halving", 2, 4, false},
    {"chimera:pipelines=4", 4, 4, false},
    {"2bw", 2, 4, false},
    {"2bw", 4, 8, false},
    {"zb-h1", 4, 8, false},
    {"zb-h2", 4, 8, false},
    {"zb-auto", 4, 8, false},
    {"zb-auto:memory=1.5", 4, 8, false},
    {"zb-interleaved", 2, 4, false},
    {"zbv", 2, 8, false},
    {"v-half", 2, 8, false},
    {"v-min", 2, 8, false},
    {"dualpipev", 2, 8, false},
    {"terapipe:slices=4", 2, 4, true},
    {"terapipe:lengths=3+5", 2, 3, true},
    {"seq1f1b:slices=4", 2, 4, true},
    {NULL, 2, 3, false},
    {"1f1b", 3, 2, false, {2, 1}},
    {"zb-h1", 4, 2, false, {1, 3}},
    {"interleaved", 3, 2, false, {1, 2}},
    {"2bw", 3, 2, false, {2, 1}},
    {"1f1b", 4, 4, false, {2, 2}},
};

static const char written[] =
    "rank 0: 0F0 0F1 0I0 0F2 0W0 0B1 0I2 0W2\n"
    "rank 1: 1F0 1B0 1F1 1I1 1F2 1I2 1W1 1W2\n";

const char *memory_schedule(const memory_row *row) {
  static char file[1100];
  if (row->schedule != NULL)
    return row->schedule;
  const char *path = opi_test_tmp("order.txt");
  OPI_ASSERT_FATAL(opi_test_write_file(path, written, sizeof written - 1));
  (void)snprintf(file, sizeof file, "file:%s", path);
  return file;
}

kit_case memory_case(const memory_row *row, uint32_t recompute, uint32_t kind) {
  const bool copied = row->replicas[0] != 0;
  return (kit_case){
      .schedule = memory_schedule(row),
      .n_ranks = copied ? 0 : row->n_ranks,
      .n_microbatches = row->n_microbatches,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .recompute = recompute,
               .rank_replicas = row->replicas,
               .n_rank_replicas = copied ? 2 : 0,
               .optimizer = {.kind = kind,
                             .shard = copied && kind != OPIPE_OPTIMIZER_SGD,
                             .lr = 0.01,
                             .momentum = kind == OPIPE_OPTIMIZER_SGD ? 0.9 : 0,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .epsilon = 1e-8}}};
}

/* ---- predicted and measured ---- */

static bool compare(const char *what, uint32_t rank, const opi_memory *p,
                    const opipe_memory_info *m) {
  const uint64_t predicted[] = {p->params_bytes,     p->gradient_bytes,  p->optimizer_bytes,
                                p->version_bytes,    p->stash_bytes,     p->boundary_bytes,
                                p->activation_bytes, p->workspace_bytes, p->offload_bytes,
                                p->total_bytes,      p->staging_bytes,   p->host_bytes};
  const uint64_t measured[] = {m->params_bytes,     m->gradient_bytes,  m->optimizer_bytes,
                               m->version_bytes,    m->stash_bytes,     m->boundary_bytes,
                               m->activation_bytes, m->workspace_bytes, m->offload_bytes,
                               m->total_bytes,      m->staging_bytes,   m->host_bytes};
  static const char *const names[] = {"parameters", "gradients",  "optimizer",   "versions",
                                      "stashes",    "boundaries", "activations", "workspace",
                                      "offloads",   "total",      "staging",     "host"};
  bool same = true;
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    same = same && predicted[i] == measured[i];
    if (predicted[i] != measured[i]) {
      OPI_FAIL("%s, rank %u, %s: predicted %llu, measured %llu", what, rank, names[i],
               (unsigned long long)predicted[i], (unsigned long long)measured[i]);
    }
  }
  return same;
}

bool memory_as_predicted(kit *k, opi_session *session, const char *what) {
  bool same = true;
  for (uint32_t r = 0; r < k->plan->decided.n_ranks; ++r) {
    opipe_memory_info info = {.struct_size = (uint32_t)sizeof info};
    OPI_ASSERT_OK(opi_session_memory(session, r, &info, &k->err), &k->err);
    same = compare(what, r, &k->plan->predicted.memory[r], &info) && same;
  }
  return same;
}

static bool trains(kit *k, const kit_case *c, const char *what, opi_session *session) {
  kit_batch batch;
  double loss = 0;
  bool good = true;
  for (uint32_t s = 0; s < 2 && good; ++s) {
    good = kit_batch_random(k, c, CLASSES, 5 + s, &batch) == OPIPE_OK &&
           kit_step(k, session, &batch, &loss) == OPIPE_OK && loss > 0 && loss < 100;
  }
  if (!good)
    OPI_FAIL("%s: loss %g, %s", what, loss, k->err.message);
  return good;
}

static const char *device_of(const kit_case *c) {
  return c->device == NULL ? "cpu" : c->device;
}

/* In a context that has exactly what is predicted; the same afterwards, when steps have run. */
static bool runs_within(kit *k, const kit_case *c, const char *what, uint64_t total) {
  opi_session *session = NULL;
  uint64_t charged = 0, cap = 0;
  OPI_ASSERT_OK_FATAL(opi_budget_create(opi_allocator_system(), &k->budget, &k->err), &k->err);
  OPI_ASSERT_OK(opi_budget_cap(k->budget, device_of(c), 0, total, &k->err), &k->err);
  bool good = kit_session(k, 0, &session) == OPIPE_OK;
  if (!good)
    OPI_FAIL("%s, %llu bytes: %s", what, (unsigned long long)total, k->err.message);
  for (uint32_t round = 0; round < 2 && good; ++round) {
    good = memory_as_predicted(k, session, what);
    good = good && (round == 1 || trains(k, c, what, session));
  }
  opi_budget_state(k->budget, device_of(c), 0, &charged, &cap);
  good = good && OPI_ASSERT_INT(charged, total);
  opi_session_close(session);
  opi_budget_state(k->budget, device_of(c), 0, &charged, &cap);
  OPI_ASSERT_INT(charged, 0);
  opi_budget_free(k->budget);
  k->budget = NULL;
  return good;
}

/* ---- one byte less ---- */

static bool says(const kit *k, const char *what, opipe_status status, const char *amount) {
  const bool good = status == OPIPE_E_LIMIT && strstr(k->err.message, amount) != NULL &&
                    strstr(k->err.message, "rank ") != NULL;
  if (!good)
    OPI_FAIL("%s: status %d, '%s', wanted '%s'", what, (int)status, k->err.message, amount);
  return good;
}

/* The context's budget. */
static bool refused_below(kit *k, const kit_case *c, const char *what, uint64_t total,
                          uint32_t less) {
  opi_session *session = NULL;
  char amount[48];
  OPI_ASSERT_OK_FATAL(opi_budget_create(opi_allocator_system(), &k->budget, &k->err), &k->err);
  OPI_ASSERT_OK(opi_budget_cap(k->budget, device_of(c), 0, total - less, &k->err), &k->err);
  (void)snprintf(amount, sizeof amount, "are taken): %u byte", less);
  const bool good = says(k, what, kit_session(k, 0, &session), amount);
  opi_session_close(session);
  opi_budget_free(k->budget);
  k->budget = NULL;
  return good;
}

static opipe_status read_capped(kit *k, json_t *root, const uint64_t *caps, uint32_t n_ranks) {
  json_t *devices = json_object_get(root, "devices");
  for (uint32_t r = 0; r < n_ranks; ++r) {
    (void)json_object_set_new(json_array_get(devices, r), "memory_bytes",
                              json_integer((json_int_t)caps[r]));
  }
  char *text = json_dumps(root, JSON_INDENT(1));
  const opipe_status status = text == NULL ? OPIPE_E_NOMEM : kit_read_plan(k, text, strlen(text));
  free(text);
  return status;
}

/* The same plan on devices with caps: each rank in turn has one byte less than it needs; at last
 * all have what they need, and the plan with these caps is the kit's. */
static bool caps_hold(kit *k, const char *what) {
  opi_test_text s = {NULL, 0};
  uint64_t caps[16] = {0};
  const uint32_t n = k->plan->decided.n_ranks;
  bool good = true;
  OPI_ASSERT_FATAL(n <= OPI_COUNT(caps));
  OPI_ASSERT_OK_FATAL(opi_plan_write(k->plan, opi_test_take, &s, &k->err), &k->err);
  json_t *root = json_loads(s.data, 0, NULL);
  OPI_ASSERT_FATAL(root != NULL);
  for (uint32_t r = 0; r < n; ++r)
    caps[r] = k->plan->predicted.memory[r].total_bytes;
  for (uint32_t r = 0; r < n; ++r) {
    char amount[96], where[32];
    (void)snprintf(amount, sizeof amount, "its cap of %s by 1 byte", OPI_SIZE(--caps[r]));
    (void)snprintf(where, sizeof where, "rank %u (stage ", r);
    good = says(k, what, read_capped(k, root, caps, n), amount) && good;
    good = OPI_ASSERT(strstr(k->err.message, where) != NULL) && good;
    ++caps[r];
  }
  const opipe_status status = read_capped(k, root, caps, n);
  if (status < 0)
    OPI_FAIL("%s: %s", what, k->err.message);
  json_decref(root);
  free(s.data);
  return good && status >= 0;
}

/* ---- poison ---- */

/* Freed memory is overwritten, in programs and between them: nothing changes. */
static bool bears_poison(kit *k, const kit_case *c, const char *what) {
  kit_outcome plain = {.n = 0}, poisoned = {.n = 0};
  if (kit_train(k, c, CLASSES, 0, &plain) < 0 ||
      kit_train(k, c, CLASSES, OPIPE_SESSION_POISON, &poisoned) < 0) {
    OPI_FAIL("%s, poisoned: %s", what, k->err.message);
    return false;
  }
  const bool same = memcmp(plain.losses, poisoned.losses, sizeof plain.losses) == 0 &&
                    plain.n == poisoned.n &&
                    memcmp(plain.weights, poisoned.weights, plain.n * sizeof *plain.weights) == 0;
  if (!same) {
    OPI_FAIL("%s: poisoned memory was read: losses %g and %g", what, plain.losses[1],
             poisoned.losses[1]);
  }
  return same;
}

/* ---- cases ---- */

void memory_check(kit *k, const kit_case *c, const char *what, memory_count *count) {
  uint64_t total = 0;
  bool good = kit_plan(k, c) == OPIPE_OK;
  if (!good)
    OPI_FAIL("%s: no plan: %s", what, k->err.message);
  good = good && bears_poison(k, c, what); /* red zones need room: before there are caps */
  good = good && caps_hold(k, what);
  for (uint32_t r = 0; good && r < k->plan->decided.n_ranks; ++r) {
    total += k->plan->predicted.memory[r].total_bytes;
    OPI_ASSERT(k->plan->predicted.memory[r].gradient_bytes > 0 &&
               k->plan->predicted.memory[r].stash_bytes > 0);
  }
  good = good && runs_within(k, c, what, total);
  good = good && refused_below(k, c, what, total, 1) && refused_below(k, c, what, total, UNIT);
  ++*(good ? &count->passed : &count->failed);
}

/* Sliced schedules of a model that is not causal along tokens. */
static void must_refuse(kit *k, const kit_case *c, const char *what, memory_count *count) {
  const opipe_status status = kit_plan(k, c);
  const bool good = status == OPIPE_E_UNSUPPORTED && strstr(k->err.message, "slices") != NULL;
  if (!good)
    OPI_FAIL("%s: status %d, '%s'", what, (int)status, k->err.message);
  ++*(good ? &count->refused : &count->failed);
}

void memory_check_model(const char *path, int64_t tokens, bool causal, bool all,
                        memory_count *count) {
  static const char *const ways[] = {"none", "stage", "block", "attention"};
  kit k;
  if (path == NULL)
    return;
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, ROWS, tokens), &k.err);
  for (uint32_t i = 0; i < MEMORY_ROWS; ++i) {
    const memory_row *row = &memory_rows[i];
    if (!opi_test_covers(i, opi_test_sparse(MEMORY_TURN)))
      continue;
    for (uint32_t n = 0; n < (all ? 8u : 1u); ++n) {
      char what[200];
      const uint32_t recompute = all ? n % 4 : i % 4;
      const uint32_t kind =
          (all ? n / 4 : i % 2) != 0 ? OPIPE_OPTIMIZER_SGD : OPIPE_OPTIMIZER_ADAMW;
      const kit_case c = memory_case(row, recompute, kind);
      (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches, recompute %s, %s",
                     row->schedule == NULL ? "a text" : row->schedule, row->n_ranks,
                     row->n_microbatches, ways[recompute],
                     kind == OPIPE_OPTIMIZER_SGD ? "sgd" : "adamw");
      if (row->sliced && !causal)
        must_refuse(&k, &c, what, count);
      else
        memory_check(&k, &c, what, count);
      opi_arena_release(&k.arena);
      opi_arena_init(&k.arena, opi_allocator_system(), 0);
    }
  }
  kit_close(&k);
}

/* Replicas of single stages. */
static void must_refuse_replicas(kit *k, const kit_case *c, const char *what, memory_count *count) {
  const opipe_status status = kit_plan(k, c);
  const bool good = status < 0 && strstr(k->err.message, "replicas that share micro-batches");
  if (!good)
    OPI_FAIL("%s: status %d, '%s'", what, (int)status, k->err.message);
  ++*(good ? &count->refused : &count->failed);
}

static void check_groups(kit *k, const memory_row *row, uint32_t i, uint32_t width, bool causal,
                         memory_count *count) {
  char what[200];
  memory_row wide = *row;
  wide.n_ranks *= width;
  kit_case c = memory_case(&wide, (i + width) % 4,
                           (i + width) % 5 < 2 ? OPIPE_OPTIMIZER_SGD : OPIPE_OPTIMIZER_ADAMW);
  c.tensor = width;
  c.sequence = i % 3 == 1;
  if (i % 3 == 2)
    c.transport = "emulated:scattered=1";
  (void)snprintf(what, sizeof what, "%s, groups of %u, %u ranks, form %u",
                 row->schedule == NULL ? "a text" : row->schedule, width, wide.n_ranks, i % 3);
  if (row->replicas[0] != 0) {
    must_refuse_replicas(k, &c, what, count);
    return;
  }
  if (row->sliced && !causal) {
    must_refuse(k, &c, what, count);
    return;
  }
  if (c.sequence && kit_plan(k, &c) == OPIPE_E_UNSUPPORTED) {
    c.sequence = false;
    ++count->refused;
  }
  memory_check(k, &c, what, count);
}

void memory_check_groups(const char *path, int64_t tokens, bool causal, memory_count *count) {
  kit k;
  if (path == NULL)
    return;
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, ROWS, tokens), &k.err);
  for (uint32_t width = 2; width <= 3; ++width) {
    for (uint32_t i = 0; i < MEMORY_ROWS; ++i) {
      check_groups(&k, &memory_rows[i], i, width, causal, count);
      opi_arena_release(&k.arena);
      opi_arena_init(&k.arena, opi_allocator_system(), 0);
    }
  }
  kit_close(&k);
}
