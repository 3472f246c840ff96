/* SPDX-License-Identifier: Apache-2.0 */
/* Passes of mixed sequences through a session's stages: the logits of every token have the bits
 * that the sequence has alone, in the plan's reference, whatever the slices of prompts, the passes
 * in flight, the size of pages and the transport; measured bytes are the predicted ones before the
 * first pass and after the last, and nothing is compiled or evicted in between.
 *
 * ctest: timeout=120
 */
#include <opipe/host.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi/api/api.h"
#include "runtime/rows/rows.h"
#include "runtime/session/session.h"
#include "tests/support/support.h"

enum { SEQUENCES = 6, CONTEXT = 72, ROWS = 64, VOCAB_MOST = 4096, GROUPS_MOST = 4 };

typedef struct rig {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *model;
  opipe_plan *plan;
  opipe_session *session;
  opi_pass_runner runner;
  opi_pass_facts facts;
  opipe_error err;
} rig;

/* One way to run. */
typedef struct way {
  const char *model, *transport;
  uint32_t stages, groups, page, slice, context;
  uint32_t width; /* of tensor groups; 0: none */
} way;

static uint32_t ranks_of(const way *w) {
  return w->stages * (w->width == 0 ? 1 : w->width);
}

typedef struct sequence {
  int64_t ids[CONTEXT];
  uint32_t length, done;
  char *found; /* [length] rows of logits */
} sequence;

static sequence sequences[SEQUENCES];
static char *alone[SEQUENCES];
static uint32_t lengths[SEQUENCES]; /* one as long as the context */

static void open_model_in(rig *r, const char *name, const opipe_allocator *allocator) {
  const char *paths[2] = {opi_test_build("lib/onnx-pipe"), NULL};
  char file[128], plugins[512];
  memset(r, 0, sizeof *r);
  r->err.struct_size = (uint32_t)sizeof r->err;
  (void)snprintf(plugins, sizeof plugins, "%s",
                 opi_test_build("tests/plugins/opipe-transport-strict.so"));
  paths[1] = plugins;
  const opipe_context_params context = {
      .struct_size = (uint32_t)OPIPE_END(opipe_context_params, flags),
      .plugin_paths = paths,
      .n_plugin_paths = 2,
      .allocator = allocator};
  (void)snprintf(file, sizeof file, "tests/data/%s/model.onnx", name);
  char path[512];
  (void)snprintf(path, sizeof path, "%s", opi_test_source(file));
  const opipe_load_params load = {
      .struct_size = (uint32_t)OPIPE_END(opipe_load_params, memory_budget_bytes), .path = path};
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &r->api, &r->err), &r->err);
  OPI_ASSERT_OK_FATAL(r->api->context_create(&context, &r->context, &r->err), &r->err);
  OPI_ASSERT_OK_FATAL(r->api->model_load(r->context, &load, &r->model, &r->err), &r->err);
}

static void open_model(rig *r, const char *name) {
  open_model_in(r, name, NULL);
}

static void close_model(rig *r) {
  r->api->plan_destroy(r->plan);
  r->api->model_destroy(r->model);
  r->api->context_destroy(r->context);
}

static opipe_status make_plan(rig *r, const way *w, uint64_t memory_bytes, uint64_t n_tokens) {
  const opipe_device_choice each = {.kind = "cpu", .memory_bytes = memory_bytes, .threads = 1};
  const opipe_device_choice devices[4] = {each, each, each, each}; /* caps of their own */
  const opipe_generation_params generation = {.struct_size = (uint32_t)sizeof generation,
                                              .context = w->context,
                                              .n_tokens = n_tokens,
                                              .page = w->page,
                                              .rows = ROWS,
                                              .active = SEQUENCES,
                                              .groups = w->groups,
                                              .draft = 10}; /* all rows may be wanted */
  const opipe_plan_params params = {.struct_size = (uint32_t)sizeof params,
                                    .n_stages = w->stages,
                                    .devices = devices,
                                    .n_devices = ranks_of(w),
                                    .devices_stride = sizeof each,
                                    .transport = w->transport,
                                    .tensor = w->width,
                                    .generation = &generation};
  r->api->plan_destroy(r->plan);
  r->plan = NULL;
  return r->api->plan_make(r->model, &params, &r->plan, &r->err);
}

