/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a request's inputs: checks names, types and shapes, finds the rows of the batch, and tells
 * whether a compiled shape fits.
 *
 * A signature is every dimension of every input, with the batch axis counted in rows of one
 * micro-batch, and the values of the inputs on which shapes depend. Only opi_shape_sign allocates.
 */
#include <string.h>

#include "loader/base/nearest.h"
#include "partition/program/batch.h"
#include "runtime/compiled/build.h"

static opipe_status check_shape(const opi_input *input, const opipe_tensor *t, opipe_error *err) {
  char given[128], wanted[128];
  bool fits = t->rank == input->value->rank && t->rank <= OPIPE_MAX_RANK &&
              (t->rank == 0 || t->shape != NULL);
  for (int32_t d = 0; fits && d < t->rank; ++d) {
    fits =
        t->shape[d] >= 0 && (input->value->shape[d] < 0 || input->value->shape[d] == t->shape[d]);
  }
  if (fits)
    return OPIPE_OK;
  const uint32_t rank =
      t->rank < 0 || t->rank > OPIPE_MAX_RANK || t->shape == NULL ? 0 : (uint32_t)t->rank;
  return opi_fail(
      err, OPIPE_E_INVALID, "input '%s' has rank %d and shape %s, the model wants %s (-1: any)",
      input->name, t->rank, opi_shape_text(given, sizeof given, t->shape, rank),
      opi_shape_text(wanted, sizeof wanted, input->value->shape, (uint32_t)input->value->rank));
}

/* The host reads the value before any device does. OPIPE_PENDING: the host's flag is not set yet.
 */
static opipe_status check_value(opi_setup *s, const opi_input *input, const opi_feed *feed,
                                opipe_error *err) {
  const opipe_fence *ready = &feed->ready;
  if (feed->absent) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "input '%s' has no data: its value decides shapes, so every session of the "
                    "plan's ranks needs it",
                    input->name);
  }
  if (!feed->given && input->pin == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "input '%s': its value decides shapes, and the state keeps it, where the host "
                    "does not see it",
                    input->name);
  }
  if (!feed->on_device && (!feed->given || ready->kind == OPIPE_FENCE_NONE))
    return OPIPE_OK;
  if (!feed->on_device && ready->kind == OPIPE_FENCE_HOST_FLAG) {
    if (opi_fence_set(ready))
      return OPIPE_OK;
    s->shapes->above.await_value(s->shapes->above.ctx, (const uint32_t *)ready->handle);
    return OPIPE_PENDING;
  }
  if (!feed->on_device) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "input '%s' has a fence of kind %u: its value decides shapes, so the host has "
                    "to see when it is there (kind %u)",
                    input->name, ready->kind, OPIPE_FENCE_HOST_FLAG);
  }
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "input '%s' lies on device %d:%d: its value decides shapes, so it has to be in "
                  "host memory",
                  input->name, feed->device_type, feed->device_id);
}

static opipe_status read_feed(const opi_setup *s, const opi_input *input,
                              const opipe_binding_io *io, opi_feed *feed, opipe_error *err) {
  const opipe_tensor *t = &io->tensor;
  uint64_t n_bytes = 0;
  OPI_TRY(opi_check_tensor(s, input->name, t, input->value->dtype, err));
  OPI_TRY(check_shape(input, t, err));
  OPI_TRY(opi_check_fence(s, input->name, &io->ready, err));
  OPI_TRY(opi_check_fence(s, input->name, &io->done, err));
  if (!opi_tensor_bytes(input->value->dtype, t->shape, (uint32_t)t->rank, &n_bytes))
    return opi_fail(err, OPIPE_E_INVALID, "input '%s': its size overflows", input->name);
  feed->absent = n_bytes != 0 && (t->data == NULL || (opi_inputs_come(s) && !input->valued));
  if (feed->absent && !opi_is_shared(s)) {
    return opi_fail(err, OPIPE_E_INVALID, "input '%s' of %llu bytes has no data", input->name,
                    (unsigned long long)n_bytes);
  }
  int64_t dense = 1;
  for (int32_t d = t->rank - 1; d >= 0; --d) {
    feed->shape[d] = t->shape[d];
    /* The stride of an axis with one element is never used and may be anything, as in DLPack. */
    feed->strides[d] = t->strides == NULL || t->shape[d] <= 1 ? dense : t->strides[d];
    if (opi_dtype_bits(input->value->dtype) < 8 && feed->strides[d] != dense) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "input '%s': %s with strides; packed types must be dense", input->name,
                      opi_dtype_name(input->value->dtype));
    }
    dense *= t->shape[d];
  }
  if (!feed->absent)
    OPI_TRY(opi_tensor_begin(t, n_bytes, "input", input->name, &feed->data, err));
  feed->given = true;
  feed->on_device = t->device_type != OPIPE_DL_CPU && !(feed->absent && opi_inputs_come(s));
  feed->device_type = t->device_type;
  feed->device_id = t->device_id;
  feed->ready = io->ready;
  feed->done = io->done;
  return OPIPE_OK;
}

