/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that tests and cautious users ask for at compile.
 *
 * Poison: what is not alive in the arena holds bytes of ones (NaN in every float type), and every
 * living tensor stands between red zones that no kernel may touch. A kernel that reads what is gone
 * gives NaN; one that writes beyond its output is named. Finite: outputs are searched for NaN and
 * infinity after each kernel.
 */
#include <math.h>

#include "binding.h"
#include "ops/op.h"

enum { POISON = 0xff, ZONE = 0xa7 };

void cpu_poison_start(const opipe_binding *binding) {
  if (binding->arena != NULL)
    memset(binding->arena, POISON, (size_t)binding->program->arena_bytes);
}

static uint64_t workspace_end(const opipe_program *program, uint32_t step) {
  return program->temp_bytes + program->steps[step].workspace_bytes;
}

void cpu_poison_before(const opipe_binding *binding, uint32_t step) {
  const opipe_program *program = binding->program;
  for (uint32_t i = 0; i < program->n_storages; ++i) {
    const cpu_storage *storage = &program->storages[i];
    if (storage->kind == CPU_PLACE_ARENA && storage->first == step) {
      char *data = binding->arena + storage->offset;
      memset(data, POISON, (size_t)storage->n_bytes);
      memset(data, ZONE, CPU_RED_ZONE);
      memset(data + storage->n_bytes - CPU_RED_ZONE, ZONE, CPU_RED_ZONE);
    }
  }
  char *workspace = binding->arena + program->temp_bytes;
  memset(workspace, POISON, (size_t)program->steps[step].workspace_bytes);
  memset(binding->arena + workspace_end(program, step), ZONE, CPU_RED_ZONE);
}

static bool zone_intact(const char *zone) {
  for (int i = 0; i < CPU_RED_ZONE; ++i) {
    if ((unsigned char)zone[i] != ZONE)
      return false;
  }
  return true;
}

opipe_status cpu_poison_after(const opipe_binding *binding, uint32_t step, opipe_error *err) {
  const opipe_program *program = binding->program;
  const opipe_node *node = program->steps[step].node;
  for (uint32_t i = 0; i < program->n_storages; ++i) {
    const cpu_storage *storage = &program->storages[i];
    if (storage->kind != CPU_PLACE_ARENA || storage->first > step || storage->last < step)
      continue;
    char *data = binding->arena + storage->offset;
    if (!zone_intact(data) || !zone_intact(data + storage->n_bytes - CPU_RED_ZONE)) {
      return opipe_fail(err, OPIPE_E_INTERNAL,
                        "node '%.80s' (%.40s) wrote outside its outputs: arena bytes around %llu",
                        node->name, node->op, (unsigned long long)storage->offset);
    }
    if (storage->last == step)
      memset(data, POISON, (size_t)storage->n_bytes);
  }
  if (!zone_intact(binding->arena + workspace_end(program, step))) {
    return opipe_fail(err, OPIPE_E_INTERNAL,
                      "node '%.80s' (%.40s) wrote beyond its workspace of %llu bytes", node->name,
                      node->op, (unsigned long long)program->steps[step].workspace_bytes);
  }
  return OPIPE_OK;
}

/* First element that is not finite; n when all are. */
static uint64_t first_unfinite(const cpu_tensor *tensor) {
  uint64_t i = 0;
  while (i < tensor->n && isfinite(cpu_number(tensor, i)))
    ++i;
  return i;
}

opipe_status cpu_check_finite(const cpu_call *call, const opipe_program *program, uint32_t step,
                              opipe_error *err) {
  for (uint32_t i = 0; i < call->n_out; ++i) {
    const cpu_tensor *out = &call->out[i];
    if (out->data == NULL || !cpu_is_float(out->dtype))
      continue;
    const uint64_t at = first_unfinite(out);
    if (at < out->n) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "output '%.80s' is %s at element %llu of %llu",
                      program->graph->values[program->steps[step].out[i].value].name,
                      isnan(cpu_number(out, at)) ? "NaN" : "infinite", (unsigned long long)at,
                      (unsigned long long)out->n);
    }
  }
  return OPIPE_OK;
}
