/* SPDX-License-Identifier: Apache-2.0 */
/* The row form of a model as a model of its own. Its file graph has inputs and outputs alone: they
 * are those of the largest graph, with names in place of the numbers that follow the rows. */
#include "loader/passes/row_model.h"

#include <inttypes.h>
#include <pthread.h>

static int64_t lesser(int64_t a, int64_t b) {
  return a < b ? a : b;
}

opi_row_wish opi_row_model_wish(const opi_row_model *model, int64_t rows) {
  const opi_row_sizes *s = &model->sizes;
  const int64_t sequences = lesser(rows, s->sequences);
  return (opi_row_wish){.rows = rows,
                        .wanted = lesser(rows, s->wanted),
                        .sequences = sequences,
                        .page = s->page,
                        .pages = s->pages,
                        .copies = sequences,
                        .in_place = true};
}

void opi_row_model_dims(const opi_row_model *model, int64_t rows,
                        opi_dim_binding out_dims[OPI_ROW_DIMS]) {
  const opi_row_wish wish = opi_row_model_wish(model, rows);
  out_dims[0] = (opi_dim_binding){"rows", wish.rows};
  out_dims[1] = (opi_dim_binding){"sequences", wish.sequences};
  out_dims[2] = (opi_dim_binding){"wanted", wish.wanted};
  out_dims[3] = (opi_dim_binding){"copies", wish.copies};
}

/* ---- the file graph ---- */

/* A port of the graph, with a name for its first dimension; NULL: none. */
static opipe_status add_port(opi_row_model *m, const opi_graph *from, uint32_t v, const char *first,
                             uint32_t *out, opipe_error *err) {
  const opi_value *x = &from->values[v];
  opi_graph *g = m->model.graph;
  int64_t shape[OPIPE_MAX_RANK];
  for (int32_t d = 0; d < x->rank; ++d)
    shape[d] = d == 0 && first != NULL ? -1 : x->shape[d];
  const char *name = opi_arena_strdup(g->arena, x->name);
  const char **names = OPI_ARENA_ARRAY(g->arena, const char *, (size_t)x->rank + 1);
  *out = name == NULL || names == NULL ? OPIPE_NONE
                                       : opi_graph_add_value(g, name, x->dtype, shape, x->rank);
  if (*out == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof *x, "a model of rows");
  names[0] = first;
  g->values[*out].dim_names = first == NULL ? NULL : names;
  return OPIPE_OK;
}

static const char *first_of(const opi_row_graph *graph, uint32_t v) {
  if (v == graph->table)
    return "sequences";
  if (v == graph->wanted)
    return "wanted";
  return v == graph->copies ? "copies" : "rows";
}

static opipe_status add_ports(opi_row_model *m, const opi_row_graph *graph, opipe_error *err) {
  const opi_graph *from = graph->bound->graph;
  uint32_t v;
  m->model.graph = opi_graph_new(&m->model.arena, "rows");
  if (m->model.graph == NULL)
    return opi_fail_nomem(err, sizeof *m->model.graph, "a model of rows");
  for (uint32_t i = 0; i < from->n_inputs; ++i) {
    const uint32_t in = from->inputs[i];
    if ((from->values[in].flags & OPI_VALUE_HELD) != 0)
      continue;
    OPI_TRY(add_port(m, from, in, first_of(graph, in), &v, err));
    m->model.graph->values[v].flags = OPI_VALUE_INPUT;
    if (!opi_graph_add_input(m->model.graph, v))
      return opi_fail_nomem(err, sizeof v, "a model of rows");
  }
  for (uint32_t o = 0; o < from->n_outputs; ++o) {
    OPI_TRY(add_port(m, from, from->outputs[o], NULL, &v, err));
    m->model.graph->values[v].flags = OPI_VALUE_OUTPUT;
    if (!opi_graph_add_output(m->model.graph, v))
      return opi_fail_nomem(err, sizeof v, "a model of rows");
  }
  return OPIPE_OK;
}

/* ---- made, bound, freed ---- */

static opipe_status make_graph(opi_row_model *m, int64_t rows, const opipe_allocator *allocator,
                               opi_row_graph **out_graph, opipe_error *err) {
  const opi_row_wish wish = opi_row_model_wish(m, rows);
  pthread_mutex_t *lock = m->lock;
  (void)pthread_mutex_lock(lock);
  const opipe_status status = opi_row_graph_make(m->form, &wish, allocator, out_graph, err);
  (void)pthread_mutex_unlock(lock);
  return status;
}

/* Finds the form. A model that has no positions for the whole context may be no decoder at all: it
 * is asked for few tokens then, and refused for what is found with them. */
