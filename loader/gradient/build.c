/* SPDX-License-Identifier: Apache-2.0 */
/* opi_gradient_build: the steps in order, and what they share.
 *
 * Trained parameters are hidden while rules run (their data is taken away): nothing computed from
 * them may be folded into a constant, since they change.
 */
#include <inttypes.h>
#include <string.h>

#include "loader/gradient/state.h"

opipe_status opi_grad_anchor(opi_grad_state *s, uint32_t anchor, uint32_t stage, opipe_error *err) {
  const uint32_t n = s->training->graph->n_nodes;
  if (!opi_arena_grow(&s->scratch, (void **)&s->anchor, &s->room_anchor, n, sizeof(uint32_t)) ||
      !opi_arena_grow(&s->scratch, (void **)&s->stage, &s->room_stage, n, sizeof(uint32_t)))
    return opi_fail_nomem(err, n * 8u, "anchors");
  for (; s->n_anchored < n; ++s->n_anchored) {
    s->anchor[s->n_anchored] = anchor == OPIPE_NONE ? s->n_anchored : anchor;
    s->stage[s->n_anchored] = stage;
  }
  return OPIPE_OK;
}

opipe_status opi_grad_flags(opi_grad_state *s, opipe_error *err) {
  const uint32_t n = s->training->graph->n_values;
  if (!opi_arena_grow(&s->scratch, (void **)&s->flags, &s->room_flags, n, 1))
    return opi_fail_nomem(err, n, "flags of values");
  for (; s->n_flags < n; ++s->n_flags)
    s->flags[s->n_flags] = 0;
  return OPIPE_OK;
}

opipe_status opi_grad_scalar(opi_grad_state *s, uint32_t slot, uint32_t *out, opipe_error *err) {
  static const char *const names[OPI_SCALAR_SUM] = {"seed",  "step",  "sample",
                                                    "token", "count", "scale"};
  uint32_t *value = &s->training->scalars[slot];
  if (*value == OPIPE_NONE) {
    const bool real = slot >= OPI_SCALAR_COUNT;
    opi_arena *arena = s->training->graph->arena;
    const char *name = slot < OPI_SCALAR_SUM
                           ? opi_arena_printf(arena, "train/%s", names[slot])
                           : opi_arena_printf(arena, "train/sum%" PRIu32, slot - OPI_SCALAR_SUM);
    *value = name == NULL ? OPIPE_NONE
                          : opi_b_borrow(&s->builder, name, real ? OPIPE_DOUBLE : OPIPE_INT64, NULL,
                                         0, NULL);
    if (*value == OPIPE_NONE)
      return opi_fail_nomem(err, sizeof(opi_value), "a scalar of the run");
    opi_b_value(&s->builder, *value)->flags = OPI_VALUE_SCALAR;
  }
  *out = *value;
  return OPIPE_OK;
}

const opi_node *opi_grad_origin(opi_grad_state *s, const char *name, const char *suffix) {
  opi_node *node = OPI_ARENA_NEW(&s->scratch, opi_node);
  if (node == NULL)
    return NULL;
  node->name = opi_arena_printf(s->training->graph->arena, "%s%s", name, suffix);
  return node->name != NULL ? node : NULL;
}

static opipe_status hide(opi_grad_state *s, opipe_error *err) {
  opi_graph *graph = s->training->graph;
  s->n_forward_values = graph->n_values;
  s->hidden = OPI_ARENA_ARRAY(&s->scratch, const void *, graph->n_values);
  if (s->hidden == NULL)
    return opi_fail_nomem(err, graph->n_values * sizeof(void *), "the parameters");
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if ((s->flags[v] & OPI_V_TRAINED) == 0)
      continue;
    s->hidden[v] = graph->values[v].data;
    graph->values[v].data = NULL;
  }
  return OPIPE_OK;
}

static void reveal(opi_grad_state *s) {
  for (uint32_t v = 0; v < s->n_forward_values; ++v) {
    if ((s->flags[v] & OPI_V_TRAINED) != 0)
      s->training->graph->values[v].data = s->hidden[v];
  }
}

static opipe_status check_compute(uint32_t compute, opipe_error *err) {
#define IS_IT(key, word) || compute == OPIPE_##key
#define NAME_IT(key, word) " " word
  if (compute == 0 OPIPE_COMPUTE_TYPES(IS_IT))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s is not a compute type; these are:" OPIPE_COMPUTE_TYPES(NAME_IT),
                  opi_dtype_name(compute));
}

static opipe_status steps(opi_grad_state *s, opipe_error *err) {
  OPI_TRY(check_compute(s->options->compute, err));
  OPI_TRY(opi_grad_find_loss(s, err));
  OPI_TRY(opi_grad_find_shares(s, err));
  OPI_TRY(opi_grad_forward(s, err));
  OPI_TRY(opi_grad_states(s, err));
  OPI_TRY(opi_grad_loss(s, err));
  OPI_TRY(opi_grad_trainable(s, err));
  OPI_TRY(hide(s, err));
  OPI_TRY(opi_grad_backward(s, err));
  OPI_TRY(opi_grad_finish(s, err));
  reveal(s);
  return opi_graph_verify(s->training->graph, err);
}

static opipe_status build(opi_grad_state *s, opipe_error *err) {
  opi_training *t = s->training;
  t->graph = opi_graph_new(&t->arena, s->bound->graph->name);
  if (t->graph == NULL)
    return opi_fail_nomem(err, sizeof(*t->graph), "the training graph");
  OPI_TRY(opi_b_open(&s->builder, t->graph, &s->scratch, s->options->allocator, err));
  s->builder.evaluator = s->options->evaluator;
  s->builder.logger = s->options->logger;
  s->builder.keep_parameters = true;
  s->builder.choices = s->options->choices;
  if (s->builder.choices != NULL)
    opi_choices_begin(s->builder.choices);
  s->grad = opi_grad_open(s);
  opipe_status status = opi_b_reserve(&s->builder, s->bound->graph, err);
  if (status >= 0)
    status = steps(s, err);
  opi_b_close(&s->builder);
  return status;
}

opipe_status opi_gradient_build(const opi_bound *bound, const opi_gradient_options *options,
                                opi_training **out_training, opipe_error *err) {
  opi_training *t = opi_alloc_zero(options->allocator, 1, sizeof(*t));
  opi_grad_state s;
  *out_training = NULL;
  if (t == NULL)
    return opi_fail_nomem(err, sizeof(*t), "a training graph");
  opi_arena_init(&t->arena, options->allocator, 0);
  t->output = t->labels = OPIPE_NONE;
  for (uint32_t i = 0; i < OPI_SCALAR_TABLE; ++i)
    t->scalars[i] = OPIPE_NONE;
  memset(&s, 0, sizeof(s));
  s.bound = bound;
  s.options = options;
  s.training = t;
  s.n_stages = 1;
  s.target = OPIPE_NONE;
  if (options->loss != NULL)
    s.loss = *options->loss;
  opi_arena_init(&s.scratch, options->allocator, 0);
  const opipe_status status = build(&s, err);
  opi_arena_release(&s.scratch);
  if (status < 0)
    opi_training_free(t);
  else
    *out_training = t;
  return status;
}

void opi_training_free(opi_training *training) {
  if (training == NULL)
    return;
  const opipe_allocator *allocator = training->arena.allocator;
  opi_arena_release(&training->arena);
  opi_free(allocator, training, sizeof(*training));
}
