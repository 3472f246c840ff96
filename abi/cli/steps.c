/* SPDX-License-Identifier: Apache-2.0 */
/* Steps shared by commands: open, bind, plan. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/base/cores.h"
#include "progress.h"

enum { PINS_MOST = 64 };

uint32_t cli_cores(void) {
  return opi_cores("");
}

bool cli_is_terminal(void) {
  return isatty(STDERR_FILENO) == 1;
}

/* Checks, before anything is computed, that files to be written do not replace a file of the model.
 */
static int guard_model(const cli_options *o, const cli_session *s) {
  const char *const others[] = {o->out.output, o->out.html, o->out.trace};
  cli_guard(s->api, s->file);
  int status =
      o->out.annotate == NULL ? CLI_DONE : cli_check_target(o->out.annotate, OPIPE_TARGET_MODEL);
  for (size_t i = 0; i < sizeof others / sizeof others[0] && status == CLI_DONE; ++i)
    status = others[i] == NULL ? CLI_DONE : cli_check_target(others[i], OPIPE_TARGET_OTHER);
  return status;
}

static int load(const cli_options *o, cli_session *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_tensor *tensors = calloc(CLI_LIST_MOST, sizeof(*tensors));
  opipe_pin *pins = calloc(CLI_LIST_MOST, sizeof(*pins));
  uint32_t n = 0;
  int status = tensors == NULL || pins == NULL ? cli_fail("out of memory")
                                               : cli_train_parameters(o, tensors, pins, &n);
  const opipe_load_params params = {.struct_size = sizeof(params),
                                    .flags = o->graph.load_flags,
                                    .path = o->model,
                                    .parameters = pins,
                                    .n_parameters = n,
                                    .parameters_stride = sizeof(opipe_pin)};
  if (status == CLI_DONE && s->api->model_load(s->context, &params, &s->file, &err) < 0) {
    const bool there = cli_is_there(o->model);
    status = there && n != 0 ? cli_report_name(o->model, &err) : cli_report(o->model, &err);
    status = there ? status : CLI_USAGE;
  }
  if (status == CLI_DONE)
    status = guard_model(o, s);
  for (uint32_t i = 0; tensors != NULL && i < CLI_LIST_MOST; ++i)
    cli_tensor_free(&tensors[i]);
  free(tensors);
  free(pins);
  return status;
}

int cli_open(const cli_options *o, cli_session *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_context_params params = {.struct_size = sizeof(params),
                                       .log_level = OPIPE_LOG_WARN,
                                       .log = cli_warn,
                                       .plugin_paths = o->plugins.items,
                                       .n_plugin_paths = o->plugins.n};
  memset(s, 0, sizeof(*s));
  s->printed = -1;
  if (opipe_get_api(OPIPE_VIEW, &s->api, &err) < 0)
    return cli_report("opipe_get_api", &err);
  if (s->api->context_create(&params, &s->context, &err) < 0) {
    bool all = true;
    for (uint32_t i = 0; i < o->plugins.n; ++i)
      all = all && cli_is_there(o->plugins.items[i]);
    const int status = cli_report_name("opening a context", &err);
    return all ? status : CLI_USAGE;
  }
  if (o->model == NULL)
    return CLI_DONE;
  cli_progress("loading %s", o->model);
  const int loaded = load(o, s);
  cli_progress_end();
  return loaded;
}

void cli_close(cli_session *s) {
  if (s->api == NULL)
    return;
  cli_guard(NULL, NULL);
  cli_team_print(s);
  s->api->team_close(s->team);
  s->api->plan_destroy(s->plan);
  s->api->model_destroy(s->bound);
  s->api->model_destroy(s->file);
  s->api->context_destroy(s->context);
  free(s->outline);
  free(s->places);
  free(s->here);
  memset(s, 0, sizeof(*s));
}

/* ---- binding ---- */

typedef struct binding {
  opipe_dim *dims; /* names are malloc'ed */
  uint32_t n_dims, room_dims;
  opipe_pin pins[PINS_MOST];
  cli_tensor owned[PINS_MOST]; /* tensors made from --pin texts */
  uint32_t n_pins, n_owned;
} binding;

