/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a team compare the parameters that several of them hold.
 *
 *   1. all tell names, with the layout in which gradients are added up
 *   2. all tell hashes of the values that another process holds, too
 *
 * All see the same parts in one order, so that all find the same first difference.
 */
#include <inttypes.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "abi/api/api.h"

/* Before the name of a parameter and its backend's, both terminated. */
typedef struct entry_head {
  uint64_t value[2]; /* 1: layout and bytes; 2: hash */
  uint32_t n_name, n_backend, summed, rank;
} entry_head;

typedef struct known {
  entry_head head;
  const char *backend;
  uint32_t process;
  bool is_shared; /* another process has it too */
} known;

typedef struct comparison {
  const opi_meeting *meeting;
  const opipe_allocator *allocator;
  opi_arena arena;
  opi_map *names;
  known *list; /* [n] */
  uint32_t n, room;
  bool hashes;     /* the second call */
  opipe_error why; /* the first difference */
  opipe_error own; /* why this process cannot compare */
} comparison;

static void add_entry(opi_text *out, const opi_held_param *p, const uint64_t value[2]) {
  const entry_head head = {.value = {value[0], value[1]},
                           .n_name = (uint32_t)strlen(p->source->name) + 1,
                           .n_backend = (uint32_t)strlen(p->backend) + 1,
                           .summed = p->summed,
                           .rank = p->rank};
  opi_text_add(out, (const char *)&head, sizeof head);
  opi_text_add(out, p->source->name, head.n_name);
  opi_text_add(out, p->backend, head.n_backend);
}

static known *find(const comparison *c, const char *name) {
  uint32_t index = 0;
  return opi_map_get(c->names, name, &index) ? &c->list[index] : NULL;
}

static opipe_status learn(comparison *c, const char *name, const known *what, opipe_error *err) {
  if (c->n == c->room) {
    const uint32_t room = c->room == 0 ? 256 : 2 * c->room;
    known *grown = OPI_ARENA_ARRAY(&c->arena, known, room);
    if (grown == NULL)
      return opi_fail_nomem(err, room * sizeof *grown, "parameters");
    if (c->n != 0)
      memcpy(grown, c->list, c->n * sizeof *grown);
    c->list = grown;
    c->room = room;
  }
  c->list[c->n] = *what;
  return opi_map_set(c->names, name, c->n++, err);
}

static opipe_status compare_layout(const known *first, const entry_head *own, const char *name,
                                   const char *backend, uint32_t process, opipe_error *err) {
  const bool same = first->head.value[0] == own->value[0] &&
                    first->head.value[1] == own->value[1] && strcmp(first->backend, backend) == 0;
  if (first->head.summed == 0 || own->summed == 0 || same)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "session_open: gradients of '%.100s' are added up over processes: rank %u "
                  "(process %u) has them on '%s' in layout %" PRIx64 " of %" PRIu64
                  " bytes, rank %u (process %u) on '%s' in layout %" PRIx64 " of %" PRIu64
                  ": all need the same backend and kernels",
                  name, first->head.rank, first->process, first->backend, first->head.value[0],
                  first->head.value[1], own->rank, process, backend, own->value[0], own->value[1]);
}

static opipe_status compare_hash(const known *first, const entry_head *own, const char *name,
                                 uint32_t process, opipe_error *err) {
  if (memcmp(first->head.value, own->value, sizeof own->value) == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "session_open: parameter '%.100s' has the hash %016" PRIx64 "%016" PRIx64
                  " in process %u and %016" PRIx64 "%016" PRIx64
                  " in process %u: all processes need the same weights",
                  name, first->head.value[0], first->head.value[1], first->process, own->value[0],
                  own->value[1], process);
}

static opipe_status take_entry(comparison *c, uint32_t process, const entry_head *head,
                               const char *name, const char *backend) {
  known *first = find(c, name);
  if (first == NULL) {
    const known what = {*head, backend, process, false};
    return learn(c, name, &what, &c->own);
  }
  if (c->hashes)
    return compare_hash(first, head, name, process, &c->why);
  first->is_shared = first->is_shared || first->process != process;
  return compare_layout(first, head, name, backend, process, &c->why);
}

