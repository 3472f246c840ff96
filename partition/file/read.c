/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the parts of a plan file. All contents are checked like any input: the fingerprint first,
 * then that every node exists, the hash last. No plugin is asked: devices, link and memory are
 * taken from the file and compared with the actual ones when a session opens. Without its model a
 * plan can only be played: nodes are those that it lists, and whatever follows from the graph is as
 * predicted.
 */
#include "partition/file/read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "partition/file/devices.h"
#include "partition/file/file.h"
#include "partition/file/generation.h"
#include "partition/file/kernels.h"
#include "partition/file/offload.h"
#include "partition/file/outline.h"
#include "partition/file/playlist.h"
#include "partition/file/states.h"
#include "partition/file/train.h"
#include "partition/file/ways.h"
#include "partition/schedule/order.h"

static const char *const WHAT = "the plan";
static const char STRATEGY[] =
    "onnx-pipe strategy"; /* the format of another file that planners write */
enum { COUNT_MOST = 1 << 20, RANKS_MOST = 4096, STAGES_MOST = 1 << 16 };
static const uint64_t BYTES_MOST = (uint64_t)INT64_MAX / 16; /* so that the sum of all parts fits */

typedef opi_reading reader;

static opipe_status copy_text(reader *r, const char *text, const char **out) {
  *out = opi_arena_strdup(&r->plan->arena, text);
  return *out == NULL ? opi_fail_nomem(r->err, strlen(text), "a plan") : OPIPE_OK;
}

static opipe_status read_u32(reader *r, const json_t *object, const char *name, uint32_t max,
                             uint32_t *out) {
  uint64_t value = 0;
  OPI_TRY(opi_json_get_u64(object, WHAT, name, max, &value, r->err));
  *out = (uint32_t)value;
  return OPIPE_OK;
}

static opipe_status read_head(reader *r) {
  const char *format = NULL, *print = NULL;
  char own[40];
  OPI_TRY(opi_json_get_string(r->root, WHAT, "format", &format, r->err));
  if (strncmp(format, STRATEGY, strlen(STRATEGY)) == 0) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED,
                    "the file is a planner's answer ('%.40s'), which lacks the layers that it is "
                    "about: 'onnx-pipe simulate' with the options that it was made with (--arch or "
                    "--profile, --planner) plays it",
                    format);
  }
  if (strcmp(format, OPI_PLAN_FORMAT) != 0) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED,
                    "the plan's format is '%.40s', this build reads '" OPI_PLAN_FORMAT
                    "': make it again, 'onnx-pipe plan MODEL -o FILE'",
                    format);
  }
  OPI_TRY(opi_json_get_string(r->root, WHAT, "fingerprint", &print, r->err));
  if (r->model == NULL)
    return opi_json_read_print(print, r->plan->decided.fingerprint, r->err);
  opi_model_fingerprint(r->model, r->plan->decided.fingerprint);
  (void)snprintf(own, sizeof(own), "%016" PRIx64 "%016" PRIx64, r->plan->decided.fingerprint[0],
                 r->plan->decided.fingerprint[1]);
  if (strcmp(print, own) != 0) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan was made for a model with fingerprint %.32s, this model has %s",
                    print, own);
  }
  return OPIPE_OK;
}

