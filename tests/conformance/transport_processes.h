/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of ranks, dealt out to processes: --processes N. Each check forks N processes before the
 * plugin is opened; rank r is in process r % N, and the processes share nothing but a board. A
 * process reports what it finds wrong, and ends with 1.
 */
#ifndef CONFORMANCE_TRANSPORT_PROCESSES_H
#define CONFORMANCE_TRANSPORT_PROCESSES_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport_doors.h"
#include "transport_messages.h"
#include "transport_sums.h"

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

typedef struct dealt {
  subject s;
  ring g;
  opipe_board board;
  void *given[RANKS]; /* slots in the transport's memory; NULL: in the device's */
  uint32_t process, n_processes, n_here;
  uint32_t here[RANKS];
} dealt;

/* Slots in memory of the transport's, where it gives any. */
static bool move_slots(dealt *d, rank *r) {
  const opipe_transport *t = d->s.t;
  const uint64_t n_bytes = 2 * DEPTH * SLOT_BYTES;
  void **given = &d->given[r->index];
  t->memory_drop(r->memory);
  opipe_host_buffer_free(r->slots);
  r->memory = NULL;
  r->slots = NULL;
  if (!conf_made(t->memory_alloc(r->endpoint, n_bytes, given, &r->err), given, &r->err,
                 "memory_alloc"))
    return false;
  conf_check((uintptr_t)*given % 4096 == 0, "memory_alloc gives %p, no multiple of 4096", *given);
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
  (void)atomic_fetch_add(n_ready, 1);
  while (atomic_load(n_ready) < d->n_processes && conf_host.now_ns(NULL) - start < DEADLINE_NS)
    (void)nanosleep(&pause, NULL);
  return conf_check(atomic_load(n_ready) >= d->n_processes, "%u of %u processes are ready",
                    atomic_load(n_ready), d->n_processes);
}

static void close_dealt(dealt *d) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    rank *r = &d->g.ranks[i];
    d->s.t->stream_close(r->in);
    d->s.t->stream_close(r->out);
    d->s.t->memory_drop(r->memory);
    opipe_host_buffer_free(r->slots);
    if (d->given[i] != NULL)
      d->s.t->memory_free(r->endpoint, d->given[i]);
    d->s.t->endpoint_close(r->endpoint);
  }
  d->s.t->world_close(d->g.world);
  for (uint32_t i = 0; i < RANKS; ++i) {
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

/* ---- the processes' work ---- */

static void do_messages(dealt *d) {
  on_ranks_here(d, ring_body);
  for (uint32_t i = 0; i < d->n_here; ++i) {
    const rank *r = &d->g.ranks[d->here[i]];
    conf_ok(r->status, &r->err, "ring");
    conf_check(r->n_good == MESSAGES, "rank %u: %u of %d messages are whole", r->index, r->n_good,
               MESSAGES);
    conf_check(r->n_unsteady == 0, "rank %u: test is not OK again for %u messages", r->index,
               r->n_unsteady);
  }
}

static void do_sums(dealt *d) {
  static const sum_case sums = {"reductions", {2, 0, 1}, OPIPE_FLOAT};
  bool opened = true;
  for (uint32_t i = 0; i < d->n_here && opened; ++i) {
    rank *r = &d->g.ranks[d->here[i]];
    r->sums = &sums;
    opened = conf_made(
        d->s.t->group_open(r->endpoint, sums.members, RANKS, SLOT_BYTES, &r->group, &r->err),
        &r->group, &r->err, "group_open");
  }
  if (opened && ready_here(d))
    on_ranks_here(d, reduce_body);
  for (uint32_t i = 0; i < d->n_here && opened; ++i) {
    const rank *r = &d->g.ranks[d->here[i]];
    conf_ok(r->status, &r->err, "all_reduce");
    conf_check(r->n_good == ROUNDS,
               "rank %u: in %u of %d rounds the sums are those of rising order, and nothing else "
               "is written",
               r->index, r->n_good, (int)ROUNDS);
  }
  for (uint32_t i = 0; i < d->n_here; ++i) {
    if (d->g.ranks[d->here[i]].group != NULL)
      d->s.t->group_close(d->g.ranks[d->here[i]].group);
  }
}

/* Waits for a message that never comes: the answer must be an error. */
static void expect_peer(dealt *d, const char *text) {
  rank *r = &d->g.ranks[d->here[0]];
  const uint64_t start = conf_host.now_ns(NULL);
  const opipe_region region = slot_of(r, 0);
  opipe_status status = d->s.t->recv(r->in, 0, &region, NULL, &r->err);
  while (status >= 0 && conf_host.now_ns(NULL) - start < DEADLINE_NS) {
    const uint32_t seen = d->s.t->doorbell(r->endpoint);
    status = d->s.t->test(r->in, 0, &r->err);
    if (status == OPIPE_PENDING)
      status = d->s.t->wait(r->endpoint, seen, UINT64_C(100000000), &r->err);
    status = status == OPIPE_E_TIMEOUT ? OPIPE_PENDING : status;
  }
  if (conf_check(status < 0, "rank %u waits for ever: it does not hear of the end", r->index)) {
    conf_error(status, OPIPE_E_PEER, &r->err, "the wait");
    conf_check(strstr(r->err.message, text) != NULL, "the message has no '%s': %s", text,
               r->err.message);
  }
}

static void do_abort(dealt *d) {
  if (d->process != d->n_processes - 1) {
    expect_peer(d, "the first reason");
    return;
  }
  opipe_error why = OPIPE_ERROR_INIT;
  why.status = OPIPE_E_DEVICE;
  (void)snprintf(why.message, sizeof why.message, "the first reason");
  d->s.t->abort(d->g.world, d->here[0], &why);
}

static void do_kill(dealt *d) {
  char name[32];
  (void)snprintf(name, sizeof name, "%u", d->n_processes - 1);
  if (d->process == d->n_processes - 1)
    (void)raise(SIGKILL);
  expect_peer(d, name); /* the lowest rank of process p is p */
}

typedef struct dealt_case {
  const char *name;
  void (*body)(dealt *d);
  bool gives, sums, kills;
} dealt_case;

/* ---- a process, and all of them ---- */

static _Noreturn void be_process(const dealt_case *c, const char *path, const char *options,
                                 board_memory *memory, uint32_t process, uint32_t n_processes) {
  dealt d = {.process = process, .n_processes = n_processes};
  opipe_error err = OPIPE_ERROR_INIT;
  conf_plugin plugin = conf_open(path, OPIPE_KIND_TRANSPORT, OPIPE_TRANSPORT_ID);
  conf_case(c->name);
  d.s.t = (const opipe_transport *)plugin.table;
  d.s.self = plugin.self;
  d.s.options = options;
  d.board = (opipe_board){(uint32_t)sizeof d.board, 0, memory, board_post, board_look};
  d.s.info.struct_size = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth);
  for (uint32_t r = process; r < RANKS; r += n_processes)
    d.here[d.n_here++] = r;
  const bool lacks =
      !conf_ok(d.s.t->info(d.s.self, &d.s.info, &err), &err, "info") ||
      (c->sums && (d.s.info.flags & OPIPE_TRANSPORT_REDUCES) == 0) ||
      (c->gives && (!OPIPE_HAS(d.s.t, opipe_transport, memory_free) || !d.s.t->memory_alloc));
  if (!lacks) {
    if (open_dealt(&d, c->gives) && all_ready(&d))
      c->body(&d);
    close_dealt(&d);
  }
  conf_close(&plugin);
  (void)fflush(stdout);
  _exit(conf_failures() == 0 ? 0 : 1);
}

