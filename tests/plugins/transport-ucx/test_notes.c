/* SPDX-License-Identifier: Apache-2.0 */
/* Notes that a stranger may send to a worker: damaged ones, of any length and kind, cost an entry
 * of a list or nothing, never an access outside. Sanitizers look on.
 */
#include "plugins/transport-ucx/ucx.h"

#include <stdlib.h>

#include "tests/support/support.h"

enum { RANKS = 4, DEPTH = 3, NOTES = 8000, STREAM_ID = 7, GROUP_ID = 8 };

static void *plain_realloc(void *ctx, void *data, uint64_t old_bytes, uint64_t n_bytes,
                           uint64_t align) {
  void *more = NULL;
  (void)ctx;
  (void)old_bytes;
  if (data != NULL)
    free(data);
  else
    more = aligned_alloc(align, (n_bytes + align - 1) / align * align);
  return more;
}
static void no_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx, (void)level, (void)file, (void)line, (void)msg;
}
static const opipe_host host = {.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                                .abi_major = OPIPE_ABI_MAJOR,
                                .abi_minor = OPIPE_ABI_MINOR,
                                .realloc = plain_realloc,
                                .log = no_log};

typedef struct scene { /* rank 0 of four, with a stream to rank 1 and a group of all */
  opipe_instance *near;
  opipe_world world;
  opipe_endpoint endpoint;
  ucx_worker worker;
  ucx_peer peers[RANKS];
  opipe_stream stream;
  ucx_slot slots[DEPTH];
  opipe_group group;
  ucx_member members[RANKS];
  uint32_t ranks[RANKS];
} scene;

static void set(scene *s) {
  const opipe_world_params world = {.struct_size = (uint32_t)sizeof world, .n_ranks = RANKS};
  const opipe_endpoint_params endpoint = {.struct_size = (uint32_t)sizeof endpoint};
  opipe_error err = OPIPE_ERROR_INIT;
  memset(s, 0, sizeof *s);
  OPI_ASSERT_FATAL(shm_instance_open(&host, &s->near, &err) == OPIPE_OK);
  OPI_ASSERT_FATAL(shm_transport.world_open(s->near, &world, &s->world.near, &err) == OPIPE_OK);
  OPI_ASSERT_FATAL(shm_transport.endpoint_open(s->world.near, &endpoint, &s->endpoint.near, &err) ==
                   OPIPE_OK);
  s->world.host = &host;
  s->world.n_ranks = RANKS;
  s->endpoint.world = &s->world;
  s->endpoint.worker = &s->worker;
  s->stream = (opipe_stream){.endpoint = &s->endpoint, .other = 1, .id = STREAM_ID};
  s->stream.params.depth = DEPTH;
  s->stream.slots = s->slots;
  for (uint32_t i = 0; i < RANKS; ++i)
    s->ranks[i] = i;
  s->group = (opipe_group){.endpoint = &s->endpoint, .ranks = s->ranks, .n = RANKS, .id = GROUP_ID};
  s->group.members = s->members;
  s->worker = (ucx_worker){.world = &s->world,
                           .endpoint = &s->endpoint,
                           .peers = s->peers,
                           .streams = &s->stream,
                           .groups = &s->group,
                           .stopped = true};
}

static void strike(scene *s) {
  while (s->worker.heard != NULL)
    ucx_forget_note(&s->worker, s->worker.heard);
  OPI_ASSERT_INT(s->worker.n_heard, 0);
  shm_transport.endpoint_close(s->endpoint.near);
  shm_transport.world_close(s->world.near);
  shm_instance_close(s->near);
}

static uint64_t draw(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *state >> 33;
}

/* One that is right, of a kind. */
static ucx_note right(const scene *s, uint32_t kind, uint64_t number) {
  ucx_note note = {.brief = ucx_brief_of(&s->worker, kind, (uint32_t)number), .n_members = RANKS};
  note.brief.rank = 1;
  note.brief.index = kind == UCX_NOTE_GROUP || kind == UCX_NOTE_TAKEN ? 1 : 0;
  note.brief.to = kind == UCX_NOTE_POSTED ? STREAM_ID : GROUP_ID;
  note.brief.sequence = number;
  note.stream =
      (opipe_stream_params){.struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
                            .src_rank = 1,
                            .depth = 1,
                            .n_bytes = number};
  return note;
}

static uint64_t right_bytes(uint32_t kind) {
  return kind == UCX_NOTE_POSTED || kind == UCX_NOTE_TAKEN ? sizeof(ucx_brief) : sizeof(ucx_note);
}

static void test_right_notes_are_heard(void) {
  static scene s;
  set(&s);
  for (uint32_t kind = 1; kind < UCX_NOTE_END; ++kind) {
    const ucx_note note = right(&s, kind, 5);
    ucx_hear(&s.worker, &note, right_bytes(kind));
  }
  OPI_ASSERT_INT(s.slots[5 % DEPTH].posted, 6);
  OPI_ASSERT_INT(s.members[1].out.taken, 5);
  OPI_ASSERT_INT(s.worker.n_heard, 0); /* both were closed */
  OPI_ASSERT(s.worker.fails && s.peers[1].left && s.peers[1].heard);
  strike(&s);
}

static void test_damaged_notes_do_no_harm(void) {
  static scene s;
  uint64_t state = 1, n_kept = 0;
  set(&s);
  for (uint64_t i = 0; i < NOTES; ++i) {
    const uint32_t kind = 1 + (uint32_t)(i % (UCX_NOTE_END - 1));
    ucx_note note = right(&s, kind, draw(&state));
    uint64_t n_bytes = right_bytes(kind);
    for (uint64_t k = draw(&state) % 4; k > 0; --k)
      ((unsigned char *)&note)[draw(&state) % sizeof note] = (unsigned char)draw(&state);
    if (draw(&state) % 8 == 0)
      n_bytes = draw(&state) % (sizeof note + 1);
    const uint32_t before = s.worker.n_heard;
    ucx_hear(&s.worker, &note, n_bytes);
    n_kept += s.worker.n_heard > before;
    s.worker.fails = false;
  }
  OPI_ASSERT(n_kept > 100 && s.worker.n_heard <= UCX_HEARD_MOST);
  OPI_ASSERT(s.worker.streams == &s.stream && s.stream.next == NULL);
  strike(&s);
}

static void test_more_than_can_be_kept(void) {
  static scene s;
  set(&s);
  for (uint32_t i = 0; i <= UCX_HEARD_MOST; ++i) {
    const ucx_note note = right(&s, UCX_NOTE_STREAM, i);
    OPI_ASSERT(!s.worker.fails);
    ucx_hear(&s.worker, &note, sizeof note);
  }
  OPI_ASSERT(s.worker.fails && strstr(s.worker.why.message, "more than 65536 streams") != NULL);
  strike(&s);
}

OPI_TEST_MAIN("transport-ucx's notes", OPI_TEST(test_right_notes_are_heard),
              OPI_TEST(test_damaged_notes_do_no_harm), OPI_TEST(test_more_than_can_be_kept))
