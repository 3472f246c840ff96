/* SPDX-License-Identifier: Apache-2.0 */
/* The row form of decoders. Logits are close to those of the model as it is, whole and behind a
 * past, and have the same bits however the sequences are mixed, sliced and paged.
 */
#include "tests/loader/passes/rows.h"

static const char *file_of(const char *name, char *path, size_t n) {
  (void)snprintf(path, n, "tests/data/%s/model.onnx", name);
  return opi_test_source(path);
}

/* ---- a model as it is, behind a past ---- */

static int64_t number_of(const char *name, int64_t past, int64_t n, uint64_t i) {
  if (strcmp(name, "seqlens_k") == 0)
    return past + n - 1;
  if (strcmp(name, "total_sequence_length") == 0 || strcmp(name, "nonpad_kv_seqlen") == 0)
    return past + n;
  if (strcmp(name, "write_indices") == 0)
    return past;
  if (strcmp(name, "cache_position") == 0 || strcmp(name, "position_ids") == 0)
    return past + (int64_t)i;
  return 1; /* masks, branches */
}

/* Past keys: the first rows of what a whole sequence leaves, along dimension rank - 2. */
static void fill_past(const opi_value *past, const opi_value *present, const void *from, void *to,
                      int64_t keys) {
  const int64_t size = past->shape[past->rank - 1], room = past->shape[past->rank - 2];
  const int64_t have = present->shape[present->rank - 2];
  memset(to, 0, past->n_bytes);
  for (int64_t o = 0; o < (int64_t)opi_elems(past) / (room * size); ++o) {
    memcpy((float *)to + o * room * size, (const float *)from + o * have * size,
           (size_t)(keys * size) * sizeof(float));
  }
}

/* Feeds of a bound graph: ids, then by name; states from the whole graph's outputs, in order. */
static void feed_as_it_is(rows_model *t, const opi_graph *g, opi_prepared *to, opi_prepared *whole,
                          int64_t past, int64_t n) {
  const opi_graph *from = t->form->whole->graph;
  uint32_t state = 1; /* output 0 are the logits */
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const opi_value *x = &g->values[g->inputs[i]];
    void *data = opi_prepared_data(to, i);
    if (i == 0) {
      memcpy(data, (int64_t *)t->ids[0] + past, x->n_bytes);
    } else if (x->dtype == OPIPE_FLOAT) {
      fill_past(x, &from->values[from->outputs[state]],
                opi_prepared_data(whole, from->n_inputs + state), data, past);
      ++state;
    } else {
      for (uint64_t k = 0; k < opi_elems(x); ++k) {
        const int64_t number = number_of(x->name, past, n, k);
        if (x->dtype == OPIPE_INT64)
          ((int64_t *)data)[k] = number;
        else if (x->dtype == OPIPE_INT32)
          ((int32_t *)data)[k] = (int32_t)number;
        else
          ((uint8_t *)data)[k] = 1;
      }
    }
  }
}

/* The branch and the lengths decide shapes: they are pinned, as a host does. */
static opipe_status bind_as_it_is(const rows_model *t, int64_t past, int64_t n,
                                  opi_bound **out_bound, opipe_error *err) {
  static const uint8_t yes = 1;
  static const int64_t one = 1;
  const int32_t total = (int32_t)(past + n);
  const opi_dim_binding dims[3] = {{"batch", 1}, {"seq", n}, {"past", past}};
  const opi_pin pins[2] = {{"use_cache_branch", &yes, &one, 1, OPIPE_BOOL},
                           {"total_sequence_length", &total, &one, 1, OPIPE_INT32}};
  bool branch = false, lengths = false, grows = false;
  for (uint32_t i = 0; i < t->m.model->graph->n_inputs; ++i) {
    const opi_value *x = &t->m.model->graph->values[t->m.model->graph->inputs[i]];
    branch = branch || strcmp(x->name, pins[0].input) == 0;
    lengths = lengths || strcmp(x->name, pins[1].input) == 0;
    grows = grows || (x->rank > 3 && x->shape[x->rank - 2] < 0);
  }
  const opi_bind_options options = {.dims = dims,
                                    .n_dims = grows ? 3 : 2,
                                    .pins = branch ? pins : pins + 1,
                                    .n_pins = branch || lengths,
                                    .flags = OPI_BIND_DEFAULTS,
                                    .evaluator = t->evaluator,
                                    .allocator = opi_allocator_system()};
  return opi_bind(t->m.model, &options, out_bound, err);
}

