/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of ranks, dealt out to processes: --processes N. Each check forks N processes before the
 * plugin is opened; rank r is in process r % N, and the processes share nothing but a board. A
 * process reports what it finds wrong, and ends with 1.
 */
#ifndef CONFORMANCE_TRANSPORT_PROCESSES_H
#define CONFORMANCE_TRANSPORT_PROCESSES_H

#include <signal.h>
#include <sys/wait.h>

#include "transport_collects.h"
#include "transport_dealt.h"
#include "transport_doors.h"
#include "transport_messages.h"
#include "transport_sums.h"
#include "transport_ways.h"

#if OPIPE_ABI_MINOR >= 5

/* ---- the processes' work ---- */

static void do_messages(dealt *d) {
  on_ranks_here(d, in_batches(&d->s) ? batch_body : ring_body);
  for (uint32_t i = 0; i < d->n_here; ++i) {
    const rank *r = &d->g.ranks[d->here[i]];
    conf_ok(r->status, &r->err, "ring");
    conf_check(r->n_good == MESSAGES, "rank %u: %u of %d messages are whole", r->index, r->n_good,
               MESSAGES);
    conf_check(r->n_unsteady == 0, "rank %u: test is not OK again for %u messages", r->index,
               r->n_unsteady);
    conf_check(r->n_pending == 0 && r->n_open == 0,
               "rank %u: %u calls in a batch are pending, of %u batches an operation had finished "
               "before the others",
               r->index, r->n_pending, r->n_open);
  }
}

/* ---- by notify instead of wait ---- */

static const opipe_transport *notifying; /* the plugin's own table */

static opipe_status wait_by_notify(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                                   opipe_error *err) {
  const struct timespec pause = {.tv_nsec = 20000};
  const uint64_t start = conf_host.now_ns(NULL);
  uint32_t n = 0;
  notifying->notify(endpoint, seen, count_call, &n);
  while (__atomic_load_n(&n, __ATOMIC_SEQ_CST) == 0 && conf_host.now_ns(NULL) - start < timeout_ns)
    (void)nanosleep(&pause, NULL);
  notifying->notify(endpoint, 0, NULL, NULL);
  return n != 0 ? OPIPE_OK
                : opipe_fail(err, OPIPE_E_TIMEOUT, "notify has not called: nothing has rung");
}

static void do_notified(dealt *d) {
  static opipe_transport by_notify;
  notifying = d->s.t;
  memset(&by_notify, 0, sizeof by_notify);
  memcpy(&by_notify, d->s.t,
         d->s.t->struct_size < sizeof by_notify ? d->s.t->struct_size : sizeof by_notify);
  by_notify.wait = wait_by_notify;
  d->s.t = &by_notify;
  do_messages(d);
  d->s.t = notifying;
}

/* ---- streams of one pair that differ in one word ---- */

enum { NEARLY = 3, NEARLY_BYTES = SLOT_BYTES / NEARLY / sizeof(float) * sizeof(float) };

typedef struct nearly {
  rank *r;
  opipe_stream *out[NEARLY], *in[NEARLY];
} nearly;

static opipe_region nearly_region(const rank *r, uint32_t i, bool sends) {
  return (opipe_region){r->slots, (sends ? DEPTH : 0) * SLOT_BYTES + i * NEARLY_BYTES,
                        NEARLY_BYTES};
}

/* Under GROUPED ranks issue what they send each other in one order. */
static opipe_status batch_nearly(const nearly *n) {
  rank *r = n->r;
  const opipe_transport *t = r->s->t;
  opipe_status status = OPIPE_OK;
  UNTIL(r, t->batch_begin(r->endpoint, &r->err));
  for (uint32_t i = NEARLY; i > 0 && status == OPIPE_OK; --i) {
    const opipe_region to = placed(r, nearly_region(r, i - 1, false));
    const opipe_region from = placed(r, nearly_region(r, i - 1, true));
    status = t->recv(n->in[i - 1], 0, &to, NULL, &r->err);
    if (status == OPIPE_OK)
      status = t->send(n->out[i - 1], 0, &from, NULL, NULL, &r->err);
  }
  const opipe_status ended = t->batch_end(r->endpoint, &r->err);
  return status == OPIPE_OK ? ended : status;
}

