/* SPDX-License-Identifier: Apache-2.0 */
/* One parameter table for all members of tensor groups: whole parameters once, every part of a
 * parameter as a row of its own. In training, entries that several members hold are one row, whose
 * gradients are summed over these, as those of a whole parameter are over all. A row is found again
 * by name, content and part, so that graphs of other shapes share the table; so do token slices
 * behind the first.
 */
#include <string.h>

#include "partition/program/model.h"

/* The table under construction, or the master's, by name. */
typedef struct param_rows {
  const opi_variant *base;
  opi_cut_model *model;
  opi_cut *own;         /* the table under construction; NULL: it is done, or the master's */
  const opi_cut *table; /* own, or the master's */
  opi_map *first;       /* by name: the first row */
  uint32_t *next;       /* [rows] the next row of the same name; OPIPE_NONE */
  const opi_param_part **parts; /* [rows] */
  uint32_t room_sources, room_trained, room_next, room_parts;
  opipe_error *err;
} param_rows;

static bool same_part(const opi_param_part *a, const opi_param_part *b) {
  if (a == NULL || b == NULL)
    return a == b;
  return (a->member == b->member || (a->flags & b->flags & OPI_PART_SHARED) != 0) &&
         a->axis == b->axis && a->n_runs == b->n_runs &&
         (a->n_runs == 0 || memcmp(a->runs, b->runs, a->n_runs * sizeof *a->runs) == 0);
}

/* The table's row for a member's parameter; OPIPE_NONE: none. *out_last: the last row of its name.
 */
static uint32_t find_row(const param_rows *l, const opipe_param_source *source,
                         const opi_param_part *part, uint32_t *out_last) {
  uint32_t row = OPIPE_NONE;
  *out_last = OPIPE_NONE;
  if (!opi_map_get(l->first, source->name, &row))
    return OPIPE_NONE;
  for (; row != OPIPE_NONE; row = l->next[row]) {
    const opi_param_part *other = l->table->parts == NULL ? l->parts[row] : l->table->parts[row];
    if (opi_same_source(&l->table->sources[row], source) && same_part(other, part))
      return row;
    *out_last = row;
  }
  return OPIPE_NONE;
}

static opipe_status link_row(param_rows *l, uint32_t row, uint32_t last, const char *name) {
  if (!opi_arena_grow(&l->model->arena, (void **)&l->next, &l->room_next, row + 1, sizeof *l->next))
    return opi_fail_nomem(l->err, sizeof *l->next, "a parameter");
  l->next[row] = OPIPE_NONE;
  if (last == OPIPE_NONE)
    return opi_map_set(l->first, name, row, l->err);
  l->next[last] = row;
  return OPIPE_OK;
}

static opipe_status add_row(param_rows *l, const opipe_param_source *source,
                            const opi_param_part *part, uint32_t last, uint32_t *out_row) {
  opi_cut *c = l->own;
  const uint32_t row = c->n_params;
  if (!opi_arena_grow(&c->arena, (void **)&c->sources, &l->room_sources, row + 1,
                      sizeof *c->sources) ||
      !opi_arena_grow(&c->arena, (void **)&c->trained, &l->room_trained, row + 1,
                      sizeof *c->trained) ||
      !opi_arena_grow(&c->arena, (void **)&l->parts, &l->room_parts, row + 1, sizeof *l->parts))
    return opi_fail_nomem(l->err, sizeof *source, "a parameter");
  OPI_TRY(link_row(l, row, last, source->name));
  c->sources[row] = *source;
  c->trained[row] = false;
  l->parts[row] = part;
  c->n_params = row + 1;
  *out_row = row;
  return OPIPE_OK;
}

/* ---- a member's values ---- */

static opipe_status describe_part(param_rows *l, uint32_t graph, const opi_shard_part *from,
                                  const opi_param_part **out, opipe_error *err) {
  const uint32_t n = l->model->n_members;
  const opi_graph *whole = opi_variant_bound(l->base, graph / n)->graph;
  opi_param_part *part = OPI_ARENA_NEW(&l->model->arena, opi_param_part);
  if (part == NULL)
    return opi_fail_nomem(err, sizeof *part, "a part of a parameter");
  *part = (opi_param_part){.whole = opi_param_source_of(&whole->values[from->whole]),
                           .axis = from->axis,
                           .member = graph % n,
                           .flags = from->flags,
                           .n_runs = from->n_runs,
                           .runs = from->runs};
  *out = part;
  return OPIPE_OK;
}

static opipe_status place_value(param_rows *l, const opi_value *value, const opi_param_part *part,
                                bool trained, uint32_t *out_row) {
  opipe_param_source source = opi_param_source_of(value);
  uint32_t last = OPIPE_NONE;
  if (part != NULL)
    source.name = part->whole.name; /* that of one among several parts is made up */
  *out_row = find_row(l, &source, part, &last);
  if (*out_row != OPIPE_NONE)
    return OPIPE_OK;
  if (l->own != NULL)
    return add_row(l, &source, part, last, out_row);
  if (value->data != NULL && !trained)
    return OPIPE_OK; /* a constant of this shape alone */
  return opi_fail(l->err, OPIPE_E_UNSUPPORTED,
                  "the part of parameter '%s' is another one in graphs of another shape or slice",
                  source.name);
}

static bool is_row(const opi_value *value) {
  return opi_value_is_known(value) && opi_value_is_param(value);
}

static bool is_summed(const opi_shard_member *from, uint32_t value) {
  uint32_t i = 0;
  while (i < from->n_sums && from->sums[i] != value)
    ++i;
  return i < from->n_sums;
}

