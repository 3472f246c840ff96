/* SPDX-License-Identifier: Apache-2.0 */
/* RotaryEmbedding: X [B, H, S, D] or [B, S, H*D], tables by batch and row, or by position.
 */
#include "loop.h"

typedef struct rotary_plan {
  int64_t batch, heads, rows, dim, rotary;
  int64_t stride[3]; /* batch, head, row */
  int64_t table_batch, table_row,
      positions; /* positions: rows of the table when given by position */
  bool interleaved, by_position;
} rotary_plan;

static opipe_status check_positions(const cpu_call *call, const rotary_plan *plan,
                                    opipe_error *err) {
  for (uint64_t i = 0; plan->by_position && i < call->in[3].n; ++i) {
    const int64_t position = cpu_index(&call->in[3], i);
    if (position < 0 || position >= plan->positions) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "position %lld of a table of %lld rows",
                      (long long)position, (long long)plan->positions);
    }
  }
  return OPIPE_OK;
}

static void turn_row(const rotary_plan *plan, const cpu_call *call, int64_t at, int64_t table) {
  const int64_t half = plan->rotary / 2;
  const cpu_tensor *out = &call->out[0];
  for (int64_t i = 0; i < plan->dim; ++i) {
    const bool turned = i < plan->rotary;
    const int64_t pair = plan->interleaved ? i / 2 : i % half;
    const bool second = plan->interleaved ? i % 2 != 0 : i >= half;
    double v = cpu_number(&call->in[0], (uint64_t)(at + i));
    if (turned) {
      const int64_t other = plan->interleaved ? i ^ 1 : second ? i - half : i + half;
      const double w = cpu_number(&call->in[0], (uint64_t)(at + other));
      const double c = cpu_number(&call->in[1], (uint64_t)(table + pair));
      const double s = cpu_number(&call->in[2], (uint64_t)(table + pair));
      v = second ? w * s + v * c : v * c - w * s;
    }
    if (out->dtype == OPIPE_DOUBLE)
      ((double *)out->data)[at + i] = v;
    else
      ((float *)out->data)[at + i] = (float)v;
  }
}

static opipe_status rotary_kernel(const cpu_call *call, opipe_error *err) {
  const rotary_plan *plan = call->plan;
  CPU_TRY(check_positions(call, plan, err));
  for (int64_t i = 0; i < plan->batch * plan->heads * plan->rows; ++i) {
    const int64_t row = i % plan->rows;
    const int64_t head = i / plan->rows % plan->heads;
    const int64_t b = i / plan->rows / plan->heads;
    const int64_t table =
        plan->by_position
            ? cpu_index(&call->in[3], (uint64_t)(b * plan->rows + row)) * plan->table_row
            : b * plan->table_batch + row * plan->table_row;
    turn_row(plan, call, b * plan->stride[0] + head * plan->stride[1] + row * plan->stride[2],
             table);
  }
  return OPIPE_OK;
}

static opipe_status fast_kernel(const cpu_call *call, opipe_error *err) {
  const rotary_plan *plan = call->plan;
  CPU_TRY(check_positions(call, plan, err));
  const cpu_rotary_args args = {.batch = plan->batch,
                                .heads = plan->heads,
                                .rows = plan->rows,
                                .dim = plan->dim,
                                .rotary_dim = plan->rotary,
                                .interleaved = plan->interleaved,
                                .in = call->in[0].data,
                                .in_stride = {plan->stride[0], plan->stride[1], plan->stride[2]},
                                .out = call->out[0].data,
                                .out_stride = {plan->stride[0], plan->stride[1], plan->stride[2]},
                                .cos = call->in[1].data,
                                .sin = call->in[2].data,
                                .table_batch = plan->table_batch,
                                .table_row = plan->table_row,
                                .positions = plan->by_position ? call->in[3].data : NULL,
                                .position_batch = plan->rows};
  cpu_rotary(call->exec, &args);
  return OPIPE_OK;
}

