/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the rules of all operators: messages, operands, constants, checks of shapes.
 */
#include <stdlib.h>

#include "op.h"

OPIPE_PRINTF(4, 0)
static opipe_status fail_node(const opipe_node *node, opipe_error *err, opipe_status status,
                              const char *fmt, va_list args) {
  char text[sizeof err->message];
  (void)vsnprintf(text, sizeof text, fmt, args);
  return opipe_fail(err, status, "node '%.80s' (%.40s): %s", node->name, node->op, text);
}

opipe_status cpu_refuse(cpu_prep *p, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const opipe_status status = fail_node(p->node, p->err, OPIPE_E_UNSUPPORTED, fmt, args);
  va_end(args);
  return status;
}

opipe_status cpu_invalid(cpu_prep *p, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const opipe_status status = fail_node(p->node, p->err, OPIPE_E_INVALID, fmt, args);
  va_end(args);
  return status;
}

opipe_status cpu_fail(const cpu_call *call, opipe_error *err, opipe_status status, const char *fmt,
                      ...) {
  va_list args;
  va_start(args, fmt);
  fail_node(call->node, err, status, fmt, args);
  va_end(args);
  return status;
}

opipe_status cpu_nomem(cpu_prep *p) {
  return opipe_fail(p->err, OPIPE_E_NOMEM, "node '%.80s' (%.40s): no memory for its plan",
                    p->node->name, p->node->op);
}

const opipe_value *cpu_in(const cpu_prep *p, uint32_t i) {
  const cpu_step *step = p->step;
  return i < step->n_in && step->in[i].value != OPIPE_NONE ? &p->graph->values[step->in[i].value]
                                                           : NULL;
}

const opipe_value *cpu_out(const cpu_prep *p, uint32_t i) {
  const cpu_step *step = p->step;
  return i < step->n_out && step->out[i].value != OPIPE_NONE ? &p->graph->values[step->out[i].value]
                                                             : NULL;
}

const opipe_value *cpu_given(const cpu_prep *p, uint32_t i) {
  const opipe_value *value = cpu_in(p, i);
  return value == NULL || p->given == NULL ? value : &p->given->values[p->step->in[i].value];
}

uint64_t cpu_elems(const opipe_value *value) {
  uint64_t n = 0;
  (void)opipe_shape_elems(value->shape, value->rank, &n);
  return n;
}

opipe_status cpu_ints(cpu_prep *p, uint32_t i, const int64_t **out_ints, uint32_t *out_n) {
  const opipe_value *value = cpu_in(p, i);
  *out_ints = NULL;
  *out_n = 0;
  if (value == NULL)
    return OPIPE_OK;
  if (value->role != OPIPE_VALUE_CONSTANT)
    return cpu_refuse(p, "needs the value of input '%.80s'", value->name);
  if (value->dtype != OPIPE_INT64 && value->dtype != OPIPE_INT32) {
    return cpu_refuse(p, "input '%.80s' is %s, not int64", value->name,
                      opipe_dtype_name(value->dtype));
  }
  const uint64_t n = cpu_elems(value);
  int64_t *ints = CPU_POOL_ARRAY(p->pool, int64_t, n);
  if (ints == NULL)
    return cpu_nomem(p);
  if (n > UINT32_MAX)
    return cpu_invalid(p, "input '%.80s' has %llu elements", value->name, (unsigned long long)n);
  for (uint64_t k = 0; k < n; ++k) {
    if (value->dtype == OPIPE_INT64) {
      memcpy(&ints[k], (const char *)value->data + k * 8, 8);
    } else {
      int32_t narrow = 0;
      memcpy(&narrow, (const char *)value->data + k * 4, 4);
      ints[k] = narrow;
    }
  }
  *out_ints = ints;
  *out_n = (uint32_t)n;
  return OPIPE_OK;
}

opipe_status cpu_int(cpu_prep *p, uint32_t i, int64_t fallback, int64_t *out_int) {
  const int64_t *ints = NULL;
  uint32_t n = 0;
  CPU_TRY(cpu_ints(p, i, &ints, &n));
  if (cpu_in(p, i) != NULL && n != 1)
    return cpu_invalid(p, "input '%.80s' has %u elements, not 1", cpu_in(p, i)->name, n);
  *out_int = n == 1 ? ints[0] : fallback;
  return OPIPE_OK;
}