static opi_session *inside(rig *r) {
  opi_entry in;
  OPI_ASSERT_OK_FATAL(opi_handle_enter(r->session, OPI_HANDLE_SESSION, "test", &in, &r->err),
                      &r->err);
  opi_session *session = ((opi_session_object *)in.object)->session;
  opi_handle_leave(&in);
  return session;
}

static void open_session(rig *r, uint32_t flags) {
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes), .flags = flags};
  OPI_ASSERT_OK_FATAL(r->api->session_open(r->context, r->plan, &params, &r->session, &r->err),
                      &r->err);
  OPI_ASSERT_OK_FATAL(
      opi_rows_open(inside(r), &(opi_pass_caller){NULL, NULL}, 0, &r->runner, &r->facts, &r->err),
      &r->err);
}

static void close_session(rig *r) {
  opi_rows_close(&r->runner);
  r->api->session_close(r->session);
}

/* ---- bytes ---- */

static void check_bytes(rig *r, uint32_t n_ranks) {
  opi_entry in;
  OPI_ASSERT_OK_FATAL(opi_handle_enter(r->plan, OPI_HANDLE_PLAN, "test", &in, &r->err), &r->err);
  const opi_memory *memory = ((opi_plan_object *)in.object)->plan->predicted.memory;
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    const opi_memory *m = &memory[rank];
    opipe_memory_info info = {.struct_size = (uint32_t)sizeof info};
    OPI_ASSERT_OK_FATAL(r->api->session_memory(r->session, rank, &info, &r->err), &r->err);
    (void)opi_test_check(
        m->params_bytes == info.params_bytes && m->activation_bytes == info.activation_bytes &&
            m->workspace_bytes == info.workspace_bytes &&
            m->boundary_bytes == info.boundary_bytes && m->state_bytes == info.state_bytes &&
            m->total_bytes == info.total_bytes,
        __FILE__, __LINE__, false,
        "rank %u: predicted %lu %lu %lu %lu %lu %lu, measured %lu %lu %lu %lu %lu %lu", rank,
        m->params_bytes, m->activation_bytes, m->workspace_bytes, m->boundary_bytes, m->state_bytes,
        m->total_bytes, info.params_bytes, info.activation_bytes, info.workspace_bytes,
        info.boundary_bytes, info.state_bytes, info.total_bytes);
    OPI_ASSERT(m->state_bytes != 0 || n_ranks > 1);
  }
  opi_handle_leave(&in);
}

static uint64_t shapes_compiled(rig *r) {
  opipe_session_info info = {.struct_size = (uint32_t)sizeof info};
  OPI_ASSERT_OK_FATAL(r->api->session_info(r->session, &info, &r->err), &r->err);
  return info.shapes_compiled;
}

/* All classes of rows have one set of boundaries, and one arena on each rank. */
static void check_shared(rig *r) {
  const opi_setup *s = inside(r)->setup;
  for (uint32_t i = 0; i < s->shapes->n_places; ++i) {
    const opi_shape *shape = s->shapes->list[i];
    OPI_ASSERT(shape == NULL || shape->lead == s->shapes->list[0]);
  }
  for (uint32_t k = 0; k < s->n_here; ++k)
    OPI_ASSERT(s->ranks[s->here[k]].n_arenas <= 1);
}

/* ---- passes ---- */

/* A pass in flight: whose rows are wanted. */
typedef struct flight {
  uint32_t sequence[ROWS], position[ROWS], n;
} flight;

typedef struct mix {
  rig *r;
  const way *w;
  uint32_t only; /* the sequence that is alone; SEQUENCES: all */
  flight flights[GROUPS_MOST];
  uint32_t first, n_flying;
  uint64_t number;
  uint32_t pages[SEQUENCES][CONTEXT];
  opi_test_random random;
  const opi_test_memory *memory; /* NULL: not looked at */
  uint64_t n_calls;              /* of it, when the first pass had ended */
} mix;

