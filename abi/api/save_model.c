/* SPDX-License-Identifier: Apache-2.0 */
/* The model file with the newest parameters. The session with rank 0 writes, and asks the others
 * for one parameter after the other, as the file needs them: its owner gives it in pieces, so that
 * nobody holds more than the parameter that it owns, and a piece.
 *
 *   session with rank 0 ── wish i ──► all      owner of i ── piece, piece ... ──► all
 *                       ── wish END ─► all, before the file is flushed
 */
#include <string.h>

#include "abi/api/api.h"
#include "loader/graph/behind.h"
#include "loader/graph/wide.h"

enum { PIECE_BYTES = 4 << 20 };
static const uint64_t END = UINT64_MAX;

typedef struct giving giving;

/* One parameter that is written. */
typedef struct parameter {
  giving *of;
  const char *name;
  uint64_t n_bytes; /* in the session; the file may have halves of them */
  uint32_t owner;   /* a rank */
  uint32_t owned;   /* 1: by this session */
} parameter;

struct giving {
  const opipe_allocator *allocator;
  opi_weights *weights;
  opi_replacement *list;  /* [n] */
  parameter *parameters;  /* [n] */
  uint32_t n, n_streamed; /* parameters whose last use has begun */
  bool ended;             /* END was said */
  opipe_error why;        /* of the sessions; a sink answers for itself */
};

/* The next thing that the session with rank 0 wants. */
typedef struct wish {
  uint64_t index; /* of a parameter; or END */
  uint64_t here;  /* 1: that session owns it, so that no other has a part */
} wish;

/* ---- one parameter ---- */

/* Calls `take` for every piece of a parameter; NULL: only has a part in bringing it. Goes through
 * all pieces even if `take` fails, since the other sessions do. alone: the others have no part. */
static opipe_status give(giving *g, uint32_t index, bool alone, opipe_write_fn take, void *ctx) {
  const parameter *p = &g->parameters[index];
  const uint64_t room = p->owned != 0 || p->n_bytes < PIECE_BYTES ? p->n_bytes : PIECE_BYTES;
  opipe_status status = OPIPE_OK, taken = OPIPE_OK;
  char *data = opi_alloc(g->allocator, (size_t)room + 1);
  if (data == NULL && p->owned == 0)
    return opi_fail_nomem(&g->why, room, p->name);
  const opipe_status had = data == NULL ? opi_fail_nomem(&g->why, room, p->name)
                           : p->owned == 0
                               ? OPIPE_OK
                               : opi_weights_get_own(g->weights, p->name, OPI_TENSOR_WEIGHT, 0,
                                                     data, p->n_bytes, &g->why);
  status = had;
  for (uint64_t at = 0; at < p->n_bytes && (at == 0 || status == OPIPE_OK);) {
    const uint64_t n = p->n_bytes - at < PIECE_BYTES ? p->n_bytes - at : PIECE_BYTES;
    char *piece = data == NULL ? NULL : p->owned != 0 ? data + at : data;
    if (!alone)
      status = opi_weights_bring(g->weights, p->owner, piece, n, had, &g->why);
    if (status == OPIPE_OK && taken == OPIPE_OK && take != NULL)
      taken = take(ctx, piece, (size_t)n);
    at += n;
  }
  opi_free(g->allocator, data, data == NULL ? 0 : (size_t)room + 1);
  return status < 0 ? status : taken;
}

/* ---- the session with rank 0 ---- */

static opipe_status say(giving *g, uint64_t index) {
  wish w = {.index = index, .here = index != END && g->parameters[index].owned != 0 ? 1 : 0};
  g->ended = g->ended || index == END;
  return opi_weights_bring(g->weights, 0, &w, sizeof w, OPIPE_OK, &g->why);
}

/* Narrows pieces to the file's halves on their way. */
typedef struct narrowing {
  uint32_t dtype; /* of the file */
  opipe_write_fn write;
  void *ctx;
} narrowing;

static opipe_status narrow(void *ctx, const void *data, size_t n_bytes) {
  const narrowing *to = ctx;
  char *halves = (char *)(uintptr_t)data; /* in place from the first element on: each has been read
                                             before it is overwritten */
  opi_narrow(to->dtype, data, n_bytes / sizeof(float), halves);
  return to->write(to->ctx, halves, n_bytes / 2);
}

/* Writes parameter `index` as the file has it. The wish END follows the last one. */
static opipe_status write_one(giving *g, uint32_t index, opipe_write_fn write, void *ctx) {
  const opi_replacement *r = &g->list[index];
  narrowing to = {r->dtype, write, ctx};
  const bool narrows = r->n_bytes < g->parameters[index].n_bytes;
  if (g->ended)
    return opi_fail(&g->why, OPIPE_E_INTERNAL, "parameter '%s' is written twice", r->name);
  OPI_TRY(say(g, index));
  const opipe_status status = give(g, index, g->parameters[index].owned != 0,
                                   narrows ? narrow : write, narrows ? (void *)&to : ctx);
  if (++g->n_streamed < g->n)
    return status;
  const opipe_status ended = say(g, END);
  return status < 0 ? status : ended;
}

static opipe_status stream(void *ctx, const opi_replacement *value, opipe_write_fn write,
                           void *write_ctx, opipe_error *err) {
  const parameter *p = ctx;
  giving *g = p->of;
  (void)value; /* maybe a copy of the list's */
  const opipe_status status = write_one(g, (uint32_t)(p - g->parameters), write, write_ctx);
  return status < 0 && g->why.status < 0 ? opi_fail(err, status, "%s", g->why.message) : status;
}

/* A sink in memory. */
typedef struct memory {
  char *data;
  uint64_t n;
} memory;

