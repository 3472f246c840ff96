/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled shapes by signature: found, built when new, and evicted when there is no place. The
 * least recently used idle one goes, but never the plan's own. */
#include <stdio.h>
#include <string.h>

#include "loader/passes/row_model.h"
#include "runtime/compiled/build.h"

static opi_shape *shape_new(opi_setup *s, opipe_error *err) {
  opi_shape *shape = opi_alloc_zero(s->allocator, 1, sizeof *shape);
  if (shape == NULL) {
    (void)opi_fail_nomem(err, sizeof *shape, "a compiled shape");
    return NULL;
  }
  shape->setup = s;
  shape->lead = shape;
  opi_arena_init(&shape->arena, s->allocator, 0);
  return shape;
}

static void shape_stop(opi_shape *shape) {
  opi_compiled_stop(shape);
  opi_shape_memory_free(shape);
  shape->arena_of_rank = NULL;
}

static void shape_free(opi_shape *shape) {
  if (shape == NULL)
    return;
  opi_setup *s = shape->setup;
  shape_stop(shape);
  opi_compiled_free(shape);
  opi_arena_release(&shape->arena);
  opi_free(s->allocator, shape, sizeof *shape);
}

/* The least recently used shape that is idle and not the plan's own; OPIPE_NONE: there is none.
 * *out_busy: another such shape is in use, so there will be an idle one later. Where sessions share
 * the work all must evict the same shape: the least recently used of all, once it is idle. */
static uint32_t find_idle(opi_setup *s, bool *out_busy) {
  uint32_t oldest = OPIPE_NONE;
  *out_busy = false;
  for (uint32_t i = 0; i < s->shapes->n_places; ++i) {
    opi_shape *shape = s->shapes->list[i];
    if (shape == NULL || shape->keep)
      continue;
    const bool busy = !opi_is_idle(s, &shape->n_users);
    *out_busy = *out_busy || busy;
    if ((!busy || opi_is_shared(s)) &&
        (oldest == OPIPE_NONE || shape->last_used < s->shapes->list[oldest]->last_used))
      oldest = i;
  }
  return oldest != OPIPE_NONE && !opi_is_idle(s, &s->shapes->list[oldest]->n_users) ? OPIPE_NONE
                                                                                    : oldest;
}

static void evict(opi_setup *s, uint32_t index) {
  opi_lock_take(&s->shapes->lock);
  opi_shape *shape = s->shapes->list[index];
  s->shapes->list[index] = NULL;
  opi_lock_give(&s->shapes->lock);
  shape_free(shape);
}

/* Finds a place, evicting a shape if needed. OPIPE_PENDING: all shapes are in use. */
static opipe_status find_index(opi_setup *s, uint32_t *out_place, opipe_error *err) {
  bool busy = false;
  for (uint32_t i = 0; i < s->shapes->n_places; ++i) {
    if (s->shapes->list[i] != NULL)
      continue;
    *out_place = i;
    return OPIPE_OK;
  }
  *out_place = find_idle(s, &busy);
  if (*out_place != OPIPE_NONE) {
    evict(s, *out_place);
    return OPIPE_OK;
  }
  if (busy)
    return OPIPE_PENDING;
  return opi_fail(err, OPIPE_E_LIMIT,
                  "a request of a new shape: all %u places are taken by the plan's own shapes",
                  s->shapes->n_places);
}

/* Marks the graph inputs whose values a loader's message asks for ("... graph input 'a', 'b':
 * ..."). False: it names none that is not marked yet. */
static bool mark_valued(opi_setup *s, const char *message) {
  const char *at = strstr(message, "needs the value of");
  bool any = false;
  at = at == NULL ? NULL : strstr(at, "graph input ");
  for (uint32_t i = 0; at != NULL && i < s->n_inputs; ++i) {
    char quoted[256];
    opi_input *input = &s->inputs[i];
    const int n = snprintf(quoted, sizeof quoted, "'%s'", input->name);
    const bool whole =
        opi_dtype_is_integer(input->value->dtype) || input->value->dtype == OPIPE_BOOL;
    if (n < 0 || (size_t)n >= sizeof quoted || input->valued || !whole ||
        opi_stream_pair_in(s, i) != OPIPE_NONE || /* its value is not known at submit */
        strstr(at, quoted) == NULL)
      continue;
    input->valued = true;
    any = true;
  }
  return any;
}

/* Passes of fewer rows are cut like the plan's own shape, which has room for them. */
static void find_lead(opi_shape *shape) {
  const opi_setup *s = shape->setup;
  opi_shape *own = s->shapes->list[0];
  if (s->plan->rows != NULL && !shape->keep &&
      opi_cut_model_holds(own->compiled->model, shape->compiled->model))
    shape->lead = own;
}

