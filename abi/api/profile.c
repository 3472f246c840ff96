/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: made from models and descriptions, read, described. [any-thread] */
#include "abi/api/api.h"
#include "abi/api/planning.h"
#include "partition/plan/spec.h"
#include "partition/study/arch/arch.h"
#include "partition/study/layers/describe.h"
#include "partition/study/layers/of_graph.h"

enum { SAMPLES_MOST = 1 << 20 };

void opi_profile_unref(void *profile) {
  opi_profile_object *p = profile;
  if (p == NULL || !opi_unref(&p->refs))
    return;
  opi_context_object *context = p->context;
  opi_layers_free(p->layers);
  opi_plan_free(p->source.trained);
  opi_model_unref(p->source.model);
  opi_arena_release(&p->arena);
  opi_free(&context->allocator, p, sizeof(*p));
  opi_context_unref(context);
}

/* An empty profile with its references. */
static opipe_status new_profile(opi_context_object *context, opi_profile_object **out_profile,
                                opipe_error *err) {
  opi_profile_object *p = opi_alloc_zero(&context->allocator, 1, sizeof(*p));
  if (p == NULL)
    return opi_fail_nomem(err, sizeof(*p), "a profile");
  atomic_init(&p->refs, 1);
  opi_ref(&context->refs);
  p->context = context;
  opi_arena_init(&p->arena, &context->allocator, 0);
  *out_profile = p;
  return OPIPE_OK;
}

/* Makes the profile's handle for the host if `status` is OK, when it has its layers. Takes the
 * profile over, also on failure. */
static opipe_status hand_out(opi_profile_object *p, opipe_status status,
                             opipe_profile **out_profile, opipe_error *err) {
  uint64_t handle = 0;
  if (status < 0) {
    opi_profile_unref(p);
    return status;
  }
  p->forward = true;
  for (uint32_t i = 0; i < p->layers->n_layers && p->forward; ++i)
    p->forward = opi_layer_backward_ns(&p->layers->at[i]) == 0;
  OPI_TRY(
      opi_handle_new(OPI_HANDLE_PROFILE, p, opi_profile_unref, p->context->handle, &handle, err));
  *out_profile = opi_handle_pointer(handle);
  return OPIPE_OK;
}

/* ---- arguments ---- */

static opipe_status check_samples(const opipe_profile_params *p, const char *call,
                                  opipe_error *err) {
  if (p->n_samples > OPI_LAYER_SIZES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%s: %u numbers of samples; at most %d are allowed", call,
                    p->n_samples, OPI_LAYER_SIZES_MOST);
  }
  for (uint32_t k = 0; k < p->n_samples; ++k) {
    if (p->samples[k] == 0 || p->samples[k] > SAMPLES_MOST ||
        (k > 0 && p->samples[k] <= p->samples[k - 1])) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "%s: samples[%u] is %u; they rise from 1, to %d at most", call, k,
                      p->samples[k], SAMPLES_MOST);
    }
  }
  return OPIPE_OK;
}

opipe_status opi_api_take_cluster(const char *call, const opi_cluster_text *text, opi_arena *arena,
                                  opi_cluster *out, opipe_error *err) {
  if (text->data == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: there is no cluster", call);
  return opi_cluster_read(text->name == NULL ? "the cluster" : text->name, text->data,
                          text->n_bytes, arena, out, err);
}

static opipe_status check_device(const opipe_profile_params *p, const opi_cluster *c,
                                 const char *call, opipe_error *err) {
  if (p->device_index < c->n_devices)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s: device %u of a cluster of %u", call, p->device_index,
                  c->n_devices);
}

/* The cluster's device in the form of a described device of plan making. */
static opipe_status describe_place(const opi_cluster *c, uint32_t device, opi_device_spec *out_spec,
                                   opi_device_facts *out_facts, opipe_error *err) {
  const opipe_device_choice *choice = &c->devices[device];
  *out_spec = (opi_device_spec){.kind = choice->kind,
                                .options = choice->options == NULL ? "" : choice->options,
                                .threads = choice->threads};
  return opi_device_describe(&c->descriptions[device], "the cluster's device", out_spec, out_facts,
                             err);
}

