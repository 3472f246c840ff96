/* SPDX-License-Identifier: Apache-2.0 */
/* Sharding specs of IR 11: how a tensor that a node reads or makes lies on devices. Tensor groups
 * know parts of equal size along one axis, one on each of some devices that follow each other;
 * whatever else a file says is kept with the reason why no plan can be made of it.
 */
#include <string.h>

#include "loader/wire/wire.h"

/* Why the spec cannot be used; NULL: it can. */
static const char *judge_devices(const OpiOnnx__ShardingSpecProto *spec) {
  if (spec->n_index_to_device_group_map != 0)
    return "its devices are groups (index_to_device_group_map)";
  if (spec->n_device == 0)
    return "it names no device";
  for (size_t i = 0; i < spec->n_device; ++i) {
    if (spec->device[i] < 0 || spec->device[i] != spec->device[0] + (int64_t)i)
      return "its devices do not follow each other";
  }
  return NULL;
}

static const char *judge_dims(const OpiOnnx__ShardingSpecProto *spec, opi_sharding *out) {
  out->n_shards = 1;
  if (spec->n_sharded_dim == 0)
    return NULL;
  const OpiOnnx__ShardedDimProto *dim = spec->sharded_dim[0];
  if (spec->n_sharded_dim > 1)
    return "more than one of its axes is divided";
  if (dim->n_simple_sharding != 1)
    return "its axis is divided more than once, or not at all";
  const OpiOnnx__SimpleShardedDimProto *simple = dim->simple_sharding[0];
  if (simple->num_shards < 1 || simple->num_shards != (int64_t)spec->n_device)
    return "it has another number of shards than of devices";
  out->axis = dim->axis;
  out->extent = simple->has_dim_value ? simple->dim_value : 0;
  out->n_shards = (uint32_t)simple->num_shards;
  return NULL;
}

static opipe_status add(opi_load *load, const char *node, const OpiOnnx__ShardingSpecProto *spec,
                        opipe_error *err) {
  opi_model *model = load->model;
  if (spec->n_device > OPI_WIRE_MAX_ITEMS)
    return opi_fail(err, OPIPE_E_LIMIT, "a sharding spec of %zu devices", spec->n_device);
  if (!opi_arena_grow(load->arena, (void **)&model->shardings, &load->room_shardings,
                      model->n_shardings + 1, sizeof *model->shardings))
    return opi_fail_nomem(err, sizeof *model->shardings, "sharding specs");
  opi_sharding *out = &model->shardings[model->n_shardings++];
  *out = (opi_sharding){.node = node,
                        .tensor = opi_arena_strdup(load->arena, opi_wire_text(spec->tensor_name)),
                        .n_devices = (uint32_t)spec->n_device,
                        .first_device = spec->n_device == 0 ? 0 : spec->device[0]};
  out->why = judge_devices(spec);
  if (out->why == NULL)
    out->why = judge_dims(spec, out);
  return out->tensor == NULL ? opi_fail_nomem(err, 1, "sharding specs") : OPIPE_OK;
}

opipe_status opi_wire_shardings(opi_load *load, const OpiOnnx__NodeProto *message, const char *node,
                                opipe_error *err) {
  for (size_t i = 0; i < message->n_device_configurations; ++i) {
    const OpiOnnx__NodeDeviceConfigurationProto *entry = message->device_configurations[i];
    if (load->configuration == NULL ||
        strcmp(opi_wire_text(entry->configuration_id), load->configuration) != 0)
      continue;
    for (size_t k = 0; k < entry->n_sharding_spec; ++k)
      OPI_TRY(add(load, node, entry->sharding_spec[k], err));
  }
  return OPIPE_OK;
}