static opipe_status read_dims(reader *r) {
  opi_plan *plan = r->plan;
  const char *name = NULL;
  json_t *value = NULL;
  json_t *dims = json_object_get(r->root, "dims");
  if (!json_is_object(dims))
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan: \"dims\" must be an object");
  plan->decided.binding.dims =
      OPI_ARENA_ARRAY(&plan->arena, opi_dim_binding, json_object_size(dims));
  if (plan->decided.binding.dims == NULL)
    return opi_fail_nomem(r->err, 0, "a plan");
  json_object_foreach(dims, name, value) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
      return opi_fail(r->err, OPIPE_E_INVALID, "the plan: dimension '%s' must be an integer >= 0",
                      name);
    }
    plan->decided.binding.dims[plan->decided.binding.n_dims].value = json_integer_value(value);
    OPI_TRY(copy_text(r, name, &plan->decided.binding.dims[plan->decided.binding.n_dims].name));
    ++plan->decided.binding.n_dims;
  }
  return OPIPE_OK;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static opipe_status read_pin(reader *r, const json_t *object, opi_pin *pin) {
  const json_t *shape = NULL;
  const char *input = NULL, *hex = NULL;
  uint64_t n_bytes = 0;
  OPI_TRY(opi_json_get_string(object, WHAT, "input", &input, r->err));
  OPI_TRY(copy_text(r, input, &pin->input));
  OPI_TRY(read_u32(r, object, "dtype", 64, &pin->dtype));
  OPI_TRY(opi_json_get_array(object, WHAT, "shape", &shape, r->err));
  OPI_TRY(opi_json_get_string(object, WHAT, "bytes", &hex, r->err));
  pin->rank = (uint32_t)json_array_size(shape);
  if (pin->rank > OPIPE_MAX_RANK) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan: pin '%s' has rank %u, at most %d is possible", input, pin->rank,
                    OPIPE_MAX_RANK);
  }
  int64_t *dims = OPI_ARENA_ARRAY(&r->plan->arena, int64_t, pin->rank);
  if (dims == NULL)
    return opi_fail_nomem(r->err, 0, "a plan");
  for (uint32_t d = 0; d < pin->rank; ++d) {
    const json_t *dim = json_array_get(shape, d);
    if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "the plan: pin '%s': axis %u must be an integer >= 0", input, d);
    }
    dims[d] = json_integer_value(dim);
  }
  pin->shape = dims;
  if (!opi_tensor_bytes(pin->dtype, dims, pin->rank, &n_bytes) || strlen(hex) != 2 * n_bytes) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan: pin '%s' has %zu bytes, its shape says %" PRIu64, input,
                    strlen(hex) / 2, n_bytes);
  }
  uint8_t *data = opi_arena_alloc(&r->plan->arena, (size_t)n_bytes);
  if (data == NULL)
    return opi_fail_nomem(r->err, n_bytes, "a plan");
  for (uint64_t b = 0; b < n_bytes; ++b) {
    const int high = hex_digit(hex[2 * b]), low = hex_digit(hex[2 * b + 1]);
    if (high < 0 || low < 0) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "the plan: pin '%s': byte %" PRIu64 " is not hexadecimal", input, b);
    }
    data[b] = (uint8_t)(high * 16 + low);
  }
  pin->data = data;
  return OPIPE_OK;
}

static opipe_status read_pins(reader *r) {
  const json_t *pins = NULL;
  OPI_TRY(opi_json_get_array(r->root, WHAT, "pins", &pins, r->err));
  r->plan->decided.binding.pins = OPI_ARENA_ARRAY(&r->plan->arena, opi_pin, json_array_size(pins));
  if (r->plan->decided.binding.pins == NULL)
    return opi_fail_nomem(r->err, 0, "a plan");
  for (size_t i = 0; i < json_array_size(pins); ++i) {
    OPI_TRY(read_pin(r, json_array_get(pins, i),
                     &r->plan->decided.binding.pins[r->plan->decided.binding.n_pins++]));
  }
  return OPIPE_OK;
}

/* Reads "off", "graph", or a ratio that overrides that of every Dropout. */
static opipe_status read_dropout(reader *r, const char *text) {
  char *end = NULL;
  opi_decision *plan = &r->plan->decided;
  plan->binding.dropout = strcmp(text, "graph") == 0 ? OPI_DROPOUT_GRAPH : OPI_DROPOUT_OFF;
  if (strcmp(text, "graph") == 0 || strcmp(text, "off") == 0)
    return OPIPE_OK;
  plan->binding.dropout = OPI_DROPOUT_RATIO;
  plan->binding.dropout_ratio = strtod(text, &end);
  if (end == text || *end != '\0' ||
      !(plan->binding.dropout_ratio >= 0 && plan->binding.dropout_ratio < 1)) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan: \"dropout\" is '%.40s'; it must be off, graph or a ratio below 1",
                    text);
  }
  return OPIPE_OK;
}

