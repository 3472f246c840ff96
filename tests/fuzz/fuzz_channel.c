/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reader of the channel's frames: the first byte says in how many steps the others
 * arrive, and how many messages they make does not depend on it; messages keep their bounds; what
 * was read is written and read again, alike.
 *   With the first byte's highest bit, the bytes come by TCP: a greeting, a proof, a verdict and
 * records of strangers, none of which passes; and records that were sealed, which pass in whatever
 * steps, and not with a bit changed. */
#include <string.h>

#include "runtime/launch/frame.h"
#include "runtime/launch/token.h"
#include "tests/fuzz/must.h"

enum { MOST = 1 << 18 };

typedef struct heard {
  uint64_t n, n_bytes, mix;
  bool again; /* each message is written, and read by a second reader */
} heard;

static opipe_status hear(void *ctx, const opi_channel_message *m, opipe_error *err);

static void read_again(const opi_channel_message *m) {
  uint8_t frame[OPI_FRAME_MOST];
  uint64_t at = 0;
  heard h = {.again = false};
  opi_frames f;
  opipe_error err = OPIPE_ERROR_INIT;
  must(opi_frames_init(&f, opi_allocator_system(), MOST, &err) == OPIPE_OK, err.message);
  do {
    const uint32_t n = opi_frame_write(frame, m->kind, m->tag, m->bytes, m->n_bytes, &at);
    must(opi_frames_take(&f, frame, n, hear, &h, &err) == OPIPE_OK, err.message);
  } while (at < m->n_bytes);
  must(opi_frames_end(&f, &err) == OPIPE_OK, err.message);
  must(h.n == 1 && h.n_bytes == m->n_bytes, "a message that is another when it was read again");
  opi_frames_release(&f);
}

static opipe_status hear(void *ctx, const opi_channel_message *m, opipe_error *err) {
  heard *h = ctx;
  (void)err;
  must(m->kind > 0 && m->kind < OPI_FRAME_KINDS, "an unknown kind");
  must(m->n_bytes <= (opi_frame_is_long(m->kind) ? MOST : OPI_FRAME_BODY), "a message too long");
  for (uint64_t i = 0; i < m->n_bytes; ++i)
    h->mix = h->mix * 31 + m->bytes[i];
  h->mix = h->mix * 31 + m->tag;
  h->n_bytes += m->n_bytes;
  ++h->n;
  if (h->again)
    read_again(m);
  return OPIPE_OK;
}

static opipe_status read_in_steps(const uint8_t *data, size_t size, size_t step, heard *out) {
  opi_frames f;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = opi_frames_init(&f, opi_allocator_system(), MOST, &err);
  for (size_t at = 0; at < size && status == OPIPE_OK; at += step)
    status = opi_frames_take(&f, data + at, size - at < step ? size - at : step, hear, out, &err);
  if (status == OPIPE_OK)
    status = opi_frames_end(&f, &err);
  must(status >= 0 || err.message[0] != '\0', "a status without a message");
  must(status != OPIPE_E_INTERNAL, err.message);
  opi_frames_release(&f);
  return status;
}

/* ---- by TCP ---- */

enum { RECORD_ROOM = OPI_RECORD_BEFORE + OPI_FRAME_MOST + OPI_RECORD_AFTER };

static opipe_status count(void *ctx, const uint8_t *bytes, size_t n, opipe_error *err) {
  heard *h = ctx;
  (void)err;
  must(n > 0 && n <= OPI_FRAME_MOST, "a record too long");
  for (size_t i = 0; i < n; ++i)
    h->mix = h->mix * 31 + bytes[i];
  h->n_bytes += n;
  ++h->n;
  return OPIPE_OK;
}

static opipe_status unseal(const opi_token *token, const opi_greeting *greeting,
                           const opi_token_proof *proof, const uint8_t *data, size_t size,
                           size_t step, heard *out) {
  opi_seal seal;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status =
      opi_seal_init(&seal, opi_allocator_system(), token, greeting, proof, true, &err);
  must(status == OPIPE_OK, err.message);
  for (size_t at = 0; at < size && status == OPIPE_OK; at += step)
    status = opi_seal_take(&seal, data + at, size - at < step ? size - at : step, count, out, &err);
  must(status >= 0 || err.message[0] != '\0', "a status without a message");
  opi_seal_release(&seal);
  return status;
}

