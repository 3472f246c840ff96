/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of chosen kernels: their hash, and how they reach and leave devices. */
#include "partition/plan/kernels.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { KERNELS_MOST = 1 << 20 };

static void add_text(XXH3_state_t *state, const char *text) {
  (void)XXH3_128bits_update(state, text, strlen(text) + 1);
}

void opi_kernels_hash(opi_kernels *kernels) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  (void)XXH3_128bits_reset(&state);
  for (uint32_t t = 0; t < kernels->n; ++t) {
    const opi_kernel_table *table = &kernels->tables[t];
    add_text(&state, table->backend);
    add_text(&state, table->fit);
    (void)XXH3_128bits_update(&state, &table->n, sizeof table->n);
    for (uint32_t k = 0; k < table->n; ++k) {
      add_text(&state, table->kernels[k].what);
      add_text(&state, table->kernels[k].choice);
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  kernels->hash[0] = hash.high64;
  kernels->hash[1] = hash.low64;
}

opipe_status opi_kernels_give(const opi_kernels *kernels, const opi_backend_ref *backend,
                              opipe_device *device, bool *out_given,
                              char out_why[OPI_KERNELS_WHY_ROOM], opipe_error *err) {
  char fit[OPI_KERNELS_FIT_ROOM];
  const char *other = NULL;
  *out_given = false;
  if (!opi_backend_tunes(backend)) {
    (void)snprintf(out_why, OPI_KERNELS_WHY_ROOM, "backend '%s' has no kernels to choose from",
                   backend->id);
    return OPIPE_OK;
  }
  OPI_TRY(OPI_ASK("backend", backend, kernels_fit, err, device, fit, sizeof fit));
  fit[sizeof fit - 1] = '\0';
  for (uint32_t t = 0; kernels != NULL && t < kernels->n; ++t) {
    const opi_kernel_table *table = &kernels->tables[t];
    if (strcmp(table->backend, backend->id) != 0)
      continue;
    other = table->fit;
    if (strcmp(table->fit, fit) != 0)
      continue;
    *out_given = true;
    return OPI_ASK("backend", backend, kernels_use, err, device, table->kernels, table->n);
  }
  if (other == NULL) {
    (void)snprintf(out_why, OPI_KERNELS_WHY_ROOM, "the plan has no table for backend '%s'",
                   backend->id);
  } else {
    (void)snprintf(out_why, OPI_KERNELS_WHY_ROOM,
                   "the plan's table is for '%s', the device is '%s'", other, fit);
  }
  return OPIPE_OK;
}

opipe_status opi_kernels_ask(const opi_backend_ref *backend, const opipe_program *program,
                             opi_arena *arena, opipe_kernel **out_kernels, uint32_t *out_n,
                             opipe_error *err) {
  uint32_t n = 0;
  OPI_TRY(OPI_ASK("backend", backend, program_kernels, err, program, NULL, &n));
  if (n > KERNELS_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "backend '%s': a program with %u kernels, at most %d",
                    backend->id, n, KERNELS_MOST);
  }
  const uint32_t room = n;
  opipe_kernel *list = OPI_ARENA_ARRAY(arena, opipe_kernel, room);
  if (list == NULL)
    return opi_fail_nomem(err, room * sizeof *list, "kernels");
  for (uint32_t i = 0; i < room; ++i)
    list[i].struct_size = (uint32_t)OPIPE_END(opipe_kernel, choice);
  if (room != 0)
    OPI_TRY(OPI_ASK("backend", backend, program_kernels, err, program, list, &n));
  if (n > room) {
    return opi_fail(err, OPIPE_E_INVALID, "backend '%s': a program with %u kernels, then with %u",
                    backend->id, room, n);
  }
  for (uint32_t i = 0; i < n; ++i) {
    list[i].what[sizeof list[i].what - 1] = '\0';
    list[i].choice[sizeof list[i].choice - 1] = '\0';
  }
  *out_kernels = list;
  *out_n = n;
  return OPIPE_OK;
}

uint32_t opi_kernels_count_own(const opipe_kernel *kernels, uint32_t n, const char **out_first) {
  uint32_t n_own = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if ((kernels[i].flags & OPIPE_KERNEL_GIVEN) != 0)
      continue;
    *out_first = n_own == 0 ? kernels[i].what : *out_first;
    ++n_own;
  }
  return n_own;
}