/* The number already given for a dimension; -1: none. */
static int64_t dim_value(const binding *b, const char *name) {
  for (uint32_t i = 0; i < b->n_dims; ++i) {
    if (strcmp(b->dims[i].name, name) == 0)
      return b->dims[i].value;
  }
  return -1;
}

static int add_dim(binding *b, const char *name, size_t n, int64_t value, const char *whence) {
  for (uint32_t i = 0; i < b->n_dims; ++i) {
    if (strlen(b->dims[i].name) != n || memcmp(b->dims[i].name, name, n) != 0)
      continue;
    if (b->dims[i].value == value)
      return CLI_DONE;
    return cli_usage("%s: dimension '%s' is %lld, and %lld elsewhere", whence, b->dims[i].name,
                     (long long)value, (long long)b->dims[i].value);
  }
  if (b->n_dims == b->room_dims) {
    const uint32_t room = b->room_dims == 0 ? 16 : 2 * b->room_dims;
    opipe_dim *grown = realloc(b->dims, room * sizeof(*grown));
    if (grown == NULL)
      return cli_fail("out of memory");
    b->dims = grown;
    b->room_dims = room;
  }
  char *own = strndup(name, n);
  if (own == NULL)
    return cli_fail("out of memory");
  b->dims[b->n_dims++] = (opipe_dim){own, value};
  return CLI_DONE;
}

int cli_bind_next(const char *text, cli_dim_text *io) {
  const char *at = io->next, *equals = strchr(at, '=');
  char *end = NULL;
  io->name = NULL;
  if (*at == '\0')
    return CLI_DONE;
  if (equals == NULL || equals == at)
    return cli_usage("--bind %s: DIM=N is needed", text);
  errno = 0;
  const long long value = strtoll(equals + 1, &end, 10);
  if (end == equals + 1 || errno != 0 || value < 0 || (*end != '\0' && *end != ','))
    return cli_usage("--bind %s: '%s' is not a number >= 0", text, equals + 1);
  *io = (cli_dim_text){*end == ',' ? end + 1 : end, at, (size_t)(equals - at), value};
  return CLI_DONE;
}

static int add_bind_option(binding *b, const char *text) {
  cli_dim_text dim = {.next = text};
  int status = cli_bind_next(text, &dim);
  while (status == CLI_DONE && dim.name != NULL) {
    status = add_dim(b, dim.name, dim.n_name, dim.value, "--bind");
    if (status == CLI_DONE)
      status = cli_bind_next(text, &dim);
  }
  return status;
}

bool cli_input_info(const cli_session *s, const char *name, size_t n, opipe_tensor_info *out) {
  for (uint32_t i = 0;; ++i) {
    out->struct_size = sizeof(*out);
    if (s->api->model_input(s->file, i, out, NULL) < 0)
      return false;
    if (strlen(out->name) == n && memcmp(out->name, name, n) == 0)
      return true;
  }
}

/* Adds the free dimensions of a given tensor's input. Some files use one name for two lengths: the
 * second is then given by its place. */
static int add_shape(binding *b, const cli_session *s, const cli_tensor *t) {
  opipe_tensor_info info;
  if (!cli_input_info(s, t->name, strlen(t->name), &info))
    return cli_no_input(s, "--input", t->name);
  if (info.rank != t->rank)
    return CLI_DONE; /* the library names both */
  const size_t room = strlen(info.name) + sizeof(".4294967295");
  char *place = malloc(room);
  int status = place == NULL ? cli_fail("out of memory") : CLI_DONE;
  for (uint32_t d = 0; d < t->rank && status == CLI_DONE; ++d) {
    if (info.shape[d] >= 0)
      continue;
    (void)snprintf(place, room, "%s.%u", info.name, d);
    const bool named =
        info.dim_names != NULL && info.dim_names[d] != NULL && info.dim_names[d][0] != '\0';
    const char *key = named ? info.dim_names[d] : place;
    const int64_t known = dim_value(b, key);
    if (known >= 0 && known != t->shape[d])
      key = place;
    status = add_dim(b, key, strlen(key), t->shape[d], info.name);
  }
  free(place);
  return status;
}