/* Records of `size` bytes in all, sealed by the other end; *out_n: their bytes on the wire. */
static uint8_t *seal_all(const opi_token *token, const opi_greeting *greeting,
                         const opi_token_proof *proof, const uint8_t *data, size_t size,
                         size_t *out_n) {
  static uint8_t room[RECORD_ROOM], wire[1 << 20];
  const size_t most = 4096;
  opi_seal seal;
  opipe_error err = OPIPE_ERROR_INIT;
  must(
      opi_seal_init(&seal, opi_allocator_system(), token, greeting, proof, false, &err) == OPIPE_OK,
      err.message);
  *out_n = 0;
  for (size_t at = 0; at < size && *out_n < sizeof wire - RECORD_ROOM; at += most) {
    const size_t n = size - at < most ? size - at : most;
    memcpy(room + OPI_RECORD_BEFORE, data + at, n);
    opi_seal_write(&seal, room, (uint32_t)n);
    const size_t whole = n + OPI_RECORD_BEFORE + OPI_RECORD_AFTER - OPI_RECORD_UNSENT;
    memcpy(wire + *out_n, room + OPI_RECORD_UNSENT, whole);
    *out_n += whole;
  }
  opi_seal_release(&seal);
  return wire;
}

static void by_tcp(const uint8_t *data, size_t size) {
  opi_token token;
  opi_greeting greeting = {.asks = 1}, strange = {.asks = 0};
  opi_token_proof proof = {.rank = 1}, given = {.rank = 0};
  opi_verdict verdict, told = {.refused = 0};
  heard whole = {.n = 0}, parts = {.n = 0};
  opipe_error err = OPIPE_ERROR_INIT;
  size_t n = 0;
  if (opi_token_find(&opi_process_variables, "a token of 24 characters", &token, &err) != OPIPE_OK)
    return; /* without libsodium there is nothing to read */
  memcpy(&strange, data, size < sizeof strange ? size : sizeof strange);
  memcpy(&given, data, size < sizeof given ? size : sizeof given);
  memcpy(&told, data, size < sizeof told ? size : sizeof told);
  (void)opi_greeting_check(&strange, &err);
  must(opi_token_check(&token, &greeting, &given, &verdict, &err) < 0 && verdict.refused == 1,
       "a stranger has proved the token");
  must(opi_token_judge(&token, &greeting, &proof, &told, &err) < 0, "a stranger is process 0");
  must(unseal(&token, &greeting, &proof, data, size, size == 0 ? 1 : size, &whole) != OPIPE_OK ||
           whole.n == 0,
       "a stranger's record is taken");
  if (size == 0)
    return;
  uint8_t *wire = seal_all(&token, &greeting, &proof, data, size, &n);
  whole = (heard){.n = 0};
  must(unseal(&token, &greeting, &proof, wire, n, n, &whole) == OPIPE_OK, "a record is refused");
  must(unseal(&token, &greeting, &proof, wire, n, 1 + data[0] % 40u, &parts) == OPIPE_OK &&
           whole.n == parts.n && whole.mix == parts.mix,
       "steps change what is read");
  wire[data[0] * 7919u % n] ^= (uint8_t)(1u << data[0] % 8);
  parts = (heard){.n = 0};
  must(unseal(&token, &greeting, &proof, wire, n, n, &parts) != OPIPE_OK || parts.n < whole.n,
       "a record is taken that was changed");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  heard whole = {.again = true}, parts = {.again = false};
  if (size == 0)
    return 0;
  if ((data[0] & 0x80) != 0) {
    by_tcp(data + 1, size - 1);
    return 0;
  }
  const opipe_status a = read_in_steps(data + 1, size - 1, size, &whole);
  const opipe_status b = read_in_steps(data + 1, size - 1, 1 + data[0] % 40u, &parts);
  must(a == b && whole.n == parts.n && whole.mix == parts.mix, "steps change what is read");
  return 0;
}