/* n tokens behind `past` ones by the model as it is. */
static void check_as_it_is(const char *name, rows_model *t, const rows_run *rows, int64_t past,
                           int64_t n) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_graph *from = t->form->whole->graph;
  opi_bound *bound = NULL;
  opi_prepared *whole = NULL, *prepared = NULL;
  opipe_status status = opi_prepared_create(t->evaluator, from, &whole, &err);
  for (uint32_t i = 0; status >= 0 && i < from->n_inputs; ++i) {
    const opi_value *x = &from->values[from->inputs[i]];
    memset(opi_prepared_data(whole, i), 0, x->n_bytes);
    if (i == 0)
      memcpy(opi_prepared_data(whole, i), t->ids[0], x->n_bytes);
  }
  if (status >= 0)
    status = opi_prepared_run(whole, &err);
  if (status >= 0)
    status = bind_as_it_is(t, past, n, &bound, &err);
  if (status >= 0)
    status = opi_prepared_create(t->evaluator, bound->graph, &prepared, &err);
  if (status >= 0) {
    feed_as_it_is(t, bound->graph, prepared, whole, past, n);
    status = opi_prepared_run(prepared, &err);
  }
  if (status >= 0) {
    const opi_value *y = &bound->graph->values[bound->graph->outputs[0]];
    (void)rows_are_close(name, "behind a past", y,
                         opi_prepared_data(prepared, bound->graph->n_inputs),
                         rows->logits[0] + (uint64_t)past * t->logit_bytes, opi_elems(y));
  } else {
    OPI_FAIL("%s behind %d: %s", name, (int)past, err.message);
  }
  opi_prepared_free(prepared);
  opi_prepared_free(whole);
  opi_bound_free(bound);
}

/* ---- every form of one decoder ---- */

static void test_forms(void) {
  static const char *const forms[] = {
      "whole",      "grown",          "combined",   "merged",
      "attention",  "tensor_scatter", "scatter_nd", "scatter_elements",
      "multi_head", "group_query",    "mask_given"};
  rows_model first = {0};
  rows_run reference = {0};
  for (size_t i = 0; i < OPI_COUNT(forms); ++i) {
    char path[200], name[100];
    rows_model t;
    rows_run r;
    opipe_error err = OPIPE_ERROR_INIT;
    (void)snprintf(name, sizeof name, "rows/%s", forms[i]);
    if (!rows_open(&t, file_of(name, path, sizeof path), ROWS_CONTEXT, NULL, 0, &err)) {
      OPI_FAIL("%s: %s", name, err.message);
    } else if (rows_check_mixes(name, &t, OPI_COUNT(rows_mixes), &r)) {
      const opi_value *y = &t.form->whole->graph->values[t.form->logits];
      reference = i == 0 ? r : reference;
      (void)rows_are_close(name, "as other forms", y, reference.logits[0], r.logits[0],
                           opi_elems(y));
      const bool keeps = t.form->whole->graph->n_outputs > 1;
      for (int64_t past = 1; keeps && past < ROWS_CONTEXT; past += 32)
        check_as_it_is(name, &t, &r, past, past % 3 + 1);
    }
    if (i == 0)
      first = t; /* keeps the reference */
    else
      rows_close(&t);
  }
  rows_close(&first);
}

/* Activations in place of ids. */
static void test_activations(void) {
  char path[200];
  rows_model t;
  rows_run r;
  opipe_error err = OPIPE_ERROR_INIT;
  const char *file = file_of("rows/embeddings", path, sizeof path);
  OPI_ASSERT_FATAL(rows_open(&t, file, ROWS_CONTEXT, NULL, 0, &err));
  (void)rows_check_mixes("embeddings", &t, OPI_COUNT(rows_mixes), &r);
  rows_close(&t);
}

