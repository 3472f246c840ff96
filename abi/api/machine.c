/* SPDX-License-Identifier: Apache-2.0 */
/* This machine as a cluster. */
#include "partition/study/layers/machine.h"
#include "abi/api/api.h"
#include "abi/api/team/machine_links.h"
#include "runtime/base/base.h"

enum { DEVICES_MOST = 4096 };

/* The devices given, or one device with one thread for every core. */
static opipe_status list_devices(const opi_context_object *context, opipe_machine_params *io_params,
                                 opi_arena *arena, opi_device_spec **out_devices,
                                 opipe_error *err) {
  opipe_machine_params *p = io_params;
  const bool given = p->n_devices != 0;
  p->n_devices = given ? p->n_devices : context->cores;
  opi_device_spec *devices = OPI_ARENA_ARRAY(arena, opi_device_spec, p->n_devices);
  if (devices == NULL)
    return opi_fail_nomem(err, p->n_devices * sizeof *devices, "devices");
  for (uint32_t i = 0; i < p->n_devices; ++i) {
    opipe_device_choice choice = {.kind = "cpu"};
    if (given)
      opi_array_get(p->devices, p->devices_stride, i, &choice, sizeof choice);
    devices[i] = (opi_device_spec){.kind = choice.kind,
                                   .options = choice.options == NULL ? "" : choice.options,
                                   .index = choice.index,
                                   .memory_bytes = choice.memory_bytes,
                                   .threads = choice.threads == 0 ? 1 : choice.threads};
  }
  *out_devices = devices;
  return OPIPE_OK;
}

static opipe_status describe(opi_context_object *context, const opipe_machine_params *params,
                             opi_arena *arena, opi_text *text, opipe_error *err) {
  opipe_machine_params p = *params;
  opi_device_spec *devices = NULL;
  const opi_plan_env env = {.allocator = &context->allocator,
                            .logger = &context->logger,
                            .plugins = &context->plugins,
                            .now_ns = opi_now_ns};
  opi_between link = {0, 0};
  OPI_TRY(list_devices(context, &p, arena, &devices, err));
  const char *transport = p.transport == NULL ? "local" : p.transport;
  const char *tier = "threads";
  const bool links = (p.flags & OPIPE_MACHINE_LINKS) != 0;
  if (links && p.team != NULL)
    OPI_TRY(opi_links_measure(context, p.team, transport, &link, err));
  if (link.latency_ns != 0)
    tier = "processes";
  if (links && link.latency_ns == 0 && context->cores > 1) /* no other process */
    OPI_TRY(opi_between_measure(env.allocator, &link, err));
  const opi_this_machine machine = {.env = &env,
                                    .devices = devices,
                                    .n_devices = p.n_devices,
                                    .transport = transport,
                                    .tier = tier,
                                    .rates = (p.flags & OPIPE_MACHINE_RATES) != 0,
                                    .latency_ns = link.latency_ns,
                                    .bytes_per_ns = link.bytes_per_ns};
  return opi_this_machine_write(&machine, text, err);
}

opipe_status opi_api_cluster_of_machine(opi_context_object *context,
                                        const opipe_machine_params *params, opipe_write_fn write,
                                        void *ctx, opipe_error *err) {
  opipe_machine_params own = {.struct_size = (uint32_t)sizeof own};
  opi_text text;
  OPI_TRY(opi_params_read(&opi_struct_machine_params, "cluster_of_machine", params, &own, err));
  if (own.n_devices > DEVICES_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "cluster_of_machine: %u devices; at most %d are allowed",
                    own.n_devices, DEVICES_MOST);
  }
  opi_arena arena;
  opi_arena_init(&arena, &context->allocator, 0);
  opi_text_init(&text, &context->allocator);
  opipe_status status = describe(context, &own, &arena, &text, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  opi_arena_release(&arena);
  return status;
}
