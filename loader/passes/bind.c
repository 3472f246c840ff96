/* SPDX-License-Identifier: Apache-2.0 */
/* Binding: file graph + numbers for its dimensions -> bound graph.
 *
 *   solve dims -> inputs (or pinned constants) -> walk (lift, infer, fold) -> outputs -> dead ->
 * fuse -> dead -> copy (leaves the garbage of folding behind) -> verify
 *
 * With OPI_BIND_DEFAULTS a length that only fits as the sum of two others (a mask over past and new
 * tokens) is found by trying: the first choice that binds is taken.
 */
#include "loader/passes/private.h"
#include "loader/passes/row_model.h"

#include <inttypes.h>

#include "loader/base/nearest.h"
#include "loader/passes/keep.h"

/* One bind in the making. */
typedef struct binding {
  const opi_model *model;
  const opi_bind_options *options;
  const opi_dim_binding *dims;
  uint32_t n_dims;
  opi_arena scratch; /* freed with the builder; holds the graph under construction too */
  opi_builder builder;
  opi_frame scope;
  opi_report report;
  opi_map *pin_names, *shape_names, *dim_names; /* indices into the options and dims */
} binding;

static const opi_pin *find_pin(const binding *bd, const char *input) {
  uint32_t i = 0;
  return opi_map_get(bd->pin_names, input, &i) ? &bd->options->pins[i] : NULL;
}

static const opi_input_shape *find_shape(const binding *bd, const char *input) {
  uint32_t i = 0;
  return opi_map_get(bd->shape_names, input, &i) ? &bd->options->shapes[i] : NULL;
}

static bool find_dim(const binding *bd, const char *name, int64_t *out_value) {
  uint32_t i = 0;
  if (!opi_map_get(bd->dim_names, name, &i))
    return false;
  *out_value = bd->dims[i].value;
  return true;
}

/* Pinned or given a shape, and no input of the model. */
static opipe_status no_input(const opi_graph *graph, const char *name, const char *what,
                             opipe_error *err) {
  char meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = strlen(name)};
  for (uint32_t i = 0; i < graph->n_inputs; ++i)
    opi_nearest_look(&nearest, graph->values[graph->inputs[i]].name);
  return opi_fail(err, OPIPE_E_NOTFOUND, "the model has no input '%s'%s%s", name, what,
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

static opipe_status check_names(const opi_graph *graph, const opi_bind_options *options,
                                const opi_map *inputs, opipe_error *err) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < options->n_pins; ++i) {
    if (!opi_map_get(inputs, options->pins[i].input, &found))
      return no_input(graph, options->pins[i].input, " to pin", err);
  }
  for (uint32_t i = 0; i < options->n_shapes; ++i) {
    if (!opi_map_get(inputs, options->shapes[i].input, &found))
      return no_input(graph, options->shapes[i].input, "", err);
  }
  return OPIPE_OK;
}

static opipe_status check_options(const opi_model *model, const opi_bind_options *options,
                                  opipe_error *err) {
  const opi_graph *graph = model->graph;
  opi_map *inputs = NULL;
  if (options->n_pins == 0 && options->n_shapes == 0)
    return OPIPE_OK;
  OPI_TRY(opi_map_create(options->allocator, &inputs, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < graph->n_inputs && status >= 0; ++i)
    status = opi_map_set(inputs, graph->values[graph->inputs[i]].name, i, err);
  if (status >= 0)
    status = check_names(graph, options, inputs, err);
  opi_map_free(inputs);
  return status;
}

/* A pinned input is a constant of its own name. */
static opipe_status add_pinned(binding *bd, uint32_t file_value, const opi_pin *pin,
                               opipe_error *err) {
  const opi_value *from = &bd->scope.file->values[file_value];
  char a[128], b[128];
  bool fits = from->rank < 0 || (uint32_t)from->rank == pin->rank;
  uint64_t n_bytes = 0;
  for (uint32_t d = 0; fits && from->rank >= 0 && d < pin->rank; ++d)
    fits = from->shape[d] < 0 || from->shape[d] == pin->shape[d];
  if (!fits) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' has shape %s in the file, the pin has %s",
                    from->name, opi_shape_text(a, sizeof(a), from->shape, (uint32_t)from->rank),
                    opi_shape_text(b, sizeof(b), pin->shape, pin->rank));
  }
  if (from->dtype != OPIPE_UNDEFINED && from->dtype != pin->dtype) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' has type %s, the pin has %s", from->name,
                    opi_dtype_name(from->dtype), opi_dtype_name(pin->dtype));
  }
  if (pin->rank > OPIPE_MAX_RANK ||
      !opi_tensor_bytes(pin->dtype, pin->shape, pin->rank, &n_bytes) || pin->data == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "the pin of input '%s' is not a tensor", from->name);
  const void *data = opi_arena_copy(&bd->scratch, pin->data, n_bytes);
  const uint32_t v = data == NULL ? OPIPE_NONE
                                  : opi_b_borrow(&bd->builder, from->name, pin->dtype, pin->shape,
                                                 pin->rank, data);
  if (v == OPIPE_NONE)
    return opi_fail_nomem(err, n_bytes, "a pinned input");
  opi_b_value(&bd->builder, v)->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
  opi_b_value(&bd->builder, v)->source = file_value;
  bd->scope.values[file_value] = v;
  return OPIPE_OK;
}

