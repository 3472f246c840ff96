/* SPDX-License-Identifier: Apache-2.0 */
/* Requests -> a request of the library's -> answers. The server's dynamic batcher hands several at
 * a time; those of one shape but for the rows run as one. A single request is read and written
 * where the server has it; several are joined in memory of their own, and cut apart again. If
 * joined ones fail by what one of them holds, each runs again alone.
 */
#include <opipe/helpers.h>
#include <string.h>

#include "adapter.h"

/* ---- one request ---- */

static tri_error *cancelled(void) {
  return tri_fail(TRI_ERROR_CANCELLED, "onnx-pipe: the request was cancelled");
}

tri_error *input_see(const port *p, tri_request *request, seen_input *out) {
  int type = 0;
  uint64_t n_bytes = 0;
  TRI_TRY(tri.RequestInput(request, p->name, &out->input));
  TRI_TRY(tri.InputProperties(out->input, NULL, &type, &out->shape, &out->rank, &out->n_bytes,
                              &out->n_buffers));
  if (type != p->type) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: input '%s' is of the server's type %d, not %d", p->name, type,
                    p->type);
  }
  if (out->rank != p->rank) {
    return tri_fail(TRI_ERROR_INVALID_ARG, "onnx-pipe: input '%s' has %u dimensions, not %u",
                    p->name, out->rank, p->rank);
  }
  if (!opipe_tensor_bytes(p->dtype, out->shape, out->rank, &n_bytes) || n_bytes != out->n_bytes) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: input '%s' has %llu bytes, its shape needs %llu", p->name,
                    (unsigned long long)out->n_bytes, (unsigned long long)n_bytes);
  }
  return NULL;
}

/* Inputs [n_inputs] and rows of a request. */
static tri_error *see(const served *s, tri_request *request, seen_input *in, int64_t *out_rows) {
  bool is_cancelled = false;
  TRI_TRY(tri.RequestIsCancelled(request, &is_cancelled));
  if (is_cancelled)
    return cancelled();
  *out_rows = 0;
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    TRI_TRY(input_see(&s->inputs[i], request, &in[i]));
    if (s->n_rows == 0)
      continue;
    if (i > 0 && in[i].shape[0] != *out_rows) {
      return tri_fail(TRI_ERROR_INVALID_ARG, "onnx-pipe: input '%s' has %lld rows, '%s' %lld",
                      s->inputs[i].name, (long long)in[i].shape[0], s->inputs[0].name,
                      (long long)*out_rows);
    }
    *out_rows = in[i].shape[0];
  }
  return NULL;
}

/* But for the rows. */
static bool is_alike(const served *s, const seen_input *a, const seen_input *b) {
  for (uint32_t i = 0; s->n_rows != 0 && i < s->n_inputs; ++i) {
    if (memcmp(a[i].shape + 1, b[i].shape + 1, (a[i].rank - 1) * sizeof *a[i].shape) != 0)
      return false;
  }
  return s->n_rows != 0;
}

/* ---- answers ---- */

static void end_ask(const batch *b, ask *a, uint64_t end_ns) {
  tri_instance *handle = b->owner->handle;
  const bool good = a->error == NULL;
  if (a->response == NULL)
    tri_drop(tri.ResponseNew(&a->response, a->request), "ResponseNew");
  if (a->response != NULL)
    tri_drop(tri.ResponseSend(a->response, TRI_SEND_FINAL, a->error), "ResponseSend");
  if (a->error != NULL)
    tri.ErrorDelete(a->error); /* ResponseSend has copied it */
  tri_drop(tri.ModelInstanceReportStatistics(handle, a->request, good, b->start_ns,
                                             b->compute_start_ns, b->compute_end_ns, end_ns),
           "ModelInstanceReportStatistics");
  tri_drop(tri.RequestRelease(a->request, TRI_RELEASE_ALL), "RequestRelease");
}

void batch_refuse(instance *i, tri_request *request, tri_error *error, uint64_t start_ns) {
  const uint64_t end_ns = now_ns();
  const batch none = {
      .owner = i, .start_ns = start_ns, .compute_start_ns = end_ns, .compute_end_ns = end_ns};
  ask a = {.request = request, .error = error};
  end_ask(&none, &a, end_ns);
}

