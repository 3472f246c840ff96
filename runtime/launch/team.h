/* SPDX-License-Identifier: Apache-2.0 */
/* A team's parts. `lock` guards all of them; what only the helper thread touches is marked. */
#ifndef OPI_TEAM_H
#define OPI_TEAM_H

#include "runtime/base/base.h"
#include "runtime/launch/frame.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/token.h"

enum {
  OPI_NAME_ROOM = 64,
  OPI_REASON_ROOM = sizeof(((opipe_error *)0)->message),
  OPI_PENDING_MOST = 64,
  OPI_BOOT_ROOM = 40,
  OPI_HOST_ROOM = 64,
  OPI_WANTED_MOST = 8
};
#define OPI_NOBODY UINT32_MAX
#define OPI_SECOND UINT64_C(1000000000)

/* ---- messages ---- */

typedef struct opi_hello {
  uint32_t rank, size;
  int64_t pid;
  char version[16], job[OPI_JOB_ROOM];
  uint32_t abi_major, abi_minor;
  char boot[OPI_BOOT_ROOM]; /* of the machine's kernel; "": not known */
  char host[OPI_HOST_ROOM]; /* the machine's name, for messages */
} opi_hello;

/* START: [size] of these. */
typedef struct opi_started {
  int64_t pid;
  uint32_t machine, reserved; /* the lowest process of its machine */
  char host[OPI_HOST_ROOM];
} opi_started;

/* n_told opi_told follow. */
typedef struct opi_beat {
  uint64_t moves, n_told;
  char at[OPI_AT_ROOM];
} opi_beat;

typedef struct opi_abort {
  uint32_t culprit;
  int32_t status;
  char text[OPI_REASON_ROOM];
} opi_abort;

/* Before the bytes of a part of a collective call. */
typedef struct opi_part_head {
  uint32_t flags;
  int32_t refused;
  char lane[OPI_NAME_ROOM], name[OPI_NAME_ROOM], reason[OPI_REASON_ROOM];
} opi_part_head;

/* Before the sizes [size] and bytes of the result. */
typedef struct opi_result_head {
  int32_t status;
  uint32_t reserved;
  char lane[OPI_NAME_ROOM], reason[OPI_REASON_ROOM + 4 * OPI_NAME_ROOM];
} opi_result_head;

typedef struct opi_stuck {
  uint32_t session, culprit;
  char text[OPI_REASON_ROOM];
} opi_stuck;

typedef struct opi_agreement {
  uint64_t step; /* ANSWER: the last that was begun, + 1; AGREED: the first at which to do it */
  uint32_t what, number;
} opi_agreement;

/* ---- parts ---- */

/* A frame that waits to be sent. */
typedef struct opi_out opi_out;
struct opi_out {
  opi_out *next;
  uint32_t n, at; /* bytes; sent of them */
  uint8_t bytes[];
};
enum { OPI_URGENT = 0, OPI_LONG = 1, OPI_QUEUES = 2 };
enum { OPI_POLLS = 2, OPI_POLLS_EACH = 2 };

/* A connection. Process 0 has one for each other process, and some of processes that have not said
 * who they are; the others have one, to process 0. fd < 0: none. */
typedef struct opi_connection {
  int fd, pidfd;
  uint32_t rank; /* OPI_NOBODY: has not said */
  opi_peer peer;
  opi_frames in; /* the helper's */
  opi_seal seal;
  opi_greeting greeting; /* process 0's, by TCP */
  opi_token_proof proof; /* process 0: as far as it has come */
  uint32_t n_proof;
  bool must_prove; /* process 0: the proof has not come yet */
  opi_out *first[OPI_QUEUES], *last[OPI_QUEUES], *writing;
  uint64_t began_ns, heard_ns;
  uint64_t died_ns; /* process 0: when a neighbour saw its end; 0: nobody has */
  bool left;        /* has said that it closes */
  bool ending;      /* is closed when everything was sent */
} opi_connection;

