/* SPDX-License-Identifier: Apache-2.0 */
/* Einsum: any number of operands, letters only, with an explicit output.
 *
 * One loop over the output's letters and, inside, one over the letters that are summed; every
 * operand is read through its strides per letter (a letter that repeats in an operand adds both
 * strides: the diagonal). Products of two matrices come as MatMul and do not pass here.
 */
#include "loop.h"

enum { MAX_LETTERS = 52, MAX_OPERANDS = 8 };

typedef struct einsum_plan {
  uint32_t n_in, n_out, n_letters; /* letters: those of the output first */
  int64_t extent[MAX_LETTERS];
  int64_t stride[MAX_OPERANDS][MAX_LETTERS];
  int64_t sums; /* product of the summed extents */
  cpu_class math;
} einsum_plan;

/* Sum over the letters beyond n_out, every operand starting at base[i]. */
static void sum_products(const cpu_call *call, const int64_t *base, cpu_run_buffer *out) {
  const einsum_plan *plan = call->plan;
  double total = 0;
  uint64_t integer = 0;
  for (int64_t s = 0; s < plan->sums; ++s) {
    int64_t rest = s;
    int64_t at[MAX_OPERANDS];
    double product = 1;
    uint64_t whole = 1;
    memcpy(at, base, sizeof at);
    for (uint32_t l = plan->n_letters; l > plan->n_out; --l) {
      const int64_t index = rest % plan->extent[l - 1];
      rest /= plan->extent[l - 1];
      for (uint32_t i = 0; i < plan->n_in; ++i)
        at[i] += index * plan->stride[i][l - 1];
    }
    for (uint32_t i = 0; i < plan->n_in; ++i) {
      cpu_run_buffer buffer;
      uint64_t element = 0;
      if (plan->math == CPU_CLASS_F64) {
        product *= cpu_number(&call->in[i], (uint64_t)at[i]);
      } else {
        memcpy(&element,
               cpu_fetch(plan->math, call->in[i].dtype, call->in[i].data, at[i], 1, 1, &buffer),
               sizeof element);
        whole *= element;
      }
    }
    total += product;
    integer += whole;
  }
  if (plan->math == CPU_CLASS_F64)
    out->f64[0] = total;
  else
    out->u64[0] = integer;
}

static void einsum_range(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const einsum_plan *plan = call->plan;
  const cpu_tensor *out = &call->out[0];
  for (int64_t o = begin; o < end; ++o) {
    int64_t base[MAX_OPERANDS] = {0};
    int64_t rest = o;
    cpu_run_buffer sum;
    for (uint32_t l = plan->n_out; l > 0; --l) {
      const int64_t index = rest % plan->extent[l - 1];
      rest /= plan->extent[l - 1];
      for (uint32_t i = 0; i < plan->n_in; ++i)
        base[i] += index * plan->stride[i][l - 1];
    }
    sum_products(call, base, &sum);
    const float narrow = plan->math == CPU_CLASS_F64 ? (float)sum.f64[0] : 0.0f;
    const bool is_f32 = plan->math == CPU_CLASS_F64 && out->dtype != OPIPE_DOUBLE;
    cpu_store(is_f32 ? CPU_CLASS_F32 : plan->math, out->dtype, is_f32 ? (void *)&narrow : &sum,
              out->data, o, 1);
  }
}

static opipe_status einsum_kernel(const cpu_call *call, opipe_error *err) {
  const einsum_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, (int64_t)call->out[0].n, (int64_t)call->out[0].n * (plan->sums + 1),
               einsum_range, &copy);
  return OPIPE_OK;
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Index of a letter among those seen; adds it. */
static uint32_t letter_index(char *letters, uint32_t *io_n, char c) {
  uint32_t i = 0;
  while (i < *io_n && letters[i] != c)
    ++i;
  if (i == *io_n)
    letters[(*io_n)++] = c;
  return i;
}

