/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a training session: checkpoints, gradients, the model. */
#include <fcntl.h>
#include <string.h>

#include "abi/api/api.h"
#include "loader/graph/behind.h"
#include "loader/graph/wide.h"
#include "runtime/checkpoint/checkpoint.h"

OPIPE_STATIC_ASSERT((int)OPIPE_POSITION == (int)OPI_POSITION, "positions agree");

/* ---- checkpoints ---- */

static const opipe_allocator *allocator_of(const opi_session_object *session) {
  return &session->plan->model->context->allocator;
}

static opipe_status check_file(const opi_model *model, const char *path, opipe_error *err) {
  return opi_model_check_target(model, path, true, err);
}

/* The part of the session that writes checks whether a file of the model would be overwritten; the
 * answer holds for all parts. */
static opipe_status agree_on_target(const opi_session_object *session, opi_weights *weights,
                                    opipe_status (*check)(const opi_model *, const char *,
                                                          opipe_error *),
                                    const char *path, opipe_error *err) {
  const opipe_status status =
      opi_weights_leads(weights) ? check(session->plan->model->file, path, err) : OPIPE_OK;
  return opi_weights_agree(weights, status, err);
}

/* ---- by the processes of a team ---- */

/* The processes that save and load together. False: this one does alone. */
static bool is_together(opi_session_object *session, opi_checkpoint_group *out) {
  opi_meeting *meeting = &session->meeting;
  *out = (opi_checkpoint_group){meeting->info.rank, meeting->info.size, opi_meeting_gather,
                                opi_meeting_check, meeting};
  return meeting->team != NULL && meeting->info.size > 1;
}

opipe_status opi_api_session_save(opi_session_object *session, const char *path,
                                  const uint64_t *position, opipe_error *err) {
  static const uint64_t none[OPI_POSITION] = {0};
  const opipe_allocator *allocator = allocator_of(session);
  const uint64_t *at = position == NULL ? none : position;
  const char *folder = path == NULL ? "" : path;
  opi_weights *weights = NULL;
  opi_checkpoint_group group;
  opipe_status status = path == NULL
                            ? opi_fail(err, OPIPE_E_INVALID, "session_save: the path is NULL")
                            : opi_session_rest_to_read(session, &weights, err);
  const bool rests = status == OPIPE_OK;
  if (is_together(session, &group)) { /* the others learn of an error of this one */
    if (rests)
      status = opi_checkpoint_check_target(session->plan->model->file, folder, err);
    status = opi_checkpoint_save_shards(allocator, weights, &group, folder, at, status, err);
  } else if (rests) {
    status = agree_on_target(session, weights, opi_checkpoint_check_target, folder, err);
    if (status == OPIPE_OK)
      status = opi_checkpoint_save(allocator, weights, folder, at, err);
  }
  if (rests)
    opi_train_go_on(session->session);
  return status;
}

opipe_status opi_api_session_load(opi_session_object *session, const char *path,
                                  uint64_t *out_position, opipe_error *err) {
  opi_weights *weights = NULL;
  opi_checkpoint_info info;
  opi_checkpoint_group group;
  opipe_status status = path == NULL
                            ? opi_fail(err, OPIPE_E_INVALID, "session_load: the path is NULL")
                            : opi_session_rest(session, &weights, err);
  const bool rests = status == OPIPE_OK;
  if (is_together(session, &group)) {
    status = opi_checkpoint_load_shards(allocator_of(session), weights, &group,
                                        path == NULL ? "" : path, status, &info, err);
  } else if (rests) {
    status = opi_checkpoint_load(allocator_of(session), weights, path, &info, err);
  }
  if (status == OPIPE_OK)
    opi_train_set_step(session->session, info.clock.n_steps);
  if (rests)
    opi_train_go_on(session->session);
  if (status == OPIPE_OK && out_position != NULL)
    memcpy(out_position, info.position, sizeof info.position);
  return status;
}