static opipe_status keep(void *ctx, const void *data, size_t n_bytes) {
  memory *m = ctx;
  memcpy(m->data + m->n, data, n_bytes);
  m->n += n_bytes;
  return OPIPE_OK;
}

/* Gets the parameters that cannot be streamed. */
static opipe_status keep_some(giving *g, const opi_model *model, opi_arena *arena) {
  for (uint32_t i = 0; i < g->n; ++i) {
    opi_replacement *r = &g->list[i];
    memory m = {.data = NULL};
    if (opi_model_streams(model, r->name))
      continue;
    m.data = opi_arena_alloc(arena, (size_t)r->n_bytes);
    if (m.data == NULL)
      return opi_fail_nomem(&g->why, r->n_bytes, r->name);
    OPI_TRY(write_one(g, i, keep, &m));
    r->data = m.data;
  }
  return OPIPE_OK;
}

static opipe_status lead(giving *g, const opi_model *model, opi_arena *arena, const char *path,
                         opipe_error *err) {
  opipe_status status = keep_some(g, model, arena);
  if (status < 0)
    (void)opi_fail(err, status, "%s", g->why.message);
  else
    status = opi_model_save(model, g->list, g->n, path, err);
  if (!g->ended)
    (void)say(g, END);
  return status;
}

/* ---- the others ---- */

static opipe_status follow(giving *g, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (;;) {
    wish w = {.index = END};
    status = opi_weights_bring(g->weights, 0, &w, sizeof w, OPIPE_OK, &g->why);
    if (status < 0 || w.index >= g->n)
      break;
    if (w.here == 0)
      status = give(g, (uint32_t)w.index, false, NULL, NULL);
  }
  return status < 0 ? opi_fail(err, status, "%s", g->why.message) : OPIPE_OK;
}

/* ---- all of them ---- */

/* The type of an initializer in the file; OPIPE_UNDEFINED: the file has none of that name. */
static uint32_t stored_type(const opi_graph *file, const char *name) {
  const opi_value *value = opi_initializer_behind(file, name);
  return value != NULL ? value->dtype : (uint32_t)OPIPE_UNDEFINED;
}

/* A parameter that was trained in float32 is stored in the file's half type. */
static void add(giving *g, const opi_graph *file, const opi_weight_info *info) {
  const opipe_param_source *s = info->source;
  const uint32_t dtype = stored_type(file, s->name);
  const bool narrows = s->dtype == OPIPE_FLOAT && opi_dtype_is_half(dtype);
  parameter *p = &g->parameters[g->n];
  *p = (parameter){g, s->name, s->n_bytes, info->owner, info->owned};
  g->list[g->n++] = (opi_replacement){
      .name = s->name,
      .stream = stream,
      .stream_ctx = p,
      .shape = s->shape,
      .n_bytes = narrows ? s->n_bytes / sizeof(float) * sizeof(uint16_t) : s->n_bytes,
      .dtype = narrows ? dtype : s->dtype,
      .rank = s->rank};
}

/* Every parameter that was trained or set, in its type in the file. */
static opipe_status gather(giving *g, const opi_graph *file, opi_arena *arena, opipe_error *err) {
  opi_weight_info info;
  uint32_t n = 0;
  while (opi_weights_info(g->weights, n, &info))
    ++n;
  g->list = OPI_ARENA_ARRAY(arena, opi_replacement, n);
  g->parameters = OPI_ARENA_ARRAY(arena, parameter, n);
  if (g->list == NULL || g->parameters == NULL)
    return opi_fail_nomem(err, n * sizeof *g->list, "parameters");
  for (uint32_t i = 0; i < n; ++i) {
    if (opi_weights_info(g->weights, i, &info) && (info.trained != 0 || info.changed != 0))
      add(g, file, &info);
  }
  return OPIPE_OK;
}

static opipe_status save(opi_session_object *session, opi_weights *weights, const char *path,
                         opipe_error *err) {
  const opi_model *model = session->plan->model->file;
  giving g = {.allocator = &session->plan->model->context->allocator,
              .weights = weights,
              .why = OPIPE_ERROR_INIT};
  opi_arena arena;
  opi_arena_init(&arena, g.allocator, 0);
  opipe_status status = gather(&g, model->graph, &arena, err);
  if (status == OPIPE_OK)
    status = opi_weights_leads(weights) ? lead(&g, model, &arena, path, err) : follow(&g, err);
  opi_arena_release(&arena);
  return status;
}

opipe_status opi_api_session_save_model(opi_session_object *session, const char *path,
                                        opipe_error *err) {
  opi_weights *weights = NULL;
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  if (path == NULL)
    return opi_fail(e, OPIPE_E_INVALID, "session_save_model: the path is NULL");
  OPI_TRY(opi_session_rest_to_read(session, &weights, e));
  opipe_status status = save(session, weights, path, e);
  if (session->meeting.team != NULL && session->meeting.info.size > 1)
    status = opi_meeting_agree(&session->meeting, "model", status, e); /* however long a flush is */
  else
    status = opi_weights_agree(weights, status, e);
  opi_train_go_on(session->session);
  return status;
}

opipe_status opi_try_save_model(const opi_session_object *session, opi_weights *weights,
                                const char *path, opipe_error *err) {
  const opi_model *model = session->plan->model->file;
  giving g = {.allocator = &session->plan->model->context->allocator, .weights = weights};
  opi_arena arena;
  opi_arena_init(&arena, g.allocator, 0);
  opipe_status status = gather(&g, model->graph, &arena, err);
  if (status == OPIPE_OK)
    status = opi_model_try_save(model, g.list, g.n, path, err);
  opi_arena_release(&arena);
  return status;
}