static int add_pin_option(binding *b, const cli_session *s, const char *text) {
  const char *equals = strchr(text, '=');
  opipe_tensor_info info;
  if (equals == NULL)
    return cli_usage("--pin %s: NAME=VALUE is needed", text);
  if (!cli_input_info(s, text, (size_t)(equals - text), &info)) {
    char name[256];
    (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
    return cli_no_input(s, "--pin", name);
  }
  if (b->n_pins == PINS_MOST)
    return cli_usage("--pin is given more than %d times", PINS_MOST);
  cli_tensor *own = &b->owned[b->n_owned];
  const int status = cli_pin_read(&info, equals + 1, own);
  ++b->n_owned;
  if (status != CLI_DONE)
    return status;
  b->pins[b->n_pins++] = (opipe_pin){info.name, cli_tensor_view(own)};
  return CLI_DONE;
}

static int gather(const cli_options *o, const cli_session *s, const cli_tensor *tensors, uint32_t n,
                  binding *b) {
  int status = CLI_DONE;
  for (uint32_t i = 0; i < o->graph.bind.n && status == CLI_DONE; ++i)
    status = add_bind_option(b, o->graph.bind.items[i]);
  for (uint32_t i = 0; i < n && status == CLI_DONE; ++i)
    status = add_shape(b, s, &tensors[i]);
  for (uint32_t i = 0; i < o->plan.pins.n && status == CLI_DONE; ++i)
    status = add_pin_option(b, s, o->plan.pins.items[i]);
  return status;
}

/* Reports that an input is pinned to the given tensor's values. For a mini-batch these are the
 * first one's. */
static void say_pinned(const cli_options *o, cli_session *s, const char *input,
                       const opipe_error *err) {
  char said[700];
  (void)snprintf(said, sizeof(said), "input '%s' is pinned to the values of %s: %s", input,
                 o->train ? "the first mini-batch, for all of them" : "--input", err->message);
  if (s->pinned[0] == '\0')
    (void)snprintf(s->pinned, sizeof(s->pinned), "%s", input);
  cli_warn(NULL, OPIPE_LOG_WARN, __FILE__, __LINE__, said);
}

/* If the library needs an input's value to know shapes or a branch, and the value is given, pins
 * it. */
static bool pin_needed(const cli_options *o, cli_session *s, const opipe_error *err,
                       const cli_tensor *tensors, uint32_t n, binding *b) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  if (err->domain != OPIPE_DOMAIN_INPUT || b->n_pins == PINS_MOST)
    return false;
  if (s->api->model_input(s->file, (uint32_t)err->native, &info, NULL) < 0)
    return false;
  for (uint32_t p = 0; p < b->n_pins; ++p) {
    if (strcmp(b->pins[p].input, info.name) == 0)
      return false;
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(tensors[i].name, info.name) != 0)
      continue;
    b->pins[b->n_pins++] = (opipe_pin){info.name, cli_tensor_view(&tensors[i])};
    say_pinned(o, s, info.name, err);
    return true;
  }
  return false;
}

/* True if a number may be missing: some input that is not given has a free dimension. */
static bool dims_open(const cli_session *s, const cli_tensor *tensors, uint32_t n) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    uint32_t given = 0;
    while (given < n && strcmp(tensors[given].name, info.name) != 0)
      ++given;
    for (uint32_t d = 0; given == n && d < info.rank; ++d) {
      if (info.shape[d] < 0)
        return true;
    }
  }
  return false;
}