static opipe_status read_binding(reader *r) {
  const json_t *keep = NULL;
  const char *dropout = NULL;
  OPI_TRY(read_dims(r));
  OPI_TRY(read_pins(r));
  OPI_TRY(opi_json_get_array(r->root, WHAT, "keep", &keep, r->err));
  r->plan->decided.binding.barriers =
      OPI_ARENA_ARRAY(&r->plan->arena, const char *, json_array_size(keep));
  if (r->plan->decided.binding.barriers == NULL)
    return opi_fail_nomem(r->err, 0, "a plan");
  for (size_t i = 0; i < json_array_size(keep); ++i) {
    const char *name = json_string_value(json_array_get(keep, i));
    if (name == NULL)
      return opi_fail(r->err, OPIPE_E_INVALID, "the plan: \"keep\" must hold strings");
    OPI_TRY(copy_text(r, name,
                      &r->plan->decided.binding.barriers[r->plan->decided.binding.n_barriers++]));
  }
  const json_t *fuse = json_object_get(r->root, "fuse");
  if (!json_is_boolean(fuse))
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan: \"fuse\" must be true or false");
  if (json_is_false(fuse))
    r->plan->decided.binding.bind_flags |= OPI_BIND_NO_FUSE;
  const json_t *parameters = json_object_get(r->root, "keep_parameters");
  if (parameters != NULL && !json_is_boolean(parameters))
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan: \"keep_parameters\" must be true or false");
  if (json_is_true(parameters))
    r->plan->decided.binding.bind_flags |= OPI_BIND_KEEP_PARAMETERS;
  if (json_object_get(r->root, "noise") != NULL) {
    uint64_t noise;
    OPI_TRY(opi_json_get_u64(r->root, WHAT, "noise", OPI_BIND_NOISE, &noise, r->err));
    r->plan->decided.binding.bind_flags |= (uint32_t)noise & (uint32_t)OPI_BIND_NOISE;
  }
  OPI_TRY(opi_json_get_string(r->root, WHAT, "dropout", &dropout, r->err));
  return read_dropout(r, dropout);
}

static opipe_status read_devices(reader *r) {
  const json_t *devices = NULL;
  OPI_TRY(opi_json_get_array(r->root, WHAT, "devices", &devices, r->err));
  const size_t n = json_array_size(devices);
  if (n == 0 || n > RANKS_MOST) {
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan has %zu devices; it must have 1 to %d", n,
                    RANKS_MOST);
  }
  r->plan->decided.n_ranks = (uint32_t)n;
  r->plan->decided.devices = OPI_ARENA_ARRAY(&r->plan->arena, opi_device_spec, n);
  if (r->plan->decided.devices == NULL)
    return opi_fail_nomem(r->err, n * sizeof(opi_device_spec), "a plan");
  for (size_t i = 0; i < n; ++i) {
    OPI_TRY(opi_json_read_device(json_array_get(devices, i), WHAT, &r->plan->arena, (uint32_t)i,
                                 r->plan->decided.devices, r->err));
  }
  return OPIPE_OK;
}

static opipe_status read_settings(reader *r) {
  opi_plan *plan = r->plan;
  const char *key = NULL;
  json_t *value = NULL;
  json_t *settings = json_object_get(r->root, "settings");
  if (!json_is_object(settings))
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan: \"settings\" must be an object");
  opi_plan_schedule *schedule = &plan->decided.schedule;
  schedule->settings =
      OPI_ARENA_ARRAY(&plan->arena, opipe_schedule_setting, json_object_size(settings));
  if (schedule->settings == NULL)
    return opi_fail_nomem(r->err, 0, "a plan");
  json_object_foreach(settings, key, value) {
    opipe_schedule_setting *setting = &schedule->settings[schedule->n_settings++];
    if (!json_is_string(value))
      return opi_fail(r->err, OPIPE_E_INVALID, "the plan: setting '%s' must be a string", key);
    OPI_TRY(copy_text(r, key, &setting->key));
    OPI_TRY(copy_text(r, json_string_value(value), &setting->value));
  }
  return OPIPE_OK;
}

/* The rows that micro-batches split must be those of a dimension that the plan binds. */
static opipe_status check_batch(const reader *r) {
  const opi_decision *plan = &r->plan->decided;
  for (uint32_t i = 0; i < plan->binding.n_dims; ++i) {
    if (!opi_is_batch_dim(plan->binding.batch_dim, plan->binding.dims[i].name))
      continue;
    if (plan->binding.dims[i].value == plan->binding.batch_rows)
      return OPIPE_OK;
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan: \"batch_rows\" is %" PRId64 ", dimension '%s' is %" PRId64,
                    plan->binding.batch_rows, plan->binding.dims[i].name,
                    plan->binding.dims[i].value);
  }
  return opi_fail(r->err, OPIPE_E_INVALID,
                  "the plan: \"batch_dim\" '%.100s' is not one of its dimensions",
                  plan->binding.batch_dim);
}