/* Files that make the logits of the last token alone: every row is the last of what it sees. */
static void test_last_tokens(void) {
  static const char *const names[] = {"rows/last_sliced", "rows/last_gathered"};
  char path[200];
  rows_model whole, t;
  rows_run all, r;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_FATAL(
      rows_open(&whole, file_of("rows/whole", path, sizeof path), ROWS_CONTEXT, NULL, 0, &err));
  OPI_ASSERT_OK_FATAL(rows_run_mix(&whole, &rows_mixes[0], &all, &err), &err);
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    if (!rows_open(&t, file_of(names[i], path, sizeof path), ROWS_CONTEXT, NULL, 0, &err)) {
      OPI_FAIL("%s: %s", names[i], err.message);
      return;
    }
    const opi_value *y = &t.form->whole->graph->values[t.form->logits];
    const float *last = rows_whole(&t, &err);
    OPI_ASSERT_INT(opi_elems(y), 24);
    for (size_t k = 0; k < OPI_COUNT(rows_mixes); ++k) {
      OPI_ASSERT_OK_FATAL(rows_run_mix(&t, &rows_mixes[k], &r, &err), &err);
      OPI_ASSERT_INT(t.logit_bytes, whole.logit_bytes);
      rows_check_bits(names[i], &t, &all, &r, k);
    }
    OPI_ASSERT_FATAL(last != NULL);
    (void)rows_are_close(names[i], "whole", y, last,
                         all.logits[0] + (ROWS_CONTEXT - 1) * whole.logit_bytes, 24);
    rows_close(&t);
  }
  rows_close(&whole);
}

/* A sequence of NaN, in every pass beside the others, changes none of their bits. */
static void test_nan_beside_others(void) {
  char path[200];
  rows_model t;
  rows_run alone, beside;
  opipe_error err = OPIPE_ERROR_INIT;
  const char *file = file_of("rows/embeddings", path, sizeof path);
  OPI_ASSERT_FATAL(rows_open(&t, file, ROWS_CONTEXT, NULL, 0, &err));
  t.lengths[1] = t.lengths[0];
  OPI_ASSERT_OK_FATAL(rows_run_mix(&t, &rows_mixes[0], &alone, &err), &err);
  float *x = t.ids[1];
  for (uint64_t i = 0; i < t.token_bytes / sizeof *x * (uint64_t)t.lengths[1]; ++i)
    x[i] = NAN;
  for (size_t i = 1; i < OPI_COUNT(rows_mixes); ++i) {
    OPI_ASSERT_OK_FATAL(rows_run_mix(&t, &rows_mixes[i], &beside, &err), &err);
    const float *logits = (const float *)(const void *)beside.logits[1];
    OPI_ASSERT(isnan(logits[0]));
    memcpy(beside.logits[1], alone.logits[1], t.logit_bytes * (uint64_t)t.lengths[1]);
    rows_check_bits("NaN beside", &t, &alone, &beside, i);
  }
  rows_close(&t);
}

/* Windows and slopes become attributes, nothing else. */
static void test_masks(void) {
  static const char *const names[] = {"rows/window", "rows/alibi"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    char path[200];
    rows_model t;
    rows_run r;
    opi_row_graph *graph = NULL;
    opipe_error err = OPIPE_ERROR_INIT;
    const opi_row_wish wish = {.rows = 3, .sequences = 1, .page = 64, .pages = 2};
    if (!rows_open(&t, file_of(names[i], path, sizeof path), ROWS_CONTEXT, NULL, 0, &err) ||
        !rows_check_mixes(names[i], &t, OPI_COUNT(rows_mixes), &r) ||
        opi_row_graph_make(t.form, &wish, opi_allocator_system(), &graph, &err) < 0) {
      OPI_FAIL("%s: %s", names[i], err.message);
    } else {
      OPI_ASSERT_INT(graph->n_pages, 2);
      OPI_ASSERT_INT(graph->pages[0].window, i == 0 ? 5 : 0);
      const opi_graph *g = graph->bound->graph;
      const opi_node *node = &g->nodes[g->values[graph->pages[1].out[0]].producer];
      OPI_ASSERT_INT(node->n_in, i == 0 ? 8 : 9);
      const float *slopes = i == 0 ? NULL : g->values[node->in[8]].data;
      OPI_ASSERT(i == 0 || (fabsf(slopes[0] - 0.5f) < 1e-6f && fabsf(slopes[1] - 0.0625f) < 1e-6f));
      OPI_ASSERT_INT(graph->wanted, OPIPE_NONE);
    }
    opi_row_graph_free(graph);
    rows_close(&t);
  }
}