static opipe_status send_nearly(const nearly *n) {
  rank *r = n->r;
  const opipe_transport *t = r->s->t;
  for (uint32_t i = 0; i < NEARLY; ++i) {
    const opipe_region to = placed(r, nearly_region(r, i, false));
    UNTIL(r, t->recv(n->in[i], 0, &to, NULL, &r->err));
  }
  for (uint32_t i = NEARLY; i > 0; --i) { /* they go the other way about */
    const opipe_region from = placed(r, nearly_region(r, i - 1, true));
    UNTIL(r, t->reserve(n->out[i - 1], 0, &r->err));
    UNTIL(r, t->send(n->out[i - 1], 0, &from, NULL, NULL, &r->err));
  }
  return OPIPE_OK;
}

static opipe_status pass_nearly(nearly *n) {
  rank *r = n->r;
  const opipe_transport *t = r->s->t;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < NEARLY && status == OPIPE_OK; ++i) {
    const opipe_region from = nearly_region(r, i, true);
    fill(&from, r->index, i + 1);
    status = move_far(r, &from, true);
  }
  if (status == OPIPE_OK)
    status = in_batches(r->s) ? batch_nearly(n) : send_nearly(n);
  for (uint32_t i = 0; i < NEARLY && status == OPIPE_OK; ++i) {
    const opipe_region to = nearly_region(r, i, false);
    UNTIL(r, t->test(n->in[i], 0, &r->err));
    UNTIL(r, t->test(n->out[i], 0, &r->err));
    status = move_far(r, &to, false);
    r->n_good += holds(&to, (r->index + RANKS - 1) % RANKS, i + 1, NEARLY_BYTES / sizeof(float));
  }
  return status;
}

static void *nearly_body(void *arg) {
  nearly *n = (nearly *)arg;
  n->r->status = pass_nearly(n);
  return NULL;
}

static bool open_nearly(const dealt *d, nearly *n) {
  rank *r = n->r;
  for (uint32_t i = 0; i < NEARLY; ++i) {
    opipe_stream_params out = stream_params(r->index, (r->index + 1) % RANKS, 20 + i % 2);
    opipe_stream_params in = stream_params((r->index + RANKS - 1) % RANKS, r->index, 20 + i % 2);
    out.kind = in.kind = i == 2 ? OPIPE_STREAM_GRADIENT : OPIPE_STREAM_FORWARD;
    if (!conf_made(d->s.t->stream_open(r->endpoint, &out, &n->out[i], &r->err), &n->out[i], &r->err,
                   "stream_open, sender") ||
        !conf_made(d->s.t->stream_open(r->endpoint, &in, &n->in[i], &r->err), &n->in[i], &r->err,
                   "stream_open, receiver"))
      return false;
  }
  return true;
}

static void do_nearly(dealt *d) {
  nearly all[RANKS];
  pthread_t threads[RANKS];
  bool open = true;
  memset(all, 0, sizeof all);
  for (uint32_t i = 0; i < d->n_here; ++i) {
    all[i].r = &d->g.ranks[d->here[i]];
    open = open && open_nearly(d, &all[i]);
  }
  open = open && ready_here(d);
  for (uint32_t i = 0; i < d->n_here && open; ++i)
    conf_check(pthread_create(&threads[i], NULL, nearly_body, &all[i]) == 0, "pthread_create");
  for (uint32_t i = 0; i < d->n_here && open; ++i) {
    const rank *r = all[i].r;
    (void)pthread_join(threads[i], NULL);
    conf_ok(r->status, &r->err, "streams of one pair");
    conf_check(r->n_good == NEARLY,
               "rank %u: %u of %d messages are those of their own stream, of one pair's that are "
               "alike",
               r->index, r->n_good, (int)NEARLY);
  }
  for (uint32_t i = 0; i < d->n_here; ++i) {
    for (uint32_t k = 0; k < NEARLY; ++k) {
      d->s.t->stream_close(all[i].in[k]);
      d->s.t->stream_close(all[i].out[k]);
    }
  }
}

