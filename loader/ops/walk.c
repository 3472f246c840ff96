/* SPDX-License-Identifier: Apache-2.0 */
/* Walks a file graph in order: each needed node's inputs are looked up, its form is checked against
 * the operator's table, and its lift rule emits canonical nodes.
 *
 * An unsupported node does not end the walk: its outputs are poisoned, its readers skipped, and the
 * cause goes into one report. Nodes that no output needs are never looked at.
 */
#include "loader/ops/walk.h"

#include <inttypes.h>
#include <stdio.h>

#define MOST_WALKED ((uint64_t)1 << 23) /* nodes and values of all bodies, at each inlining */
#define MOST_DEPTH 32u
#define MOST_COMPARED ((size_t)1 << 16) /* bytes of a report that a new cause is looked for in */

void opi_report_add(opi_report *report, const opipe_error *err) {
  const bool looked_at = report->text.n != 0 && report->text.n < MOST_COMPARED;
  if (looked_at && !report->text.failed && strstr(report->text.data, err->message) != NULL)
    return;
  if (report->n++ == 0)
    report->first = *err;
  opi_text_printf(&report->text, "%s\n", err->message);
}

opipe_status opi_frame_open(opi_builder *b, const opi_graph *file, const opi_frame *outer,
                            opi_frame *out_scope, opipe_error *err) {
  uint32_t *values = OPI_ARENA_ARRAY(b->scratch, uint32_t, file->n_values);
  if (values == NULL)
    return opi_fail_nomem(err, (uint64_t)file->n_values * 4, "a scope");
  for (uint32_t v = 0; v < file->n_values; ++v)
    values[v] = OPIPE_NONE;
  *out_scope = (opi_frame){file, values, outer};
  return OPIPE_OK;
}

/* An initializer of a body is one value, however often the body is inlined: what it became before;
 * OPIPE_NONE: nothing yet. It is known by its place in the file, else by its name, which is the
 * model's only one. key [32]: for note_taken. */
static uint32_t find_taken(const opi_builder *b, const opi_value *from, char *key,
                           const char **out_key) {
  uint32_t v = OPIPE_NONE;
  (void)snprintf(key, 32, "@%" PRIu64, from->at);
  *out_key = from->at != 0 ? key : from->name;
  return opi_map_get(b->taken, *out_key, &v) ? v : OPIPE_NONE;
}

/* An initializer enters the bound graph under its name, its data by reference. */
static opipe_status add_initializer(opi_builder *b, const opi_frame *scope, uint32_t file_value,
                                    uint32_t *out_value, opipe_error *err) {
  const opi_value *from = &scope->file->values[file_value];
  uint32_t other = 0;
  if (from->rank < 0 || opi_dtype_bits(from->dtype) == 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "initializer '%s' has type %s", from->name,
                    opi_dtype_name(from->dtype));
  }
  const char *name = opi_map_get(b->names, from->name, &other) ? NULL : from->name;
  const uint32_t v =
      opi_b_borrow(b, name, from->dtype, from->shape, (uint32_t)from->rank, from->data);
  if (v == OPIPE_NONE)
    return opi_fail_nomem(err, sizeof(opi_value), "an initializer");
  opi_value *value = opi_b_value(b, v);
  value->flags |= from->flags & (OPI_VALUE_INITIALIZER | OPI_VALUE_MISSING);
  value->at = from->at;
  const bool single =
      opi_dtype_is_float(from->dtype) && value->n_bytes * 8 == opi_dtype_bits(from->dtype);
  for (uint32_t k = 0; single && k < b->n_keep; ++k) {
    if (strcmp(b->keep[k], from->name) == 0)
      value->flags |= OPI_VALUE_KEPT;
  }
  if (b->kept != NULL && opi_map_get(b->kept, from->name, &other))
    value->flags |= OPI_VALUE_KEPT;
  if (scope->outer == NULL)
    value->source = file_value;
  *out_value = v;
  return OPIPE_OK;
}

static opipe_status take_initializer(opi_builder *b, const opi_frame *scope, uint32_t file_value,
                                     uint32_t *out_value, opipe_error *err) {
  char room[32];
  const char *key = NULL;
  const bool inner = scope->outer != NULL;
  *out_value = inner ? find_taken(b, &scope->file->values[file_value], room, &key) : OPIPE_NONE;
  if (*out_value == OPIPE_NONE) {
    OPI_TRY(add_initializer(b, scope, file_value, out_value, err));
    if (inner)
      OPI_TRY(opi_map_set(b->taken, key, *out_value, err));
  }
  scope->values[file_value] = *out_value;
  return OPIPE_OK;
}