static opipe_status input_shape(binding *bd, const opi_value *from, int64_t *shape,
                                uint32_t *out_rank, opipe_error *err) {
  const opi_input_shape *given = find_shape(bd, from->name);
  if (from->rank < 0 && given != NULL) {
    *out_rank = given->rank;
    memcpy(shape, given->shape, given->rank * sizeof(int64_t));
    return OPIPE_OK;
  }
  if (from->rank < 0 || from->rank > OPIPE_MAX_RANK) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' has rank %" PRId32 " in the file", from->name,
                    from->rank);
  }
  *out_rank = (uint32_t)from->rank;
  for (uint32_t d = 0; d < *out_rank; ++d) {
    shape[d] = from->shape[d];
    if (shape[d] >= 0)
      continue;
    const char *key = opi_dim_key(&bd->scratch, from, d);
    const char *place = opi_dim_place(&bd->scratch, from, d);
    if (key == NULL || place == NULL)
      return opi_fail_nomem(err, 32, "a dimension's name");
    if (find_dim(bd, place, &shape[d]))
      continue;
    if (!find_dim(bd, key, &shape[d])) {
      return opi_fail(err, OPIPE_E_INTERNAL, "dimension %" PRIu32 " of input '%s' has no number", d,
                      from->name);
    }
  }
  return OPIPE_OK;
}

static opipe_status add_input(binding *bd, uint32_t file_value, opipe_error *err) {
  const opi_value *from = &bd->scope.file->values[file_value];
  int64_t shape[OPIPE_MAX_RANK] = {0};
  uint32_t rank = 0;
  char text[128];
  const opi_pin *pin = find_pin(bd, from->name);
  if (pin != NULL)
    return add_pinned(bd, file_value, pin, err);
  OPI_TRY(input_shape(bd, from, shape, &rank, err));
  const uint32_t v =
      opi_graph_add_value(bd->builder.graph, from->name, from->dtype, shape, (int32_t)rank);
  if (v == OPIPE_NONE || !opi_graph_add_input(bd->builder.graph, v))
    return opi_fail_nomem(err, sizeof(opi_value), "an input");
  opi_value *value = opi_b_value(&bd->builder, v);
  value->source = file_value;
  if (opi_dtype_bits(from->dtype) == 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "input '%s' has type %s", from->name,
                    opi_dtype_name(from->dtype));
  }
  if (!opi_tensor_bytes(value->dtype, shape, rank, &value->n_bytes)) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' of shape %s has no valid size", from->name,
                    opi_shape_text(text, sizeof(text), shape, rank));
  }
  bd->scope.values[file_value] = v;
  return opi_map_keep(bd->builder.names, from->name, v, err);
}

