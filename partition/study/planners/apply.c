/* SPDX-License-Identifier: Apache-2.0 */
/* Translates a strategy into the parameters of a plan; refuses what plans cannot express. */
#include "partition/study/planners/apply.h"

#include <string.h>

opipe_status opi_strategy_name_stages(opi_strategy *s, const opi_layers *layers, opipe_error *err) {
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    const char *name = layers->names[s->stages[i].end - 1];
    s->stages[i].last = name == NULL ? NULL : opi_arena_strdup(&s->arena, name);
    if (name != NULL && s->stages[i].last == NULL)
      return opi_fail_nomem(err, strlen(name), "a strategy");
  }
  return OPIPE_OK;
}

/* True if devices hold several stages that are not chunks of one place. */
static bool has_own_layout(const opi_strategy *s) {
  uint32_t last = 0, n_owners = 0;
  for (uint32_t i = 0; i < s->n_stages / s->chunks; ++i) {
    const opi_strategy_stage *stage = &s->stages[i];
    for (uint32_t d = 0; d < stage->n_devices; ++d)
      last = stage->devices[d] > last ? stage->devices[d] : last;
    n_owners += stage->n_devices;
  }
  return n_owners > (s->rank_devices != NULL ? s->n_ranks * s->width : last + 1);
}

uint32_t opi_strategy_replicas(const opi_strategy *s, uint32_t *out) {
  const uint32_t n = s->n_stages / s->chunks;
  const bool own_layout = has_own_layout(s);
  uint32_t equal = s->stages[0].n_devices / s->width;
  for (uint32_t i = 0; i < n; ++i)
    equal = s->stages[i].n_devices / s->width == equal ? equal : 0;
  for (uint32_t i = 0; out != NULL && i < n; ++i)
    out[i] = own_layout ? 1 : s->stages[i].n_devices / s->width;
  return own_layout ? 1 : equal;
}

static opipe_status apply_replicas(const opi_strategy *s, opi_arena *arena, opi_applied *out,
                                   opipe_error *err) {
  const uint32_t n = s->n_stages / s->chunks;
  uint32_t *replicas = OPI_ARENA_ARRAY(arena, uint32_t, n);
  if (replicas == NULL)
    return opi_fail_nomem(err, n * sizeof *replicas, "a strategy");
  const uint32_t equal = opi_strategy_replicas(s, replicas);
  out->replicas = s->pipelines;
  out->n_microbatches = s->microbatches * s->pipelines;
  if (s->rank_devices != NULL) {
    out->rank_devices = s->rank_devices;
    out->n_rank_devices = s->n_ranks * s->pipelines * s->width;
  }
  if (equal == 1)
    return OPIPE_OK;
  if (equal != 0 && s->rank_devices == NULL) {
    /* each copy takes its share of every micro-batch, or whole micro-batches */
    out->replicas *= equal;
    out->n_microbatches *= s->samples % equal == 0 ? equal : 1;
    return OPIPE_OK;
  }
  if (s->pipelines > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "the strategy has stages on different numbers of replicas (%u of the first, %u "
                    "of the last) in several copies of the pipeline, which no session executes",
                    replicas[0], replicas[n - 1]);
  }
  if (s->width > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "the strategy has stages on different numbers of replicas (%u of the first, %u "
                    "of the last) in tensor groups of %u, which no session executes",
                    replicas[0], replicas[n - 1], s->width);
  }
  out->stage_replicas = replicas;
  out->n_stage_replicas = n;
  return OPIPE_OK;
}

/* True if the schedule itself states how tokens are sliced. */
static bool says_slices(const char *schedule) {
  return strstr(schedule, "lengths=") != NULL || strstr(schedule, "slices=") != NULL;
}

/* "1f1b" -> "1f1b:lengths=5+3" if tokens are sliced and the schedule does not state how. */
static opipe_status apply_slices(const opi_strategy *s, opi_arena *arena, opi_applied *out,
                                 opipe_error *err) {
  opi_text text;
  out->schedule = s->schedule;
  if (s->n_groups == 0 || says_slices(s->schedule))
    return OPIPE_OK;
  for (uint32_t g = 1; g < s->n_groups; ++g) {
    const opi_slice_group *a = &s->groups[0], *b = &s->groups[g];
    if (a->rows != b->rows || a->n_slices != b->n_slices ||
        memcmp(a->lengths, b->lengths, a->n_slices * sizeof *a->lengths) != 0) {
      return opi_fail(
          err, OPIPE_E_UNSUPPORTED,
          "the strategy slices sequences in %u ways, by micro-batch: sessions execute only "
          "one",
          s->n_groups);
    }
  }
  opi_text_init(&text, arena->allocator);
  opi_text_printf(&text, "%s%slengths=", s->schedule, strchr(s->schedule, ':') == NULL ? ":" : ",");
  for (uint32_t k = 0; k < s->groups[0].n_slices; ++k)
    opi_text_printf(&text, "%s%u", k == 0 ? "" : "+", s->groups[0].lengths[k]);
  out->schedule = text.failed ? NULL : opi_arena_strdup(arena, text.data);
  opi_text_release(&text);
  return out->schedule == NULL ? opi_fail_nomem(err, 1, "a strategy") : OPIPE_OK;
}

opipe_status opi_strategy_apply(const opi_strategy *s, bool trains, opi_arena *arena,
                                opi_applied *out, opipe_error *err) {
  const char **ends = OPI_ARENA_ARRAY(arena, const char *, s->n_stages);
  *out = (opi_applied){.n_stages = s->n_stages,
                       .ends = ends,
                       .planner = s->planner,
                       .tensor = s->width,
                       .recompute = trains && s->recompute,
                       .sharded = trains && s->sharded,
                       .scattered = s->scattered && s->width > 1};
  if (ends == NULL)
    return opi_fail_nomem(err, s->n_stages * sizeof *ends, "a strategy");
  if (s->width > 1 && s->n_groups != 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "the strategy slices sequences in tensor groups of %u, which no session "
                    "executes",
                    s->width);
  }
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    ends[i] = s->stages[i].last;
    if (ends[i] == NULL) {
      return opi_fail(err, OPIPE_E_INVALID, "stage %u of the strategy: its last layer has no name",
                      i);
    }
  }
  OPI_TRY(apply_replicas(s, arena, out, err));
  return apply_slices(s, arena, out, err);
}
