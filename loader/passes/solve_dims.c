/* SPDX-License-Identifier: Apache-2.0 */
/* Gives every free dimension of the inputs a number.
 *
 * Unknowns are names: a dim_param, a name inside an expression, or "INPUT.axis". Given numbers (by
 * name or by known shapes) are recorded, and their consequences propagated (solve_names.c). The
 * remaining unknowns take defaults one by one, or are listed in an error.
 */
#include "loader/passes/solve.h"

#include <inttypes.h>
#include <string.h>

#include "loader/base/nearest.h"

static const opi_value *file_value(const opi_solver *s, uint32_t v) {
  return &s->model->graph->values[v];
}

const char *opi_dim_place(opi_arena *arena, const opi_value *input, uint32_t axis) {
  return opi_arena_printf(arena, "%s.%" PRIu32, input->name, axis);
}

const char *opi_dim_key(opi_arena *arena, const opi_value *input, uint32_t axis) {
  const char *name = input->dim_names != NULL ? input->dim_names[axis] : NULL;
  return name != NULL && name[0] != '\0' ? name : opi_dim_place(arena, input, axis);
}

static bool is_pinned(const opi_solver *s, const char *input) {
  uint32_t i = 0;
  return opi_map_get(s->pins, input, &i);
}

static const opi_input_shape *given_shape(const opi_solver *s, const char *input) {
  uint32_t i = 0;
  return opi_map_get(s->shapes, input, &i) ? &s->options->shapes[i] : NULL;
}

static opipe_status collect(opi_solver *s, opipe_error *err) {
  const opi_graph *graph = s->model->graph;
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *input = &graph->values[graph->inputs[i]];
    if (is_pinned(s, input->name))
      continue;
    if (input->rank < 0) {
      if (given_shape(s, input->name) != NULL)
        continue;
      return opi_fail(err, OPIPE_E_INVALID,
                      "input '%s' has no rank in the file: its shape is needed", input->name);
    }
    for (int32_t d = 0; d < input->rank; ++d) {
      if (input->shape[d] >= 0)
        continue;
      OPI_TRY(opi_solver_add(s, graph->inputs[i], (uint32_t)d, err));
    }
  }
  return opi_solver_link(s, err);
}

/* The dimension that "INPUT.axis" means: *out_dim NULL: none. */
static opipe_status find_by_place(opi_solver *s, const char *name, opi_dimension **out_dim,
                                  opipe_error *err) {
  uint32_t found = 0;
  *out_dim = NULL;
  if (s->places == NULL) {
    OPI_TRY(opi_map_create(s->options->allocator, &s->places, err));
    for (uint32_t d = 0; d < s->n_dims; ++d) {
      const char *place = opi_dim_place(s->arena, file_value(s, s->dims[d].input), s->dims[d].axis);
      if (place == NULL)
        return opi_fail_nomem(err, 32, "a dimension's name");
      OPI_TRY(opi_map_set(s->places, place, d, err));
    }
  }
  if (opi_map_get(s->places, name, &found))
    *out_dim = &s->dims[found];
  return OPIPE_OK;
}

/* Files exist whose one name stands for two lengths. A dimension that is known to be another than
 * its name takes a number of its own; whether the graph fits is seen when it is bound. */
static opipe_status assign_place(opi_solver *s, opi_dimension *dim, int64_t value,
                                 opipe_error *err) {
  const int64_t named = s->unknowns[dim->unknown].value;
  if (value < 0 || named < 0 || named == value)
    return opi_solver_assign(s, dim->unknown, value, file_value(s, dim->input)->name, err);
  opi_log(s->options->logger, OPIPE_LOG_WARN,
          "dimension '%s' is %" PRId64 ", but %" PRId64 " in input '%s', axis %" PRIu32, dim->key,
          named, value, file_value(s, dim->input)->name, dim->axis);
  dim->own = value;
  return OPIPE_OK;
}

static opipe_status unknown_name(const opi_solver *s, const char *name, opipe_error *err) {
  char meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = strlen(name)};
  opi_text text;
  opi_text_init(&text, s->options->allocator);
  for (uint32_t i = 0; i < s->n_unknowns; ++i) {
    opi_text_printf(&text, "%s'%s'", i == 0 ? "" : ", ", s->unknowns[i].name);
    opi_nearest_look(&nearest, s->unknowns[i].name);
  }
  const opipe_status status = opi_fail(
      err, OPIPE_E_NOTFOUND, "no free dimension '%s'; there are: %.240s%s", name,
      text.data != NULL ? text.data : "none", opi_nearest_words(&nearest, meant, sizeof meant));
  opi_text_release(&text);
  return status;
}

