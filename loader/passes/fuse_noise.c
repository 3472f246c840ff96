/* SPDX-License-Identifier: Apache-2.0 */
/* Noise before every rounding to few bits: opi_bind_options.flags, OPI_BIND_NOISE.
 *
 * Values about to become few-bit integers are first multiplied by 1 + e, |e| at most 2^-n, with
 * another e for each element along the last axis and in each pattern. Two such graphs differ by
 * what rounding makes of noise, and correct kernels may differ by as much. The noise uses no kernel
 * that the graph without noise does not use, so agreement never hides a wrong kernel.
 *
 *   QuantizeLinear, DynamicQuantizeLinear        their x
 *   products of weights with accuracy_level 4    the other operand, which backends may round
 */
#include <math.h>

#include "loader/passes/fuse.h"
#include "loader/passes/private.h"

/* -1 to 1, by number; the finaliser of MurmurHash3 */
static float draw(uint64_t number) {
  uint64_t h = number;
  h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
  h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
  h ^= h >> 33;
  return (float)((double)(h >> 11) / 4503599627370496.0 - 1.0);
}

/* Which input is rounded: OPIPE_NONE when none is. */
static uint32_t rounded_input(const opi_fuse *f, const opi_node *node) {
  if (opi_op_of(node)->kind == OPI_KIND_PACK)
    return 0;
  for (uint32_t i = 1; node->n_out == 1 && i < node->n_in; ++i) {
    const opi_node *unpack = opi_f_made(f, node->in[i], NULL);
    if (unpack != NULL && opi_op_of(unpack)->kind == OPI_KIND_UNPACK &&
        opi_attr_int(unpack, "accuracy_level", 0) == 4)
      return 0;
  }
  return OPIPE_NONE;
}

opipe_status opi_fuse_noise(opi_fuse *f, uint32_t n, opipe_error *err) {
  const uint32_t at = rounded_input(f, opi_f_node(f, n));
  if (at == OPIPE_NONE || opi_f_node(f, n)->in[at] == OPIPE_NONE)
    return OPIPE_OK;
  const uint32_t x = opi_f_node(f, n)->in[at];
  const opi_value value = *opi_f_value(f, x);
  if (value.dtype != OPIPE_FLOAT || opi_value_known(&value))
    return OPIPE_OK;
  const int64_t count = value.rank == 0 ? 1 : value.shape[value.rank - 1];
  float *factors = OPI_ARENA_ARRAY(f->b->scratch, float, (size_t)(count > 0 ? count : 1));
  uint32_t factor, y;
  if (factors == NULL)
    return opi_fail_nomem(err, (uint64_t)count * 4, "noise");
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t number = ((uint64_t)n << 32 | (uint64_t)i) * 8 + f->b->noise.pattern;
    factors[i] = 1.0f + ldexpf(draw(number + 1), -(int)f->b->noise.bits);
  }
  OPI_TRY(opi_k_const(
      factor = opi_b_const(f->b, OPIPE_FLOAT, &count, value.rank == 0 ? 0 : 1, factors), err));
  OPI_TRY(opi_b_op2(f->b, "Mul", x, factor, &y, err));
  opi_f_node(f, n)->in[at] = y;
  ++f->n_fused;
  return OPIPE_OK;
}