opipe_status opi_frame_value(opi_builder *b, const opi_frame *scope, uint32_t file_value,
                             uint32_t *out_value, opipe_error *err) {
  *out_value = OPIPE_NONE;
  if (file_value == OPIPE_NONE)
    return OPIPE_OK;
  *out_value = scope->values[file_value];
  if (*out_value != OPIPE_NONE)
    return OPIPE_OK;
  const opi_value *from = &scope->file->values[file_value];
  if (from->data != NULL || (from->flags & OPI_VALUE_MISSING))
    return take_initializer(b, scope, file_value, out_value, err);
  return opi_fail(err, OPIPE_E_INVALID, "value '%s' of graph '%s' is read, but nothing makes it",
                  from->name, scope->file->name);
}

/* Marks the nodes that the outputs of a sorted graph need. */
static bool *live_nodes(opi_builder *b, const opi_graph *file) {
  bool *live = OPI_ARENA_ARRAY(b->scratch, bool, file->n_nodes);
  bool *needed = OPI_ARENA_ARRAY(b->scratch, bool, file->n_values);
  if (live == NULL || needed == NULL)
    return NULL;
  for (uint32_t o = 0; o < file->n_outputs; ++o)
    needed[file->outputs[o]] = true;
  if (file->n_outputs == 0) { /* no output decides what is needed: every node is looked at */
    for (uint32_t n = 0; n < file->n_nodes; ++n)
      live[n] = true;
  }
  for (uint32_t n = file->n_nodes; n-- > 0;) {
    const opi_node *node = &file->nodes[n];
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (node->out[o] != OPIPE_NONE && needed[node->out[o]])
        live[n] = true;
    }
    if (!live[n])
      continue;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] != OPIPE_NONE)
        needed[node->in[i]] = true;
    }
    for (uint32_t a = 0; a < node->n_attrs; ++a) {
      if (node->attrs[a].kind != OPI_ATTR_GRAPH)
        continue;
      const opi_graph *body = node->attrs[a].data;
      for (uint32_t c = 0; c < body->n_captures; ++c)
        needed[body->capture_outer[c]] = true;
    }
  }
  return live;
}

/* Domains that ONNX Runtime's optimiser uses for layouts of the processor at hand. */
static const char *advice_on(const char *domain) {
  const bool of_one =
      strcmp(domain, "com.microsoft.nchwc") == 0 || strcmp(domain, "com.ms.internal.nhwc") == 0;
  return of_one ? ": ONNX Runtime wrote it for one kind of processor; its optimisation level "
                  "'extended' keeps operators that run anywhere"
                : "";
}

static opipe_status check_form(const opi_builder *b, const opi_node *node, const opi_op **out_op,
                               opipe_error *err) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  const char *domain = node->domain[0] == '\0' ? "ai.onnx" : node->domain;
  *out_op = op;
  if (op == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "node '%s': operator %s of domain %s, version %" PRIu32 ", is not known%s",
                    node->name, node->op, domain, node->version, advice_on(node->domain));
  }
  if (node->version < op->first || node->version > op->last) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "node '%s': operator %s of domain %s has version %" PRIu32
                    ", known are %u to %u",
                    node->name, node->op, domain, node->version, op->first, op->last);
  }
  OPI_TRY(opi_check_attrs(op->attrs, node, err));
  return opi_check_arity(b, op, node, err);
}

/* Sequences go where sequences are taken. */
static opipe_status check_sequences(const opi_builder *b, const opi_op *op, const opi_node *node,
                                    opipe_error *err) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint64_t bit = UINT64_C(1) << (i < 63 ? i : 63);
    if (opi_is_sequence(node->in[i]) && (op->sequences & bit) == 0)
      return opi_node_fail(b, node, err, OPIPE_E_UNSUPPORTED, "input %" PRIu32 " is a sequence", i);
  }
  return OPIPE_OK;
}

/* Lifts one node whose inputs are looked up already. */
static opipe_status lift_node(opi_builder *b, opi_frame *scope, const opi_node *node,
                              opipe_error *err) {
  const opi_op *op = NULL;
  const opi_node *outer_origin = b->origin;
  opi_node origin = *node;
  OPI_TRY(check_form(b, node, &op, err));
  OPI_TRY(check_sequences(b, op, node, err));
  if (node->name[0] == '\0' && opi_node_out(node, 0) != OPIPE_NONE)
    origin.name = scope->file->values[node->out[0]].name; /* without a name, by what it makes */
  b->origin = &origin;
  b->n_emitted = 0;
  b->scope = scope;
  const opipe_status status = op->lift != NULL ? op->lift(b, node, err)
                                               : opi_b_lift(b, node, op->name, node->in, node->n_in,
                                                            node->attrs, node->n_attrs, err);
  b->origin = outer_origin;
  b->scope = scope;
  return status;
}

