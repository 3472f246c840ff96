/* SPDX-License-Identifier: Apache-2.0 */
/* Local functions, expanded where they are called: a body's nodes and values get the call's name as
 * prefix, its outputs are the call's own values, its attribute references are resolved. A function
 * that calls itself, however indirectly, is refused with the chain; nesting and the number of nodes
 * are bounded, as bodies multiply.
 */
#include "loader/wire/wire.h"

#include <string.h>

static opipe_status make_key(opi_load *load, const char *domain, const char *name,
                             const char *overload, opipe_error *err) {
  const char *plain = opi_wire_domain(domain);
  load->key.n = 0;
  opi_text_printf(&load->key, "%zu.%s.%zu.%s.%s", strlen(plain), plain, strlen(opi_wire_text(name)),
                  opi_wire_text(name), opi_wire_text(overload));
  return load->key.failed ? opi_fail_nomem(err, 64, "a function's key") : OPIPE_OK;
}

opipe_status opi_functions_index(opi_load *load, opipe_error *err) {
  const OpiOnnx__ModelProto *model = load->message;
  if (model->n_functions == 0)
    return OPIPE_OK;
  OPI_TRY(opi_map_create(load->allocator, &load->functions, err));
  for (size_t i = 0; i < model->n_functions; ++i) {
    const OpiOnnx__FunctionProto *f = model->functions[i];
    uint32_t before = 0;
    if (opi_wire_text(f->name)[0] == '\0')
      return opi_fail(err, OPIPE_E_INVALID, "function %zu has no name", i);
    if (f->n_attribute_proto > OPI_WIRE_MAX_ATTRIBUTES) {
      return opi_fail(err, OPIPE_E_LIMIT, "function '%.200s' has %zu attributes; the limit is %d",
                      f->name, f->n_attribute_proto, OPI_WIRE_MAX_ATTRIBUTES);
    }
    OPI_TRY(make_key(load, f->domain, f->name, f->overload, err));
    if (opi_map_get(load->functions, load->key.data, &before)) {
      return opi_fail(err, OPIPE_E_INVALID, "function '%.200s' of domain '%.100s' is defined twice",
                      f->name, opi_wire_domain(f->domain));
    }
    OPI_TRY(opi_map_set(load->functions, load->key.data, (uint32_t)i, err));
  }
  return OPIPE_OK;
}

opipe_status opi_functions_find(opi_load *load, const OpiOnnx__NodeProto *node,
                                const OpiOnnx__FunctionProto **out_function, opipe_error *err) {
  uint32_t index = 0;
  *out_function = NULL;
  if (load->functions == NULL)
    return OPIPE_OK;
  OPI_TRY(make_key(load, node->domain, node->op_type, node->overload, err));
  if (opi_map_get(load->functions, load->key.data, &index))
    *out_function = load->message->functions[index];
  return OPIPE_OK;
}

static opipe_status check_cycle(opi_load *load, const opi_call *outer,
                                const OpiOnnx__FunctionProto *function, opipe_error *err) {
  const opi_call *at = outer;
  while (at != NULL && at->function != function)
    at = at->outer;
  if (at == NULL)
    return OPIPE_OK;
  opi_text chain;
  opi_text_init(&chain, load->allocator);
  opi_text_printf(&chain, "'%.60s'", function->name);
  for (const opi_call *c = outer; c != at && chain.n < 300; c = c->outer)
    opi_text_printf(&chain, " called by '%.60s'", c->function->name);
  opi_text_printf(&chain, " called by '%.60s'", function->name);
  const opipe_status status =
      opi_fail(err, OPIPE_E_INVALID, "local functions call each other in a cycle: %s",
               chain.failed ? function->name : chain.data);
  opi_text_release(&chain);
  return status;
}

/* Formal inputs stand for the call's values. */
static opipe_status bind_inputs(opi_scope *body, opi_scope *caller, const opi_call_site *site,
                                opipe_error *err) {
  const OpiOnnx__FunctionProto *function = site->function;
  if (site->node->n_input > function->n_input) {
    return opi_fail(err, OPIPE_E_INVALID, "passes %zu inputs to function '%.100s', which takes %zu",
                    site->node->n_input, function->name, function->n_input);
  }
  for (size_t i = 0; i < function->n_input; ++i) {
    uint32_t value = OPIPE_NONE, before = 0;
    if (opi_map_get(body->names, function->input[i], &before)) {
      return opi_fail(err, OPIPE_E_INVALID, "function '%.100s' has two inputs '%.100s'",
                      function->name, function->input[i]);
    }
    const char *name = i < site->node->n_input ? site->node->input[i] : "";
    const opipe_status status = opi_scope_find(caller, name, &value, err);
    if (status == OPIPE_E_NOTFOUND)
      return opi_fail(err, OPIPE_E_INVALID, "reads '%.200s', which nothing makes", name);
    if (status < 0)
      return status;
    OPI_TRY(opi_map_set(body->names, function->input[i], value, err));
  }
  return OPIPE_OK;
}