typedef struct opi_process {
  int64_t pid;
  uint64_t moves, heard_ns;
  char at[OPI_AT_ROOM];
  char call[OPI_NAME_ROOM]; /* the last collective call that it came to; "": not known */
  uint32_t n_told;
  opi_told *told; /* [OPI_TOLD_MOST] its ranks, by the last heartbeat; NULL: it sends none here */
  bool joined, left;
  uint32_t machine;         /* the lowest process of its machine */
  char boot[OPI_BOOT_ROOM]; /* process 0's */
  char host[OPI_HOST_ROOM];
} opi_process;

/* A process of the same machine, as its lowest process sees it (neighbours.c). */
typedef struct opi_neighbour {
  uint32_t rank;
  int pidfd; /* -1: its end was seen, or the system has none */
} opi_neighbour;

typedef struct opi_contribution {
  uint8_t *bytes; /* head and bytes; NULL: has not come */
  uint64_t n;
} opi_contribution;

/* A lane: collective calls that come one after the other. Lanes do not wait for each other. */
typedef struct opi_collect opi_collect;
struct opi_collect {
  opi_collect *next;
  char lane[OPI_NAME_ROOM]; /* "": the host's */
  uint32_t tag;             /* calls that ended */
  bool inside;              /* a thread of this process is in a call */
  uint64_t since_ns;        /* process 0: when the first part of the call came */
  char name[OPI_NAME_ROOM];
  opi_contribution *parts; /* [size] process 0 */
  uint32_t n_parts;
  uint8_t *result; /* of the call that is inside; NULL: not there yet */
  uint64_t n_result;
};

typedef struct opi_stopping {
  uint64_t begun;                   /* the last step that was begun, + 1 */
  bool asked;                       /* answered, and not agreed: no step after `answered` begins */
  uint64_t answered;                /* as `begun` */
  uint32_t what;                    /* agreed and not done; 0: nothing */
  uint64_t step;                    /* where */
  uint32_t wanted[OPI_WANTED_MOST]; /* process 0: asked for while another agreement is made or not
                                       done, in this order, each once */
  uint32_t n_wanted;
  uint32_t asking; /* process 0: what is being agreed on; 0: nothing */
  uint32_t doing;  /* process 0: what was agreed on last */
  uint32_t n_answers, n_passed, number;
  uint64_t latest; /* of the answers */
  bool undone;     /* process 0: some have not passed the step agreed on */
} opi_stopping;

/* Sessions that stood still: the latest few. */
enum { OPI_STUCK_MOST = 8 };
typedef struct opi_standing {
  opi_stuck list[OPI_STUCK_MOST];
  uint32_t n; /* all that there were */
} opi_standing;

typedef struct opi_entry_posted {
  uint8_t *bytes;
  uint32_t n;
} opi_entry_posted;

typedef struct opi_board {
  opi_map *keys;
  opi_entry_posted *entries;
  uint32_t n, room;
} opi_board;

/* Where the team meets, and which machines its processes are of. */
typedef struct opi_team_reach {
  char address[OPI_ADDRESS_ROOM], boot[OPI_BOOT_ROOM], host[OPI_HOST_ROOM];
  opi_token token;
  uint32_t n_unproven;       /* process 0: connections that proved nothing */
  opi_neighbour *neighbours; /* [n_neighbours] */
  uint32_t n_neighbours, neighbours_room;
  uint32_t n_to_meet; /* process 0: processes that have not said MET */
  bool placed;        /* `machine` of all is known, START has not come */
  bool spread;        /* of several machines */
} opi_team_reach;

/* Messages for lanes (mail.c), and memory of frames that were sent: of short ones, of long ones. */
typedef struct opi_inbox opi_inbox;
typedef struct opi_letterbox opi_letterbox;
/* Messages, each behind its size, from begin to end. */
typedef struct opi_waiting_mail {
  uint8_t *bytes;
  uint64_t room, begin, end;
} opi_waiting_mail;
enum { OPI_SPARE_SIZES = 2 };
typedef struct opi_mail {
  opi_inbox *boxes;
  opi_letterbox *letters;          /* letters.c */
  opi_out *spare[OPI_SPARE_SIZES]; /* connection.c */
  uint32_t n_spare[OPI_SPARE_SIZES];
} opi_mail;

