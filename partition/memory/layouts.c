/* SPDX-License-Identifier: Apache-2.0 */
/* See layouts.h. */
#include "partition/memory/layouts.h"

#include "partition/plan/estimate.h"

opipe_status opi_layouts_begin(opi_layout_set *set, uint32_t n_params, opi_arena *arena,
                               opipe_error *err) {
  *set = (opi_layout_set){.arena = arena, .n_params = n_params};
  set->first = OPI_ARENA_ARRAY(arena, uint32_t, n_params);
  return set->first == NULL ? opi_fail_nomem(err, n_params * sizeof(uint32_t), "parameter layouts")
                            : OPIPE_OK;
}

static bool has(const opi_layout_set *set, uint32_t place, const opipe_param_layout *layout) {
  for (uint32_t i = set->first[layout->slot]; i != 0; i = set->list[i - 1].next) {
    const opi_wanted_layout *wanted = &set->list[i - 1];
    if (wanted->place == place && wanted->layout.key == layout->key)
      return true;
  }
  return false;
}

static opipe_status add(opi_layout_set *set, uint32_t place, const opipe_param_layout *layout,
                        opipe_error *err) {
  if (has(set, place, layout))
    return OPIPE_OK;
  if (!opi_arena_grow(set->arena, (void **)&set->list, &set->room, set->n + 1, sizeof *set->list))
    return opi_fail_nomem(err, sizeof *set->list, "parameter layouts");
  uint32_t *first = &set->first[layout->slot];
  set->list[set->n] = (opi_wanted_layout){.layout = *layout, .place = place, .next = *first};
  *first = ++set->n;
  return OPIPE_OK;
}

opipe_status opi_layouts_add(opi_layout_set *set, uint32_t place, const opi_backend_ref *backend,
                             const opipe_program *program, bool gradients, opipe_error *err) {
  opipe_param_layout *list = NULL;
  uint32_t count = 0;
  OPI_TRY(
      opi_layouts_ask(backend, program, set->n_params, gradients, set->arena, &list, &count, err));
  for (uint32_t i = 0; i < count; ++i)
    OPI_TRY(add(set, place, &list[i], err));
  return OPIPE_OK;
}

opipe_status opi_layouts_estimate(opi_layout_set *set, uint32_t place,
                                  const opipe_param_source *sources, const uint32_t *slots,
                                  uint32_t n_slots, const bool *trained, opipe_error *err) {
  for (uint32_t i = 0; i < n_slots; ++i) {
    const uint32_t slot = slots[i];
    const opipe_param_layout layout =
        opi_estimate_layout(&sources[slot], slot, trained != NULL && trained[slot]);
    OPI_TRY(add(set, place, &layout, err));
  }
  return OPIPE_OK;
}
