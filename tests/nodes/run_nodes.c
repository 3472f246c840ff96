/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the standard's node tests: load, bind, compile whole, run once, compare.
 *
 *   run_nodes [-v] [-a ATOL] [-b BACKEND] [-p FOLDER] [-o OPTIONS] [-x FILE] DATA_DIR LIST...
 *     LIST  a file of names, `kind/test_X` a line     -x FILE  names that are skipped
 *     -b    the backend (cpu), which device 0 is of   -p       a folder of further plugins
 *     -o    its options                               -v       a line for every test
 *     -a    absolute tolerance instead of 1e-7
 * Types and shapes must be exact, values within rtol 1e-3 (bfloat16: 2^-6), atol 1e-7, a NaN equal
 * to a NaN. Inputs that decide a shape are pinned to their values, the others are fed. Programs are
 * compiled with poison and red zones. Prints every failure with its reason; the exit status is 0
 * without failures, 77 when nothing ran.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/registry/registry.h"
#include "loader/passes/passes.h"
#include "tests/support/support.h"

enum { MAX_TENSORS = 64, NAME_ROOM = 256 };

typedef struct harness {
  const opipe_allocator *allocator;
  opi_registry *registry;
  const opipe_backend *backend;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event;
  uint32_t alignment;
  opi_evaluator *evaluator;
  double atol;
  bool verbose;
} harness;

/* One case: its data, then what came of it. */
typedef struct test_case {
  opi_arena arena;
  opi_model *model;
  opi_bound *bound;
  opi_value inputs[MAX_TENSORS], wanted[MAX_TENSORS];
  uint32_t n_inputs, n_wanted;
} test_case;

/* ---- data ---- */

/* Reads `folder`/<stem>_0.pb, _1.pb ... until one is missing. */
static opipe_status read_tensors(test_case *c, const char *folder, const char *stem,
                                 opi_value *tensors, uint32_t *out_n, opipe_error *err) {
  for (*out_n = 0; *out_n < MAX_TENSORS; ++*out_n) {
    size_t n_bytes = 0;
    const char *path = opi_arena_printf(&c->arena, "%s/%s_%u.pb", folder, stem, *out_n);
    if (path == NULL)
      return opi_fail_nomem(err, NAME_ROOM, "a path");
    if (access(path, R_OK) != 0)
      return OPIPE_OK;
    char *bytes = opi_test_read_file(path, &n_bytes);
    if (bytes == NULL)
      return opi_fail(err, OPIPE_E_IO, "%s cannot be read", path);
    const opipe_status status = opi_tensor_parse(bytes, n_bytes, &c->arena, &tensors[*out_n], err);
    free(bytes);
    if (status < 0)
      return status;
  }
  return opi_fail(err, OPIPE_E_LIMIT, "more than %d tensors", MAX_TENSORS);
}

/* ---- binding ---- */

static bool is_integer_like(uint32_t dtype) {
  return opi_dtype_is_integer(dtype) || dtype == OPIPE_BOOL;
}

/* Every unknown dimension of every input from the data; pins: inputs that become constants. level
 * 0: none, 1: integers and bools, 2: all. */
static opipe_status bind_case(const harness *h, test_case *c, int level, opipe_error *err) {
  static const char *const no_barriers[1] = {NULL};
  const opi_graph *graph = c->model->graph;
  opi_dim_binding dims[MAX_TENSORS * OPIPE_MAX_RANK];
  opi_pin pins[MAX_TENSORS];
  opi_bind_options options = {.dims = dims,
                              .pins = pins,
                              .barriers = no_barriers,
                              .dropout = OPI_DROPOUT_GRAPH,
                              .evaluator = h->evaluator,
                              .allocator = h->allocator};
  for (uint32_t i = 0; i < graph->n_inputs && i < c->n_inputs; ++i) {
    const opi_value *declared = &graph->values[graph->inputs[i]];
    const opi_value *given = &c->inputs[i];
    for (int32_t d = 0; d < declared->rank && d < given->rank; ++d) {
      if (declared->shape[d] >= 0)
        continue;
      const bool named = declared->dim_names != NULL && declared->dim_names[d] != NULL;
      dims[options.n_dims++] = (opi_dim_binding){
          named ? declared->dim_names[d] : opi_arena_printf(&c->arena, "%s.%d", declared->name, d),
          given->shape[d]};
    }
    if (level == 2 || (level == 1 && is_integer_like(given->dtype))) {
      pins[options.n_pins++] =
          (opi_pin){declared->name, given->data, given->shape, (uint32_t)given->rank, given->dtype};
    }
  }
  return opi_bind(c->model, &options, &c->bound, err);
}

