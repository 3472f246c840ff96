/* SPDX-License-Identifier: Apache-2.0 */
/* A session that holds some of its plan's ranks. The others are in sessions
 * of their own, in this process or another, and are reached through the transport alone: nothing is
 * shared by pointer.
 *
 *   the session with rank 0 (the owner)            another session
 *   rank 0 ◄── REPORT n: how a rank's part of request n ended, its losses ── rank r
 *          ─── GO n: step n begins, or is left out ───────────────────────►
 *          ─── VERDICT n: how request n ended, its loss ──────────────────►
 *          ◄── ALIVE, DATA, LEAVE ──►
 *          ─── BYE: all have said LEAVE ──────────────────────────────────►
 *
 * A *lane* is the pair of control streams between rank 0 and a rank of another session. A rank that
 * is done with its list of a request goes on; the request ends for the callers of all sessions with
 * the owner's verdict: well if all ranks report so, else for the reason of the lowest stage.
 * Whether a step is left out as a whole (cancel, deadline) is decided by the owner alone, before a
 * rank begins it.
 *
 * Letters travel through buffers of a rank's own, on its own thread. They come between the messages
 * of the lists, which therefore must be matched by tag or stream. What a rank has here belongs to
 * its thread; what is atomic, to all.
 */
#ifndef OPI_PEERS_H
#define OPI_PEERS_H

#include "runtime/requests/requests.h"

enum {
  OPI_LETTERS = 4, /* that a lane holds in either direction */
  OPI_LETTER_TEXT = 440,
  OPI_LETTER_MORE = 32768 /* bytes that may follow a letter, at least */
};

enum {
  OPI_LETTER_HELLO = 1,
  OPI_LETTER_REPORT = 2,
  OPI_LETTER_GO = 3,
  OPI_LETTER_VERDICT = 4,
  OPI_LETTER_ALIVE = 5,
  OPI_LETTER_DATA = 6,
  OPI_LETTER_LEAVE = 7,
  OPI_LETTER_BYE = 8
};

typedef struct opi_letter {
  uint32_t kind;    /* OPI_LETTER_* */
  int32_t status;   /* OPIPE_OK, or why not */
  uint32_t stage;   /* where it failed, OPIPE_NONE: before any */
  uint32_t leader;  /* HELLO: the first rank of the session that says so */
  uint64_t number;  /* REPORT, VERDICT: of the request; GO: by the order in which ranks are given
                       them; DATA: its first byte */
  uint64_t n_bytes; /* of what follows: losses, data */
  uint64_t n_total; /* DATA: of all */
  double loss;      /* VERDICT */
  char text[OPI_LETTER_TEXT];
} opi_letter;

/* Between rank 0 and a rank of another session, as seen from this end. Letters are numbered. */
typedef struct opi_lane {
  opi_rank *rank;  /* this end */
  uint32_t far;    /* rank of the other end */
  uint32_t leader; /* owner: first rank of the far session; OPIPE_NONE: not heard of yet */
  opipe_stream *in, *out;
  opipe_queue *queue;                /* of its own where the rank's may be at work for long, with */
  opipe_event *event;                /* its event; NULL: the device is synchronous */
  opi_block block;                   /* OPI_LETTERS places for what goes, as many for what comes */
  char *going, *come;                /* [place_bytes] on the host */
  uint64_t place_bytes, step_bytes;  /* of a letter with what follows it; from one to the next */
  uint64_t going_bytes[OPI_LETTERS]; /* of what lies in the places */
  uint64_t n_written, n_sent, n_free; /* what goes; those below n_free have left */
  uint64_t n_posted, n_read;          /* what comes */
  bool peeked;                        /* letter n_read lies in `come` */
  uint64_t n_gone;                    /* GOs sent, or received */
  uint64_t n_judged;                  /* owner: VERDICTs sent */
  uint64_t n_shared;                  /* bytes of the share that went */
  bool reported;                      /* owner: of the foremost request */
  bool shares;                        /* owner: the share has begun here */
  bool leave_sent, leave_got, bye_sent, bye_got, left;
  uint64_t alive_ns, alive_moves; /* when ALIVE went last, and how many moves there were then */
} opi_lane;

