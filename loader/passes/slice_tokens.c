/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the graph of one token slice; see tokens.h.
 *
 * The whole graph is walked once. A value is either *whole* (as it was) or *sliced* (rows of this
 * slice, its carry says where). A node is emitted sliced when it reads something sliced, or when it
 * joins a parameter with something that has the token axis (the embedding); its operator's axis
 * rule must agree, as for micro-batches. Whole operands that have the axis are cut at their reader.
 */
#include <inttypes.h>
#include <stdio.h>

#include "loader/ops/attention.h"
#include "loader/ops/common.h"
#include "loader/passes/private.h"
#include "loader/passes/slicer.h"

/* The only token dimension of a whole value, as a carry. */
opi_carry opi_s_plain_carry(const slicer *s, uint32_t v) {
  const int8_t *d = s->t->dims[v];
  return d[0] >= 0 && d[1] < 0 ? (opi_carry){d[0], 0, 1, 1} : OPI_CARRY_NONE;
}

opipe_status opi_s_refuse(const slicer *s, const opi_node *node, const char *why) {
  return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "node '%s' (%s): %s: %s", node->name, node->op,
                  s->refusal, why);
}

/* ---- values ---- */

opipe_status opi_s_copy_value(slicer *s, uint32_t v) {
  const opi_value from = s->whole->values[v];
  const uint32_t made =
      opi_b_borrow(&s->b, from.name, from.dtype, from.shape, (uint32_t)from.rank, from.data);
  if (made == OPIPE_NONE)
    return opi_fail_nomem(s->err, sizeof(from), "a value");
  opi_value *to = opi_b_value(&s->b, made);
  to->flags = (from.flags & ~(uint32_t)OPI_VALUE_OUTPUT) |
              (from.data != NULL ? (uint32_t)OPI_VALUE_BORROWED : 0u);
  to->source = from.source;
  s->map[v] = made;
  return OPIPE_OK;
}

/* Operand i of a sliced node: itself, or cut to this slice where `how` says that it carries. */
static opipe_status operand(slicer *s, uint32_t v, const opi_carry *how, uint32_t *out) {
  *out = s->map[v];
  if (opi_s_sliced(s, v) || !opi_carries(how))
    return OPIPE_OK;
  return opi_k_slice(&s->b, s->map[v], how->axis, s->first, opi_s_end(s), out, s->err);
}

/* ---- nodes ---- */

/* Names everything that replaces a node after it, with names that no value of the whole graph has.
 */
opipe_status opi_s_name_after(slicer *s, const opi_node *node) {
  opi_node *origin = OPI_ARENA_NEW(&s->scratch, opi_node);
  if (origin == NULL)
    return opi_fail_nomem(s->err, sizeof *origin, "a node");
  *origin = *node;
  origin->name = opi_arena_printf(&s->scratch, "%s/%s", node->name, s->noun);
  s->b.origin = origin;
  s->b.n_emitted = 0;
  return origin->name == NULL ? opi_fail_nomem(s->err, 64, "a name") : OPIPE_OK;
}

opipe_status opi_s_emit_as(slicer *s, const opi_node *node, const opi_emit *emit, uint32_t *out) {
  const opi_node *origin = s->b.origin;
  const uint32_t n_emitted = s->b.n_emitted;
  s->b.origin = node; /* masks of Dropout are told by the node's name */
  s->b.n_emitted = 0;
  const opipe_status status =
      s->folds ? opi_b_emit(&s->b, emit, out, s->err) : opi_b_emit_kept(&s->b, emit, out, s->err);
  s->b.origin = origin;
  s->b.n_emitted = n_emitted;
  return status;
}

opipe_status opi_s_emit(slicer *s, const opi_node *node, const uint32_t *in) {
  uint32_t *out = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_out);
  const char **names = OPI_ARENA_ARRAY(&s->scratch, const char *, node->n_out);
  if (out == NULL || names == NULL)
    return opi_fail_nomem(s->err, node->n_out * 12, "a node");
  for (uint32_t o = 0; o < node->n_out; ++o)
    names[o] = node->out[o] == OPIPE_NONE ? "" : s->whole->values[node->out[o]].name;
  const opi_emit emit = {.op = node->op,
                         .domain = node->domain,
                         .in = in,
                         .n_in = node->n_in,
                         .n_out = node->n_out,
                         .attrs = node->attrs,
                         .n_attrs = node->n_attrs,
                         .version = node->version,
                         .out_names = names,
                         .pattern = node->pattern};
  OPI_TRY(opi_s_emit_as(s, node, &emit, out));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    s->map[node->out[o]] = out[o];
    opi_b_value(&s->b, out[o])->source = s->whole->values[node->out[o]].source;
  }
  return OPIPE_OK;
}

