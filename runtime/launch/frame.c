/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes frames. Whatever is read may come from anybody: every number is checked before
 * it is used. */
#include "runtime/launch/frame.h"

#include <string.h>

enum { AT_VERSION = 2, AT_KIND = 3, AT_MORE = 4, AT_ZEROS = 5, AT_TAG = 8, AT_BYTES = 12 };
enum { AT_TOTAL = 16, MAGIC_BYTES = 2, FIRST_ROOM = OPI_FRAME_MOST };
static const uint8_t magic[MAGIC_BYTES] = {'o', 'T'};

typedef struct head {
  uint32_t kind, tag, n_bytes;
  uint64_t total;
  bool more;
} head;

bool opi_frame_is_long(uint32_t kind) {
  return kind == OPI_FRAME_GATHER || kind == OPI_FRAME_RESULT || kind == OPI_FRAME_POST ||
         kind == OPI_FRAME_START || kind == OPI_FRAME_MAIL || kind == OPI_FRAME_LETTER;
}

uint64_t opi_frames_bytes(uint64_t n_bytes) {
  const uint64_t n = n_bytes == 0 ? 1 : (n_bytes + OPI_FRAME_BODY - 1) / OPI_FRAME_BODY;
  return n_bytes + n * OPI_FRAME_HEAD;
}

uint32_t opi_frame_write(uint8_t *out, uint32_t kind, uint32_t tag, const uint8_t *bytes,
                         uint64_t n_bytes, uint64_t *io_at) {
  const uint64_t left = n_bytes - *io_at;
  const uint32_t n = left < OPI_FRAME_BODY ? (uint32_t)left : (uint32_t)OPI_FRAME_BODY;
  memset(out, 0, OPI_FRAME_HEAD);
  memcpy(out, magic, sizeof magic);
  out[AT_VERSION] = OPI_CHANNEL_VERSION;
  out[AT_KIND] = (uint8_t)kind;
  out[AT_MORE] = n < left;
  memcpy(out + AT_TAG, &tag, sizeof tag);
  memcpy(out + AT_BYTES, &n, sizeof n);
  memcpy(out + AT_TOTAL, &n_bytes, sizeof n_bytes);
  if (n != 0)
    memcpy(out + OPI_FRAME_HEAD, bytes + *io_at, n);
  *io_at += n;
  return OPI_FRAME_HEAD + n;
}

/* ---- reading ---- */

opipe_status opi_frames_init(opi_frames *f, const opipe_allocator *allocator, uint64_t message_most,
                             opipe_error *err) {
  memset(f, 0, sizeof *f);
  f->allocator = allocator;
  f->message_most = message_most;
  f->frame = opi_alloc(allocator, OPI_FRAME_MOST);
  return f->frame != NULL ? OPIPE_OK : opi_fail_nomem(err, OPI_FRAME_MOST, "a connection");
}

void opi_frames_release(opi_frames *f) {
  if (f->allocator == NULL)
    return;
  opi_free(f->allocator, f->frame, OPI_FRAME_MOST);
  opi_free(f->allocator, f->body, f->room);
  memset(f, 0, sizeof *f);
}

/* The beginning of a frame, as far as it has come: refused as early as possible. */
static opipe_status check_begin(const uint8_t *frame, uint32_t n, opipe_error *err) {
  const uint32_t known = n < MAGIC_BYTES ? n : MAGIC_BYTES;
  if (memcmp(frame, magic, known) != 0)
    return opi_fail(err, OPIPE_E_INVALID, "the peer does not speak this channel's language");
  if (n > AT_VERSION && frame[AT_VERSION] != OPI_CHANNEL_VERSION) {
    return opi_fail(err, OPIPE_E_ABI,
                    "the peer speaks version %u of the channel, this process version %u: both need "
                    "the same library",
                    frame[AT_VERSION], OPI_CHANNEL_VERSION);
  }
  return OPIPE_OK;
}

static opipe_status read_head(const opi_frames *f, head *out, opipe_error *err) {
  const uint8_t *at = f->frame;
  out->kind = at[AT_KIND];
  out->more = at[AT_MORE] == 1;
  memcpy(&out->tag, at + AT_TAG, sizeof out->tag);
  memcpy(&out->n_bytes, at + AT_BYTES, sizeof out->n_bytes);
  memcpy(&out->total, at + AT_TOTAL, sizeof out->total);
  if (out->kind == 0 || out->kind >= OPI_FRAME_KINDS) {
    return opi_fail(err, OPIPE_E_INVALID, "a frame of kind %u; kinds are 1 to %u", out->kind,
                    OPI_FRAME_KINDS - 1);
  }
  if (at[AT_MORE] > 1 || (at[AT_ZEROS] | at[AT_ZEROS + 1] | at[AT_ZEROS + 2]) != 0)
    return opi_fail(err, OPIPE_E_INVALID, "a frame with unknown flags");
  if (out->n_bytes > OPI_FRAME_BODY) {
    return opi_fail(err, OPIPE_E_INVALID, "a frame of %llu bytes, at most %d are allowed",
                    (unsigned long long)out->n_bytes + OPI_FRAME_HEAD, OPI_FRAME_MOST);
  }
  if (out->total > f->message_most) {
    return opi_fail(err, OPIPE_E_LIMIT, "a message of %llu bytes, at most %llu are allowed",
                    (unsigned long long)out->total, (unsigned long long)f->message_most);
  }
  return OPIPE_OK;
}

