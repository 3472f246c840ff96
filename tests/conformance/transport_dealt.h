/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of ranks as one of several processes has it: its ranks, a board in memory that all of
 * them share, and a look at things of the plugin's that closing leaves.
 */
#ifndef CONFORMANCE_TRANSPORT_DEALT_H
#define CONFORMANCE_TRANSPORT_DEALT_H

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport_kit.h"

#if OPIPE_ABI_MINOR >= 5

/* ---- the board: memory that forked processes share ---- */

enum { NOTES = 64 };
typedef struct note {
  _Atomic int state; /* 1: being written, 2: there */
  char key[OPIPE_BOARD_KEY];
  char bytes[OPIPE_BOARD_BYTES];
  uint64_t n_bytes;
} note;

typedef struct board_memory {
  note notes[NOTES];
  _Atomic uint32_t n_ready; /* processes whose ranks are all ready */
} board_memory;

static note *find_note(board_memory *memory, const char *key) {
  for (uint32_t i = 0; i < NOTES; ++i) {
    note *at = &memory->notes[i];
    if (atomic_load(&at->state) == 2 && strcmp(at->key, key) == 0)
      return at;
  }
  return NULL;
}

static opipe_status board_post(void *ctx, const char *key, const void *bytes, uint64_t n_bytes,
                               opipe_error *err) {
  board_memory *memory = (board_memory *)ctx;
  if (!conf_check(key != NULL && strlen(key) > 0 && strlen(key) < OPIPE_BOARD_KEY,
                  "the key of a note has more than %d bytes", OPIPE_BOARD_KEY - 1) ||
      !conf_check(n_bytes <= OPIPE_BOARD_BYTES, "a note of %llu bytes, at most %d are allowed",
                  (unsigned long long)n_bytes, OPIPE_BOARD_BYTES))
    return opipe_fail(err, OPIPE_E_INVALID, "a note that is too long");
  if (!conf_check(find_note(memory, key) == NULL, "the key '%s' is posted twice", key))
    return opipe_fail(err, OPIPE_E_STATE, "the key '%s' is taken", key);
  for (uint32_t i = 0; i < NOTES; ++i) {
    note *at = &memory->notes[i];
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&at->state, &nobody, 1))
      continue;
    (void)snprintf(at->key, sizeof at->key, "%s", key);
    memcpy(at->bytes, bytes, n_bytes);
    at->n_bytes = n_bytes;
    atomic_store(&at->state, 2);
    return OPIPE_OK;
  }
  return opipe_fail(err, OPIPE_E_LIMIT, "the board holds %d notes", (int)NOTES);
}

static opipe_status board_look(void *ctx, const char *key, void *out_bytes, uint64_t *io_bytes,
                               opipe_error *err) {
  const note *found = find_note((board_memory *)ctx, key);
  const uint64_t room = *io_bytes;
  if (found == NULL)
    return OPIPE_PENDING;
  *io_bytes = found->n_bytes;
  if (found->n_bytes > room) {
    return opipe_fail(err, OPIPE_E_LIMIT, "the note has %llu bytes, there is room for %llu",
                      (unsigned long long)found->n_bytes, (unsigned long long)room);
  }
  memcpy(out_bytes, found->bytes, found->n_bytes);
  return OPIPE_OK;
}

/* ---- the ring as one process has it ---- */

enum { UNTOUCHED = 0xa7 };

typedef struct dealt {
  subject s;
  ring g;
  opipe_board board;
  void *given[RANKS];  /* slots in the transport's memory; NULL: in the device's */
  void *beside[RANKS]; /* more of it, that nobody receives in */
  uint32_t process, n_processes, n_here;
  uint32_t here[RANKS];
} dealt;