static opipe_status read_schedule(reader *r) {
  opi_decision *plan = &r->plan->decided;
  const char *text = NULL;
  uint64_t rows = 0;
  OPI_TRY(opi_json_get_string(r->root, WHAT, "schedule", &text, r->err));
  OPI_TRY(copy_text(r, text, &plan->schedule.name));
  OPI_TRY(opi_json_get_string(r->root, WHAT, "transport", &text, r->err));
  OPI_TRY(copy_text(r, text, &plan->transport));
  OPI_TRY(opi_json_read_link(json_object_get(r->root, "link"), WHAT, &plan->link, r->err));
  OPI_TRY(read_u32(r, r->root, "microbatches", COUNT_MOST, &plan->n_microbatches));
  OPI_TRY(read_u32(r, r->root, "in_flight", OPI_CREDITS_MOST, &plan->in_flight));
  OPI_TRY(read_u32(r, r->root, "depth", COUNT_MOST, &plan->depth));
  if (plan->n_microbatches == 0 || plan->depth == 0) {
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan has %u micro-batches and depth %u",
                    plan->n_microbatches, plan->depth);
  }
  OPI_TRY(read_settings(r));
  if (json_object_get(r->root, "batch_dim") != NULL) {
    OPI_TRY(opi_json_get_string(r->root, WHAT, "batch_dim", &text, r->err));
    OPI_TRY(copy_text(r, text, &plan->binding.batch_dim));
    OPI_TRY(opi_json_get_u64(r->root, WHAT, "batch_rows", INT64_MAX, &rows, r->err));
    plan->binding.batch_rows = (int64_t)rows;
    OPI_TRY(check_batch(r));
  }
  if (plan->n_microbatches > 1 && plan->binding.batch_rows < plan->n_microbatches) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan splits %" PRId64 " rows into %u micro-batches",
                    plan->binding.batch_rows, plan->n_microbatches);
  }
  return OPIPE_OK;
}

/* ---- stages ---- */

static opipe_status read_stage(reader *r, const json_t *object, uint32_t s, opi_map *stages) {
  const json_t *nodes = NULL;
  OPI_TRY(read_u32(r, object, "rank", r->plan->decided.n_ranks - 1,
                   &r->plan->decided.instance_rank[s]));
  OPI_TRY(opi_json_time(json_object_get(object, "time_ns"), WHAT, "time_ns",
                        &r->plan->predicted.times.stage_ns[s], r->err));
  OPI_TRY(opi_json_get_array(object, WHAT, "nodes", &nodes, r->err));
  for (size_t i = 0; i < json_array_size(nodes); ++i) {
    const char *key = json_string_value(json_array_get(nodes, i));
    uint32_t other = 0;
    if (key == NULL)
      return opi_fail(r->err, OPIPE_E_INVALID, "the plan: stage %u must list strings", s);
    if (opi_map_get(stages, key, &other)) {
      return opi_fail(r->err, OPIPE_E_INVALID, "the plan puts node '%s' into stage %u and stage %u",
                      key, other, s);
    }
    OPI_TRY(opi_map_set(stages, key, s, r->err));
  }
  return OPIPE_OK;
}

static opipe_status place_nodes(reader *r, const opi_graph *g, opi_map *stages) {
  opi_plan *plan = r->plan;
  plan->decided.node_keys = OPI_ARENA_ARRAY(&plan->arena, const char *, g->n_nodes);
  plan->decided.stage_of_node = OPI_ARENA_ARRAY(&plan->arena, uint32_t, g->n_nodes);
  if (plan->decided.node_keys == NULL || plan->decided.stage_of_node == NULL)
    return opi_fail_nomem(r->err, 0, "a plan");
  plan->decided.n_nodes = g->n_nodes;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const char *key = opi_node_key(g, &g->nodes[n]);
    OPI_TRY(copy_text(r, key, &plan->decided.node_keys[n]));
    if (!opi_map_get(stages, key, &plan->decided.stage_of_node[n])) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "the plan puts node '%s' (output '%s') into no stage", g->nodes[n].name, key);
    }
    opi_map_remove(stages, key);
  }
  if (opi_map_count(stages) != 0) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan lists %u nodes that the bound model does not have",
                    opi_map_count(stages));
  }
  return OPIPE_OK;
}

