/* SPDX-License-Identifier: Apache-2.0 */
/* Gives every free dimension of the inputs a number.
 *
 * Unknowns are names: a dim_param, a name inside an expression, or "INPUT.axis". What is given (by
 * name or by the shapes at hand) is written down; expressions are evaluated, or solved for their
 * only unknown name, until nothing moves. What is left takes defaults one by one, or is an error
 * that lists it.
 */
#include "loader/passes/walk.h"

#include <inttypes.h>

typedef struct unknown {
  const char *name;
  int64_t value;               /* -1: not known */
  bool first_axis, other_axis; /* where it stands in inputs */
} unknown;

/* One free dimension. */
typedef struct dimension {
  const char *key;
  const opi_expr *expr; /* NULL: the key is the unknown itself */
  uint32_t unknown;     /* of the key */
  uint32_t input, axis; /* a file value, and where */
  int64_t own;          /* a number of its own, against its name; -1: none */
} dimension;

typedef struct solver {
  const opi_model *model;
  const opi_bind_options *options;
  opi_arena *arena;
  unknown *unknowns;
  dimension *dims;
  uint32_t n_unknowns, room_unknowns, n_dims, room_dims;
} solver;

static const opi_value *file_value(const solver *s, uint32_t v) {
  return &s->model->graph->values[v];
}

const char *opi_dim_place(opi_arena *arena, const opi_value *input, uint32_t axis) {
  return opi_arena_printf(arena, "%s.%" PRIu32, input->name, axis);
}

const char *opi_dim_key(opi_arena *arena, const opi_value *input, uint32_t axis) {
  const char *name = input->dim_names != NULL ? input->dim_names[axis] : NULL;
  return name != NULL && name[0] != '\0' ? name : opi_dim_place(arena, input, axis);
}

bool opi_dim_find(const opi_dim_binding *dims, uint32_t n_dims, const char *key,
                  int64_t *out_value) {
  for (uint32_t i = 0; i < n_dims; ++i) {
    if (strcmp(dims[i].name, key) != 0)
      continue;
    *out_value = dims[i].value;
    return true;
  }
  return false;
}

static uint32_t find_unknown(const solver *s, const char *name) {
  for (uint32_t i = 0; i < s->n_unknowns; ++i) {
    if (strcmp(s->unknowns[i].name, name) == 0)
      return i;
  }
  return OPIPE_NONE;
}

static uint32_t add_unknown(solver *s, const char *name) {
  const uint32_t found = find_unknown(s, name);
  if (found != OPIPE_NONE)
    return found;
  if (!opi_arena_grow(s->arena, (void **)&s->unknowns, &s->room_unknowns, s->n_unknowns + 1,
                      sizeof(unknown))) {
    return OPIPE_NONE;
  }
  s->unknowns[s->n_unknowns] = (unknown){.name = name, .value = -1};
  return s->n_unknowns++;
}

/* An expression that is more than a name; NULL for plain names and for text that does not parse. */
static opipe_status parse_key(solver *s, const char *key, const opi_expr **out_expr,
                              opipe_error *err) {
  const char *name = NULL;
  OPI_TRY(opi_expr_parse(s->arena, key, out_expr, err));
  if (*out_expr == NULL || opi_expr_names(*out_expr, &name, 1) != 1)
    return OPIPE_OK;
  if (strcmp(name, key) == 0)
    *out_expr = NULL;
  return OPIPE_OK;
}

enum { MOST_NAMES = 16 };