/* Slots in memory of the transport's, where it gives any, and memory of its own beside them. */
static bool move_slots(dealt *d, rank *r) {
  const opipe_transport *t = d->s.t;
  const uint64_t n_bytes = 2 * DEPTH * SLOT_BYTES;
  void **given = &d->given[r->index], **beside = &d->beside[r->index];
  t->memory_drop(r->memory);
  opipe_host_buffer_free(r->slots);
  r->memory = NULL;
  r->slots = NULL;
  if (!conf_made(t->memory_alloc(r->endpoint, n_bytes, given, &r->err), given, &r->err,
                 "memory_alloc"))
    return false;
  conf_check((uintptr_t)*given % 4096 == 0, "memory_alloc gives %p, no multiple of 4096", *given);
  if (!conf_made(t->memory_alloc(r->endpoint, n_bytes, beside, &r->err), beside, &r->err,
                 "memory_alloc"))
    return false;
  memset(*beside, UNTOUCHED, n_bytes);
  return conf_ok(opipe_host_buffer_import(r->device, (uint64_t)(uintptr_t)*given, n_bytes,
                                          &r->slots, &r->err),
                 &r->err, "a buffer of the transport's memory") &&
         conf_made(t->memory_register(r->endpoint, r->slots, n_bytes, &r->memory, &r->err),
                   &r->memory, &r->err, "memory_register");
}

static bool ready_here(dealt *d) {
  const struct timespec pause = {.tv_nsec = 50000};
  const uint64_t start = conf_host.now_ns(NULL);
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING && conf_host.now_ns(NULL) - start < DEADLINE_NS) {
    status = OPIPE_OK;
    for (uint32_t i = 0; i < d->n_here && status >= 0; ++i) {
      const opipe_status one = d->s.t->endpoint_ready(d->g.ranks[d->here[i]].endpoint, &err);
      status = one == OPIPE_OK ? status : one;
    }
    if (status == OPIPE_PENDING)
      (void)nanosleep(&pause, NULL);
  }
  return status == OPIPE_PENDING
             ? conf_check(false, "endpoint_ready never answers OK: other processes are not found")
             : conf_ok(status, &err, "endpoint_ready");
}

static bool open_dealt(dealt *d, bool gives) {
  const subject *s = &d->s;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_world_params world = {.struct_size = (uint32_t)OPIPE_END(opipe_world_params, board),
                                    .n_ranks = RANKS,
                                    .options = s->options,
                                    .local_ranks = d->here,
                                    .n_local_ranks = d->n_here,
                                    .job = "conformance",
                                    .board = &d->board};
  if (!conf_made(s->t->world_open(s->self, &world, &d->g.world, &err), &d->g.world, &err,
                 "world_open of some ranks"))
    return false;
  for (uint32_t i = 0; i < d->n_here; ++i) {
    rank *r = &d->g.ranks[d->here[i]];
    if (!open_rank(&d->g, s, d->here[i]) || (gives && !move_slots(d, r)))
      return false;
    r->copies = true;
  }
  for (uint32_t i = 0; i < d->n_here; ++i) {
    rank *r = &d->g.ranks[d->here[i]];
    const uint32_t before = (r->index + RANKS - 1) % RANKS, next = (r->index + 1) % RANKS;
    const opipe_stream_params out = stream_params(r->index, next, 0);
    const opipe_stream_params in = stream_params(before, r->index, 0);
    if (!conf_made(s->t->stream_open(r->endpoint, &out, &r->out, &r->err), &r->out, &r->err,
                   "stream_open, sender") ||
        !conf_made(s->t->stream_open(r->endpoint, &in, &r->in, &r->err), &r->in, &r->err,
                   "stream_open, receiver"))
      return false;
  }
  return ready_here(d);
}

/* A process that ends, or fails, before all are ready would be nothing but a failed opening. */
static bool all_ready(const dealt *d) {
  const struct timespec pause = {.tv_nsec = 50000};
  const uint64_t start = conf_host.now_ns(NULL);
  _Atomic uint32_t *n_ready = &((board_memory *)d->board.ctx)->n_ready;
  const uint32_t n_before = atomic_fetch_add(n_ready, 1) / d->n_processes * d->n_processes;
  const uint32_t wanted = n_before + d->n_processes; /* nobody comes twice before all have come */
  while (atomic_load(n_ready) < wanted && conf_host.now_ns(NULL) - start < DEADLINE_NS)
    (void)nanosleep(&pause, NULL);
  return conf_check(atomic_load(n_ready) >= wanted, "%u of %u processes are ready",
                    atomic_load(n_ready) - n_before, d->n_processes);
}