/* Finds a device: described, by its place in the cluster; or of a backend here, asked. */
static opipe_status find_device(const opipe_profile_params *p, const opi_plan_env *env,
                                opi_arena *arena, opi_device_spec *out_spec,
                                opi_device_facts *out_facts, opipe_error *err) {
  static const char call[] = "profile_of_model";
  opi_cluster cluster;
  const opi_cluster_text text = {p->cluster, p->cluster_bytes, p->cluster_name};
  if (p->cluster == NULL) {
    *out_spec = (opi_device_spec){.kind = p->device == NULL ? "cpu" : p->device,
                                  .options = p->device_options == NULL ? "" : p->device_options,
                                  .index = p->device_index,
                                  .threads = p->threads};
    return opi_device_look(env, out_spec, out_facts, err);
  }
  OPI_TRY(opi_api_take_cluster(call, &text, arena, &cluster, err));
  OPI_TRY(check_device(p, &cluster, call, err));
  return describe_place(&cluster, p->device_index, out_spec, out_facts, err);
}

static opipe_status check_source(const opipe_profile_params *p, const char *call,
                                 opipe_error *err) {
  if (p->cluster == NULL || (p->device == NULL && p->device_options == NULL && p->threads == 0))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s: a cluster, and a device of this process: give only one", call);
}

/* ---- making ---- */

/* Copies the source to the profile's own memory. */
static opipe_status keep_source(opi_profile_object *profile, opi_model_object *model,
                                const char *arch, const opipe_profile_params *p, opipe_error *err) {
  opi_profile_source *s = &profile->source;
  s->n_samples = p->n_samples;
  s->samples = opi_arena_copy(&profile->arena, p->n_samples == 0 ? (const void *)"" : p->samples,
                              p->n_samples == 0 ? 1 : p->n_samples * sizeof *s->samples);
  s->batch_dim = p->batch_dim == NULL ? NULL : opi_arena_strdup(&profile->arena, p->batch_dim);
  s->arch = arch == NULL ? NULL : opi_arena_strdup(&profile->arena, arch);
  s->every_node = (p->flags & OPIPE_PROFILE_NODES) != 0;
  s->may_be_whole = (p->flags & OPIPE_PROFILE_WHOLE) != 0;
  s->measured = p->cost != OPIPE_COST_RATES;
  s->model = model;
  if (model != NULL)
    opi_ref(&model->refs);
  return s->samples == NULL || (arch != NULL && s->arch == NULL) ||
                 (p->batch_dim != NULL && s->batch_dim == NULL)
             ? opi_fail_nomem(err, p->n_samples * sizeof *s->samples, "a profile")
             : OPIPE_OK;
}

static opipe_status keep_training(opi_profile_object *profile, const opipe_train_options *train,
                                  opi_arena *arena, opipe_error *err) {
  opi_train_spec spec;
  if (train == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_train_options_read(train, "profile_of_model", arena, &spec, err));
  OPI_TRY(opi_plan_new(&profile->context->allocator, &profile->source.trained, err));
  return opi_train_spec_copy(profile->source.trained, &spec, err);
}

/* Layers of the source's model on a device. */
static opipe_status layers_of_model(const opi_profile_object *profile, const opi_plan_env *env,
                                    const opi_device_spec *spec, const opi_device_facts *facts,
                                    uint32_t cost, opi_layers **out_layers, opipe_error *err) {
  const opi_profile_source *s = &profile->source;
  const opi_graph_profile question = {.env = env,
                                      .spec = s->trained == NULL ? NULL : s->trained->decided.train,
                                      .name = s->model->file->graph->name,
                                      .batch_dim = s->batch_dim,
                                      .samples = s->samples,
                                      .n_samples = s->n_samples,
                                      .device = spec,
                                      .facts = facts,
                                      .cost = cost,
                                      .may_be_whole = s->may_be_whole,
                                      .every_node = s->every_node};
  return opi_layers_of_graph(&question, out_layers, err);
}

static opi_plan_env env_of(const opi_profile_object *profile) {
  opi_model_object *model = profile->source.model;
  opi_plan_env env = opi_api_plan_env(model, &model->options);
  env.bound = model->bound;
  return env;
}

static opipe_status profile_model(opi_profile_object *profile, opi_model_object *model,
                                  const opipe_profile_params *p, opi_arena *arena,
                                  opipe_error *err) {
  opi_device_spec spec;
  opi_device_facts facts;
  OPI_TRY(keep_source(profile, model, NULL, p, err));
  OPI_TRY(keep_training(profile, p->train, arena, err));
  const opi_plan_env env = env_of(profile);
  OPI_TRY(find_device(p, &env, arena, &spec, &facts, err));
  return layers_of_model(profile, &env, &spec, &facts, p->cost, &profile->layers, err);
}