/* The status of a process; -1: it had to be killed. */
static int end_of(pid_t pid, uint64_t start) {
  const struct timespec pause = {.tv_nsec = 1000000};
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (conf_host.now_ns(NULL) - start > 3 * DEADLINE_NS) {
      (void)kill(pid, SIGKILL);
      (void)waitpid(pid, &status, 0);
      return -1;
    }
    (void)nanosleep(&pause, NULL);
  }
  return status;
}

static void check_dealt(const dealt_case *c, const char *path, const char *options, uint32_t n) {
  pid_t pids[RANKS];
  const uint64_t start = conf_host.now_ns(NULL);
  board_memory *memory = (board_memory *)mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE,
                                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  conf_case(c->name);
  if (!conf_check(memory != MAP_FAILED, "no memory for the board"))
    return;
  (void)fflush(stdout);
  for (uint32_t p = 0; p < n; ++p) {
    pids[p] = fork();
    if (pids[p] == 0)
      be_process(c, path, options, memory, p, n);
    conf_check(pids[p] > 0, "fork");
  }
  for (uint32_t p = 0; p < n; ++p) {
    const int status = pids[p] > 0 ? end_of(pids[p], start) : 0;
    const bool dies = c->kills && p == n - 1;
    conf_check(dies ? WIFSIGNALED(status) : status == 0, "process %u of %u %s", p, n,
               status == -1          ? "hangs"
               : WIFSIGNALED(status) ? "is ended by a signal"
                                     : "finds defects");
  }
  (void)munmap(memory, sizeof *memory);
}

static void check_processes(const char *path, const char *options, uint32_t n) {
  static const dealt_case cases[] = {
      {"messages between processes", do_messages, false, false, false},
      {"messages into the transport's memory", do_messages, true, false, false},
      {"reductions over processes", do_sums, false, true, false},
      {"abort over processes", do_abort, false, false, false},
      {"a process that is killed", do_kill, false, false, true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    check_dealt(&cases[i], path, options, n);
}

#else

static void check_processes(const char *path, const char *options, uint32_t n) {
  (void)path, (void)options, (void)n;
  conf_skip("processes: these headers know none");
}

#endif

#endif /* CONFORMANCE_TRANSPORT_PROCESSES_H */