static const opi_value *input_by_name(const test_case *c, const char *name) {
  const opi_graph *graph = c->model->graph;
  for (uint32_t i = 0; i < graph->n_inputs && i < c->n_inputs; ++i) {
    if (strcmp(graph->values[graph->inputs[i]].name, name) == 0)
      return &c->inputs[i];
  }
  return NULL;
}

/* ---- running ---- */

static opipe_status feed(const harness *h, const test_case *c, const opi_graph *graph,
                         const opipe_region *regions, opipe_error *err) {
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const opi_value *value = &graph->values[graph->inputs[i]];
    const opi_value *given = input_by_name(c, value->name);
    if (given == NULL || given->n_bytes != value->n_bytes || given->dtype != value->dtype)
      return opi_fail(err, OPIPE_E_INVALID, "input '%s' differs from its data", value->name);
    OPI_TRY(h->backend->write(h->queue, &regions[i], given->data, err));
  }
  return OPIPE_OK;
}

/* Boundary regions one after another in a buffer; regions [n_boundaries]. */
static opipe_status boundary_buffer(const harness *h, const opipe_graph *graph,
                                    opipe_region *regions, opipe_buffer **out_buffer,
                                    opipe_error *err) {
  uint64_t total = 0;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if (value->role != OPIPE_VALUE_INPUT && value->role != OPIPE_VALUE_OUTPUT)
      continue;
    regions[value->slot].offset_bytes = total;
    regions[value->slot].n_bytes = value->n_bytes;
    total += opi_align_up(value->n_bytes + 1, h->alignment);
  }
  OPI_TRY(h->backend->buffer_alloc(h->device, total, OPIPE_BUFFER_BOUNDARY, out_buffer, err));
  for (uint32_t s = 0; s < graph->n_boundaries; ++s)
    regions[s].buffer = *out_buffer;
  return OPIPE_OK;
}

static opipe_status finish(const harness *h, opipe_error *err) {
  OPI_TRY(h->backend->event_record(h->queue, h->event, err));
  return h->backend->event_sync(h->event, UINT64_MAX, err);
}

static opipe_status run_program(const harness *h, const test_case *c, const opipe_graph *graph,
                                const opipe_program *program, opipe_region *regions,
                                opipe_error *err) {
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  opipe_buffer *arena = NULL;
  opipe_binding *binding = NULL;
  OPI_TRY(h->backend->program_info(program, &info, err));
  OPI_TRY(h->backend->buffer_alloc(h->device, info.arena_bytes, OPIPE_BUFFER_ARENA, &arena, err));
  const opipe_bind_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_bind_params, boundaries),
      .n_boundaries = graph->n_boundaries,
      .program = program,
      .arena = {arena, 0, info.arena_bytes},
      .boundaries = regions};
  opipe_status status = h->backend->bind(h->device, &params, &binding, err);
  if (status >= 0)
    status = feed(h, c, c->bound->graph, regions, err);
  if (status >= 0)
    status = h->backend->run(binding, h->queue, NULL, 0, err);
  if (status >= 0)
    status = finish(h, err);
  h->backend->binding_free(binding);
  h->backend->buffer_free(arena);
  return status;
}

/* ---- comparing ---- */

static opipe_status compare_values(const opi_value *wanted, const void *found, double atol,
                                   opipe_error *err) {
  const double rtol = wanted->dtype == OPIPE_BFLOAT16 ? 0x1p-6 : 1e-3;
  uint64_t n = 0;
  (void)opi_shape_elems(wanted->shape, (uint32_t)wanted->rank, &n);
  if (opi_test_dtype_bytes(wanted->dtype) == 0 ||
      opipe_dtype_row_of(wanted->dtype)->elements == OPIPE_ELEM_SMALL) {
    if (memcmp(found, wanted->data, wanted->n_bytes) == 0)
      return OPIPE_OK;
    return opi_fail(err, OPIPE_E_INVALID, "'%s': other bytes", wanted->name);
  }
  for (uint64_t i = 0; i < n; ++i) {
    const double a = opi_test_element(found, i, wanted->dtype);
    const double b = opi_test_element(wanted->data, i, wanted->dtype);
    const bool same = a == b || (isnan(a) && isnan(b));
    if (!same && !(fabs(a - b) <= atol + rtol * fabs(b))) {
      return opi_fail(err, OPIPE_E_INVALID, "'%s': element %llu of %llu is %.9g, not %.9g",
                      wanted->name, (unsigned long long)i, (unsigned long long)n, a, b);
    }
  }
  return OPIPE_OK;
}

static bool same_shape(const opi_value *a, const opi_value *b) {
  for (int32_t i = 0; i < a->rank && a->rank == b->rank; ++i) {
    if (a->shape[i] != b->shape[i])
      return false;
  }
  return a->rank == b->rank;
}

