/* SPDX-License-Identifier: Apache-2.0 */
/* The channel's frames: what is written is read, however the bytes arrive; everything else is
 * refused with the number that is wrong. */
#include <stdlib.h>
#include <string.h>

#include "runtime/launch/frame.h"
#include "tests/support/support.h"

enum { HEARD_MOST = 8, AT_BYTES = 12 };
typedef struct heard {
  uint32_t n, kinds[HEARD_MOST], tags[HEARD_MOST];
  uint64_t n_bytes[HEARD_MOST], sums[HEARD_MOST];
} heard;

static uint64_t sum_of(const uint8_t *bytes, uint64_t n) {
  uint64_t sum = n;
  for (uint64_t i = 0; i < n; ++i)
    sum = sum * 31 + bytes[i];
  return sum;
}

static opipe_status hear(void *ctx, const opi_channel_message *m, opipe_error *err) {
  heard *h = ctx;
  if (h->n == HEARD_MOST)
    return opi_fail(err, OPIPE_E_INTERNAL, "too many messages");
  h->kinds[h->n] = m->kind;
  h->tags[h->n] = m->tag;
  h->n_bytes[h->n] = m->n_bytes;
  h->sums[h->n++] = sum_of(m->bytes, m->n_bytes);
  return OPIPE_OK;
}

/* Frames of a message, appended to out; returns the new number of bytes. */
static size_t add(uint8_t *out, size_t at, uint32_t kind, uint32_t tag, const uint8_t *bytes,
                  uint64_t n) {
  uint64_t done = 0;
  do {
    at += opi_frame_write(out + at, kind, tag, bytes, n, &done);
  } while (done < n);
  return at;
}

/* Reads `n` bytes in steps of `step`. */
static opipe_status read_all(const uint8_t *bytes, size_t n, size_t step, uint64_t most, heard *out,
                             bool ends, opipe_error *err) {
  opi_frames f;
  opipe_status status = opi_frames_init(&f, opi_allocator_system(), most, err);
  memset(out, 0, sizeof *out);
  for (size_t at = 0; at < n && status == OPIPE_OK; at += step)
    status = opi_frames_take(&f, bytes + at, n - at < step ? n - at : step, hear, out, err);
  if (status == OPIPE_OK && ends)
    status = opi_frames_end(&f, err);
  opi_frames_release(&f);
  return status;
}

static void test_messages_arrive_whole_however_bytes_come(void) {
  static const size_t steps[] = {1, 7, 24, 65536, 1 << 20};
  enum { LONG = 200000 };
  uint8_t *body = malloc(LONG), *stream = malloc(LONG + 4096);
  heard h;
  OPI_ASSERT_FATAL(body != NULL && stream != NULL);
  for (uint32_t i = 0; i < LONG; ++i)
    body[i] = (uint8_t)(i * 7 + i / 251);
  size_t n = add(stream, 0, OPI_FRAME_BEAT, 3, body, 10);
  n = add(stream, n, OPI_FRAME_RESULT, 4, body, LONG);
  n = add(stream, n, OPI_FRAME_LEAVE, 5, NULL, 0);
  OPI_ASSERT_INT(n, 10 + LONG + OPI_FRAME_HEAD * 6);
  OPI_ASSERT_INT(opi_frames_bytes(LONG), LONG + 4 * OPI_FRAME_HEAD);
  for (uint32_t s = 0; s < OPI_COUNT(steps); ++s) {
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK(read_all(stream, n, steps[s], OPI_MESSAGE_MOST, &h, true, &err), &err);
    OPI_ASSERT_INT(h.n, 3);
    OPI_ASSERT_INT(h.kinds[1], OPI_FRAME_RESULT);
    OPI_ASSERT_INT(h.tags[1], 4);
    OPI_ASSERT_INT(h.n_bytes[1], LONG);
    OPI_ASSERT(h.sums[1] == sum_of(body, LONG));
    OPI_ASSERT_INT(h.n_bytes[2], 0);
  }
  free(stream);
  free(body);
}

/* A heartbeat does not wait for the end of a long message. */
static void test_short_frames_come_between_pieces(void) {
  enum { LONG = OPI_FRAME_BODY + 5 };
  uint8_t *body = calloc(1, LONG), *stream = malloc(2 * OPI_FRAME_MOST);
  opipe_error err = OPIPE_ERROR_INIT;
  heard h;
  uint64_t at = 0;
  OPI_ASSERT_FATAL(body != NULL && stream != NULL);
  size_t n = opi_frame_write(stream, OPI_FRAME_GATHER, 1, body, LONG, &at);
  n = add(stream, n, OPI_FRAME_BEAT, 2, body, 3);
  n += opi_frame_write(stream + n, OPI_FRAME_GATHER, 1, body, LONG, &at);
  OPI_ASSERT_OK(read_all(stream, n, n, OPI_MESSAGE_MOST, &h, true, &err), &err);
  OPI_ASSERT_INT(h.n, 2);
  OPI_ASSERT_INT(h.kinds[0], OPI_FRAME_BEAT);
  OPI_ASSERT_INT(h.n_bytes[1], LONG);
  /* Another long message there is an error. */
  at = 0;
  n = opi_frame_write(stream, OPI_FRAME_GATHER, 1, body, LONG, &at);
  n = add(stream, n, OPI_FRAME_GATHER, 2, body, 3);
  OPI_ASSERT_ERROR(read_all(stream, n, n, OPI_MESSAGE_MOST, &h, true, &err), OPIPE_E_INVALID, &err,
                   "kind 8, tag 2 begins before that of kind 8, tag 1 has ended");
  free(stream);
  free(body);
}