static opipe_status add_dimension(solver *s, uint32_t input, uint32_t axis, opipe_error *err) {
  const char *key = opi_dim_key(s->arena, file_value(s, input), axis);
  const char *names[MOST_NAMES];
  if (key == NULL || !opi_arena_grow(s->arena, (void **)&s->dims, &s->room_dims, s->n_dims + 1,
                                     sizeof(dimension))) {
    return opi_fail_nomem(err, sizeof(dimension), "a dimension");
  }
  dimension *dim = &s->dims[s->n_dims];
  *dim = (dimension){.key = key, .input = input, .axis = axis, .own = -1};
  OPI_TRY(parse_key(s, key, &dim->expr, err));
  dim->unknown = add_unknown(s, key);
  if (dim->unknown == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof(unknown), "a dimension");
  unknown *u = &s->unknowns[dim->unknown];
  if (axis == 0)
    u->first_axis = true;
  if (axis != 0)
    u->other_axis = true;
  ++s->n_dims;
  const uint32_t n = dim->expr != NULL ? opi_expr_names(dim->expr, names, MOST_NAMES) : 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (add_unknown(s, names[i]) == OPIPE_NONE) {
      return opi_fail_nomem(err, sizeof(unknown), "a dimension");
    }
  }
  return OPIPE_OK;
}

static bool is_pinned(const solver *s, const char *input) {
  for (uint32_t i = 0; i < s->options->n_pins; ++i) {
    if (strcmp(s->options->pins[i].input, input) == 0)
      return true;
  }
  return false;
}

static const opi_input_shape *given_shape(const solver *s, const char *input) {
  for (uint32_t i = 0; i < s->options->n_shapes; ++i) {
    if (strcmp(s->options->shapes[i].input, input) == 0)
      return &s->options->shapes[i];
  }
  return NULL;
}

static opipe_status collect(solver *s, opipe_error *err) {
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
      OPI_TRY(add_dimension(s, graph->inputs[i], (uint32_t)d, err));
    }
  }
  return OPIPE_OK;
}

static opipe_status assign(solver *s, uint32_t u, int64_t value, const char *why,
                           opipe_error *err) {
  unknown *un = &s->unknowns[u];
  if (value < 0) {
    return opi_fail(err, OPIPE_E_INVALID, "dimension '%s' is %" PRId64 " (%s)", un->name, value,
                    why);
  }
  if (un->value >= 0 && un->value != value) {
    return opi_fail(err, OPIPE_E_INVALID, "dimension '%s' is %" PRId64 " and %" PRId64 " (%s)",
                    un->name, un->value, value, why);
  }
  un->value = value;
  return OPIPE_OK;
}

/* The dimension that "INPUT.axis" means; NULL: none. */
static dimension *find_by_place(const solver *s, const char *name) {
  for (uint32_t d = 0; d < s->n_dims; ++d) {
    const char *input = file_value(s, s->dims[d].input)->name;
    const size_t n = strlen(input);
    int64_t axis = 0;
    if (strncmp(name, input, n) == 0 && name[n] == '.' &&
        opi_parse_int(name + n + 1, 0, OPIPE_MAX_RANK, &axis) && axis == s->dims[d].axis) {
      return &s->dims[d];
    }
  }
  return NULL;
}

/* Files exist whose one name stands for two lengths. A dimension that is known to be another than
 * its name takes a number of its own; whether the graph fits is seen when it is bound. */
static opipe_status assign_place(solver *s, dimension *dim, int64_t value, opipe_error *err) {
  const int64_t named = s->unknowns[dim->unknown].value;
  if (value < 0 || named < 0 || named == value) {
    return assign(s, dim->unknown, value, file_value(s, dim->input)->name, err);
  }
  opi_log(s->options->logger, OPIPE_LOG_WARN,
          "dimension '%s' is %" PRId64 ", but %" PRId64 " in input '%s', axis %" PRIu32, dim->key,
          named, value, file_value(s, dim->input)->name, dim->axis);
  dim->own = value;
  return OPIPE_OK;
}

static opipe_status unknown_name(const solver *s, const char *name, opipe_error *err) {
  opi_text text;
  opi_text_init(&text, s->options->allocator);
  for (uint32_t i = 0; i < s->n_unknowns; ++i) {
    opi_text_printf(&text, "%s'%s'", i == 0 ? "" : ", ", s->unknowns[i].name);
  }
  const opipe_status status =
      opi_fail(err, OPIPE_E_NOTFOUND, "no free dimension '%s'; there are: %s", name,
               text.data != NULL ? text.data : "none");
  opi_text_release(&text);
  return status;
}

