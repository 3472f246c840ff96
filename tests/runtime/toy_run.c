/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the toy model, and what must come out. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/toy.h"

float toy_input(uint32_t seed, size_t i) {
  const uint32_t h = (uint32_t)(i * 2654435761u) ^ (seed * 40503u + 17u);
  return (float)(h % 2001u) / 1000.0f - 1.0f;
}

static float weight(uint32_t node, uint32_t i) {
  return 0.5f + 0.01f * (float)((node * 7 + i * 3) % 50);
}

static opipe_tensor view(void *data, uint32_t dtype, const int64_t *shape, const int64_t *strides,
                         int32_t rank) {
  return (opipe_tensor){.data = data,
                        .device_type = OPIPE_DL_CPU,
                        .rank = rank,
                        .dtype = {.code = dtype == OPIPE_FLOAT ? OPIPE_DL_FLOAT : OPIPE_DL_INT,
                                  .bits = dtype == OPIPE_FLOAT ? 32 : 64,
                                  .lanes = 1},
                        .shape = shape,
                        .strides = strides};
}

static void fill(toy_request *r, uint32_t flags) {
  const size_t n = (size_t)(r->rows * r->seq) * TOY_WIDTH;
  const bool strided = (flags & TOY_STRIDED) != 0; /* in memory [seq][batch][width] */
  r->shape_x[0] = r->rows;
  r->shape_x[1] = r->seq;
  r->shape_x[2] = TOY_WIDTH;
  r->strides_x[0] = strided ? TOY_WIDTH : r->seq * TOY_WIDTH;
  r->strides_x[1] = strided ? r->rows * TOY_WIDTH : TOY_WIDTH;
  r->strides_x[2] = 1;
  for (size_t i = 0; i < n; ++i) {
    const int64_t row = (int64_t)(i / TOY_WIDTH) / r->seq, s = (int64_t)(i / TOY_WIDTH) % r->seq;
    r->x[row * r->strides_x[0] + s * r->strides_x[1] + (int64_t)(i % TOY_WIDTH)] =
        toy_input(r->seed, i);
  }
  if ((flags & TOY_NAN) != 0)
    r->x[n - 1] = (float)(0.0 / (double)(n == 0));
}

opipe_status toy_submit(toy *t, int64_t rows, int64_t seq, uint32_t seed, uint32_t flags,
                        uint64_t deadline_ns, toy_request *out, opipe_error *err) {
  const size_t n = (size_t)(rows * seq) * TOY_WIDTH;
  memset(out, 0, sizeof *out);
  out->x = calloc(n + 1, sizeof *out->x);
  out->p = calloc(2 * TOY_WIDTH, sizeof *out->p);
  out->y = (flags & TOY_OWN_Y) != 0 ? calloc(n + 1, sizeof *out->y) : NULL;
  out->rows = rows;
  out->seq = seq;
  out->seed = seed;
  out->shape_p[0] = TOY_WIDTH;
  fill(out, flags);
  for (uint32_t i = 0; i < TOY_WIDTH; ++i) {
    const int64_t whole = (int64_t)(seed % 5 + i);
    if (t->needs_value)
      memcpy((char *)out->p + i * sizeof whole, &whole, sizeof whole);
    else
      out->p[i] = toy_input(seed + 1, i);
  }
  const opipe_binding_io inputs[2] = {
      {.name = "p",
       .tensor = view(out->p, t->needs_value ? OPIPE_INT64 : OPIPE_FLOAT, out->shape_p, NULL, 1)},
      {.name = "x",
       .tensor = view(out->x, OPIPE_FLOAT, out->shape_x, out->strides_x, 3),
       .ready = {.kind = t->ready == NULL ? OPIPE_FENCE_NONE : OPIPE_FENCE_HOST_FLAG,
                 .handle = t->ready}}};
  const opipe_binding_io output = {.name = "y",
                                   .tensor = view(out->y, OPIPE_FLOAT, out->shape_x, NULL, 3)};
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = 2,
      .io_stride = sizeof(opipe_binding_io),
      .n_outputs = out->y != NULL ? 1 : 0,
      .inputs = inputs,
      .outputs = &output,
      .stream = t->stream,
      .deadline_ns = deadline_ns};
  return opi_session_submit(t->session, &params, &out->request, NULL, err);
}

void toy_release(toy_request *r) {
  opi_request_release(r->request);
  free(r->x);
  free(r->p);
  free(r->y);
  memset(r, 0, sizeof *r);
}

/* ---- expected results ---- */