/* ---- more operations than a batch has ---- */

enum { TOO_MANY = OPIPE_BATCH_MOST + 1 };

/* A stream of its own, whose ends have room for them. */
static bool open_wide(const dealt *d, rank *r, opipe_stream **out, opipe_stream **in) {
  opipe_stream_params to = stream_params(r->index, (r->index + 1) % RANKS, 30);
  opipe_stream_params from = stream_params((r->index + RANKS - 1) % RANKS, r->index, 30);
  to.depth = from.depth = TOO_MANY;
  return conf_made(d->s.t->stream_open(r->endpoint, &to, out, &r->err), out, &r->err,
                   "stream_open, sender") &&
         conf_made(d->s.t->stream_open(r->endpoint, &from, in, &r->err), in, &r->err,
                   "stream_open, receiver");
}

static void check_too_many(const dealt *d, rank *r, opipe_stream *out) {
  const opipe_transport *t = d->s.t;
  const opipe_region region = {there(r), DEPTH * SLOT_BYTES, sizeof(float)};
  if (!conf_ok(t->batch_begin(r->endpoint, &r->err), &r->err, "batch_begin"))
    return;
  opipe_status status = OPIPE_OK;
  uint32_t n = 0;
  for (; n < TOO_MANY && status == OPIPE_OK; ++n)
    status = t->send(out, n, &region, NULL, NULL, &r->err);
  conf_check(n == TOO_MANY, "operation %u of a batch is refused, %d are allowed", n,
             OPIPE_BATCH_MOST);
  if (!conf_refused(status, &r->err, "operation 257 of a batch"))
    return;
  conf_check(strstr(r->err.message, "257") != NULL && strstr(r->err.message, "256") != NULL,
             "the message does not name 257 and 256: %s", r->err.message);
}

/* Nobody receives, so the world ends while the batch is open. */
static void do_too_many(dealt *d) {
  const opipe_error why = {.status = OPIPE_E_CANCELLED, .message = "that was too much"};
  opipe_stream *out[RANKS] = {NULL}, *in[RANKS] = {NULL};
  bool open = true;
  for (uint32_t i = 0; i < d->n_here && open; ++i)
    open = open_wide(d, &d->g.ranks[d->here[i]], &out[i], &in[i]);
  open = open && ready_here(d) && all_ready(d);
  for (uint32_t i = 0; i < d->n_here && open; ++i)
    check_too_many(d, &d->g.ranks[d->here[i]], out[i]);
  (void)all_ready(d);
  d->s.t->abort(d->g.world, d->here[0], &why);
  for (uint32_t i = 0; i < d->n_here; ++i) {
    d->s.t->stream_close(in[i]);
    d->s.t->stream_close(out[i]);
  }
}

static void do_ways(dealt *d) {
  for (uint32_t i = 0; i < d->n_here; ++i)
    check_ways_of_rank(&d->s, &d->g.ranks[d->here[i]]);
}

/* ---- sums, failure ---- */

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

static bool open_collectives_here(dealt *d) {
  bool opened = true;
  for (uint32_t i = 0; i < d->n_here && opened; ++i)
    opened = open_collective(&d->g.ranks[d->here[i]], 7);
  return opened && ready_here(d);
}

static void close_collectives_here(dealt *d) {
  for (uint32_t i = 0; i < d->n_here; ++i)
    d->s.t->collective_close(d->g.ranks[d->here[i]].collective);
}

