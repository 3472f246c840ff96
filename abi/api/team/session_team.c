/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a team open a session together: which ranks each has, whether all hold one plan,
 * and one answer for all. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "abi/api/team/plan_team.h"
#include "loader/base/cores.h"
#include "partition/plan/kernels.h"

enum { KEY_ROOM = OPI_KEY_ROOM, NAME_MOST = 40 };
enum { TRAVELS = OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0 | OPIPE_SESSION_FOLLOWED };

/* A process's part of the opening; its ranks follow, one byte for each rank of the plan. */
typedef struct opening {
  uint64_t plan[2], kernels[2];
  uint64_t mask;    /* of its cores */
  uint32_t threads; /* compute threads of its ranks */
  uint32_t travels; /* OPIPE_SESSION_INPUTS_OF_0, _OUTPUTS_TO_0, _FOLLOWED */
} opening;

/* ---- the board of one session ---- */

static opipe_status key_of(const opi_meeting *m, const char *key, char out[KEY_ROOM],
                           opipe_error *err) {
  const int n = snprintf(out, KEY_ROOM, "%s/%s", m->lane, key == NULL ? "" : key);
  return n < KEY_ROOM ? OPIPE_OK
                      : opi_fail(err, OPIPE_E_INVALID,
                                 "board: a key of %zu bytes, fewer than %d "
                                 "are allowed",
                                 strlen(key), OPIPE_BOARD_KEY);
}

static opipe_status post(void *ctx, const char *key, const void *bytes, uint64_t n_bytes,
                         opipe_error *err) {
  const opi_meeting *m = ctx;
  char whole[KEY_ROOM];
  OPI_TRY(key_of(m, key, whole, err));
  return opi_team_post(m->team->team, whole, bytes, n_bytes, err);
}

static opipe_status look(void *ctx, const char *key, void *out, uint64_t *io_bytes,
                         opipe_error *err) {
  const opi_meeting *m = ctx;
  char whole[KEY_ROOM];
  OPI_TRY(key_of(m, key, whole, err));
  return opi_team_look(m->team->team, whole, out, io_bytes, err);
}

/* ---- begin and end ---- */

/* Counts the sessions of a name on the team. */
static opipe_status number_of(opi_team_object *team, const char *text, uint32_t *out_number,
                              opipe_error *err) {
  (void)pthread_mutex_lock(&team->lock);
  opi_session_name *name = team->names;
  while (name != NULL && strcmp(name->text, text) != 0)
    name = name->next;
  if (name == NULL) {
    name = opi_alloc_zero(&team->context->allocator, 1, sizeof *name);
    if (name != NULL) {
      (void)snprintf(name->text, sizeof name->text, "%s", text);
      name->next = team->names;
      team->names = name;
    }
  }
  if (name != NULL)
    *out_number = name->n++;
  (void)pthread_mutex_unlock(&team->lock);
  return name != NULL ? OPIPE_OK : opi_fail_nomem(err, sizeof *name, "the name of a session");
}

static opipe_status join(opi_meeting *m, opipe_team *team, const char *text, opipe_error *err) {
  uint32_t number = 0;
  opi_entry in;
  OPI_TRY(opi_handle_enter(team, OPI_HANDLE_TEAM, "session_open", &in, err));
  m->team = in.object;
  opi_ref(&m->team->refs);
  opi_handle_leave(&in);
  OPI_TRY(number_of(m->team, text, &number, err));
  (void)snprintf(m->lane, sizeof m->lane, "session %s #%u", text, number);
  m->board = (opipe_board){(uint32_t)sizeof m->board, 0, m, post, look};
  opi_team_info(m->team->team, &m->info);
  return OPIPE_OK;
}

opipe_status opi_meeting_begin(opi_session_object *s, const opipe_session_params *params,
                               opipe_error *err) {
  const uint64_t *print = s->plan->plan->decided.fingerprint;
  char text[NAME_MOST + 1];
  if (params->name != NULL && (params->name[0] == '\0' || strlen(params->name) > NAME_MOST)) {
    return opi_fail(err, OPIPE_E_INVALID, "session_open: a name of %zu bytes, 1 to %d are allowed",
                    strlen(params->name), NAME_MOST);
  }
  (void)snprintf(text, sizeof text, "%s", params->name == NULL ? "" : params->name);
  if (params->name == NULL)
    (void)snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, print[0], print[1]);
  return join(&s->meeting, params->team, text, err);
}

void opi_meeting_part(opi_session_object *s) {
  const opi_meeting *m = &s->meeting;
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_gather_params call = {
      .struct_size = (uint32_t)sizeof call, .name = "close", .timeout_ns = UINT64_MAX};
  if (m->team == NULL || s->session == NULL || opi_process_id() != s->pid)
    return;
  if (opi_session_reason(s->session, &why) < 0) {
    call.refused = OPIPE_E_PEER;
    call.reason = why.message;
    opi_team_tell_in(m->team->team, m->lane, &call);
    return;
  }
  opi_session_linger(s->session);
  (void)opi_team_gather_in(m->team->team, m->lane, &call, &why);
}

