/* SPDX-License-Identifier: Apache-2.0 */
/* A session that holds only some of its plan's ranks. The others are in other sessions, in this
 * process or another, and are reached only through the transport: nothing is shared by pointer.
 *
 *   the session with rank 0 (the owner)            another session
 *   rank 0 ◄── REPORT n: how a rank's part of request n ended, its losses ── rank r
 *          ─── GO n: step n begins, or is left out ───────────────────────►
 *          ─── VERDICT n: how request n ended, its loss ──────────────────►
 *          ◄── ALIVE, DATA, LEAVE ──►
 *          ─── BYE: all have said LEAVE ──────────────────────────────────►
 *
 * A *lane* is the pair of control streams between rank 0 and a rank of another session. A rank that
 * is done with its list of a request goes on. The request ends for the callers of all sessions with
 * the owner's verdict: successfully if all ranks report so, else for the reason of the lowest
 * stage. Only the owner decides whether a step is left out as a whole (cancel, deadline), before a
 * rank begins it.
 *
 * Where inputs or outputs travel (session flags), the first ranks of process 0 and of each other
 * process have a lane of values, too: parts of inputs out of process 0, parts of outputs into it,
 * request after request, packed into letters VALUES. They are no messages of the lists: a plan does
 * not say who has the inputs, so one hash and one proof hold for threads, for processes that read
 * them, and for those that get them. As messages, labels would tie rank 0's batches to the last
 * stage's, a pipeline's depth apart, or cost the memory of a whole mini-batch; and a request whose
 * inputs fail to come could not be withdrawn before it begins. Letters wait for no list, so they
 * need no proof.
 *
 * Letters are written and read on a rank's own thread. Where messages are matched by tag or stream
 * they go through the transport, between the messages of the lists, out of buffers of the rank.
 * Under the other rules nothing may come between those: letters go over the channel of the team,
 * beside the transport. A rank's fields belong to its thread; atomic ones are shared.
 */
#ifndef OPI_PEERS_H
#define OPI_PEERS_H

#include "runtime/requests/requests.h"

enum {
  OPI_LETTERS = 4, /* places of a lane in either direction */
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
  OPI_LETTER_BYE = 8,
  OPI_LETTER_VALUES = 9 /* on lanes of values alone */
};

typedef struct opi_letter {
  uint32_t kind;    /* OPI_LETTER_* */
  int32_t status;   /* OPIPE_OK, or why not */
  uint32_t stage;   /* where it failed, OPIPE_NONE: before any */
  uint32_t leader;  /* HELLO: the first rank of the sender's session */
  uint64_t number;  /* REPORT, VERDICT: of the request; GO: of its entry in the ring; DATA: the
                       offset of its first byte */
  uint64_t n_bytes; /* losses or data behind the letter */
  uint64_t n_total; /* DATA: bytes of all letters */
  double loss;      /* VERDICT */
  double count;     /* REPORT, VERDICT: of labels; 0: of a session that does not count them */
  char text[OPI_LETTER_TEXT];
} opi_letter;

/* How far inputs or outputs have come in one direction of a lane. */
typedef struct opi_way {
  uint64_t n_done; /* inputs: entries of the ring; outputs: 1 + number of the last request */
  opi_parcel at;   /* the part under way, of which n_bytes have gone or come */
  uint64_t n_bytes;
  bool begun, any; /* the request under way has begun; it has a part */
} opi_way;

/* A lane over the channel. */
typedef struct opi_beside {
  opi_box *box;           /* NULL: letters go through the transport */
  opi_envelope *envelope; /* of letters sent; the lane's `going` is behind it */
  uint64_t n_told;        /* of the letters read, as many as the far end knows of */
} opi_beside;

/* When ALIVE was sent last, and the moves counted then. */
typedef struct opi_alive {
  uint64_t ns, moves;
} opi_alive;

