/* SPDX-License-Identifier: Apache-2.0 */
/* Reverse mode: forward nodes from the last stage to the first, within a stage from the last node
 * to the first, each by its operator's rule.
 *
 * A node's contribution to a parameter is accumulated right after it. So no gradient of a weight
 * waits for another (a tied table's would live for the whole pass), and a backend may let the node
 * itself add to the accumulator.
 */
#include <inttypes.h>
#include <string.h>

#include "loader/gradient/state.h"

typedef struct walk {
  uint32_t *order;  /* [n_forward_nodes] rising stage, rising index */
  opi_text missing; /* nodes that have no gradient */
  uint32_t n_missing;
} walk;

/* One more node without a gradient; all come in one report at the end. */
static void note_missing(const opi_grad_state *s, walk *w, const opi_node *node,
                         const char *reason) {
  opi_log(s->options->logger, OPIPE_LOG_WARN, "no gradient: %s", reason);
  if (w->n_missing++ != 0)
    opi_text_puts(&w->missing, "; ");
  opi_text_printf(&w->missing, "'%s' (%s%s%s)", node->name, node->domain,
                  node->domain[0] != '\0' ? "." : "", node->op);
}

static opipe_status report_missing(walk *w, const opipe_error *first, opipe_error *err) {
  if (w->n_missing == 0)
    return OPIPE_OK;
  if (w->n_missing == 1 && first->message[0] != '\0')
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s", first->message);
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "%" PRIu32
                  " nodes on the way from parameters to the loss have no gradient: "
                  "%.360s",
                  w->n_missing, w->missing.data != NULL ? w->missing.data : "");
}

static opipe_status prepare(opi_grad_state *s, walk *w, opipe_error *err) {
  w->order = OPI_ARENA_ARRAY(&s->scratch, uint32_t, s->n_forward_nodes);
  s->gradient = OPI_ARENA_ARRAY(&s->scratch, uint32_t, s->n_forward_values);
  if (w->order == NULL || s->gradient == NULL)
    return opi_fail_nomem(err, s->n_forward_values * 4u + s->n_forward_nodes * 4u, "gradients");
  memset(s->gradient, 0xff, s->n_forward_values * sizeof(uint32_t));
  uint32_t at = 0;
  for (uint32_t stage = 0; stage < s->n_stages; ++stage) {
    for (uint32_t n = 0; n < s->n_forward_nodes; ++n) {
      if (s->stage[n] == stage)
        w->order[at++] = n;
    }
  }
  return OPIPE_OK;
}

/* "w/gradient", "w/gradient/stage2": the first of a stage's; made-up names for the others. */
static const char *gradient_name(opi_grad_state *s, const opi_train_param *p, uint32_t stage) {
  opi_arena *arena = s->training->graph->arena;
  uint32_t taken = 0;
  const char *name = s->n_stages == 1
                         ? opi_arena_printf(arena, "%s/gradient", p->name)
                         : opi_arena_printf(arena, "%s/gradient/stage%" PRIu32, p->name, stage);
  if (name == NULL || !opi_map_get(s->builder.names, name, &taken))
    return name;
  return opi_b_name(&s->builder);
}

opipe_status opi_grad_accumulate(opi_grad_state *s, uint32_t parameter, uint32_t value,
                                 opipe_error *err) {
  opi_training *t = s->training;
  opi_train_param *p = NULL;
  for (uint32_t k = 0; k < t->n_params && p == NULL; ++k)
    p = t->params[k].value == parameter ? &t->params[k] : NULL;
  if (p == NULL)
    return opi_fail(err, OPIPE_E_INTERNAL, "a gradient of value %" PRIu32, parameter);
  const char *name = gradient_name(s, p, s->stage[s->current]);
  uint32_t *list = OPI_ARENA_ARRAY(&t->arena, uint32_t, p->n_gradients + 1);
  if (name == NULL || list == NULL)
    return opi_fail_nomem(err, 64, "a gradient");
  const opi_emit emit = {.op = "Accumulate",
                         .domain = "opipe",
                         .in = &value,
                         .n_in = 1,
                         .n_out = 1,
                         .version = 1,
                         .out_names = &name};
  OPI_TRY(opi_b_emit_kept(&s->builder, &emit, &list[0], err));
  opi_b_value(&s->builder, list[0])->flags |= OPI_VALUE_GRADIENT;
  if (p->n_gradients != 0) /* stages fall, the list rises */
    memcpy(list + 1, p->gradients, p->n_gradients * sizeof(*list));
  p->gradients = list;
  ++p->n_gradients;
  return OPIPE_OK;
}

