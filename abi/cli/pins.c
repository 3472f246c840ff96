/* SPDX-License-Identifier: Apache-2.0 */
/* --pin NAME=VALUE: numbers as text, in the input's type. Numbers that the type cannot hold are
 * refused, never clipped. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Rounds to a 16-bit number, nearest, ties to even. False: it is too large. */
static bool to_small(double value, int exponent_bits, uint16_t *out) {
  const int fraction_bits = 15 - exponent_bits, least = 2 - (1 << (exponent_bits - 1));
  const uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  const uint32_t sign = signbit(value) != 0 ? 0x8000 : 0;
  uint32_t bits = 0;
  int exponent = 0;
  if (isnan(value)) {
    bits = infinity | 1u << (fraction_bits - 1);
  } else if (isinf(value)) {
    bits = infinity;
  } else if (value != 0) {
    (void)frexp(value, &exponent);
    exponent = exponent - 1 > least ? exponent - 1 : least; /* numbers below the normal ones */
    const double scaled = nearbyint(ldexp(fabs(value), fraction_bits - exponent));
    bits = ((uint32_t)(exponent - least) << fraction_bits) + (uint32_t)scaled;
    if (exponent - least >= 1 << exponent_bits || bits >= infinity)
      return false;
  }
  *out = (uint16_t)(sign | bits);
  return true;
}

static bool put_real(const char *text, uint32_t dtype, void *out) {
  char *end = NULL;
  errno = 0;
  const double value = strtod(text, &end);
  const bool overflow = errno == ERANGE && fabs(value) > 1;
  if (strchr("+-.0123456789naiNAI", text[0]) == NULL || strpbrk(text, "xX(") != NULL ||
      end == text || *end != '\0' || overflow)
    return false;
  const float narrow = strtof(text, NULL);
  uint16_t small = 0;
  switch (dtype) {
    case OPIPE_DOUBLE:
      memcpy(out, &value, sizeof(value));
      return true;
    case OPIPE_FLOAT:
      memcpy(out, &narrow, sizeof(narrow));
      return isfinite(narrow) || !isfinite(value);
    default:
      if (!to_small(value, dtype == OPIPE_FLOAT16 ? 5 : 8, &small))
        return false;
      memcpy(out, &small, sizeof(small));
      return true;
  }
}

static bool put_integer(const char *text, uint32_t dtype, void *out) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  const char *digits = text + (text[0] == '-' || text[0] == '+');
  if (digits[0] == '\0' || digits[strspn(digits, "0123456789")] != '\0')
    return false;
  errno = 0;
  if (row->elements == OPIPE_ELEM_UINT) {
    const unsigned long long value = strtoull(digits, NULL, 10);
    memcpy(out, &value, row->bits / 8); /* little-endian */
    return errno == 0 && (text[0] != '-' || value == 0) &&
           (row->bits == 64 || value >> row->bits == 0);
  }
  const long long value = strtoll(text, NULL, 10);
  const long long most = (long long)(UINT64_MAX >> (65 - row->bits));
  memcpy(out, &value, row->bits / 8);
  return errno == 0 && value <= most && value >= -most - 1;
}

static bool put_flag(const char *text, void *out) {
  const bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
  const uint8_t byte = yes;
  memcpy(out, &byte, 1);
  return yes || strcmp(text, "false") == 0 || strcmp(text, "0") == 0;
}

/* Range of the type, for messages; NULL: it cannot be given as text. */
static const char *domain_of(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  if (cli_dtype_bytes(dtype) == 0)
    return NULL;
  switch (row->elements) {
    case OPIPE_ELEM_BOOL:
      return "true, false, 1 or 0";
    case OPIPE_ELEM_INT:
    case OPIPE_ELEM_UINT:
      return "an integer in its range";
    case OPIPE_ELEM_FLOAT:
      return "a decimal number in its range";
    default:
      return NULL;
  }
}

static bool put_number(const char *text, cli_tensor *t, size_t i) {
  void *at = (char *)t->data + i * cli_dtype_bytes(t->dtype);
  switch (opipe_dtype_row_of(t->dtype)->elements) {
    case OPIPE_ELEM_BOOL:
      return put_flag(text, at);
    case OPIPE_ELEM_FLOAT:
      return put_real(text, t->dtype, at);
    default:
      return put_integer(text, t->dtype, at);
  }
}

/* Reads "1,2,3" into the tensor, which has room. */
static int put_numbers(char *own, const opipe_tensor_info *info, cli_tensor *out) {
  char *next = own;
  for (size_t i = 0; next != NULL; ++i) {
    char *text = next, *comma = strchr(text, ',');
    next = comma == NULL ? NULL : comma + 1;
    if (comma != NULL)
      *comma = '\0';
    if (!put_number(text, out, i)) {
      return cli_usage("--pin %s: '%s' does not fit an input of type %s: %s is needed", info->name,
                       text, cli_dtype_name(info->dtype), domain_of(info->dtype));
    }
  }
  return CLI_DONE;
}

bool cli_is_pinned(const cli_options *o, const char *input) {
  const size_t n = strlen(input);
  for (uint32_t i = 0; i < o->plan.pins.n; ++i) {
    if (strncmp(o->plan.pins.items[i], input, n) == 0 && o->plan.pins.items[i][n] == '=')
      return true;
  }
  return false;
}

int cli_pin_read(const opipe_tensor_info *info, const char *value, cli_tensor *out) {
  const size_t n = strlen(value);
  size_t count = 1;
  memset(out, 0, sizeof(*out));
  if (n > 4 && strcmp(value + n - 4, ".npy") == 0)
    return cli_npy_read(value, out);
  for (const char *at = value; *at != '\0'; ++at)
    count += *at == ',';
  if (info->rank != 1 && count > 1) {
    return cli_usage("--pin %s: the input has rank %u, '%s' are %zu numbers: give a .npy file",
                     info->name, info->rank, value, count);
  }
  if (domain_of(info->dtype) == NULL) {
    return cli_usage("--pin %s: inputs of type %s cannot be given as text", info->name,
                     cli_dtype_name(info->dtype));
  }
  out->dtype = info->dtype;
  out->rank = info->rank;
  for (uint32_t d = 0; d < info->rank; ++d)
    out->shape[d] = 1;
  if (info->rank == 1)
    out->shape[0] = (int64_t)count;
  char *own = strdup(value);
  int status = own == NULL || !cli_tensor_alloc(out) ? cli_fail("out of memory") : CLI_DONE;
  if (status == CLI_DONE)
    status = put_numbers(own, info, out);
  free(own);
  return status;
}