static int bind_with(const cli_options *o, cli_session *s, const cli_tensor *tensors, uint32_t n,
                     binding *b) {
  opipe_error err = OPIPE_ERROR_INIT;
  const char *keep[CLI_LIST_MOST];
  uint32_t n_keep = 0, rows = 0;
  if (cli_rows_chosen(o, &rows) != CLI_DONE)
    return CLI_USAGE;
  for (uint32_t i = 0; i < o->t.globs.n; ++i) {
    if (o->t.globs_train[i] && strpbrk(o->t.globs.items[i], "*?") == NULL)
      keep[n_keep++] = o->t.globs.items[i];
  }
  for (;;) {
    const opipe_bind_options options = {
        .struct_size = sizeof(options),
        .flags = OPIPE_BIND_DEFAULTS | (o->graph.no_fuse ? OPIPE_BIND_NO_FUSE : 0u) |
                 (o->graph.graph_dropout ? OPIPE_BIND_GRAPH_DROPOUT : 0u) |
                 (o->graph.ratio_dropout ? OPIPE_BIND_DROPOUT_RATIO : 0u) |
                 (o->train ? OPIPE_BIND_TRAIN : 0u) | o->graph.noise,
        .dropout_ratio = o->graph.dropout_ratio,
        .default_batch = rows,
        .dims = b->dims,
        .pins = b->pins,
        .n_dims = b->n_dims,
        .dims_stride = sizeof(opipe_dim),
        .n_pins = b->n_pins,
        .pins_stride = sizeof(opipe_pin),
        .keep = keep,
        .n_keep = n_keep};
    const opipe_status status = s->api->model_bind(s->file, &options, &s->bound, &err);
    if (status == OPIPE_OK)
      return CLI_DONE;
    if (pin_needed(o, s, &err, tensors, n, b))
      continue;
    char said[700];
    const bool contradict =
        status == OPIPE_E_INVALID && cli_contradiction(o, s, tensors, n, said, sizeof(said));
    if (contradict)
      return cli_usage("%s (%s)", said, err.message);
    (void)cli_report(o->model, &err);
    if (err.domain == OPIPE_DOMAIN_INPUT) {
      (void)fprintf(stderr, "onnx-pipe: give it by --input or --pin\n");
      return CLI_USAGE;
    }
    if (status == OPIPE_E_INVALID)
      return dims_open(s, tensors, n) ? CLI_USAGE : CLI_FAILED;
    return status == OPIPE_E_NOTFOUND ? CLI_USAGE : CLI_FAILED;
  }
}

/* True if the list has an operator with this in its name, or with `other` one without it. */
static bool lists(json_t *operators, const char *name, bool other) {
  bool found = false;
  for (void *at = json_object_iter(operators); at != NULL;
       at = json_object_iter_next(operators, at))
    found = found || (strstr(json_object_iter_key(at), name) != NULL) != other;
  return found;
}

/* The bound model's description in JSON, to be freed; NULL: not available. */
static json_t *bound_as_json(const cli_session *s) {
  cli_gathered text = {NULL, 0, 0};
  json_t *model = NULL;
  if (s->api->model_describe(s->bound, OPIPE_FORMAT_JSON, cli_gather, &text, NULL) == OPIPE_OK)
    model = json_loadb(text.data, text.n, 0, NULL);
  free(text.data);
  return model;
}

/* Copies of constants or inputs to outputs are not computation. */
bool cli_computes_nothing(const cli_session *s) {
  json_t *model = bound_as_json(s);
  const bool copies =
      model != NULL && !lists(json_object_get(model, "operators"), "Identity", true);
  json_decref(model);
  return copies;
}

/* Warns about a dropout ratio that nothing uses. */
static void judge_dropout(const cli_options *o, const cli_session *s) {
  char said[128];
  json_t *model = bound_as_json(s);
  if (model != NULL && !lists(json_object_get(model, "file_operators"), "Dropout", false) &&
      !lists(json_object_get(model, "operators"), "Dropout", false)) {
    (void)snprintf(said, sizeof(said), "--dropout %g: the model has no Dropout",
                   o->graph.dropout_ratio);
    cli_warn(NULL, OPIPE_LOG_WARN, __FILE__, __LINE__, said);
  }
  json_decref(model);
}