/* In the second call the first process that tells a hash is compared with. */
static opipe_status take_part(void *ctx, uint32_t process, const void *data, uint64_t n) {
  comparison *c = ctx;
  const char *at = opi_arena_copy(&c->arena, data, n), *end = at + n;
  if (at == NULL)
    (void)opi_fail_nomem(&c->own, n, "parameters");
  while (c->why.status == OPIPE_OK && c->own.status == OPIPE_OK && at < end) {
    entry_head head = {.n_name = 0};
    const size_t left = (size_t)(end - at);
    if (left >= sizeof head)
      memcpy(&head, at, sizeof head);
    if (head.n_name == 0 || head.n_backend == 0 ||
        sizeof head + (uint64_t)head.n_name + head.n_backend > left ||
        at[sizeof head + head.n_name - 1] != '\0' ||
        at[sizeof head + head.n_name + head.n_backend - 1] != '\0') {
      (void)opi_fail(&c->why, OPIPE_E_INVALID,
                     "session_open: process %u tells of its parameters in other words", process);
      break;
    }
    const char *name = at + sizeof head, *backend = name + head.n_name;
    (void)take_entry(c, process, &head, name, backend);
    at = backend + head.n_backend;
  }
  return OPIPE_OK;
}

/* One of the two calls. own: of this process so far. */
static opipe_status gather(comparison *c, const char *name, const opi_text *part, opipe_status own,
                           opipe_error *err) {
  const opipe_error why = own < 0 && err != NULL ? *err : (opipe_error)OPIPE_ERROR_INIT;
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .name = name,
                                    .data = part->data,
                                    .n_bytes = own < 0 ? 0 : part->n,
                                    .timeout_ns = UINT64_MAX,
                                    .reason = why.message,
                                    .refused = own < 0 ? own : OPIPE_OK,
                                    .part = take_part,
                                    .part_ctx = c};
  OPI_TRY(opi_team_gather_in(c->meeting->team->team, c->meeting->lane, &call, err));
  return c->why.status < 0 ? opi_fail(err, c->why.status, "%s", c->why.message) : OPIPE_OK;
}

static opipe_status tell_layouts(comparison *c, const opi_held_param *params, uint32_t n,
                                 opipe_status own, opipe_error *err) {
  opi_text part;
  opi_text_init(&part, c->allocator);
  for (uint32_t i = 0; i < n && own == OPIPE_OK; ++i)
    add_entry(&part, &params[i], (const uint64_t[2]){params[i].layout, params[i].n_bytes});
  if (own == OPIPE_OK && part.failed)
    own = opi_fail_nomem(err, part.n, "parameters");
  const opipe_status status = gather(c, "parameters", &part, own, err);
  opi_text_release(&part);
  return status;
}

/* Each parameter that another process holds too is told once. */
static opipe_status tell_hashes(comparison *c, const opi_held_param *params, uint32_t n,
                                opipe_error *err) {
  opipe_status own =
      c->own.status < 0 ? opi_fail(err, c->own.status, "%s", c->own.message) : OPIPE_OK;
  opi_text part;
  opi_text_init(&part, c->allocator);
  for (uint32_t i = 0; i < n && own == OPIPE_OK; ++i) {
    known *what = find(c, params[i].source->name);
    if (what == NULL || !what->is_shared)
      continue;
    what->is_shared = false;
    const XXH128_hash_t hash = XXH3_128bits(params[i].source->data, params[i].source->n_bytes);
    add_entry(&part, &params[i], (const uint64_t[2]){hash.high64, hash.low64});
  }
  if (own == OPIPE_OK && part.failed)
    own = opi_fail_nomem(err, part.n, "parameters");
  opi_map_free(c->names);
  c->names = NULL;
  c->n = 0;
  c->hashes = true;
  if (own == OPIPE_OK)
    own = opi_map_create(c->allocator, &c->names, err);
  opipe_status status = gather(c, "weights", &part, own, err);
  if (status == OPIPE_OK && c->own.status < 0)
    status = opi_fail(err, c->own.status, "%s", c->own.message);
  opi_text_release(&part);
  return status;
}

opipe_status opi_meeting_alike(void *ctx, const opi_held_param *params, uint32_t n,
                               opipe_status own, opipe_error *err) {
  const opi_meeting *m = ctx;
  comparison c = {.meeting = m,
                  .allocator = &m->team->context->allocator,
                  .why = OPIPE_ERROR_INIT,
                  .own = OPIPE_ERROR_INIT};
  opi_arena_init(&c.arena, c.allocator, 0);
  if (own == OPIPE_OK)
    own = opi_map_create(c.allocator, &c.names, err);
  opipe_status status = tell_layouts(&c, params, n, own, err);
  if (status == OPIPE_OK)
    status = tell_hashes(&c, params, n, err);
  opi_map_free(c.names);
  opi_arena_release(&c.arena);
  return status;
}