/* A value that is an input, a constant or an output already leaves through a copy. */
static opipe_status add_copied_output(binding *bd, uint32_t v, uint32_t file_value,
                                      opipe_error *err) {
  opi_builder *b = &bd->builder;
  uint32_t other = 0, copy = OPIPE_NONE;
  const char *name = bd->scope.file->values[file_value].name;
  if (opi_map_get(b->names, name, &other)) {
    name = opi_arena_printf(b->graph->arena, "%s_output", name);
    if (name != NULL && opi_map_get(b->names, name, &other))
      name = opi_b_name(b);
    if (name == NULL)
      return opi_fail_nomem(err, 32, "an output's name");
  }
  b->origin_index = OPIPE_NONE;
  b->origin_stage = -1;
  const opi_emit emit = {.op = "Identity", .in = &v, .n_in = 1, .n_out = 1, .out_names = &name};
  OPI_TRY(opi_b_emit_kept(b, &emit, &copy, err));
  opi_b_value(b, copy)->source = file_value;
  return opi_graph_add_output(b->graph, copy) ? OPIPE_OK
                                              : opi_fail_nomem(err, sizeof(uint32_t), "an output");
}

static opipe_status note_alias(opi_builder *b, const char *name, uint32_t value, opipe_error *err) {
  if (!opi_arena_grow(b->graph->arena, (void **)&b->aliases, &b->room_aliases, b->n_aliases + 1,
                      sizeof(opi_alias)))
    return opi_fail_nomem(err, sizeof(opi_alias), "a second name");
  b->aliases[b->n_aliases++] = (opi_alias){name, value};
  return OPIPE_OK;
}

static opipe_status add_output(binding *bd, uint32_t file_value, opipe_error *err) {
  opi_builder *b = &bd->builder;
  const char *name = bd->scope.file->values[file_value].name;
  uint32_t v = OPIPE_NONE;
  OPI_TRY(opi_frame_value(b, &bd->scope, file_value, &v, err));
  if (v == OPI_POISONED)
    return OPIPE_OK;
  if (opi_is_sequence(v))
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "graph output '%s' is a sequence", name);
  opi_value *value = opi_b_value(b, v);
  if (value->producer == OPIPE_NONE || (value->flags & OPI_VALUE_OUTPUT))
    return add_copied_output(bd, v, file_value, err);
  if (strcmp(value->name, name) != 0) {
    const char *old = value->name;
    opi_map_remove(b->names, old);
    value->name = name;
    OPI_TRY(opi_map_keep(b->names, name, v, err));
    if (value->source != OPIPE_NONE)
      OPI_TRY(note_alias(b, old, v, err));
  }
  opi_b_value(b, v)->source = file_value;
  return opi_graph_add_output(b->graph, v) ? OPIPE_OK
                                           : opi_fail_nomem(err, sizeof(uint32_t), "an output");
}

static uint32_t find_named(const opi_graph *graph, const opi_alias *aliases, uint32_t n_aliases,
                           const char *name) {
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (strcmp(graph->values[v].name, name) == 0)
      return v;
  }
  for (uint32_t a = 0; a < n_aliases; ++a) {
    if (strcmp(aliases[a].name, name) == 0)
      return aliases[a].value;
  }
  return OPIPE_NONE;
}