/* A name that pinned inputs alone have says what their tensors say. *out_is: it is such a name. */
static opipe_status take_pinned_dim(const opi_solver *s, const opi_dim_binding *given, bool *out_is,
                                    opipe_error *err) {
  const opi_graph *graph = s->model->graph;
  *out_is = false;
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *input = &graph->values[graph->inputs[i]];
    uint32_t p = 0;
    if (!opi_map_get(s->pins, input->name, &p))
      continue;
    const opi_pin *pin = &s->options->pins[p];
    for (int32_t d = 0; d < input->rank && (uint32_t)d < pin->rank; ++d) {
      const char *key = input->shape[d] >= 0 ? NULL : opi_dim_key(s->arena, input, (uint32_t)d);
      if (key == NULL || strcmp(key, given->name) != 0)
        continue;
      *out_is = true;
      if (pin->shape[d] != given->value) {
        return opi_fail(err, OPIPE_E_INVALID,
                        "dimension '%s' is given as %" PRId64
                        ", but input '%s' is pinned to a "
                        "tensor of %" PRId64 " along axis %" PRId32,
                        given->name, given->value, input->name, pin->shape[d], d);
      }
    }
  }
  return OPIPE_OK;
}

/* Names first, then places. */
static opipe_status take_given_dims(opi_solver *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->options->n_dims; ++i) {
    const opi_dim_binding *given = &s->options->dims[i];
    const uint32_t u = opi_solver_find(s, given->name);
    if (u != OPIPE_NONE)
      OPI_TRY(opi_solver_assign(s, u, given->value, "given", err));
  }
  for (uint32_t i = 0; i < s->options->n_dims; ++i) {
    const opi_dim_binding *given = &s->options->dims[i];
    if (opi_solver_find(s, given->name) != OPIPE_NONE)
      continue;
    opi_dimension *dim = NULL;
    bool pinned = false;
    OPI_TRY(find_by_place(s, given->name, &dim, err));
    if (dim == NULL)
      OPI_TRY(take_pinned_dim(s, given, &pinned, err));
    if (pinned)
      continue;
    if (dim == NULL)
      return unknown_name(s, given->name, err);
    OPI_TRY(assign_place(s, dim, given->value, err));
  }
  return OPIPE_OK;
}

static opipe_status check_given_shape(const opi_value *input, const opi_input_shape *given,
                                      opipe_error *err) {
  char a[128], b[128];
  uint64_t elems = 0;
  if (!opi_shape_elems(given->shape, given->rank, &elems) || given->rank > OPIPE_MAX_RANK) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' cannot have shape %s", input->name,
                    opi_shape_text(a, sizeof(a), given->shape, given->rank));
  }
  if (input->rank < 0)
    return OPIPE_OK;
  bool fits = given->rank == (uint32_t)input->rank;
  for (uint32_t d = 0; fits && d < given->rank; ++d)
    fits = input->shape[d] < 0 || input->shape[d] == given->shape[d];
  if (fits)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "input '%s' has shape %s in the file (-1: free), %s is given", input->name,
                  opi_shape_text(a, sizeof(a), input->shape, (uint32_t)input->rank),
                  opi_shape_text(b, sizeof(b), given->shape, given->rank));
}

static opipe_status take_given_shapes(opi_solver *s, opipe_error *err) {
  const opi_graph *graph = s->model->graph;
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *input = &graph->values[graph->inputs[i]];
    const opi_input_shape *given = given_shape(s, input->name);
    if (given != NULL)
      OPI_TRY(check_given_shape(input, given, err));
  }
  for (uint32_t d = 0; d < s->n_dims; ++d) {
    const opi_value *input = file_value(s, s->dims[d].input);
    const opi_input_shape *given = given_shape(s, input->name);
    if (given == NULL)
      continue;
    OPI_TRY(assign_place(s, &s->dims[d], given->shape[s->dims[d].axis], err));
  }
  return OPIPE_OK;
}

static bool has_word(const char *name, const char *word) {
  return strcasestr(name, word) != NULL;
}

bool opi_is_length_name(const char *name) {
  static const char *const words[] = {"seq", "len", "past", "time", "token", "total"};
  for (size_t i = 0; i < OPI_COUNT(words); ++i) {
    if (has_word(name, words[i]))
      return true;
  }
  return false;
}

bool opi_is_batch_name(const char *name) {
  return has_word(name, "batch");
}

/* Batch: named so and not after a length ("max_seq_len_in_batch"), or without a name that tells and
 * only ever first. */
static int64_t default_of(const opi_solver *s, const opi_unknown *u) {
  const int64_t length = s->options->default_length > 0 ? s->options->default_length : 8;
  const int64_t rows = s->options->default_batch > 0 ? s->options->default_batch : 1;
  if (opi_is_length_name(u->name))
    return length;
  if (opi_is_batch_name(u->name))
    return rows;
  return u->first_axis && !u->other_axis ? rows : length;
}

