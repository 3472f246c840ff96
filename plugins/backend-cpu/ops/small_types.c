/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of the small float types. One description per type; the arithmetic is exact in fp64.
 */
#include "small_types.h"

#include <math.h>
#include <opipe/types.h>

typedef struct small_format {
  int fraction; /* bits */
  int bias;
  double largest;
  uint8_t sign_bit;
  uint8_t nan;      /* code; 0: none */
  uint8_t infinity; /* code; 0: none */
  bool negative_zero;
} small_format;

static const small_format *format_of(uint32_t dtype) {
  static const small_format e4m3fn = {3, 7, 448.0, 0x80, 0x7f, 0, true};
  static const small_format e4m3fnuz = {3, 8, 240.0, 0x80, 0x80, 0, false};
  static const small_format e5m2 = {2, 15, 57344.0, 0x80, 0x7e, 0x7c, true};
  static const small_format e5m2fnuz = {2, 16, 57344.0, 0x80, 0x80, 0, false};
  static const small_format e2m1 = {1, 1, 6.0, 0x08, 0, 0, true};
  switch (dtype) {
    case OPIPE_FLOAT8E4M3FN:
      return &e4m3fn;
    case OPIPE_FLOAT8E4M3FNUZ:
      return &e4m3fnuz;
    case OPIPE_FLOAT8E5M2:
      return &e5m2;
    case OPIPE_FLOAT8E5M2FNUZ:
      return &e5m2fnuz;
    default:
      return &e2m1;
  }
}

bool cpu_is_small_float(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->elements == OPIPE_ELEM_SMALL;
}

double cpu_small_decode(uint32_t dtype, uint8_t code) {
  if (dtype == OPIPE_FLOAT8E8M0)
    return code == 0xff ? (double)NAN : ldexp(1.0, (int)code - 127);
  const small_format *f = format_of(dtype);
  const uint8_t magnitude = (uint8_t)(code & (f->sign_bit - 1u));
  const double sign = (code & f->sign_bit) != 0 ? -1.0 : 1.0;
  if (f->nan == 0x80 ? code == 0x80
                     : f->nan != 0 && magnitude > (f->infinity != 0 ? f->infinity : f->nan - 1))
    return (double)NAN;
  if (f->infinity != 0 && magnitude == f->infinity)
    return sign * (double)INFINITY;
  const int exponent = magnitude >> f->fraction;
  const int fraction = magnitude & ((1 << f->fraction) - 1);
  if (exponent == 0)
    return sign * ldexp(fraction, 1 - f->bias - f->fraction);
  return sign * ldexp(fraction + (1 << f->fraction), exponent - f->bias - f->fraction);
}

/* Powers of two from 2^-127 to 2^127; 0xff is NaN. Negative values have no code: NaN. */
static uint8_t encode_e8m0(double value, bool saturate, cpu_round round) {
  if (isnan(value) || value < 0)
    return 0xff;
  if (value == 0 || value < 0x1p-127)
    return saturate || (value != 0 && round == CPU_ROUND_UP) ? 0 : 0xff;
  if (isinf(value))
    return saturate ? 0xfe : 0xff;
  int exponent = 0;
  const double fraction = 2.0 * frexp(value, &exponent); /* [1, 2) */
  exponent -= 1;
  if ((round == CPU_ROUND_UP && fraction > 1.0) || (round == CPU_ROUND_NEAREST && fraction >= 1.5))
    exponent += 1;
  if (exponent > 127)
    return saturate ? 0xfe : 0xff;
  return (uint8_t)(exponent + 127);
}

uint8_t cpu_small_encode(uint32_t dtype, double value, bool saturate, cpu_round round) {
  if (dtype == OPIPE_FLOAT8E8M0)
    return encode_e8m0(value, saturate, round);
  const small_format *f = format_of(dtype);
  const uint8_t sign = signbit(value) ? f->sign_bit : 0;
  const uint8_t unsigned_nan = f->nan == 0x80;
  const double x = fabs(value);
  const uint8_t last = (uint8_t)(cpu_small_decode(dtype, (uint8_t)(f->sign_bit - 1u)) == f->largest
                                     ? f->sign_bit - 1u
                                 : f->infinity != 0 ? f->infinity - 1u
                                                    : f->nan - 1u);
  if (isnan(value))
    return f->nan == 0 ? f->sign_bit : (uint8_t)(unsigned_nan ? f->nan : f->nan | sign);
  int exponent = 0;
  (void)frexp(x, &exponent);
  exponent = exponent - 1 < 1 - f->bias || x == 0 ? 1 - f->bias : exponent - 1;
  const int unit = exponent - f->fraction;
  const double steps = isinf(x) ? (double)INFINITY : nearbyint(ldexp(x, -unit));
  if (ldexp(steps, unit) > f->largest) {
    if (saturate || f->nan == 0)
      return (uint8_t)(last | sign);
    return f->infinity != 0 ? (uint8_t)(f->infinity | sign)
                            : (uint8_t)(unsigned_nan ? f->nan : f->nan | sign);
  }
  int r = (int)steps;
  if (r == 0)
    return f->negative_zero ? sign : 0;
  const int hidden = 1 << f->fraction;
  if (r == 2 * hidden) {
    r = hidden;
    exponent += 1;
  }
  const int code = r < hidden ? r : ((exponent + f->bias) << f->fraction) + r - hidden;
  return (uint8_t)(code | sign);
}