static void end_one(mix *m) {
  const flight *f = &m->flights[m->first];
  const uint64_t bytes = m->r->facts.row_bytes;
  void *logits = NULL;
  OPI_ASSERT_OK_FATAL(
      m->r->runner.end(m->r->runner.ctx, UINT64_C(20000000000), &logits, &m->r->err), &m->r->err);
  for (uint32_t i = 0; i < f->n; ++i) {
    memcpy(sequences[f->sequence[i]].found + f->position[i] * bytes, (char *)logits + i * bytes,
           (size_t)bytes);
  }
  m->r->runner.finish(m->r->runner.ctx);
  m->n_calls = m->memory != NULL && m->n_calls == 0 ? m->memory->n_calls : m->n_calls;
  m->first = (m->first + 1) % m->r->facts.batch.groups;
  --m->n_flying;
}

/* Slices of sequences that are not done, in any order; false: all are. A sequence may have rows in
 * several passes in flight: ranks compute passes in order. */
static bool begin_one(mix *m) {
  const uint32_t room = (m->w->context - 1) / m->w->page + 1;
  static int64_t ids[ROWS], position[ROWS], own[ROWS], wanted[ROWS], table[SEQUENCES * CONTEXT];
  flight *f = &m->flights[(m->first + m->n_flying) % m->r->facts.batch.groups];
  opi_pass_rows pass = {.number = ++m->number,
                        .table_room = room,
                        .ids = ids,
                        .position = position,
                        .sequence = own,
                        .wanted = wanted,
                        .table = table};
  const uint32_t begins = (uint32_t)(opi_test_next(&m->random) % SEQUENCES);
  f->n = 0;
  for (uint32_t i = 0; i < SEQUENCES; ++i) {
    const uint32_t at = (begins + i) % SEQUENCES;
    sequence *s = &sequences[at];
    uint32_t n = s->length - s->done < m->w->slice ? s->length - s->done : m->w->slice;
    n = n < ROWS - pass.n_rows ? n : ROWS - pass.n_rows;
    if (n == 0 || (m->only != SEQUENCES && at != m->only))
      continue;
    for (uint32_t p = 0; p < room; ++p)
      table[pass.n_sequences * room + p] = m->pages[at][p];
    for (uint32_t k = 0; k < n; ++k) {
      ids[pass.n_rows] = s->ids[s->done];
      position[pass.n_rows] = s->done;
      own[pass.n_rows] = pass.n_sequences;
      wanted[pass.n_wanted++] = pass.n_rows++;
      f->sequence[f->n] = at;
      f->position[f->n++] = s->done++;
    }
    ++pass.n_sequences;
  }
  if (pass.n_rows == 0)
    return false;
  OPI_ASSERT_OK_FATAL(m->r->runner.begin(m->r->runner.ctx, &pass, &m->r->err), &m->r->err);
  ++m->n_flying;
  return true;
}

static void run_mix_in(rig *r, const way *w, uint32_t only, const opi_test_memory *memory) {
  const uint32_t room = (w->context - 1) / w->page + 1;
  mix m = {.r = r, .w = w, .only = only, .random = {w->slice}, .memory = memory};
  for (uint32_t s = 0; s < SEQUENCES; ++s) {
    sequences[s].done = 0;
    for (uint32_t p = 0; p < room; ++p) /* no neighbours */
      m.pages[s][p] = (SEQUENCES * room - 1) - (p * SEQUENCES + s);
  }
  bool more = true;
  while (more || m.n_flying != 0) {
    while (more && m.n_flying < r->facts.batch.groups)
      more = begin_one(&m);
    if (m.n_flying != 0)
      end_one(&m);
  }

  OPI_ASSERT(memory == NULL || (m.number > 4 && memory->n_calls == m.n_calls));
}