opipe_status opi_reading_stages(opi_reading *r, const opi_graph *graph) {
  opi_plan *plan = r->plan;
  const json_t *list = NULL;
  opi_map *stages = NULL;
  OPI_TRY(opi_json_get_array(r->root, WHAT, "stages", &list, r->err));
  const size_t n = json_array_size(list);
  if (n == 0 || n > STAGES_MOST) {
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan has %zu stages; it must have 1 to %d", n,
                    STAGES_MOST);
  }
  plan->decided.n_stages = (uint32_t)n;
  plan->decided.n_replicas = 1;
  plan->decided.instance_rank = OPI_ARENA_ARRAY(&plan->arena, uint32_t, n);
  plan->predicted.times.stage_ns = OPI_ARENA_ARRAY(&plan->arena, double, n);
  if (plan->decided.instance_rank == NULL || plan->predicted.times.stage_ns == NULL)
    return opi_fail_nomem(r->err, n * sizeof(double), "a plan");
  OPI_TRY(opi_map_create(plan->decided.allocator, &stages, r->err));
  opipe_status status = OPIPE_OK;
  for (uint32_t s = 0; s < plan->decided.n_stages && status == OPIPE_OK; ++s)
    status = read_stage(r, json_array_get(list, s), s, stages);
  if (status == OPIPE_OK && graph == NULL)
    status = opi_json_list_nodes(list, plan, r->err);
  else if (status == OPIPE_OK)
    status = place_nodes(r, graph, stages);
  opi_map_free(stages);
  return status;
}

/* ---- actions ---- */

/* NULL, or the reason why a cell's actions are wrong. */
static const char *take_cell(const reader *r, uint32_t rank, const opi_cell_text *cells, uint32_t n,
                             opipe_action out[2]) {
  for (uint32_t i = 0; i < n; ++i) {
    if (!opi_record_of_do(&cells[i].item, rank, &out[i])) {
      return cells[i].item.kind >= OPI_DO_OFFLOAD && cells[i].item.kind < OPI_DO_IDLE
                 ? "plans hold F, B, I and W; no session executes offloads and groups"
                 : "plans hold F, B, I and W";
    }
    if (!opi_plan_trains(&r->plan->decided) && out[i].pass != OPIPE_PASS_FORWARD)
      return "the plan is for inference, its actions are forwards";
  }
  return NULL;
}

/* Reads cells in the grammar of orders, separated by spaces. */
static opipe_status read_rank_actions(reader *r, uint32_t rank, const char *line,
                                      uint32_t *io_room) {
  opi_plan *plan = r->plan;
  for (const char *at = line + strspn(line, " "); *at != '\0'; at += strspn(at, " ")) {
    const size_t length = strcspn(at, " ");
    opi_cell_text cells[2];
    opipe_action actions[2];
    uint32_t n = 0;
    const char *why = NULL;
    if (opi_cell_read(at, at + length, OPI_DIALECT_OPIPE, cells, &n, &why))
      why = take_cell(r, rank, cells, n, actions);
    if (why != NULL) {
      return opi_fail(r->err, OPIPE_E_INVALID, "the plan, rank %u: '%.*s': %s", rank,
                      (int)(length > 40 ? 40 : length), at, why);
    }
    if (!opi_arena_grow(&plan->arena, (void **)&plan->decided.actions, io_room,
                        plan->decided.n_actions + n, sizeof(opipe_action)))
      return opi_fail_nomem(r->err, n * sizeof(opipe_action), "a plan");
    memcpy(&plan->decided.actions[plan->decided.n_actions], actions, n * sizeof *actions);
    plan->decided.n_actions += n;
    at += length;
  }
  return OPIPE_OK;
}

