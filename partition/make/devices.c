/* SPDX-License-Identifier: Apache-2.0 */
/* See devices.h. */
#include "partition/make/devices.h"

#include <stdio.h>

typedef struct choosing {
  const opi_plan_env *env;
  const opipe_plan_params *params;
  opi_plan *plan;
  opi_device_facts *facts; /* [n_ranks] */
  bool *own_caps;          /* [n_ranks] the rank's entry has a cap of its own */
  opipe_error *err;
} choosing;

/* Describes or asks device `index` of the caller's list, for `rank`. told: the answer of its own
 * process, if another may have it. */
static opipe_status look(const choosing *c, uint32_t rank, uint32_t index,
                         const opipe_device_info *told) {
  opi_device_spec *spec = &c->plan->decided.devices[rank];
  opipe_device_description d = {.alignment = 0};
  char what[48];
  if (c->env->told != NULL)
    return opi_device_take(c->env, told, spec, &c->facts[rank], c->err);
  if (c->params->n_descriptions == 0)
    return opi_device_look(c->env, spec, &c->facts[rank], c->err);
  opi_array_get(c->params->descriptions, c->params->descriptions_stride, index, &d, sizeof d);
  (void)snprintf(what, sizeof what, "descriptions[%u]", index);
  OPI_TRY(opi_device_describe(&d, what, spec, &c->facts[rank], c->err));
  if (spec->memory_bytes == 0)
    spec->memory_bytes = d.memory_bytes;
  return OPIPE_OK;
}

/* The cap of an entry is shared by all ranks that the entry stands for; the caller's cap for all
 * other devices applies to each device. A description is a device of its own. */
static void share_cap(const choosing *c, uint32_t rank) {
  opi_device_spec *devices = c->plan->decided.devices, *spec = &devices[rank];
  const bool own = c->own_caps[rank];
  uint32_t first = own && c->params->n_devices <= rank ? c->params->n_devices - 1 : rank;
  if (!own && spec->memory_bytes == 0)
    spec->memory_bytes = c->params->memory_bytes;
  for (uint32_t r = 0; !own && first == rank && r < rank; ++r) {
    if (!c->own_caps[r] && opi_is_one_device(&devices[r], spec))
      first = r;
  }
  if (first != rank && spec->memory_bytes != 0 && !c->facts[rank].described)
    spec->memory_with = first + 1;
}

static opipe_status choose(const choosing *c, uint32_t rank) {
  const uint32_t last = c->params->n_devices == 0 ? 0 : c->params->n_devices - 1;
  const uint32_t index = rank < last ? rank : last;
  const opi_devices_told *told = c->env->told;
  opipe_device_choice choice = {.kind = "cpu"};
  opipe_device_info answer = {.struct_size = (uint32_t)sizeof answer};
  opi_arena *arena = &c->plan->arena;
  if (c->params->n_devices != 0)
    opi_array_get(c->params->devices, c->params->devices_stride, index, &choice, sizeof choice);
  if (told != NULL)
    OPI_TRY(told->find(told->ctx, rank, c->plan->decided.n_ranks, index, &choice, &answer, c->err));
  const char *kind = choice.kind == NULL ? "cpu" : choice.kind;
  opi_device_spec *spec = &c->plan->decided.devices[rank];
  *spec = (opi_device_spec){
      .kind = opi_arena_strdup(arena, kind),
      .options = opi_arena_strdup(arena, choice.options == NULL ? "" : choice.options),
      .memory_bytes = choice.memory_bytes,
      .index = choice.index,
      .threads = choice.threads};
  if (choice.options != NULL && !opi_text_is_utf8(choice.options)) {
    return opi_fail(c->err, OPIPE_E_INVALID, "rank %u (device %s): its options are not UTF-8", rank,
                    kind);
  }
  if (spec->kind == NULL || spec->options == NULL)
    return opi_fail_nomem(c->err, 0, "devices");
  OPI_TRY(look(c, rank, index, &answer));
  spec->kind = opi_arena_strdup(arena, spec->kind);
  if (spec->kind == NULL)
    return opi_fail_nomem(c->err, 0, "devices");
  c->own_caps[rank] = choice.memory_bytes != 0;
  share_cap(c, rank);
  return OPIPE_OK;
}

opipe_status opi_devices_choose(const opi_plan_env *env, const opipe_plan_params *params,
                                opi_plan *plan, opi_arena *scratch,
                                const opi_device_facts **out_facts, opipe_error *err) {
  choosing c = {.env = env, .params = params, .plan = plan, .err = err};
  if (params->n_descriptions != 0 && params->n_descriptions != params->n_devices) {
    return opi_fail(err, OPIPE_E_INVALID, "plan_make: %u descriptions of %u devices",
                    params->n_descriptions, params->n_devices);
  }
  plan->decided.devices = OPI_ARENA_ARRAY(&plan->arena, opi_device_spec, plan->decided.n_ranks);
  c.facts = OPI_ARENA_ARRAY(scratch, opi_device_facts, plan->decided.n_ranks);
  c.own_caps = OPI_ARENA_ARRAY(scratch, bool, plan->decided.n_ranks);
  if (plan->decided.devices == NULL || c.facts == NULL || c.own_caps == NULL)
    return opi_fail_nomem(err, plan->decided.n_ranks * sizeof(opi_device_spec), "devices");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r)
    OPI_TRY(choose(&c, r));
  *out_facts = c.facts;
  return OPIPE_OK;
}

bool opi_devices_alike(const opi_decision *plan, const opi_device_facts *facts, uint32_t one,
                       uint32_t other) {
  const opi_device_spec *a = &plan->devices[one], *b = &plan->devices[other];
  const opi_device_facts *x = &facts[one], *y = &facts[other];
  return strcmp(a->kind, b->kind) == 0 && strcmp(a->options, b->options) == 0 &&
         (x->described || a->index == b->index) && a->threads == b->threads &&
         x->described == y->described && x->flops == y->flops && x->fp64_flops == y->fp64_flops &&
         x->fp16_flops == y->fp16_flops && x->bf16_flops == y->bf16_flops &&
         x->bandwidth == y->bandwidth && x->launch_ns == y->launch_ns &&
         x->max_threads == y->max_threads;
}
