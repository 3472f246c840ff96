/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons, logic, IsNaN, IsInf and Where.
 */
#include <tgmath.h>

#include "map.h"

#define COMPARE(NAME, EXPR)                         \
  CPU_MAP2_TYPE(NAME##_f32, float, uint8_t, EXPR)   \
  CPU_MAP2_TYPE(NAME##_f64, double, uint8_t, EXPR)  \
  CPU_MAP2_TYPE(NAME##_i64, int64_t, uint8_t, EXPR) \
  CPU_MAP2_TYPE(NAME##_u64, uint64_t, uint8_t, EXPR)

COMPARE(equal, a == b)
COMPARE(greater, a > b)
COMPARE(greater_equal, a >= b)
COMPARE(less, a < b)
COMPARE(less_equal, a <= b)

CPU_MAP2_TYPE(both, int64_t, uint8_t, (a != 0) & (b != 0))
CPU_MAP2_TYPE(either, int64_t, uint8_t, (a != 0) | (b != 0))
CPU_MAP2_TYPE(differ, int64_t, uint8_t, (a != 0) != (b != 0))
CPU_MAP2_TYPE(bit_and, uint64_t, uint64_t, a &b)
CPU_MAP2_TYPE(bit_or, uint64_t, uint64_t, a | b)
CPU_MAP2_TYPE(bit_xor, uint64_t, uint64_t, a ^ b)

enum { EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, AND, OR, XOR, BIT_AND, BIT_OR, BIT_XOR };

#define ALL(NAME) \
  { {NAME##_f32, NAME##_f64, NAME##_i64, NAME##_u64}, {NULL, NULL}, {0, 0}, CPU_NO_FAST }
#define INT(NAME) \
  { {NULL, NULL, NAME, NULL}, {NULL, NULL}, {0, 0}, CPU_NO_FAST }
#define BITS(NAME) \
  { {NULL, NULL, NAME, NAME}, {NULL, NULL}, {0, 0}, CPU_NO_FAST }

static const cpu_map maps[] = {
    [EQUAL] = ALL(equal),
    [GREATER] = ALL(greater),
    [GREATER_EQUAL] = ALL(greater_equal),
    [LESS] = ALL(less),
    [LESS_EQUAL] = ALL(less_equal),
    [AND] = INT(both),
    [OR] = INT(either),
    [XOR] = INT(differ),
    [BIT_AND] = BITS(bit_and),
    [BIT_OR] = BITS(bit_or),
    [BIT_XOR] = BITS(bit_xor),
};

static opipe_status prepare_compare(cpu_prep *p) {
  return cpu_prepare_map(p, &maps[p->op->code], CPU_MAP_TO_BOOL);
}

static opipe_status prepare_bool(cpu_prep *p) {
  if (cpu_in(p, 0)->dtype != OPIPE_BOOL)
    return cpu_invalid(p, "takes bool, not %s", opipe_dtype_name(cpu_in(p, 0)->dtype));
  return cpu_prepare_map(p, &maps[p->op->code], CPU_MAP_TO_BOOL);
}

static opipe_status prepare_bits(cpu_prep *p) {
  return cpu_prepare_map(p, &maps[p->op->code], 0);
}

/* ---- of one element ---- */

#define TEST1(NAME, T, EXPR)                                                           \
  static void NAME(int64_t n, const void *const *in, void *out, const double *param) { \
    const T *a = in[0];                                                                \
    uint8_t *y = out;                                                                  \
    (void)param;                                                                       \
    for (int64_t k = 0; k < n; ++k) {                                                  \
      const T x = a[k];                                                                \
      y[k] = (EXPR);                                                                   \
    }                                                                                  \
  }

TEST1(not_run, int64_t, x == 0)
TEST1(nan_f32, float, x != x)
TEST1(nan_f64, double, x != x)
TEST1(inf_f32, float, (x > 0 ? param[0] : param[1]) != 0 && isinf(x))
TEST1(inf_f64, double, (x > 0 ? param[0] : param[1]) != 0 && isinf(x))

static opipe_status prepare_not(cpu_prep *p) {
  static const cpu_map map = {{NULL, NULL, not_run, NULL}, {NULL, NULL}, {0, 0}, CPU_NO_FAST};
  if (cpu_in(p, 0)->dtype != OPIPE_BOOL) {
    return cpu_invalid(p, "takes bool, not %s", opipe_dtype_name(cpu_in(p, 0)->dtype));
  }
  return cpu_prepare_map(p, &map, CPU_MAP_TO_BOOL);
}

static opipe_status prepare_isnan(cpu_prep *p) {
  static const cpu_map map = {{nan_f32, nan_f64, NULL, NULL}, {NULL, NULL}, {0, 0}, CPU_NO_FAST};
  return cpu_prepare_map(p, &map, CPU_MAP_TO_BOOL);
}

static opipe_status prepare_isinf(cpu_prep *p) {
  const cpu_map map = {{inf_f32, inf_f64, NULL, NULL},
                       {NULL, NULL},
                       {(double)opipe_attr_int(p->node, "detect_positive", 1),
                        (double)opipe_attr_int(p->node, "detect_negative", 1)},
                       CPU_NO_FAST};
  return cpu_prepare_map(p, &map, CPU_MAP_TO_BOOL);
}

CPU_MAP1_TYPE(bit_not_run, uint64_t, ~x)

static opipe_status prepare_bit_not(cpu_prep *p) {
  static const cpu_map map = {
      {NULL, NULL, bit_not_run, bit_not_run}, {NULL, NULL}, {0, 0}, CPU_NO_FAST};
  return cpu_prepare_map(p, &map, 0);
}

/* ---- Where ---- */

#define SELECT(NAME, T)                                                                \
  static void NAME(int64_t n, const void *const *in, void *out, const double *param) { \
    const uint8_t *condition = in[0];                                                  \
    const char *a = in[1];                                                             \
    const char *b = in[2];                                                             \
    (void)param;                                                                       \
    for (int64_t k = 0; k < n; ++k) {                                                  \
      memcpy((char *)out + k * (int64_t)sizeof(T),                                     \
             (condition[k] != 0 ? a : b) + k * (int64_t)sizeof(T), sizeof(T));         \
    }                                                                                  \
  }
SELECT(select_1, uint8_t)
SELECT(select_2, uint16_t)
SELECT(select_4, uint32_t)
SELECT(select_8, uint64_t)

static opipe_status prepare_where(cpu_prep *p) {
  static const cpu_run_fn fn[4] = {select_1, select_2, select_4, select_8};
  const opipe_value *a = cpu_in(p, 1);
  const opipe_value *b = cpu_in(p, 2);
  cpu_map_plan *plan = CPU_PLAN(p, cpu_map_plan);
  cpu_class raw = CPU_CLASS_RAW4;
  if (plan == NULL)
    return cpu_nomem(p);
  if (cpu_in(p, 0)->dtype != OPIPE_BOOL || a->dtype != b->dtype ||
      cpu_out(p, 0)->dtype != a->dtype || !cpu_raw_class_of(a->dtype, &raw)) {
    return cpu_refuse(p, "does not choose between %s and %s by %s", opipe_dtype_name(a->dtype),
                      opipe_dtype_name(b->dtype), opipe_dtype_name(cpu_in(p, 0)->dtype));
  }
  plan->n_in = 3;
  plan->class_in[0] = CPU_CLASS_RAW1;
  plan->class_in[1] = raw;
  plan->class_in[2] = raw;
  plan->class_out = raw;
  plan->fn = fn[raw - CPU_CLASS_RAW1];
  return cpu_map_init(p, plan);
}

static const cpu_op ops[] = {
    {"Equal", NULL, prepare_compare, 2, 2, 1, 0, EQUAL},
    {"Greater", NULL, prepare_compare, 2, 2, 1, 0, GREATER},
    {"GreaterOrEqual", NULL, prepare_compare, 2, 2, 1, 0, GREATER_EQUAL},
    {"Less", NULL, prepare_compare, 2, 2, 1, 0, LESS},
    {"LessOrEqual", NULL, prepare_compare, 2, 2, 1, 0, LESS_EQUAL},
    {"And", NULL, prepare_bool, 2, 2, 1, 0, AND},
    {"Or", NULL, prepare_bool, 2, 2, 1, 0, OR},
    {"Xor", NULL, prepare_bool, 2, 2, 1, 0, XOR},
    {"Not", NULL, prepare_not, 1, 1, 1, 0, 0},
    {"BitwiseAnd", NULL, prepare_bits, 2, 2, 1, 0, BIT_AND},
    {"BitwiseOr", NULL, prepare_bits, 2, 2, 1, 0, BIT_OR},
    {"BitwiseXor", NULL, prepare_bits, 2, 2, 1, 0, BIT_XOR},
    {"BitwiseNot", NULL, prepare_bit_not, 1, 1, 1, 0, 0},
    {"IsNaN", NULL, prepare_isnan, 1, 1, 1, 0, 0},
    {"IsInf", NULL, prepare_isinf, 1, 1, 1, 0, 0},
    {"Where", NULL, prepare_where, 3, 3, 1, 0, 0},
};

const cpu_op_family cpu_family_logic = {ops, CPU_COUNT_OF(ops)};