static opipe_status take_defaults(opi_solver *s, opipe_error *err) {
  for (uint32_t pass = 0; pass < 2; ++pass) { /* plain names first, whole expressions last */
    for (uint32_t u = 0; u < s->n_unknowns; ++u) {
      if (s->unknowns[u].value >= 0 || s->unknowns[u].whole != (pass == 1))
        continue;
      s->took_default = true;
      OPI_TRY(opi_solver_assign(s, u, default_of(s, &s->unknowns[u]), "default", err));
      OPI_TRY(opi_solver_propagate(s, err));
    }
  }
  return OPIPE_OK;
}

static opipe_status report_free(const opi_solver *s, opipe_error *err) {
  opi_text text;
  opi_text_init(&text, s->options->allocator);
  uint32_t n = 0;
  for (uint32_t d = 0; d < s->n_dims; ++d) {
    if (s->unknowns[s->dims[d].unknown].value >= 0)
      continue;
    opi_text_printf(&text, "%s'%s' (input '%s', axis %" PRIu32 ")", n++ == 0 ? "" : ", ",
                    s->dims[d].key, file_value(s, s->dims[d].input)->name, s->dims[d].axis);
  }
  opipe_status status = OPIPE_OK;
  if (n != 0) {
    status = opi_fail(err, OPIPE_E_INVALID, "free dimensions need a number: %s",
                      text.data != NULL ? text.data : "?");
  }
  opi_text_release(&text);
  return status;
}

/* One entry per name, and one per dimension that differs from its name. */
static opipe_status hand_out(opi_solver *s, opi_dim_binding **out_dims, uint32_t *out_n,
                             opipe_error *err) {
  opi_dim_binding *dims = OPI_ARENA_ARRAY(s->arena, opi_dim_binding, s->n_dims);
  uint32_t n = 0;
  if (dims == NULL)
    return opi_fail_nomem(err, s->n_dims * sizeof(*dims), "dimensions");
  for (uint32_t d = 0; d < s->n_dims; ++d) {
    const opi_dimension *dim = &s->dims[d];
    opi_unknown *u = &s->unknowns[dim->unknown];
    if (dim->own >= 0) {
      const char *place = opi_dim_place(s->arena, file_value(s, dim->input), dim->axis);
      if (place == NULL)
        return opi_fail_nomem(err, 32, "a dimension's name");
      dims[n++] = (opi_dim_binding){place, dim->own};
    } else if (!u->handed) {
      dims[n++] = (opi_dim_binding){dim->key, u->value};
      u->handed = true;
    }
  }
  *out_dims = dims;
  *out_n = n;
  return OPIPE_OK;
}

static opipe_status solve(opi_solver *s, const opi_dim_binding *place, opi_dim_binding **out_dims,
                          uint32_t *out_n, opipe_error *err) {
  const opi_bind_options *options = s->options;
  opi_dimension *dim = NULL;
  OPI_TRY(opi_map_create(options->allocator, &s->names, err));
  OPI_TRY(opi_map_names(options->allocator, options->pins, options->n_pins, sizeof(opi_pin),
                        &s->pins, err));
  OPI_TRY(opi_map_names(options->allocator, options->shapes, options->n_shapes,
                        sizeof(opi_input_shape), &s->shapes, err));
  OPI_TRY(collect(s, err));
  OPI_TRY(take_given_dims(s, err));
  OPI_TRY(take_given_shapes(s, err));
  OPI_TRY(opi_solver_propagate(s, err));
  if (options->flags & OPI_BIND_DEFAULTS)
    OPI_TRY(take_defaults(s, err));
  OPI_TRY(report_free(s, err));
  if (place != NULL)
    OPI_TRY(find_by_place(s, place->name, &dim, err));
  if (dim != NULL)
    dim->own = place->value;
  return hand_out(s, out_dims, out_n, err);
}

opipe_status opi_solve_with(const opi_model *model, const opi_bind_options *options,
                            const opi_dim_binding *place, opi_arena *arena,
                            opi_dim_binding **out_dims, uint32_t *out_n, bool *out_defaults,
                            opipe_error *err) {
  opi_solver s = {.model = model, .options = options, .arena = arena};
  const opipe_status status = solve(&s, place, out_dims, out_n, err);
  if (out_defaults != NULL)
    *out_defaults = s.took_default;
  opi_map_free(s.names);
  opi_map_free(s.places);
  opi_map_free(s.pins);
  opi_map_free(s.shapes);
  return status;
}

opipe_status opi_solve_dims(const opi_model *model, const opi_bind_options *options,
                            opi_arena *arena, opi_dim_binding **out_dims, uint32_t *out_n,
                            opipe_error *err) {
  return opi_solve_with(model, options, NULL, arena, out_dims, out_n, NULL, err);
}
