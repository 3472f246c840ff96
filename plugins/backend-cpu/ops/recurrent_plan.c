/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by recurrent layers and their gradients: attributes, shapes, lengths, the way to fp64.
 */
#include <math.h>

#include "recurrent.h"

/* -- operands ---------------------------------------------------------------------------------- */

const cpu_tensor *cpu_rec_in(const cpu_call *call, uint32_t i) {
  static const cpu_tensor none = {0};
  return i < call->n_in ? &call->in[i] : &none;
}

const cpu_tensor *cpu_rec_out(const cpu_call *call, uint32_t i) {
  static const cpu_tensor none = {0};
  return i < call->n_out ? &call->out[i] : &none;
}

opipe_status cpu_rec_check_lens(const cpu_call *call, const cpu_tensor *lens,
                                const cpu_rec_plan *plan, opipe_error *err) {
  for (int64_t b = 0; lens->data != NULL && b < plan->batch; ++b) {
    const int64_t n = cpu_index(lens, (uint64_t)b);
    if (n < 0 || n > plan->steps) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "row %lld has %lld steps, the layer %lld",
                      (long long)b, (long long)n, (long long)plan->steps);
    }
  }
  return OPIPE_OK;
}

/* -- activations ------------------------------------------------------------------------------- */

double cpu_gate_value(const cpu_gate *f, double x) {
  const double a = f->alpha;
  const double b = f->beta;
  switch (f->kind) {
    case CPU_GATE_SIGMOID:
      return 1 / (1 + exp(-x));
    case CPU_GATE_TANH:
      return tanh(x);
    case CPU_GATE_RELU:
      return x > 0 ? x : 0;
    case CPU_GATE_AFFINE:
      return a * x + b;
    case CPU_GATE_LEAKY_RELU:
      return x < 0 ? a * x : x;
    case CPU_GATE_THRESHOLDED_RELU:
      return x > a ? x : 0;
    case CPU_GATE_SCALED_TANH:
      return a * tanh(b * x);
    case CPU_GATE_HARD_SIGMOID:
      return fmin(1, fmax(0, a * x + b));
    case CPU_GATE_ELU:
      return x < 0 ? a * expm1(x) : x;
    case CPU_GATE_SOFTSIGN:
      return x / (1 + fabs(x));
    default:
      return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
  }
}

static opipe_status read_gates(cpu_prep *p, cpu_rec_plan *plan) {
  static const char *const names[CPU_GATE_COUNT] = {
      "Sigmoid",    "Tanh",        "Relu", "Affine",   "LeakyRelu", "ThresholdedRelu",
      "ScaledTanh", "HardSigmoid", "Elu",  "Softsign", "Softplus"};
  const uint32_t n = plan->cell == CPU_CELL_LSTM ? 3 : plan->cell == CPU_CELL_GRU ? 2 : 1;
  const opipe_attr *list = opipe_attr_find(p->node, "activations");
  const opipe_attr *alpha = opipe_attr_find(p->node, "activation_alpha");
  const opipe_attr *beta = opipe_attr_find(p->node, "activation_beta");
  if (list == NULL || list->kind != OPIPE_ATTR_STRINGS || list->n != n || alpha == NULL ||
      alpha->kind != OPIPE_ATTR_FLOATS || alpha->n != n || beta == NULL ||
      beta->kind != OPIPE_ATTR_FLOATS || beta->n != n)
    return cpu_invalid(p, "its activations are not %u names and as many alphas and betas", n);
  for (uint32_t i = 0; i < n; ++i) {
    const char *name = ((const char *const *)list->data)[i];
    uint32_t kind = 0;
    while (kind < CPU_GATE_COUNT && strcmp(name, names[kind]) != 0)
      ++kind;
    if (kind == CPU_GATE_COUNT)
      return cpu_refuse(p, "does not know activation '%.40s'", name);
    plan->gate[i] = (cpu_gate){(cpu_gate_kind)kind, (double)((const float *)alpha->data)[i],
                               (double)((const float *)beta->data)[i]};
  }
  return OPIPE_OK;
}

/* -- shapes ------------------------------------------------------------------------------------ */

static bool is_like(const opipe_value *x, uint32_t dtype, uint32_t rank, int64_t a, int64_t b) {
  return x == NULL || (x->dtype == dtype && x->rank == rank && x->shape[0] == a &&
                       (rank < 2 || x->shape[1] == b));
}

