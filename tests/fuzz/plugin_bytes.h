/* SPDX-License-Identifier: Apache-2.0 */
/* Choices of the plugin target's input: numbers of interest, and faults. A fault is a slot, the
 * call of it that goes wrong, and what is wrong then: the status with its error text, or one field
 * of the answer.
 */
#ifndef TESTS_FUZZ_PLUGIN_BYTES_H
#define TESTS_FUZZ_PLUGIN_BYTES_H

#include <opipe/helpers.h>
#include <opipe/transport.h>

#include "loader/base/base.h"
#include "tests/fuzz/must.h"

/* ---- bytes ---- */

typedef struct input {
  const uint8_t *at, *end;
} input;

static uint8_t take8(input *in) {
  return in->at < in->end ? *in->at++ : 0;
}

static uint32_t take(input *in, uint32_t n) {
  return take8(in) % n;
}

/* A number that an answer may hold instead of `real`. */
static uint64_t take_number(input *in, uint64_t real) {
  static const uint64_t numbers[] = {0,
                                     1,
                                     2,
                                     3,
                                     4,
                                     7,
                                     8,
                                     48,
                                     63,
                                     64,
                                     65,
                                     96,
                                     128,
                                     255,
                                     256,
                                     4095,
                                     4096,
                                     65535,
                                     65536,
                                     1u << 20,
                                     1u << 26,
                                     1u << 31,
                                     UINT32_MAX,
                                     UINT32_MAX - 1,
                                     1ull << 32,
                                     1ull << 40,
                                     INT64_MAX,
                                     1ull << 63,
                                     UINT64_MAX,
                                     UINT64_MAX - 1,
                                     (1u << 31) - 1,
                                     1ull << 62,
                                     UINT64_MAX - 62,
                                     UINT64_MAX - 63,
                                     UINT64_MAX - 4095};
  const uint32_t how = take(in, 8);
  if (how == 0)
    return real + 1 + take(in, 8);
  if (how == 1)
    return real - 1 - take(in, 8);
  if (how == 2)
    return real * 2;
  return numbers[take(in, (uint32_t)OPI_COUNT(numbers))];
}

static double take_double(input *in) {
  static const double numbers[] = {0,
                                   -1,
                                   1,
                                   1e-300,
                                   1e300,
                                   -1e300,
                                   1e18,
                                   2e19,
                                   5e-324,
                                   __builtin_inf(),
                                   1e9,
                                   -__builtin_inf(),
                                   __builtin_nan("")};
  return numbers[take(in, (uint32_t)OPI_COUNT(numbers))];
}

/* Memory of exactly n bytes (at least 1), ended by a red zone; freed by forget_blocks. */
enum { BLOCKS = 64 };
static void *blocks[BLOCKS];
static uint32_t n_blocks;

static void *block(size_t n) {
  void *data = n_blocks < BLOCKS ? malloc(n == 0 ? 1 : n) : NULL;
  must(data != NULL, "the target has no memory");
  blocks[n_blocks++] = data;
  memset(data, 0, n);
  return data;
}

static void forget_blocks(void) {
  while (n_blocks > 0)
    free(blocks[--n_blocks]);
}

/* ---- faults ---- */

enum { FAULTS = 4, EVERY_CALL = 7, SLOTS = 64 };
enum { WRONG_STATUS = 0, WRONG_FIELD = 1 };

typedef struct fault {
  uint8_t slot, nth, kind, text, field, extra[2];
  opipe_status status;
  input bytes; /* of the field's value */
} fault;

static struct {
  fault list[FAULTS];
  uint32_t n, calls[SLOTS];
  uint64_t struck;
  const char *id; /* of the plugin at hand: in its own error texts */
} wrong;

static opipe_status take_status(input *in) {
  static const opipe_status statuses[] = {1, 2, 77, INT32_MAX, -14, -99, INT32_MIN};
  const uint32_t i = take(in, 24);
  return i < OPI_COUNT(statuses) ? statuses[i] : -1 - (opipe_status)(i % 12);
}

/* Half of the faults are in the slots `told` [n_told], whose answers have fields; the others in any
 * of n_slots, or in the descriptor's own two. */
static void take_faults(input *in, const uint8_t *told, uint32_t n_told, uint32_t n_slots) {
  memset(&wrong, 0, sizeof wrong);
  wrong.n = take(in, FAULTS + 1);
  for (uint32_t i = 0; i < wrong.n; ++i) {
    fault *f = &wrong.list[i];
    const uint32_t slot = take8(in), any = slot / 2 % (n_slots + 2);
    f->slot = (uint8_t)(slot % 2 == 0   ? told[slot / 2 % n_told]
                        : any < n_slots ? any
                                        : SLOTS - 1 - (any - n_slots));
    f->nth = (uint8_t)take(in, EVERY_CALL + 1);
    f->kind = (uint8_t)take(in, 2);
    f->text = (uint8_t)take(in, 6);
    f->field = take8(in);
    f->extra[0] = take8(in);
    f->extra[1] = take8(in);
    f->status = take_status(in);
    f->bytes.at = in->at;
    in->at += in->end - in->at < 6 ? in->end - in->at : 6;
    f->bytes.end = in->at;
  }
}

/* The fault of this call of `slot`, NULL: none. Slots count from 0; those of another kind than
 * WRONG_STATUS only happen where the slot has fields. */
static fault *next_fault(uint32_t slot) {
  const uint32_t call = wrong.calls[slot % SLOTS]++;
  for (uint32_t i = 0; i < wrong.n; ++i) {
    fault *f = &wrong.list[i];
    if (f->slot == slot % SLOTS && (f->nth == EVERY_CALL || f->nth == call))
      return f;
  }
  return NULL;
}

/* The status and the text of a failure that may be badly told. */
static opipe_status answer(const fault *f, opipe_error *err) {
  ++wrong.struck;
  if (err == NULL)
    return f->status;
  switch (f->text) {
    case 0: /* nothing */
      break;
    case 1: /* never ends */
      err->status = f->status;
      memset(err->message, 'x', sizeof err->message);
      break;
    case 2: /* a text without a status */
      (void)snprintf(err->message, sizeof err->message, "%s is struck", wrong.id);
      err->status = 0;
      break;
    case 3: /* bytes that are no text */
      err->status = f->status;
      memset(err->message, 0xff, sizeof err->message);
      break;
    default:
      (void)opipe_fail(err, f->status, "%s is struck", wrong.id);
  }
  return f->status;
}

/* The real plugin's answer, in the name of the one at hand. */
static opipe_status named(opipe_status status, opipe_error *err) {
  if (status < 0 && err != NULL && strstr(err->message, wrong.id) == NULL)
    (void)opi_error_prefix(err, "%s: ", wrong.id);
  return status;
}

static bool fails(const fault *f) {
  return f != NULL && f->kind == WRONG_STATUS;
}

static bool lies(const fault *f) {
  if (f == NULL || f->kind != WRONG_FIELD)
    return false;
  ++wrong.struck;
  return true;
}

#endif /* TESTS_FUZZ_PLUGIN_BYTES_H */