/* "[2, 3]" into a fixed buffer. */
static const char *shape_text(char *buffer, size_t room, const int64_t *shape, uint32_t rank) {
  size_t n = 0;
  buffer[n++] = '[';
  for (uint32_t i = 0; i < rank && n + 24 < room; ++i)
    n += (size_t)snprintf(buffer + n, room - n, i == 0 ? "%lld" : ", %lld", (long long)shape[i]);
  buffer[n++] = ']';
  buffer[n] = '\0';
  return buffer;
}

opipe_status cpu_expect(cpu_prep *p, uint32_t i, uint32_t dtype, const int64_t *shape,
                        uint32_t rank) {
  const opipe_value *out = cpu_out(p, i);
  char found[128];
  char wanted[128];
  if (out == NULL)
    return i == 0 ? cpu_invalid(p, "its first output is absent") : OPIPE_OK;
  if (out->dtype != dtype) {
    return cpu_invalid(p, "output '%.80s' is %s, but %s comes out", out->name,
                       opipe_dtype_name(out->dtype), opipe_dtype_name(dtype));
  }
  if (out->rank != rank || (rank > 0 && memcmp(out->shape, shape, rank * sizeof shape[0]) != 0)) {
    return cpu_invalid(p, "output '%.80s' has shape %s, but %s comes out", out->name,
                       shape_text(found, sizeof found, out->shape, out->rank),
                       shape_text(wanted, sizeof wanted, shape, rank));
  }
  return OPIPE_OK;
}

opipe_status cpu_expect_like(cpu_prep *p, uint32_t i, const opipe_value *like) {
  return cpu_expect(p, i, like->dtype, like->shape, like->rank);
}

opipe_status cpu_axis(cpu_prep *p, int64_t axis, uint32_t rank, uint32_t *out_axis) {
  const int64_t r = (int64_t)rank;
  if (axis < -r || axis >= r)
    return cpu_invalid(p, "axis %lld of a tensor of rank %u", (long long)axis, rank);
  *out_axis = (uint32_t)(axis < 0 ? axis + r : axis);
  return OPIPE_OK;
}

void *cpu_plan(cpu_prep *p, size_t size) {
  void *plan = cpu_pool_array(p->pool, 1, size);
  p->step->plan = plan;
  return plan;
}

void cpu_want_workspace(cpu_prep *p, uint64_t n_bytes) {
  if (n_bytes > p->step->workspace_bytes)
    p->step->workspace_bytes = n_bytes;
}

bool cpu_is_param(const cpu_prep *p, uint32_t i) {
  const opipe_value *value = cpu_in(p, i);
  return value != NULL && value->role == OPIPE_VALUE_PARAMETER;
}

void cpu_want_layout(cpu_prep *p, uint32_t i, uint32_t layout) {
  if (cpu_is_param(p, i))
    p->step->in[i].layout = layout;
}

bool cpu_is_half(uint32_t dtype) {
  return cpu_is_float(dtype) && opipe_dtype_bits(dtype) == 16;
}

bool cpu_is_float(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_FLOAT;
}

bool cpu_is_unsigned(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_UINT && opipe_dtype_bits(dtype) >= 8;
}

bool cpu_is_int(uint32_t dtype) {
  const bool is_signed = opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_INT;
  return cpu_is_unsigned(dtype) || (is_signed && opipe_dtype_bits(dtype) >= 8);
}

uint32_t cpu_dtype_bytes(uint32_t dtype) {
  return opipe_dtype_bits(dtype) / 8;
}

cpu_dtype cpu_storage_type(uint32_t dtype) {
  return dtype == OPIPE_FLOAT16 ? CPU_F16 : dtype == OPIPE_BFLOAT16 ? CPU_BF16 : CPU_F32;
}

int64_t cpu_index(const cpu_tensor *tensor, uint64_t i) {
  if (tensor->dtype == OPIPE_INT64) {
    int64_t wide = 0;
    memcpy(&wide, (const char *)tensor->data + i * 8, 8);
    return wide;
  }
  int32_t narrow = 0;
  memcpy(&narrow, (const char *)tensor->data + i * 4, 4);
  return narrow;
}
