/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled shapes by signature: found, built when new, evicted (least recently used, idle, not the
 * plan's own) when there is no place. */
#include <stdio.h>
#include <string.h>

#include "runtime/state.h"

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

/* An empty place, or that of the idle shape that was used longest ago. */
static opipe_status find_place(opi_session *session, uint32_t *out_place, opipe_error *err) {
  uint32_t oldest = OPIPE_NONE;
  for (uint32_t i = 0; i < session->n_places; ++i) {
    const opi_shape *shape = session->shapes[i];
    if (shape == NULL) {
      *out_place = i;
      return OPIPE_OK;
    }
    if (shape->keep || atomic_load(&shape->n_users) != 0)
      continue;
    if (oldest == OPIPE_NONE || shape->last_used < session->shapes[oldest]->last_used)
      oldest = i;
  }
  if (oldest == OPIPE_NONE) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "a request of a new shape: all %u compiled shapes are in use; max_shapes is %u",
                    session->n_places, session->n_places);
  }
  opi_lock_take(&session->shapes_lock);
  opi_shape *shape = session->shapes[oldest];
  session->shapes[oldest] = NULL;
  opi_lock_give(&session->shapes_lock);
  opi_shape_free(shape);
  *out_place = oldest;
  return OPIPE_OK;
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
        strstr(at, quoted) == NULL)
      continue;
    input->valued = true;
    any = true;
  }
  return any;
}

/* One try; OPIPE_PENDING: another input's value turned out to be needed. */
static opipe_status try_build(opi_session *session, const opi_request *request, int64_t rows,
                              uint32_t place, opi_shape **out_shape, opipe_error *err) {
  opi_shape *shape = shape_new(session, err);
  if (shape == NULL)
    return OPIPE_E_NOMEM;
  opipe_status status = OPIPE_OK;
  shape->place = place;
  shape->rows = rows;
  shape->keep = request == NULL;
  if (request != NULL)
    status = opi_shape_sign(shape, request, rows, err);
  if (status == OPIPE_OK)
    status = opi_shape_bind(shape, err);
  const bool again =
      status == OPIPE_E_UNSUPPORTED && request != NULL && mark_valued(session, err->message);
  if (status == OPIPE_OK)
    status = opi_shape_build(shape, err);
  if (status < 0) {
    opi_shape_free(shape);
    return again ? OPIPE_PENDING : status;
  }
  *out_shape = shape;
  return OPIPE_OK;
}

static opipe_status build(opi_session *session, const opi_request *request, int64_t rows,
                          opi_shape **out_shape, opipe_error *err) {
  opipe_error local =
      OPIPE_ERROR_INIT; /* the loader's message is read even when the caller wants none */
  uint32_t place = 0;
  OPI_TRY(find_place(session, &place, err));
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING)
    status = try_build(session, request, rows, place, out_shape, &local);
  if (status < 0) {
    if (err != NULL)
      *err = local;
    return status;
  }
  opi_lock_take(&session->shapes_lock);
  session->shapes[place] = *out_shape;
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

void opi_shapes_free(opi_session *session) {
  for (uint32_t i = session->n_places; i > 0;
       --i) { /* the plan's own, whose constants others may use, go last */
    if (session->shapes == NULL)
      return;
    opi_shape_free(session->shapes[i - 1]);
    session->shapes[i - 1] = NULL;
  }
}