static float *chain(const toy *t, const toy_request *r, uint32_t last) {
  const size_t n = (size_t)(r->rows * r->seq) * TOY_WIDTH;
  float *h = calloc((n + 1) * (last + 2), sizeof *h);
  (void)t;
  for (size_t i = 0; i < n; ++i)
    h[i] = toy_input(r->seed, i);
  for (uint32_t k = 0; k <= last; ++k) {
    float *out = h + (k + 1) * n, *a = h + k * n;
    for (size_t i = 0; i < n; ++i) {
      if (k % 3 == 2)
        out[i] = a[i] + (a - 2 * n)[i];
      else
        out[i] = a[i] * weight(k, (uint32_t)(i % TOY_WIDTH)) + 0.25f;
    }
  }
  memmove(h, h + (last + 1) * n, n * sizeof *h);
  return h;
}

static bool same(const toy *t, const toy_request *r, uint32_t output, const float *wanted,
                 const int64_t *shape, int32_t rank) {
  opipe_tensor found;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = opi_request_output(r->request, output, &found, &err);
  if (status == OPIPE_E_NOTFOUND && t->env.local != NULL)
    return true; /* another session has it */
  if (status < 0) {
    (void)fprintf(stderr, "output %u: %s\n", output, err.message);
    return false;
  }
  size_t n = 1;
  bool fits = found.rank == rank;
  for (int32_t d = 0; fits && d < rank; ++d) {
    fits = found.shape[d] == shape[d];
    n *= (size_t)shape[d];
  }
  if (!fits) {
    (void)fprintf(stderr, "output %u: wrong shape\n", output);
    return false;
  }
  if (memcmp(found.data, wanted, n * sizeof *wanted) == 0)
    return true;
  for (size_t i = 0; i < n; ++i) {
    const float value = ((const float *)found.data)[i];
    if (memcmp(&value, &wanted[i], sizeof value) == 0)
      continue;
    (void)fprintf(stderr, "output %u, element %zu: %g, wanted %g\n", output, i, (double)value,
                  (double)wanted[i]);
    break;
  }
  return false;
}

bool toy_check(const toy *t, const toy_request *r) {
  static const float constant[2] = {1.0f, 2.0f};
  static const int64_t constant_shape[1] = {2}, q_shape[1] = {TOY_WIDTH};
  const size_t n = (size_t)(r->rows * r->seq) * TOY_WIDTH;
  const int64_t shape[3] = {r->rows, r->seq, TOY_WIDTH}, swapped[3] = {r->seq, r->rows, TOY_WIDTH};
  const int64_t flat[2] = {r->rows * r->seq, TOY_WIDTH};
  float *y = chain(t, r, t->shape.n_nodes - 1), *mid = chain(t, r, (t->shape.n_nodes - 1) / 2);
  float *x = calloc(n + 1, sizeof *x), *turned = calloc(n + 1, sizeof *turned), q[TOY_WIDTH];
  for (size_t i = 0; i < n; ++i) {
    const int64_t row = (int64_t)(i / TOY_WIDTH) / r->seq, s = (int64_t)(i / TOY_WIDTH) % r->seq;
    x[i] = toy_input(r->seed, i);
    turned[(s * r->rows + row) * TOY_WIDTH + (int64_t)(i % TOY_WIDTH)] = y[i];
  }
  for (uint32_t i = 0; i < TOY_WIDTH; ++i) {
    const float p = t->needs_value ? (float)(r->seed % 5 + i) : toy_input(r->seed + 1, i);
    q[i] = p * weight(100, i) + 0.25f;
  }
  bool good = same(t, r, TOY_Y, y, shape, 3);
  good = same(t, r, TOY_MID, mid, shape, 3) && good;
  good = same(t, r, TOY_X, x, shape, 3) && good;
  good = same(t, r, TOY_CONSTANT, constant, constant_shape, 1) && good;
  good = same(t, r, TOY_Q, q, q_shape, 1) && good;
  good = same(t, r, TOY_T, turned, swapped, 3) && good;
  good = same(t, r, TOY_F, y, flat, 2) && good;
  if (r->y != NULL)
    good = memcmp(r->y, y, n * sizeof *y) == 0 && good;
  free(y);
  free(mid);
  free(x);
  free(turned);
  return good;
}

bool toy_round(toy *t, int64_t rows, int64_t seq, uint32_t seed, uint32_t flags) {
  toy_request r;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = toy_submit(t, rows, seq, seed, flags, 0, &r, &err);
  if (status == OPIPE_OK)
    status = opi_request_wait(r.request, UINT64_MAX, &err);
  if (status != OPIPE_OK)
    (void)fprintf(stderr, "status %d: %s\n", status, err.message);
  const bool good = status == OPIPE_OK && toy_check(t, &r);
  toy_release(&r);
  return good;
}