static void run_mix(rig *r, const way *w, uint32_t only) {
  run_mix_in(r, w, only, NULL);
}

static void make_sequences(const rig *r, uint32_t context) {
  const uint32_t n[SEQUENCES] = {context, 1, context / 2 - 3, context - 8, 17, 2};
  memcpy(lengths, n, sizeof lengths);
  opi_test_random random = {7};
  for (uint32_t s = 0; s < SEQUENCES; ++s) {
    sequences[s].length = lengths[s];
    for (uint32_t i = 0; i < lengths[s]; ++i)
      sequences[s].ids[i] = (int64_t)(opi_test_next(&random) % r->facts.n_known);
    free(sequences[s].found);
    free(alone[s]);
    sequences[s].found = calloc(CONTEXT, (size_t)r->facts.row_bytes);
    alone[s] = calloc(CONTEXT, (size_t)r->facts.row_bytes);
    OPI_ASSERT_FATAL(sequences[s].found != NULL && alone[s] != NULL);
  }
}

/* Each sequence alone, whole, by the plan's reference. */
static void run_alone(rig *r, const way *w) {
  way steps = *w;
  steps.slice = CONTEXT;
  open_session(r, OPIPE_SESSION_REFERENCE);
  make_sequences(r, w->context);
  for (uint32_t s = 0; s < SEQUENCES; ++s) {
    run_mix(r, &steps, s);
    memcpy(alone[s], sequences[s].found, lengths[s] * (size_t)r->facts.row_bytes);
    memset(sequences[s].found, 0xff, lengths[s] * (size_t)r->facts.row_bytes);
  }
  close_session(r);
}

static void try_way(const way *w) {
  rig r;
  open_model(&r, w->model);
  OPI_ASSERT_OK_FATAL(make_plan(&r, w, 0, 0), &r.err);
  run_alone(&r, w);
  open_session(&r, 0);
  const uint64_t n_shapes = shapes_compiled(&r);
  OPI_ASSERT_INT(n_shapes, 7); /* 1, 2, 4, 8, 16, 32, 64 rows */
  check_bytes(&r, ranks_of(w));
  if (w->width < 2) /* members' cuts meet, and are not alike */
    check_shared(&r);
  run_mix(&r, w, SEQUENCES);
  check_bytes(&r, ranks_of(w));
  OPI_ASSERT_INT(shapes_compiled(&r), n_shapes);
  for (uint32_t s = 0; s < SEQUENCES; ++s) {
    (void)opi_test_check(
        memcmp(alone[s], sequences[s].found, lengths[s] * (size_t)r.facts.row_bytes) == 0, __FILE__,
        __LINE__, false,
        "%s: %u stages, width %u, %u groups, pages of %u, slices of %u, %s: sequence %u has other "
        "bits "
        "than alone",
        w->model, w->stages, w->width, w->groups, w->page, w->slice, w->transport, s);
  }
  close_session(&r);
  close_model(&r);
}

static void test_bits(void) {
  static const way ways[] = {
      {"llama_8block", "local", 1, 1, 64, 7, 72},      {"llama_8block", "local", 2, 3, 128, 1, 72},
      {"rows/group_query", "local", 4, 4, 64, 64, 70}, {"gpt_past", "emulated", 3, 2, 64, 7, 24},
      {"gpt_8block", "strict", 4, 2, 128, 7, 24},      {"rows/alibi", "local", 2, 4, 64, 1, 70},
      {"rows/alibi", "strict", 2, 2, 64, 7, 70, 2},
  };
  for (size_t i = 0; i < OPI_COUNT(ways); ++i)
    try_way(&ways[i]);
}

