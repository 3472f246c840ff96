/* SPDX-License-Identifier: Apache-2.0 */
/* The unknowns of free dimensions and what follows from one for another.
 *
 * An unknown that gets its number puts the dimensions whose expressions have to do with it into a
 * queue; each is evaluated, or solved for its only unknown name. So an expression is looked at once
 * per name in it, whatever the order of the file, and all of it is counted against a budget.
 */
#include "loader/passes/solve.h"

#include <inttypes.h>

uint32_t opi_solver_find(const opi_solver *s, const char *name) {
  uint32_t u = OPIPE_NONE;
  return opi_map_get(s->names, name, &u) ? u : OPIPE_NONE;
}

static opipe_status add_unknown(opi_solver *s, const char *name, uint32_t *out_u,
                                opipe_error *err) {
  *out_u = opi_solver_find(s, name);
  if (*out_u != OPIPE_NONE)
    return OPIPE_OK;
  if (!opi_arena_grow(s->arena, (void **)&s->unknowns, &s->room_unknowns, s->n_unknowns + 1,
                      sizeof(opi_unknown)))
    return opi_fail_nomem(err, sizeof(opi_unknown), "a dimension");
  OPI_TRY(opi_map_set(s->names, name, s->n_unknowns, err));
  s->unknowns[s->n_unknowns] = (opi_unknown){.name = name, .value = -1};
  *out_u = s->n_unknowns++;
  return OPIPE_OK;
}

static opipe_status add_pair(opi_solver *s, uint32_t u, opipe_error *err) {
  if (!opi_arena_grow(s->arena, (void **)&s->pairs, &s->room_pairs, s->n_pairs + 1,
                      sizeof(opi_use)))
    return opi_fail_nomem(err, sizeof(opi_use), "a dimension");
  s->pairs[s->n_pairs++] = (opi_use){u, s->n_dims};
  return OPIPE_OK;
}

typedef struct naming {
  opi_solver *s;
  opipe_error *err;
  opipe_status status;
} naming;

static bool name_unknown(void *ctx, const char *name, uint32_t *io_id) {
  naming *n = ctx;
  n->status = add_unknown(n->s, name, io_id, n->err);
  if (n->status >= 0)
    n->status = add_pair(n->s, *io_id, n->err);
  return n->status >= 0;
}

static bool is_name(void *ctx, const char *name, uint32_t *io_id) {
  (void)io_id;
  return strcmp(ctx, name) != 0;
}

opipe_status opi_solver_add(opi_solver *s, uint32_t input, uint32_t axis, opipe_error *err) {
  const char *key = opi_dim_key(s->arena, &s->model->graph->values[input], axis);
  if (key == NULL || !opi_arena_grow(s->arena, (void **)&s->dims, &s->room_dims, s->n_dims + 1,
                                     sizeof(opi_dimension)))
    return opi_fail_nomem(err, sizeof(opi_dimension), "a dimension");
  opi_dimension *dim = &s->dims[s->n_dims];
  naming n = {s, err, OPIPE_OK};
  *dim = (opi_dimension){.key = key, .input = input, .axis = axis, .own = -1};
  OPI_TRY(opi_expr_parse(s->arena, key, &dim->expr, err));
  dim->size = opi_expr_size(dim->expr);
  if (dim->size == 1 && !opi_expr_visit(dim->expr, is_name, (void *)(uintptr_t)key))
    dim->expr = NULL; /* a plain name */
  OPI_TRY(add_unknown(s, key, &dim->unknown, err));
  opi_unknown *u = &s->unknowns[dim->unknown];
  u->first_axis = u->first_axis || axis == 0;
  u->other_axis = u->other_axis || axis != 0;
  if (dim->expr != NULL) {
    u->whole = true;
    OPI_TRY(add_pair(s, dim->unknown, err));
    (void)opi_expr_visit(dim->expr, name_unknown, &n);
  }
  ++s->n_dims;
  return n.status;
}

static void put(opi_solver *s, uint32_t d) {
  if (s->queued[d])
    return;
  s->queued[d] = true;
  s->queue[(s->queue_first + s->n_queue++) % s->n_dims] = d;
}

opipe_status opi_solver_link(opi_solver *s, opipe_error *err) {
  s->uses = OPI_ARENA_ARRAY(s->arena, uint32_t, s->n_pairs);
  s->queue = OPI_ARENA_ARRAY(s->arena, uint32_t, s->n_dims);
  s->queued = OPI_ARENA_ARRAY(s->arena, bool, s->n_dims);
  if (s->uses == NULL || s->queue == NULL || s->queued == NULL)
    return opi_fail_nomem(err, (size_t)s->n_pairs * sizeof(uint32_t), "dimensions");
  for (uint32_t i = 0; i < s->n_pairs; ++i)
    ++s->unknowns[s->pairs[i].unknown].n_uses;
  for (uint32_t u = 0, first = 0; u < s->n_unknowns; ++u) {
    s->unknowns[u].first_use = first;
    first += s->unknowns[u].n_uses;
    s->unknowns[u].n_uses = 0;
  }
  for (uint32_t i = 0; i < s->n_pairs; ++i) {
    opi_unknown *u = &s->unknowns[s->pairs[i].unknown];
    s->uses[u->first_use + u->n_uses++] = s->pairs[i].dim;
  }
  for (uint32_t d = 0; d < s->n_dims; ++d) {
    s->queued[d] = false;
    if (s->dims[d].expr != NULL)
      put(s, d); /* it may be a number */
  }
  return OPIPE_OK;
}

