/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's worker of UCX, and the thread that moves its messages while the rank computes: it sleeps
 * on the worker's descriptor.
 */
#include <opipe/threads.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

#include "ucx.h"

enum {
  MOVES_AT_ONCE = 64,
  BUSY_MOST = 100,
  PAUSE_US = 50,
  LEAVE_MS = 1000, /* for the last messages to be heard */
  END_MS = 50,     /* for the reason to be told, where the world has ended */
  CLOSE_MS = 200,  /* for one connection */
  SETTLE_MS = 2000 /* for messages under way of a stream or group that is closed */
};

static const ucp_calls *calls_of(const ucx_worker *worker) {
  return &worker->world->library->ucp;
}

static void pause_a_little(void) {
  const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
  (void)nanosleep(&pause, NULL);
}

void ucx_ring(ucx_op *op) {
  const opipe_endpoint *e = op->worker->endpoint;
  if (e != NULL)
    shm_transport.ring(e->near);
}

/* ---- the lock ---- */

void ucx_lock(ucx_worker *worker) {
  (void)pthread_mutex_lock(&worker->lock);
}

void ucx_unlock(ucx_worker *worker) {
  const bool fails = worker->fails && atomic_load(&worker->world->told) == 0;
  const uint32_t rank = worker->fail_rank;
  const opipe_error why = worker->why;
  (void)pthread_mutex_unlock(&worker->lock);
  if (fails)
    ucx_fail(worker->world, rank, &why);
}

void ucx_lose(ucx_worker *worker, uint32_t rank, ucp_code code) {
  if (worker->fails || worker->stopping || worker->peers[rank].left)
    return;
  worker->fails = true;
  worker->fail_rank = rank;
  (void)opipe_fail(&worker->why, OPIPE_E_PEER, "the connection of ranks %u and %u has ended: %s",
                   worker->rank, rank, calls_of(worker)->status_string(code));
}

/* ---- notes that come ---- */

static void control_is_over(ucx_op *op) {
  ucx_control *control = (ucx_control *)(void *)op;
  if (op->status != UCP_FINE)
    return;
  control->next = NULL;
  *op->worker->last_came = control;
  op->worker->last_came = &control->next;
}

static void post_control(ucx_control *control) {
  ucx_recv_op(&control->op, &control->note, sizeof control->note, UCX_TAG_NOTE, UCX_TAG_KIND);
  if (!ucx_is_pending(&control->op))
    control_is_over(&control->op);
}

static bool hear_all(ucx_worker *worker) {
  const bool any = worker->came != NULL;
  while (worker->came != NULL) {
    ucx_control *control = worker->came;
    worker->came = control->next;
    if (worker->came == NULL)
      worker->last_came = &worker->came;
    ucx_hear(worker, &control->note, control->op.n_bytes);
    memset(&control->note, 0, sizeof control->note);
    post_control(control);
  }
  return any;
}

bool ucx_progress(ucx_worker *worker) {
  bool moved = false;
  for (int i = 0; i < MOVES_AT_ONCE && !worker->stopped; ++i) {
    const bool one = calls_of(worker)->worker_progress(worker->worker) != 0;
    if (!hear_all(worker) && !one)
      return moved;
    moved = true;
  }
  return moved;
}

void ucx_poke(ucx_worker *worker) {
  if (!worker->stopped && !ucx_progress(worker))
    (void)calls_of(worker)->worker_signal(worker->worker);
}

void ucx_move(ucx_worker *worker) {
  if (pthread_mutex_trylock(&worker->lock) != 0)
    return;
  (void)ucx_progress(worker);
  ucx_unlock(worker);
}

/* ---- the helper ---- */

static void *help(void *arg) {
  ucx_worker *worker = arg;
  int busy = 0;
  opipe_thread_enter("opipe-ucx");
  for (;;) {
    ucx_lock(worker);
    const bool moved = ucx_progress(worker), stops = worker->stopping;
    const ucp_code armed = moved || stops ? UCP_BUSY : calls_of(worker)->worker_arm(worker->worker);
    ucx_unlock(worker);
    if (stops)
      return NULL;
    busy = armed == UCP_BUSY && !moved ? busy + 1 : 0;
    if (busy > BUSY_MOST)
      pause_a_little();
    if (armed == UCP_FINE) {
      struct pollfd one = {.fd = worker->wakes, .events = POLLIN};
      (void)poll(&one, 1, -1);
    }
  }
}

/* ---- opening ---- */