static void feed_pin(const opi_pin *pin, opi_feed *feed) {
  int64_t dense = 1;
  for (uint32_t d = pin->rank; d > 0; --d) {
    feed->shape[d - 1] = pin->shape[d - 1];
    feed->strides[d - 1] = dense;
    dense *= pin->shape[d - 1];
  }
  feed->data = pin->data;
}

static opipe_status find_input(const opi_setup *s, const char *name, uint32_t *out_index,
                               opipe_error *err) {
  char meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = name == NULL ? 0 : strlen(name)};
  for (uint32_t i = 0; name != NULL && i < s->n_inputs; ++i) {
    if (strcmp(s->inputs[i].name, name) != 0)
      continue;
    *out_index = i;
    return OPIPE_OK;
  }
  for (uint32_t i = 0; name != NULL && i < s->n_inputs; ++i)
    opi_nearest_look(&nearest, s->inputs[i].name);
  return opi_fail(err, OPIPE_E_NOTFOUND, "the model has no input '%s'; its first of %u is '%s'%s",
                  name == NULL ? "(NULL)" : name, s->n_inputs,
                  s->n_inputs == 0 ? "" : s->inputs[0].name,
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

/* Rows of the request along the batch axis, the same for every input that carries it. */
static opipe_status find_rows(const opi_setup *s, opi_request *request, opipe_error *err) {
  uint32_t first = OPIPE_NONE;
  request->rows = 0;
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    if (s->inputs[i].batch_axis < 0)
      continue;
    const int64_t rows = request->feeds[i].shape[s->inputs[i].batch_axis];
    if (first == OPIPE_NONE) {
      first = i;
      request->rows = rows;
    } else if (rows != request->rows) {
      return opi_fail(
          err, OPIPE_E_INVALID, "input '%s' has %lld rows along the batch, input '%s' has %lld",
          s->inputs[i].name, (long long)rows, s->inputs[first].name, (long long)request->rows);
    }
  }
  const uint32_t m = first == OPIPE_NONE ? 1 : s->plan->decided.n_microbatches;
  const int64_t most = request->rows < 1 ? 1 : request->rows;
  request->n_microbatches = most < (int64_t)m ? (uint32_t)most : m;
  return OPIPE_OK;
}

opipe_status opi_read_inputs(opi_setup *s, const opipe_submit_params *params, opi_request *request,
                             opipe_error *err) {
  s->shapes->above.await_value(s->shapes->above.ctx, NULL);
  for (uint32_t i = 0; i < s->n_inputs; ++i)
    request->feeds[i] = (opi_feed){.given = false};
  for (uint32_t i = 0; i < params->n_inputs; ++i) {
    uint32_t index = 0;
    opipe_binding_io io;
    opi_array_get(params->inputs, params->io_stride, i, &io, sizeof io);
    OPI_TRY(find_input(s, io.name, &index, err));
    if (request->feeds[index].given)
      return opi_fail(err, OPIPE_E_INVALID, "input '%s' is given twice", s->inputs[index].name);
    OPI_TRY(read_feed(s, &s->inputs[index], &io, &request->feeds[index], err));
  }
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    bool kept = false;
    OPI_TRY(opi_stream_feed(request, i, &request->feeds[i], &kept, err));
    if (request->feeds[i].given || kept)
      continue;
    if (s->inputs[i].pin == NULL) {
      return opi_fail(err, OPIPE_E_INVALID, "input '%s' is missing: %u of %u were given",
                      s->inputs[i].name, params->n_inputs, s->n_inputs);
    }
    feed_pin(s->inputs[i].pin, &request->feeds[i]);
  }
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opipe_status status =
        s->inputs[i].valued ? check_value(s, &s->inputs[i], &request->feeds[i], err) : OPIPE_OK;
    if (status != OPIPE_OK)
      return status;
  }
  return find_rows(s, request, err);
}