static opipe_status read_actions(reader *r) {
  opi_decision *plan = &r->plan->decided;
  const json_t *list = NULL;
  uint32_t room = 0;
  OPI_TRY(opi_json_get_array(r->root, WHAT, "actions", &list, r->err));
  if (json_array_size(list) != plan->n_ranks) {
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan has actions of %zu ranks and %u devices",
                    json_array_size(list), plan->n_ranks);
  }
  plan->rank_first = OPI_ARENA_ARRAY(&r->plan->arena, uint32_t, (size_t)plan->n_ranks + 1);
  if (plan->rank_first == NULL)
    return opi_fail_nomem(r->err, plan->n_ranks * sizeof(uint32_t), "a plan");
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    const char *line = json_string_value(json_array_get(list, rank));
    if (line == NULL) {
      return opi_fail(r->err, OPIPE_E_INVALID, "the plan: the actions of rank %u must be a string",
                      rank);
    }
    plan->rank_first[rank] = plan->n_actions;
    OPI_TRY(read_rank_actions(r, rank, line, &room));
  }
  plan->rank_first[plan->n_ranks] = plan->n_actions;
  if (plan->actions == NULL) {
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan has no action on any of %u ranks",
                    plan->n_ranks);
  }
  return OPIPE_OK;
}

/* ---- predictions ---- */

static opipe_status read_rank_memory(reader *r, const json_t *object, uint32_t rank) {
  opi_memory *m = &r->plan->predicted.memory[rank];
  const bool forward = !opi_plan_trains(&r->plan->decided),
             stateless =
                 r->plan->decided.n_states == 0 && r->plan->decided.binding.generation.context == 0;
  const struct {
    const char *name;
    uint64_t *to;
    bool left_out;
  } parts[] = {{"params_bytes", &m->params_bytes, false},
               {"activation_bytes", &m->activation_bytes, false},
               {"workspace_bytes", &m->workspace_bytes, false},
               {"boundary_bytes", &m->boundary_bytes, false},
               {"gradient_bytes", &m->gradient_bytes, forward},
               {"optimizer_bytes", &m->optimizer_bytes, forward},
               {"version_bytes", &m->version_bytes, forward},
               {"stash_bytes", &m->stash_bytes, forward},
               {"state_bytes", &m->state_bytes, stateless}};
  uint64_t sum = 0;
  for (size_t i = 0; i < OPI_COUNT(parts); ++i) {
    if (parts[i].left_out)
      continue;
    OPI_TRY(opi_json_get_u64(object, WHAT, parts[i].name, BYTES_MOST, parts[i].to, r->err));
    sum += *parts[i].to;
  }
  if (!stateless)
    OPI_TRY(opi_json_get_u64(object, WHAT, "stream_bytes", BYTES_MOST, &m->stream_bytes, r->err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "mapped_bytes", BYTES_MOST, &m->mapped_bytes, r->err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "total_bytes", INT64_MAX, &m->total_bytes, r->err));
  if (m->total_bytes != sum) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the plan: \"total_bytes\" of rank %u is %" PRIu64
                    ", its parts add up to %" PRIu64,
                    rank, m->total_bytes, sum);
  }
  if (r->plan->decided.n_offload != 0)
    OPI_TRY(opi_json_get_u64(object, WHAT, "offload_bytes", BYTES_MOST, &m->offload_bytes, r->err));
  m->page_room = UINT64_MAX;
  if (!stateless && json_object_get(object, "tokens") != NULL) {
    const uint64_t page = r->plan->decided.binding.generation.page;
    OPI_TRY(opi_json_get_u64(object, WHAT, "tokens", BYTES_MOST, &m->page_room, r->err));
    m->page_room = page == 0 ? UINT64_MAX : m->page_room / page;
  }
  if (json_object_get(object, "fallback_nodes") != NULL) {
    OPI_TRY(opi_json_get_u64(object, WHAT, "fallback_nodes", BYTES_MOST, &m->n_fallback, r->err));
    OPI_TRY(opi_json_get_u64(object, WHAT, "host_bytes", BYTES_MOST, &m->host_bytes, r->err));
  }
  if (json_object_get(object, "rounded_products") != NULL)
    OPI_TRY(opi_json_get_u64(object, WHAT, "rounded_products", BYTES_MOST, &m->n_rounded, r->err));
  const json_t *estimated = json_object_get(object, "estimated");
  if (estimated != NULL && !json_is_boolean(estimated))
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan: \"estimated\" must be true or false");
  m->estimated = json_is_true(estimated);
  const uint64_t cap = r->plan->decided.devices[rank].memory_bytes;
  m->cap_bytes = cap == 0 ? UINT64_MAX : cap;
  return OPIPE_OK;
}

