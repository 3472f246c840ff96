/* SPDX-License-Identifier: Apache-2.0 */
/* Einsum of any letters against loops over all of them. */
#include "kit.h"

#include <ctype.h>

enum { LETTERS = 8 };
static const int64_t extents[LETTERS] = {3, 5, 4, 33, 2, 1, 0, 7}; /* of a to h */

typedef struct operand {
  const char *text; /* letters, ended by anything else */
  int64_t stride[LETTERS], n;
  kit_tensor data;
} operand;

static operand read_operand(const char *text) {
  operand o = {.text = text, .n = 1};
  size_t n = 0;
  while (isalpha((unsigned char)text[n]))
    ++n;
  while (n > 0) {
    const int l = text[--n] - 'a';
    o.stride[l] += o.n;
    o.n *= extents[l];
  }
  return o;
}

/* Letters of the output, or those that it lacks, as axes of the arguments. */
static uint32_t axes_of(const char *result, bool kept, const char *all, const operand *in,
                        int64_t *shape, int64_t (*stride)[CUDA_AXES], int64_t *out_n) {
  uint32_t rank = 0;
  *out_n = 1;
  for (const char *c = kept ? result : all; *c != '\0'; ++c) {
    const bool seen = !kept && memchr(all, *c, (size_t)(c - all)) != NULL;
    if (!isalpha((unsigned char)*c) || seen || (!kept && strchr(result, *c) != NULL))
      continue;
    shape[rank] = extents[*c - 'a'];
    for (int i = 0; i < CUDA_EINSUM_OPERANDS; ++i)
      stride[i][rank] = in[i].stride[*c - 'a'];
    *out_n *= shape[rank++];
  }
  return rank;
}

/* want[..] += the product, for every value of every letter that occurs. */
static void by_loops(const char *all, const operand *in, uint32_t n_in, const operand *out,
                     double *want) {
  int64_t count = 1;
  for (int l = 0; l < LETTERS; ++l)
    count *= strchr(all, 'a' + l) != NULL ? extents[l] : 1;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, at[CUDA_EINSUM_OPERANDS] = {0}, to = 0;
    double product = 1;
    for (int l = 0; l < LETTERS; ++l) {
      if (strchr(all, 'a' + l) == NULL)
        continue;
      for (uint32_t k = 0; k < n_in; ++k)
        at[k] += rest % extents[l] * in[k].stride[l];
      to += rest % extents[l] * out->stride[l];
      rest /= extents[l];
    }
    for (uint32_t k = 0; k < n_in; ++k)
      product *= kit_get(&in[k].data, at[k]);
    want[to] += product;
  }
}

static void einsum_case(uint32_t dtype, const char *equation) {
  const char *result = strchr(equation, '>') + 1, *second = strchr(equation, ',');
  const uint32_t n_in = second != NULL ? 2 : 1;
  operand in[CUDA_EINSUM_OPERANDS] = {read_operand(equation),
                                      read_operand(n_in > 1 ? second + 1 : "")};
  operand out = read_operand(result);
  cuda_einsum_args args = {.n_operands = n_in};
  for (uint32_t i = 0; i < n_in; ++i) {
    in[i].data = kit_random(dtype, in[i].n, i + 1, -4, 4);
    args.in[i] = in[i].data.data;
  }
  out.data = kit_new(dtype, out.n);
  double *want = kit_doubles(out.n + 1);
  args.out = out.data.data;
  args.kept_rank =
      axes_of(result, true, equation, in, args.kept_shape, args.kept_stride, &args.n_out);
  args.summed_rank =
      axes_of(result, false, equation, in, args.summed_shape, args.summed_stride, &args.n_summed);
  by_loops(equation, in, n_in, &out, want);
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_einsum(&args, dtype, &launch));
  KIT_RUN(&launch, 1, &out.data);
  KIT_CLOSE(out.data, want, 0);
  kit_end();
}

static void test_equations(void) {
  static const char *const equations[] = {
      "ab,bc->ac", "ba,bc->ca", "aa->a",   "aab->b", "aa->",   "abe,abe->ab", "a,b->ab",
      "ab->ba",    "d->",       "bd,d->b", "gb->b",  "fa->af", "ae,be->abe"};
  static const uint32_t types[] = {OPIPE_FLOAT,   OPIPE_DOUBLE, OPIPE_BFLOAT16,
                                   OPIPE_FLOAT16, OPIPE_INT32,  OPIPE_INT64};
  for (size_t i = 0; i < sizeof equations / sizeof equations[0]; ++i) {
    for (size_t t = 0; t < sizeof types / sizeof types[0]; ++t)
      einsum_case(types[t], equations[i]);
  }
}

static void test_limits(void) {
  cuda_launch launch;
  cuda_einsum_args args = {.n_operands = 1, .n_out = 1, .n_summed = 1};
  OPI_ASSERT(cuda_plan_einsum(&args, OPIPE_FLOAT, &launch));
  OPI_ASSERT(!cuda_plan_einsum(&args, OPIPE_STRING, &launch));
  args.summed_rank = CUDA_AXES + 1;
  OPI_ASSERT(!cuda_plan_einsum(&args, OPIPE_FLOAT, &launch));
  args.summed_rank = 0;
  args.n_operands = CUDA_EINSUM_OPERANDS + 1;
  OPI_ASSERT(!cuda_plan_einsum(&args, OPIPE_FLOAT, &launch));
}

OPI_TEST_MAIN("cuda_einsum", OPI_TEST(test_equations), OPI_TEST(test_limits))