static opipe_status no_tensor(const binding *bd, const char *name, opipe_error *err) {
  char meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = strlen(name)};
  for (uint32_t v = 0; v < bd->scope.file->n_values; ++v)
    opi_nearest_look(&nearest, bd->scope.file->values[v].name);
  return opi_fail(err, OPIPE_E_NOTFOUND, "the model has no tensor '%s' to cut at%s%s", name,
                  bd->builder.keep_parameters ? " or to train" : "",
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

/* The name that a module gave an initializer which the file calls otherwise. */
static bool is_origin(const opi_bound *bound, const char *name) {
  bool found = false;
  for (uint32_t i = 0; i < bound->n_origins && !found; ++i)
    found = bound->origins[i].name != NULL && strcmp(bound->origins[i].name, name) == 0;
  return found;
}

static opipe_status mark_barriers(binding *bd, const opi_bound *bound, opipe_error *err) {
  const opi_builder *b = &bd->builder;
  for (uint32_t i = 0; i < bd->options->n_barriers; ++i) {
    const char *name = bd->options->barriers[i];
    const uint32_t v = find_named(b->graph, b->aliases, b->n_aliases, name);
    if (v != OPIPE_NONE && b->graph->values[v].data == NULL) {
      b->graph->values[v].flags |= OPI_VALUE_BARRIER;
      continue;
    }
    if (is_origin(bound, name))
      continue;
    if (find_named(bd->scope.file, NULL, 0, name) == OPIPE_NONE)
      return no_tensor(bd, name, err);
    /* Known once the dimensions are bound, or not needed: there is nothing to send. */
    opi_log(
        bd->options->logger, OPIPE_LOG_INFO,
        "tensor '%s' is a constant or not needed once the dimensions are bound: every stage has it",
        name);
  }
  return OPIPE_OK;
}

/* When the first cause is an input whose value is needed, says which: its index in the model. */
static void name_input(const opi_graph *file, const opipe_error *first, opipe_error *err) {
  if (err == NULL || first->domain != OPIPE_DOMAIN_INPUT)
    return;
  for (uint32_t i = 0; i < file->n_inputs; ++i) {
    if (file->inputs[i] != (uint32_t)first->native)
      continue;
    err->domain = OPIPE_DOMAIN_INPUT;
    err->native = (int32_t)i;
  }
}

/* The causes behind the first, as warnings, where the error has no room for them. */
static void log_rest(const binding *bd) {
  const opi_report *report = &bd->report;
  const char *at = report->text.failed ? NULL : strchr(report->text.data, '\n');
  for (; at != NULL && at[1] != '\0'; at = strchr(at + 1, '\n')) {
    const int n = (int)strcspn(at + 1, "\n");
    opi_log(bd->options->logger, OPIPE_LOG_WARN, "unsupported: %.*s", n, at + 1);
  }
}

/* The report as one error: every cause once, or the first and how many there are. Where an input's
 * value would help, the caller may have it: nothing is logged then. */
static opipe_status finish_report(binding *bd, opipe_error *err) {
  const opi_report *report = &bd->report;
  if (report->n == 0)
    return OPIPE_OK;
  if (bd->options->report != NULL)
    OPI_TRY(opi_text_write(&report->text, bd->options->report, bd->options->report_ctx, err));
  const bool fits =
      !report->text.failed && report->text.n + sizeof "4294967295 nodes are not supported: " <=
                                  sizeof report->first.message;
  if (report->n == 1) {
    (void)opi_fail(err, OPIPE_E_UNSUPPORTED, "%s", report->first.message);
  } else if (fits) {
    (void)opi_fail(err, OPIPE_E_UNSUPPORTED, "%" PRIu32 " nodes are not supported: %.*s", report->n,
                   (int)report->text.n - 1, report->text.data);
  } else {
    (void)opi_fail(err, OPIPE_E_UNSUPPORTED, "%" PRIu32 " nodes are not supported, the first: %s",
                   report->n, report->first.message);
  }
  name_input(bd->model->graph, &report->first, err);
  if (!fits && report->first.domain != OPIPE_DOMAIN_INPUT)
    log_rest(bd);
  return OPIPE_E_UNSUPPORTED;
}

static opipe_status build(binding *bd, opipe_error *err) {
  const opi_graph *file = bd->model->graph;
  for (uint32_t i = 0; i < file->n_inputs; ++i)
    OPI_TRY(add_input(bd, file->inputs[i], err));
  bd->builder.scope = &bd->scope;
  OPI_TRY(opi_walk(&bd->builder, &bd->scope, err));
  bd->builder.origin = NULL;
  for (uint32_t o = 0; o < file->n_outputs; ++o)
    OPI_TRY(add_output(bd, file->outputs[o], err));
  OPI_TRY(finish_report(bd, err));
  if (bd->options->flags & OPI_BIND_NO_FUSE)
    bd->builder.unpacked.n = 0; /* fusions alone ask for codes that were unpacked */
  return opi_pass_dead(&bd->builder, err);
}

static opipe_status copy_dims(const binding *bd, opi_bound *bound, opipe_error *err) {
  bound->dims = OPI_ARENA_ARRAY(&bound->arena, opi_dim_binding, bd->n_dims);
  if (bound->dims == NULL)
    return opi_fail_nomem(err, bd->n_dims * sizeof(*bd->dims), "dimensions");
  for (uint32_t d = 0; d < bd->n_dims; ++d) {
    bound->dims[d].name = opi_arena_strdup(&bound->arena, bd->dims[d].name);
    bound->dims[d].value = bd->dims[d].value;
    if (bound->dims[d].name == NULL)
      return opi_fail_nomem(err, 32, "a dimension's name");
  }
  bound->n_dims = bd->n_dims;
  return OPIPE_OK;
}

static opipe_status copy_aliases(const binding *bd, opi_bound *bound, opipe_error *err) {
  const opi_builder *b = &bd->builder;
  bound->aliases = OPI_ARENA_ARRAY(&bound->arena, opi_alias, b->n_aliases);
  if (bound->aliases == NULL)
    return opi_fail_nomem(err, b->n_aliases * sizeof(opi_alias), "second names");
  for (uint32_t a = 0; a < b->n_aliases; ++a) {
    if (b->aliases[a].value == OPIPE_NONE)
      continue;
    opi_alias *to = &bound->aliases[bound->n_aliases++];
    to->value = b->aliases[a].value;
    to->name = opi_arena_strdup(&bound->arena, b->aliases[a].name);
    if (to->name == NULL)
      return opi_fail_nomem(err, 32, "a second name");
  }
  return OPIPE_OK;
}

static opipe_status finish(binding *bd, opi_bound *bound, opipe_error *err) {
  if (!(bd->options->flags & OPI_BIND_NO_FUSE)) {
    OPI_TRY(opi_pass_fuse(&bd->builder, bound->patterns, err));
    bd->builder.unpacked.n = 0;
    OPI_TRY(opi_pass_dead(&bd->builder, err));
  }
  if (bd->builder.noise.bits != 0)
    OPI_TRY(opi_pass_noise(&bd->builder, err));
  if (bd->builder.keep_parameters && (bd->options->flags & OPI_BIND_KEEP_TYPES) == 0)
    OPI_TRY(opi_pass_widen(&bd->builder, bd->model, &bound->arena, err));
  OPI_TRY(opi_graph_copy(bd->builder.graph, &bound->arena, &bound->graph, err));
  OPI_TRY(copy_dims(bd, bound, err));
  OPI_TRY(copy_aliases(bd, bound, err));
  bound->n_file_nodes = bd->model->n_file_nodes;
  OPI_TRY(opi_index_limits(bound->graph, &bound->arena, &bound->index_limits, err));
  return opi_graph_verify(bound->graph, err);
}

static opipe_status open_binding(binding *bd, opipe_error *err) {
  const opi_bind_options *options = bd->options;
  const opi_graph *file = bd->model->graph;
  opi_graph *graph = opi_graph_new(&bd->scratch, file->name);
  if (graph == NULL || !opi_graph_reserve(graph, file->n_values, file->n_nodes))
    return opi_fail_nomem(err, sizeof(*graph), "a graph");
  OPI_TRY(opi_map_names(options->allocator, options->pins, options->n_pins, sizeof(opi_pin),
                        &bd->pin_names, err));
  OPI_TRY(opi_map_names(options->allocator, options->shapes, options->n_shapes,
                        sizeof(opi_input_shape), &bd->shape_names, err));
  OPI_TRY(opi_map_names(options->allocator, bd->dims, bd->n_dims, sizeof(opi_dim_binding),
                        &bd->dim_names, err));
  OPI_TRY(opi_b_open(&bd->builder, graph, &bd->scratch, options->allocator, err));
  bd->builder.evaluator = options->evaluator;
  bd->builder.logger = options->logger;
  bd->builder.dropout = options->dropout;
  bd->builder.dropout_ratio = options->dropout_ratio;
  bd->builder.noise.bits = options->flags >> 8 & 31u;
  bd->builder.noise.pattern = options->flags >> 13 & 7u;
  bd->builder.appends =
      (options->flags & (OPI_BIND_NO_FUSE | OPI_BIND_KEEP_PARAMETERS | OPI_BIND_NO_APPEND)) == 0;
  bd->builder.keep_parameters = (options->flags & OPI_BIND_KEEP_PARAMETERS) != 0;
  bd->builder.keep = options->keep;
  bd->builder.n_keep = bd->builder.keep_parameters ? options->n_keep : 0;
  if (bd->builder.keep_parameters) {
    OPI_TRY(opi_map_create(options->allocator, &bd->builder.kept, err));
    OPI_TRY(opi_keep_scalars(file, &bd->scratch, bd->builder.kept, err));
    OPI_TRY(opi_map_create(options->allocator, &bd->builder.merged, err));
    OPI_TRY(opi_find_merged(file, &bd->scratch, bd->builder.merged, err));
  }
  bd->builder.report = &bd->report;
  return opi_frame_open(&bd->builder, file, NULL, &bd->scope, err);
}

opipe_status opi_bind_solved(const opi_model *model, const opi_bind_options *options,
                             const opi_dim_binding *dims, uint32_t n_dims, opi_bound **out_bound,
                             opi_needed *out_needed, opipe_error *err) {
  binding bd = {.model = model, .options = options, .dims = dims, .n_dims = n_dims};
  opi_bound *bound = opi_alloc_zero(options->allocator, 1, sizeof(*bound));
  if (bound == NULL)
    return opi_fail_nomem(err, sizeof(*bound), "a bound graph");
  opi_arena_init(&bound->arena, options->allocator, 0);
  opi_arena_init(&bd.scratch, options->allocator, 0);
  opi_text_init(&bd.report.text, options->allocator);
  bd.report.needed.source = OPIPE_NONE;
  opipe_status status = open_binding(&bd, err);
  if (status >= 0)
    status = build(&bd, err);
  if (status >= 0 && bd.builder.keep_parameters)
    status = opi_find_origins(model, &bd.scratch, bound, err);
  if (status >= 0)
    status = mark_barriers(&bd, bound, err);
  if (status >= 0)
    status = finish(&bd, bound, err);
  if (out_needed != NULL)
    *out_needed = bd.report.needed;
  opi_text_release(&bd.report.text);
  opi_map_free(bd.pin_names);
  opi_map_free(bd.shape_names);
  opi_map_free(bd.dim_names);
  opi_b_close(&bd.builder);
  opi_arena_release(&bd.scratch);
  if (status < 0) {
    opi_bound_free(bound);
    return status;
  }
  *out_bound = bound;
  return OPIPE_OK;
}

void opi_bound_free(opi_bound *bound) {
  if (bound == NULL)
    return;
  const opipe_allocator *allocator = bound->arena.allocator;
  opi_arena_release(&bound->arena);
  opi_free(allocator, bound, sizeof(*bound));
}

uint32_t opi_bound_value(const opi_bound *bound, const char *name) {
  return find_named(bound->graph, bound->aliases, bound->n_aliases, name);
}

opipe_status opi_bind(const opi_model *model, const opi_bind_options *options,
                      opi_bound **out_bound, opipe_error *err) {
  opi_arena arena;
  opi_dim_binding *dims = NULL;
  uint32_t n_dims = 0;
  opi_needed needed = {.source = OPIPE_NONE};
  opipe_error reason = OPIPE_ERROR_INIT;
  OPI_TRY(check_options(model, options, err));
  OPI_TRY(opi_model_check_files(model, err));
  if (model->rows != NULL)
    return opi_row_model_bind(model->rows, options, out_bound, err);
  opi_arena_init(&arena, options->allocator, 0);
  bool defaults = false;
  opipe_status status =
      opi_solve_with(model, options, NULL, &arena, &dims, &n_dims, &defaults, &reason);
  if (status >= 0)
    status = opi_bind_solved(model, options, dims, n_dims, out_bound, &needed, &reason);
  if (status == OPIPE_E_INVALID && n_dims != 0 && defaults) {
    opipe_error searched = OPIPE_ERROR_INIT; /* failed trials on the way to success are no error */
    status = opi_bind_search(model, options, dims, n_dims, &reason, &needed, out_bound, &searched);
    reason = searched;
  }
  if (status < 0 && err != NULL)
    *err = reason;
  opi_arena_release(&arena);
  return status;
}