/* One end of the lane between rank 0 and a rank of another session. Letters are numbered. */
typedef struct opi_lane {
  opi_rank *rank;  /* this end's */
  uint32_t far;    /* the other end's rank */
  uint32_t leader; /* owner: the first rank of the far session; OPIPE_NONE: not known yet */
  opi_beside beside;
  opipe_stream *in, *out;
  opipe_queue *queue;                 /* of its own, since the rank's may be busy for long */
  opipe_event *event;                 /* of that queue; both NULL: the device is synchronous */
  opi_block block;                    /* OPI_LETTERS places to send from, as many to receive into */
  char *going, *come;                 /* [place_bytes] a letter sent, one received; on the host */
  uint64_t place_bytes, step_bytes;   /* a letter with its data; from one place to the next */
  uint64_t going_bytes[OPI_LETTERS];  /* of the letters in the places */
  uint64_t n_written, n_sent, n_free; /* letters sent; those below n_free have left */
  uint64_t n_posted, n_read;          /* letters received */
  bool peeked;                        /* letter n_read is in `come` */
  uint64_t n_gone;                    /* GOs sent or received */
  uint64_t n_judged;                  /* owner: VERDICTs sent */
  uint64_t n_shared;                  /* bytes of the share sent */
  bool reported;                      /* owner: the foremost request's REPORT is here */
  bool shares;                        /* owner: a letter of the share was sent */
  bool leave_sent, leave_got, bye_sent, bye_got, left;
  opi_alive alive;
  bool of_values;   /* between the first ranks of process 0 and of another one: */
  uint32_t process; /* that one; in another one, itself */
  opi_way inputs, outputs;
} opi_lane;

/* Requests that a rank is done with except for the verdict, oldest first. */
typedef struct opi_awaited {
  opi_request **ring; /* [engine->ring_room] */
  uint64_t n_in, n_reported, n_out;
} opi_awaited;

/* Data that one session gives to all others. */
typedef struct opi_share {
  char *data; /* [n_bytes] */
  uint64_t n_bytes, n_there;
  uint32_t holder; /* a rank of the session that has it */
  bool begun;      /* it is here, or has begun to come */
  opipe_error why;
  _Atomic uint64_t n_parts; /* letters so far, for the thread that waits */
  _Atomic uint32_t state;   /* OPI_SHARING_* */
} opi_share;
enum { OPI_SHARING_NONE = 0, OPI_SHARING_RUNS = 1, OPI_SHARING_DONE = 2 };

/* The same by collectives of the transport (share_collect.c). */
typedef struct opi_spread {
  opi_rank *rank;                /* the first one here */
  opipe_collective *collective;  /* of the first ranks of all processes; NULL: letters carry data */
  opi_block block;               /* one piece */
  opipe_region piece;            /* of the meeting at hand */
  uint64_t *parts;               /* [processes] */
  uint64_t round, n_done;        /* meetings; bytes of the share */
  bool has_head, written, given; /* the first piece is there; the piece at hand is on the device,
                                    and its meeting has begun */
} opi_spread;

struct opi_peers {
  opi_session *session;
  opi_elsewhere seen; /* the table for the ranks here */
  opi_arena arena;
  opi_lane *lanes; /* [n_lanes] owner: one per rank elsewhere; else one per rank here */
  uint32_t n_lanes;
  opi_lane *values; /* [n_values] of the first rank here; none unless inputs or outputs travel */
  uint32_t n_values;
  _Atomic uint64_t n_arrived;   /* entries of the ring whose inputs are here */
  _Atomic uint64_t n_travelled; /* bytes of inputs and outputs, both ways */
  bool owns;                    /* rank 0 is here */
  bool says_go;                 /* ranks begin an entry only at rank 0's GO: true for steps */
  opi_awaited *awaited;         /* [n_ranks] of ranks here */
  /* owner: about the foremost request that rank 0 is done with */
  bool judged;
  opi_letter first; /* the report that decides; status OPIPE_OK: none failed */
  uint64_t n_verdicts;
  opi_share share;
  opi_spread spread;
  _Atomic uint64_t n_heard;  /* ALIVEs received */
  _Atomic uint64_t heard_ns; /* time of the last; 0: none */
  _Atomic uint32_t leaving;  /* this session is being closed */
  _Atomic uint32_t gone;     /* another session was closed */
  _Atomic uint32_t n_left;   /* lanes that are done */
};
typedef struct opi_peers opi_peers;

