/* SPDX-License-Identifier: Apache-2.0 */
/* Runs graphs of rows: sequences that enter in slices of any length, mixed in every pass. */
#ifndef TESTS_LOADER_PASSES_ROWS_H
#define TESTS_LOADER_PASSES_ROWS_H

#include <math.h>

#include "loader/base/halves.h"
#include "loader/ops/common.h"
#include "loader/ops/kit.h"
#include "loader/passes/row_form.h"
#include "tests/loader/fusion/models.h"

enum { ROWS_SEQUENCES = 3, ROWS_CONTEXT = 70 };

typedef struct rows_model {
  test_model m;
  opi_row_form *form;
  const opi_evaluator *evaluator;
  opi_arena arena;
  int64_t lengths[ROWS_SEQUENCES];
  void *ids[ROWS_SEQUENCES]; /* [context] entries of every token of the first input */
  uint64_t token_bytes;      /* of an entry */
  uint64_t logit_bytes;      /* of a row's logits */
} rows_model;

static inline opipe_status rows_find(const test_model *m, const opi_evaluator *evaluator,
                                     int64_t context, const opi_dim_binding *dims, uint32_t n_dims,
                                     opi_row_form **out_form, opipe_error *err) {
  const opi_bind_options options = {
      .dims = dims, .n_dims = n_dims, .evaluator = evaluator, .allocator = opi_allocator_system()};
  return opi_row_form_find(m->model, &options, context, NULL, out_form, err);
}

/* Ids below the model's vocabulary, or activations. */
static inline void rows_make_ids(rows_model *t) {
  const opi_bound *whole = t->form->whole;
  const opi_value *x = &whole->graph->values[whole->graph->inputs[0]];
  opi_test_random random = {11};
  const int64_t most = whole->index_limits[0] > 0 ? whole->index_limits[0] : 2;
  const uint64_t entries = opi_elems(x) / (uint64_t)t->form->context;
  t->token_bytes = x->n_bytes / (uint64_t)t->form->context;
  for (uint32_t s = 0; s < ROWS_SEQUENCES; ++s) {
    t->ids[s] = opi_arena_alloc(&t->arena, x->n_bytes);
    for (uint64_t i = 0; i < entries * (uint64_t)t->form->context; ++i) {
      const int64_t id = (int64_t)(opi_test_next(&random) % (uint64_t)most);
      const float f = (float)opi_test_uniform(&random, -1, 1);
      if (x->dtype == OPIPE_INT64)
        ((int64_t *)t->ids[s])[i] = id;
      else if (x->dtype == OPIPE_INT32)
        ((int32_t *)t->ids[s])[i] = (int32_t)id;
      else if (x->dtype == OPIPE_FLOAT)
        ((float *)t->ids[s])[i] = f;
      else
        ((uint16_t *)t->ids[s])[i] = opi_half_of(f);
    }
  }
}

static inline bool rows_open(rows_model *t, const char *path, int64_t context,
                             const opi_dim_binding *dims, uint32_t n_dims, opipe_error *err) {
  memset(t, 0, sizeof *t);
  opi_arena_init(&t->arena, opi_allocator_system(), 0);
  t->evaluator = test_backend_evaluator();
  if (!test_load(&t->m, path, err) ||
      rows_find(&t->m, t->evaluator, context, dims, n_dims, &t->form, err) < 0)
    return false;
  t->lengths[0] = context;
  t->lengths[1] = context / 2 - 1;
  t->lengths[2] = 1;
  rows_make_ids(t);
  return true;
}

static inline void rows_close(rows_model *t) {
  opi_row_form_free(t->form);
  test_unload(&t->m);
  opi_arena_release(&t->arena);
}

/* The first sequence through the graph of a whole sequence: its logits. */
static inline const void *rows_whole(rows_model *t, opipe_error *err) {
  const opi_graph *g = t->form->whole->graph;
  opi_prepared *prepared = NULL;
  if (opi_prepared_create(t->evaluator, g, &prepared, err) < 0)
    return NULL;
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const opi_value *x = &g->values[g->inputs[i]];
    memset(opi_prepared_data(prepared, i), 0, x->n_bytes);
    if (i == 0)
      memcpy(opi_prepared_data(prepared, i), t->ids[0], x->n_bytes);
  }
  const opipe_status status = opi_prepared_run(prepared, err);
  const void *logits = NULL;
  for (uint32_t o = 0; status >= 0 && o < g->n_outputs; ++o) {
    if (g->outputs[o] == t->form->logits) {
      logits = opi_arena_copy(&t->arena, opi_prepared_data(prepared, g->n_inputs + o),
                              g->values[g->outputs[o]].n_bytes);
    }
  }
  opi_prepared_free(prepared);
  return logits;
}

/* One way to let the sequences enter. */
typedef struct rows_mix {
  int64_t rows, slice, page;
  int64_t wanted; /* the first of each pass; 0: all */
  bool alone;     /* one sequence after the other */
} rows_mix;

