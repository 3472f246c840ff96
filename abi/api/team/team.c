/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: params, infos and callbacks of the host around runtime/launch. */
#include "abi/api/api.h"
#include "loader/base/fp.h"

/* A host's callbacks, which run in the host's floating-point environment. */
typedef struct host_gather {
  opipe_status (*all_gather)(void *ctx, const void *mine, uint64_t n_bytes, void *out_all,
                             uint64_t timeout_ns);
  opipe_status (*part)(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes);
  void *ctx;
} host_gather;

static opipe_status all_gather(void *ctx, const void *mine, uint64_t n_bytes, void *out_all,
                               uint64_t timeout_ns) {
  const host_gather *host = ctx;
  opi_fp_border *lent = opi_fp_lend();
  const opipe_status status = host->all_gather(host->ctx, mine, n_bytes, out_all, timeout_ns);
  opi_fp_take(lent);
  return status;
}

static opipe_status give_part(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  const host_gather *host = ctx;
  opi_fp_border *lent = opi_fp_lend();
  const opipe_status status = host->part(host->ctx, rank, data, n_bytes);
  opi_fp_take(lent);
  return status;
}

void opi_team_unref(void *object) {
  opi_team_object *team = object;
  if (team == NULL || !opi_unref(&team->refs))
    return;
  opi_context_object *context = team->context;
  opi_team_close(team->team);
  while (team->names != NULL) {
    opi_session_name *name = team->names;
    team->names = name->next;
    opi_free(&context->allocator, name, sizeof *name);
  }
  (void)pthread_mutex_destroy(&team->lock);
  opi_free(&context->allocator, team, sizeof *team);
  opi_context_unref(context);
}

opipe_status opi_api_team_open(opi_context_object *context, const opipe_team_params *params,
                               opipe_team **out_team, opipe_error *err) {
  opipe_team_params own = {.struct_size = (uint32_t)sizeof own};
  const opi_team_env env = {&context->allocator, &context->logger, NULL, NULL};
  uint64_t handle = 0;
  if (out_team == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "team_open: out_team is NULL");
  OPI_TRY(opi_params_read(&opi_struct_team_params, "team_open", params, &own, err));
  host_gather host = {own.all_gather, NULL, own.all_gather_ctx};
  if (own.all_gather != NULL) {
    own.all_gather = all_gather;
    own.all_gather_ctx = &host;
  }
  opi_team_object *team = opi_alloc_zero(&context->allocator, 1, sizeof *team);
  if (team == NULL)
    return opi_fail_nomem(err, sizeof *team, "a team");
  if (pthread_mutex_init(&team->lock, NULL) != 0) {
    opi_free(&context->allocator, team, sizeof *team);
    return opi_fail(err, OPIPE_E_NOMEM, "team_open: no lock");
  }
  const opipe_status status = opi_team_open(&env, &own, &team->team, err);
  if (status < 0) {
    (void)pthread_mutex_destroy(&team->lock);
    opi_free(&context->allocator, team, sizeof *team);
    return status;
  }
  atomic_init(&team->refs, 1);
  team->context = context;
  opi_ref(&context->refs);
  OPI_TRY(opi_handle_new(OPI_HANDLE_TEAM, team, opi_team_unref, context->handle, &handle, err));
  *out_team = opi_handle_pointer(handle);
  return OPIPE_OK;
}

opipe_status opi_api_team_info(opi_team_object *team, opipe_team_info *io_info, opipe_error *err) {
  opipe_team_info info;
  OPI_TRY(opi_info_check("team_info", io_info, OPIPE_END(opipe_team_info, size), err));
  opi_team_info(team->team, &info);
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

opipe_status opi_api_team_describe(opi_team_object *team, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err) {
  opi_text text;
  OPI_TRY(opi_choice_check("team_describe", "format", format, OPIPE_FORMAT_JSON, err));
  opi_text_init(&text, &team->context->allocator);
  opipe_status status = opi_team_describe(team->team, format, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

opipe_status opi_api_team_gather(opi_team_object *team, const opipe_gather_params *params,
                                 opipe_error *err) {
  opipe_gather_params own = {.struct_size = (uint32_t)sizeof own};
  if (params == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "team_gather: the params are NULL");
  OPI_TRY(opi_params_read(&opi_struct_gather_params, "team_gather", params, &own, err));
  host_gather host = {NULL, own.part, own.part_ctx};
  if (own.part != NULL) {
    own.part = give_part;
    own.part_ctx = &host;
  }
  return opi_team_gather(team->team, &own, err);
}

opipe_status opi_api_team_check(opi_team_object *team, opipe_error *err) {
  return opi_team_check(team->team, err);
}

opipe_status opi_api_team_moved(opi_team_object *team, uint64_t moves, const char *at,
                                opipe_error *err) {
  return opi_team_moved(team->team, moves, at, err);
}

opipe_status opi_api_team_abort(opi_team_object *team, const char *reason, opipe_error *err) {
  return opi_team_abort(team->team, reason, err);
}

opipe_status opi_api_team_stop(opi_team_object *team, uint32_t what, opipe_error *err) {
  return opi_team_stop(team->team, what, err);
}

opipe_status opi_api_team_step(opi_team_object *team, uint64_t step, uint32_t *out_what,
                               opipe_error *err) {
  return out_what != NULL ? opi_team_step(team->team, step, out_what, err)
                          : opi_fail(err, OPIPE_E_INVALID, "team_step: out_what is NULL");
}