/* Parts by the values of the member's graph, parts [n_values]. A training graph has values of its
 * own, with the same names. In training, whole parameters are a row for each member, so that sums
 * over replicas are those of one member; those whose gradients members have parts of are one row.
 */
static opipe_status find_parts(param_rows *l, uint32_t graph, const opi_map *names,
                               const opi_param_part **parts) {
  const uint32_t member = graph % l->model->n_members;
  const opi_variant_slice *slice = &l->base->slices[graph];
  const opi_shard_member *from = &l->base->shards[graph / l->model->n_members]->members[member];
  const opi_graph *g = from->bound->graph;
  uint32_t v = 0;
  for (uint32_t i = 0; i < from->n_params; ++i) {
    if (opi_map_get(names, g->values[from->params[i].value].name, &v))
      OPI_TRY(describe_part(l, graph, &from->params[i], &parts[v], l->err));
  }
  for (uint32_t i = 0; slice->training != NULL && i < g->n_values; ++i) {
    const opi_value *value = &g->values[i];
    if ((value->flags & OPI_VALUE_INITIALIZER) == 0 || is_summed(from, i) ||
        !opi_map_get(names, value->name, &v) || parts[v] != NULL)
      continue;
    opi_param_part *part = OPI_ARENA_NEW(&l->model->arena, opi_param_part);
    if (part == NULL)
      return opi_fail_nomem(l->err, sizeof *part, "a part of a parameter");
    *part = (opi_param_part){.whole = opi_param_source_of(value), .axis = -1, .member = member};
    parts[v] = part;
  }
  return OPIPE_OK;
}

/* Rows of the values that a member's nodes read; a gradient's are marked as trained. */
static opipe_status list_member(param_rows *l, uint32_t graph, const uint32_t **out_rows) {
  const opi_graph *g = l->base->slices[graph].graph;
  const opi_training *t = l->base->slices[graph].training;
  opi_map *names = NULL;
  uint32_t *rows = OPI_ARENA_ARRAY(&l->model->arena, uint32_t, (size_t)g->n_values + 1);
  const opi_param_part **parts =
      OPI_ARENA_ARRAY(&l->model->arena, const opi_param_part *, (size_t)g->n_values + 1);
  if (rows == NULL || parts == NULL)
    return opi_fail_nomem(l->err, g->n_values * sizeof *parts, "parameters");
  memset(rows, 0xff, g->n_values * sizeof *rows);
  OPI_TRY(opi_map_names(l->model->allocator, g->values, g->n_values, sizeof *g->values, &names,
                        l->err));
  const opipe_status status = find_parts(l, graph, names, parts);
  opi_map_free(names);
  OPI_TRY(status);
  for (uint32_t p = 0; t != NULL && p < t->n_params; ++p) { /* even those of one element */
    const uint32_t v = t->params[p].value;
    if (t->params[p].n_gradients != 0 && v != OPIPE_NONE)
      OPI_TRY(place_value(l, &g->values[v], parts[v], true, &rows[v]));
  }
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (v != OPIPE_NONE && rows[v] == OPIPE_NONE && is_row(&g->values[v]))
        OPI_TRY(place_value(l, &g->values[v], parts[v], false, &rows[v]));
    }
  }
  *out_rows = rows;
  return OPIPE_OK;
}

static void mark_trained(const param_rows *l, const uint32_t *rows, const opi_training *t) {
  for (uint32_t p = 0; t != NULL && l->own != NULL && p < t->n_params; ++p) {
    const uint32_t v = t->params[p].value;
    if (t->params[p].n_gradients != 0 && v != OPIPE_NONE && rows[v] != OPIPE_NONE)
      l->own->trained[rows[v]] = true;
  }
}

/* ---- all of them ---- */

static opipe_status open_table(param_rows *l) {
  opi_cut_model *model = l->model;
  if (model->master == NULL) {
    l->own = opi_alloc_zero(model->allocator, 1, sizeof *l->own);
    if (l->own == NULL)
      return opi_fail_nomem(l->err, sizeof *l->own, "parameters");
    opi_arena_init(&l->own->arena, model->allocator, 0);
    model->table = l->own;
    l->table = l->own;
    return OPIPE_OK;
  }
  l->table = model->master;
  for (uint32_t row = 0; row < l->table->n_params; ++row) {
    const char *name = l->table->sources[row].name;
    uint32_t last = OPIPE_NONE;
    if (opi_map_get(l->first, name, &last)) {
      while (l->next[last] != OPIPE_NONE)
        last = l->next[last];
    }
    OPI_TRY(link_row(l, row, last, name));
  }
  return OPIPE_OK;
}

static opipe_status list_all(param_rows *l, const uint32_t **rows) {
  OPI_TRY(open_table(l));
  for (uint32_t k = 0; k < opi_model_graphs(l->model); ++k) {
    OPI_TRY(list_member(l, k, &rows[k]));
    mark_trained(l, rows[k], l->base->slices[k].training);
    if (k + 1 != l->model->n_members || l->own == NULL)
      continue;
    l->own->parts = l->parts; /* slices behind the first have the same */
    l->own = NULL;
  }
  return OPIPE_OK;
}

opipe_status opi_members_table(opi_cut_model *model, const uint32_t ***out_rows, opipe_error *err) {
  param_rows l = {.base = &model->variants[model->base], .model = model, .err = err};
  const uint32_t n = opi_model_graphs(model);
  const uint32_t **rows = OPI_ARENA_ARRAY(&model->arena, const uint32_t *, n);
  if (rows == NULL)
    return opi_fail_nomem(err, n * sizeof *rows, "parameters");
  OPI_TRY(opi_map_create(model->allocator, &l.first, err));
  const opipe_status status = list_all(&l, rows);
  opi_map_free(l.first);
  *out_rows = rows;
  return status;
}