/* Answers whatever has no error yet with `error` (NULL: well), and ends the batch. */
static void end_batch(batch *b, tri_error *error) {
  bool good = false;
  const uint64_t end_ns = now_ns();
  for (uint32_t k = 0; k < b->n; ++k) {
    ask *a = &b->asks[k];
    if (error != NULL && a->error == NULL)
      a->error = tri_fail(tri.ErrorCode(error), "%s", tri.ErrorMessage(error));
    good = good || a->error == NULL;
    end_ask(b, a, end_ns);
  }
  if (error != NULL)
    tri.ErrorDelete(error);
  if (good) {
    tri_drop(tri.ModelInstanceReportBatchStatistics(
                 b->owner->handle, b->rows == 0 ? 1 : (uint64_t)b->rows, b->start_ns,
                 b->compute_start_ns, b->compute_end_ns, end_ns),
             "ModelInstanceReportBatchStatistics");
  }
  host_pool_free(&b->memory);
  host_give(b);
}

/* Room in the server's memory for an output of a request. */
static tri_error *make_output(ask *a, const port *p, const int64_t *shape, uint32_t rank,
                              uint64_t n_bytes, void **out) {
  tri_output *output = NULL;
  int memory = TRI_MEMORY_CPU;
  int64_t memory_id = 0;
  if (a->response == NULL)
    TRI_TRY(tri.ResponseNew(&a->response, a->request));
  TRI_TRY(tri.ResponseOutput(a->response, &output, p->name, p->type, shape, rank));
  TRI_TRY(tri.OutputBuffer(output, out, n_bytes, &memory, &memory_id));
  return memory != TRI_MEMORY_GPU
             ? NULL
             : tri_fail(TRI_ERROR_UNSUPPORTED, "onnx-pipe: output '%s' is asked for in GPU memory",
                        p->name);
}

/* The only request's output, inside submit, which asks again where there was no room. */
static opipe_status place_output(void *ctx, uint32_t index, const opipe_tensor *tensor,
                                 uint64_t n_bytes, void **out_data) {
  batch *b = ctx;
  ask *a = &b->asks[0];
  if (b->n == 1 && a->wanted[index] && n_bytes != 0 && b->places[index] == NULL) {
    a->error = make_output(a, &b->owner->s->outputs[index], tensor->shape, (uint32_t)tensor->rank,
                           n_bytes, &b->places[index]);
  }
  *out_data = b->places[index];
  return a->error == NULL ? OPIPE_OK : OPIPE_E_NOMEM;
}

/* Its rows of an output: from `row` on. */
static tri_error *cut_output(const batch *b, ask *a, const port *p, const opipe_tensor *whole,
                             int64_t row) {
  int64_t shape[OPIPE_MAX_RANK];
  uint64_t size = opipe_dtype_row_of(p->dtype)->bits / 8, first = 0;
  void *to = NULL;
  if (a->rows != 0 && (whole->rank < 1 || whole->shape[0] != b->rows)) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: output '%s' has %lld rows for a batch of %lld: it cannot be cut "
                    "apart (set max_batch_size: 0)",
                    p->name, whole->rank < 1 ? 0LL : (long long)whole->shape[0],
                    (long long)b->rows);
  }
  for (int32_t d = 0; d < whole->rank; ++d)
    shape[d] = whole->shape[d];
  for (int32_t d = a->rows != 0 ? 1 : 0; d < whole->rank; ++d)
    size *= (uint64_t)shape[d];
  if (a->rows != 0) {
    shape[0] = a->rows;
    first = size * (uint64_t)row;
    size *= (uint64_t)a->rows;
  }
  TRI_TRY(make_output(a, p, shape, (uint32_t)whole->rank, size, &to));
  if (size != 0)
    memcpy(to, (const char *)whole->data + first, size);
  return NULL;
}

/* Gives every request its part of an output that the library has made in memory of its own. */
static tri_error *cut_apart(batch *b) {
  const served *s = b->owner->s;
  const opipe_api *api = s->maker.api;
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    opipe_tensor whole;
    int64_t row = 0;
    if (b->places[o] != NULL)
      continue;
    if (api->request_output(b->request, o, &whole, &err) < 0)
      return tri_fail_with(s->name, &err);
    for (uint32_t k = 0; k < b->n; row += b->asks[k++].rows) {
      ask *a = &b->asks[k];
      if (a->wanted[o] && a->error == NULL)
        a->error = cut_output(b, a, &s->outputs[o], &whole, row);
    }
  }
  return NULL;
}

