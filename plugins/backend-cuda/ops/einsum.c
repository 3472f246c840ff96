/* SPDX-License-Identifier: Apache-2.0 */
/* Einsum of one or two operands: letters only, with an explicit output (abi/guide/operators.md).
 * Products of two matrices come as MatMul and do not pass here. */
#include "ops/rule.h"

enum { MOST_LETTERS = 52 };

/* Letters of the equation, those of the output first. */
typedef struct letters {
  char name[MOST_LETTERS];
  int64_t extent[MOST_LETTERS]; /* -1: no operand has had it yet */
  int64_t stride[CUDA_EINSUM_OPERANDS][MOST_LETTERS];
  uint32_t n, n_kept;
} letters;

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Its place among those seen; adds it. */
static uint32_t place_of(letters *of, char c) {
  uint32_t i = 0;
  while (i < of->n && of->name[i] != c)
    ++i;
  if (i == of->n) {
    of->name[i] = c;
    of->extent[i] = -1;
    ++of->n;
  }
  return i;
}

/* `text` goes on to what is behind the operand's letters. */
static opipe_status read_operand(const cuda_rule *r, letters *of, uint32_t i, const char **text) {
  const opipe_value *value = cuda_in(r, i);
  int64_t dense[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  if (value == NULL || value->dtype != cuda_in(r, 0)->dtype)
    return cuda_refuse(r, OPIPE_E_INVALID, "operand %u is absent or of another type", i);
  opipe_dense_strides(value->shape, value->rank, dense);
  for (; is_letter(**text) && rank < value->rank; ++*text, ++rank) {
    const uint32_t l = place_of(of, **text);
    if (of->extent[l] >= 0 && of->extent[l] != value->shape[rank]) {
      return cuda_refuse(r, OPIPE_E_INVALID, "'%c' has %lld and %lld elements", of->name[l],
                         (long long)of->extent[l], (long long)value->shape[rank]);
    }
    of->extent[l] = value->shape[rank];
    of->stride[i][l] += dense[rank];
  }
  return rank == value->rank && !is_letter(**text)
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_INVALID, "operand %u of rank %u has other letters", i,
                           value->rank);
}

static opipe_status read_equation(const cuda_rule *r, letters *of) {
  const char *equation = opipe_attr_string(r->node, "equation", ""), *text = equation;
  const char *arrow = strstr(equation, "->");
  memset(of, 0, sizeof *of);
  if (r->node->n_in > CUDA_EINSUM_OPERANDS) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%u operands, at most %d", r->node->n_in,
                       CUDA_EINSUM_OPERANDS);
  }
  for (const char *c = arrow == NULL ? "" : arrow + 2; *c != '\0'; ++c) {
    if (!is_letter(*c) || place_of(of, *c) != of->n_kept) {
      return cuda_refuse(r, OPIPE_E_INVALID,
                         "equation '%.60s': the letters of its output are not distinct", equation);
    }
    ++of->n_kept;
  }
  for (uint32_t i = 0; i < r->node->n_in; ++i) {
    CUDA_TRY(read_operand(r, of, i, &text));
    if (*text != (i + 1 < r->node->n_in ? ',' : '-')) {
      return cuda_refuse(r, OPIPE_E_INVALID, "equation '%.60s' is not one of %u operands", equation,
                         r->node->n_in);
    }
    ++text;
  }
  return OPIPE_OK;
}

/* Letters [from, to) as axes, merged; the product of their extents. */
static opipe_status loop_over(const cuda_rule *r, const letters *of, uint32_t from, uint32_t to,
                              cuda_loop *out, int64_t *out_n) {
  *out = (cuda_loop){.n_operands = CUDA_EINSUM_OPERANDS};
  *out_n = 1;
  if (to - from > OPIPE_MAX_RANK) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a loop over %u letters, at most %d", to - from,
                       OPIPE_MAX_RANK);
  }
  for (uint32_t l = from; l < to; ++l) {
    if (of->extent[l] < 0)
      return cuda_refuse(r, OPIPE_E_INVALID, "letter '%c' is in no operand", of->name[l]);
    if (__builtin_mul_overflow(*out_n, of->extent[l], out_n))
      return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a loop over more elements than can be counted");
    out->shape[out->rank] = of->extent[l];
    for (uint32_t i = 0; i < CUDA_EINSUM_OPERANDS; ++i)
      out->stride[i][out->rank] = of->stride[i][l];
    ++out->rank;
  }
  return cuda_loop_merge(r, out);
}

static opipe_status rule_einsum(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_einsum_args args = {.n_operands = r->node->n_in};
  cuda_loop kept, summed;
  cuda_launch launch;
  letters of;
  CUDA_TRY(read_equation(r, &of));
  CUDA_TRY(loop_over(r, &of, 0, of.n_kept, &kept, &args.n_out));
  CUDA_TRY(loop_over(r, &of, of.n_kept, of.n, &summed, &args.n_summed));
  CUDA_TRY(cuda_expect(r, 0, x->dtype, of.extent, of.n_kept));
  args.kept_rank = kept.rank;
  args.summed_rank = summed.rank;
  memcpy(args.kept_shape, kept.shape, sizeof args.kept_shape);
  memcpy(args.summed_shape, summed.shape, sizeof args.summed_shape);
  for (uint32_t i = 0; i < CUDA_EINSUM_OPERANDS; ++i) {
    memcpy(args.kept_stride[i], kept.stride[i], sizeof args.kept_stride[i]);
    memcpy(args.summed_stride[i], summed.stride[i], sizeof args.summed_stride[i]);
    args.in[i] = cuda_at_in(r, i);
  }
  args.out = cuda_at_out(r, 0);
  return cuda_plan_einsum(&args, x->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, x);
}

static const cuda_row rows[] = {{"Einsum", rule_einsum, 1, 255, 1}};

const cuda_family cuda_einsum_family = {"", CUDA_ROWS(rows)};