void opi_meeting_end(opi_meeting *m) {
  opi_team_unref(m->team);
  m->team = NULL;
}

opipe_status opi_meeting_share(const opi_session_object *s, opipe_error *err) {
  const opipe_team_info *team = &s->meeting.info;
  const uint32_t *places = s->plan->places;
  OPI_TRY(opi_places_check(places, s->plan->n_places, s->n_ranks, team->size, err));
  for (uint32_t r = 0; r < s->n_ranks; ++r) {
    const uint32_t process = places == NULL ? r / (s->n_ranks / team->size) : places[r];
    s->local[r] = process == team->rank;
  }
  return OPIPE_OK;
}

opipe_status opi_team_check_transport(opi_team *team, const opipe_team_info *info,
                                      const opi_transport_ref *transport, opipe_error *err) {
  opipe_transport_info asked = {.struct_size =
                                    (uint32_t)OPIPE_END(opipe_transport_info, bandwidth)};
  const char *first = NULL, *other = NULL;
  uint32_t r = 1;
  if (info->n_machines <= 1)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK("transport", transport, info, err, transport->self, &asked));
  if ((asked.flags & OPIPE_TRANSPORT_MACHINES) != 0)
    return OPIPE_OK;
  while (r + 1 < info->size && opi_team_machine(team, r, &other) == 0)
    ++r;
  (void)opi_team_machine(team, r, &other);
  (void)opi_team_machine(team, 0, &first);
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "transport '%s' joins processes of one machine, and the team's %u processes are "
                  "of %u (process 0 of %s, process %u of %s): choose one that joins machines "
                  "(--transport ucx)",
                  transport->id, info->size, info->n_machines, first, r, other);
}

/* ---- agreements ---- */

opipe_status opi_meeting_agree(void *ctx, const char *what, opipe_status own, opipe_error *err) {
  const opi_meeting *m = ctx;
  const opipe_error why = own < 0 && err != NULL ? *err : (opipe_error)OPIPE_ERROR_INIT;
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .name = what,
                                    .timeout_ns = UINT64_MAX,
                                    .reason = why.message,
                                    .refused = own < 0 ? own : OPIPE_OK};
  return opi_team_gather_in(m->team->team, m->lane, &call, err);
}

opipe_status opi_meeting_gather(void *ctx, const opipe_gather_params *params, opipe_error *err) {
  const opi_meeting *m = ctx;
  return opi_team_gather_in(m->team->team, m->lane, params, err);
}

/* The session's number in heartbeats: the same in all processes. */
uint32_t opi_meeting_number(const opi_meeting *m) {
  return (uint32_t)XXH3_64bits(m->lane, strlen(m->lane));
}

opipe_status opi_meeting_check(void *ctx, opipe_error *err) {
  const opi_meeting *m = ctx;
  OPI_TRY(opi_team_check(m->team->team, err));
  return opi_team_check_session(m->team->team, opi_meeting_number(m), err);
}

void opi_meeting_told(void *ctx, opi_tell_fn tell, void *tell_ctx) {
  opi_meeting *m = ctx;
  opi_team_untell(m->team->team, &m->teller);
  m->teller = (opi_teller){NULL, tell, tell_ctx, opi_meeting_number(m)};
  if (tell != NULL)
    opi_team_tell(m->team->team, &m->teller);
}

/* ---- letters ---- */

opipe_status opi_meeting_box_open(void *ctx, uint64_t *io_key, void (*ring)(void *ring_ctx),
                                  void *ring_ctx, opi_box **out_box, opipe_error *err) {
  const opi_meeting *m = ctx;
  *io_key = *io_key << 32 | opi_meeting_number(m);
  return opi_team_box_open(m->team->team, *io_key, ring, ring_ctx, out_box, err);
}

void opi_meeting_box_close(void *ctx, opi_box *box) {
  opi_team_box_close(((opi_meeting *)ctx)->team->team, box);
}

opipe_status opi_meeting_letter(void *ctx, const opi_envelope *letter, uint64_t n_bytes,
                                opipe_error *err) {
  return opi_team_letter(((opi_meeting *)ctx)->team->team, letter, n_bytes, err);
}

opipe_status opi_meeting_letter_take(void *ctx, opi_box *box, void *out, uint64_t room,
                                     uint64_t *out_n, opipe_error *err) {
  return opi_team_letter_take(((opi_meeting *)ctx)->team->team, box, out, room, out_n, err);
}

/* ---- comparison ---- */

/* All parts, as they come. */
typedef struct comparison {
  const opi_session_object *session;
  opening first;    /* of process 0 */
  uint32_t *owners; /* [n_ranks] process, OPIPE_NONE: none so far */
  uint64_t mask;    /* this process's */
  uint32_t threads; /* of others with the same cores */
  opipe_error why;  /* the first difference */
} comparison;