/* Reads one operand's letters: extents and strides. */
static opipe_status read_operand(cpu_prep *p, einsum_plan *plan, uint32_t i, char *letters,
                                 const char **io_text) {
  const opipe_value *value = cpu_in(p, i);
  int64_t dense[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  const char *text = *io_text;
  if (value == NULL || value->dtype != cpu_in(p, 0)->dtype)
    return cpu_invalid(p, "operand %u is absent or of another type", i);
  opipe_dense_strides(value->shape, value->rank, dense);
  for (; is_letter(*text); ++text, ++rank) {
    const uint32_t known = plan->n_letters;
    const uint32_t l = letter_index(letters, &plan->n_letters, *text);
    if (rank >= value->rank)
      break;
    if (l == known) {
      plan->extent[l] = value->shape[rank];
    } else if (plan->extent[l] != value->shape[rank]) {
      return cpu_invalid(p, "'%c' has %lld and %lld elements", *text, (long long)plan->extent[l],
                         (long long)value->shape[rank]);
    }
    plan->stride[i][l] += dense[rank];
  }
  if (rank != value->rank || is_letter(*text))
    return cpu_invalid(p, "operand %u of rank %u has other letters", i, value->rank);
  *io_text = text;
  return OPIPE_OK;
}

static opipe_status prepare_einsum(cpu_prep *p) {
  const char *equation = opipe_attr_string(p->node, "equation", "");
  const char *arrow = strstr(equation, "->");
  const uint32_t dtype = cpu_in(p, 0)->dtype;
  einsum_plan *plan = CPU_PLAN(p, einsum_plan);
  char letters[MAX_LETTERS];
  int64_t shape[OPIPE_MAX_RANK];
  if (plan == NULL)
    return cpu_nomem(p);
  plan->n_in = p->step->n_in;
  if (arrow == NULL || plan->n_in > MAX_OPERANDS || strlen(arrow + 2) > OPIPE_MAX_RANK ||
      (!cpu_is_float(dtype) && !cpu_is_int(dtype)))
    return cpu_refuse(p, "equation '%.60s' over %s", equation, opipe_dtype_name(dtype));
  /* Output letters come first, with extents that the operands give. */
  for (const char *c = arrow + 2; *c != '\0'; ++c) {
    if (!is_letter(*c) || letter_index(letters, &plan->n_letters, *c) != plan->n_out) {
      return cpu_refuse(p, "equation '%.60s': the letters of its output are not distinct",
                        equation);
    }
    plan->extent[plan->n_out++] = -1;
  }
  const char *text = equation;
  for (uint32_t i = 0; i < plan->n_in; ++i) {
    /* An output letter seen for the first time takes this operand's extent. */
    const opipe_value *value = cpu_in(p, i);
    for (uint32_t r = 0; value != NULL && r < value->rank && is_letter(text[r]); ++r) {
      uint32_t n = plan->n_letters;
      const uint32_t l = letter_index(letters, &n, text[r]);
      if (l < plan->n_out && plan->extent[l] < 0)
        plan->extent[l] = value->shape[r];
    }
    CPU_TRY(read_operand(p, plan, i, letters, &text));
    if (*text != (i + 1 < plan->n_in ? ',' : '-'))
      return cpu_refuse(p, "equation '%.60s' has another number of operands", equation);
    ++text;
  }
  plan->sums = 1;
  for (uint32_t l = 0; l < plan->n_letters; ++l) {
    if (plan->extent[l] < 0)
      return cpu_invalid(p, "equation '%.60s': an output letter occurs in no operand", equation);
    if (l < plan->n_out)
      shape[l] = plan->extent[l];
    else if (__builtin_mul_overflow(plan->sums, plan->extent[l], &plan->sums))
      return cpu_refuse(p, "equation '%.60s' sums over too many letters", equation);
  }
  plan->math = cpu_is_float(dtype) ? CPU_CLASS_F64 : cpu_class_of(dtype);
  p->step->run = einsum_kernel;
  return cpu_expect(p, 0, dtype, shape, plan->n_out);
}

static const cpu_op ops[] = {
    {"Einsum", NULL, prepare_einsum, 1, 255, 1, 0, 0},
};

const cpu_op_family cpu_family_einsum = {ops, CPU_COUNT_OF(ops)};
