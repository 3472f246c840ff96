/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the targets that read models: seeds, and a mutator that knows messages.
 *
 * Seeds are the small models of tests/data, found when the fuzzer starts. The mutator changes one
 * field at some depth and makes the lengths around it fit again, so that inputs get past the wire
 * format; one time in four it mutates plain bytes. Included by one source per target: it defines
 * the entry points.
 */
#ifndef TESTS_FUZZ_MODELS_H
#define TESTS_FUZZ_MODELS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/wire/scan.h"
#include "tests/fuzz/seeds.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

static void must(bool condition, const char *what) {
  if (condition)
    return;
  (void)fprintf(stderr, "broken: %s\n", what);
  abort();
}

/* ---- seeds ---- */

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  static const char *const folders[] = {"tests/data/odd", "tests/data/old"};
  seeds_add(argc, argv, folders, OPI_COUNT(folders));
  return 0;
}

/* ---- the mutator ---- */

enum { MOST_DEPTH = 12, MOST_BYTES = 1 << 16 };

static uint32_t rng;

static uint32_t pick(uint32_t n) {
  rng = rng * 1664525u + 1013904223u;
  return n == 0 ? 0 : (rng >> 8) % n;
}

/* Whether bytes [data, end) are fields throughout: then they may be a message. */
static bool is_message(const uint8_t *bytes, uint64_t at, uint64_t end) {
  opi_wire_field field;
  while (at < end) {
    if (!opi_wire_next(bytes, end, &at, &field))
      return false;
  }
  return true;
}

/* Chooses one of the fields of [begin, end); false when there is none. */
static bool choose(const uint8_t *bytes, uint64_t begin, uint64_t end, opi_wire_field *out) {
  opi_wire_field field;
  uint32_t n = 0;
  for (uint64_t at = begin; at < end && opi_wire_next(bytes, end, &at, &field);) {
    if (pick(++n) == 0)
      *out = field;
  }
  return n != 0;
}

typedef struct piece {
  uint8_t *data; /* room for MOST_BYTES */
  size_t n;
} piece;

static void put(piece *p, const uint8_t *data, size_t n) {
  if (n > MOST_BYTES - p->n)
    n = MOST_BYTES - p->n;
  if (n != 0)
    memcpy(p->data + p->n, data, n);
  p->n += n;
}

static void put_head(piece *p, const opi_wire_field *field, uint64_t n) {
  uint8_t head[20];
  uint32_t k = opi_wire_put_varint(head, (uint64_t)field->number << 3 | field->wire);
  if (field->wire == OPI_WIRE_BYTES)
    k += opi_wire_put_varint(head + k, n);
  put(p, head, k);
}

/* Changes the chosen field: absent, twice, another's content, or other content. */
static void change(const uint8_t *bytes, const opi_wire_field *field, piece *out) {
  static uint8_t content[MOST_BYTES];
  static const uint64_t numbers[] = {0,   1,         2,          7,         16,        127,
                                     128, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
  size_t n = field->n_bytes < MOST_BYTES / 4 ? (size_t)field->n_bytes : MOST_BYTES / 4;
  switch (pick(6)) {
    case 0:
      return;
    case 1:
      put(out, bytes + field->start, (size_t)(field->end - field->start));
      put(out, bytes + field->start, (size_t)(field->end - field->start));
      return;
    default:
      break;
  }
  if (field->wire == OPI_WIRE_VARINT) {
    put_head(out, field, 0);
    const uint64_t value =
        pick(2) == 0 ? numbers[pick(OPI_COUNT(numbers))] : field->value + pick(5) - 2;
    put(out, content, opi_wire_put_varint(content, value));
    return;
  }
  memcpy(content, bytes + field->data, n);
  if (field->wire == OPI_WIRE_BYTES)
    n = LLVMFuzzerMutate(content, n, n + 1 + pick(64));
  put_head(out, field, n);
  put(out, content, n);
}

/* Copies [begin, end) with one field in it changed, at this level or below. */
static void rewrite(const uint8_t *bytes, uint64_t begin, uint64_t end, uint32_t depth,
                    piece *out) {
  opi_wire_field field = {0};
  if (!choose(bytes, begin, end, &field)) {
    put(out, bytes + begin, (size_t)(end - begin));
    return;
  }
  put(out, bytes + begin, (size_t)(field.start - begin));
  const bool below = field.wire == OPI_WIRE_BYTES && field.n_bytes != 0 && depth < MOST_DEPTH &&
                     pick(8) != 0 && is_message(bytes, field.data, field.end);
  if (below) {
    piece inner = {malloc(MOST_BYTES), 0};
    if (inner.data == NULL)
      return;
    rewrite(bytes, field.data, field.end, depth + 1, &inner);
    put_head(out, &field, inner.n);
    put(out, inner.data, inner.n);
    free(inner.data);
  } else {
    change(bytes, &field, out);
  }
  put(out, bytes + field.end, (size_t)(end - field.end));
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
  rng = seed;
  if (pick(4) == 0 || size > MOST_BYTES / 2 || !is_message(data, 0, size))
    return LLVMFuzzerMutate(data, size, max_size);
  piece out = {malloc(MOST_BYTES), 0};
  if (out.data == NULL)
    return size;
  rewrite(data, 0, size, 0, &out);
  const size_t n = out.n < max_size ? out.n : max_size;
  memcpy(data, out.data, n);
  free(out.data);
  return n;
}

#endif /* TESTS_FUZZ_MODELS_H */
