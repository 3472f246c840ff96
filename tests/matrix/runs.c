/* SPDX-License-Identifier: Apache-2.0 */
/* Binds a model to a data set, runs plans, keeps and compares results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/matrix/kit.h"

enum { DIMS = MX_TENSORS * 8, PINS = 8 };
static const uint64_t DEADLINE_NS = UINT64_C(60000000000);

/* ---- models ---- */

opipe_status mx_open(mx_model *m, const opipe_context_params *params, const mx_folder *folder) {
  char path[MX_PATH + 64];
  memset(m, 0, sizeof *m);
  m->err.struct_size = sizeof m->err;
  m->folder = folder;
  (void)snprintf(path, sizeof path, "%s/model.onnx", folder->path);
  const opipe_load_params load = {.struct_size = sizeof load, .path = path};
  opipe_status status = opipe_get_api(OPIPE_VIEW, &m->api, &m->err);
  if (status == OPIPE_OK)
    status = m->api->context_create(params, &m->context, &m->err);
  if (status == OPIPE_OK)
    status = m->api->model_load(m->context, &load, &m->file, &m->err);
  return status;
}

static opipe_dtype dl_dtype(uint32_t dtype) {
  opipe_dtype dl = {OPIPE_DL_INT, (uint8_t)(opi_test_dtype_bytes(dtype) * 8), 1};
  if (dtype == OPIPE_FLOAT || dtype == OPIPE_DOUBLE || dtype == OPIPE_FLOAT16)
    dl.code = OPIPE_DL_FLOAT;
  if (dtype == OPIPE_BFLOAT16)
    dl.code = OPIPE_DL_BFLOAT;
  if (dtype == OPIPE_BOOL)
    dl.code = OPIPE_DL_BOOL;
  if (dtype == OPIPE_UINT8 || dtype == OPIPE_UINT16 || dtype == OPIPE_UINT32 ||
      dtype == OPIPE_UINT64)
    dl.code = OPIPE_DL_UINT;
  return dl;
}

static opipe_tensor view_of(const opi_value *v) {
  return (opipe_tensor){.data = (void *)(uintptr_t)v->data,
                        .device_type = OPIPE_DL_CPU,
                        .rank = v->rank,
                        .dtype = dl_dtype(v->dtype),
                        .shape = v->shape};
}

const opi_value *mx_input(mx_model *m, const mx_set *set, const char *name) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; i < set->n_inputs; ++i) {
    const char *own = set->inputs[i].name;
    if ((own == NULL || own[0] == '\0') && m->api->model_input(m->file, i, &info, NULL) == OPIPE_OK)
      own = info.name;
    if (own != NULL && strcmp(own, name) == 0)
      return &set->inputs[i];
  }
  return NULL;
}

typedef struct bindings {
  opipe_dim dims[DIMS];
  char names[DIMS][320];
  opipe_pin pins[PINS];
  uint32_t n_dims, n_pins;
} bindings;

/* Files exist whose one name stands for two lengths: the second is given by its place. */
static void add_dim(bindings *b, const opipe_tensor_info *info, uint32_t axis, int64_t value) {
  char key[320];
  const bool named =
      info->dim_names != NULL && info->dim_names[axis] != NULL && info->dim_names[axis][0] != '\0';
  if (named)
    (void)snprintf(key, sizeof key, "%s", info->dim_names[axis]);
  else
    (void)snprintf(key, sizeof key, "%s.%u", info->name, axis);
  for (uint32_t i = 0; i < b->n_dims; ++i) {
    if (strcmp(b->names[i], key) != 0)
      continue;
    if (b->dims[i].value == value)
      return;
    (void)snprintf(key, sizeof key, "%s.%u", info->name, axis);
  }
  if (b->n_dims == DIMS)
    return;
  (void)snprintf(b->names[b->n_dims], sizeof b->names[0], "%s", key);
  b->dims[b->n_dims] = (opipe_dim){b->names[b->n_dims], value};
  ++b->n_dims;
}

static bool pin_needed(mx_model *m, bindings *b) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  if (m->err.domain != OPIPE_DOMAIN_INPUT || b->n_pins == PINS ||
      m->api->model_input(m->file, (uint32_t)m->err.native, &info, NULL) < 0)
    return false;
  const opi_value *v = mx_input(m, m->set, info.name);
  if (v == NULL)
    return false;
  b->pins[b->n_pins++] = (opipe_pin){info.name, view_of(v)};
  return true;
}

opipe_status mx_bind(mx_model *m, uint32_t set, bool fuse) {
  return mx_bind_to(m, &m->folder->sets[set], fuse);
}

