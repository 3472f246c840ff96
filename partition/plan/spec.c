/* SPDX-License-Identifier: Apache-2.0 */
/* The training spec that a plan owns: copied, checked, chosen. */
#include "partition/plan/spec.h"
#include <string.h>
#include "partition/plan/env.h"

static bool copy_text(opi_arena *arena, const char **io_text) {
  if (*io_text == NULL)
    return true;
  *io_text = opi_arena_strdup(arena, *io_text);
  return *io_text != NULL;
}

static bool copy_choice(opi_arena *arena, opi_train_choice *choice) {
  const char **trained = OPI_ARENA_ARRAY(arena, const char *, choice->n_trained);
  opi_train_doubt *doubts = OPI_ARENA_ARRAY(arena, opi_train_doubt, choice->n_doubts);
  if (trained == NULL || doubts == NULL)
    return false;
  for (uint32_t i = 0; i < choice->n_trained; ++i) {
    trained[i] = choice->trained[i];
    if (!copy_text(arena, &trained[i]))
      return false;
  }
  for (uint32_t i = 0; i < choice->n_doubts; ++i) {
    doubts[i] = choice->doubts[i];
    if (!copy_text(arena, &doubts[i].name) || !copy_text(arena, &doubts[i].why))
      return false;
  }
  choice->trained = trained;
  choice->doubts = doubts;
  return true;
}

/* Masters, moments and gradients are fp32; any other type would lose bits. */
static opipe_status check_type(const char *name, uint32_t dtype, opipe_error *err) {
  if (dtype == OPIPE_FLOAT || dtype == OPIPE_FLOAT16 || dtype == OPIPE_BFLOAT16)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_UNSUPPORTED,
      "parameter '%s' is %s: only float32, float16 and bfloat16 are trained; freeze it, "
      "or convert the model",
      name, opi_dtype_name(dtype));
}

opipe_status opi_train_choose(opi_plan *plan, const opi_training *training, opipe_error *err) {
  opi_train_spec spec = *plan->decided.train;
  opi_arena scratch;
  opi_arena_init(&scratch, plan->decided.allocator, 0);
  const char **trained = OPI_ARENA_ARRAY(&scratch, const char *, training->n_params);
  opi_train_doubt *doubts = OPI_ARENA_ARRAY(&scratch, opi_train_doubt, training->n_params);
  opipe_status status = OPIPE_OK;
  spec.choice = (opi_train_choice){.trained = trained, .doubts = doubts};
  if (trained == NULL || doubts == NULL)
    status = opi_fail_nomem(err, training->n_params * sizeof *doubts, "trained names");
  for (uint32_t i = 0; status == OPIPE_OK && i < training->n_params; ++i) {
    const opi_train_param *p = &training->params[i];
    if (p->why == OPI_TRAINED || p->why == OPI_TRAINED_BY_GLOB) {
      status = check_type(p->name, training->graph->values[p->value].dtype, err);
      trained[spec.choice.n_trained++] = p->name;
    }
    if (p->doubt != NULL)
      doubts[spec.choice.n_doubts++] = (opi_train_doubt){p->name, p->doubt};
  }
  if (status == OPIPE_OK)
    status = opi_train_spec_copy(plan, &spec, err);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_train_check_choice(const opi_decision *plan, const opi_graph *graph,
                                    opipe_error *err) {
  const opi_train_choice *choice = &plan->train->choice;
  opi_map *names = NULL;
  uint32_t v = 0;
  OPI_TRY(opi_map_create(plan->allocator, &names, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < graph->n_values && status == OPIPE_OK; ++i) {
    if ((graph->values[i].flags & OPI_VALUE_INITIALIZER) != 0 &&
        opi_dtype_is_float(graph->values[i].dtype))
      status = opi_map_set(names, graph->values[i].name, i, err);
  }
  for (uint32_t i = 0; i < choice->n_trained && status == OPIPE_OK; ++i) {
    if (!opi_map_get(names, choice->trained[i], &v)) {
      status = opi_fail(err, OPIPE_E_INVALID,
                        "the plan trains '%s', which is not a float initializer of the bound graph",
                        choice->trained[i]);
    } else {
      status = check_type(choice->trained[i], graph->values[v].dtype, err);
    }
  }
  opi_map_free(names);
  return status;
}

static const char *compute_name(uint32_t compute) {
#define NAME_OF(key, word)    \
  if (compute == OPIPE_##key) \
    return word;
  OPIPE_COMPUTE_TYPES(NAME_OF)
#undef NAME_OF
  return opi_dtype_name(compute);
}

/* The backward pass multiplies by a loss scale under fp16 only, while the step would divide by it
 * regardless. */
static opipe_status check_scaling(const opi_train_spec *spec, opipe_error *err) {
  if (!opi_optimizer_scales(&spec->optimizer) || spec->compute == OPIPE_FLOAT16)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID, "loss_scaling is %u and compute is %s: a loss is scaled under %s alone",
      spec->optimizer.loss_scaling, compute_name(spec->compute == 0 ? OPIPE_FLOAT : spec->compute),
      compute_name(OPIPE_FLOAT16));
}

opipe_status opi_train_spec_copy(opi_plan *plan, const opi_train_spec *spec, opipe_error *err) {
  opi_arena *arena = &plan->arena;
  OPI_TRY(opi_optimizer_check(&spec->optimizer, err));
  OPI_TRY(check_scaling(spec, err));
  opi_train_spec *own = opi_arena_copy(arena, spec, sizeof *spec);
  if (own == NULL)
    goto fail;
  opi_train_glob *globs = opi_arena_copy(arena, spec->n_globs == 0 ? (const void *)"" : spec->globs,
                                         spec->n_globs == 0 ? 1 : spec->n_globs * sizeof *globs);
  const char **no_decay = OPI_ARENA_ARRAY(arena, const char *, spec->optimizer.n_no_decay);
  uint32_t *replicas = OPI_ARENA_ARRAY(arena, uint32_t, spec->n_rank_replicas);
  if (globs == NULL || no_decay == NULL || replicas == NULL || !copy_choice(arena, &own->choice) ||
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
  plan->decided.train = own;
  return OPIPE_OK;
fail:
  return opi_fail_nomem(err, sizeof *spec, "a training plan");
}
