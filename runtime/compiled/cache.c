/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled shapes by signature: found, built when new, evicted (least recently used, idle, not the
 * plan's own) when there is no place. */
#include <stdio.h>
#include <string.h>

#include "runtime/engine.h"

static opi_shape *shape_new(opi_session *session, opipe_error *err) {
  opi_shape *shape = opi_alloc_zero(session->allocator, 1, sizeof *shape);
  if (shape == NULL) {
    (void)opi_fail_nomem(err, sizeof *shape, "a compiled shape");
    return NULL;
  }
  shape->session = session;
  opi_arena_init(&shape->arena, session->allocator, 0);
  return shape;
}

void opi_shape_stop(opi_shape *shape) {
  opi_compiled_stop(shape);
  opi_shape_memory_free(shape);
  shape->arena_of_rank = NULL;
}

void opi_shape_free(opi_shape *shape) {
  if (shape == NULL)
    return;
  opi_session *s = shape->session;
  opi_shape_stop(shape);
  opi_compiled_free(shape);
  opi_arena_release(&shape->arena);
  opi_free(s->allocator, shape, sizeof *shape);
}

/* The shape that is neither the plan's own nor in use and was used longest ago; OPIPE_NONE: none.
 * *out_busy: a shape that is not the plan's own is in use, so that there will be one later. Where
 * sessions share the work all must choose the same one: that which was used longest ago, as soon as
 * it is not in use. */
static uint32_t find_idle(opi_session *session, bool *out_busy) {
  uint32_t oldest = OPIPE_NONE;
  *out_busy = false;
  for (uint32_t i = 0; i < session->n_places; ++i) {
    opi_shape *shape = session->shapes[i];
    if (shape == NULL || shape->keep)
      continue;
    const bool busy = !opi_is_idle(session, &shape->n_users);
    *out_busy = *out_busy || busy;
    if ((!busy || session->peers != NULL) &&
        (oldest == OPIPE_NONE || shape->last_used < session->shapes[oldest]->last_used))
      oldest = i;
  }
  return oldest != OPIPE_NONE && !opi_is_idle(session, &session->shapes[oldest]->n_users)
             ? OPIPE_NONE
             : oldest;
}

static void evict(opi_session *session, uint32_t index) {
  opi_lock_take(&session->shapes_lock);
  opi_shape *shape = session->shapes[index];
  session->shapes[index] = NULL;
  opi_lock_give(&session->shapes_lock);
  opi_shape_free(shape);
}

/* An empty place, made so if need be; OPIPE_PENDING: all shapes are in use. */
static opipe_status find_index(opi_session *session, uint32_t *out_place, opipe_error *err) {
  bool busy = false;
  for (uint32_t i = 0; i < session->n_places; ++i) {
    if (session->shapes[i] != NULL)
      continue;
    *out_place = i;
    return OPIPE_OK;
  }
  *out_place = find_idle(session, &busy);
  if (*out_place != OPIPE_NONE) {
    evict(session, *out_place);
    return OPIPE_OK;
  }
  if (busy)
    return OPIPE_PENDING;
  return opi_fail(err, OPIPE_E_LIMIT, "a request of a new shape: all %u places hold the plan's own",
                  session->n_places);
}

/* Marks the graph inputs that a loader's message asks values of: "... graph input 'a', 'b': ...".
 * False: none that is not pinned yet. */
static bool mark_valued(opi_session *session, const char *message) {
  const char *at = strstr(message, "needs the value of");
  bool any = false;
  at = at == NULL ? NULL : strstr(at, "graph input ");
  for (uint32_t i = 0; at != NULL && i < session->n_inputs; ++i) {
    char quoted[256];
    opi_input *input = &session->inputs[i];
    const int n = snprintf(quoted, sizeof quoted, "'%s'", input->name);
    const bool whole =
        opi_dtype_is_integer(input->value->dtype) || input->value->dtype == OPIPE_BOOL;
    if (n < 0 || (size_t)n >= sizeof quoted || input->valued || !whole ||
        opi_stream_pair_in(session, i) != OPIPE_NONE || /* it has no value when it is submitted */
        strstr(at, quoted) == NULL)
      continue;
    input->valued = true;
    any = true;
  }
  return any;
}

/* One try; OPIPE_PENDING: another input's value turned out to be needed, or (session->awaited) one
 * is not there yet. */
static opipe_status try_build(opi_session *session, const opi_request *request, int64_t rows,
                              uint32_t index, opi_shape **out_shape, opipe_error *err) {
  opi_shape *shape = shape_new(session, err);
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
      status == OPIPE_E_UNSUPPORTED && request != NULL && mark_valued(session, err->message);
  if (status == OPIPE_OK)
    status = opi_compiled_build(shape, err);
  if (status != OPIPE_OK) {
    opi_shape_free(shape);
    return again ? OPIPE_PENDING : status;
  }
  *out_shape = shape;
  return OPIPE_OK;
}

/* Idle shapes make room, one after the other, for one that does not fit beside them. */
static opipe_status build_in_room(opi_session *session, const opi_request *request, int64_t rows,
                                  uint32_t index, opi_shape **out_shape, opipe_error *err) {
  bool busy = false;
  for (;;) {
    opipe_status status = OPIPE_PENDING;
    while (status == OPIPE_PENDING && atomic_load(&session->awaited) == NULL)
      status = try_build(session, request, rows, index, out_shape, err);
    if (status != OPIPE_E_LIMIT || session->peers != NULL)
      return status; /* what there is room for in one session another may refuse */
    const uint32_t idle = find_idle(session, &busy);
    if (idle == OPIPE_NONE)
      return busy ? OPIPE_PENDING : status;
    evict(session, idle);
  }
}

static opipe_status build(opi_session *session, const opi_request *request, int64_t rows,
                          opi_shape **out_shape, opipe_error *err) {
  opipe_error local =
      OPIPE_ERROR_INIT; /* the loader's message is read even when the caller wants none */
  uint32_t index = 0;
  opipe_status status = find_index(session, &index, err);
  if (status != OPIPE_OK)
    return status;
  status = build_in_room(session, request, rows, index, out_shape, &local);
  if (status != OPIPE_OK) {
    if (err != NULL && status < 0)
      *err = local;
    return status;
  }
  opi_lock_take(&session->shapes_lock);
  session->shapes[index] = *out_shape;
  opi_lock_give(&session->shapes_lock);
  atomic_fetch_add(&session->n_shapes, 1);
  atomic_fetch_add(&session->shapes_version, 1);
  return OPIPE_OK;
}

opipe_status opi_shape_get(opi_session *session, const opi_request *request, int64_t rows,
                           opi_shape **out_shape, opipe_error *err) {
  for (uint32_t i = 0; request != NULL && i < session->n_places; ++i) {
    opi_shape *shape = session->shapes[i];
    if (shape == NULL || !opi_shape_fits(shape, request, rows))
      continue;
    *out_shape = shape;
    return OPIPE_OK;
  }
  return build(session, request, rows, out_shape, err);
}

opipe_status opi_shape_find(opi_session *s, opi_request *request, opipe_error *err) {
  const int64_t rows = s->n_batch_inputs == 0 ? 0 : request->rows;
  const opipe_status status = opi_shape_get(s, request, rows, &request->shape, err);
  if (status != OPIPE_OK) {
    request->shape = NULL;
    return status;
  }
  atomic_fetch_add(&request->shape->n_users, 1);
  request->runs = request->shape->compiled;
  return OPIPE_OK;
}

void opi_shapes_free(opi_session *session) {
  for (uint32_t i = session->n_places; i > 0;
       --i) { /* the plan's own, whose constants others may use, go last */
    if (session->shapes == NULL)
      return;
    opi_shape_free(session->shapes[i - 1]);
    session->shapes[i - 1] = NULL;
  }
}