static opi_view view_of(const opi_setup *s, const opi_request *request, uint32_t input) {
  const opi_feed *feed = &request->feeds[input];
  return (opi_view){.data = feed->data,
                    .shape = feed->shape,
                    .strides = feed->strides,
                    .rank = (uint32_t)s->inputs[input].value->rank,
                    .elem_bytes = opi_dtype_bits(s->inputs[input].value->dtype) / 8};
}

bool opi_shape_fits(const opi_shape *shape, const opi_request *request, int64_t rows) {
  const opi_setup *s = shape->setup;
  uint32_t at = 0;
  if (shape->rows != rows)
    return false;
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    for (int32_t d = 0; d < s->inputs[i].value->rank; ++d, ++at) {
      const int64_t n = d == s->inputs[i].batch_axis ? rows : request->feeds[i].shape[d];
      if (shape->dims[at] != n)
        return false;
    }
  }
  for (uint32_t p = 0; p < shape->n_pins; ++p) {
    const opi_view view = view_of(s, request, shape->pins[p].input);
    if (!opi_view_equals(&view, shape->pins[p].data))
      return false;
  }
  return true;
}

static opipe_status sign_pin(opi_shape *shape, const opi_request *request, uint32_t input,
                             opipe_error *err) {
  opi_setup *s = shape->setup;
  const opi_input *in = &s->inputs[input];
  opi_shape_pin *pin = &shape->pins[shape->n_pins];
  const opipe_status status = check_value(s, in, &request->feeds[input], err);
  if (status != OPIPE_OK)
    return status;
  if (in->batch_axis >= 0 && request->n_microbatches > 1) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "input '%s' decides shapes by its value and carries the batch: %u micro-batches "
        "cannot share it",
        in->name, request->n_microbatches);
  }
  if (opi_dtype_bits(in->value->dtype) < 8) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "input '%s': a value of type %s cannot be pinned",
                    in->name, opi_dtype_name(in->value->dtype));
  }
  if (!opi_tensor_bytes(in->value->dtype, request->feeds[input].shape, (uint32_t)in->value->rank,
                        &pin->n_bytes))
    return opi_fail(err, OPIPE_E_INVALID, "input '%s': its size overflows", in->name);
  pin->data = opi_arena_alloc(&shape->arena, (size_t)pin->n_bytes);
  if (pin->data == NULL)
    return opi_fail_nomem(err, pin->n_bytes, "a pinned input");
  const opi_view view = view_of(s, request, input);
  opi_view_gather(&view, pin->data);
  pin->input = input;
  ++shape->n_pins;
  return OPIPE_OK;
}

opipe_status opi_shape_sign(opi_shape *shape, const opi_request *request, int64_t rows,
                            opipe_error *err) {
  const opi_setup *s = shape->setup;
  uint32_t at = 0;
  shape->rows = rows;
  shape->n_pins = 0;
  shape->dims = OPI_ARENA_ARRAY(&shape->arena, int64_t, s->n_dims);
  shape->pins = OPI_ARENA_ARRAY(&shape->arena, opi_shape_pin, s->n_inputs);
  if (shape->dims == NULL || shape->pins == NULL)
    return opi_fail_nomem(err, s->n_dims * sizeof(int64_t), "a shape signature");
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    for (int32_t d = 0; d < s->inputs[i].value->rank; ++d)
      shape->dims[at++] = d == s->inputs[i].batch_axis ? rows : request->feeds[i].shape[d];
    const opipe_status status = s->inputs[i].valued ? sign_pin(shape, request, i, err) : OPIPE_OK;
    if (status != OPIPE_OK)
      return status;
  }
  return OPIPE_OK;
}