static void do_collects(dealt *d) {
  if (open_collectives_here(d)) {
    on_ranks_here(d, collect_body);
    for (uint32_t i = 0; i < d->n_here; ++i)
      check_collected(&d->g.ranks[d->here[i]]);
  }
  close_collectives_here(d);
}

static void do_unlike(dealt *d) {
  unlike_case = UNLIKE - 1;
  if (open_collectives_here(d)) {
    on_ranks_here(d, unlike_body);
    for (uint32_t i = 0; i < d->n_here; ++i) {
      const rank *r = &d->g.ranks[d->here[i]];
      conf_error(r->status, OPIPE_E_INVALID, &r->err, "a collect of members that differ");
    }
  }
  /* Nobody may leave before all were told: leaving would be another reason. */
  (void)all_ready(d);
  close_collectives_here(d);
}

/* The last process is killed when all have opened the group. */
static void do_kill_member(dealt *d) {
  char name[32];
  (void)snprintf(name, sizeof name, "%u", d->n_processes - 1);
  const bool opened = open_collectives_here(d) && all_ready(d);
  if (d->process == d->n_processes - 1)
    (void)raise(SIGKILL);
  if (opened) {
    on_ranks_here(d, missed_body);
    for (uint32_t i = 0; i < d->n_here; ++i) {
      const rank *r = &d->g.ranks[d->here[i]];
      conf_error(r->status, OPIPE_E_PEER, &r->err, "a collect with a dead member");
      conf_check(strstr(r->err.message, name) != NULL, "the message does not name rank %s: %s",
                 name, r->err.message);
    }
  }
  close_collectives_here(d);
}

/* Waits for a message that never comes: the answer must be an error. */
static void expect_peer(dealt *d, const char *text) {
  rank *r = &d->g.ranks[d->here[0]];
  const uint64_t start = conf_host.now_ns(NULL);
  const opipe_region region = placed(r, slot_of(r, 0));
  const bool batch = in_batches(&d->s);
  opipe_status status = batch ? d->s.t->batch_begin(r->endpoint, &r->err) : OPIPE_OK;
  if (status == OPIPE_OK)
    status = d->s.t->recv(r->in, 0, &region, NULL, &r->err);
  if (status == OPIPE_OK && batch)
    status = d->s.t->batch_end(r->endpoint, &r->err);
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
  bool gives, sums, notifies, kills, collects, batches, ways;
} dealt_case;

static bool has_what_it_takes(const dealt_case *c, const subject *s) {
  return (!c->collects || collects(s)) && (!c->batches || in_batches(s)) &&
         (!c->ways || has_ways(s)) &&
         (!c->sums || (s->info.flags & OPIPE_TRANSPORT_REDUCES) != 0) &&
         (!c->gives || (s->on == NULL && OPIPE_HAS(s->t, opipe_transport, memory_free) &&
                        s->t->memory_alloc != NULL)) &&
         (!c->notifies || (OPIPE_HAS(s->t, opipe_transport, notify) && s->t->notify));
}

/* ---- a process, and all of them ---- */

/* Status of a process whose transport has not got what a case takes. */
enum { LACKS_IT = 77 };

/* The backend that was lent to plugins, for the ranks' devices. */
static void take_backend(subject *s, const char *path, const char *id) {
  opipe_error err = OPIPE_ERROR_INIT;
  if (path == NULL)
    return;
  conf_lend(path);
  const opipe_backend_lookup *lookup =
      (const opipe_backend_lookup *)conf_host.get_interface(conf_host.ctx, OPIPE_BACKEND_LOOKUP_ID);
  s->on_id = id;
  conf_ok(lookup->find(conf_host.ctx, id, &s->on, &s->on_self, &err), &err, "the backend");
}

/* Where a run's ranks are. */
typedef struct dealt_on {
  const char *path, *options; /* of the transport */
  const char *backend, *id;   /* NULL: host memory */
} dealt_on;