int cli_bind(const cli_options *o, cli_session *s, const cli_tensor *tensors, uint32_t n_tensors) {
  binding *b = calloc(1, sizeof(*b));
  if (b == NULL)
    return cli_fail("out of memory");
  int status = gather(o, s, tensors, n_tensors, b);
  if (status == CLI_DONE)
    status = bind_with(o, s, tensors, n_tensors, b);
  if (status == CLI_DONE && o->graph.ratio_dropout)
    judge_dropout(o, s);
  for (uint32_t i = 0; i < b->n_owned; ++i)
    cli_tensor_free(&b->owned[i]);
  for (uint32_t i = 0; i < b->n_dims; ++i)
    free((char *)(uintptr_t)b->dims[i].name);
  free(b->dims);
  free(b);
  return status;
}

/* ---- plans ---- */

/* The model that plans are made of: for passes as it was loaded. */
static opipe_model *planned_model(const cli_options *o, const cli_session *s) {
  return o->generate.plan.struct_size != 0 ? s->file : s->bound;
}

static int read_plan(const cli_options *o, cli_session *s, opipe_plan **out_plan) {
  opipe_error err = OPIPE_ERROR_INIT;
  void *json = NULL;
  size_t n = 0;
  const int found = cli_file_read(o->plan.plan_file, &json, &n);
  if (found != CLI_DONE)
    return found;
  const opipe_status status = s->api->plan_read(planned_model(o, s), json, n, out_plan, &err);
  free(json);
  return status < 0 ? cli_report(o->plan.plan_file, &err) : CLI_DONE;
}

/* Replaces the devices by those of a description. out_text->data is to be freed. */
static int read_cluster(const cli_options *o, const cli_session *s, opipe_plan_params *io_params,
                        cli_gathered *out_text) {
  const int status = cli_cluster_text(o, s, out_text);
  io_params->devices = NULL;
  io_params->n_devices = 0;
  io_params->cluster = out_text->data;
  io_params->cluster_bytes = out_text->n;
  io_params->cluster_name = o->plan.cluster;
  return status;
}

void cli_cut_nothing(cli_options *io_options) {
  cli_options *o = io_options;
  uint32_t alike = 0; /* devices of several kinds: one may support only some nodes */
  while (alike < o->on.n_devices && strcmp(o->on.devices[alike].kind, o->on.devices[0].kind) == 0)
    ++alike;
  o->plan.n_stages = o->plan.n_microbatches = 1;
  o->plan.n_ranks = o->t.tensor = 0;
  o->t.sequence = o->t.scattered = false;
  o->t.offload = NULL;
  o->on.n_devices = o->on.n_devices == 0 || alike < o->on.n_devices ? 0 : 1;
  o->plan.cut = o->plan.plan_file = o->plan.cluster = o->plan.schedule = o->plan.transport =
      o->t.replicas = NULL;
  o->on.memory_bytes = 0;
  o->graph.ignore_annotations = true;
}

int cli_make_plan(const cli_options *o, cli_session *s, uint32_t n_stages, opipe_plan **out_plan) {
  return cli_make_train_plan(o, s, n_stages, NULL, out_plan);
}