/* Formal outputs are the call's values, as far as the call names them. */
static opipe_status promise_outputs(opi_scope *body, opi_scope *caller, const opi_call_site *site,
                                    opipe_error *err) {
  const OpiOnnx__FunctionProto *function = site->function;
  if (site->node->n_output > function->n_output) {
    return opi_fail(err, OPIPE_E_INVALID, "takes %zu outputs from function '%.100s', which has %zu",
                    site->node->n_output, function->name, function->n_output);
  }
  OPI_TRY(opi_map_create(body->load->allocator, &body->promised, err));
  for (size_t i = 0; i < site->node->n_output; ++i) {
    uint32_t value = OPIPE_NONE, before = 0;
    if (site->node->output[i][0] == '\0')
      continue;
    if (opi_map_get(body->promised, function->output[i], &before)) {
      return opi_fail(err, OPIPE_E_INVALID, "function '%.100s' has two outputs '%.100s'",
                      function->name, function->output[i]);
    }
    OPI_TRY(opi_scope_find(caller, site->node->output[i], &value, err));
    OPI_TRY(opi_map_set(body->promised, function->output[i], value, err));
  }
  return OPIPE_OK;
}

/* An output that no node of the body makes: an input handed through, else an error. */
static opipe_status hand_through(opi_scope *body, const opi_call_site *site, const char *formal,
                                 uint32_t value, opipe_error *err) {
  uint32_t from = OPIPE_NONE, version = 0;
  if (!opi_map_get(body->names, formal, &from) || from == OPIPE_NONE) {
    return opi_fail(err, OPIPE_E_INVALID, "function '%.100s' does not make its output '%.100s'",
                    site->function->name, formal);
  }
  const char *name = NULL;
  OPI_TRY(opi_scope_unique(body->load, body->load->node_names, body->prefix, formal, &name, err));
  OPI_TRY(opi_wire_version(body, "", "Identity", &version, err));
  opi_node *node = opi_graph_add_node(body->graph, name, "Identity", "", 1, 1, 0);
  if (node == NULL)
    return opi_fail_nomem(err, sizeof(*node), "a node");
  node->in[0] = from;
  node->out[0] = value;
  node->version = version;
  node->source = body->source;
  node->stage = body->stage;
  body->graph->values[value].producer = body->graph->n_nodes - 1;
  return OPIPE_OK;
}

static opipe_status fill_body(opi_scope *body, const opi_call_site *site, opipe_error *err) {
  const OpiOnnx__FunctionProto *function = site->function;
  for (size_t i = 0; i < function->n_node; ++i)
    OPI_TRY(opi_wire_define_outputs(body, function->node[i], err));
  for (size_t i = 0; i < function->n_node; ++i)
    OPI_TRY(opi_wire_node(body, function->node[i], i, err));
  for (size_t i = 0; i < site->node->n_output; ++i) {
    uint32_t value = OPIPE_NONE;
    if (!opi_map_get(body->promised, function->output[i], &value))
      continue;
    OPI_TRY(hand_through(body, site, function->output[i], value, err));
  }
  return OPIPE_OK;
}

opipe_status opi_functions_expand(opi_scope *scope, const opi_call_site *site, opipe_error *err) {
  opi_load *load = scope->load;
  OPI_TRY(check_cycle(load, scope->call, site->function, err));
  const opi_call call = {site->function, site->attrs, site->n_attrs, scope->call};
  opi_scope body;
  opipe_status status = opi_scope_open(&body, load, scope->graph, NULL, err);
  if (status < 0)
    goto done;
  body.call = &call;
  body.source = site->source;
  body.stage = site->stage;
  body.prefix = opi_arena_printf(load->arena, "%s/", site->name);
  if (body.prefix == NULL) {
    status = opi_fail_nomem(err, strlen(site->name) + 2, "a name");
    goto done;
  }
  status = bind_inputs(&body, scope, site, err);
  if (status < 0)
    goto done;
  status = promise_outputs(&body, scope, site, err);
  if (status < 0)
    goto done;
  status = fill_body(&body, site, err);
done:
  opi_scope_close(&body);
  return status;
}
