/* SPDX-License-Identifier: Apache-2.0 */
/* Letters that processes send each other beside the messages of a transport: what the layer that
 * writes them and the channel that carries them both know.
 *
 * A *box* is where letters of one sender wait for one reader. Both ends have one of the same key,
 * through which letters go both ways; every letter says how many its sender has taken out of its
 * own box, so that neither end has more under way than the other has room for.
 */
#ifndef OPI_LETTERS_H
#define OPI_LETTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* Every letter begins with it; its bytes follow. A letter without bytes is only an answer. */
typedef struct opi_envelope {
  uint64_t key;     /* of the box, for this process and the other; the carrier's own bits are 0 */
  uint64_t n_taken; /* letters that the sender has taken out of its box */
  uint32_t to, reserved; /* the process */
} opi_envelope;

/* An owner sees this of its box without a lock. */
typedef struct opi_box {
  _Atomic uint64_t n_come;     /* letters that have come */
  _Atomic uint64_t n_answered; /* letters that the other end has taken */
  _Atomic uint32_t broken;     /* 1: nothing will come any more; taking says why */
} opi_box;

#endif /* OPI_LETTERS_H */