typedef struct rows_run {
  rows_model *t;
  const rows_mix *mix;
  opi_row_graph *graph;
  opi_prepared *prepared;
  uint8_t *logits[ROWS_SEQUENCES]; /* [context][logit_bytes] */
  bool *seen[ROWS_SEQUENCES];      /* [context] a row's logits were wanted */
  int64_t done[ROWS_SEQUENCES];
} rows_run;

static inline void *rows_slot(const rows_run *r, uint32_t value, bool output) {
  const opi_graph *g = r->graph->bound->graph;
  const uint32_t *list = output ? g->outputs : g->inputs;
  uint32_t i = 0;
  while (list[i] != value)
    ++i;
  return opi_prepared_data(r->prepared, output ? g->n_inputs + i : i);
}

/* Pages that hold what nobody may read, in an order that has no neighbours. */
static inline void rows_prepare(rows_run *r) {
  const opi_graph *g = r->graph->bound->graph;
  const opi_value *table = &g->values[r->graph->table];
  int64_t *pages = rows_slot(r, r->graph->table, false);
  const int64_t n = (int64_t)opi_elems(table);
  for (int64_t i = 0; i < n; ++i)
    pages[i] = n - 1 - i;
  for (uint32_t i = 0; i < 2 * r->graph->n_pages; ++i) {
    const uint32_t v = r->graph->pages[i / 2].in[i % 2];
    float *data = rows_slot(r, v, false);
    for (uint64_t k = 0; k < opi_elems(&g->values[v]); ++k)
      data[k] = NAN;
  }
  for (uint32_t i = 1; i < r->graph->n_ids; ++i)
    memset(opi_prepared_data(r->prepared, i), 0, g->values[g->inputs[i]].n_bytes);
}

/* Rows of the pass; returns their number. */
static inline int64_t rows_fill(rows_run *r) {
  int64_t *position = rows_slot(r, r->graph->position, false);
  int64_t *sequence = rows_slot(r, r->graph->sequence, false);
  uint8_t *ids = opi_prepared_data(r->prepared, 0);
  int64_t at = 0;
  bool busy = false;
  for (uint32_t s = ROWS_SEQUENCES; s-- > 0;) {
    int64_t n = r->t->lengths[s] - r->done[s];
    n = n < r->mix->slice ? n : r->mix->slice;
    n = n < r->mix->rows - at ? n : r->mix->rows - at;
    if (r->mix->alone && busy)
      n = 0;
    busy = busy || n > 0;
    for (int64_t k = 0; k < n; ++k, ++at, ++r->done[s]) {
      position[at] = r->done[s];
      sequence[at] = s;
      memcpy(ids + (uint64_t)at * r->t->token_bytes,
             (const uint8_t *)r->t->ids[s] + (uint64_t)r->done[s] * r->t->token_bytes,
             r->t->token_bytes);
    }
  }
  for (int64_t i = at; i < r->mix->rows; ++i) {
    position[i] = 0;
    sequence[i] = -1;
    memset(ids + (uint64_t)i * r->t->token_bytes, 0, r->t->token_bytes);
  }
  return at;
}

/* Logits of the wanted rows; wants the last ones, in falling order. */
static inline opipe_status rows_pass(rows_run *r, opipe_error *err) {
  const int64_t n = rows_fill(r);
  const int64_t *position = rows_slot(r, r->graph->position, false);
  const int64_t *sequence = rows_slot(r, r->graph->sequence, false);
  int64_t *wanted = r->mix->wanted > 0 ? rows_slot(r, r->graph->wanted, false) : NULL;
  for (int64_t i = 0; i < r->mix->wanted; ++i)
    wanted[i] = n - 1 - i > 0 ? n - 1 - i : 0;
  OPI_TRY(opi_prepared_run(r->prepared, err));
  const uint8_t *logits = rows_slot(r, r->graph->logits, true);
  for (int64_t i = 0; i < (wanted != NULL ? r->mix->wanted : n); ++i) {
    const int64_t row = wanted != NULL ? wanted[i] : i;
    memcpy(r->logits[sequence[row]] + (uint64_t)position[row] * r->t->logit_bytes,
           logits + (uint64_t)i * r->t->logit_bytes, r->t->logit_bytes);
    r->seen[sequence[row]][position[row]] = true;
  }
  for (uint32_t i = 0; i < 2 * r->graph->n_pages; ++i) {
    const opi_row_pages *pages = &r->graph->pages[i / 2];
    memcpy(rows_slot(r, pages->in[i % 2], false), rows_slot(r, pages->out[i % 2], true),
           r->graph->bound->graph->values[pages->in[i % 2]].n_bytes);
  }
  return OPIPE_OK;
}