/* Estimates bytes of decisions that were edited by hand: they come without a hash, so the predicted
 * bytes are of other decisions, and the devices cannot be asked here. */
static opipe_status describe_devices(reader *r) {
  const opi_decision *plan = &r->plan->decided;
  opi_device_facts *facts = OPI_ARENA_ARRAY(&r->scratch, opi_device_facts, plan->n_ranks);
  if (facts == NULL)
    return opi_fail_nomem(r->err, plan->n_ranks * sizeof *facts, "a plan");
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank)
    facts[rank].described = true;
  r->facts = facts;
  return OPIPE_OK;
}

static opipe_status read_memory(reader *r) {
  opi_plan *plan = r->plan;
  const json_t *list = NULL;
  if (json_object_get(r->root, "hash") == NULL)
    return describe_devices(r);
  OPI_TRY(opi_json_get_array(r->root, WHAT, "memory", &list, r->err));
  if (json_array_size(list) != plan->decided.n_ranks) {
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan has memory of %zu ranks and %u devices",
                    json_array_size(list), plan->decided.n_ranks);
  }
  plan->predicted.memory = OPI_ARENA_ARRAY(&plan->arena, opi_memory, plan->decided.n_ranks);
  if (plan->predicted.memory == NULL)
    return opi_fail_nomem(r->err, plan->decided.n_ranks * sizeof(opi_memory), "a plan");
  for (uint32_t rank = 0; rank < plan->decided.n_ranks; ++rank)
    OPI_TRY(read_rank_memory(r, json_array_get(list, rank), rank));
  return opi_json_read_ways(r->root, plan, r->err);
}

/* The devices are not asked now, so their peak is the file's; the utilisation follows from it.
 * Older files have no peak. */
static opipe_status read_peak(const reader *r) {
  static const double most = 1e30;
  const json_t *peak = json_object_get(r->root, "peak_flops");
  r->plan->predicted.peak_flops = json_number_value(peak);
  return peak == NULL || (json_is_number(peak) && r->plan->predicted.peak_flops >= 0 &&
                          r->plan->predicted.peak_flops <= most)
             ? OPIPE_OK
             : opi_fail(r->err, OPIPE_E_INVALID,
                        "the plan: \"peak_flops\" must be a number from 0 to %g", most);
}

/* An optional member. */
static opipe_status read_word(reader *r, const char *name, const char **out) {
  const char *word = NULL;
  if (json_object_get(r->root, name) == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_string(r->root, WHAT, name, &word, r->err));
  return copy_text(r, word, out);
}

/* Only plans with a searched order have this member. */
static opipe_status read_searched(const reader *r) {
  const json_t *object = json_object_get(r->root, "searched");
  opi_searched *s = &r->plan->predicted.searched;
  if (object == NULL)
    return OPIPE_OK;
  if (!json_is_object(object))
    return opi_fail(r->err, OPIPE_E_INVALID, "the plan: \"searched\" must be an object");
  OPI_TRY(opi_json_get_u64(object, WHAT, "moves", INT64_MAX, &s->moves, r->err));
  OPI_TRY(
      opi_json_time(json_object_get(object, "start_ns"), WHAT, "start_ns", &s->start_ns, r->err));
  return opi_json_time(json_object_get(object, "bound_ns"), WHAT, "bound_ns", &s->bound_ns, r->err);
}

static opipe_status read_cost(reader *r) {
  const char *cost = NULL;
  OPI_TRY(read_peak(r));
  OPI_TRY(read_searched(r));
  OPI_TRY(read_word(r, "planner", &r->plan->predicted.planner));
  OPI_TRY(read_word(r, "stopped", &r->plan->predicted.stopped));
  OPI_TRY(opi_json_read_places(r->root, r->plan, r->err));
  OPI_TRY(opi_json_time(json_object_get(r->root, "bound_ns"), WHAT, "bound_ns",
                        &r->plan->predicted.bound_ns, r->err));
  OPI_TRY(opi_json_get_string(r->root, WHAT, "cost", &cost, r->err));
  for (uint32_t kind = 0; kind <= OPI_COST_GIVEN; ++kind) {
    if (strcmp(cost, opi_cost_name(kind)) != 0)
      continue;
    r->plan->predicted.cost_kind = kind;
    return OPIPE_OK;
  }
  return opi_fail(r->err, OPIPE_E_INVALID,
                  "the plan: \"cost\" is '%.40s'; it must be rates, measured or given", cost);
}

