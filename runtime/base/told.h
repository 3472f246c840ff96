/* SPDX-License-Identifier: Apache-2.0 */
/* The action that a rank is at, as the processes of a team tell each other: for messages about the
 * dead, and for the search of the rank that holds up all others. */
#ifndef OPI_TOLD_H
#define OPI_TOLD_H

#include <stdint.h>

enum { OPI_TOLD_ROOM = 96, OPI_TOLD_MOST = 64 /* ranks of a process that are told */ };
/* IDLE: it has no work. WAITS: at a step that cannot happen yet. WORKS: in a program. */
enum { OPI_TOLD_IDLE = 0, OPI_TOLD_WAITS = 1, OPI_TOLD_WORKS = 2 };

typedef struct opi_told {
  uint32_t session; /* its number on the team */
  uint32_t rank;
  uint32_t state;         /* OPI_TOLD_* */
  uint32_t peer;          /* the rank that it waits for; OPIPE_NONE: none, or all */
  uint64_t still_ns;      /* since it moved last */
  uint64_t limit_ns;      /* how long a session may stand still; 0: it is not judged */
  char at[OPI_TOLD_ROOM]; /* "RECV of stage 1 (request 7, micro-batch 2)"; "": nothing */
} opi_told;

/* Writes at most `room` ranks; returns their number. Takes no lock, reads atomics. [any-thread] */
typedef uint32_t (*opi_tell_fn)(void *ctx, opi_told *out, uint32_t room);

#endif /* OPI_TOLD_H */