/* From the second pass on nothing is allocated, whatever rows it has. */
static void test_no_allocation(void) {
  static const way ways[] = {{"llama_8block", "local", 2, 2, 64, 7, 72},
                             {"gpt_past", "strict", 3, 3, 64, 5, 24}};
  for (size_t i = 0; i < OPI_COUNT(ways); ++i) {
    opi_test_memory memory;
    rig r;
    opi_test_memory_init(&memory);
    open_model_in(&r, ways[i].model, &memory.allocator);
    OPI_ASSERT_OK_FATAL(make_plan(&r, &ways[i], 0, 0), &r.err);
    open_session(&r, 0);
    make_sequences(&r, ways[i].context);
    run_mix_in(&r, &ways[i], SEQUENCES, &memory);
    close_session(&r);
    close_model(&r);
    OPI_ASSERT(opi_test_memory_end(&memory));
  }
}

/* ---- the plan ---- */

typedef struct text {
  char data[1 << 20];
  size_t n;
} text;
static text first, again;

static int add_text(void *ctx, const void *data, size_t n) {
  text *t = ctx;
  if (t->n + n >= sizeof t->data)
    return OPIPE_E_LIMIT;
  memcpy(t->data + t->n, data, n);
  t->n += n;
  return OPIPE_OK;
}

static const opi_plan *plan_of(rig *r) {
  opi_entry in;
  OPI_ASSERT_OK_FATAL(opi_handle_enter(r->plan, OPI_HANDLE_PLAN, "test", &in, &r->err), &r->err);
  const opi_plan *plan = ((opi_plan_object *)in.object)->plan;
  opi_handle_leave(&in);
  return plan;
}

/* A plan that was read is the one that was written, and runs. */
static void test_file(void) {
  const way w = {"llama_8block", "local", 2, 0, 64, 7, 72};
  rig r;
  opipe_plan *read = NULL;
  open_model(&r, w.model);
  OPI_ASSERT_OK_FATAL(make_plan(&r, &w, 0, 0), &r.err);
  const opi_generation *g = &plan_of(&r)->decided.binding.generation;
  OPI_ASSERT(g->groups >= 1 && g->groups <= SEQUENCES);
  OPI_ASSERT_INT(g->n_pages, 2 * SEQUENCES);
  OPI_ASSERT_OK_FATAL(r.api->plan_write(r.plan, add_text, &first, &r.err), &r.err);
  OPI_ASSERT_OK_FATAL(r.api->plan_read(r.model, first.data, first.n, &read, &r.err), &r.err);
  OPI_ASSERT_OK_FATAL(r.api->plan_write(read, add_text, &again, &r.err), &r.err);
  OPI_ASSERT(first.n == again.n && memcmp(first.data, again.data, first.n) == 0);
  r.api->plan_destroy(r.plan);
  r.plan = read;
  run_alone(&r, &w);
  open_session(&r, 0);
  check_bytes(&r, ranks_of(&w));
  run_mix(&r, &w, SEQUENCES);
  for (uint32_t s = 0; s < SEQUENCES; ++s)
    OPI_ASSERT(memcmp(alone[s], sequences[s].found, lengths[s] * (size_t)r.facts.row_bytes) == 0);
  close_session(&r);
  close_model(&r);
}

/* A cap of exactly what a rank needs is enough, one that is a byte smaller is not. */
static void check_arena(rig *r, const way *w, uint32_t n_pages) {
  way one = *w;
  one.stages = 1;
  OPI_ASSERT_OK_FATAL(make_plan(r, &one, 0, n_pages * 64), &r->err);
  const uint64_t most = plan_of(r)->predicted.memory[0].total_bytes;
  OPI_ASSERT_OK(make_plan(r, &one, most, n_pages * 64), &r->err);
  OPI_ASSERT(make_plan(r, &one, most - 1, n_pages * 64) == OPIPE_E_LIMIT);
}