static opipe_status check_hash(const reader *r) {
  const opi_plan *plan = r->plan;
  const char *hash = NULL;
  char own[40];
  if (json_object_get(r->root, "hash") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_string(r->root, WHAT, "hash", &hash, r->err));
  (void)snprintf(own, sizeof(own), "%016" PRIx64 "%016" PRIx64, plan->hash[0], plan->hash[1]);
  if (strcmp(hash, own) == 0)
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID,
                  "the plan: \"hash\" is %.40s, but its decisions hash to %s: it was changed", hash,
                  own);
}

opipe_status opi_reading_beginning(opi_reading *r) {
  OPI_TRY(read_head(r));
  OPI_TRY(read_binding(r));
  OPI_TRY(read_devices(r));
  OPI_TRY(read_schedule(r));
  OPI_TRY(opi_json_read_tensor(r->root, r->plan, r->err));
  OPI_TRY(opi_json_read_train(r->root, r->plan, r->err));
  OPI_TRY(opi_json_read_offload(r->root, r->plan, r->err));
  OPI_TRY(opi_json_read_states(r->root, r->plan, r->err));
  OPI_TRY(opi_json_read_generation(r->root, r->plan, r->err));
  OPI_TRY(opi_json_read_kernels(r->root, r->plan, r->err));
  return read_cost(r);
}

/* Training plans take the bytes of sums from the file, because they depend on devices; the rest
 * follows from the model. */
static opipe_status read_play(const reader *r) {
  const bool known = json_object_get(r->root, "hash") != NULL &&
                     json_object_get(r->root, "play") != NULL; /* it belongs to these decisions */
  return opi_plan_trains(&r->plan->decided) && known
             ? opi_json_read_playlist(r->root, r->plan, r->err)
             : OPIPE_OK;
}

opipe_status opi_reading_layout(opi_reading *r) {
  return opi_json_read_layout(r->root, r->plan, r->err);
}

opipe_status opi_reading_orders(opi_reading *r) {
  OPI_TRY(read_actions(r));
  OPI_TRY(read_memory(r));
  return read_play(r);
}

opipe_status opi_reading_begin(const opipe_allocator *allocator, const void *json, uint64_t n_bytes,
                               opi_reading *r) {
  opi_arena_init(&r->scratch, allocator, 0);
  OPI_TRY(opi_json_parse(json, n_bytes, WHAT, &r->root, r->err));
  return opi_plan_new(allocator, &r->plan, r->err);
}

opipe_status opi_reading_end(opi_reading *r, opipe_status status, opi_plan **out_plan) {
  if (status == OPIPE_OK)
    status = opi_plan_hash(r->plan, r->err);
  if (status == OPIPE_OK)
    status = check_hash(r);
  opi_arena_release(&r->scratch);
  json_decref(r->root);
  if (status < 0) {
    opi_plan_free(r->plan);
    return status;
  }
  *out_plan = r->plan;
  return OPIPE_OK;
}

static opipe_status read_alone(reader *r) {
  OPI_TRY(opi_reading_beginning(r));
  OPI_TRY(opi_reading_stages(r, NULL));
  OPI_TRY(opi_reading_layout(r));
  OPI_TRY(read_actions(r));
  if (json_object_get(r->root, "hash") == NULL) {
    return opi_fail(
        r->err, OPIPE_E_INVALID,
        "the plan has no \"hash\": its decisions were changed, so its predictions no longer "
        "hold: 'onnx-pipe plan MODEL --plan FILE -o FILE' renews them");
  }
  OPI_TRY(read_memory(r));
  return opi_json_read_outline(r->root, r->plan, r->err);
}

opipe_status opi_plan_read_alone(const opipe_allocator *allocator, const void *json,
                                 uint64_t n_bytes, opi_plan **out_plan, opipe_error *err) {
  opi_reading r = {.err = err};
  opipe_status status = opi_reading_begin(allocator, json, n_bytes, &r);
  if (status == OPIPE_OK)
    status = read_alone(&r);
  return opi_reading_end(&r, status, out_plan);
}
