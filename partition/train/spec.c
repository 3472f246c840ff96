/* SPDX-License-Identifier: Apache-2.0 */
/* A training spec of a plan's own. */
#include <string.h>

#include "partition/train/model.h"

static bool copy_text(opi_arena *arena, const char **io_text) {
  if (*io_text == NULL)
    return true;
  *io_text = opi_arena_strdup(arena, *io_text);
  return *io_text != NULL;
}

opipe_status opi_train_spec_copy(opi_plan *plan, const opi_train_spec *spec, opipe_error *err) {
  opi_arena *arena = &plan->arena;
  OPI_TRY(opi_optimizer_check(&spec->optimizer, err));
  opi_train_spec *own = opi_arena_copy(arena, spec, sizeof *spec);
  if (own == NULL)
    goto fail;
  opi_train_glob *globs = opi_arena_copy(arena, spec->n_globs == 0 ? (const void *)"" : spec->globs,
                                         spec->n_globs == 0 ? 1 : spec->n_globs * sizeof *globs);
  const char **no_decay = OPI_ARENA_ARRAY(arena, const char *, spec->optimizer.n_no_decay);
  uint32_t *replicas = OPI_ARENA_ARRAY(arena, uint32_t, spec->n_rank_replicas);
  if (globs == NULL || no_decay == NULL || replicas == NULL ||
      !copy_text(arena, &own->loss.output) || !copy_text(arena, &own->loss.labels))
    goto fail;
  for (uint32_t i = 0; i < spec->n_globs; ++i) {
    if (!copy_text(arena, &globs[i].pattern))
      goto fail;
  }
  for (uint32_t i = 0; i < spec->optimizer.n_no_decay; ++i) {
    no_decay[i] = spec->optimizer.no_decay[i];
    if (!copy_text(arena, &no_decay[i]))
      goto fail;
  }
  for (uint32_t i = 0; i < spec->n_rank_replicas; ++i)
    replicas[i] = spec->rank_replicas[i];
  own->rank_replicas = replicas;
  own->globs = globs;
  own->optimizer.no_decay = no_decay;
  plan->train = own;
  return OPIPE_OK;
fail:
  return opi_fail_nomem(err, sizeof *spec, "a training plan");
}