opipe_status mx_bind_to(mx_model *m, const mx_set *set, bool fuse) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  bindings *b = calloc(1, sizeof *b);
  if (b == NULL)
    return OPIPE_E_NOMEM;
  m->api->model_destroy(m->bound);
  m->bound = NULL;
  m->set = set;
  for (uint32_t i = 0; m->api->model_input(m->file, i, &info, NULL) == OPIPE_OK; ++i) {
    const opi_value *v = mx_input(m, m->set, info.name);
    for (uint32_t d = 0; v != NULL && (int32_t)info.rank == v->rank && d < info.rank; ++d) {
      if (info.shape[d] < 0)
        add_dim(b, &info, d, v->shape[d]);
    }
  }
  opipe_status status;
  do {
    const opipe_bind_options options = {
        .struct_size = sizeof options,
        .flags = OPIPE_BIND_DEFAULTS | (fuse ? 0u : OPIPE_BIND_NO_FUSE),
        .dims = b->dims,
        .pins = b->pins,
        .n_dims = b->n_dims,
        .dims_stride = sizeof(opipe_dim),
        .n_pins = b->n_pins,
        .pins_stride = sizeof(opipe_pin)};
    status = m->api->model_bind(m->file, &options, &m->bound, &m->err);
  } while (status < 0 && pin_needed(m, b));
  free(b);
  return status;
}

void mx_close(mx_model *m) {
  if (m->api == NULL)
    return;
  m->api->model_destroy(m->bound);
  m->api->model_destroy(m->file);
  m->api->context_destroy(m->context);
  memset(m, 0, sizeof *m);
}

/* ---- the cut as text ---- */

char *mx_cut_text(mx_model *m, opipe_plan *plan) {
  static const char stages[] = "\"stages\": [", nodes[] = "\"nodes\": ";
  opi_test_text json = {NULL, 0}, cut = {NULL, 0};
  opipe_status status = m->api->plan_write(plan, opi_test_take, &json, &m->err);
  char *at = status == OPIPE_OK && json.data != NULL ? strstr(json.data, stages) : NULL;
  if (at != NULL)
    at = strchr(at, '\n');
  while (at != NULL && status == OPIPE_OK) {
    char *end = strchr(at + 1, '\n');
    if (end == NULL)
      break;
    *end = '\0';
    const char *list = strstr(at + 1, nodes);
    *end = '\n';
    if (list == NULL || list > end)
      break;
    const size_t n = (size_t)(end - list);
    status = opi_test_take(&cut, list, list[n - 1] == ',' ? n - 1 : n);
    if (status == OPIPE_OK)
      status = opi_test_take(&cut, "\n", 1);
    at = end;
  }
  free(json.data);
  return cut.data;
}

/* ---- runs ---- */

void mx_result_free(mx_result *result) {
  for (uint32_t i = 0; i < result->n; ++i)
    free(result->data[i]);
  memset(result, 0, sizeof *result);
}

opipe_status mx_inputs(mx_model *m, const mx_set *set, mx_io *io) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  io->n = 0;
  for (uint32_t i = 0; m->api->model_input(m->bound, i, &info, NULL) == OPIPE_OK; ++i) {
    const opi_value *v = mx_input(m, set, info.name);
    if (v == NULL || io->n == MX_TENSORS)
      return opi_fail(&m->err, OPIPE_E_NOTFOUND, "the data set has no input '%s'", info.name);
    io->items[io->n++] = (opipe_binding_io){.name = info.name, .tensor = view_of(v)};
  }
  return OPIPE_OK;
}

opipe_status mx_submit(mx_model *m, opipe_session *session, const mx_io *io, opipe_request **out) {
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = io->n,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = io->items};
  return m->api->session_submit(session, &submit, out, &m->err);
}

static opipe_status copy_output(mx_model *m, opipe_request *request, uint32_t i, mx_result *out) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  opipe_tensor t = {0};
  opipe_status status = m->api->model_output(m->bound, i, &info, &m->err);
  if (status == OPIPE_OK)
    status = m->api->request_output(request, i, &t, &m->err);
  if (status != OPIPE_OK)
    return status;
  uint64_t n = 1;
  for (int32_t d = 0; d < t.rank; ++d) {
    out->shape[i][d] = t.shape[d];
    n *= (uint64_t)t.shape[d];
  }
  out->rank[i] = (uint32_t)t.rank;
  out->dtype[i] = info.dtype;
  out->n_elems[i] = n;
  out->n_bytes[i] = n * opi_test_dtype_bytes(info.dtype);
  out->data[i] = malloc((size_t)out->n_bytes[i] + 1);
  if (out->data[i] == NULL || t.strides != NULL)
    return opi_fail(&m->err, OPIPE_E_NOMEM, "output %u: no memory, or not dense", i);
  memcpy(out->data[i], (char *)t.data + t.byte_offset, (size_t)out->n_bytes[i]);
  return OPIPE_OK;
}