/* Requests that a rank is done with but for the verdict, oldest first. */
typedef struct opi_awaited {
  opi_request **ring; /* [engine->ring_room] */
  uint64_t n_in, n_reported, n_out;
} opi_awaited;

/* Data that the session that has it gives to all others. */
typedef struct opi_share {
  char *data; /* [n_bytes] */
  uint64_t n_bytes, n_there;
  uint32_t holder; /* rank whose session has it */
  bool begun;      /* it is here, or begins to come */
  opipe_error why;
  _Atomic uint64_t n_parts; /* letters, for whoever waits */
  _Atomic uint32_t state;   /* OPI_SHARING_* */
} opi_share;
enum { OPI_SHARING_NONE = 0, OPI_SHARING_RUNS = 1, OPI_SHARING_DONE = 2 };

struct opi_peers {
  opi_session *session;
  opi_elsewhere seen; /* by the ranks here */
  opi_arena arena;
  opi_lane *lanes; /* [n_lanes] owner: one per rank elsewhere; else one per rank here */
  uint32_t n_lanes;
  bool owns;            /* rank 0 is here */
  bool says_go;         /* ranks elsewhere begin nothing before rank 0's GO: steps, not requests */
  opi_awaited *awaited; /* [n_ranks] of those here */
  /* owner: of the foremost request that rank 0 is done with */
  bool judged;
  opi_letter first; /* the report that decides; status OPIPE_OK: none failed */
  uint64_t n_verdicts;
  opi_share share;
  _Atomic uint64_t n_heard;  /* ALIVEs */
  _Atomic uint64_t heard_ns; /* the last; 0: none */
  _Atomic uint32_t leaving;  /* this session is being closed */
  _Atomic uint32_t gone;     /* another one was */
  _Atomic uint32_t n_left;   /* lanes on which BYE was said */
};
typedef struct opi_peers opi_peers;

/* -- lane.c -- */
opipe_status opi_lanes_open(opi_peers *peers, opipe_error *err);
void opi_lanes_close(opi_peers *peers);
/* Letters that are under way go on. */
opipe_status opi_lane_move(opi_lane *lane, opipe_error *err);
bool opi_lane_has_room(const opi_lane *lane);
/* Puts a letter on its way, for which there is room; `more` [letter->n_bytes] follows it, and may
 * lie behind a letter's place in lane->going. */
opipe_status opi_lane_write(opi_lane *lane, const opi_letter *letter, const void *more,
                            opipe_error *err);
/* The next letter that has come, with what follows behind it; *out NULL: none. It is the next one
 * until it is taken. */
opipe_status opi_lane_peek(opi_lane *lane, const opi_letter **out, opipe_error *err);
void opi_lane_take(opi_lane *lane);

/* -- fates.c -- */
opipe_status opi_fates_open(opi_peers *peers, opipe_error *err);
/* *out_taken: false, the letter has to wait until something is done here. */
opipe_status opi_fate_hear(opi_peers *peers, opi_lane *lane, const opi_letter *letter,
                           bool *out_taken, opipe_error *err);
/* The rank is done with a request but for the verdict; is any such left? */
void opi_peers_await(void *ctx, const opi_rank *rank, opi_request *request);
bool opi_peers_awaits(const void *ctx, const opi_rank *rank);
/* What the rank has to say: reports; or, of rank 0, what goes and verdicts. */
opipe_status opi_fates_tell(opi_peers *peers, opi_rank *rank, opipe_error *err);
/* Bytes of the losses that a rank may report. */
uint64_t opi_fate_bytes(const opi_setup *setup, uint32_t rank);

/* -- share.c -- */
opipe_status opi_share_hear(opi_peers *peers, opi_lane *lane, const opi_letter *letter,
                            bool *out_taken, opipe_error *err);
opipe_status opi_share_tell(opi_peers *peers, const opi_rank *rank, opipe_error *err);

#endif /* OPI_PEERS_H */
