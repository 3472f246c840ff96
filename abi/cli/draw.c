/* SPDX-License-Identifier: Apache-2.0 */
/* Random inputs for a run without inputs: seeded, the same on every machine. */
#include <math.h>
#include <string.h>

#include "cli.h"

static uint64_t next(uint64_t *state) { /* splitmix64 (Steele, Lea, Flood 2014) */
  uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static double uniform(uint64_t *state) {
  return ((double)(next(state) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *state) {
  const double radius = sqrt(-2.0 * log(uniform(state)));
  return radius * cos(6.283185307179586 * uniform(state));
}

static uint16_t to_bfloat(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Normal numbers only; smaller ones become 0. */
static uint16_t to_half(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000, rounded = bits + 0x0fff + (bits >> 13 & 1);
  const int32_t exponent = (int32_t)(rounded >> 23 & 255) - 112;
  if (exponent <= 0)
    return (uint16_t)sign;
  if (exponent >= 31)
    return (uint16_t)(sign | 0x7bff);
  return (uint16_t)(sign | (uint32_t)exponent << 10 | (rounded >> 13 & 0x3ff));
}

static void put(cli_tensor *t, size_t i, double value, int64_t integer) {
  char *at = (char *)t->data + i * cli_dtype_bytes(t->dtype);
  const float narrow = (float)value;
  const uint16_t half = t->dtype == OPIPE_FLOAT16 ? to_half(narrow) : to_bfloat(narrow);
  switch (t->dtype) {
    case OPIPE_FLOAT:
      memcpy(at, &narrow, sizeof(narrow));
      break;
    case OPIPE_DOUBLE:
      memcpy(at, &value, sizeof(value));
      break;
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      memcpy(at, &half, sizeof(half));
      break;
    default:
      memcpy(at, &integer, cli_dtype_bytes(t->dtype));
      break;
  }
}

static void fill(cli_tensor *whole, int64_t limit, uint64_t *state) {
  const bool mask = strstr(whole->name, "mask") != NULL;
  const bool complex = opipe_dtype_row_of(whole->dtype)->elements == OPIPE_ELEM_COMPLEX;
  cli_tensor parts = *whole, *t = &parts; /* complex numbers: real and imaginary parts in turn */
  const size_t n = cli_elems(whole) * (complex ? 2 : 1);
  if (complex)
    parts.dtype = whole->dtype == OPIPE_COMPLEX64 ? OPIPE_FLOAT : OPIPE_DOUBLE;
  for (size_t i = 0; i < n; ++i) {
    const int64_t integer = limit > 0 ? (int64_t)(next(state) % (uint64_t)limit) : 1;
    put(t, i, mask ? 1.0 : normal(state), integer);
  }
}

/* Number of elements. */
static double count_of(const cli_tensor *t) {
  double n = 1;
  for (uint32_t d = 0; d < t->rank; ++d)
    n *= (double)t->shape[d];
  return n;
}

int cli_draw_inputs(const cli_session *s, uint64_t seed, cli_tensor *tensors, uint32_t *io_n,
                    uint32_t room) {
  for (uint32_t i = 0;; ++i) {
    opipe_tensor_info info = {.struct_size = sizeof(info)};
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + i + 1;
    bool given = false;
    if (s->api->model_input(s->bound, i, &info, NULL) < 0)
      return CLI_DONE;
    for (uint32_t t = 0; t < *io_n && !given; ++t)
      given = strcmp(tensors[t].name, info.name) == 0;
    if (given)
      continue;
    if (*io_n == room)
      return cli_usage("the model has more than %u inputs", room);
    cli_tensor *t = &tensors[*io_n];
    memset(t, 0, sizeof(*t));
    if (!cli_tensor_name(t, info.name, strlen(info.name)))
      return cli_fail("out of memory");
    ++*io_n; /* the caller's from here on */
    t->dtype = info.dtype;
    t->rank = info.rank;
    if (info.rank > OPIPE_MAX_RANK)
      return cli_usage("input '%s' has rank %u", info.name, info.rank);
    if (info.rank != 0)
      memcpy(t->shape, info.shape, info.rank * sizeof(int64_t));
    if (cli_dtype_bytes(t->dtype) == 0) {
      return cli_usage("input '%s' of type %s cannot be drawn: give it by --input", info.name,
                       cli_dtype_name(info.dtype));
    }
    if (!cli_tensor_alloc(t)) {
      return cli_usage("input '%s' has %g elements of type %s: there is no memory for them",
                       info.name, count_of(t), cli_dtype_name(info.dtype));
    }
    fill(t, info.index_limit, &state);
  }
}