static opipe_status compare_output(const harness *h, test_case *c, uint32_t i,
                                   const opipe_region *regions, opipe_error *err) {
  const opi_graph *graph = c->bound->graph;
  const opi_value *value = &graph->values[graph->outputs[i]];
  const opi_value *wanted = &c->wanted[i];
  const void *found = value->data;
  char shapes[2][128];
  if (value->dtype != wanted->dtype || !same_shape(value, wanted)) {
    return opi_fail(err, OPIPE_E_INVALID, "output '%s' is %s%s, not %s%s", value->name,
                    opi_dtype_name(value->dtype),
                    opi_shape_text(shapes[0], 128, value->shape, (uint32_t)value->rank),
                    opi_dtype_name(wanted->dtype),
                    opi_shape_text(shapes[1], 128, wanted->shape, (uint32_t)wanted->rank));
  }
  if (found == NULL && (value->flags & OPI_VALUE_INPUT) != 0)
    found = input_by_name(c, value->name)->data;
  if (found == NULL) {
    void *copy = opi_arena_alloc(&c->arena, (size_t)value->n_bytes + 1);
    if (copy == NULL)
      return opi_fail_nomem(err, value->n_bytes, "an output");
    OPI_TRY(h->backend->read(h->queue, copy, &regions[graph->n_inputs + i], err));
    OPI_TRY(finish(h, err));
    found = copy;
  }
  return compare_values(wanted, found, h->atol, err);
}

static opipe_status compute(const harness *h, test_case *c, opipe_error *err) {
  const opi_graph *bound = c->bound->graph;
  opipe_region regions[2 * MAX_TENSORS] = {{NULL, 0, 0}};
  opipe_graph graph;
  opipe_program *program = NULL;
  opipe_buffer *buffer = NULL;
  OPI_TRY(opi_graph_to_abi(bound, &c->arena, &graph, err));
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = OPIPE_COMPILE_POISON,
      .graph = &graph};
  if (bound->n_outputs != c->n_wanted || graph.n_boundaries > 2 * MAX_TENSORS) {
    return opi_fail(err, OPIPE_E_INVALID, "%u outputs, %u in the data", bound->n_outputs,
                    c->n_wanted);
  }
  opipe_status status = h->backend->compile(h->device, &params, &program, err);
  if (status >= 0)
    status = boundary_buffer(h, &graph, regions, &buffer, err);
  if (status >= 0)
    status = run_program(h, c, &graph, program, regions, err);
  for (uint32_t i = 0; status >= 0 && i < bound->n_outputs; ++i)
    status = compare_output(h, c, i, regions, err);
  h->backend->buffer_free(buffer);
  h->backend->program_free(program);
  return status;
}

/* ---- one test ---- */

static opipe_status run_case(const harness *h, test_case *c, const char *folder, bool *out_skipped,
                             opipe_error *err) {
  const opi_load_params params = {.path = opi_arena_printf(&c->arena, "%s/model.onnx", folder),
                                  .allocator = h->allocator};
  OPI_TRY(opi_model_load(&params, &c->model, err));
  const char *data = opi_arena_printf(&c->arena, "%s/test_data_set_0", folder);
  opipe_status status = read_tensors(c, data, "input", c->inputs, &c->n_inputs, err);
  if (status >= 0)
    status = read_tensors(c, data, "output", c->wanted, &c->n_wanted, err);
  if (status < 0) {
    *out_skipped = true; /* sequences, optional values, strings */
    return status;
  }
  for (int level = 0; level < 3; ++level) {
    *err = (opipe_error)OPIPE_ERROR_INIT;
    status = bind_case(h, c, level, err);
    if (status >= 0 || strstr(err->message, "value") == NULL)
      break;
  }
  return status < 0 ? status : compute(h, c, err);
}

typedef struct tally {
  uint32_t passed, failed, skipped;
} tally;

static void run_one(const harness *h, const char *data, const char *name, tally *io_tally) {
  opipe_error err = OPIPE_ERROR_INIT;
  bool skipped = false;
  test_case *c = calloc(1, sizeof *c);
  if (c == NULL) {
    perror("run_nodes");
    exit(2);
  }
  opi_arena_init(&c->arena, h->allocator, 0);
  const char *folder = opi_arena_printf(&c->arena, "%s/%s", data, name);
  const opipe_status status = run_case(h, c, folder, &skipped, &err);
  if (status < 0)
    printf("%s %s: %s\n", skipped ? "SKIP" : "FAIL", name, err.message);
  else if (h->verbose)
    printf("ok   %s\n", name);
  ++*(status >= 0 ? &io_tally->passed : skipped ? &io_tally->skipped : &io_tally->failed);
  opi_bound_free(c->bound);
  opi_model_free(c->model);
  opi_arena_release(&c->arena);
  free(c);
}

