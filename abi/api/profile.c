/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: made of models and of descriptions, read, asked. [any-thread] */
#include "abi/api/api.h"
#include "abi/api/planning.h"
#include "partition/arch/arch.h"
#include "partition/layers/describe.h"
#include "partition/layers/of_graph.h"

enum { SAMPLES_MOST = 1 << 20 };

void opi_profile_unref(void *profile) {
  opi_profile_object *p = profile;
  if (p == NULL || !opi_unref(&p->refs))
    return;
  opi_context_object *context = p->context;
  opi_layers_free(p->layers);
  opi_free(&context->allocator, p, sizeof(*p));
  opi_context_unref(context);
}

/* Its handle, for the host. Takes the layers over, also on failure. */
static opipe_status hand_out(opi_context_object *context, opi_layers *layers,
                             opipe_profile **out_profile, opipe_error *err) {
  uint64_t handle = 0;
  opi_profile_object *p = opi_alloc_zero(&context->allocator, 1, sizeof(*p));
  if (p == NULL) {
    opi_layers_free(layers);
    return opi_fail_nomem(err, sizeof(*p), "a profile");
  }
  atomic_init(&p->refs, 1);
  opi_ref(&context->refs);
  p->context = context;
  p->layers = layers;
  p->forward = true;
  for (uint32_t i = 0; i < layers->n_layers && p->forward; ++i)
    p->forward = opi_layer_backward_ns(&layers->at[i]) == 0;
  OPI_TRY(opi_handle_new(OPI_HANDLE_PROFILE, p, opi_profile_unref, context->handle, &handle, err));
  *out_profile = opi_handle_pointer(handle);
  return OPIPE_OK;
}

/* ---- the question ---- */

static opipe_status check_samples(const opipe_profile_params *p, const char *call,
                                  opipe_error *err) {
  if (p->n_samples > OPI_LAYER_SIZES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%s: %u numbers of samples; at most %d can be", call,
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

/* A device by its place in the cluster, described; or of a backend here, asked. */
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
  const opipe_device_choice *choice = &cluster.devices[p->device_index];
  *out_spec = (opi_device_spec){.kind = choice->kind,
                                .options = choice->options == NULL ? "" : choice->options,
                                .threads = choice->threads};
  return opi_device_describe(&cluster.descriptions[p->device_index], "the cluster's device",
                             out_spec, out_facts, err);
}

static opipe_status check_source(const opipe_profile_params *p, const char *call,
                                 opipe_error *err) {
  if (p->cluster == NULL || (p->device == NULL && p->device_options == NULL && p->threads == 0))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s: a cluster, and a device of this process: one of both",
                  call);
}

/* ---- made ---- */

static opipe_status profile_model(opi_model_object *model, const opipe_profile_params *p,
                                  opi_arena *arena, opi_layers **out_layers, opipe_error *err) {
  opi_device_spec spec;
  opi_device_facts facts;
  opi_train_spec train;
  opi_plan_env env = opi_api_plan_env(model, &model->options);
  env.bound = model->bound;
  OPI_TRY(find_device(p, &env, arena, &spec, &facts, err));
  if (p->train != NULL)
    OPI_TRY(opi_train_options_read(p->train, "profile_of_model", arena, &train, err));
  const opi_graph_profile question = {.env = &env,
                                      .spec = p->train == NULL ? NULL : &train,
                                      .name = model->file->graph->name,
                                      .batch_dim = p->batch_dim,
                                      .samples = p->samples,
                                      .n_samples = p->n_samples,
                                      .device = &spec,
                                      .facts = &facts,
                                      .cost = p->cost,
                                      .every_node = (p->flags & OPIPE_PROFILE_NODES) != 0};
  return opi_layers_of_graph(&question, out_layers, err);
}

opipe_status opi_api_profile_of_model(opi_model_object *model, const opipe_profile_params *params,
                                      opipe_profile **out_profile, opipe_error *err) {
  static const char call[] = "profile_of_model";
  opipe_profile_params own = {.struct_size = (uint32_t)sizeof own};
  opi_layers *layers = NULL;
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
  opi_arena_init(&arena, &model->context->allocator, 0);
  const opipe_status status = profile_model(model, &own, &arena, &layers, err);
  opi_arena_release(&arena);
  return status < 0 ? status : hand_out(model->context, layers, out_profile, err);
}

static opipe_status profile_arch(opi_context_object *context, const char *spec,
                                 const opipe_profile_params *p, opi_arena *arena,
                                 opi_layers **out_layers, opipe_error *err) {
  static const uint32_t one = 1;
  static const char call[] = "profile_of_arch";
  opi_arch arch;
  opi_cluster cluster;
  opi_arch_place place = {NULL, p->device_index};
  const opi_cluster_text text = {p->cluster, p->cluster_bytes, p->cluster_name};
  OPI_TRY(opi_arch_parse(spec, &arch, err));
  if (p->cluster != NULL) {
    OPI_TRY(opi_api_take_cluster(call, &text, arena, &cluster, err));
    OPI_TRY(check_device(p, &cluster, call, err));
    place.cluster = &cluster;
  }
  return opi_arch_layers(&arch, spec, &place, p->n_samples == 0 ? &one : p->samples,
                         p->n_samples == 0 ? 1 : p->n_samples, &context->allocator, out_layers,
                         err);
}

opipe_status opi_api_profile_of_arch(opi_context_object *context, const char *arch,
                                     const opipe_profile_params *params,
                                     opipe_profile **out_profile, opipe_error *err) {
  static const char call[] = "profile_of_arch";
  opipe_profile_params own = {.struct_size = (uint32_t)sizeof own};
  opi_layers *layers = NULL;
  opi_arena arena;
  if (arch == NULL || out_profile == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: an argument is NULL", call);
  OPI_TRY(opi_params_read(&opi_struct_profile_params, call, params, &own, err));
  OPI_TRY(check_samples(&own, call, err));
  if (own.cost != OPIPE_COST_RATES || own.flags != 0 || own.batch_dim != NULL ||
      own.train != NULL || own.device != NULL || own.device_options != NULL || own.threads != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: cost, flags, batch_dim, train, device, device_options and threads are of "
                    "models",
                    call);
  }
  opi_arena_init(&arena, &context->allocator, 0);
  const opipe_status status = profile_arch(context, arch, &own, &arena, &layers, err);
  opi_arena_release(&arena);
  return status < 0 ? status : hand_out(context, layers, out_profile, err);
}

opipe_status opi_api_profile_read(opi_context_object *context, const void *text, uint64_t n_bytes,
                                  const char *name, uint32_t samples, opipe_profile **out_profile,
                                  opipe_error *err) {
  const char *at = text, *what = name == NULL ? "the profile" : name;
  opi_layers *layers = NULL;
  if (text == NULL || out_profile == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "profile_read: an argument is NULL");
  uint64_t blank = 0;
  while (blank < n_bytes &&
         (at[blank] == ' ' || at[blank] == '\n' || at[blank] == '\r' || at[blank] == '\t'))
    ++blank;
  const bool is_json = blank < n_bytes && at[blank] == '{';
  OPI_TRY(is_json ? opi_layers_read_json(what, text, n_bytes, &context->allocator, &layers, err)
                  : opi_layers_read_text(what, text, (size_t)n_bytes, samples == 0 ? 1 : samples,
                                         &context->allocator, &layers, err));
  return hand_out(context, layers, out_profile, err);
}

/* ---- asked ---- */

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
