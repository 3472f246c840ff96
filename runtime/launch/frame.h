/* SPDX-License-Identifier: Apache-2.0 */
/* The channel's frames: how messages lie in a stream of bytes, and the reader of foreign bytes.
 *
 *   frame    head (24 bytes), then n_bytes of a message; at most 64 KiB together
 *   message  one frame, or, for kinds that may be long, pieces in frames that follow each other;
 *            frames of short kinds may come between the pieces
 *
 *   bytes  0..1   magic                8..11   tag
 *          2      version             12..15   n_bytes of this frame
 *          3      kind                16..23   bytes of the whole message
 *          4      1: more pieces follow
 *          5..7   0
 * Numbers are in the order of the machine's bytes.
 */
#ifndef OPI_FRAME_H
#define OPI_FRAME_H

#include "loader/base/base.h"

enum {
  OPI_CHANNEL_VERSION = 1,
  OPI_FRAME_MOST = 65536, /* bytes of a frame, with its head */
  OPI_FRAME_HEAD = 24,
  OPI_FRAME_BODY = OPI_FRAME_MOST - OPI_FRAME_HEAD
};
#define OPI_MESSAGE_MOST (UINT64_C(64) << 20) /* bytes of a message */

/* Kinds. P: to process 0, A: from process 0. Long kinds: START, GATHER, RESULT, POST, MAIL,
 * LETTER. */
enum {
  OPI_FRAME_HELLO = 1,   /* P who joins, with a pidfd */
  OPI_FRAME_WELCOME = 2, /* A accepted, with a pidfd */
  OPI_FRAME_REFUSED = 3, /* A the reason; the connection ends */
  OPI_FRAME_START = 4,   /* A all have joined */
  OPI_FRAME_LEAVE = 5,   /* PA the sender closes in order */
  OPI_FRAME_BEAT = 6,    /* PA alive; how far it has come */
  OPI_FRAME_ABORT = 7,   /* PA the team has failed */
  OPI_FRAME_GATHER = 8,  /* P a process's part of a collective call */
  OPI_FRAME_RESULT = 9,  /* A its result */
  OPI_FRAME_POST = 10,   /* PA an entry of the board */
  OPI_FRAME_STOP = 11,   /* P somebody wants all to stop */
  OPI_FRAME_ASK = 12,    /* A how far are you? */
  OPI_FRAME_ANSWER = 13, /* P so far */
  OPI_FRAME_AGREED = 14, /* A stop there */
  OPI_FRAME_PASSED = 15, /* P was there */
  OPI_FRAME_STUCK = 16,  /* A a session stands still, and who holds it up */
  OPI_FRAME_PLACES = 17, /* A who may be on whose machine */
  OPI_FRAME_MET = 18,    /* P has it met the lowest process of its machine? */
  OPI_FRAME_DIED = 19,   /* P a neighbour's end was seen */
  OPI_FRAME_MAIL = 20,   /* A for a lane: calls to repeat */
  OPI_FRAME_LETTER = 21, /* PA from any process to any other, by way of process 0 */
  OPI_FRAME_KINDS = 22
};

/* A message, valid for the call that receives it. */
typedef struct opi_channel_message {
  uint32_t kind, tag;
  const uint8_t *bytes;
  uint64_t n_bytes;
} opi_channel_message;
typedef opipe_status (*opi_channel_message_fn)(void *ctx, const opi_channel_message *message,
                                               opipe_error *err);

/* Reads a connection's bytes. */
typedef struct opi_frames {
  const opipe_allocator *allocator;
  uint64_t message_most; /* at most OPI_MESSAGE_MOST */
  uint8_t *frame;        /* [OPI_FRAME_MOST] the one that is coming in */
  uint32_t n;            /* bytes of it */
  bool inside;           /* pieces of a long message have come, others follow: */
  uint32_t kind, tag;
  uint64_t total, n_body;
  uint8_t *body;
  size_t room; /* grows with what has come, not with what was announced */
} opi_frames;

opipe_status opi_frames_init(opi_frames *frames, const opipe_allocator *allocator,
                             uint64_t message_most, opipe_error *err);
void opi_frames_release(opi_frames *frames); /* of zeros: does nothing */
/* Calls `each` for every message that ends in these bytes. Errors: INVALID, the bytes are no
 * frames (with the number that is wrong and the one that is allowed); ABI, another version; LIMIT,
 * a message that is too long; NOMEM; those of `each`. Nothing can be read after an error. */
opipe_status opi_frames_take(opi_frames *frames, const uint8_t *data, size_t n,
                             opi_channel_message_fn each, void *ctx, opipe_error *err);
/* The connection has ended. Errors: IO, in the middle of a frame or message. */
opipe_status opi_frames_end(const opi_frames *frames, opipe_error *err);

bool opi_frame_is_long(uint32_t kind);
/* Bytes of the frames of a message of n_bytes. */
uint64_t opi_frames_bytes(uint64_t n_bytes);
/* Writes the frame whose piece begins at byte `at` of a message to out [OPI_FRAME_MOST]; returns
 * the frame's bytes. *io_at moves past the piece. */
uint32_t opi_frame_write(uint8_t *out, uint32_t kind, uint32_t tag, const uint8_t *bytes,
                         uint64_t n_bytes, uint64_t *io_at);

#endif /* OPI_FRAME_H */
