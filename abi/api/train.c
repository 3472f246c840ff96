/* SPDX-License-Identifier: Apache-2.0 */
/* Training through the host's table: options, steps, parameters by name. */
#include <math.h>
#include <string.h>

#include "abi/api/api.h"
#include "abi/api/team/follow.h"
#include "loader/gradient/account.h"
#include "loader/gradient/gradient.h"

/* ---- options ---- */

static opipe_status read_globs(const opipe_train_options *o, opi_arena *arena, opi_train_spec *spec,
                               opipe_error *err) {
  opi_train_glob *globs = OPI_ARENA_ARRAY(arena, opi_train_glob, o->n_globs);
  if (globs == NULL)
    return opi_fail_nomem(err, o->n_globs * sizeof *globs, "globs");
  for (uint32_t i = 0; i < o->n_globs; ++i) {
    opipe_train_glob glob;
    opi_array_get(o->globs, o->globs_stride, i, &glob, sizeof glob);
    globs[i] = (opi_train_glob){glob.pattern, glob.trainable != 0, 0};
  }
  spec->globs = globs;
  spec->n_globs = o->n_globs;
  return OPIPE_OK;
}

OPIPE_STATIC_ASSERT((int)OPIPE_LOSS_BCE == (int)OPI_LOSS_BCE &&
                        (int)OPIPE_LOSS_MSE == (int)OPI_LOSS_MSE &&
                        (int)OPIPE_LOSS_CROSS_ENTROPY == (int)OPI_LOSS_CROSS_ENTROPY &&
                        (int)OPIPE_RECOMPUTE_ATTENTION == (int)OPI_RECOMPUTE_ATTENTION &&
                        (int)OPIPE_RECOMPUTE_BLOCK == (int)OPI_RECOMPUTE_BLOCK &&
                        (int)OPIPE_RECOMPUTE_STAGE == (int)OPI_RECOMPUTE_STAGE,
                    "losses and recomputation agree");
OPIPE_STATIC_ASSERT((int)OPIPE_SKIP_OVERFLOW == (int)OPI_SKIP_OVERFLOW &&
                        (int)OPIPE_SKIP_NOT_FINITE == (int)OPI_SKIP_NOT_FINITE &&
                        (int)OPIPE_SKIP_HELD == (int)OPI_SKIP_HELD,
                    "reasons for skipped steps agree");
OPIPE_STATIC_ASSERT((int)OPIPE_LR_LINEAR == (int)OPI_LR_LINEAR &&
                        (int)OPIPE_LR_COSINE == (int)OPI_LR_COSINE &&
                        (int)OPIPE_STATE_MASTER == (int)OPI_TENSOR_MASTER &&
                        (int)OPIPE_STATE_GRADIENT == (int)OPI_TENSOR_GRADIENT &&
                        (int)OPIPE_STATE_FIRST_MOMENT == (int)OPI_TENSOR_FIRST &&
                        (int)OPIPE_STATE_SECOND_MOMENT == (int)OPI_TENSOR_SECOND,
                    "learning rates and states agree");
OPIPE_STATIC_ASSERT(sizeof(opipe_train_glob) == sizeof(opi_train_glob) &&
                        offsetof(opipe_train_glob, trainable) ==
                            offsetof(opi_train_glob, trainable) &&
                        offsetof(opipe_train_glob, reserved) == offsetof(opi_train_glob, reserved),
                    "globs agree");