/* Looks the inputs up; *out_poisoned when one of them could not be made. */
static opipe_status map_inputs(opi_builder *b, const opi_frame *scope, const opi_node *from,
                               opi_node *node, bool *out_poisoned, opipe_error *err) {
  uint32_t *in = OPI_ARENA_ARRAY(b->scratch, uint32_t, from->n_in);
  if (in == NULL)
    return opi_fail_nomem(err, (uint64_t)from->n_in * 4, "a node's inputs");
  *node = *from;
  node->in = in;
  *out_poisoned = false;
  for (uint32_t i = 0; i < from->n_in; ++i) {
    OPI_TRY(opi_frame_value(b, scope, from->in[i], &in[i], err));
    if (in[i] == OPI_POISONED)
      *out_poisoned = true;
  }
  while (node->n_in > 0 && in[node->n_in - 1] == OPIPE_NONE)
    --node->n_in;
  return OPIPE_OK;
}

static void poison_outputs(const opi_frame *scope, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] != OPIPE_NONE)
      scope->values[node->out[o]] = OPI_POISONED;
  }
}

/* A node behind an unsupported one is not looked at closely; its operator belongs in the report. */
static void note_form(opi_builder *b, const opi_node *from) {
  const opi_op *op = NULL;
  opipe_error reason = OPIPE_ERROR_INIT;
  if (b->report != NULL && check_form(b, from, &op, &reason) == OPIPE_E_UNSUPPORTED)
    opi_report_add(b->report, &reason);
}

static opipe_status walk_node(opi_builder *b, opi_frame *scope, uint32_t index, opipe_error *err) {
  const opi_node *from = &scope->file->nodes[index];
  opi_node node;
  bool poisoned = false;
  if (scope->outer == NULL) {
    b->origin_index = from->source;
    b->origin_stage = from->stage;
  }
  opipe_error reason = OPIPE_ERROR_INIT;
  opipe_status status = map_inputs(b, scope, from, &node, &poisoned, &reason);
  if (status >= 0 && poisoned) {
    note_form(b, from);
    poison_outputs(scope, from);
    return OPIPE_OK;
  }
  if (status >= 0)
    status = lift_node(b, scope, &node, &reason);
  if (status >= 0)
    return OPIPE_OK;
  if (status == OPIPE_E_UNSUPPORTED && b->report != NULL) {
    opi_report_add(b->report, &reason);
    poison_outputs(scope, from);
    return OPIPE_OK;
  }
  if (err != NULL)
    *err = reason;
  return status;
}

opipe_status opi_walk(opi_builder *b, opi_frame *scope, opipe_error *err) {
  b->n_walked += (uint64_t)scope->file->n_nodes + scope->file->n_values;
  if (b->n_walked > MOST_WALKED && b->depth > 0) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "bodies hold more than %" PRIu64 " nodes and values inlined", MOST_WALKED);
  }
  const bool *live = live_nodes(b, scope->file);
  if (live == NULL)
    return opi_fail_nomem(err, scope->file->n_nodes, "marking nodes");
  for (uint32_t n = 0; n < scope->file->n_nodes; ++n) {
    if (live[n])
      OPI_TRY(walk_node(b, scope, n, err));
  }
  return OPIPE_OK;
}

/* Maps the values that the body captures, if they exist. */
static opipe_status map_captures(opi_builder *b, const opi_frame *outer, const opi_frame *scope,
                                 opipe_error *err) {
  const opi_graph *body = scope->file;
  for (uint32_t c = 0; c < body->n_captures; ++c) {
    OPI_TRY(opi_frame_value(b, outer, body->capture_outer[c],
                            &scope->values[body->capture_inner[c]], err));
  }
  return OPIPE_OK;
}

opipe_status opi_b_inline(opi_builder *b, const opi_graph *body, const uint32_t *feeds,
                          uint32_t n_feeds, uint32_t *out_values, opipe_error *err) {
  opi_frame scope;
  opi_frame *outer = b->scope;
  const opi_node *origin = b->origin;
  if (b->depth >= MOST_DEPTH)
    return opi_fail(err, OPIPE_E_LIMIT, "bodies are nested deeper than %u", MOST_DEPTH);
  if (n_feeds != body->n_inputs) {
    return opi_fail(err, OPIPE_E_INVALID, "body '%s' has %" PRIu32 " inputs, %" PRIu32 " are given",
                    body->name, body->n_inputs, n_feeds);
  }
  OPI_TRY(opi_frame_open(b, body, outer, &scope, err));
  OPI_TRY(map_captures(b, outer, &scope, err));
  for (uint32_t i = 0; i < n_feeds; ++i)
    scope.values[body->inputs[i]] = feeds[i];
  ++b->depth;
  opipe_status status = opi_walk(b, &scope, err);
  for (uint32_t o = 0; o < body->n_outputs && status >= 0; ++o)
    status = opi_frame_value(b, &scope, body->outputs[o], &out_values[o], err);
  --b->depth;
  b->scope = outer;
  b->origin = origin;
  return status;
}
