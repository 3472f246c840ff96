/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 and fp16 as the type of activations and products; parameters stay fp32 and are cast where
 * they are read.
 *
 *   NARROW (products, convolutions, attention)  the half type (masks that are added: fp32)
 *   WIDE (what sums or leaves the half type's range: reductions, powers, roots, exponentials,
 *   losses)                                     fp32
 *   AS_IS, SCALE (norms, rotary embeddings)     X as it comes, scale and tables fp32: statistics
 *                                               are fp32
 *   COMMON                                      the widest type among its activations
 *
 * Which of them an operator is stands in its row (opi_op.half). A value is cast once per stage that
 * needs it in another type. Keys and values of earlier token slices come in the type in which they
 * were handed on.
 */
#include "loader/gradient/state.h"
#include "loader/ops/attention.h"

typedef struct opi_grad_cast {
  uint32_t value, stage, dtype, out;
} opi_grad_cast;

static bool is_constant(const opi_grad_state *s, uint32_t bound_value) {
  return (s->bound_flags[bound_value] & OPI_V_CONSTANT) != 0;
}

static opipe_status cast(opi_grad_state *s, uint32_t value, uint32_t stage, uint32_t dtype,
                         uint32_t *out, opipe_error *err) {
  opi_builder *b = &s->builder;
  const uint32_t from = opi_b_value(b, value)->dtype;
  *out = value;
  if (from == dtype || (from != OPIPE_FLOAT && from != s->options->compute))
    return OPIPE_OK;
  for (uint32_t i = 0; i < s->n_casts; ++i) {
    const opi_grad_cast *c = &s->casts[i];
    if (c->value == value && c->stage == stage && c->dtype == dtype) {
      *out = c->out;
      return OPIPE_OK;
    }
  }
  OPI_TRY(opi_k_cast(b, value, dtype, out, err));
  if (!opi_arena_grow(&s->scratch, (void **)&s->casts, &s->room_casts, s->n_casts + 1,
                      sizeof(*s->casts)))
    return opi_fail_nomem(err, sizeof(*s->casts), "a cast");
  s->casts[s->n_casts++] = (opi_grad_cast){value, stage, dtype, *out};
  return OPIPE_OK;
}

/* The type of a node without one of its own: fp32 where an activation is, else the half type where
 * one is, else 0. */
static uint32_t common_type(const opi_grad_state *s, const opi_node *node, const uint32_t *in) {
  const opi_graph *graph = s->training->graph;
  bool wide = false, half = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (in[i] == OPIPE_NONE)
      continue;
    const uint32_t dtype = graph->values[in[i]].dtype;
    half = half || dtype == s->options->compute;
    wide = wide || (dtype == OPIPE_FLOAT && !is_constant(s, node->in[i]));
  }
  if (!half)
    return 0;
  return wide ? OPIPE_FLOAT : s->options->compute;
}

static bool is_off(const opi_grad_state *s) {
  return s->options->compute == 0 || s->options->compute == OPIPE_FLOAT;
}

static bool reads_constants(const opi_grad_state *s, const opi_node *node) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE && !is_constant(s, node->in[i]))
      return false;
  }
  return true;
}

/* Numbers added to the scores of an attention: they keep their range, so that rows in which all
 * are very low come out as in fp32. */
static bool is_mask(const opi_node *node, uint32_t i) {
  return opi_op_of(node)->kind == OPI_KIND_ATTENTION && i == OPI_ATT_MASK;
}

/* A value from the previous slice has the type with which it was produced there: the half type if
 * attention keeps it, else that of the slice's own part, with which it is joined. One node reads
 * it. */
static void type_past(const opi_grad_state *s, const uint32_t *in, uint32_t n_in, bool half) {
  const opi_graph *graph = s->training->graph;
  const opi_token_slice *slice = s->options->slice;
  for (uint32_t k = 0; slice != NULL && k < slice->n_states; ++k) {
    const uint32_t past =
        slice->states[k].past == OPIPE_NONE ? OPIPE_NONE : s->map[slice->states[k].past];
    for (uint32_t i = 0; i < n_in && past != OPIPE_NONE; ++i) {
      opi_value *value = &graph->values[past];
      if (in[i] != past || value->dtype != OPIPE_FLOAT)
        continue;
      value->dtype = half ? s->options->compute : graph->values[in[n_in - 1]].dtype;
      (void)opi_tensor_bytes(value->dtype, value->shape, (uint32_t)value->rank, &value->n_bytes);
    }
  }
}

opipe_status opi_grad_cast_inputs(opi_grad_state *s, const opi_node *node, uint32_t stage,
                                  uint32_t *in, opipe_error *err) {
  if (is_off(s) || reads_constants(s, node))
    return OPIPE_OK;
  const uint32_t half = opi_op_of(node)->half;
  type_past(s, in, node->n_in, half == OPI_HALF_NARROW);
  uint32_t to = 0;
  if (half == OPI_HALF_NARROW)
    to = s->options->compute;
  else if (half == OPI_HALF_WIDE)
    to = OPIPE_FLOAT;
  else if (half == OPI_HALF_COMMON || half == OPI_HALF_PICKS)
    to = common_type(s, node, in);
  else if (half == OPI_HALF_SCALE && opi_b_value(&s->builder, in[0])->dtype == s->options->compute)
    return cast(s, in[1], stage, s->options->compute, &in[1], err);
  for (uint32_t i = 0; i < node->n_in && to != 0; ++i) {
    if (in[i] != OPIPE_NONE && !is_mask(node, i))
      OPI_TRY(cast(s, in[i], stage, to, &in[i], err));
  }
  return OPIPE_OK;
}

opipe_status opi_grad_cast_output(opi_grad_state *s, const opi_node *node, uint32_t stage,
                                  uint32_t *io_out, opipe_error *err) {
  if (is_off(s) || reads_constants(s, node) || opi_op_of(node)->half != OPI_HALF_PICKS ||
      !is_constant(s, node->in[0]))
    return OPIPE_OK;
  return cast(s, *io_out, stage, s->options->compute, io_out, err);
}

opipe_status opi_grad_cast_target(opi_grad_state *s, opipe_error *err) {
  const uint32_t dtype = s->bound->graph->values[s->target].dtype;
  if (is_off(s) || dtype != OPIPE_FLOAT)
    return OPIPE_OK;
  s->builder.origin = opi_grad_origin(s, s->bound->graph->values[s->target].name, "/wide");
  if (s->builder.origin == NULL)
    return opi_fail_nomem(err, sizeof(opi_node), "the loss");
  OPI_TRY(cast(s, s->map[s->target], s->target_stage, OPIPE_FLOAT, &s->map[s->target], err));
  return opi_grad_anchor(s, OPIPE_NONE, s->target_stage, err);
}