/* Tries once. OPIPE_PENDING: the value of another input turned out to be needed, or it is not there
 * yet (shapes->awaited). */
static opipe_status try_build(opi_setup *s, const opi_request *request, int64_t rows,
                              uint32_t index, opi_shape **out_shape, opipe_error *err) {
  opi_shape *shape = shape_new(s, err);
  if (shape == NULL)
    return OPIPE_E_NOMEM;
  opipe_status status = OPIPE_OK;
  shape->index = index;
  shape->rows = rows;
  shape->keep = request == NULL;
  if (request != NULL)
    status = opi_shape_sign(shape, request, rows, err);
  if (status == OPIPE_OK)
    status = opi_compiled_graphs(shape, err);
  const bool again =
      status == OPIPE_E_UNSUPPORTED && request != NULL && mark_valued(s, err->message);
  if (status == OPIPE_OK) {
    find_lead(shape);
    status = opi_compiled_build(shape, err);
  }
  if (status != OPIPE_OK) {
    shape_free(shape);
    return again ? OPIPE_PENDING : status;
  }
  *out_shape = shape;
  return OPIPE_OK;
}

/* Evicts idle shapes, one after the other, until the new one fits beside the rest. */
static opipe_status build_in_room(opi_setup *s, const opi_request *request, int64_t rows,
                                  uint32_t index, opi_shape **out_shape, opipe_error *err) {
  bool busy = false;
  for (;;) {
    opipe_status status = OPIPE_PENDING;
    while (status == OPIPE_PENDING && atomic_load(&s->shapes->awaited) == NULL)
      status = try_build(s, request, rows, index, out_shape, err);
    if (status != OPIPE_E_LIMIT || opi_is_shared(s))
      return status; /* sessions that share the work must evict alike, and their room differs */
    const uint32_t idle = find_idle(s, &busy);
    if (idle == OPIPE_NONE)
      return busy ? OPIPE_PENDING : status;
    evict(s, idle);
  }
}

/* All sessions that share the work have prepared the shape, or none goes on with it. The name holds
 * all dimensions, so that sessions that were given different ones notice. */
static opipe_status agree(opi_setup *s, const opi_request *request, int64_t rows, opipe_status own,
                          opipe_error *err) {
  const opi_together *together = &s->env.together;
  char what[48];
  uint64_t sum = UINT64_C(14695981039346656037); /* FNV-1a */
  if (together->agree == NULL)
    return own;
  if (together->follow != NULL && s->plan->rows == NULL) /* passes' shapes: all open them */
    OPI_TRY(together->follow(together->ctx, OPI_FOLLOW_NEW, 0, err));
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    for (int32_t d = 0; d < s->inputs[i].value->rank; ++d)
      sum = (sum ^ (uint64_t)request->feeds[i].shape[d]) * UINT64_C(1099511628211);
  }
  (void)snprintf(what, sizeof what, "shape %016llx of %lld rows", (unsigned long long)sum,
                 (long long)rows);
  return together->agree(together->ctx, what, own, err);
}

static opipe_status build(opi_setup *s, const opi_request *request, int64_t rows,
                          opi_shape **out_shape, opipe_error *err) {
  opipe_error local =
      OPIPE_ERROR_INIT; /* the loader's message is read even if the caller wants none */
  uint32_t index = 0;
  opipe_status status = find_index(s, &index, err);
  if (status != OPIPE_OK)
    return status;
  status = build_in_room(s, request, rows, index, out_shape, &local);
  if (status != OPIPE_PENDING && request != NULL) { /* open agrees about the plan's own */
    opi_shape *made = status == OPIPE_OK ? *out_shape : NULL;
    status = agree(s, request, rows, status, &local);
    if (status == OPIPE_OK)
      status = opi_session_ready(s, &local);
    if (status == OPIPE_OK)
      status = opi_ways_find(made, &local);
    if (status < 0)
      shape_free(made);
  }
  if (status != OPIPE_OK) {
    if (err != NULL && status < 0)
      *err = local;
    return status;
  }
  opi_lock_take(&s->shapes->lock);
  s->shapes->list[index] = *out_shape;
  opi_lock_give(&s->shapes->lock);
  atomic_fetch_add(&s->shapes->n_compiled, 1);
  atomic_fetch_add(&s->shapes->version, 1);
  return OPIPE_OK;
}