void batch_answer(batch *b) {
  const served *s = b->owner->s;
  const opipe_api *api = s->maker.api;
  opipe_error err = OPIPE_ERROR_INIT;
  if (b->error != NULL) {
    end_batch(b, b->error);
    return;
  }
  const opipe_status status =
      api->request_wait(b->request, UINT64_MAX, &err); /* on_done ends first */
  tri_error *error = status < 0 ? tri_fail_with(s->name, &err) : cut_apart(b);
  api->request_release(b->request);
  if (status != OPIPE_E_INVALID || b->n == 1) {
    end_batch(b, error);
    return;
  }
  for (uint32_t k = 0; k < b->n; ++k) /* which of them is it? */
    batch_take(b->owner, &b->asks[k].request, 1, b->start_ns);
  tri.ErrorDelete(error);
  host_pool_free(&b->memory);
  host_give(b);
}

void batch_look(batch *b) {
  bool all = !b->cancelled;
  for (uint32_t k = 0; all && k < b->n; ++k)
    tri_drop(tri.RequestIsCancelled(b->asks[k].request, &all), "RequestIsCancelled");
  if (!all || !atomic_load(&b->submitted))
    return;
  b->cancelled = true;
  (void)b->owner->s->maker.api->request_cancel(b->request, NULL);
}

/* ---- a batch ---- */

static void drop_hold(batch *b) {
  if (atomic_fetch_sub(&b->holds, 1) == 1)
    instance_land(b);
}

static void on_done(void *ctx, opipe_request *request, opipe_status status) {
  batch *b = ctx;
  (void)request, (void)status;
  b->compute_end_ns = now_ns();
  drop_hold(b);
}

static tri_error *get_buffer(const port *p, const seen_input *in, uint32_t k, const void **out,
                             uint64_t *out_bytes) {
  int memory = TRI_MEMORY_CPU;
  int64_t memory_id = 0;
  TRI_TRY(tri.InputBuffer(in->input, k, out, out_bytes, &memory, &memory_id));
  return memory != TRI_MEMORY_GPU
             ? NULL
             : tri_fail(TRI_ERROR_UNSUPPORTED, "onnx-pipe: input '%s' is in GPU memory", p->name);
}

tri_error *input_copy(const port *p, const seen_input *in, char *to) {
  uint64_t done = 0;
  for (uint32_t k = 0; k < in->n_buffers; ++k) {
    const void *data = NULL;
    uint64_t n_bytes = 0;
    TRI_TRY(get_buffer(p, in, k, &data, &n_bytes));
    const uint64_t more = n_bytes < in->n_bytes - done ? n_bytes : in->n_bytes - done;
    if (more != 0)
      memcpy(to + done, data, more);
    done += more;
  }
  return done == in->n_bytes
             ? NULL
             : tri_fail(TRI_ERROR_INVALID_ARG, "onnx-pipe: input '%s' has %llu of %llu bytes",
                        p->name, (unsigned long long)done, (unsigned long long)in->n_bytes);
}

/* in [n][n_inputs]. A single request's input that lies in one piece is read there. */
static tri_error *fill_input(batch *b, uint32_t i, const seen_input *in) {
  const port *p = &b->owner->s->inputs[i];
  const opipe_dtype_row *row = opipe_dtype_row_of(p->dtype);
  const uint32_t n_inputs = b->owner->s->n_inputs;
  const void *data = NULL;
  uint64_t n_bytes = 0, done = 0;
  int64_t *shape = host_pool_take(&b->memory, (p->rank + 1) * sizeof *shape);
  if (shape == NULL)
    return tri_no_memory();
  memcpy(shape, in[i].shape, p->rank * sizeof *shape);
  if (b->n > 1)
    shape[0] = b->rows;
  if (b->n == 1 && in[i].n_buffers == 1)
    TRI_TRY(get_buffer(p, &in[i], 0, &data, &n_bytes));
  if (data == NULL || n_bytes != in[i].n_bytes || (uintptr_t)data % (row->bits / 8) != 0) {
    n_bytes = 0;
    for (uint32_t k = 0; k < b->n; ++k)
      n_bytes += in[k * n_inputs + i].n_bytes;
    char *room = host_pool_take(&b->memory, n_bytes + 1);
    if (room == NULL)
      return tri_no_memory();
    for (uint32_t k = 0; k < b->n; done += in[k++ * n_inputs + i].n_bytes)
      TRI_TRY(input_copy(p, &in[k * n_inputs + i], room + done));
    data = room;
  }
  b->io[i] = (opipe_binding_io){.name = p->name,
                                .tensor = {.data = (void *)(uintptr_t)data,
                                           .device_type = OPIPE_DL_CPU,
                                           .rank = (int32_t)p->rank,
                                           .dtype = {(uint8_t)row->dl, (uint8_t)row->bits, 1},
                                           .shape = shape}};
  return NULL;
}