/* Names first, then places. */
static opipe_status take_given_dims(solver *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->options->n_dims; ++i) {
    const opi_dim_binding *given = &s->options->dims[i];
    const uint32_t u = find_unknown(s, given->name);
    if (u != OPIPE_NONE)
      OPI_TRY(assign(s, u, given->value, "given", err));
  }
  for (uint32_t i = 0; i < s->options->n_dims; ++i) {
    const opi_dim_binding *given = &s->options->dims[i];
    if (find_unknown(s, given->name) != OPIPE_NONE)
      continue;
    dimension *dim = find_by_place(s, given->name);
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
  for (uint32_t d = 0; fits && d < given->rank; ++d) {
    fits = input->shape[d] < 0 || input->shape[d] == given->shape[d];
  }
  if (fits)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "input '%s' has shape %s in the file (-1: free), %s is given", input->name,
                  opi_shape_text(a, sizeof(a), input->shape, (uint32_t)input->rank),
                  opi_shape_text(b, sizeof(b), given->shape, given->rank));
}

static opipe_status take_given_shapes(solver *s, opipe_error *err) {
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

/* Lookup with one name set aside. */
typedef struct trial {
  const solver *s;
  const char *name;
  int64_t value;
} trial;

static bool lookup(const void *ctx, const char *name, int64_t *out_value) {
  const trial *t = ctx;
  if (t->name != NULL && strcmp(t->name, name) == 0) {
    *out_value = t->value;
    return true;
  }
  const uint32_t u = find_unknown(t->s, name);
  if (u == OPIPE_NONE || t->s->unknowns[u].value < 0)
    return false;
  *out_value = t->s->unknowns[u].value;
  return true;
}

/* expr(x) = target by bisection, rising or falling; false when there is no such x or it overflows.
 */
static bool solve_for(const solver *s, const opi_expr *expr, const char *name, int64_t target,
                      int64_t *out_value) {
  trial t = {s, name, 0};
  int64_t low = 0, high = (int64_t)1 << 31, at_low = 0, at_high = 0, at = 0;
  if (!opi_expr_eval(expr, lookup, &t, &at_low))
    low = 1; /* a division by the unknown */
  t.value = low;
  if (!opi_expr_eval(expr, lookup, &t, &at_low))
    return false;
  t.value = high;
  if (!opi_expr_eval(expr, lookup, &t, &at_high))
    return false;
  const bool rising = at_high >= at_low;
  while (low < high) {
    t.value = low + (high - low) / 2;
    if (!opi_expr_eval(expr, lookup, &t, &at))
      return false;
    if (rising ? at >= target : at <= target) {
      high = t.value;
    } else {
      low = t.value + 1;
    }
  }
  t.value = low;
  *out_value = low;
  return opi_expr_eval(expr, lookup, &t, &at) && at == target;
}

/* One dimension with an expression: evaluates it, or solves it for its only unknown name. */
static opipe_status relax(solver *s, const dimension *dim, bool *out_moved, opipe_error *err) {
  const char *names[MOST_NAMES];
  const trial t = {s, NULL, 0};
  int64_t value = 0;
  if (opi_expr_eval(dim->expr, lookup, &t, &value)) {
    if (s->unknowns[dim->unknown].value != value)
      *out_moved = true;
    return assign(s, dim->unknown, value, "from its expression", err);
  }
  const int64_t target = s->unknowns[dim->unknown].value;
  if (target < 0)
    return OPIPE_OK;
  uint32_t missing = 0, n_missing = 0;
  const uint32_t n = opi_expr_names(dim->expr, names, MOST_NAMES);
  for (uint32_t i = 0; i < n; ++i) {
    if (s->unknowns[find_unknown(s, names[i])].value >= 0)
      continue;
    missing = i;
    ++n_missing;
  }
  if (n_missing != 1)
    return OPIPE_OK;
  if (!solve_for(s, dim->expr, names[missing], target, &value)) {
    return opi_fail(err, OPIPE_E_INVALID, "dimension '%s' cannot be %" PRId64 " for any '%s'",
                    dim->key, target, names[missing]);
  }
  *out_moved = true;
  return assign(s, find_unknown(s, names[missing]), value, dim->key, err);
}

static opipe_status propagate(solver *s, opipe_error *err) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (uint32_t d = 0; d < s->n_dims; ++d) {
      if (s->dims[d].expr != NULL)
        OPI_TRY(relax(s, &s->dims[d], &moved, err));
    }
  }
  return OPIPE_OK;
}