/* Everything in one mix; results in the model's arena. */
static inline opipe_status rows_run_mix(rows_model *t, const rows_mix *mix, rows_run *r,
                                        opipe_error *err) {
  const int64_t columns = (t->form->context - 1) / mix->page + 1;
  const opi_row_wish wish = {.rows = mix->rows,
                             .wanted = mix->wanted,
                             .sequences = ROWS_SEQUENCES,
                             .page = mix->page,
                             .pages = ROWS_SEQUENCES * columns};
  memset(r, 0, sizeof *r);
  r->t = t;
  r->mix = mix;
  OPI_TRY(opi_row_graph_make(t->form, &wish, opi_allocator_system(), &r->graph, err));
  const opi_value *y = &r->graph->bound->graph->values[r->graph->logits];
  t->logit_bytes = y->n_bytes / (uint64_t)(mix->wanted > 0 ? mix->wanted : mix->rows);
  for (uint32_t s = 0; s < ROWS_SEQUENCES; ++s) {
    r->logits[s] = opi_arena_alloc(&t->arena, t->logit_bytes * (uint64_t)t->form->context);
    r->seen[s] = OPI_ARENA_ARRAY(&t->arena, bool, (size_t)t->form->context);
  }
  opipe_status status =
      opi_prepared_create(t->evaluator, r->graph->bound->graph, &r->prepared, err);
  if (status >= 0)
    rows_prepare(r);
  bool more = true;
  while (status >= 0 && more) {
    status = rows_pass(r, err);
    more = false;
    for (uint32_t s = 0; s < ROWS_SEQUENCES; ++s)
      more = more || r->done[s] < t->lengths[s];
  }
  opi_prepared_free(r->prepared);
  opi_row_graph_free(r->graph);
  return status;
}

/* ---- checks ---- */

static const rows_mix rows_mixes[] = {
    {ROWS_CONTEXT, ROWS_CONTEXT, 64, 0, true}, /* the reference: all rows of one sequence */
    {9, 7, 128, 0, false},
    {4, 1, 64, 2, false},
    {67, 64, 64, 0, false},
};

static inline double rows_number_at(const opi_value *y, const void *data, uint64_t i) {
  const opi_value known = {.data = data, .dtype = y->dtype};
  return opi_known_element(&known, i);
}

/* n logits of both, by the type's tolerance. */
static inline bool rows_are_close(const char *name, const char *what, const opi_value *y,
                                  const void *a, const void *b, uint64_t n) {
  const double tolerance = y->dtype == OPIPE_FLOAT16    ? 2e-3
                           : y->dtype == OPIPE_BFLOAT16 ? 2e-2
                                                        : 1e-5;
  double most = 0, off = 0;
  bool finite = true;
  for (uint64_t i = 0; i < n; ++i) {
    const double x = rows_number_at(y, a, i), z = rows_number_at(y, b, i);
    most = fmax(most, fabs(x));
    off = fmax(off, fabs(x - z));
    finite = finite && isfinite(z);
  }
  return opi_test_check(finite && most > 1e-3 && off <= tolerance * most, __FILE__, __LINE__, false,
                        "%s: %s: off by %g of %g", name, what, off, most);
}

static inline void rows_check_bits(const char *name, const rows_model *t, const rows_run *a,
                                   const rows_run *b, size_t mix) {
  uint32_t n = 0;
  for (uint32_t s = 0; s < ROWS_SEQUENCES; ++s) {
    for (int64_t p = 0; p < t->lengths[s]; ++p) {
      const uint64_t at = (uint64_t)p * t->logit_bytes;
      n += b->seen[s][p];
      if (b->seen[s][p] &&
          !opi_test_check(memcmp(a->logits[s] + at, b->logits[s] + at, t->logit_bytes) == 0,
                          __FILE__, __LINE__, false, "%s: mix %zu: token %d of sequence %u", name,
                          mix, (int)p, s))
        return;
    }
  }
  OPI_ASSERT(n > 0);
}

/* All mixes of an open model, and the whole sequence; *out_first: the reference. */
static inline bool rows_check_mixes(const char *name, rows_model *t, size_t n_mixes,
                                    rows_run *out_first) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_value *y = &t->form->whole->graph->values[t->form->logits];
  const void *whole = rows_whole(t, &err);
  rows_run other;
  for (size_t i = 0; i < n_mixes && whole != NULL; ++i) {
    rows_mix mix = rows_mixes[i];
    if (i == 0)
      mix.rows = mix.slice = t->form->context;
    if (rows_run_mix(t, &mix, i == 0 ? out_first : &other, &err) < 0) {
      OPI_FAIL("%s: mix %zu: %s", name, i, err.message);
      return false;
    }
    if (i == 0 && !rows_are_close(name, "whole", y, whole, out_first->logits[0], opi_elems(y)))
      return false;
    if (i > 0)
      rows_check_bits(name, t, out_first, &other, i);
  }
  return opi_test_check(whole != NULL, __FILE__, __LINE__, false, "%s: %s", name, err.message);
}

#endif /* TESTS_LOADER_PASSES_ROWS_H */