int cli_make_train_plan(const cli_options *o, cli_session *s, uint32_t n_stages,
                        const opipe_train_options *train, opipe_plan **out_plan) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device_choice devices[64];
  uint32_t replicas[CLI_LIST_MOST];
  opipe_model_info info = {.struct_size = sizeof(info)};
  if (o->plan.plan_file != NULL)
    return read_plan(o, s, out_plan);
  uint32_t n_devices = o->on.n_devices == 0 ? 1 : o->on.n_devices;
  devices[0] = (opipe_device_choice){.kind = "cpu"};
  memcpy(devices, o->on.devices, o->on.n_devices * sizeof(devices[0]));
  (void)s->api->model_info(planned_model(o, s), &info, NULL);
  const bool annotated = info.n_annotated_stages > 1 && !o->graph.ignore_annotations;
  opipe_plan_params copies = {.replicas = 0};
  if (cli_read_replicas(o->t.replicas, o->plan.n_stages, replicas, &copies) != CLI_DONE)
    return CLI_USAGE;
  const bool listed = copies.n_stage_replicas != 0; /* determines the number of ranks */
  const uint32_t width = o->t.tensor == 0 ? 1 : o->t.tensor;
  uint32_t stages = o->plan.n_stages != 0 ? o->plan.n_stages : copies.n_stages, listed_ranks = 0;
  for (uint32_t i = 0; listed && i < copies.n_stage_replicas; ++i)
    listed_ranks += replicas[i];
  if (!listed && stages == 0 && o->plan.cut == NULL && o->on.n_devices <= 1 &&
      o->plan.cluster == NULL && !annotated && o->plan.n_ranks == 0)
    stages = n_stages < width ? 1 : n_stages / width;
  const uint32_t ranks = o->plan.n_ranks != 0               ? o->plan.n_ranks
                         : listed                           ? listed_ranks
                         : stages != 0                      ? stages
                         : o->plan.cut == NULL && annotated ? info.n_annotated_stages
                                                            : n_devices;
  const uint32_t times =
      o->plan.n_ranks != 0 ? 1 : width * (copies.replicas == 0 ? 1 : copies.replicas);
  const uint32_t share = cli_cores() / (ranks == 0 ? 1 : ranks * times);
  for (uint32_t d = 0; d < n_devices; ++d) {
    if (devices[d].threads == 0 &&
        (o->on.n_threads != 0 || s->team == NULL)) /* a team shares out */
      devices[d].threads = o->on.n_threads != 0 ? o->on.n_threads : share == 0 ? 1 : share;
    if (s->team != NULL && o->on.n_devices != 0 && !o->team.numbered[d])
      devices[d].index = OPIPE_NONE;
  }
  opipe_plan_params params = {
      .struct_size = sizeof(params),
      .n_stages = stages,
      .devices = devices,
      .n_devices = n_devices,
      .devices_stride = sizeof(devices[0]),
      .n_microbatches = o->plan.n_microbatches,
      .replicas = copies.replicas,
      .stage_replicas = copies.stage_replicas,
      .n_stage_replicas = copies.n_stage_replicas,
      .tensor = o->t.tensor,
      .schedule = o->plan.schedule,
      .cut = o->plan.cut,
      .batch_dim = o->plan.batch,
      .memory_bytes = o->on.memory_bytes,
      .depth = o->plan.depth,
      .cost = o->plan.cost,
      .flags = (o->graph.ignore_annotations ? OPIPE_PLAN_IGNORE_ANNOTATIONS : 0u) |
               (o->plan.improve ? OPIPE_PLAN_IMPROVE : 0u) |
               (o->t.sequence ? OPIPE_PLAN_SEQUENCE : 0u) |
               (o->t.scattered ? OPIPE_PLAN_SCATTERED : 0u),
      .n_ranks = o->plan.n_ranks,
      .transport = o->plan.transport,
      .team = s->team,
      .offload = o->t.offload,
      .offload_bytes = o->t.offload_bytes,
      .places = s->team == NULL ? NULL : s->places,
      .n_places = s->team == NULL ? 0 : s->n_places,
      .train = train,
      .generation = o->generate.plan.struct_size == 0 ? NULL : &o->generate.plan,
      .costs = o->plan.stage_costs.costs.struct_size == 0 ? NULL : &o->plan.stage_costs.costs};
  cli_gathered cluster = {NULL, 0, 0};
  const int described = o->plan.cluster == NULL ? CLI_DONE : read_cluster(o, s, &params, &cluster);
  if (described != CLI_DONE)
    return described;
  const opipe_status status = s->api->plan_make(planned_model(o, s), &params, out_plan, &err);
  free(cluster.data);
  if (status == OPIPE_OK)
    return CLI_DONE;
  const bool of_shape =
      status == OPIPE_E_INVALID || (status == OPIPE_E_UNSUPPORTED && o->t.replicas != NULL);
  if (!o->out.quiet)
    cli_report_plan(o, of_shape, &err);
  const bool contradict =
      (o->plan.n_ranks != 0 || listed) && o->plan.n_stages != 0 && status == OPIPE_E_INVALID;
  const bool wrong =
      status == OPIPE_E_NOTFOUND ||
      (status == OPIPE_E_INVALID && cli_is_wrong_setting(o->plan.schedule, err.message));
  return contradict || wrong ? CLI_USAGE : CLI_FAILED;
}
