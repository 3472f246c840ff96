/* SPDX-License-Identifier: Apache-2.0 */
/* From operations to a plan: the library's heuristics name engines, the first that takes the graph
 * is compiled. It depends on the form, the library's version and the chip.
 */
#include "cudnn.h"

enum { CONFIGS = 8 };                                    /* engines that are asked for */
static const int64_t WORKSPACE_LIMIT = INT64_C(1) << 30; /* bytes of an engine */

opipe_status cuda_dnn_status(cudnnStatus_t status) {
  const int number = (int)status, kind = number / 1000;
  if (status == CUDA_DNN_SUCCESS)
    return OPIPE_OK;
  if (kind == CUDA_DNN_NOT_SUPPORTED / 1000 || kind == CUDA_DNN_BAD_PARAM / 1000)
    return OPIPE_E_UNSUPPORTED;
  return number == CUDA_DNN_NO_MEMORY || number == CUDA_DNN_NO_DEVICE_MEMORY ? OPIPE_E_NOMEM
                                                                             : OPIPE_E_DEVICE;
}

static opipe_status refuse(const cuda_dnn_maker *m, opipe_error *err) {
  return opipe_fail(err, cuda_dnn_status(m->status), "cuDNN: %s: %s (%d)%s%.160s", m->what,
                    m->dnn->error_name(m->status), (int)m->status, m->why[0] != '\0' ? ": " : "",
                    m->why);
}

/* Does the engine give the same bits in every run, as far as it says? */
static bool is_steady(cuda_dnn_maker *m, cudnnBackendDescriptor_t engine) {
  int notes[CUDA_DNN_NOTES];
  int64_t n = 0;
  if (m->dnn->get(engine, (cudnnBackendAttributeName_t)CUDA_DNN_ENGINE_NOTE,
                  (cudnnBackendAttributeType_t)CUDA_DNN_T_NOTE, CUDA_DNN_NOTES, &n,
                  notes) != CUDA_DNN_SUCCESS)
    return false;
  for (int64_t i = 0; i < n && i < CUDA_DNN_NOTES; ++i) {
    if (notes[i] == CUDA_DNN_NOTE_UNSTEADY)
      return false;
  }
  return true;
}

/* The engine of a configuration: its number, and whether it may be taken. */
static bool look_at_engine(cuda_dnn_maker *m, cudnnBackendDescriptor_t config) {
  cuda_dnn_plan *plan = m->plan;
  cudnnBackendDescriptor_t engine = cuda_dnn_make(m, CUDA_DNN_ENGINE, "an engine");
  int64_t n = 0;
  plan->engine = -1;
  if (m->status != CUDA_DNN_SUCCESS)
    return false;
  cuda_dnn_note(m,
                m->dnn->get(config, (cudnnBackendAttributeName_t)CUDA_DNN_CONFIG_ENGINE,
                            (cudnnBackendAttributeType_t)CUDA_DNN_T_DESCRIPTOR, 1, &n, &engine),
                "an engine");
  if (m->status == CUDA_DNN_SUCCESS) {
    cuda_dnn_note(m,
                  m->dnn->get(engine, (cudnnBackendAttributeName_t)CUDA_DNN_ENGINE_INDEX,
                              (cudnnBackendAttributeType_t)CUDA_DNN_T_INT64, 1, &n, &plan->engine),
                  "an engine's number");
  }
  if (m->status == CUDA_DNN_SUCCESS && plan->form.unsteady == 0 && !is_steady(m, engine)) {
    m->status = (cudnnStatus_t)CUDA_DNN_NOT_SUPPORTED;
    m->what = "an engine whose bits change from run to run";
  }
  return m->status == CUDA_DNN_SUCCESS;
}

static void set_one(cuda_dnn_maker *m, cudnnBackendDescriptor_t descriptor, int name,
                    cudnnBackendDescriptor_t value) {
  cuda_dnn_set(m, descriptor, name, CUDA_DNN_T_DESCRIPTOR, 1, &value);
}

/* Compiles a configuration. */
static void try_config(cuda_dnn_maker *m, cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                       cudnnBackendDescriptor_t config) {
  int64_t n = 0, n_bytes = 0;
  if (!look_at_engine(m, config))
    return;
  const cudnnBackendDescriptor_t made = cuda_dnn_make(m, CUDA_DNN_PLAN, "a plan");
  set_one(m, made, CUDA_DNN_PLAN_CONFIG, config);
  if (device != NULL)
    set_one(m, made, CUDA_DNN_PLAN_DEVICE, device);
  else
    cuda_dnn_set(m, made, CUDA_DNN_PLAN_HANDLE, CUDA_DNN_T_HANDLE, 1, &handle);
  cuda_dnn_end(m, made);
  if (m->status != CUDA_DNN_SUCCESS)
    return;
  cuda_dnn_note(m,
                m->dnn->get(made, (cudnnBackendAttributeName_t)CUDA_DNN_PLAN_WORKSPACE,
                            (cudnnBackendAttributeType_t)CUDA_DNN_T_INT64, 1, &n, &n_bytes),
                "a plan's workspace");
  if (m->status == CUDA_DNN_SUCCESS && (n_bytes < 0 || n_bytes > WORKSPACE_LIMIT)) {
    m->status = (cudnnStatus_t)CUDA_DNN_NOT_SUPPORTED;
    m->what = "a workspace of more than 1 GiB";
  }
  if (m->status == CUDA_DNN_SUCCESS) {
    m->plan->plan = made;
    m->plan->workspace_bytes = (uint64_t)n_bytes;
  }
}