/* When the helper last did so. */
typedef struct opi_looked {
  uint64_t beat_ns, look_ns;
} opi_looked;

struct opi_team {
  const opipe_allocator *allocator;
  opi_logger logger;
  const opi_carrier *carrier;
  opi_place place;
  opi_team_reach reach;
  uint64_t timeout_ns, silence_ns, beat_ns, opened_ns;
  opi_lock lock;
  bool has_lock;
  opi_thread helper;
  int wake, listener;    /* -1: none */
  opi_connection *links; /* [n_links] */
  uint32_t n_links;
  struct pollfd *polls; /* [OPI_POLLS + OPI_POLLS_EACH * n_links + size] the helper's */
  opi_process *members; /* [size] */
  uint32_t n_joined;
  bool started, failed, closing, cancelled;
  uint64_t close_by_ns;
  opi_looked looked;
  uint32_t culprit;
  opipe_error failure;
  const char *logs; /* still to be logged by the helper; NULL: nothing */
  opi_teller *tellers;
  opi_standing standing;
  opi_collect *collects; /* lanes; NULL: none so far */
  uint32_t n_collects;
  opi_stopping stop;
  opi_board board;
  opi_mail mail;
};

static inline bool opi_team_is_root(const opi_team *t) {
  return t->place.rank == 0;
}

/* ---- connection.c: all with the lock held ---- */

void opi_connection_clear(opi_connection *link);
/* A new connection; the fd is the link's, on failure too. */
opipe_status opi_connection_begin(opi_team *t, opi_connection *link, int fd, opipe_error *err);
void opi_connection_close(opi_team *t, opi_connection *link);
/* Queues a message. Out of memory: the team fails. */
void opi_connection_send(opi_team *t, opi_connection *link, uint32_t kind, uint32_t tag,
                         const void *bytes, uint64_t n_bytes);
void opi_spares_release(opi_team *t);
bool opi_connection_is_idle(const opi_connection *link); /* nothing waits to be sent */
/* Writes what the connection takes. False: it is broken. */
bool opi_connection_write(opi_team *t, opi_connection *link);
/* Bytes that came in: what must be proven, then messages, for each of which `each` is called. */
opipe_status opi_connection_take(opi_team *t, opi_connection *link, const uint8_t *data, size_t n,
                                 opi_channel_message_fn each, void *ctx, opipe_error *err);
/* Answers process 0's greeting and waits for its verdict, until_ns at the longest; not by the
 * helper. OPIPE_PENDING: it has closed the connection or said nothing; err has the reason. */
opipe_status opi_connection_prove(opi_team *t, opi_connection *link, uint64_t until_ns,
                                  opipe_error *err);
/* The link of a process; NULL: there is none. */
opi_connection *opi_connection_of(opi_team *t, uint32_t rank);
/* To process 0 (of others), or to all but `but` (of process 0). */
void opi_team_send(opi_team *t, uint32_t but, uint32_t kind, uint32_t tag, const void *bytes,
                   uint64_t n_bytes);
void opi_team_wake(opi_team *t);

/* ---- fail.c ---- */

/* The first failure counts, and is told to the others. With the lock held. */
void opi_team_fail(opi_team *t, uint32_t culprit, opipe_status status, const char *fmt, ...)
    OPIPE_PRINTF(4, 5);
/* The failure as `err`; OPIPE_OK: there is none. With the lock held. */
opipe_status opi_team_failure(const opi_team *t, opipe_error *err);
/* "process 2 (pid 71)", or "process 2 (pid 71 of node-b)", into out; returns out. */
enum { OPI_WHO_ROOM = 64 };
const char *opi_team_who(const opi_team *t, uint32_t rank, char out[OPI_WHO_ROOM]);
/* "; it was at 'step 12', move 9; rank 1 at RECV of stage 0 (request 12, micro-batch 3)", or "". */
enum { OPI_WHERE_ROOM = 320 };
const char *opi_team_at(const opi_team *t, uint32_t rank, char out[OPI_WHERE_ROOM]);
/* The culprit logs, and process 0; where that is the culprit, the lowest that survives. */
bool opi_team_may_log(const opi_team *t, uint32_t culprit);