opipe_status mx_collect(mx_model *m, opipe_request *request, mx_result *out) {
  opipe_model_info info = {.struct_size = sizeof info};
  memset(out, 0, sizeof *out);
  opipe_status status = m->api->request_wait(request, DEADLINE_NS, &m->err);
  if (status == OPIPE_OK)
    status = m->api->model_info(m->bound, &info, &m->err);
  for (uint32_t i = 0; status == OPIPE_OK && i < info.n_outputs && i < MX_TENSORS; ++i) {
    out->n = i + 1;
    status = copy_output(m, request, i, out);
  }
  m->api->request_release(request);
  if (status != OPIPE_OK)
    mx_result_free(out);
  return status;
}

opipe_status mx_stream(mx_model *m, opipe_session *session, const mx_set *const *sets, uint32_t n,
                       mx_result *out) {
  static mx_io io[MX_STREAM]; /* theirs until they have finished */
  opipe_request *requests[MX_STREAM];
  uint32_t sent = 0, got = 0;
  opipe_status status = OPIPE_OK;
  memset(out, 0, n * sizeof *out);
  while (got < n && n <= MX_STREAM && status == OPIPE_OK) {
    if (sent < n) {
      status = mx_inputs(m, sets[sent], &io[sent]);
      if (status == OPIPE_OK)
        status = mx_submit(m, session, &io[sent], &requests[sent]);
      sent += status == OPIPE_OK;
      if (status != OPIPE_PENDING || sent == got)
        continue;
    }
    status = mx_collect(m, requests[got], &out[got]); /* the session takes no more at once */
    ++got;
  }
  for (; got < sent; ++got)
    m->api->request_release(requests[got]);
  for (uint32_t i = 0; i < n && status != OPIPE_OK; ++i)
    mx_result_free(&out[i]);
  return n <= MX_STREAM ? status
                        : opi_fail(&m->err, OPIPE_E_LIMIT, "%u requests, at most %d", n, MX_STREAM);
}

/* The set of the binding, `n` times: equal results, of which the first is left. */
static opipe_status stream(mx_model *m, opipe_session *session, uint32_t n, mx_result *out) {
  const mx_set *sets[MX_STREAM];
  mx_result results[MX_STREAM];
  for (uint32_t i = 0; i < MX_STREAM; ++i)
    sets[i] = m->set;
  opipe_status status = mx_stream(m, session, sets, n, results);
  for (uint32_t i = 1; i < n && status == OPIPE_OK; ++i) {
    const char *differs = mx_same_bits(&results[i], &results[0]);
    if (differs != NULL) {
      status =
          opi_fail(&m->err, OPIPE_E_INTERNAL, "request %u differs from request 0: %s", i, differs);
    }
  }
  for (uint32_t i = 1; i < n && n <= MX_STREAM; ++i)
    mx_result_free(&results[i]);
  if (n <= MX_STREAM)
    *out = results[0];
  return status;
}

opipe_status mx_run(mx_model *m, opipe_plan *plan, uint32_t flags, uint32_t n_requests,
                    mx_result *out) {
  const opipe_session_params params = {
      .struct_size = sizeof params, .flags = flags, .max_in_flight = n_requests};
  opipe_session *session = NULL;
  memset(out, 0, sizeof *out);
  opipe_status status = m->api->session_open(m->context, plan, &params, &session, &m->err);
  if (status == OPIPE_OK)
    status = stream(m, session, n_requests, out);
  m->api->session_close(session);
  return status;
}

opipe_status mx_read_again(mx_model *m, opipe_plan **io_plan) {
  opi_test_text first = {NULL, 0}, second = {NULL, 0};
  opipe_plan *plan = NULL;
  opipe_status status = m->api->plan_write(*io_plan, opi_test_take, &first, &m->err);
  if (status == OPIPE_OK)
    status = m->api->plan_read(m->file, first.data, first.n, &plan, &m->err);
  if (status == OPIPE_OK)
    status = m->api->plan_write(plan, opi_test_take, &second, &m->err);
  if (status == OPIPE_OK && (first.n != second.n || memcmp(first.data, second.data, first.n) != 0))
    status = opi_fail(&m->err, OPIPE_E_INTERNAL, "the plan that was read is written otherwise");
  free(first.data);
  free(second.data);
  if (status == OPIPE_OK) {
    m->api->plan_destroy(*io_plan);
    *io_plan = plan;
  } else {
    m->api->plan_destroy(plan);
  }
  return status;
}