static tri_error *fill_ask(batch *b, ask *a) {
  const served *s = b->owner->s;
  uint32_t n = 0;
  a->wanted = host_pool_take(&b->memory, s->n_outputs + 1);
  if (a->wanted == NULL)
    return tri_no_memory();
  TRI_TRY(tri.RequestOutputCount(a->request, &n));
  for (uint32_t k = 0; k < n; ++k) {
    const char *name = NULL;
    TRI_TRY(tri.RequestOutputName(a->request, k, &name));
    for (uint32_t o = 0; o < s->n_outputs; ++o)
      a->wanted[o] = a->wanted[o] || strcmp(s->outputs[o].name, name) == 0;
  }
  return NULL;
}

static tri_error *fill_batch(batch *b, const seen_input *in) {
  const served *s = b->owner->s;
  opipe_error err = OPIPE_ERROR_INIT;
  b->io = host_pool_take(&b->memory, (s->n_inputs + 1) * sizeof *b->io);
  b->places = host_pool_take(&b->memory, (s->n_outputs + 1) * sizeof *b->places);
  if (b->io == NULL || b->places == NULL)
    return tri_no_memory();
  for (uint32_t k = 0; k < b->n; ++k)
    TRI_TRY(fill_ask(b, &b->asks[k]));
  for (uint32_t i = 0; i < s->n_inputs; ++i)
    TRI_TRY(fill_input(b, i, in));
  return host_open_late(&s->maker, s->model, b->io, s->n_inputs, &b->owner->late, &err) < 0
             ? tri_fail_with(s->name, &err)
             : NULL;
}

static void submit(batch *b) {
  const served *s = b->owner->s;
  opipe_submit_params params = opipe_submit_params_init();
  opipe_request *request = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  params.inputs = b->io;
  params.n_inputs = s->n_inputs;
  params.on_output = place_output;
  params.on_output_ctx = b;
  params.on_done = on_done;
  params.on_done_ctx = b;
  atomic_store(&b->holds, 2);
  instance_launch(b);
  if (host_submit(s->maker.api, atomic_load(&b->owner->late.session), &params, &request, &err) <
      0) {
    b->error = tri_fail_with(s->name, &err);
    b->compute_end_ns = now_ns();
    instance_land(b);
    return;
  }
  b->request = request;
  atomic_store(&b->submitted, true);
  drop_hold(b);
}

/* n requests that are alike: in [n][n_inputs], rows [n]. */
static void start(instance *i, tri_request **requests, uint32_t n, const seen_input *in,
                  const int64_t *rows, uint64_t start_ns) {
  batch *b = host_take(sizeof *b);
  ask *asks = b == NULL ? NULL : host_pool_take(&b->memory, n * sizeof *asks);
  if (asks == NULL) {
    for (uint32_t k = 0; k < n; ++k)
      batch_refuse(i, requests[k], tri_no_memory(), start_ns);
    host_give(b);
    return;
  }
  b->owner = i;
  b->asks = asks;
  b->n = n;
  b->start_ns = start_ns;
  for (uint32_t k = 0; k < n; ++k) {
    asks[k] = (ask){.request = requests[k], .rows = rows[k]};
    b->rows += rows[k];
  }
  tri_error *error = fill_batch(b, in);
  b->compute_start_ns = b->compute_end_ns = now_ns();
  if (error != NULL)
    end_batch(b, error);
  else
    submit(b);
}

void batch_take(instance *i, tri_request **requests, uint32_t n, uint64_t start_ns) {
  const uint32_t n_inputs = i->s->n_inputs;
  host_pool memory = {NULL};
  seen_input *in = host_pool_take(&memory, ((size_t)n * n_inputs + 1) * sizeof *in);
  int64_t *rows = host_pool_take(&memory, (n + 1) * sizeof *rows);
  tri_error **errors = host_pool_take(&memory, (n + 1) * sizeof *errors);
  const bool has = in != NULL && rows != NULL && errors != NULL;
  for (uint32_t k = 0; k < n; ++k) {
    tri_error *error =
        has ? see(i->s, requests[k], in + (size_t)k * n_inputs, &rows[k]) : tri_no_memory();
    if (has)
      errors[k] = error;
    if (error != NULL)
      batch_refuse(i, requests[k], error, start_ns);
  }
  for (uint32_t k = 0, to = 0; has && k < n; k = to) {
    to = k + 1;
    if (errors[k] != NULL) /* answered above */
      continue;
    const seen_input *first = in + (size_t)k * n_inputs;
    while (to < n && errors[to] == NULL && is_alike(i->s, first, in + (size_t)to * n_inputs))
      ++to;
    start(i, requests + k, to - k, first, rows + k, start_ns);
  }
  host_pool_free(&memory);
}