static opipe_status open_worker(ucx_worker *worker, opipe_error *err) {
  const opipe_world *world = worker->world;
  const ucp_calls *ucp = calls_of(worker);
  const ucp_worker_want want = {.mask = UCP_WORKER_THREAD_MODE,
                                .thread_mode = UCP_THREADS_SERIALIZED};
  ucp_handle address = NULL;
  size_t n = 0;
  ucp_code code = ucp->worker_create(world->context, &want, &worker->worker);
  if (code != UCP_FINE)
    return ucx_failed(world, "ucp_worker_create", code, err);
  worker->stopped = false;
  code = ucp->worker_get_efd(worker->worker, &worker->wakes);
  if (code == UCP_FINE)
    code = ucp->worker_get_address(worker->worker, &address, &n);
  if (code != UCP_FINE)
    return ucx_failed(world, "a worker's descriptor and address", code, err);
  worker->address = n > UCX_ADDRESS_MOST ? NULL : ucx_new(world->host, "an address", n, err);
  if (worker->address != NULL)
    memcpy(worker->address, address, n);
  worker->n_address = n;
  ucp->worker_release_address(worker->worker, address);
  if (n > UCX_ADDRESS_MOST) {
    return opipe_fail(err, OPIPE_E_LIMIT,
                      "transport 'ucx': a worker's address has %zu bytes, at most %d can be told: "
                      "name fewer devices (net=) or transports (tls=)",
                      n, UCX_ADDRESS_MOST);
  }
  return worker->address == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
}

static opipe_status make_lists(ucx_worker *worker, opipe_error *err) {
  const opipe_world *world = worker->world;
  worker->peers = ucx_new(world->host, "peers", world->n_ranks * sizeof *worker->peers, err);
  worker->controls = ucx_new(world->host, "notes", UCX_CONTROLS * sizeof *worker->controls, err);
  worker->requests = ucx_new(world->host, "notes", UCX_CONTROLS * world->request_bytes, err);
  if (worker->peers == NULL || worker->controls == NULL || worker->requests == NULL)
    return OPIPE_E_NOMEM;
  char *requests = worker->requests;
  for (uint32_t r = 0; r < world->n_ranks; ++r)
    worker->peers[r] = (ucx_peer){.worker = worker, .rank = r};
  for (int i = 0; i < UCX_CONTROLS; ++i)
    ucx_op_init(&worker->controls[i].op, worker, worker->rank, &requests, control_is_over);
  return OPIPE_OK;
}

opipe_status ucx_worker_make(opipe_world *world, uint32_t rank, opipe_error *err) {
  ucx_worker *worker = ucx_new(world->host, "a worker", sizeof *worker, err);
  if (worker == NULL)
    return OPIPE_E_NOMEM;
  worker->world = world;
  worker->rank = rank;
  worker->last_came = &worker->came;
  worker->stopped = true;
  if (pthread_mutex_init(&worker->lock, NULL) != 0) {
    ucx_delete(world->host, worker, sizeof *worker);
    return opipe_fail(err, OPIPE_E_NOMEM, "a worker's lock");
  }
  world->seats[rank].worker = worker;
  const opipe_status status = make_lists(worker, err);
  return status < 0 ? status : open_worker(worker, err);
}

opipe_status ucx_worker_begin(ucx_worker *worker, opipe_endpoint *endpoint, opipe_error *err) {
  ucx_lock(worker);
  if (worker->stopped) {
    ucx_unlock(worker);
    return opipe_fail(err, OPIPE_E_STATE, "endpoint_open: rank %u has left this world before",
                      worker->rank);
  }
  worker->endpoint = endpoint;
  for (int i = 0; i < UCX_CONTROLS; ++i)
    post_control(&worker->controls[i]);
  const int code = opipe_thread_create(&worker->helper, NULL, help, worker);
  worker->has_helper = code == 0;
  ucx_unlock(worker);
  return code == 0 ? OPIPE_OK
                   : opipe_fail(err, OPIPE_E_LIMIT, "rank %u: no thread can be made (%d)",
                                worker->rank, code);
}

/* ---- leaving ---- */

typedef bool (*is_done_fn)(const ucx_worker *worker);

static void move_until(ucx_worker *worker, is_done_fn is_done, uint64_t ms) {
  const uint64_t until = machine_now_ns() + ms * 1000000;
  while (!is_done(worker) && machine_now_ns() < until) {
    if (!ucx_progress(worker))
      pause_a_little();
  }
}

static bool all_have_heard(const ucx_worker *worker) {
  for (uint32_t r = 0; r < worker->world->n_ranks; ++r) {
    const ucx_peer *p = &worker->peers[r];
    if (p->ep != NULL && p->rank != worker->rank && !p->left && !p->heard)
      return shm_check(worker->world->near, NULL) < 0;
  }
  return true;
}

static bool no_letters(const ucx_worker *worker) {
  for (const ucx_letter *at = worker->letters; at != NULL; at = at->next) {
    if (ucx_is_pending(&at->op))
      return false;
  }
  return true;
}

static void say_bye(ucx_worker *worker) {
  const ucx_note bye = {.brief = ucx_brief_of(worker, UCX_NOTE_BYE, 0)};
  for (uint32_t r = 0; r < worker->world->n_ranks; ++r) {
    if (worker->peers[r].ep != NULL && r != worker->rank && !worker->peers[r].left)
      (void)ucx_tell(worker, r, &bye, NULL);
  }
  move_until(worker, all_have_heard, LEAVE_MS);
}