static opipe_status one_rule(opi_grad_state *s, const opi_node *node, opipe_error *err) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  bool arrives = false, wanted = false;
  OPI_TRY(opi_grad_meet_states(s, node, err));
  for (uint32_t o = 0; o < node->n_out; ++o)
    arrives = arrives || opi_grad_of(&s->grad, node, o) != OPIPE_NONE;
  for (uint32_t i = 0; i < node->n_in; ++i)
    wanted = wanted || opi_grad_wants(&s->grad, node, i);
  if (!arrives || !wanted)
    return OPIPE_OK;
  if (op->gradient == NULL)
    return opi_node_fail(&s->builder, node, err, OPIPE_E_UNSUPPORTED, "has no gradient");
  s->builder.origin = opi_grad_origin(s, node->name, "/gradient");
  if (s->builder.origin == NULL)
    return opi_fail_nomem(err, sizeof(opi_node), "a gradient's name");
  s->builder.origin_index = node->source;
  s->builder.origin_stage = node->stage;
  s->builder.n_emitted = 0;
  return op->gradient(&s->grad, node, err);
}

static opipe_status seed(opi_grad_state *s, opipe_error *err) {
  uint32_t scale;
  if (s->options->compute == OPIPE_FLOAT16) {
    s->builder.origin = opi_grad_origin(s, "loss", "/scale");
    OPI_TRY(opi_grad_scalar(s, OPI_SCALAR_SCALE, &scale, err));
    OPI_TRY(opi_k_cast(&s->builder, scale, OPIPE_FLOAT, &scale, err));
  } else {
    scale = opi_b_const_scalar(&s->builder, OPIPE_FLOAT, 1);
    OPI_TRY(opi_k_const(scale, err));
  }
  s->gradient[s->training->loss] = scale;
  OPI_TRY(opi_grad_flags(s, err));
  s->flags[scale] |= OPI_V_ACTIVE;
  return opi_grad_anchor(s, opi_b_value(&s->builder, s->training->loss)->producer, s->target_stage,
                         err);
}

/* Zeros for what a node without a gradient would give, so that the nodes before it are looked at.
 */
static opipe_status pass_through(opi_grad_state *s, const opi_node *node, opipe_error *err) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    uint32_t zeros;
    if (!opi_grad_wants(&s->grad, node, i))
      continue;
    OPI_TRY(opi_grad_zeros(&s->grad, node->in[i], &zeros, err));
    OPI_TRY(opi_grad_give(&s->grad, node, i, zeros, err));
  }
  return OPIPE_OK;
}

/* Gradients of what reaches a node without one are not complete: they only serve the report. */
static opipe_status rules(opi_grad_state *s, walk *w, opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  opipe_error first = OPIPE_ERROR_INIT;
  for (uint32_t k = s->n_forward_nodes; k-- > 0;) {
    const uint32_t n = w->order[k];
    const opi_node node = graph->nodes[n]; /* the array moves as nodes are added */
    opipe_error reason = OPIPE_ERROR_INIT;
    s->current = n;
    const opipe_status status = one_rule(s, &node, &reason);
    if (status == OPIPE_E_UNSUPPORTED) {
      note_missing(s, w, &node, reason.message);
      first = w->n_missing == 1 ? reason : first;
      OPI_TRY(pass_through(s, &node, err));
    } else if (status < 0) {
      return opi_fail(err, status, "%s", reason.message);
    }
    OPI_TRY(opi_grad_anchor(s, n, s->stage[n], err));
  }
  return report_missing(w, &first, err);
}

opipe_status opi_grad_backward(opi_grad_state *s, opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  walk w = {0};
  s->n_forward_nodes = graph->n_nodes;
  s->n_forward_values = graph->n_values;
  OPI_TRY(prepare(s, &w, err));
  OPI_TRY(seed(s, err));
  OPI_TRY(opi_grad_seed_states(s, err));
  opi_text_init(&w.missing, s->options->allocator);
  const opipe_status status = rules(s, &w, err);
  opi_text_release(&w.missing);
  return status < 0 ? status : opi_grad_close_states(s, err);
}
