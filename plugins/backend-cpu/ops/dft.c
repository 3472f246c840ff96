/* SPDX-License-Identifier: Apache-2.0 */
/* DFT: the discrete Fourier transform along one axis, in fp64 whatever the type.
 *
 * X is [outer, n, inner, parts]; a line (outer, inner) is read into a thread's workspace, cut or
 * continued with zeros, transformed (fft.h) and written. The inverse is the forward transform with
 * real and imaginary parts exchanged before and after. The inverse of half of a spectrum completes
 * it by X[length - k] = conj(X[k]); imaginary parts of the first element, and of the middle one of
 * an even length, do not count, as in numpy's irfft.
 */
#include "fft.h"
#include "loop.h"

typedef struct dft_plan {
  int64_t outer, n, inner, length;
  int64_t out; /* elements of the result along the axis */
  int64_t parts_in, parts_out;
  bool inverse, halved; /* halved: half of a spectrum comes in */
  cpu_fft fft;
} dft_plan;

static cpu_complex read_element(const cpu_tensor *x, const dft_plan *plan, int64_t at) {
  const int64_t i = at * plan->parts_in;
  return (cpu_complex){cpu_get(x, i), plan->parts_in == 2 ? cpu_get(x, i + 1) : 0.0};
}

static void read_line(const cpu_call *call, int64_t line, cpu_complex *to) {
  const dft_plan *plan = call->plan;
  const int64_t first = line / plan->inner * plan->n * plan->inner + line % plan->inner;
  const int64_t stands = plan->halved ? plan->length / 2 + 1 : plan->length;
  for (int64_t k = 0; k < plan->length; ++k) {
    to[k] = (cpu_complex){0, 0};
    if (k < stands && k < plan->n)
      to[k] = read_element(&call->in[0], plan, first + k * plan->inner);
    if (plan->halved && k >= stands)
      to[k] = (cpu_complex){to[plan->length - k].re, -to[plan->length - k].im};
    if (plan->halved && (k == 0 || 2 * k == plan->length))
      to[k].im = 0;
  }
  for (int64_t k = 0; plan->inverse && k < plan->length; ++k)
    to[k] = (cpu_complex){to[k].im, to[k].re};
}

static void write_line(const cpu_call *call, int64_t line, const cpu_complex *from) {
  const dft_plan *plan = call->plan;
  const int64_t first = line / plan->inner * plan->out * plan->inner + line % plan->inner;
  const double by = plan->inverse ? 1 / (double)plan->length : 1;
  for (int64_t k = 0; k < plan->out; ++k) {
    const int64_t at = (first + k * plan->inner) * plan->parts_out;
    cpu_put(&call->out[0], at, (plan->inverse ? from[k].im : from[k].re) * by);
    if (plan->parts_out == 2)
      cpu_put(&call->out[0], at + 1, (plan->inverse ? from[k].re : from[k].im) * by);
  }
}

/* Complex numbers that a thread works in: the line and the transform's scratch. */
static int64_t thread_room(const dft_plan *plan) {
  return plan->length + cpu_fft_scratch(&plan->fft);
}

static void dft_task(void *argument, int32_t worker, int32_t workers) {
  const cpu_call *call = argument;
  const dft_plan *plan = call->plan;
  cpu_complex *line = (cpu_complex *)call->workspace + worker * thread_room(plan);
  int64_t begin = 0;
  int64_t end = 0;
  cpu_team_share(plan->outer * plan->inner, worker, workers, &begin, &end);
  for (int64_t i = begin; i < end; ++i) {
    read_line(call, i, line);
    cpu_fft_run(&plan->fft, line, line + plan->length);
    write_line(call, i, line);
  }
}

static opipe_status dft_kernel(const cpu_call *call, opipe_error *err) {
  cpu_call copy = *call;
  (void)err;
  cpu_team_run(call->exec->team, dft_task, &copy);
  return OPIPE_OK;
}

static opipe_status prepare_dft(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0);
  dft_plan *plan = CPU_PLAN(p, dft_plan);
  int64_t shape[OPIPE_MAX_RANK];
  int64_t at = 0;
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if ((x->dtype != OPIPE_FLOAT && x->dtype != OPIPE_DOUBLE) || x->rank < 2)
    return cpu_refuse(p, "does not take %s of rank %u", opipe_dtype_name(x->dtype), x->rank);
  const bool onesided = opipe_attr_int(p->node, "onesided", 0) != 0;
  CPU_TRY(cpu_int(p, 2, -2, &at));
  CPU_TRY(cpu_axis(p, at, x->rank, &axis));
  *plan = (dft_plan){.outer = 1,
                     .n = x->shape[axis],
                     .inner = 1,
                     .parts_in = x->shape[x->rank - 1],
                     .inverse = opipe_attr_int(p->node, "inverse", 0) != 0};
  plan->halved = onesided && plan->inverse;
  CPU_TRY(cpu_int(p, 1, plan->halved ? 2 * (plan->n - 1) : plan->n, &plan->length));
  if (axis + 1 >= x->rank || plan->parts_in < 1 || plan->parts_in > 2 || plan->length < 1 ||
      plan->length > INT32_MAX / 4 || (onesided && plan->parts_in != (plan->inverse ? 2 : 1))) {
    return cpu_invalid(p, "does not transform %lld elements of %lld numbers along axis %u",
                       (long long)plan->length, (long long)plan->parts_in, axis);
  }
  plan->out = onesided && !plan->inverse ? plan->length / 2 + 1 : plan->length;
  plan->parts_out = plan->halved ? 1 : 2;
  for (uint32_t d = 0; d + 1 < x->rank; ++d) {
    shape[d] = d == axis ? plan->out : x->shape[d];
    plan->outer *= d < axis ? x->shape[d] : 1;
    plan->inner *= d > axis ? x->shape[d] : 1;
  }
  shape[x->rank - 1] = plan->parts_out;
  CPU_TRY(cpu_expect(p, 0, x->dtype, shape, x->rank));
  CPU_TRY(cpu_fft_init(p, &plan->fft, plan->length));
  cpu_want_workspace(
      p, (uint64_t)p->device->threads * (uint64_t)thread_room(plan) * sizeof(cpu_complex));
  p->step->run = dft_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"DFT", NULL, prepare_dft, 1, 3, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_dft = {ops, CPU_COUNT_OF(ops)};