/* True when `name` is a line of the text. */
static bool listed(const char *text, const char *name) {
  const size_t n = strlen(name);
  for (const char *at = text; at != NULL && (at = strstr(at, name)) != NULL; ++at) {
    if ((at == text || at[-1] == '\n') && (at[n] == '\n' || at[n] == '\0'))
      return true;
  }
  return false;
}

static void run_list(const harness *h, const char *data, const char *list, const char *excluded,
                     tally *out_tally) {
  size_t n_bytes = 0;
  char *text = opi_test_read_file(list, &n_bytes);
  *out_tally = (tally){0, 0, 0};
  for (char *line = text; line != NULL && *line != '\0';) {
    char name[NAME_ROOM];
    const size_t n = strcspn(line, "\n");
    (void)snprintf(name, sizeof name, "%.*s", (int)n, line);
    line += n + (line[n] == '\n');
    if (listed(excluded, name)) {
      printf("SKIP %s: its data was drawn by another random generator\n", name);
      ++out_tally->skipped;
    } else if (name[0] != '\0') {
      run_one(h, data, name, out_tally);
    }
  }
  free(text);
  const char *base = strrchr(list, '/');
  printf("%s: %u passed, %u failed, %u skipped\n", base != NULL ? base + 1 : list,
         out_tally->passed, out_tally->failed, out_tally->skipped);
}

static opipe_status open_backend(harness *h, const char *id, const char *more, const char *options,
                                 opipe_error *err) {
  const char *folders[] = {opi_test_build("lib/onnx-pipe"), more};
  const opi_registry_params params = {
      .allocator = h->allocator, .paths = folders, .n_paths = more == NULL ? 1 : 2};
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  const opipe_device_params device = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .threads = 1,
      .options = options};
  opi_plugin_ref plugin, cpu;
  OPI_TRY(opi_registry_create(&params, &h->registry, err));
  OPI_TRY(opi_registry_find(h->registry, OPIPE_KIND_BACKEND, "cpu", &cpu, err));
  OPI_TRY(opi_registry_find(h->registry, OPIPE_KIND_BACKEND, id, &plugin, err));
  h->backend = plugin.table;
  OPI_TRY(h->backend->device_query(plugin.self, 0, &info, err));
  h->alignment = info.alignment;
  OPI_TRY(h->backend->device_open(plugin.self, &device, &h->device, err));
  OPI_TRY(h->backend->queue_open(h->device, &h->queue, err));
  OPI_TRY(h->backend->event_create(h->device, &h->event, err));
  return opi_evaluator_create(h->allocator, cpu.id, cpu.table, cpu.self, &h->evaluator, err);
}

int main(int argc, char **argv) {
  harness h = {.allocator = opi_allocator_system(), .atol = 1e-7};
  const char *options = NULL, *id = "cpu", *plugins = NULL;
  char *excluded = NULL;
  size_t n_bytes = 0;
  tally sum = {0, 0, 0};
  opipe_error err = OPIPE_ERROR_INIT;
  for (int flag = 0; (flag = getopt(argc, argv, "a:b:vo:p:x:")) != -1;) {
    h.verbose = h.verbose || flag == 'v';
    options = flag == 'o' ? optarg : options;
    id = flag == 'b' ? optarg : id;
    plugins = flag == 'p' ? optarg : plugins;
    h.atol = flag == 'a' ? strtod(optarg, NULL) : h.atol;
    if (flag == 'x')
      excluded = opi_test_read_file(optarg, &n_bytes);
    if (flag == '?')
      return 2;
  }
  if (argc - optind < 2) {
    fprintf(stderr,
            "usage: run_nodes [-v] [-a ATOL] [-b BACKEND] [-p FOLDER] [-o OPTIONS] [-x FILE] "
            "DATA_DIR LIST...\n");
    return 2;
  }
  if (open_backend(&h, id, plugins, options, &err) < 0) {
    fprintf(stderr, "run_nodes: %s\n", err.message);
    return 2;
  }
  for (int i = optind + 1; i < argc; ++i) {
    tally one;
    run_list(&h, argv[optind], argv[i], excluded, &one);
    sum.passed += one.passed;
    sum.failed += one.failed;
    sum.skipped += one.skipped;
  }
  opi_evaluator_free(h.evaluator);
  h.backend->event_destroy(h.event);
  h.backend->queue_close(h.queue);
  h.backend->device_close(h.device);
  opi_registry_free(h.registry);
  free(excluded);
  return sum.failed > 0 ? 1 : sum.passed == 0 ? 77 : 0;
}