static opipe_status read_input(cpu_prep *p, rotary_plan *plan) {
  const opipe_value *in = cpu_in(p, 0);
  if (!cpu_is_float(in->dtype) || (in->rank != 3 && in->rank != 4))
    return cpu_refuse(p, "does not take %s of rank %u", opipe_dtype_name(in->dtype), in->rank);
  plan->batch = in->shape[0];
  if (in->rank == 4) {
    plan->heads = in->shape[1];
    plan->rows = in->shape[2];
    plan->dim = in->shape[3];
    plan->stride[2] = plan->dim;
    plan->stride[1] = plan->dim * plan->rows;
  } else {
    plan->heads = opipe_attr_int(p->node, "num_heads", 0);
    plan->rows = in->shape[1];
    if (plan->heads <= 0 || in->shape[2] % plan->heads != 0) {
      return cpu_invalid(p, "%lld features in %lld heads", (long long)in->shape[2],
                         (long long)plan->heads);
    }
    plan->dim = in->shape[2] / plan->heads;
    plan->stride[1] = plan->dim;
    plan->stride[2] = in->shape[2];
  }
  plan->stride[0] = plan->heads * plan->rows * plan->dim;
  plan->rotary = opipe_attr_int(p->node, "rotary_embedding_dim", 0);
  plan->rotary = plan->rotary == 0 ? plan->dim : plan->rotary;
  plan->interleaved = opipe_attr_int(p->node, "interleaved", 0) != 0;
  if (plan->rotary < 2 || plan->rotary > plan->dim || plan->rotary % 2 != 0) {
    return cpu_invalid(p, "turns %lld of %lld elements", (long long)plan->rotary,
                       (long long)plan->dim);
  }
  return cpu_expect_like(p, 0, in);
}

static opipe_status read_tables(cpu_prep *p, rotary_plan *plan) {
  const opipe_value *cosine = cpu_in(p, 1);
  const opipe_value *sine = cpu_in(p, 2);
  const opipe_value *positions = cpu_in(p, 3);
  const uint32_t rank = positions != NULL ? 2 : 3;
  plan->by_position = positions != NULL;
  plan->table_row = plan->rotary / 2;
  if (cosine->rank != rank || sine->rank != rank || cosine->dtype != sine->dtype ||
      memcmp(cosine->shape, sine->shape, rank * sizeof cosine->shape[0]) != 0 ||
      cosine->shape[rank - 1] != plan->table_row || !cpu_is_float(cosine->dtype))
    return cpu_invalid(p, "its tables do not fit %lld angles", (long long)plan->table_row);
  if (positions != NULL) {
    plan->positions = cosine->shape[0];
    if (positions->dtype != OPIPE_INT64 ||
        (int64_t)cpu_elems(positions) != plan->batch * plan->rows) {
      return cpu_invalid(p, "position_ids is not int64 [%lld, %lld]", (long long)plan->batch,
                         (long long)plan->rows);
    }
    return OPIPE_OK;
  }
  if ((cosine->shape[0] != 1 && cosine->shape[0] != plan->batch) ||
      cosine->shape[1] != plan->rows) {
    return cpu_invalid(p, "its tables are not [%lld, %lld, %lld]", (long long)plan->batch,
                       (long long)plan->rows, (long long)plan->table_row);
  }
  plan->table_batch = cosine->shape[0] == 1 ? 0 : plan->rows * plan->table_row;
  return OPIPE_OK;
}

static opipe_status prepare_rotary(cpu_prep *p) {
  rotary_plan *plan = CPU_PLAN(p, rotary_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(read_input(p, plan));
  CPU_TRY(read_tables(p, plan));
  p->step->run = rotary_kernel;
  if (p->fast && cpu_in(p, 0)->dtype == OPIPE_FLOAT && cpu_in(p, 1)->dtype == OPIPE_FLOAT) {
    cpu_want_layout(p, 0, CPU_LAYOUT_F32);
    cpu_want_layout(p, 1, CPU_LAYOUT_F32);
    cpu_want_layout(p, 2, CPU_LAYOUT_F32);
    cpu_want_layout(p, 3, CPU_LAYOUT_COPY);
    p->step->run = fast_kernel;
    p->step->inplace = 1;
  }
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"RotaryEmbedding", NULL, prepare_rotary, 3, 4, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_rotary = {ops, CPU_COUNT_OF(ops)};