/* Do letters of the plan's sessions go over the channel of their team? */
static inline bool opi_letters_beside(const opi_decision *plan) {
  return plan->link.rule > OPIPE_RULE_STREAM;
}

/* -- lane_channel.c: what lane.c does for lanes over the channel -- */
opipe_status opi_beside_open(opi_lane *lane, opi_arena *arena, opipe_error *err);
void opi_beside_close(opi_lane *lane);
opipe_status opi_beside_write(opi_lane *lane, uint64_t n_bytes, opipe_error *err);
opipe_status opi_beside_move(opi_lane *lane, opipe_error *err);
/* *out_any: the next letter is in lane->come now. */
opipe_status opi_beside_read(opi_lane *lane, bool *out_any, opipe_error *err);

/* -- lane.c -- */
uint32_t opi_first_of(const opi_setup *setup, uint32_t process); /* its first rank */
opipe_status opi_lanes_open(opi_peers *peers, opipe_error *err);
void opi_lanes_close(opi_peers *peers);
/* Makes progress with letters under way. */
opipe_status opi_lane_move(opi_lane *lane, opipe_error *err);
bool opi_lane_has_room(const opi_lane *lane);
/* Writes a letter, for which there is room, with `more` [letter->n_bytes] behind it. `more` may be
 * in lane->going behind the letter's place. */
opipe_status opi_lane_write(opi_lane *lane, const opi_letter *letter, const void *more,
                            opipe_error *err);
/* The next letter received, with its data behind it; *out NULL: none. It stays the next one until
 * it is taken. */
opipe_status opi_lane_peek(opi_lane *lane, const opi_letter **out, opipe_error *err);
void opi_lane_take(opi_lane *lane);

/* -- values.c -- */
/* Moves inputs and outputs between processes, on the thread of the first rank here. */
opipe_status opi_values_move(opi_peers *peers, const opi_rank *rank, opipe_error *err);
/* On how many ways each request's values are sent or received here. NULL: none. */
uint32_t opi_values_ways(const opi_peers *peers);
/* May the rank begin entry `number` of the ring: are its inputs here? */
bool opi_values_let_begin(const opi_peers *peers, uint64_t number);

/* -- fates.c -- */
/* The request whose part here only the first rank has not told yet: its outputs may go. NULL: none.
 * *out_rest: the other ranks here are done with it, too. */
opi_request *opi_fate_next(opi_peers *peers, bool *out_rest);
/* Is it decided whether the ranks begin the step? Double-buffered steps cannot be left out. */
bool opi_fate_is_decided(const opi_setup *setup, const opi_request *request);
opipe_status opi_fates_open(opi_peers *peers, opipe_error *err);
/* Handles a letter. *out_taken false: it must wait until something is done here. */
opipe_status opi_fate_hear(opi_peers *peers, opi_lane *lane, const opi_letter *letter,
                           bool *out_taken, opipe_error *err);
/* See opi_elsewhere. */
void opi_peers_await(void *ctx, const opi_rank *rank, opi_request *request);
bool opi_peers_awaits(const void *ctx, const opi_rank *rank);
/* Writes a rank's reports, or rank 0's GOs and verdicts. */
opipe_status opi_fates_tell(opi_peers *peers, opi_rank *rank, opipe_error *err);
/* Bytes of losses that a rank may report. */
uint64_t opi_fate_bytes(const opi_setup *setup, uint32_t rank);

/* -- share_collect.c -- */
opipe_status opi_spread_open(opi_peers *peers, opipe_error *err);
void opi_spread_close(opi_peers *peers);
opipe_status opi_spread_move(opi_peers *peers, opipe_error *err);
uint64_t opi_spread_bytes(const opi_decision *plan, uint32_t rank); /* of a first rank */

/* -- share.c -- */
opipe_status opi_share_hear(opi_peers *peers, opi_lane *lane, const opi_letter *letter,
                            bool *out_taken, opipe_error *err);
opipe_status opi_share_tell(opi_peers *peers, const opi_rank *rank, opipe_error *err);

#endif /* OPI_PEERS_H */