/* Once all shapes of a plan of passes are there, a request of another is refused. */
static opipe_status check_fixed(const opi_setup *s, const opi_request *request, opipe_error *err) {
  const opi_generation *g = &s->plan->decided.binding.generation;
  if (!s->shapes->fixed)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID,
      "a pass of %lld rows: the plan has classes of 1, 2, 4 ... %u rows, each with wanted "
      "rows, sequences and copies of its own",
      (long long)request->feeds[0].shape[0], g->rows);
}

static opipe_status shape_get(opi_setup *s, const opi_request *request, int64_t rows,
                              opi_shape **out_shape, opipe_error *err) {
  for (uint32_t i = 0; request != NULL && i < s->shapes->n_places; ++i) {
    opi_shape *shape = s->shapes->list[i];
    if (shape == NULL || !opi_shape_fits(shape, request, rows))
      continue;
    *out_shape = shape;
    return OPIPE_OK;
  }
  if (request != NULL)
    OPI_TRY(check_fixed(s, request, err));
  return build(s, request, rows, out_shape, err);
}

opipe_status opi_shape_find(opi_setup *s, opi_request *request, opipe_error *err) {
  const int64_t rows = s->n_batch_inputs == 0 ? 0 : request->rows;
  const opipe_status status = shape_get(s, request, rows, &request->shape, err);
  if (status != OPIPE_OK) {
    request->shape = NULL;
    return status;
  }
  atomic_fetch_add(&request->shape->n_users, 1);
  request->runs = request->shape->compiled;
  return OPIPE_OK;
}

void opi_shape_let_go(opi_request *request) {
  if (request->shape != NULL)
    atomic_fetch_sub(&request->shape->n_users, 1);
  request->shape = NULL;
}

/* ---- with the session ---- */

opipe_status opi_shapes_open(opi_shapes *shapes, opipe_error *err) {
  opi_setup *s = shapes->setup;
  opi_shape *own = NULL;
  shapes->kind = opi_session_trains(s) ? &opi_step_shapes : &opi_request_shapes;
  shapes->list = OPI_ARENA_ARRAY(&s->arena, opi_shape *, shapes->n_places);
  if (shapes->list == NULL)
    return opi_fail_nomem(err, shapes->n_places * sizeof *shapes->list, "shapes");
  return shape_get(s, NULL, 0, &own, err);
}

/* The shape of a pass of class c. */
static opipe_status open_class(opi_setup *s, uint32_t c, opi_request *pass, opipe_error *err) {
  opi_dim_binding dims[OPI_ROW_DIMS];
  opi_shape *shape = NULL;
  opi_row_model_dims(s->plan->rows, opi_generation_rows(&s->plan->decided.binding.generation, c),
                     dims);
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opi_value *value = s->inputs[i].value;
    for (int32_t d = 0; d < value->rank; ++d) {
      int64_t n = value->shape[d];
      for (uint32_t k = 0; n < 0 && k < OPI_ROW_DIMS; ++k)
        n = strcmp(value->dim_names[d], dims[k].name) == 0 ? dims[k].value : n;
      pass->feeds[i].shape[d] = n;
    }
  }
  return shape_get(s, pass, 0, &shape, err);
}

opipe_status opi_shapes_open_all(opi_shapes *shapes, opipe_error *err) {
  opi_setup *s = shapes->setup;
  opi_arena scratch;
  opipe_status status = OPIPE_OK;
  if (s->plan->rows == NULL)
    return OPIPE_OK;
  opi_arena_init(&scratch, s->allocator, 0);
  opi_request pass = {.n_microbatches = 1, .setup = s};
  pass.feeds = OPI_ARENA_ARRAY(&scratch, opi_feed, s->n_inputs);
  if (pass.feeds == NULL)
    status = opi_fail_nomem(err, s->n_inputs * sizeof *pass.feeds, "passes");
  for (uint32_t c = 0;
       c < opi_generation_classes(&s->plan->decided.binding.generation) && status >= 0; ++c)
    status = open_class(s, c, &pass, err);
  opi_arena_release(&scratch);
  shapes->fixed = status == OPIPE_OK;
  return status;
}

void opi_shapes_stop(opi_shapes *shapes) {
  for (uint32_t i = 0; shapes->list != NULL && i < shapes->n_places; ++i) {
    if (shapes->list[i] != NULL)
      shape_stop(shapes->list[i]);
  }
  opi_residents_free(shapes);
  if (shapes->weights != NULL)
    opi_weights_close(shapes->weights);
}

void opi_shapes_free(opi_shapes *shapes) {
  /* The plan's own shape goes last, since others may use its constants. */
  for (uint32_t i = shapes->n_places; shapes->list != NULL && i > 0; --i) {
    shape_free(shapes->list[i - 1]);
    shapes->list[i - 1] = NULL;
  }
}