/* ---- standing.c: with the lock held ---- */

opipe_status opi_standing_init(opi_team *t, opipe_error *err); /* when the team is made */
void opi_standing_tell(opi_team *t); /* asks the tellers of this process */
/* A heartbeat's ranks; rank: process 0, or any at process 0. */
void opi_standing_heard(opi_team *t, uint32_t rank, const uint8_t *told, uint32_t n);
void opi_standing_release(opi_team *t);
/* At process 0, once in a heartbeat: does a session stand still? */
void opi_standing_judge(opi_team *t);
opipe_status opi_standing_hear(opi_team *t, const opi_channel_message *m, opipe_error *err);

/* ---- join.c ---- */

void opi_team_accept(opi_team *t); /* whoever waits at process 0's listener */
/* A slot for a connection that has not said who it is; NULL: too many wait. */
opi_connection *opi_team_slot(opi_team *t);
/* HELLO or WELCOME. */
opipe_status opi_team_say(opi_team *t, opi_connection *link, uint32_t kind, opipe_error *err);
opipe_status opi_team_hear_hello(opi_team *t, opi_connection *link, const opi_channel_message *m,
                                 opipe_error *err);
/* Writes the ranks of processes that have not joined, "2, 3", as many as there is room for. */
void opi_team_missing(const opi_team *t, char *out, size_t room);
opi_hello opi_team_hello(const opi_team *t);

/* ---- neighbours.c: with the lock held ---- */

/* Process 0, when all have joined: who may be on whose machine? All start at once if nobody has to
 * meet anybody. */
void opi_neighbours_place(opi_team *t);
/* Meets this machine's processes; not by the helper. Gives the lock and takes it again. */
void opi_neighbours_meet(opi_team *t);
/* PLACES, MET, DIED. */
opipe_status opi_neighbours_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                                 opipe_error *err);
void opi_neighbours_ended(opi_team *t, opi_neighbour *neighbour); /* its descriptor says so */
void opi_neighbours_release(opi_team *t);
void opi_team_start(opi_team *t); /* join.c: process 0 tells all that they have joined */
/* Counts of the processes of this one's machine: how many, how many of them are lower. */
void opi_neighbours_count(const opi_team *t, uint32_t *out_n, uint32_t *out_lower);

/* ---- mail.c ---- */

opipe_status opi_mail_hear(opi_team *t, const opi_channel_message *m, opipe_error *err);
void opi_mail_release(opi_team *t);
/* Appends a message. Errors: LIMIT, too much waits; NOMEM. */
opipe_status opi_waiting_put(const opi_team *t, opi_waiting_mail *mail, const uint8_t *bytes,
                             uint64_t n_bytes, opipe_error *err);
/* The oldest message; NULL: none. It stays until opi_waiting_drop. */
const uint8_t *opi_waiting_first(const opi_waiting_mail *mail, uint64_t *out_n);
void opi_waiting_drop(opi_waiting_mail *mail);

/* ---- letters.c ---- */

opipe_status opi_letter_hear(opi_team *t, const opi_channel_message *m, opipe_error *err);
void opi_boxes_break(opi_team *t); /* the team has failed; with the lock held */
void opi_boxes_ring(opi_team *t);  /* the helper; gives the lock meanwhile */

/* ---- helper.c ---- */

void *opi_team_help(void *team); /* the helper thread */

/* ---- collect.c, stop.c, board.c: messages heard; with the lock held ---- */

opipe_status opi_collect_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                              opipe_error *err);
void opi_collect_left(opi_team *t, uint32_t rank); /* a process has left */
void opi_collect_release(opi_team *t);
opipe_status opi_stop_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                           opipe_error *err);
opipe_status opi_board_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                            opipe_error *err);
void opi_board_release(opi_team *t);

#endif /* OPI_TEAM_H */