/* Under caps there are as many pages as fit on every rank; one more does not. */
static void test_caps(void) {
  const way w = {"llama_8block", "local", 2, 1, 64, 7, 72};
  rig r;
  open_model(&r, w.model);
  OPI_ASSERT_OK_FATAL(make_plan(&r, &w, 0, 2 * 64), &r.err);
  uint64_t most = 0, page = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    const opi_memory *m = &plan_of(&r)->predicted.memory[i];
    most = m->total_bytes > most ? m->total_bytes : most;
    page = m->state_bytes / 2 > page ? m->state_bytes / 2 : page;
  }
  OPI_ASSERT_OK_FATAL(make_plan(&r, &w, most + 3 * page, 0), &r.err);
  const uint32_t n = plan_of(&r)->decided.binding.generation.n_pages;
  OPI_ASSERT(n >= 5 && n < 12 && plan_of(&r)->predicted.pages_rank < 2);
  open_session(&r, 0);
  check_bytes(&r, ranks_of(&w));
  close_session(&r);
  OPI_ASSERT_OK(make_plan(&r, &w, most + 3 * page, n * 64), &r.err);
  OPI_ASSERT(make_plan(&r, &w, most + 3 * page, (n + 1) * 64) == OPIPE_E_LIMIT);
  OPI_ASSERT(make_plan(&r, &w, most / 2, 0) == OPIPE_E_LIMIT);
  check_arena(&r, &w, n);
  close_model(&r);
}

static void test_refusals(void) {
  static const struct {
    way w;
    uint32_t rows, active;
    const char *why;
  } cases[] = {
      {{"llama_8block", "local", 1, 1, 65, 7, 72}, 8, 2, "a page has 65 tokens, no multiple of 64"},
      {{"llama_8block", "local", 1, 1, 64, 7, 1}, 8, 2, "context is 1, 2 to"},
      {{"llama_8block", "local", 1, 3, 64, 7, 72}, 8, 2, "groups is 3, 0 to 2"},
      {{"llama_8block", "local", 1, 1, 64, 7, 72}, 70000, 2, "rows is 70000, 1 to 65536"},
      {{"encoder", "local", 1, 1, 64, 7, 24}, 8, 2, "it is not causal"},
      {{"gpt_past", "local", 1, 1, 64, 7, 72}, 8, 2, "32 entries"},
  };
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    const way *w = &cases[i].w;
    rig r;
    open_model(&r, w->model);
    const opipe_generation_params generation = {.struct_size = (uint32_t)sizeof generation,
                                                .context = w->context,
                                                .page = w->page,
                                                .rows = cases[i].rows,
                                                .active = cases[i].active,
                                                .groups = w->groups};
    opipe_plan_params params = {.struct_size = (uint32_t)sizeof params, .generation = &generation};
    const opipe_status status = r.api->plan_make(r.model, &params, &r.plan, &r.err);
    (void)opi_test_check(status < 0 && strstr(r.err.message, cases[i].why) != NULL, __FILE__,
                         __LINE__, false, "case %zu: %d %s", i, status, r.err.message);
    close_model(&r);
  }
}

/* A session of a plan for generation refuses requests of other rows, and compiles none. */
static void test_other_rows(void) {
  const way w = {"llama_8block", "local", 1, 1, 64, 7, 72};
  static int64_t zeros[ROWS * 3];
  rig r;
  open_model(&r, w.model);
  OPI_ASSERT_OK_FATAL(make_plan(&r, &w, 0, 0), &r.err);
  open_session(&r, 0);
  const opi_pass_rows many = {.number = 1,
                              .n_rows = 3,
                              .n_sequences = SEQUENCES + 1,
                              .table_room = 2,
                              .ids = zeros,
                              .position = zeros,
                              .sequence = zeros,
                              .wanted = zeros,
                              .table = zeros};
  OPI_ASSERT(r.runner.begin(r.runner.ctx, &many, &r.err) == OPIPE_E_INVALID);
  OPI_ASSERT(strstr(r.err.message, "of 7 sequences") != NULL);
  OPI_ASSERT(r.api->plan_annotate(r.plan, add_text, &again, &r.err) == OPIPE_E_UNSUPPORTED);
  close_session(&r);
  close_model(&r);
}

OPI_TEST_MAIN("passes", OPI_TEST(test_bits), OPI_TEST(test_no_allocation), OPI_TEST(test_file),
              OPI_TEST(test_caps), OPI_TEST(test_refusals), OPI_TEST(test_other_rows))