static opipe_status find_form(opi_row_model *m, const opi_bind_options *options, const char *output,
                              opipe_error *err) {
  enum { FEW = 8 };
  const opi_row_wish wish = opi_row_model_wish(m, m->sizes.rows);
  const opipe_status status =
      opi_row_form_find(m->file, options, m->sizes.context, output, &m->form, err);
  opipe_error why = OPIPE_ERROR_INIT;
  opi_row_form *form = NULL;
  opi_row_graph *graph = NULL;
  if (status >= 0 || status == OPIPE_E_NOMEM || m->sizes.context <= FEW)
    return status;
  opipe_status few = opi_row_form_find(m->file, options, FEW, output, &form, &why);
  if (few >= 0)
    few = opi_row_graph_make(form, &wish, options->allocator, &graph, &why);
  opi_row_graph_free(graph);
  opi_row_form_free(form);
  return few == OPIPE_E_UNSUPPORTED ? opi_fail(err, few, "%s", why.message) : status;
}

static opipe_status make(opi_row_model *m, const opi_bind_options *options, const char *output,
                         opipe_error *err) {
  opi_row_graph *graph = NULL;
  pthread_mutex_t *lock = OPI_ARENA_NEW(&m->model.arena, pthread_mutex_t);
  if (lock == NULL || pthread_mutex_init(lock, NULL) != 0)
    return opi_fail_nomem(err, sizeof *lock, "a model of rows");
  m->lock = lock;
  OPI_TRY(find_form(m, options, output, err));
  OPI_TRY(make_graph(m, m->sizes.rows, options->allocator, &graph, err));
  m->n_known = graph->bound->index_limits[0];
  const opipe_status status = add_ports(m, graph, err);
  opi_row_graph_free(graph);
  return status;
}

opipe_status opi_row_model_make(const opi_model *file, const opi_bind_options *options,
                                const opi_row_sizes *sizes, const char *output,
                                opi_row_model **out_model, opipe_error *err) {
  opi_row_model *m = opi_alloc_zero(options->allocator, 1, sizeof *m);
  if (m == NULL)
    return opi_fail_nomem(err, sizeof *m, "a model of rows");
  m->model = *file;
  m->model.allocator = options->allocator;
  m->model.rows = m;
  m->model.graph = NULL;
  m->model.n_stages = 0; /* annotations are of the file's nodes */
  opi_arena_init(&m->model.arena, options->allocator, 0);
  m->file = file;
  m->sizes = *sizes;
  const opipe_status status = make(m, options, output, err);
  if (status < 0) {
    opi_row_model_free(m);
    return status;
  }
  *out_model = m;
  return OPIPE_OK;
}

void opi_row_model_free(opi_row_model *m) {
  if (m == NULL)
    return;
  const opipe_allocator *allocator = m->model.allocator;
  opi_row_form_free(m->form);
  if (m->lock != NULL)
    (void)pthread_mutex_destroy(m->lock);
  opi_arena_release(&m->model.arena);
  opi_free(allocator, m, sizeof *m);
}

/* The rows, which the other dimensions must follow. */
static opipe_status find_rows(const opi_row_model *m, const opi_bind_options *options,
                              int64_t *out_rows, opipe_error *err) {
  opi_dim_binding wanted[OPI_ROW_DIMS];
  *out_rows = m->sizes.rows;
  for (uint32_t d = 0; d < options->n_dims; ++d) {
    if (strcmp(options->dims[d].name, "rows") == 0)
      *out_rows = options->dims[d].value;
  }
  opi_row_model_dims(m, *out_rows, wanted);
  for (uint32_t d = 0; d < options->n_dims; ++d) {
    uint32_t k = 0;
    while (k < OPI_ROW_DIMS && strcmp(wanted[k].name, options->dims[d].name) != 0)
      ++k;
    if (k < OPI_ROW_DIMS && wanted[k].value != options->dims[d].value) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "a pass of %" PRId64 " rows has %s=%" PRId64 ", not %" PRId64, *out_rows,
                      wanted[k].name, wanted[k].value, options->dims[d].value);
    }
  }
  if (*out_rows <= m->sizes.rows)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_LIMIT,
                  "a pass of %" PRId64 " rows, the plan has %" PRId64 " at most", *out_rows,
                  m->sizes.rows);
}

opipe_status opi_row_model_bind(opi_row_model *m, const opi_bind_options *options,
                                opi_bound **out_bound, opipe_error *err) {
  opi_row_graph *graph = NULL;
  int64_t rows = 0;
  OPI_TRY(find_rows(m, options, &rows, err));
  OPI_TRY(make_graph(m, rows, options->allocator, &graph, err));
  opi_bound *bound = graph->bound;
  bound->n_file_nodes = m->file->n_file_nodes;
  bound->dims = OPI_ARENA_ARRAY(&bound->arena, opi_dim_binding, OPI_ROW_DIMS);
  if (bound->dims == NULL) {
    opi_row_graph_free(graph);
    return opi_fail_nomem(err, OPI_ROW_DIMS * sizeof *bound->dims, "dimensions");
  }
  opi_row_model_dims(m, rows, bound->dims);
  bound->n_dims = OPI_ROW_DIMS;
  opi_free(options->allocator, graph, sizeof *graph); /* the graph's arena is the bound's */
  *out_bound = bound;
  return OPIPE_OK;
}