static opipe_status emit_whole(slicer *s, const opi_node *node) {
  uint32_t *in = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_in);
  if (in == NULL)
    return opi_fail_nomem(s->err, node->n_in * 4, "a node");
  for (uint32_t i = 0; i < node->n_in; ++i)
    in[i] = node->in[i] == OPIPE_NONE ? OPIPE_NONE : s->map[node->in[i]];
  return opi_s_emit(s, node, in);
}

/* The shape operand of Reshape and Expand: the output's, with the slice's rows. */
static opipe_status shape_operand(slicer *s, const opi_node *node, const opi_carry *out_carry,
                                  uint32_t *out) {
  const opi_value *y = &s->whole->values[node->out[0]];
  int64_t shape[OPIPE_MAX_RANK];
  for (int32_t d = 0; d < y->rank; ++d)
    shape[d] = y->shape[d];
  if (opi_carries(out_carry))
    shape[out_carry->axis] = out_carry->outer * s->length * out_carry->inner;
  return opi_ints_value(&s->b, shape, (uint32_t)y->rank, out, s->err);
}

static opipe_status emit_sliced(slicer *s, const opi_node *node, const opi_carry *in_carry,
                                const opi_carry *out_carry) {
  const bool shaped = (opi_op_of(node)->takes & (OPI_TAKES_FORM | OPI_TAKES_STRETCHED)) != 0;
  uint32_t *in = OPI_ARENA_ARRAY(&s->scratch, uint32_t, node->n_in);
  if (in == NULL)
    return opi_fail_nomem(s->err, node->n_in * 4, "a node");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    in[i] = OPIPE_NONE;
    if (node->in[i] == OPIPE_NONE)
      continue;
    if (shaped && i == 1) {
      OPI_TRY(shape_operand(s, node, &out_carry[0], &in[i]));
      continue;
    }
    if (s->t->differs[node->in[i]])
      return opi_s_refuse(s, node, "it reads the number of tokens");
    OPI_TRY(operand(s, node->in[i], &in_carry[i], &in[i]));
  }
  OPI_TRY(opi_s_emit(s, node, in));
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      s->carry[node->out[o]] = out_carry[o];
  }
  return OPIPE_OK;
}

opipe_status opi_s_rule(const slicer *s, const opi_node *node, const opi_carry *in, opi_carry *out,
                        opipe_error *err) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  for (uint32_t o = 0; o < node->n_out; ++o)
    out[o] = OPI_CARRY_NONE;
  if (op == NULL || op->carry == NULL)
    return opi_carry_fail(s->whole, node, err, "the operator has no rule for it");
  return op->carry(s->whole, node, in, out, err);
}

/* Asks the operator's rule, with whole operands taken to carry the axis where they have it; then
 * with each of them, in turn, taken not to. */
opipe_status opi_s_agree(slicer *s, const opi_node *node, opi_carry *in, opi_carry *out) {
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = opi_s_rule(s, node, in, out, &why);
  for (uint32_t i = 0; i < node->n_in && status == OPIPE_E_UNSUPPORTED; ++i) {
    const opi_carry had = in[i];
    if (node->in[i] == OPIPE_NONE || opi_s_sliced(s, node->in[i]) || !opi_carries(&had))
      continue;
    in[i] = OPI_CARRY_NONE;
    status = opi_s_rule(s, node, in, out, NULL);
    if (status < 0)
      in[i] = had;
  }
  if (status < 0 && s->err != NULL)
    *s->err = why;
  return status;
}

/* ---- the walk ---- */

/* Looks at the inputs of node n: is any of them sliced, dependent on a parameter, or along the
 * token axis? */