static opipe_status check_shapes(cpu_prep *p, cpu_rec_plan *plan, uint32_t lens) {
  const opipe_value *g = cpu_in(p, CPU_REC_G);
  const opipe_value *r = cpu_in(p, CPU_REC_R);
  const opipe_value *steps = cpu_in(p, lens);
  if (g->rank != 3 || r->rank != 2 || r->dtype != g->dtype || r->shape[1] < 1 ||
      r->shape[0] != plan->gates * r->shape[1] || g->shape[2] != r->shape[0]) {
    return cpu_invalid(p, "'%.80s' and '%.80s' are not of %lld gates of as many units", g->name,
                       r->name, (long long)plan->gates);
  }
  plan->steps = g->shape[0];
  plan->batch = g->shape[1];
  plan->hidden = r->shape[1];
  const int64_t h = plan->hidden;
  if (steps != NULL && !is_like(steps, OPIPE_INT32, 1, plan->batch, 0) &&
      !is_like(steps, OPIPE_INT64, 1, plan->batch, 0)) {
    return cpu_invalid(p, "'%.80s' is not a length for each of %lld rows", steps->name,
                       (long long)plan->batch);
  }
  for (uint32_t i = 1; i < 3; ++i) {
    if (!is_like(cpu_in(p, lens + i), g->dtype, 2, plan->batch, h)) {
      return cpu_invalid(p, "'%.80s' is not a state of %lld rows of %lld units",
                         cpu_in(p, lens + i)->name, (long long)plan->batch, (long long)h);
    }
  }
  if (!is_like(cpu_in(p, lens + 3), g->dtype, 1, (plan->cell == CPU_CELL_LSTM ? 3 : 1) * h, 0)) {
    return cpu_invalid(p, "'%.80s' does not fit %lld units", cpu_in(p, lens + 3)->name,
                       (long long)h);
  }
  return OPIPE_OK;
}

opipe_status cpu_rec_init(cpu_prep *p, cpu_rec_plan *plan, uint32_t lens) {
  static const int64_t gates[3] = {4, 3, 1};
  const uint32_t dtype = cpu_in(p, CPU_REC_G)->dtype;
  plan->cell = (cpu_cell)p->op->code;
  plan->gates = gates[plan->cell];
  plan->reverse = opipe_attr_int(p->node, "reverse", 0) != 0;
  plan->input_forget = opipe_attr_int(p->node, "input_forget", 0) != 0;
  plan->linear_before_reset = opipe_attr_int(p->node, "linear_before_reset", 0) != 0;
  plan->clip = opipe_attr_float(p->node, "clip", 0);
  plan->n_blocks = plan->cell == CPU_CELL_GRU ? 2 : 1;
  plan->block[0] = (cpu_rec_block){0, plan->cell == CPU_CELL_GRU ? 2 : plan->gates};
  plan->block[1] = (cpu_rec_block){2, 1};
  plan->fast = p->fast && dtype == OPIPE_FLOAT;
  if (dtype != OPIPE_FLOAT && dtype != OPIPE_DOUBLE)
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(dtype));
  CPU_TRY(check_shapes(p, plan, lens));
  for (uint32_t i = 0; i < p->step->n_in; ++i)
    cpu_want_layout(p, i, CPU_LAYOUT_COPY);
  return read_gates(p, plan);
}

/* -- fp32 in fp64 ------------------------------------------------------------------------------ */

static uint64_t copy_bytes(uint64_t n) {
  return cpu_align_up(n * sizeof(double), CPU_ALIGN_BYTES);
}

uint64_t cpu_rec_double_bytes(const cpu_prep *p) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->step->n_in + p->step->n_out; ++i) {
    const opipe_value *v = i < p->step->n_in ? cpu_in(p, i) : cpu_out(p, i - p->step->n_in);
    if (v != NULL && v->dtype == OPIPE_FLOAT)
      bytes += copy_bytes(cpu_elems(v));
  }
  return bytes;
}

/* The tensor, with room for its elements in fp64 where they are of fp32. */
static cpu_tensor widened(const cpu_tensor *t, char **io_at) {
  cpu_tensor wide = *t;
  if (t->data == NULL || t->dtype != OPIPE_FLOAT)
    return wide;
  wide.data = *io_at;
  wide.dtype = OPIPE_DOUBLE;
  wide.n_bytes = t->n * sizeof(double);
  *io_at += copy_bytes(t->n);
  return wide;
}

opipe_status cpu_rec_in_double(const cpu_call *call, cpu_kernel inner, opipe_error *err) {
  cpu_tensor in[CPU_REC_GRAD_DYC + 1];
  cpu_tensor out[6];
  char *at = call->workspace;
  cpu_call copy = *call;
  for (uint32_t i = 0; i < call->n_in; ++i) {
    in[i] = widened(&call->in[i], &at);
    for (uint64_t k = 0; in[i].data != call->in[i].data && k < in[i].n; ++k)
      ((double *)in[i].data)[k] = (double)((const float *)call->in[i].data)[k];
  }
  for (uint32_t i = 0; i < call->n_out; ++i)
    out[i] = widened(&call->out[i], &at);
  copy.in = in;
  copy.out = out;
  copy.workspace = at;
  CPU_TRY(inner(&copy, err));
  for (uint32_t i = 0; i < call->n_out; ++i) {
    for (uint64_t k = 0; out[i].data != call->out[i].data && k < out[i].n; ++k)
      ((float *)call->out[i].data)[k] = (float)((const double *)out[i].data)[k];
  }
  return OPIPE_OK;
}