/* A frame of a short kind, or the first of a message, must agree with the message's size; a further
 * one with the pieces before it. */
static opipe_status check_piece(const opi_frames *f, const head *h, opipe_error *err) {
  const bool further = f->inside && opi_frame_is_long(h->kind);
  const uint64_t before = further ? f->n_body : 0;
  if (further && (h->kind != f->kind || h->tag != f->tag || h->total != f->total)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "a message of kind %u, tag %u begins before that of kind %u, tag %u has ended",
                    h->kind, h->tag, f->kind, f->tag);
  }
  if (h->more && !opi_frame_is_long(h->kind))
    return opi_fail(err, OPIPE_E_INVALID, "a frame of kind %u must not be in pieces", h->kind);
  const uint64_t after = before + h->n_bytes;
  if (h->more ? after >= h->total || h->n_bytes == 0 : after != h->total) {
    return opi_fail(err, OPIPE_E_INVALID, "pieces of %llu bytes, the message has %llu",
                    (unsigned long long)after, (unsigned long long)h->total);
  }
  return OPIPE_OK;
}

static opipe_status add_piece(opi_frames *f, const uint8_t *bytes, uint32_t n, opipe_error *err) {
  const uint64_t need = f->n_body + n;
  if (need > f->room) {
    size_t room = f->room == 0 ? FIRST_ROOM : f->room * 2;
    while (room < need)
      room *= 2;
    uint8_t *grown = opi_resize(f->allocator, f->body, f->room, room);
    if (grown == NULL)
      return opi_fail_nomem(err, room, "a message");
    f->body = grown;
    f->room = room;
  }
  memcpy(f->body + f->n_body, bytes, n);
  f->n_body = need;
  return OPIPE_OK;
}

/* The frame is complete. */
static opipe_status take_frame(opi_frames *f, const head *h, opi_channel_message_fn each, void *ctx,
                               opipe_error *err) {
  const uint8_t *bytes = f->frame + OPI_FRAME_HEAD;
  opi_channel_message whole = {h->kind, h->tag, bytes, h->n_bytes};
  const bool further = f->inside && opi_frame_is_long(h->kind);
  OPI_TRY(check_piece(f, h, err));
  if (!h->more && !further)
    return each(ctx, &whole, err);
  if (!further) {
    f->kind = h->kind;
    f->tag = h->tag;
    f->total = h->total;
    f->n_body = 0;
    f->inside = true;
  }
  OPI_TRY(add_piece(f, bytes, h->n_bytes, err));
  if (h->more)
    return OPIPE_OK;
  f->inside = false;
  whole.bytes = f->body;
  whole.n_bytes = f->n_body;
  const opipe_status status = each(ctx, &whole, err);
  opi_free(f->allocator, f->body, f->room); /* long ones are rare */
  f->body = NULL;
  f->room = 0;
  return status;
}

opipe_status opi_frames_take(opi_frames *f, const uint8_t *data, size_t n,
                             opi_channel_message_fn each, void *ctx, opipe_error *err) {
  while (n > 0) {
    uint32_t want = OPI_FRAME_HEAD;
    head h = {0};
    if (f->n >= OPI_FRAME_HEAD) {
      OPI_TRY(read_head(f, &h, err));
      want += h.n_bytes;
    }
    const size_t part = n < want - f->n ? n : want - f->n;
    memcpy(f->frame + f->n, data, part);
    f->n += (uint32_t)part;
    data += part;
    n -= part;
    OPI_TRY(check_begin(f->frame, f->n, err));
    if (f->n < OPI_FRAME_HEAD)
      continue;
    OPI_TRY(read_head(f, &h, err));
    if (f->n == OPI_FRAME_HEAD + h.n_bytes) {
      f->n = 0;
      OPI_TRY(take_frame(f, &h, each, ctx, err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_frames_end(const opi_frames *f, opipe_error *err) {
  head h;
  if (f->n == 0 && !f->inside)
    return OPIPE_OK;
  if (f->n == 0) {
    return opi_fail(err, OPIPE_E_IO, "the connection ended after %llu of a message's %llu bytes",
                    (unsigned long long)f->n_body, (unsigned long long)f->total);
  }
  uint32_t whole = OPI_FRAME_HEAD;
  if (f->n >= OPI_FRAME_HEAD && read_head(f, &h, NULL) == OPIPE_OK)
    whole += h.n_bytes;
  return opi_fail(err, OPIPE_E_IO, "the connection ended after %u of a frame's %u bytes", f->n,
                  whole);
}