opipe_status opi_solver_assign(opi_solver *s, uint32_t u, int64_t value, const char *why,
                               opipe_error *err) {
  opi_unknown *un = &s->unknowns[u];
  if (value < 0) {
    return opi_fail(err, OPIPE_E_INVALID, "dimension '%s' is %" PRId64 " (%s)", un->name, value,
                    why);
  }
  if (un->value == value)
    return OPIPE_OK;
  if (un->value >= 0) {
    return opi_fail(err, OPIPE_E_INVALID, "dimension '%s' is %" PRId64 " and %" PRId64 " (%s)",
                    un->name, un->value, value, why);
  }
  un->value = value;
  for (uint32_t i = 0; i < un->n_uses; ++i)
    put(s, s->uses[un->first_use + i]);
  return OPIPE_OK;
}

/* Lookup with one unknown set to `value`; OPIPE_NONE: none. */
typedef struct trial {
  const opi_solver *s;
  uint32_t unknown;
  int64_t value;
} trial;

static bool lookup(const void *ctx, const char *name, uint32_t id, int64_t *out_value) {
  const trial *t = ctx;
  (void)name;
  *out_value = t->unknown == id ? t->value : t->s->unknowns[id].value;
  return *out_value >= 0;
}

static bool try_at(opi_solver *s, const opi_dimension *dim, trial *t, int64_t value,
                   int64_t *out_result) {
  t->value = value;
  s->work += dim->size;
  return opi_expr_eval(dim->expr, lookup, t, out_result);
}

/* expr(x) = target by bisection, rising or falling; false when there is no such x or it overflows.
 */
static bool solve_for(opi_solver *s, const opi_dimension *dim, uint32_t unknown, int64_t target,
                      int64_t *out_value) {
  trial t = {s, unknown, 0};
  int64_t low = 0, high = (int64_t)1 << 31, at_low = 0, at_high = 0, at = 0;
  if (!try_at(s, dim, &t, low, &at_low))
    low = 1; /* a division by the unknown */
  if (!try_at(s, dim, &t, low, &at_low) || !try_at(s, dim, &t, high, &at_high))
    return false;
  const bool rising = at_high >= at_low;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (!try_at(s, dim, &t, middle, &at))
      return false;
    if (rising ? at >= target : at <= target)
      high = middle;
    else
      low = middle + 1;
  }
  *out_value = low;
  return try_at(s, dim, &t, low, &at) && at == target;
}

/* The names of an expression that have no number. */
typedef struct missing {
  const opi_solver *s;
  uint32_t first; /* OPIPE_NONE: none */
  bool more;
} missing;

static bool count_missing(void *ctx, const char *name, uint32_t *io_id) {
  missing *m = ctx;
  (void)name;
  if (m->s->unknowns[*io_id].value < 0) {
    m->more = m->first != OPIPE_NONE && m->first != *io_id;
    m->first = *io_id;
  }
  return !m->more;
}

static opipe_status relax(opi_solver *s, const opi_dimension *dim, opipe_error *err) {
  trial t = {s, OPIPE_NONE, 0};
  missing m = {s, OPIPE_NONE, false};
  int64_t value = 0;
  if (try_at(s, dim, &t, 0, &value))
    return opi_solver_assign(s, dim->unknown, value, "from its expression", err);
  const int64_t target = s->unknowns[dim->unknown].value;
  if (target < 0)
    return OPIPE_OK;
  (void)opi_expr_visit(dim->expr, count_missing, &m);
  if (m.first == OPIPE_NONE || m.more)
    return OPIPE_OK;
  if (!solve_for(s, dim, m.first, target, &value)) {
    return opi_fail(err, OPIPE_E_INVALID, "dimension '%s' cannot be %" PRId64 " for any '%s'",
                    dim->key, target, s->unknowns[m.first].name);
  }
  return opi_solver_assign(s, m.first, value, dim->key, err);
}

opipe_status opi_solver_propagate(opi_solver *s, opipe_error *err) {
  while (s->n_queue != 0) {
    const uint32_t d = s->queue[s->queue_first];
    s->queue_first = (s->queue_first + 1) % s->n_dims;
    --s->n_queue;
    s->queued[d] = false;
    OPI_TRY(relax(s, &s->dims[d], err));
    if (s->work > OPI_SOLVE_BUDGET) {
      return opi_fail(err, OPIPE_E_LIMIT,
                      "the expressions of %" PRIu32 " free dimensions take %" PRIu64
                      " operations to solve; the limit is %d",
                      s->n_dims, s->work, (int)OPI_SOLVE_BUDGET);
    }
  }
  return OPIPE_OK;
}