/* Nobody receives in it. */
static void check_beside(const dealt *d, const rank *r) {
  const unsigned char *data = (const unsigned char *)d->beside[r->index];
  uint64_t n = 0;
  while (n < 2 * DEPTH * SLOT_BYTES && data[n] == UNTOUCHED)
    ++n;
  conf_check(n == 2 * DEPTH * SLOT_BYTES,
             "rank %u: byte %llu of memory of the transport's that nobody receives in was written",
             r->index, (unsigned long long)n);
}

static void close_dealt(dealt *d) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    rank *r = &d->g.ranks[i];
    d->s.t->stream_close(r->in);
    d->s.t->stream_close(r->out);
    d->s.t->memory_drop(r->memory);
    opipe_host_buffer_free(r->slots);
    if (d->beside[i] != NULL) {
      check_beside(d, r);
      d->s.t->memory_free(r->endpoint, d->beside[i]);
    }
    if (d->given[i] != NULL)
      d->s.t->memory_free(r->endpoint, d->given[i]);
    d->s.t->endpoint_close(r->endpoint);
  }
  d->s.t->world_close(d->g.world);
  for (uint32_t i = 0; i < RANKS; ++i) {
    close_far(&d->g.ranks[i]);
    opipe_host_queue_close(d->g.ranks[i].queue);
    opipe_host_device_close(d->g.ranks[i].device);
  }
}

static void on_ranks_here(dealt *d, void *(*body)(void *)) {
  pthread_t threads[RANKS];
  for (uint32_t i = 0; i < d->n_here; ++i) {
    conf_check(pthread_create(&threads[i], NULL, body, &d->g.ranks[d->here[i]]) == 0,
               "pthread_create");
  }
  for (uint32_t i = 0; i < d->n_here; ++i)
    (void)pthread_join(threads[i], NULL);
}

/* ---- things that closing leaves ---- */

typedef struct held { /* by the process */
  uint32_t files, threads, mappings;
} held;

static uint32_t entries_of(const char *folder) {
  uint32_t n = 0;
  DIR *open = opendir(folder);
  while (open != NULL && readdir(open) != NULL)
    ++n;
  if (open != NULL)
    (void)closedir(open);
  return n;
}

/* Mappings that other processes can have, too. */
static held what_is_held(void) {
  char line[4096], kinds[8];
  held h = {entries_of("/proc/self/fd"), entries_of("/proc/self/task"), 0};
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps != NULL && fgets(line, (int)sizeof line, maps) != NULL)
    h.mappings += sscanf(line, "%*s %7s", kinds) == 1 && kinds[3] == 's';
  if (maps != NULL)
    (void)fclose(maps);
  return h;
}

/* The system may still list a thread that has been joined. */
static held what_is_left(held before) {
  const struct timespec pause = {.tv_nsec = 1000000};
  held after = what_is_held();
  for (uint32_t i = 0; i < 1000 && after.threads > before.threads; ++i) {
    (void)nanosleep(&pause, NULL);
    after = what_is_held();
  }
  return after;
}

static void check_left(held before) {
  const held after = what_is_left(before);
  conf_check(after.files <= before.files, "world_close leaves %u descriptors",
             after.files - before.files);
  conf_check(after.threads <= before.threads, "world_close leaves %u threads",
             after.threads - before.threads);
  conf_check(after.mappings <= before.mappings, "world_close leaves %u pieces of shared memory",
             after.mappings - before.mappings);
}

#endif
#endif /* CONFORMANCE_TRANSPORT_DEALT_H */