static void look(const slicer *s, const opi_node *node, opi_carry *in, bool *out_sliced,
                 bool *out_weighty, bool *out_tokens) {
  *out_sliced = *out_weighty = *out_tokens = false;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    in[i] = OPI_CARRY_NONE;
    if (v == OPIPE_NONE)
      continue;
    in[i] = opi_s_sliced(s, v) ? s->carry[v] : opi_s_plain_carry(s, v);
    *out_sliced = *out_sliced || opi_s_sliced(s, v);
    *out_weighty = *out_weighty || s->weighty[v];
    *out_tokens = *out_tokens || opi_carries(&in[i]);
  }
}

static bool is_attention(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_ATTENTION;
}

static opipe_status walk_node(slicer *s, const opi_node *node, bool main) {
  bool sliced, weighty, tokens;
  opi_carry *in = OPI_ARENA_ARRAY(&s->scratch, opi_carry, (size_t)node->n_in + node->n_out);
  if (in == NULL)
    return opi_fail_nomem(s->err, (node->n_in + node->n_out) * sizeof(*in), "carries");
  opi_carry *out = in + node->n_in;
  OPI_TRY(opi_s_name_after(s, node));
  look(s, node, in, &sliced, &weighty, &tokens);
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      s->weighty[node->out[o]] = weighty;
  }
  if (sliced && !main)
    return opi_s_refuse(s, node, "a mask is made from activations");
  if (opi_s_at_scores(s, node))
    return opi_s_walk_scores(s, node);
  if (sliced && is_attention(node) && opi_s_sliced(s, node->in[OPI_ATT_K]))
    return opi_s_attention(s, node);
  if (sliced) {
    OPI_TRY(opi_s_agree(s, node, in, out));
    return emit_sliced(s, node, in, out);
  }
  if (main && weighty && tokens && opi_s_rule(s, node, in, out, NULL) >= 0 && opi_carries(&out[0]))
    return emit_sliced(s, node, in, out);
  return emit_whole(s, node);
}

static void mark_producer(const slicer *s, uint32_t v, bool main) {
  const uint32_t n = v == OPIPE_NONE ? OPIPE_NONE : s->whole->values[v].producer;
  if (n == OPIPE_NONE)
    return;
  s->needed[n] = true;
  s->main[n] = s->main[n] || main;
}

/* Values that only masks need stay whole; attention cuts their rows and columns when it reads them.
 */
static void mark_needed(const slicer *s) {
  for (uint32_t o = 0; o < s->n_wanted; ++o)
    mark_producer(s, s->wanted[o], true);
  for (uint32_t n = s->whole->n_nodes; n-- > 0;) {
    const opi_node *node = &s->whole->nodes[n];
    for (uint32_t i = 0; s->needed[n] && i < node->n_in; ++i) {
      const bool mask = (is_attention(node) && i == OPI_ATT_MASK) || opi_s_is_mask(s, node, i);
      mark_producer(s, node->in[i], s->main[n] && !mask);
    }
  }
}

static opipe_status copy_values(slicer *s) {
  for (uint32_t i = 0; i < s->whole->n_inputs; ++i) {
    OPI_TRY(opi_s_copy_value(s, s->whole->inputs[i]));
    if (!opi_graph_add_input(s->b.graph, s->map[s->whole->inputs[i]]))
      return opi_fail_nomem(s->err, 4, "an input");
  }
  for (uint32_t v = 0; v < s->whole->n_values; ++v) {
    const opi_value *value = &s->whole->values[v];
    if (value->producer != OPIPE_NONE || s->map[v] != OPIPE_NONE)
      continue;
    s->weighty[v] = opi_s_is_parameter(value);
    OPI_TRY(opi_s_copy_value(s, v));
  }
  return OPIPE_OK;
}

/* Every output has the axis once, or not at all; one of them does. */
static opipe_status check_outputs(const slicer *s) {
  bool any = false;
  for (uint32_t o = 0; o < s->n_wanted; ++o) {
    any = any || opi_s_sliced(s, s->wanted[o]);
    if (opi_s_plane(s, s->wanted[o])) {
      return opi_fail(s->err, OPIPE_E_UNSUPPORTED,
                      "output '%s' has tokens along two axes: it cannot be cut into slices",
                      s->whole->values[s->wanted[o]].name);
    }
  }
  if (any)
    return OPIPE_OK;
  return opi_fail(s->err, OPIPE_E_UNSUPPORTED, "output '%s'%s has no token axis to slice",
                  s->n_wanted == 0 ? "" : s->whole->values[s->wanted[0]].name,
                  s->n_wanted > 1 ? ", like all others," : "");
}

