/* SPDX-License-Identifier: Apache-2.0 */
/* Terms of one-line cases: inputs and attributes as text (cases.h). */
#ifndef TESTS_LOADER_TERMS_H
#define TESTS_LOADER_TERMS_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/loader/graphs.h"

typedef struct test_term {
  uint32_t dtype;
  bool known;
  int64_t shape[OPIPE_MAX_RANK + 4];
  uint32_t rank;
  int64_t numbers[64]; /* of a known rank 0 or 1 */
  double real;
  bool zeros;
  opi_carry carry;
} test_term;

static inline uint32_t test_dtype(char c) {
  static const char letters[] = "fhdBinuocq";
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_FLOAT16, OPIPE_DOUBLE, OPIPE_BFLOAT16,
                                   OPIPE_INT64, OPIPE_INT32,   OPIPE_UINT8,  OPIPE_BOOL,
                                   OPIPE_INT8,  OPIPE_UINT4};
  const char *at = strchr(letters, c);
  return at != NULL && c != '\0' ? types[at - letters] : OPIPE_UNDEFINED;
}

static inline uint32_t test_numbers(const char **at, char end, int64_t *out) {
  uint32_t n = 0;
  ++*at;
  while (**at != end && **at != '\0') {
    char *rest = NULL;
    out[n++] = strtoll(*at, &rest, 10);
    *at = *rest == ',' ? rest + 1 : rest;
  }
  if (**at == end)
    ++*at;
  return n;
}

static inline test_term test_term_read(const char **at) {
  test_term t = {.dtype = test_dtype(**at), .carry = {-1, 0, 1, 1}};
  ++*at;
  if (**at == '#') {
    t.known = t.zeros = true;
    ++*at;
  }
  if (**at == '[') {
    t.rank = test_numbers(at, ']', t.shape);
  } else if (**at == '{') {
    t.known = true;
    t.rank = 1;
    t.shape[0] = test_numbers(at, '}', t.numbers);
  } else if (**at == '=') {
    char *rest = NULL;
    t.known = true;
    t.real = strtod(*at + 1, &rest);
    t.numbers[0] = strtoll(*at + 1, NULL, 10);
    *at = rest;
  }
  if (**at == '^') {
    int64_t *parts[3] = {NULL, &t.carry.outer, &t.carry.inner};
    char *rest = NULL;
    t.carry.axis = (int32_t)strtol(*at + 1, &rest, 10);
    for (int i = 1; i < 3 && *rest == ':'; ++i)
      *parts[i] = strtoll(rest + 1, &rest, 10);
    *at = rest;
  }
  return t;
}

static inline void test_skip_blanks(const char **at) {
  while (**at == ' ')
    ++*at;
}

static inline bool test_starts(const char **at, const char *text) {
  test_skip_blanks(at);
  if (strncmp(*at, text, strlen(text)) != 0)
    return false;
  *at += strlen(text);
  return true;
}

static inline uint32_t test_add_term(test_graph *t, const test_term *term) {
  if (!term->known)
    return test_input(t, NULL, term->dtype, term->shape, term->rank);
  if (term->zeros)
    return test_known(t, NULL, term->dtype, term->shape, term->rank, NULL);
  const bool real = opi_dtype_is_float(term->dtype);
  const double number = term->real;
  uint8_t data[512] = {0};
  const uint32_t n = term->rank == 0 ? 1 : (uint32_t)term->shape[0];
  const uint32_t size = opi_dtype_bits(term->dtype) / 8;
  for (uint32_t k = 0; k < n; ++k) {
    const float single = (float)(real && term->rank == 0 ? number : (double)term->numbers[k]);
    if (real)
      memcpy(data + k * size, &single, size < 4 ? size : 4);
    else
      memcpy(data + k * size, &term->numbers[k], size);
  }
  return test_known(t, NULL, term->dtype, term->shape, term->rank, data);
}

static inline opipe_attr test_attr_read(test_graph *t, const char **at) {
  const size_t n = strcspn(*at, "=");
  opipe_attr attr = {.name = opi_arena_strndup(&t->arena, *at, n)};
  *at += n + 1;
  if (**at == '[' || strncmp(*at, "f[", 2) == 0) {
    const bool real = **at == 'f';
    int64_t ints[64];
    float floats[64];
    *at += real;
    attr.n = test_numbers(at, ']', ints);
    attr.kind = real ? OPIPE_ATTR_FLOATS : OPIPE_ATTR_INTS;
    for (uint32_t i = 0; i < attr.n; ++i)
      floats[i] = (float)ints[i];
    attr.data = real ? opi_arena_copy(&t->arena, floats, attr.n * sizeof(*floats))
                     : opi_arena_copy(&t->arena, ints, attr.n * sizeof(*ints));
  } else if (**at == '$') {
    const size_t length = strcspn(*at + 1, " ");
    attr.kind = OPIPE_ATTR_STRING;
    attr.n = (uint32_t)length;
    attr.data = opi_arena_strndup(&t->arena, *at + 1, length);
    *at += 1 + length;
  } else {
    char *rest = NULL;
    attr.f = strtod(*at, &rest);
    attr.kind = *rest == 'f' ? OPIPE_ATTR_FLOAT : OPIPE_ATTR_INT;
    if (attr.kind == OPIPE_ATTR_INT)
      attr.i = strtoll(*at, &rest, 10);
    *at = *rest == 'f' ? rest + 1 : rest;
  }
  return attr;
}

#endif /* TESTS_LOADER_TERMS_H */