/* Behind the last attention only wanted rows are computed. */
static void test_wanted(void) {
  char path[200];
  rows_model t;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_row_graph *graph = NULL;
  const opi_row_wish wish = {.rows = 16, .wanted = 2, .sequences = 3, .page = 64, .pages = 2};
  OPI_ASSERT_FATAL(
      rows_open(&t, file_of("rows/whole", path, sizeof path), ROWS_CONTEXT, NULL, 0, &err));
  OPI_ASSERT_OK_FATAL(opi_row_graph_make(t.form, &wish, opi_allocator_system(), &graph, &err),
                      &err);
  const opi_graph *g = graph->bound->graph;
  const uint32_t last = g->values[graph->pages[1].out[0]].producer;
  uint32_t n_products = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_value *y = &g->values[g->nodes[n].out[0]];
    if (opi_op_of(&g->nodes[n])->kind != OPI_KIND_PRODUCT)
      continue;
    OPI_ASSERT_INT(y->shape[y->rank - 2], n < last ? 16 : 2);
    n_products += n > last;
  }
  OPI_ASSERT_INT(n_products, 4); /* of attention's result, two of the layer, the head */
  OPI_ASSERT_INT(g->n_inputs, 9);
  OPI_ASSERT_INT(graph->bound->index_limits[0], 24);
  opi_row_graph_free(graph);
  rows_close(&t);
}

/* ---- another program's numbers ---- */

/* Tokens of a prompt and 7 greedy steps: onnxruntime's logits. */
static void test_another_programs_numbers(void) {
  enum { VOCABULARY = 320, MOST = 71 };
  static const int64_t prompts[] = {1, 7, 64};
  static const opi_dim_binding dims[] = {{"kv_cache_dim", 16}};
  static float wanted[MOST * VOCABULARY];
  char path[200];
  for (size_t i = 0; i < OPI_COUNT(prompts); ++i) {
    const int64_t n = prompts[i] + 7;
    rows_model t;
    rows_run r;
    opipe_error err = OPIPE_ERROR_INIT;
    if (!rows_open(&t, file_of("shared_buffer", path, sizeof path), MOST, dims, 1, &err)) {
      OPI_FAIL("%s", err.message);
      return;
    }
    (void)snprintf(path, sizeof path, "tests/data/shared_buffer/logits_%d.f32", (int)prompts[i]);
    FILE *file = fopen(opi_test_source(path), "rb");
    OPI_ASSERT_FATAL(file != NULL);
    OPI_ASSERT_INT(fread(wanted, VOCABULARY * sizeof(float), (size_t)n, file), (size_t)n);
    (void)fclose(file);
    int64_t *ids = t.ids[0];
    for (int64_t k = 0; k < n; ++k) {
      ids[k] = (11 * k + 3) % 96;
      for (int64_t c = 0; k >= prompts[i] && c < VOCABULARY; ++c) {
        const float *row = wanted + (k - 1) * VOCABULARY;
        ids[k] = c == 0 || row[c] > row[ids[k]] ? c : ids[k];
      }
    }
    t.lengths[0] = n;
    const opi_value *y = &t.form->whole->graph->values[t.form->logits];
    OPI_ASSERT_OK_FATAL(rows_run_mix(&t, &rows_mixes[1], &r, &err), &err);
    (void)rows_are_close("shared_buffer", "onnxruntime", y, wanted, r.logits[0],
                         (uint64_t)(n * VOCABULARY));
    rows_close(&t);
  }
}

/* ---- refusals ---- */