opipe_status opi_train_options_read(const opipe_train_options *options, const char *call,
                                    opi_arena *arena, opi_train_spec *out_spec, opipe_error *err) {
#define NUMBER(KEY, field, ...) out_spec->optimizer.field = o.field;
#define SWITCH(KEY, field, ...) out_spec->optimizer.field = (o.flags & OPIPE_TRAIN_##KEY) != 0;
  opipe_train_options o = {0};
  OPI_TRY(opi_params_read(&opi_struct_train_options, call, options, &o, err));
  *out_spec =
      (opi_train_spec){.loss = {.kind = o.loss,
                                .shift = o.shift,
                                .output = o.output,
                                .labels = o.labels,
                                .ignore = o.ignore,
                                .smoothing = o.smoothing},
                       .recompute = o.recompute,
                       .compute = o.compute,
                       .seed = o.seed,
                       .optimizer = {.kind = o.optimizer,
                                     .lr_schedule = o.lr_schedule,
                                     .warmup_steps = o.warmup_steps,
                                     .total_steps = o.total_steps,
                                     .clip_norm = o.clip_norm,
                                     .no_decay = o.no_decay,
                                     .n_no_decay = o.n_no_decay,
                                     .loss_scaling = o.loss_scaling != 0,
                                     .shard = (o.flags & OPIPE_TRAIN_SHARD_OPTIMIZER) != 0}};
  OPIPE_TAKES(NUMBER, SWITCH)
#undef NUMBER
#undef SWITCH
  return read_globs(&o, arena, out_spec, err);
}

opipe_status opi_api_plan_training(opi_plan_object *plan, opipe_train_options *io_options,
                                   opipe_error *err) {
#define NUMBER(KEY, field, ...) options.field = of->field;
#define SWITCH(KEY, field, ...) options.flags |= of->field != 0 ? OPIPE_TRAIN_##KEY : 0u;
  const opi_train_spec *spec = plan->plan->decided.train;
  OPI_TRY(opi_info_check("plan_training", io_options, OPIPE_END(opipe_train_options, labels), err));
  if (spec == NULL)
    return opi_fail(err, OPIPE_E_NOTFOUND, "plan_training: the plan is for inference");
  const opi_optimizer *of = &spec->optimizer;
  opipe_train_options options = {.struct_size = io_options->struct_size,
                                 .loss = spec->loss.kind,
                                 .output = spec->loss.output,
                                 .labels = spec->loss.labels,
                                 .ignore = spec->loss.ignore,
                                 .smoothing = spec->loss.smoothing,
                                 .shift = spec->loss.shift,
                                 .n_globs = spec->n_globs,
                                 .globs = (const void *)spec->globs,
                                 .globs_stride = (uint32_t)sizeof *spec->globs,
                                 .recompute = spec->recompute,
                                 .compute = spec->compute == 0 ? OPIPE_FLOAT : spec->compute,
                                 .optimizer = of->kind,
                                 .seed = spec->seed,
                                 .clip_norm = of->clip_norm,
                                 .lr_schedule = of->lr_schedule,
                                 .warmup_steps = of->warmup_steps,
                                 .total_steps = of->total_steps,
                                 .no_decay = of->no_decay,
                                 .n_no_decay = of->n_no_decay,
                                 .loss_scaling = of->loss_scaling,
                                 .flags = of->shard != 0 ? OPIPE_TRAIN_SHARD_OPTIMIZER : 0u};
  OPIPE_TAKES(NUMBER, SWITCH)
#undef NUMBER
#undef SWITCH
  opi_info_write(io_options, &options, sizeof options);
  return OPIPE_OK;
}

/* ---- steps ---- */

/* Warns once about a step with the plan's learning rate 0. */
static void warn_of_no_rate(opi_session_object *session, const opipe_submit_params *params) {
  const opi_train_spec *spec = session->plan->plan->decided.train;
  if (spec == NULL || spec->optimizer.lr != 0 || (params->flags & OPIPE_SUBMIT_LR) != 0 ||
      atomic_exchange(&session->warned_of_rate, true))
    return;
  opi_log(&session->plan->model->context->logger, OPIPE_LOG_WARN,
          "session_train_step: the learning rate is 0, so no parameter changes: set "
          "opipe_train_options.lr, or give steps their own (OPIPE_SUBMIT_LR)");
}

static opipe_status refuse_state(const opipe_submit_params *params, const char *call,
                                 opipe_error *err) {
  return params->state == NULL ? OPIPE_OK
                               : opi_fail(err, OPIPE_E_INVALID,
                                          "%s: a state is given, but training keeps none", call);
}