static bool has_word(const char *name, const char *word) {
  return strcasestr(name, word) != NULL;
}

static bool is_length(const char *name) {
  static const char *const words[] = {"seq", "len", "past", "time", "token", "total"};
  for (size_t i = 0; i < OPI_COUNT(words); ++i) {
    if (has_word(name, words[i]))
      return true;
  }
  return false;
}

/* Batch: named so and not after a length ("max_seq_len_in_batch"), or without a name that tells and
 * only ever first. */
static int64_t default_of(const solver *s, const unknown *u) {
  const int64_t length = s->options->default_length > 0 ? s->options->default_length : 8;
  if (is_length(u->name))
    return length;
  if (has_word(u->name, "batch"))
    return 1;
  return u->first_axis && !u->other_axis ? 1 : length;
}

static opipe_status take_defaults(solver *s, opipe_error *err) {
  for (uint32_t pass = 0; pass < 2; ++pass) { /* plain names first, whole expressions last */
    for (uint32_t u = 0; u < s->n_unknowns; ++u) {
      const opi_expr *whole = NULL;
      OPI_TRY(parse_key(s, s->unknowns[u].name, &whole, err));
      if (s->unknowns[u].value >= 0 || (whole != NULL) != (pass == 1))
        continue;
      OPI_TRY(assign(s, u, default_of(s, &s->unknowns[u]), "default", err));
      OPI_TRY(propagate(s, err));
    }
  }
  return OPIPE_OK;
}

static opipe_status report_free(const solver *s, opipe_error *err) {
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
static opipe_status hand_out(solver *s, opi_dim_binding **out_dims, uint32_t *out_n,
                             opipe_error *err) {
  opi_dim_binding *dims = OPI_ARENA_ARRAY(s->arena, opi_dim_binding, s->n_dims);
  uint32_t n = 0;
  int64_t value = 0;
  if (dims == NULL)
    return opi_fail_nomem(err, s->n_dims * sizeof(*dims), "dimensions");
  for (uint32_t d = 0; d < s->n_dims; ++d) {
    const dimension *dim = &s->dims[d];
    const char *key =
        dim->own < 0 ? dim->key : opi_dim_place(s->arena, file_value(s, dim->input), dim->axis);
    if (key == NULL)
      return opi_fail_nomem(err, 32, "a dimension's name");
    if (opi_dim_find(dims, n, key, &value))
      continue;
    dims[n++] = (opi_dim_binding){key, dim->own < 0 ? s->unknowns[dim->unknown].value : dim->own};
  }
  *out_dims = dims;
  *out_n = n;
  return OPIPE_OK;
}

opipe_status opi_solve_with(const opi_model *model, const opi_bind_options *options,
                            const opi_dim_binding *place, opi_arena *arena,
                            opi_dim_binding **out_dims, uint32_t *out_n, opipe_error *err) {
  solver s = {.model = model, .options = options, .arena = arena};
  OPI_TRY(collect(&s, err));
  OPI_TRY(take_given_dims(&s, err));
  OPI_TRY(take_given_shapes(&s, err));
  OPI_TRY(propagate(&s, err));
  if (options->flags & OPI_BIND_DEFAULTS)
    OPI_TRY(take_defaults(&s, err));
  OPI_TRY(report_free(&s, err));
  if (place != NULL) {
    dimension *dim = find_by_place(&s, place->name);
    if (dim != NULL)
      dim->own = place->value;
  }
  return hand_out(&s, out_dims, out_n, err);
}

opipe_status opi_solve_dims(const opi_model *model, const opi_bind_options *options,
                            opi_arena *arena, opi_dim_binding **out_dims, uint32_t *out_n,
                            opipe_error *err) {
  return opi_solve_with(model, options, NULL, arena, out_dims, out_n, err);
}