opipe_status opi_api_profile_of_model(opi_model_object *model, const opipe_profile_params *params,
                                      opipe_profile **out_profile, opipe_error *err) {
  static const char call[] = "profile_of_model";
  opipe_profile_params own = {.struct_size = (uint32_t)sizeof own};
  opi_profile_object *profile = NULL;
  opi_arena arena;
  if (out_profile == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: out_profile is NULL", call);
  if (model->bound == NULL)
    return opi_fail(err, OPIPE_E_STATE, "%s: the model is not bound; call model_bind first", call);
  OPI_TRY(opi_params_read(&opi_struct_profile_params, call, params, &own, err));
  if (own.train != NULL && (model->options.flags & OPI_BIND_KEEP_PARAMETERS) == 0) {
    return opi_fail(err, OPIPE_E_STATE,
                    "%s: the model was bound for inference; bind it with OPIPE_BIND_TRAIN", call);
  }
  OPI_TRY(check_samples(&own, call, err));
  OPI_TRY(check_source(&own, call, err));
  OPI_TRY(new_profile(model->context, &profile, err));
  opi_arena_init(&arena, &model->context->allocator, 0);
  const opipe_status status = profile_model(profile, model, &own, &arena, err);
  opi_arena_release(&arena);
  return hand_out(profile, status, out_profile, err);
}

/* Layers of the source's description on a device; without a cluster they have no times. */
static opipe_status layers_of_arch(const opi_profile_object *profile, const opi_arch_place *place,
                                   opi_layers **out_layers, opipe_error *err) {
  static const uint32_t one = 1;
  const opi_profile_source *s = &profile->source;
  opi_arch arch;
  OPI_TRY(opi_arch_parse(s->arch, &arch, err));
  return opi_arch_layers(&arch, s->arch, place, s->n_samples == 0 ? &one : s->samples,
                         s->n_samples == 0 ? 1 : s->n_samples, &profile->context->allocator,
                         out_layers, err);
}

static opipe_status profile_arch(opi_profile_object *profile, const char *spec,
                                 const opipe_profile_params *p, opi_arena *arena,
                                 opipe_error *err) {
  static const char call[] = "profile_of_arch";
  opi_cluster cluster;
  opi_arch_place place = {NULL, p->device_index};
  const opi_cluster_text text = {p->cluster, p->cluster_bytes, p->cluster_name};
  OPI_TRY(keep_source(profile, NULL, spec, p, err));
  if (p->cluster != NULL) {
    OPI_TRY(opi_api_take_cluster(call, &text, arena, &cluster, err));
    OPI_TRY(check_device(p, &cluster, call, err));
    place.cluster = &cluster;
  }
  return layers_of_arch(profile, &place, &profile->layers, err);
}

opipe_status opi_api_profile_of_arch(opi_context_object *context, const char *arch,
                                     const opipe_profile_params *params,
                                     opipe_profile **out_profile, opipe_error *err) {
  static const char call[] = "profile_of_arch";
  opipe_profile_params own = {.struct_size = (uint32_t)sizeof own};
  opi_profile_object *profile = NULL;
  opi_arena arena;
  if (arch == NULL || out_profile == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: an argument is NULL", call);
  OPI_TRY(opi_params_read(&opi_struct_profile_params, call, params, &own, err));
  OPI_TRY(check_samples(&own, call, err));
  if (own.cost != OPIPE_COST_RATES || own.flags != 0 || own.batch_dim != NULL ||
      own.train != NULL || own.device != NULL || own.device_options != NULL || own.threads != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: cost, flags, batch_dim, train, device, device_options and threads apply "
                    "to models only",
                    call);
  }
  OPI_TRY(new_profile(context, &profile, err));
  opi_arena_init(&arena, &context->allocator, 0);
  const opipe_status status = profile_arch(profile, arch, &own, &arena, err);
  opi_arena_release(&arena);
  return hand_out(profile, status, out_profile, err);
}

/* ---- making again, for other devices ---- */

static opipe_status layers_on(const opi_profile_object *profile, const opi_cluster *c,
                              uint32_t device, opi_layers **out_layers, opipe_error *err) {
  const opi_arch_place place = {c, device};
  opi_device_spec spec;
  opi_device_facts facts;
  if (profile->source.arch != NULL)
    return layers_of_arch(profile, &place, out_layers, err);
  const opi_plan_env env = env_of(profile);
  OPI_TRY(describe_place(c, device, &spec, &facts, err));
  return layers_of_model(profile, &env, &spec, &facts, OPIPE_COST_RATES, out_layers, err);
}

opipe_status opi_profile_by_class(const opi_profile_object *profile, const opi_cluster *c,
                                  opi_arena *arena, opi_layers ***out_layers, opipe_error *err) {
  const opi_profile_source *s = &profile->source;
  opi_layers **layers = NULL;
  *out_layers = NULL;
  if (c->n_classes < 2 || s->measured || (s->arch == NULL && s->model == NULL))
    return OPIPE_OK;
  layers = OPI_ARENA_ARRAY(arena, opi_layers *, c->n_classes);
  if (layers == NULL)
    return opi_fail_nomem(err, c->n_classes * sizeof *layers, "profiles of devices");
  for (uint32_t k = 0; k < c->n_classes; ++k) {
    uint32_t device = 0;
    while (device + 1 < c->n_devices && c->class_of[device] != k)
      ++device;
    const opipe_status status = layers_on(profile, c, device, &layers[k], err);
    if (status < 0) {
      opi_profile_free_classes(layers, k);
      return status;
    }
  }
  *out_layers = layers;
  return OPIPE_OK;
}

void opi_profile_free_classes(opi_layers **layers, uint32_t n) {
  for (uint32_t k = 0; layers != NULL && k < n; ++k)
    opi_layers_free(layers[k]);
}

double opi_profile_state_bytes(const opi_profile_object *profile, bool forward) {
  enum { ADAM_STATE = 4, TRAINED = 2 }; /* weight and gradient, and two moments */
  const opi_plan *trained = profile->source.trained;
  return forward           ? 1
         : trained == NULL ? ADAM_STATE
                           : TRAINED + opi_optimizer_moments(&trained->decided.train->optimizer);
}

opipe_status opi_api_profile_read(opi_context_object *context, const void *text, uint64_t n_bytes,
                                  const char *name, uint32_t samples, opipe_profile **out_profile,
                                  opipe_error *err) {
  const char *at = text, *what = name == NULL ? "the profile" : name;
  opi_profile_object *profile = NULL;
  if (text == NULL || out_profile == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "profile_read: an argument is NULL");
  uint64_t blank = 0;
  while (blank < n_bytes &&
         (at[blank] == ' ' || at[blank] == '\n' || at[blank] == '\r' || at[blank] == '\t'))
    ++blank;
  const bool is_json = blank < n_bytes && at[blank] == '{';
  OPI_TRY(new_profile(context, &profile, err));
  const opipe_status status =
      is_json
          ? opi_layers_read_json(what, text, n_bytes, &context->allocator, &profile->layers, err)
          : opi_layers_read_text(what, text, (size_t)n_bytes, samples == 0 ? 1 : samples,
                                 &context->allocator, &profile->layers, err);
  return hand_out(profile, status, out_profile, err);
}

/* ---- describing ---- */

opipe_status opi_api_profile_describe(opi_profile_object *profile, uint32_t format,
                                      opipe_write_fn write, void *ctx, opipe_error *err) {
  opi_text text;
  OPI_TRY(opi_choice_check("profile_describe", "format", format, OPIPE_FORMAT_JSON, err));
  opi_text_init(&text, &profile->context->allocator);
  if (format == OPIPE_FORMAT_JSON)
    opi_layers_write(profile->layers, &text);
  else
    opi_layers_describe(profile->layers, &text);
  const opipe_status status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}

opipe_status opi_api_profile_info(opi_profile_object *profile, opipe_profile_info *io_info,
                                  opipe_error *err) {
  OPI_TRY(opi_info_check("profile_info", io_info, OPIPE_END(opipe_profile_info, name), err));
  const opi_layers *layers = profile->layers;
  const opipe_profile_info info = {.struct_size = io_info->struct_size,
                                   .n_layers = layers->n_layers,
                                   .n_sizes = layers->n_sizes,
                                   .tokens = layers->tokens,
                                   .weight_bytes = layers->weight_bytes,
                                   .name = layers->name};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

opipe_status opi_api_profile_layer(opi_profile_object *profile, uint32_t index, uint32_t samples,
                                   opipe_layer_info *io_info, opipe_error *err) {
  const opi_layers *layers = profile->layers;
  OPI_TRY(opi_info_check("profile_layer", io_info, OPIPE_END(opipe_layer_info, width_bytes), err));
  if (index >= layers->n_layers) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "profile_layer: index %u of %u", index,
                    layers->n_layers);
  }
  if (samples == 0)
    return opi_fail(err, OPIPE_E_INVALID, "profile_layer: samples is 0");
  const opi_layer layer = opi_layers_at(layers, index, samples);
  const opipe_layer_info info = {.struct_size = io_info->struct_size,
                                 .name = layers->names[index],
                                 .flops = layer.flops,
                                 .forward_ns = layer.forward_ns,
                                 .input_ns = layer.input_ns,
                                 .weight_ns = layer.weight_ns,
                                 .output_bytes = layer.output_bytes,
                                 .cut_bytes = layer.cut_bytes,
                                 .stash_bytes = layer.stash_bytes,
                                 .param_bytes = layer.param_bytes,
                                 .width_share = layer.width_share,
                                 .width_bytes = layer.width_bytes};
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}