static void test_what_is_cut_short_is_said(void) {
  uint8_t stream[OPI_FRAME_MOST];
  const uint8_t body[10] = {1};
  heard h;
  opipe_error err = OPIPE_ERROR_INIT;
  const size_t n = add(stream, 0, OPI_FRAME_BEAT, 0, body, sizeof body);
  OPI_ASSERT_ERROR(read_all(stream, 10, 4, OPI_MESSAGE_MOST, &h, true, &err), OPIPE_E_IO, &err,
                   "after 10 of a frame's 24 bytes");
  OPI_ASSERT_ERROR(read_all(stream, n - 1, 4, OPI_MESSAGE_MOST, &h, true, &err), OPIPE_E_IO, &err,
                   "after 33 of a frame's 34 bytes");
  OPI_ASSERT_INT(h.n, 0);
}

static void test_what_is_no_frame_is_refused(void) {
  static const struct {
    uint32_t at;
    uint8_t value;
    opipe_status status;
    const char *says;
  } rows[] = {{0, 'G', OPIPE_E_INVALID, "does not speak this channel's language"},
              {1, 'E', OPIPE_E_INVALID, "does not speak this channel's language"},
              {2, 2, OPIPE_E_ABI, "speaks version 2 of the channel, this process version 1"},
              {3, 0, OPIPE_E_INVALID, "a frame of kind 0; kinds are 1 to"},
              {3, OPI_FRAME_KINDS, OPIPE_E_INVALID, "; kinds are 1 to"},
              {4, 2, OPIPE_E_INVALID, "unknown flags"},
              {4, 1, OPIPE_E_INVALID, "must not be in pieces"},
              {7, 1, OPIPE_E_INVALID, "unknown flags"},
              {16, 11, OPIPE_E_INVALID, "pieces of 10 bytes, the message has 11"},
              {22, 1, OPIPE_E_LIMIT, "at most 67108864 are allowed"}};
  const uint8_t body[10] = {1};
  heard h;
  for (uint32_t r = 0; r < OPI_COUNT(rows); ++r) {
    uint8_t stream[OPI_FRAME_MOST];
    opipe_error err = OPIPE_ERROR_INIT;
    const size_t n = add(stream, 0, OPI_FRAME_BEAT, 0, body, sizeof body);
    stream[rows[r].at] = rows[r].value;
    OPI_ASSERT_ERROR(read_all(stream, n, 5, OPI_MESSAGE_MOST, &h, true, &err), rows[r].status, &err,
                     rows[r].says);
    OPI_ASSERT_INT(h.n, 0);
  }
}

/* A frame that says it has 65,537 bytes is refused before they come. */
static void test_a_frame_has_64_kib_at_most(void) {
  uint8_t stream[OPI_FRAME_MOST];
  heard h;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t n_bytes = OPI_FRAME_BODY + 1;
  const uint64_t total = n_bytes;
  (void)add(stream, 0, OPI_FRAME_GATHER, 0, NULL, 0);
  memcpy(stream + AT_BYTES, &n_bytes, sizeof n_bytes);
  memcpy(stream + AT_BYTES + 4, &total, sizeof total);
  OPI_ASSERT_ERROR(read_all(stream, OPI_FRAME_HEAD, 8, OPI_MESSAGE_MOST, &h, false, &err),
                   OPIPE_E_INVALID, &err, "a frame of 65537 bytes, at most 65536 are allowed");
}

/* A message's memory grows with its pieces: what was only announced costs nothing. */
static void test_long_messages_have_a_bound(void) {
  enum { LONG = 3 * OPI_FRAME_BODY };
  uint8_t *body = calloc(1, LONG), *stream = malloc(LONG + 4096);
  heard h;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_FATAL(body != NULL && stream != NULL);
  const size_t n = add(stream, 0, OPI_FRAME_GATHER, 0, body, LONG);
  OPI_ASSERT_ERROR(read_all(stream, n, n, LONG - 1, &h, true, &err), OPIPE_E_LIMIT, &err,
                   "a message of 196536 bytes, at most 196535 are allowed");
  OPI_ASSERT_OK(read_all(stream, n, n, LONG, &h, true, &err), &err);
  OPI_ASSERT_ERROR(read_all(stream, OPI_FRAME_MOST, 100, LONG, &h, true, &err), OPIPE_E_IO, &err,
                   "after 65512 of a message's 196536 bytes");
  free(stream);
  free(body);
}

OPI_TEST_MAIN("frame", OPI_TEST(test_messages_arrive_whole_however_bytes_come),
              OPI_TEST(test_short_frames_come_between_pieces),
              OPI_TEST(test_what_is_cut_short_is_said), OPI_TEST(test_what_is_no_frame_is_refused),
              OPI_TEST(test_a_frame_has_64_kib_at_most), OPI_TEST(test_long_messages_have_a_bound))