opipe_status opi_lr_check(const opipe_submit_params *given, const char *call, bool learns,
                          opipe_error *err) {
  const bool has = OPIPE_HAS(given, opipe_submit_params, lr);
  const uint32_t flags = OPIPE_HAS(given, opipe_submit_params, flags) ? given->flags : 0;
  const bool asked = (flags & OPIPE_SUBMIT_LR) != 0;
  const double lr = has ? given->lr : 0;
  if (!asked && lr == 0)
    return OPIPE_OK;
  if (!learns) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: flags 0x%x, lr %g: only session_train_step has a learning rate", call,
                    flags, lr);
  }
  if (!asked)
    return opi_fail(err, OPIPE_E_INVALID, "%s: lr %g without OPIPE_SUBMIT_LR", call, lr);
  if (!has) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: flags 0x%x ask for lr, which lies beyond the struct's %u bytes", call,
                    flags, given->struct_size);
  }
  if (!(lr >= 0 && lr <= OPIPE_LR_MOST))
    return opi_fail(err, OPIPE_E_INVALID, "%s: lr %g, 0 to %g", call, lr, OPIPE_LR_MOST);
  return OPIPE_OK;
}

opipe_status opi_api_session_train_step(opi_session_object *session,
                                        const opipe_submit_params *params,
                                        opipe_request **out_ticket, opipe_error *err) {
  opi_request *request = NULL;
  opipe_submit_params own = {0};
  if (params == NULL || out_ticket == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_train_step: an argument is NULL");
  OPI_TRY(opi_session_check_counts(session->session, "session_train_step", true, params, err));
  OPI_TRY(opi_follow_refuse(session, "session_train_step", err));
  OPI_TRY(opi_params_read(&opi_struct_submit_params, "session_train_step", params, &own, err));
  OPI_TRY(refuse_state(&own, "session_train_step", err));
  OPI_TRY(opi_lr_check(params, "session_train_step", true, err));
  warn_of_no_rate(session, &own);
  return opi_started(opi_train_step(session->session, &own, &request, out_ticket, err), out_ticket);
}

opipe_status opi_api_session_evaluate(opi_session_object *session,
                                      const opipe_submit_params *params,
                                      opipe_request **out_request, opipe_error *err) {
  opi_request *request = NULL;
  opipe_submit_params own = {0};
  if (params == NULL || out_request == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_evaluate: an argument is NULL");
  OPI_TRY(opi_session_check_counts(session->session, "session_evaluate", true, params, err));
  OPI_TRY(opi_params_read(&opi_struct_submit_params, "session_evaluate", params, &own, err));
  OPI_TRY(refuse_state(&own, "session_evaluate", err));
  OPI_TRY(opi_lr_check(params, "session_evaluate", false, err));
  OPI_TRY(opi_follow_begin(session, OPIPE_START_EVALUATION, &own, err));
  const opipe_status status =
      opi_train_evaluate(session->session, &own, &request, out_request, err);
  return opi_started(opi_follow_end(session, status), out_request);
}

opipe_status opi_api_session_flush(opi_session_object *session, opipe_error *err) {
  if (opi_train_weights(session->session) == NULL)
    return OPIPE_OK; /* no step can be under way */
  OPI_TRY(opi_follow_refuse(session, "session_flush", err));
  return opi_train_flush(session->session, UINT64_MAX, err);
}

opipe_status opi_api_request_report(opi_request *request, opipe_train_report *io_report,
                                    opipe_error *err) {
  opi_train_result result;
  OPI_TRY(opi_info_check("request_report", io_report, OPIPE_END(opipe_train_report, step_ns), err));
  OPI_TRY(opi_train_report(request, &result, err));
  const opipe_train_report report = {.struct_size = io_report->struct_size,
                                     .skipped = result.step.skipped,
                                     .step = result.step.step,
                                     .step_ns = result.step_ns,
                                     .loss = result.loss,
                                     .count = result.count,
                                     .gradient_norm = result.step.gradient_norm,
                                     .lr = result.step.lr,
                                     .loss_scale = result.step.loss_scale};
  opi_info_write(io_report, &report, sizeof report);
  return OPIPE_OK;
}

/* ---- parameters ---- */

opipe_status opi_session_rest(opi_session_object *session, opi_weights **out_weights,
                              opipe_error *err) {
  *out_weights = opi_train_weights(session->session);
  if (*out_weights == NULL)
    return opi_fail(err, OPIPE_E_STATE, "the session's plan is for inference");
  OPI_TRY(opi_follow_refuse(session, "a call that reads or writes parameters", err));
  return opi_train_rest(session->session, err);
}

opipe_status opi_session_rest_to_read(opi_session_object *session, opi_weights **out_weights,
                                      opipe_error *err) {
  *out_weights = opi_train_weights(session->session);
  if (*out_weights == NULL)
    return opi_fail(err, OPIPE_E_STATE, "the session's plan is for inference");
  OPI_TRY(opi_follow_refuse(session, "a call that reads parameters", err));
  return opi_train_rest_to_read(session->session, err);
}

opipe_status opi_api_session_parameter(opi_session_object *session, uint32_t index,
                                       opipe_parameter_info *io_info, opipe_error *err) {
  opi_weight_info w;
  OPI_TRY(
      opi_info_check("session_parameter", io_info, OPIPE_END(opipe_parameter_info, n_bytes), err));
  const opi_weights *weights = opi_train_weights(session->session);
  if (weights == NULL)
    return opi_fail(err, OPIPE_E_STATE, "the session's plan is for inference");
  if (!opi_weights_info(weights, index, &w))
    return opi_fail(err, OPIPE_E_NOTFOUND, "session_parameter: there is no parameter %u", index);
  const opipe_parameter_info info = {.struct_size = io_info->struct_size,
                                     .dtype = w.source->dtype,
                                     .name = w.source->name,
                                     .shape = w.source->shape,
                                     .rank = w.source->rank,
                                     .trained = w.trained,
                                     .n_bytes = w.source->n_bytes,
                                     .n_copies = w.n_copies,
                                     .gradient_norm = w.gradient_norm};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

static void write_clock(const opi_weights *weights, opipe_train_clock *io_clock) {
  opi_weights_clock c;
  opi_weights_get_clock(weights, &c);
  io_clock->reserved = 0;
  io_clock->steps = c.n_steps;
  io_clock->updates = c.n_updates;
  io_clock->good_steps = c.n_good;
  io_clock->loss_scale = c.loss_scale;
}

opipe_status opi_api_session_get(opi_session_object *session, const char *name, uint32_t state,
                                 uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err) {
  opi_weights *weights = NULL;
  if (name == NULL || (dst == NULL && n_bytes != 0))
    return opi_fail(err, OPIPE_E_INVALID, "session_get: an argument is NULL");
  OPI_TRY(state == OPIPE_STATE_GRADIENT /* a failed step has begun new ones */
              ? opi_session_rest(session, &weights, err)
              : opi_session_rest_to_read(session, &weights, err));
  const opipe_status status = opi_weights_get(weights, name, state, version, dst, n_bytes, err);
  opi_train_go_on(session->session);
  return status;
}

static opipe_status check_read(const opi_weights *weights, const opipe_tensor_read *t,
                               opipe_error *err) {
  if (t->data == NULL && t->n_bytes != 0)
    return opi_fail(err, OPIPE_E_INVALID, "session_read: '%s' has no memory to read into", t->name);
  return opi_weights_find(weights, t->name, t->state, t->version, t->n_bytes, err);
}

/* Errors are found before anything is written. */
static opipe_status read_all(opi_weights *weights, const opipe_read_params *params,
                             opipe_train_clock *io_clock, opipe_error *err) {
  for (uint32_t pass = 0; pass < 2; ++pass) {
    for (uint32_t i = 0; i < params->n_tensors; ++i) {
      opipe_tensor_read t;
      opi_array_get(params->tensors, params->tensors_stride, i, &t, sizeof t);
      OPI_TRY(pass == 0
                  ? check_read(weights, &t, err)
                  : opi_weights_get(weights, t.name, t.state, t.version, t.data, t.n_bytes, err));
    }
  }
  if (io_clock != NULL)
    write_clock(weights, io_clock);
  return OPIPE_OK;
}

opipe_status opi_api_session_read(opi_session_object *session, const opipe_read_params *params,
                                  opipe_train_clock *io_clock, opipe_error *err) {
  opi_weights *weights = NULL;
  opipe_read_params own = {0};
  bool gradients = false;
  if (params == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_read: the params are NULL");
  OPI_TRY(opi_params_read(&opi_struct_read_params, "session_read", params, &own, err));
  if (io_clock != NULL) {
    OPI_TRY(
        opi_info_check("session_read", io_clock, OPIPE_END(opipe_train_clock, loss_scale), err));
  }
  for (uint32_t i = 0; i < own.n_tensors; ++i) {
    opipe_tensor_read t;
    opi_array_get(own.tensors, own.tensors_stride, i, &t, sizeof t);
    gradients = gradients || t.state == OPIPE_STATE_GRADIENT;
  }
  OPI_TRY(gradients ? opi_session_rest(session, &weights, err)
                    : opi_session_rest_to_read(session, &weights, err));
  const opipe_status status = read_all(weights, &own, io_clock, err);
  opi_train_go_on(session->session);
  return status;
}

opipe_status opi_api_session_set(opi_session_object *session, const char *name, uint32_t state,
                                 uint32_t version, const void *src, uint64_t n_bytes,
                                 opipe_error *err) {
  opi_weights *weights = NULL;
  if (name == NULL || (src == NULL && n_bytes != 0))
    return opi_fail(err, OPIPE_E_INVALID, "session_set: an argument is NULL");
  OPI_TRY(opi_session_rest(session, &weights, err));
  const opipe_status status = opi_weights_set(weights, name, state, version, src, n_bytes, err);
  opi_train_go_on(session->session);
  return status;
}

/* ---- the clock ---- */

opipe_status opi_api_session_clock(opi_session_object *session, opipe_train_clock *io_clock,
                                   opipe_error *err) {
  opi_weights *weights = NULL;
  OPI_TRY(opi_info_check("session_clock", io_clock, OPIPE_END(opipe_train_clock, loss_scale), err));
  OPI_TRY(opi_session_rest_to_read(session, &weights, err));
  write_clock(weights, io_clock);
  opi_train_go_on(session->session);
  return OPIPE_OK;
}

opipe_status opi_api_session_set_clock(opi_session_object *session, const opipe_train_clock *clock,
                                       opipe_error *err) {
  opi_weights *weights = NULL;
  opipe_train_clock own = {0};
  if (clock == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_set_clock: the clock is NULL");
  OPI_TRY(opi_params_read(&opi_struct_train_clock, "session_set_clock", clock, &own, err));
  if (!(own.loss_scale > 0) || !isfinite(own.loss_scale)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "session_set_clock: loss_scale is %g, a number above 0 is needed",
                    own.loss_scale);
  }
  if (own.updates > own.steps || own.steps > INT64_MAX) {
    return opi_fail(
        err, OPIPE_E_INVALID, "session_set_clock: %llu updates in %llu steps (at most %lld)",
        (unsigned long long)own.updates, (unsigned long long)own.steps, (long long)INT64_MAX);
  }
  OPI_TRY(opi_session_rest(session, &weights, err));
  opi_weights_clock c = {.n_steps = own.steps,
                         .n_updates = own.updates,
                         .n_good = own.good_steps,
                         .loss_scale = own.loss_scale};
  c.scales = opi_weights_clock_scales(&c);
  opi_weights_set_clock(weights, &c);
  opi_train_set_step(session->session, own.steps);
  opi_train_go_on(session->session);
  return OPIPE_OK;
}

/* ---- descriptions ---- */

/* Adds how many initializers of the file became parameters. */
static opipe_status describe_account(const opi_model *file, const opi_training *t, bool json,
                                     opi_text *text, opipe_error *err) {
  opi_arena arena;
  uint32_t n = 0;
  opi_arena_init(&arena, t->arena.allocator, 0);
  const char **trained = OPI_ARENA_ARRAY(&arena, const char *, t->n_params);
  for (uint32_t i = 0; trained != NULL && i < t->n_params; ++i) {
    if (t->params[i].n_gradients != 0)
      trained[n++] = t->params[i].name;
  }
  const opipe_status status =
      trained != NULL ? opi_account_write(file, trained, n, json, text, err)
                      : opi_fail_nomem(err, t->n_params * sizeof *trained, "parameters");
  opi_arena_release(&arena);
  return status;
}

static opipe_status describe_text(const opi_model *file, const opi_training *t,
                                  opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  OPI_TRY(opi_training_describe(t, write, ctx, err));
  opi_text_init(&text, t->arena.allocator);
  opipe_status status = describe_account(file, t, false, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

static opipe_status describe_json(const opi_model *file, const opi_training *t,
                                  opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  opi_text_init(&text, t->arena.allocator);
  opi_text_printf(&text, "{\n  \"trained\": %u,\n  \"initializers\": [", t->n_trained);
  for (uint32_t i = 0; i < t->n_params; ++i) {
    const opi_train_param *p = &t->params[i];
    opi_text_puts(&text, i == 0 ? "\n    {\"name\": " : ",\n    {\"name\": ");
    opi_text_json(&text, p->name);
    if (p->origin != NULL) {
      opi_text_puts(&text, ", \"module_name\": ");
      opi_text_json(&text, p->origin);
    }
    opi_text_printf(&text, ", \"trained\": %s, \"why\": ", p->n_gradients != 0 ? "true" : "false");
    opi_text_json(&text, opi_training_reason(p->why));
    if (p->doubt != NULL) {
      opi_text_puts(&text, ", \"doubt\": ");
      opi_text_json(&text, p->doubt);
    }
    if (p->value != OPIPE_NONE) {
      const opi_value *v = &t->graph->values[p->value];
      opi_text_printf(&text, ", \"dtype\": \"%s\", \"shape\": ", opi_dtype_name(v->dtype));
      opi_text_shape(&text, v->shape, (uint32_t)v->rank);
    }
    opi_text_puts(&text, "}");
  }
  opi_text_printf(&text, "\n  ],\n  \"by_rows\": %s,\n  \"unmatched\": [",
                  t->by_rows ? "true" : "false");
  for (uint32_t i = 0; i < t->n_unmatched; ++i) {
    opi_text_puts(&text, i == 0 ? "" : ", ");
    opi_text_json(&text, t->unmatched[i]);
  }
  opi_text_puts(&text, "],\n  \"file\": ");
  opipe_status status = describe_account(file, t, true, &text, err);
  opi_text_puts(&text, "\n}\n");
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

opipe_status opi_api_model_describe_training(opi_model_object *model,
                                             const opipe_train_options *options, uint32_t format,
                                             opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_arena arena;
  opi_train_spec spec;
  opi_training *training = NULL;
  if (options == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "model_describe_training: the options are NULL");
  OPI_TRY(opi_choice_check("model_describe_training", "format", format, OPIPE_FORMAT_JSON, err));
  if (model->bound == NULL || (model->options.flags & OPI_BIND_KEEP_PARAMETERS) == 0) {
    return opi_fail(err, OPIPE_E_STATE,
                    "model_describe_training: bind the model with OPIPE_BIND_TRAIN first");
  }
  opi_arena_init(&arena, &model->context->allocator, 0);
  opipe_status status =
      opi_train_options_read(options, "model_describe_training", &arena, &spec, err);
  if (status == OPIPE_OK && spec.loss.kind == OPI_LOSS_OUTPUT && spec.loss.output == NULL)
    spec.loss.kind = OPI_LOSS_REPORT;
  if (status == OPIPE_OK) {
    const opi_gradient_options gradient = {
        .loss = &spec.loss,
        .globs = spec.globs,
        .n_globs = spec.n_globs,
        .recompute = spec.recompute,
        .compute = spec.compute == 0 ? (uint32_t)OPIPE_FLOAT : spec.compute,
        .evaluator = model->options.evaluator,
        .allocator = &model->context->allocator,
        .logger = &model->context->logger};
    status = opi_gradient_build(model->bound, &gradient, &training, err);
  }
  if (status == OPIPE_OK) {
    status = format == OPIPE_FORMAT_JSON ? describe_json(model->file, training, write, ctx, err)
                                         : describe_text(model->file, training, write, ctx, err);
  }
  opi_training_free(training);
  opi_arena_release(&arena);
  return status;
}