/* Configurations that the heuristics name, the best first; *out_n of them. */
static void ask_heuristics(cuda_dnn_maker *m, cudnnBackendDescriptor_t graph,
                           cudnnBackendDescriptor_t device, cudnnBackendDescriptor_t *out,
                           int64_t *out_n) {
  const int mode = CUDA_DNN_HEURISTIC_A;
  const cudnnBackendDescriptor_t heuristic =
      cuda_dnn_make(m, CUDA_DNN_HEURISTIC, "the choice of an engine");
  set_one(m, heuristic, CUDA_DNN_HEURISTIC_GRAPH, graph);
  cuda_dnn_set(m, heuristic, CUDA_DNN_HEURISTIC_MODE, CUDA_DNN_T_HEURISTIC, 1, &mode);
  if (device != NULL)
    set_one(m, heuristic, CUDA_DNN_HEURISTIC_DEVICE, device);
  cuda_dnn_end(m, heuristic);
  for (int i = 0; i < CONFIGS; ++i)
    out[i] = cuda_dnn_make(m, CUDA_DNN_ENGINE_CONFIG, "the choice of an engine");
  *out_n = 0;
  if (m->status == CUDA_DNN_SUCCESS) {
    cuda_dnn_note(
        m,
        m->dnn->get(heuristic, (cudnnBackendAttributeName_t)CUDA_DNN_HEURISTIC_RESULTS,
                    (cudnnBackendAttributeType_t)CUDA_DNN_T_DESCRIPTOR, CONFIGS, out_n, out),
        "the choice of an engine");
  }
  *out_n = *out_n > CONFIGS ? CONFIGS : *out_n;
  if (m->status == CUDA_DNN_SUCCESS && *out_n <= 0) {
    m->status = (cudnnStatus_t)CUDA_DNN_NOT_SUPPORTED;
    m->what = "no engine for the graph";
  }
}

static cudnnBackendDescriptor_t make_graph(cuda_dnn_maker *m, cudnnHandle_t handle) {
  const cudnnBackendDescriptor_t graph = cuda_dnn_make(m, CUDA_DNN_GRAPH, "the graph");
  cuda_dnn_set(m, graph, CUDA_DNN_GRAPH_OPS, CUDA_DNN_T_DESCRIPTOR, m->n_ops, m->ops);
  if (handle != NULL)
    cuda_dnn_set(m, graph, CUDA_DNN_GRAPH_HANDLE, CUDA_DNN_T_HANDLE, 1, &handle);
  cuda_dnn_end(m, graph);
  return graph;
}

/* Versions whose makers tell of wrong numbers (cudnn-frontend, sdpa_support_surface.h): gradients
 * up to 9.15.0 where the last tile of keys is not full, all of it by 9.10.0 and 9.10.1. */
static bool is_known_wrong(size_t version, const cuda_dnn_form *f) {
  return version == 91000 || version == 91001 ||
         (version <= 91500 && f->what == CUDA_DNN_GRADIENTS && f->keys % 128 != 0);
}

opipe_status cuda_dnn_plan_make(const cuda_dnn_functions *dnn, cudnnHandle_t handle,
                                cudnnBackendDescriptor_t device, cuda_dnn_plan *plan,
                                opipe_error *err) {
  cuda_dnn_maker m = {.dnn = dnn, .plan = plan, .what = ""};
  cudnnBackendDescriptor_t configs[CONFIGS];
  int64_t n = 0;
  const size_t version = dnn->version();
  if (is_known_wrong(version, &plan->form)) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "cuDNN: version %zu.%zu.%zu is wrong about it",
                      version / 10000, version % 10000 / 100, version % 100);
  }
  plan->scalars[CUDA_DNN_SCALE].real = plan->form.scale;
  plan->scalars[CUDA_DNN_HIDDEN].real = -__builtin_inff();
  plan->scalars[CUDA_DNN_ONE].real = 1.0f;
  plan->scalars[CUDA_DNN_KEYS].whole = (int32_t)plan->form.keys;
  plan->scalars[CUDA_DNN_QUERIES].whole = (int32_t)plan->form.queries;
  cuda_dnn_describe(&m);
  const cudnnBackendDescriptor_t graph = make_graph(&m, handle);
  ask_heuristics(&m, graph, device, configs, &n);
  bool more = m.status == CUDA_DNN_SUCCESS;
  for (int64_t i = 0; more && plan->plan == NULL && i < n; ++i) {
    m.status = (cudnnStatus_t)CUDA_DNN_SUCCESS; /* of the one before */
    try_config(&m, handle, device, configs[i]);
    more = cuda_dnn_status(m.status) == OPIPE_E_UNSUPPORTED; /* else the next one has other bits */
  }
  return plan->plan != NULL ? OPIPE_OK : refuse(&m, err);
}

void cuda_dnn_plan_end(const cuda_dnn_functions *dnn, cuda_dnn_plan *plan) {
  for (uint32_t i = plan->n; i > 0; --i)
    (void)dnn->free(plan->all[i - 1]);
  plan->n = 0;
  plan->plan = NULL;
}