static opipe_status build(slicer *s) {
  OPI_TRY(opi_s_find_scores(s));
  mark_needed(s);
  OPI_TRY(copy_values(s));
  for (uint32_t n = 0; n < s->whole->n_nodes; ++n) {
    if (s->needed[n])
      OPI_TRY(walk_node(s, &s->whole->nodes[n], s->main[n]));
  }
  OPI_TRY(check_outputs(s));
  for (uint32_t o = 0; o < s->n_wanted; ++o) {
    if (!opi_graph_add_output(s->b.graph, s->map[s->wanted[o]]))
      return opi_fail_nomem(s->err, 4, "an output");
  }
  for (uint32_t i = 0; i < s->n_states; ++i) {
    if (s->presents[i] != OPIPE_NONE && !opi_graph_add_output(s->b.graph, s->presents[i]))
      return opi_fail_nomem(s->err, 4, "an output");
  }
  return opi_pass_dead(&s->b, s->err);
}

opipe_status opi_s_open(slicer *s) {
  const uint32_t n = s->whole->n_values, most = 2 * s->whole->n_nodes + 1;
  opi_graph *graph = opi_graph_new(&s->scratch, s->whole->name);
  s->map = OPI_ARENA_ARRAY(&s->scratch, uint32_t, n);
  s->carry = OPI_ARENA_ARRAY(&s->scratch, opi_carry, n);
  s->before = OPI_ARENA_ARRAY(&s->scratch, int64_t, n);
  s->weighty = OPI_ARENA_ARRAY(&s->scratch, bool, n);
  s->scores = OPI_ARENA_ARRAY(&s->scratch, bool, n);
  s->planes = OPI_ARENA_ARRAY(&s->scratch, opi_token_plane, n);
  s->needed = OPI_ARENA_ARRAY(&s->scratch, bool, s->whole->n_nodes);
  s->main = OPI_ARENA_ARRAY(&s->scratch, bool, s->whole->n_nodes);
  s->state_names = OPI_ARENA_ARRAY(&s->scratch, const char *, most);
  s->pasts = OPI_ARENA_ARRAY(&s->scratch, uint32_t, most);
  s->presents = OPI_ARENA_ARRAY(&s->scratch, uint32_t, most);
  if (graph == NULL || s->map == NULL || s->carry == NULL || s->before == NULL ||
      s->weighty == NULL || s->needed == NULL || s->main == NULL || s->state_names == NULL ||
      s->pasts == NULL || s->presents == NULL || s->scores == NULL || s->planes == NULL)
    return opi_fail_nomem(s->err, n * 32, "a token slice");
  for (uint32_t v = 0; v < n; ++v) {
    s->map[v] = OPIPE_NONE;
    s->carry[v] = OPI_CARRY_NONE;
    s->planes[v].row = s->planes[v].column = -1;
  }
  OPI_TRY(opi_b_open(&s->b, graph, &s->scratch, s->scratch.allocator, s->err));
  s->b.evaluator = s->evaluator;
  return OPIPE_OK;
}

static opi_token_output output_of(const slicer *s, uint32_t v, uint32_t made) {
  const int64_t before = s->before[v], first = s->first == 0 ? 0 : before + s->first;
  return (opi_token_output){.value = made,
                            .carry = s->carry[v],
                            .first = first,
                            .length = before + opi_s_end(s) - first,
                            .n_whole = before + s->t->n_tokens};
}

