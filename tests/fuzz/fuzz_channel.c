/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reader of the channel's frames: the first byte says in how many steps the others
 * arrive, and how many messages they make does not depend on it; messages keep their bounds; what
 * was read is written and read again, alike. */
#include "runtime/launch/frame.h"
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  heard whole = {.again = true}, parts = {.again = false};
  if (size == 0)
    return 0;
  const opipe_status a = read_in_steps(data + 1, size - 1, size, &whole);
  const opipe_status b = read_in_steps(data + 1, size - 1, 1 + data[0] % 40u, &parts);
  must(a == b && whole.n == parts.n && whole.mix == parts.mix, "steps change what is read");
  return 0;
}