opipe_status opi_api_session_save_gradients(opi_session_object *session, const char *path,
                                            opipe_error *err) {
  opi_weights *weights = NULL;
  if (path == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_save_gradients: the path is NULL");
  OPI_TRY(opi_session_rest(session, &weights, err));
  opipe_status status = agree_on_target(session, weights, check_file, path, err);
  if (status == OPIPE_OK)
    status = opi_checkpoint_gradients(allocator_of(session), weights, path, err);
  opi_train_go_on(session->session);
  return status;
}

/* ---- the model ---- */

/* The type of an initializer in the file; OPIPE_UNDEFINED: the file has none of that name. */
static uint32_t stored_type(const opi_graph *file, const char *name) {
  const opi_value *value = opi_initializer_behind(file, name);
  return value != NULL ? value->dtype : (uint32_t)OPIPE_UNDEFINED;
}

/* Converts a parameter trained in float32 to the file's half type. `r->data` may be NULL. */
static void store_as(opi_replacement *r, uint32_t dtype, void *data) {
  const uint64_t n = r->n_bytes / sizeof(float);
  if (r->dtype != OPIPE_FLOAT || !opi_dtype_is_half(dtype))
    return;
  if (data != NULL)
    opi_narrow(dtype, data, n, data); /* in place from the first element on: each has been read
                                         before it is overwritten */
  r->dtype = dtype;
  r->n_bytes = n * sizeof(uint16_t);
}

/* Every parameter that was trained or set, in its type in the file; `values`: with its content. */
static opipe_status gather(const opi_graph *file, opi_weights *weights, bool values,
                           opi_arena *arena, opi_replacement **out_list, uint32_t *out_n,
                           opipe_error *err) {
  opi_weight_info info;
  uint32_t n = 0;
  while (opi_weights_info(weights, n, &info))
    ++n;
  opi_replacement *list = OPI_ARENA_ARRAY(arena, opi_replacement, n);
  if (list == NULL)
    return opi_fail_nomem(err, n * sizeof *list, "parameters");
  *out_n = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!opi_weights_info(weights, i, &info) || (info.trained == 0 && info.changed == 0))
      continue;
    const opipe_param_source *s = info.source;
    void *data = values ? opi_arena_alloc(arena, (size_t)s->n_bytes) : NULL;
    if (values && data == NULL)
      return opi_fail_nomem(err, s->n_bytes, s->name);
    if (values)
      OPI_TRY(opi_weights_get(weights, s->name, OPI_TENSOR_WEIGHT, 0, data, s->n_bytes, err));
    opi_replacement *r = &list[(*out_n)++];
    *r = (opi_replacement){.name = s->name,
                           .data = data,
                           .shape = s->shape,
                           .n_bytes = s->n_bytes,
                           .dtype = s->dtype,
                           .rank = s->rank};
    store_as(r, stored_type(file, s->name), data);
  }
  *out_list = list;
  return OPIPE_OK;
}

opipe_status opi_api_session_save_model(opi_session_object *session, const char *path,
                                        opipe_error *err) {
  opi_weights *weights = NULL;
  opi_replacement *list = NULL;
  opi_arena arena;
  uint32_t n = 0;
  if (path == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_save_model: the path is NULL");
  OPI_TRY(opi_session_rest_to_read(session, &weights, err));
  opi_arena_init(&arena, allocator_of(session), 0);
  opipe_status status =
      gather(session->plan->model->file->graph, weights, true, &arena, &list, &n, err);
  if (status == OPIPE_OK && opi_weights_leads(weights))
    status = opi_model_save(session->plan->model->file, list, n, path, err);
  opi_arena_release(&arena);
  status = opi_weights_agree(weights, status, err);
  opi_train_go_on(session->session);
  return status;
}

static opipe_status try_model(const opi_session_object *session, opi_weights *weights,
                              const char *path, opipe_error *err) {
  opi_replacement *list = NULL;
  opi_arena arena;
  uint32_t n = 0;
  opi_arena_init(&arena, allocator_of(session), 0);
  opipe_status status =
      gather(session->plan->model->file->graph, weights, false, &arena, &list, &n, err);
  if (status == OPIPE_OK)
    status = opi_model_try_save(session->plan->model->file, list, n, path, err);
  opi_arena_release(&arena);
  return status;
}

static opipe_status try_save(const opi_session_object *session, opi_weights *weights, uint32_t what,
                             const char *path, opipe_error *err) {
  if (!opi_weights_leads(weights))
    return OPIPE_OK; /* another session writes */
  switch (what) {
    case OPIPE_SAVE_CHECKPOINT:
      OPI_TRY(opi_checkpoint_check_target(session->plan->model->file, path, err));
      return opi_checkpoint_try(allocator_of(session), path, err);
    case OPIPE_SAVE_MODEL:
      return try_model(session, weights, path, err);
    default:
      break;
  }
  if (!opi_weights_keep_gradients(weights)) {
    return opi_fail(err, OPIPE_E_STATE,
                    "session_try_save: gradients are not kept after the step in this session "
                    "(OPIPE_SESSION_KEEP_GRADIENTS)");
  }
  OPI_TRY(check_file(session->plan->model->file, path, err));
  return opi_try_file(AT_FDCWD, path, err);
}

opipe_status opi_api_session_try_save(opi_session_object *session, uint32_t what, const char *path,
                                      opipe_error *err) {
  opi_weights *weights = NULL;
  opi_checkpoint_group group;
  if (path == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_try_save: the path is NULL");
  OPI_TRY(opi_choice_check("session_try_save", "what", what, OPIPE_SAVE_GRADIENTS, err));
  opipe_status status = opi_session_rest_to_read(session, &weights, err);
  const bool rests = status == OPIPE_OK;
  if (what == OPIPE_SAVE_CHECKPOINT && is_together(session, &group)) {
    if (rests)
      status = opi_checkpoint_check_target(session->plan->model->file, path, err);
    status = opi_checkpoint_try_shards(allocator_of(session), &group, path, status, err);
  } else if (rests) {
    status = try_save(session, weights, what, path, err);
  }
  if (rests)
    opi_train_go_on(session->session);
  return status;
}