static void cancel_all(ucx_worker *worker) {
  for (int i = 0; i < UCX_CONTROLS; ++i)
    ucx_cancel_op(&worker->controls[i].op);
  for (opipe_stream *s = worker->streams; s != NULL; s = s->next) {
    for (uint32_t i = 0; s->slots != NULL && s->side == 1 && i < s->params.depth; ++i)
      ucx_cancel_op(&s->slots[i].op);
  }
  for (opipe_group *g = worker->groups; g != NULL; g = g->next)
    ucx_lanes_cancel(g);
  (void)ucx_progress(worker);
}

/* In mode NONE connections end with their worker. */
static void close_peers(ucx_worker *worker) {
  const ucp_calls *ucp = calls_of(worker);
  const ucp_op_want want = {.mask = UCP_OP_FLAGS, .flags = UCP_CLOSE_FORCE};
  for (uint32_t r = 0; r < worker->world->n_ranks; ++r) {
    ucp_handle ep = worker->peers[r].ep;
    worker->peers[r].ep = NULL;
    if (ep == NULL || worker->world->library->error_mode == UCP_ERRORS_NONE)
      continue;
    void *request = ucp->ep_close(ep, &want);
    if (ucp_answer(request) != UCP_IN_PROGRESS)
      continue;
    const uint64_t until = machine_now_ns() + CLOSE_MS * UINT64_C(1000000);
    while (ucp->request_check(request) == UCP_IN_PROGRESS && machine_now_ns() < until)
      (void)ucp->worker_progress(worker->worker);
    ucp->request_free(request);
  }
}

/* Nothing of UCX's touches our memory any more. */
static void forget_all(ucx_worker *worker) {
  for (int i = 0; worker->controls != NULL && i < UCX_CONTROLS; ++i)
    ucx_forget_op(&worker->controls[i].op);
  for (ucx_letter *at = worker->letters; at != NULL; at = at->next)
    ucx_forget_op(&at->op);
  for (opipe_stream *s = worker->streams; s != NULL; s = s->next) {
    for (uint32_t i = 0; s->slots != NULL && i < s->params.depth; ++i) {
      ucx_forget_op(&s->slots[i].op);
      ucx_forget_op(&s->slots[i].tells);
    }
  }
  for (opipe_group *g = worker->groups; g != NULL; g = g->next)
    ucx_lanes_forget(g);
}

void ucx_worker_stop(ucx_worker *worker) {
  if (worker == NULL)
    return;
  ucx_lock(worker);
  const bool first = !worker->stopped && !worker->stopping;
  const bool has_helper = first && worker->has_helper;
  worker->stopping = worker->stopping || first;
  if (has_helper)
    (void)calls_of(worker)->worker_signal(worker->worker);
  ucx_unlock(worker);
  if (!first)
    return;
  if (has_helper)
    (void)pthread_join(worker->helper, NULL);
  ucx_lock(worker);
  if (shm_check(worker->world->near, NULL) == OPIPE_OK)
    say_bye(worker);
  else
    move_until(worker, no_letters, END_MS);
  cancel_all(worker);
  close_peers(worker);
  calls_of(worker)->worker_destroy(worker->worker);
  worker->stopped = true;
  worker->has_helper = false;
  forget_all(worker);
  ucx_unlock(worker);
}

void ucx_worker_delete(ucx_worker *worker) {
  if (worker == NULL)
    return;
  const opipe_world *world = worker->world;
  const opipe_host *host = world->host;
  ucx_worker_stop(worker);
  while (worker->letters != NULL) {
    ucx_letter *letter = worker->letters;
    worker->letters = letter->next;
    ucx_delete(host, letter->requests, world->request_bytes);
    ucx_delete(host, letter, sizeof *letter);
  }
  while (worker->heard != NULL)
    ucx_forget_note(worker, worker->heard);
  machine_forget_places(host, &worker->counts);
  ucx_delete(host, worker->address, worker->n_address);
  ucx_delete(host, worker->peers, world->n_ranks * sizeof *worker->peers);
  ucx_delete(host, worker->controls, UCX_CONTROLS * sizeof *worker->controls);
  ucx_delete(host, worker->requests, UCX_CONTROLS * world->request_bytes);
  (void)pthread_mutex_destroy(&worker->lock);
  ucx_delete(host, worker, sizeof *worker);
}

void ucx_settle(ucx_worker *worker, uint32_t peer, bool (*is_pending)(const void *what),
                const void *what) {
  opipe_world *world = worker->world;
  const uint64_t until = machine_now_ns() + SETTLE_MS * UINT64_C(1000000);
  ucx_lock(worker);
  bool pending = is_pending(what), ended = shm_check(world->near, NULL) < 0;
  while (pending && !ended && machine_now_ns() < until) {
    if (!ucx_progress(worker)) {
      ucx_unlock(worker);
      pause_a_little();
      ucx_lock(worker);
    }
    pending = is_pending(what);
    ended = shm_check(world->near, NULL) < 0;
  }
  if (pending && !ended && !worker->fails) {
    worker->fails = true;
    worker->fail_rank = peer;
    (void)opipe_fail(&worker->why, OPIPE_E_PEER,
                     "rank %u closes a stream or group whose message with rank %u does not end",
                     worker->rank, peer);
  }
  ucx_unlock(worker);
  if (pending)
    ucx_worker_stop(worker);
}