/* The slice as a bound graph of its own. */
static opipe_status finish(slicer *s, opi_token_slice *out) {
  opi_bound *bound = out->bound;
  OPI_TRY(opi_graph_copy(s->b.graph, &bound->arena, &bound->graph, s->err));
  out->states = OPI_ARENA_ARRAY(&bound->arena, opi_token_state, s->n_states);
  out->outputs = OPI_ARENA_ARRAY(&bound->arena, opi_token_output, s->n_wanted);
  if (out->states == NULL || out->outputs == NULL)
    return opi_fail_nomem(s->err, s->n_states * sizeof(*out->states), "states");
  const opi_graph *g = bound->graph;
  uint32_t n_in = s->whole->n_inputs, n_out = s->n_wanted;
  for (uint32_t i = 0; i < s->n_states; ++i) {
    opi_token_state *state = &out->states[i];
    state->name = opi_arena_strdup(&bound->arena, s->state_names[i]);
    if (state->name == NULL)
      return opi_fail_nomem(s->err, 64, "a name");
    state->past = s->pasts[i] == OPIPE_NONE ? OPIPE_NONE : g->inputs[n_in++];
    state->present = s->presents[i] == OPIPE_NONE ? OPIPE_NONE : g->outputs[n_out++];
  }
  out->n_states = s->n_states;
  for (uint32_t o = 0; o < s->n_wanted; ++o)
    out->outputs[o] = output_of(s, s->wanted[o], g->outputs[o]);
  out->n_outputs = s->n_wanted;
  bound->index_limits = OPI_ARENA_ARRAY(&bound->arena, int64_t, g->n_inputs);
  if (bound->index_limits == NULL)
    return opi_fail_nomem(s->err, g->n_inputs * 8, "limits");
  return opi_graph_verify(g, s->err);
}

static opipe_status find_wanted(slicer *s, const opi_token_wish *wish) {
  uint32_t *wanted = OPI_ARENA_ARRAY(&s->scratch, uint32_t, wish->n_outputs);
  if (wanted == NULL)
    return opi_fail_nomem(s->err, wish->n_outputs * sizeof *wanted, "outputs");
  for (uint32_t o = 0; o < wish->n_outputs; ++o) {
    wanted[o] = opi_bound_value(s->t->whole, wish->outputs[o]);
    if (wanted[o] == OPIPE_NONE)
      return opi_fail(s->err, OPIPE_E_NOTFOUND, "the graph has no value '%s'", wish->outputs[o]);
  }
  s->wanted = wanted;
  s->n_wanted = wish->n_outputs;
  return OPIPE_OK;
}

static opipe_status slice(slicer *s, const opi_token_wish *wish, opi_token_slice *out) {
  OPI_TRY(find_wanted(s, wish));
  OPI_TRY(opi_s_open(s));
  opipe_status status = build(s);
  if (status >= 0)
    status = finish(s, out);
  opi_b_close(&s->b);
  return status;
}

opipe_status opi_slice_tokens(const opi_tokens *tokens, const opi_token_wish *wish,
                              const opi_evaluator *evaluator, const opipe_allocator *allocator,
                              opi_token_slice **out_slice, opipe_error *err) {
  slicer s = {.t = tokens,
              .whole = tokens->whole->graph,
              .first = wish->first,
              .length = wish->length,
              .evaluator = evaluator,
              .noun = "slice",
              .refusal = "tokens cannot be sliced",
              .err = err};
  if (wish->first < 0 || wish->length < 1 || wish->length > tokens->n_tokens - wish->first) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "a slice of %" PRId64 " tokens from %" PRId64 " of a sequence of %" PRId64,
                    wish->length, wish->first, tokens->n_tokens);
  }
  opi_token_slice *made = opi_alloc_zero(allocator, 1, sizeof(*made));
  opi_bound *bound = made == NULL ? NULL : opi_alloc_zero(allocator, 1, sizeof(*bound));
  if (bound == NULL) {
    opi_free(allocator, made, sizeof(*made));
    return opi_fail_nomem(err, sizeof(*made) + sizeof(*bound), "a token slice");
  }
  opi_arena_init(&bound->arena, allocator, 0);
  opi_arena_init(&s.scratch, allocator, 0);
  made->bound = bound;
  const opipe_status status = slice(&s, wish, made);
  opi_arena_release(&s.scratch);
  if (status < 0) {
    opi_token_slice_free(made);
    return status;
  }
  *out_slice = made;
  return OPIPE_OK;
}

void opi_token_slice_free(opi_token_slice *slice) {
  if (slice == NULL)
    return;
  const opipe_allocator *allocator = slice->bound->arena.allocator;
  opi_bound_free(slice->bound);
  opi_free(allocator, slice, sizeof(*slice));
}