static void test_refusals(void) {
  static const struct {
    const char *name, *why;
  } files[] = {
      {"both_ways", "it is not causal: row 0 reads token 1"},
      {"relative_table", "a table of relative positions"},
      {"with_holes", "its mask is no window: keys 1 tokens before a row are hidden, and some 69"},
      {"windows_apart", "its heads have windows of unlike lengths"},
      {"rows_mixed", "(ReduceMean) does not carry the axis: dimension 1"},
      {"rows_shifted", "(Pad) does not carry the axis: dimension 1 is padded"},
      {"by_length", "is another for 4 tokens than for 70"},
      {"branch_on_length", "is another for 4 tokens than for 70: the context crosses a branch"},
      {"branch_on_table", "reads 'table_long' for 70 tokens, 'table_short' for 4: the context"},
      {"recurrent", "(Add): no row form: it joins rows with a state"},
      {"convolved", "(Concat): no row form: it joins rows with a state"},
      {"crossed", "its keys or values are the same for all rows: cross-attention"},
      {"scatter_elsewhere", "(ScatterElements): no row form: it joins rows with a state"},
  };
  for (size_t i = 0; i < OPI_COUNT(files); ++i) {
    char path[200], name[100];
    rows_model t;
    rows_run r;
    opipe_error err = OPIPE_ERROR_INIT;
    (void)snprintf(name, sizeof name, "rows/%s", files[i].name);
    opipe_status status = OPIPE_E_UNSUPPORTED;
    if (rows_open(&t, file_of(name, path, sizeof path), ROWS_CONTEXT, NULL, 0, &err))
      status = rows_run_mix(&t, &rows_mixes[1], &r, &err);
    (void)opi_test_check(status == OPIPE_E_UNSUPPORTED && strstr(err.message, files[i].why) != NULL,
                         __FILE__, __LINE__, false, "%s: %d %s", name, status, err.message);
    rows_close(&t);
  }
}

/* A branch on the length is pinned while the context stays on one side. */
static void test_branch_on_one_side(void) {
  char path[200];
  rows_model t;
  rows_run r;
  opipe_error err = OPIPE_ERROR_INIT;
  const char *file = file_of("rows/branch_on_length", path, sizeof path);
  OPI_ASSERT_FATAL(rows_open(&t, file, 12, NULL, 0, &err));
  (void)rows_check_mixes("branch_on_length", &t, 2, &r);
  rows_close(&t);
}

static void test_bad_numbers(void) {
  static const struct {
    opi_row_wish wish;
    const char *why;
  } wishes[] = {{{0, 0, 1, 64, 1}, "0 rows, 1 sequences, 1 pages of 64 tokens"},
                {{4, 0, 0, 64, 1}, "4 rows, 0 sequences"},
                {{4, 0, 1, 0, 1}, "pages of 0 tokens"},
                {{4, 0, 1, 64, 0}, "0 pages of 64 tokens"},
                {{4, 5, 1, 64, 1}, "5 of 4 rows are wanted"},
                {{4, -1, 1, 64, 1}, "-1 of 4 rows are wanted"}};
  char path[200];
  rows_model t;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_row_graph *graph = NULL;
  opi_row_form *form = NULL;
  OPI_ASSERT_FATAL(
      rows_open(&t, file_of("rows/whole", path, sizeof path), ROWS_CONTEXT, NULL, 0, &err));
  for (size_t i = 0; i < OPI_COUNT(wishes); ++i) {
    OPI_ASSERT_ERROR(
        opi_row_graph_make(t.form, &wishes[i].wish, opi_allocator_system(), &graph, &err),
        OPIPE_E_INVALID, &err, wishes[i].why);
  }
  OPI_ASSERT_ERROR(rows_find(&t.m, t.evaluator, 1, NULL, 0, &form, &err), OPIPE_E_INVALID, &err,
                   "a context of 1 tokens, 2 is the least");
  OPI_ASSERT(rows_find(&t.m, t.evaluator, 81, NULL, 0, &form, &err) < 0 &&
             strstr(err.message, "index 80") != NULL && strstr(err.message, "80 entries") != NULL);
  rows_close(&t);
}

OPI_TEST_MAIN("row form", OPI_TEST(test_forms), OPI_TEST(test_activations),
              OPI_TEST(test_last_tokens), OPI_TEST(test_nan_beside_others), OPI_TEST(test_masks),
              OPI_TEST(test_wanted), OPI_TEST(test_another_programs_numbers),
              OPI_TEST(test_refusals), OPI_TEST(test_branch_on_one_side),
              OPI_TEST(test_bad_numbers))