static opipe_status compare_hash(const uint64_t *first, const uint64_t *own, const char *what,
                                 uint32_t process, opipe_error *err) {
  return memcmp(first, own, 2 * sizeof *own) == 0
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID,
                        "session_open: process 0 has %s %016" PRIx64 "%016" PRIx64
                        ", process %u %016" PRIx64 "%016" PRIx64
                        ": all processes need the same model, options and plugins",
                        what, first[0], first[1], process, own[0], own[1]);
}

/* Is the process on this one's machine? Elsewhere equal masks are other cores. */
static bool is_near(const comparison *c, uint32_t process) {
  const opi_meeting *m = &c->session->meeting;
  const char *host = NULL;
  return opi_team_machine(m->team->team, process, &host) == m->info.machine;
}

static opipe_status compare_part(comparison *c, uint32_t process, const void *data, uint64_t n,
                                 opipe_error *err) {
  const uint32_t n_ranks = c->session->n_ranks;
  const uint8_t *ranks = (const uint8_t *)data + sizeof(opening);
  opening own;
  if (n != sizeof own + n_ranks) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "session_open: process %u has a plan of another number of ranks than %u",
                    process, n_ranks);
  }
  memcpy(&own, data, sizeof own);
  if (process == 0)
    c->first = own;
  if (process != c->session->meeting.info.rank && own.mask == c->mask && c->mask != 0 &&
      is_near(c, process))
    c->threads += own.threads;
  OPI_TRY(compare_hash(c->first.plan, own.plan, "plan", process, err));
  OPI_TRY(compare_hash(c->first.kernels, own.kernels, "kernels", process, err));
  if (own.travels != c->first.travels) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "session_open: of the flags 0x%x, which say whether inputs and outputs travel, "
                    "process 0 has 0x%x, process %u 0x%x",
                    (unsigned)TRAVELS, c->first.travels, process, own.travels);
  }
  for (uint32_t r = 0; r < n_ranks; ++r) {
    if (ranks[r] != 0 && c->owners[r] != OPIPE_NONE) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "session_open: rank %u is a rank of processes %u and %u", r, c->owners[r],
                      process);
    }
    c->owners[r] = ranks[r] != 0 ? process : c->owners[r];
  }
  return OPIPE_OK;
}

/* The first difference is kept: all processes see the parts in one order, so each finds the same.
 */
static opipe_status take_part(void *ctx, uint32_t process, const void *data, uint64_t n) {
  comparison *c = ctx;
  if (c->why.status == OPIPE_OK)
    (void)compare_part(c, process, data, n, &c->why);
  return OPIPE_OK;
}

static opipe_status gather_openings(comparison *c, uint32_t flags, uint8_t *part, opipe_status own,
                                    opipe_error *err) {
  const opi_session_object *s = c->session;
  const opi_plan *plan = s->plan->plan;
  opening mine = {
      .plan = {plan->hash[0], plan->hash[1]}, .mask = opi_cores_mask(), .travels = flags & TRAVELS};
  const opipe_error why = own < 0 && err != NULL ? *err : (opipe_error)OPIPE_ERROR_INIT;
  if (plan->predicted.kernels != NULL)
    memcpy(mine.kernels, plan->predicted.kernels->hash, sizeof mine.kernels);
  for (uint32_t r = 0; r < s->n_ranks; ++r) {
    part[sizeof mine + r] = s->local[r] ? 1 : 0;
    c->owners[r] = OPIPE_NONE;
    if (s->local[r])
      mine.threads += s->devices[r].threads == 0 ? 1 : s->devices[r].threads;
  }
  memcpy(part, &mine, sizeof mine);
  c->mask = mine.mask;
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .name = "plan",
                                    .data = part,
                                    .n_bytes = sizeof mine + s->n_ranks,
                                    .timeout_ns = UINT64_MAX,
                                    .reason = why.message,
                                    .refused = own < 0 ? own : OPIPE_OK,
                                    .part = take_part,
                                    .part_ctx = c};
  OPI_TRY(opi_team_gather_in(s->meeting.team->team, s->meeting.lane, &call, err));
  if (c->why.status < 0)
    return opi_fail(err, c->why.status, "%s", c->why.message);
  for (uint32_t r = 0; r < s->n_ranks; ++r) {
    if (c->owners[r] == OPIPE_NONE) {
      return opi_fail(err, OPIPE_E_INVALID, "session_open: no process has rank %u of %u", r,
                      s->n_ranks);
    }
  }
  return OPIPE_OK;
}

opipe_status opi_meeting_compare(const opi_session_object *s, uint32_t flags, opipe_status own,
                                 uint32_t *out_threads, opipe_error *err) {
  const opipe_allocator *allocator = &s->plan->model->context->allocator;
  comparison c = {.session = s, .owners = s->owners, .why = OPIPE_ERROR_INIT};
  const uint64_t n_part = sizeof(opening) + s->n_ranks;
  uint8_t *part = opi_alloc_zero(allocator, 1, n_part);
  const opipe_status status = part == NULL ? opi_fail_nomem(err, n_part, "the ranks of a team")
                                           : gather_openings(&c, flags, part, own, err);
  *out_threads = c.threads;
  opi_free(allocator, part, n_part);
  return status;
}