opipe_status mx_run_uncut(mx_model *m, mx_result *out) {
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = 1, .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  opipe_plan *plan = NULL;
  opipe_status status = m->api->plan_make(m->bound, &params, &plan, &m->err);
  if (status == OPIPE_OK)
    status = mx_run(m, plan, OPIPE_SESSION_REFERENCE, 1, out);
  m->api->plan_destroy(plan);
  return status;
}

/* ---- comparing ---- */

static char reason[512];

static bool same_form(const mx_result *a, const mx_result *b, uint32_t i) {
  return a->dtype[i] == b->dtype[i] && a->rank[i] == b->rank[i] &&
         memcmp(a->shape[i], b->shape[i], a->rank[i] * sizeof(int64_t)) == 0;
}

const char *mx_same_bits(const mx_result *found, const mx_result *wanted) {
  if (found->n != wanted->n || found->n == 0)
    return "another number of outputs, or none";
  for (uint32_t i = 0; i < found->n; ++i) {
    if (same_form(found, wanted, i) &&
        memcmp(found->data[i], wanted->data[i], (size_t)found->n_bytes[i]) == 0)
      continue;
    (void)snprintf(reason, sizeof reason, "output %u has other bits", i);
    return reason;
  }
  return NULL;
}

/* max |a - b| <= tol * (1 + max |b|), or tol * max |b|; NULL when it holds. */
static const char *near(const void *a, const void *b, uint64_t n, uint32_t dtype, double tol,
                        bool absolute, uint32_t output) {
  double worst = 0, scale = 0;
  for (uint64_t k = 0; k < n; ++k) {
    const double x = opi_test_element(a, (size_t)k, dtype);
    const double y = opi_test_element(b, (size_t)k, dtype);
    const double d = x == y || (isnan(x) && isnan(y)) ? 0 : fabs(x - y);
    if (isfinite(y) && fabs(y) > scale)
      scale = fabs(y);
    if (!(d <= worst))
      worst = isnan(d) ? INFINITY : d;
  }
  if (worst <= tol * scale + (absolute ? tol : 0))
    return NULL;
  (void)snprintf(reason, sizeof reason,
                 "output %u: largest difference %g, largest value %g, "
                 "tolerance %g",
                 output, worst, scale, tol);
  return reason;
}

const char *mx_close_to(const mx_result *found, const mx_result *wanted) {
  if (found->n != wanted->n || found->n == 0)
    return "another number of outputs, or none";
  for (uint32_t i = 0; i < found->n; ++i) {
    const uint32_t dtype = found->dtype[i];
    const double tol = dtype == OPIPE_FLOAT || dtype == OPIPE_DOUBLE ? 1e-5
                       : dtype == OPIPE_FLOAT16                      ? 2e-3
                       : dtype == OPIPE_BFLOAT16                     ? 2e-2
                                                                     : 0;
    if (!same_form(found, wanted, i))
      return "an output has another type or shape";
    const char *far =
        near(found->data[i], wanted->data[i], found->n_elems[i], dtype, tol, false, i);
    if (far != NULL)
      return far;
  }
  return NULL;
}

const char *mx_matches_set(const mx_folder *folder, const mx_set *set, const mx_result *found) {
  if (set->n_wanted == 0 || found->n < set->n_wanted)
    return "too few outputs";
  for (uint32_t i = 0; i < set->n_wanted; ++i) {
    const opi_value *w = &set->wanted[i];
    const uint32_t dtype = w->dtype;
    const double preset = dtype == OPIPE_FLOAT || dtype == OPIPE_DOUBLE ? 1e-4
                          : dtype == OPIPE_FLOAT16                      ? 2e-3
                          : dtype == OPIPE_BFLOAT16                     ? 5e-2
                                                                        : 0;
    if (w->dtype != found->dtype[i] || w->rank != (int32_t)found->rank[i] ||
        memcmp(w->shape, found->shape[i], found->rank[i] * sizeof(int64_t)) != 0)
      return "an output has another type or shape than the data set's";
    const char *far = near(found->data[i], w->data, found->n_elems[i], dtype,
                           folder->tolerance >= 0 ? folder->tolerance : preset, true, i);
    if (far != NULL)
      return far;
  }
  return NULL;
}