static _Noreturn void be_process(const dealt_case *c, const dealt_on *on, board_memory *memory,
                                 uint32_t process, uint32_t n_processes) {
  dealt d = {.process = process, .n_processes = n_processes};
  opipe_error err = OPIPE_ERROR_INIT;
  take_backend(&d.s, on->backend, on->id);
  conf_plugin plugin = conf_open(on->path, OPIPE_KIND_TRANSPORT, OPIPE_TRANSPORT_ID);
  conf_case(c->name);
  d.s.t = (const opipe_transport *)plugin.table;
  d.s.self = plugin.self;
  d.s.options = on->options;
  d.board = (opipe_board){(uint32_t)sizeof d.board, 0, memory, board_post, board_look};
  d.s.info.struct_size = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth);
  for (uint32_t r = process; r < RANKS; r += n_processes)
    d.here[d.n_here++] = r;
  const held before = what_is_held();
  int status = 0;
  const bool tells = conf_ok(d.s.t->info(d.s.self, &d.s.info, &err), &err, "info");
  d.s.rule = d.s.info.rule;
  if (!tells) {
    status = 1;
  } else if (!has_what_it_takes(c, &d.s)) {
    status = LACKS_IT;
  } else {
    if (open_dealt(&d, c->gives) && all_ready(&d))
      c->body(&d);
    close_dealt(&d);
    check_left(before);
  }
  conf_close(&plugin);
  (void)fflush(stdout);
  _exit(conf_failures() == 0 ? status : 1);
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

static void check_dealt(const dealt_case *c, const dealt_on *on, uint32_t n) {
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
      be_process(c, on, memory, p, n);
    conf_check(pids[p] > 0, "fork");
  }
  for (uint32_t p = 0; p < n; ++p) {
    const int status = pids[p] > 0 ? end_of(pids[p], start) : 0;
    const bool dies = c->kills && p == n - 1;
    const bool lacks = status > 0 && WIFEXITED(status) && WEXITSTATUS(status) == LACKS_IT;
    conf_check(lacks || (dies ? WIFSIGNALED(status) : status == 0), "process %u of %u %s", p, n,
               status == -1          ? "hangs"
               : WIFSIGNALED(status) ? "is ended by a signal"
                                     : "finds defects");
  }
  (void)munmap(memory, sizeof *memory);
}

/* backend: "ID=PATH.so" or NULL. */
static void check_processes(const char *path, const char *options, uint32_t n,
                            const char *backend) {
  char id[64] = "";
  const size_t n_id = backend == NULL ? 0 : strcspn(backend, "=");
  const dealt_on on = {path, options, backend == NULL ? NULL : backend + n_id + 1, id};
  (void)snprintf(id, sizeof id, "%.*s", (int)n_id, backend == NULL ? "" : backend);
  static const dealt_case cases[] = {
      {"messages between processes", do_messages, false, false, false, false, false},
      {"messages into the transport's memory", do_messages, true, false, false, false, false},
      {"messages between processes, by notify", do_notified, false, false, true, false, false},
      {"streams of one pair of processes", do_nearly, false, false, false, false, false},
      {"ways of streams between processes", do_ways, .ways = true},
      {"a batch of too many operations", do_too_many, .batches = true},
      {"reductions over processes", do_sums, false, true, false, false, false},
      {"collects over processes", do_collects, .collects = true},
      {"collects whose members do not agree, over processes", do_unlike, .collects = true},
      {"abort over processes", do_abort, false, false, false, false, false},
      {"a process that is killed", do_kill, false, false, false, true, false},
      {"a member that is killed", do_kill_member, .collects = true, .kills = true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    check_dealt(&cases[i], &on, n);
}

#else

static void check_processes(const char *path, const char *options, uint32_t n,
                            const char *backend) {
  (void)path, (void)options, (void)n, (void)backend;
  conf_skip("processes: these headers know none");
}

#endif

#endif /* CONFORMANCE_TRANSPORT_PROCESSES_H */
