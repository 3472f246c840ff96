/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory that a rank lends: the senders of its streams open it, by the backend's handles
 * (another process) or by its address (this one), and their queues copy straight to it.
 *
 * A rank that drops such memory tells everybody to close it and waits for the answers, which the
 * helpers of the other worlds give. A world that does not answer in time may have it open: then the
 * memory is left to the driver. Handles are a peer's: the backend checks driver, device and size.
 */
#include <opipe/threads.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "shm.h"

enum { PATIENCE_MS = 2000, NAPS_PER_MS = 5, NAPS_MOST = PATIENCE_MS * NAPS_PER_MS };

static bool is_lent_way(uint32_t way) {
  return way == OPIPE_WAY_DEVICE || way == OPIPE_WAY_PEER || way == OPIPE_WAY_SHARED;
}

static void say(const opipe_world *world, const char *text) {
  if (world->host->log != NULL)
    world->host->log(world->host->ctx, OPIPE_LOG_WARN, NULL, 0, text);
}

/* Lets go of the lock for a moment. */
static void nap(opipe_world *world) {
  const struct timespec pause = {0, 1000000 / NAPS_PER_MS};
  pthread_mutex_unlock(&world->lock);
  (void)nanosleep(&pause, NULL);
  pthread_mutex_lock(&world->lock);
}

static bool can_share(const opipe_backend *backend) {
  return OPIPE_HAS(backend, opipe_backend, event_open) && backend->buffer_share != NULL &&
         backend->device_reach != NULL && backend->native != NULL && backend->buffer_import != NULL;
}

/* ---- the owner ---- */

static shm_theirs *new_theirs(opipe_world *world, uint32_t rank, uint32_t id, uint64_t n_bytes,
                              opipe_error *err) {
  shm_theirs *theirs = shm_new(world->host, "lent memory", sizeof *theirs, err);
  if (theirs != NULL) {
    theirs->rank = rank;
    theirs->id = id;
    theirs->n_bytes = n_bytes;
    theirs->next = world->theirs;
    world->theirs = theirs;
  }
  return theirs;
}

/* Does the device share memory? Else `why_not` says why. */
static bool may_lend(opipe_endpoint *e) {
  uint32_t reach = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!can_share(e->backend) || e->device_index == OPIPE_NONE) {
    (void)snprintf(e->why_not, sizeof e->why_not, "the backend shares no memory with processes");
    return false;
  }
  const opipe_status status =
      e->backend->device_reach(e->backend_self, e->device_index, e->device_index, &reach, &err);
  if (status >= 0 && (reach & OPIPE_REACH_SHARED) == 0) {
    (void)opipe_fail(&err, OPIPE_E_UNSUPPORTED, "device %u shares no memory with other processes",
                     e->device_index);
  }
  if ((reach & OPIPE_REACH_SHARED) == 0)
    (void)snprintf(e->why_not, sizeof e->why_not, "%.150s", err.message);
  return (reach & OPIPE_REACH_SHARED) != 0;
}

opipe_status shm_lend(opipe_endpoint *e, opipe_buffer *buffer, uint64_t n_bytes,
                      shm_lent **out_lent, opipe_error *err) {
  opipe_world *world = e->world;
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_shared shared;
  *out_lent = NULL;
  memset(&shared, 0, sizeof shared);
  if (n_bytes == 0 || !may_lend(e))
    return OPIPE_OK;
  if (!world->alone && e->backend->buffer_share(buffer, &shared, &why) < 0) {
    (void)snprintf(e->why_not, sizeof e->why_not, "%.150s", why.message);
    return OPIPE_OK;
  }
  shm_lent *lent = shm_new(world->host, "lent memory", sizeof *lent, err);
  shm_theirs *here =
      lent == NULL ? NULL : new_theirs(world, e->rank, e->last_lent + 1, n_bytes, err);
  if (here == NULL) {
    shm_delete(world->host, lent, sizeof *lent);
    return OPIPE_E_NOMEM;
  }
  lent->id = ++e->last_lent;
  lent->n_bytes = n_bytes;
  lent->shared = shared;
  atomic_store(&lent->buffer, buffer);
  here->owner = e;
  here->lent = lent;
  lent->next = atomic_load(&e->lent);
  atomic_store_explicit(&e->lent, lent, memory_order_release);
  *out_lent = lent;
  return shm_tell_lend(world, e->rank, lent, err);
}

uint32_t shm_find_lent(const opipe_endpoint *e, const opipe_region *region) {
  const shm_lent *lent = atomic_load_explicit(&e->lent, memory_order_acquire);
  for (; lent != NULL; lent = lent->next) {
    if (atomic_load_explicit(&lent->buffer, memory_order_relaxed) == region->buffer &&
        region->offset_bytes <= lent->n_bytes &&
        region->n_bytes <= lent->n_bytes - region->offset_bytes)
      return lent->id;
  }
  return 0;
}

/* Has the peer closed all that was taken back? One that is lost may have it open until it ends. */
static bool has_returned(const shm_peer *peer) {
  return peer->leaving ||
         (peer->gone ? shm_peer_has_ended(peer) : peer->n_returned >= peer->n_takes);
}

static bool all_returned(const opipe_world *world, const shm_theirs *here) {
  bool all = here->answered;
  for (const shm_peer *p = world->peers; p != NULL && all; p = p->next)
    all = has_returned(p);
  return all;
}

/* Is somebody given one more nap? A peer that does not answer has its naps once, and not again for
 * each buffer. n: naps on this one so far. */
static bool is_waited_for(const opipe_world *world, const shm_theirs *here, int n) {
  bool any = !here->answered && n < NAPS_MOST;
  for (shm_peer *p = world->peers; p != NULL; p = p->next) {
    if (has_returned(p) || p->n_naps == NAPS_MOST)
      continue;
    ++p->n_naps;
    any = true;
  }
  return any;
}

void shm_take_back(opipe_endpoint *e, shm_lent *lent) {
  opipe_world *world = e->world;
  opipe_buffer *buffer = atomic_exchange(&lent->buffer, NULL);
  shm_theirs *here = world->theirs;
  while (here->lent != lent)
    here = here->next;
  atomic_store(&here->ended, 1);
  shm_close_ended(world);
  shm_tell_take(world, e->rank, lent->id);
  for (int n = 0; is_waited_for(world, here, n); ++n)
    nap(world);
  const bool all_closed = all_returned(world, here);
  e->backend->buffer_unshare(buffer, all_closed);
  if (!all_closed) {
    char text[200];
    (void)snprintf(text, sizeof text,
                   "transport 'shm': rank %u: device memory of %llu bytes is open in another "
                   "process still, after %d ms: it is left to the driver",
                   e->rank, (unsigned long long)lent->n_bytes, PATIENCE_MS);
    say(world, text);
  }
}

/* ---- others ---- */

opipe_status shm_hear_lend(opipe_world *world, const shm_note *note, opipe_error *err) {
  for (const shm_theirs *t = world->theirs; t != NULL; t = t->next) {
    if (t->rank == note->rank && t->id == note->id)
      return OPIPE_OK; /* told twice */
  }
  shm_theirs *theirs = new_theirs(world, note->rank, note->id, note->n_bytes, err);
  if (theirs == NULL)
    return OPIPE_E_NOMEM;
  theirs->shared = note->shared;
  return OPIPE_OK;
}

void shm_hear_take(opipe_world *world, shm_peer *peer, const shm_note *note) {
  shm_theirs *t = world->theirs;
  while (t != NULL && (t->rank != note->rank || t->id != note->id || t->owner != NULL))
    t = t->next;
  if (t == NULL || t->answered) {
    shm_tell_returned(world, peer);
    return;
  }
  atomic_store(&t->ended, 1);
  shm_close_ended(world);
}

/* Closes what an endpoint has opened of it; false: it is in use. */
static bool close_in(const opipe_endpoint *e, const shm_theirs *theirs) {
  bool all = true;
  for (shm_opened *o = atomic_load(&e->opened); o != NULL; o = o->next) {
    if (o->theirs != theirs || o->buffer == NULL)
      continue;
    if (atomic_load(&o->users) != 0) {
      all = false;
      continue;
    }
    e->backend->buffer_free(o->buffer);
    o->buffer = NULL;
  }
  return all;
}

void shm_close_ended(opipe_world *world) {
  for (shm_theirs *t = world->theirs; t != NULL; t = t->next) {
    bool all = true;
    if (atomic_load(&t->ended) == 0 || t->answered)
      continue;
    for (uint32_t r = 0; r < world->n_ranks; ++r) {
      const opipe_endpoint *e = atomic_load(&world->seats[r].endpoint);
      if (e != NULL && !close_in(e, t))
        all = false;
    }
    if (!all)
      continue;
    t->answered = true;
    if (t->owner == NULL && world->seats[t->rank].peer != NULL)
      shm_tell_returned(world, world->seats[t->rank].peer);
  }
}

void shm_forget_lent(opipe_endpoint *e) {
  opipe_world *world = e->world;
  for (shm_theirs *t = world->theirs; t != NULL; t = t->next) {
    if (t->owner == e) {
      atomic_store(&t->ended, 1);
      t->lent = NULL;
    }
  }
  for (shm_opened *o = atomic_exchange(&e->opened, NULL); o != NULL;) {
    shm_opened *next = o->next;
    if (o->buffer != NULL)
      e->backend->buffer_free(o->buffer);
    shm_delete(world->host, o, sizeof *o);
    o = next;
  }
  shm_close_ended(world);
  for (shm_lent *lent = atomic_exchange(&e->lent, NULL); lent != NULL;) {
    shm_lent *next = lent->next;
    shm_delete(world->host, lent, sizeof *lent);
    lent = next;
  }
}

void shm_forget_theirs(opipe_world *world) {
  while (world->theirs != NULL) {
    shm_theirs *t = world->theirs;
    world->theirs = t->next;
    shm_delete(world->host, t, sizeof *t);
  }
}

/* Memory of a rank that is here: by its address, under the rule of processes, so that a plan means
 * the same for both. */
static opipe_status import_here(const opipe_endpoint *e, const shm_theirs *t,
                                opipe_buffer **out_buffer, opipe_error *err) {
  const opipe_endpoint *owner = t->owner;
  const opipe_backend *backend = e->backend;
  opipe_buffer *buffer = t->lent == NULL ? NULL : atomic_load(&t->lent->buffer);
  uint64_t native = 0;
  uint32_t reach = 0;
  if (buffer == NULL || owner->backend != backend)
    return opipe_fail(err, OPIPE_E_INVALID, "the two devices are of different kinds");
  opipe_status status =
      backend->device_reach(e->backend_self, e->device_index, owner->device_index, &reach, err);
  if (status >= 0 && (reach & OPIPE_REACH_SHARED) == 0) {
    return opipe_fail(err, OPIPE_E_INVALID, "device %u does not reach memory of device %u",
                      e->device_index, owner->device_index);
  }
  if (status >= 0)
    status = backend->native(owner->device, OPIPE_NATIVE_BUFFER, buffer, &native, err);
  return status < 0 ? status
                    : backend->buffer_import(e->device, native, t->n_bytes, out_buffer, err);
}

static shm_opened *find_opened(const opipe_endpoint *e, uint32_t rank, uint32_t id) {
  shm_opened *o = atomic_load_explicit(&e->opened, memory_order_acquire);
  while (o != NULL && (o->theirs->rank != rank || o->theirs->id != id))
    o = o->next;
  return o;
}

/* Under the lock. */
static opipe_status open_theirs(opipe_endpoint *e, shm_theirs *t, shm_opened **out,
                                opipe_error *err) {
  opipe_buffer *buffer = NULL;
  opipe_status status = OPIPE_OK;
  *out = find_opened(e, t->rank, t->id);
  if (*out != NULL)
    return OPIPE_OK;
  if (t->owner != NULL) {
    status = import_here(e, t, &buffer, err);
  } else if (t->shared.process == (uint64_t)getpid()) {
    status = opipe_fail(err, OPIPE_E_INVALID,
                        "rank %u is process %llu in a space of numbers of its own, and so is this "
                        "one: handles of devices do not tell them apart",
                        t->rank, (unsigned long long)t->shared.process);
  } else {
    status = e->backend->buffer_open(e->device, &t->shared, t->n_bytes, &buffer, err);
  }
  shm_opened *o = status < 0 ? NULL : shm_new(e->world->host, "lent memory", sizeof *o, err);
  if (o == NULL) {
    if (buffer != NULL)
      e->backend->buffer_free(buffer);
    return status < 0 ? status : OPIPE_E_NOMEM;
  }
  o->theirs = t;
  o->buffer = buffer;
  o->next = atomic_load(&e->opened);
  atomic_store_explicit(&e->opened, o, memory_order_release);
  *out = o;
  return OPIPE_OK;
}

static opipe_status open_late(opipe_endpoint *e, uint32_t rank, uint32_t id, shm_opened **out,
                              opipe_error *err) {
  pthread_mutex_lock(&e->world->lock);
  shm_theirs *t = e->world->theirs;
  while (t != NULL && (t->rank != rank || t->id != id || atomic_load(&t->ended) != 0))
    t = t->next;
  opipe_status status = t == NULL ? OPIPE_PENDING : open_theirs(e, t, out, err);
  pthread_mutex_unlock(&e->world->lock);
  return status;
}

opipe_status shm_use_lent(opipe_endpoint *e, uint32_t rank, uint32_t id, uint64_t offset,
                          uint64_t n_bytes, shm_opened **out_opened, opipe_region *out_region,
                          opipe_error *err) {
  shm_opened *o = find_opened(e, rank, id);
  if (o == NULL) {
    const opipe_status status = open_late(e, rank, id, &o, err);
    if (status != OPIPE_OK)
      return status;
  }
  if (offset > o->theirs->n_bytes || n_bytes > o->theirs->n_bytes - offset) {
    return opipe_fail(err, OPIPE_E_PEER,
                      "rank %u names %llu bytes at %llu of its device memory %u, which has %llu",
                      rank, (unsigned long long)n_bytes, (unsigned long long)offset, id,
                      (unsigned long long)o->theirs->n_bytes);
  }
  atomic_fetch_add(&o->users, 1);
  if (atomic_load(&o->theirs->ended) != 0) {
    shm_let_go_lent(o);
    return OPIPE_PENDING;
  }
  *out_opened = o;
  *out_region = (opipe_region){.buffer = o->buffer, .offset_bytes = offset, .n_bytes = n_bytes};
  return OPIPE_OK;
}

void shm_let_go_lent(shm_opened *opened) {
  atomic_fetch_sub(&opened->users, 1);
}

/* ---- events of closed streams ---- */

void shm_keep_event(opipe_endpoint *e, shm_heard *heard, opipe_event *event) {
  opipe_world *world = e->world;
  shm_kept_event *kept = heard == NULL || heard == &world->closed
                             ? NULL
                             : shm_new(world->host, "an event", sizeof *kept, NULL);
  if (kept == NULL) {
    e->backend->event_destroy(event);
    return;
  }
  *kept = (shm_kept_event){world->kept, event, e, heard};
  world->kept = kept;
}

/* All of the peer's end (NULL: any), and of the endpoint (NULL: any). */
static void drop_events(opipe_world *world, const shm_heard *heard, const opipe_endpoint *e) {
  for (shm_kept_event **at = &world->kept; *at != NULL;) {
    shm_kept_event *kept = *at;
    if ((heard != NULL && kept->heard != heard) || (e != NULL && kept->endpoint != e)) {
      at = &kept->next;
      continue;
    }
    *at = kept->next;
    kept->endpoint->backend->event_destroy(kept->event);
    shm_delete(world->host, kept, sizeof *kept);
  }
}

void shm_drop_events(opipe_world *world, const shm_heard *heard) {
  drop_events(world, heard, NULL);
}

/* Does a peer that lives look at one still? */
static bool are_awaited(const opipe_world *world, const opipe_endpoint *e) {
  for (const shm_kept_event *kept = world->kept; kept != NULL; kept = kept->next) {
    const shm_peer *peer = world->seats[kept->heard->note.rank].peer;
    if (kept->endpoint == e && peer != NULL && !peer->gone && !peer->leaving)
      return true;
  }
  return false;
}

void shm_end_events(opipe_endpoint *e) {
  for (int i = 0; i < NAPS_MOST && are_awaited(e->world, e); ++i)
    nap(e->world);
  drop_events(e->world, NULL, e);
}

/* ---- ways ---- */

/* Opens all that the receiver lends. */
static opipe_status open_all(opipe_stream *s, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  shm_opened *opened = NULL;
  for (shm_theirs *t = s->endpoint->world->theirs; t != NULL && status >= 0; t = t->next) {
    if (t->rank == s->params.dst_rank && atomic_load(&t->ended) == 0)
      status = open_theirs(s->endpoint, t, &opened, err);
  }
  return status;
}

/* An event for each cell, with its handle. */
static opipe_status lend_events(opipe_stream *s, opipe_error *err) {
  const opipe_endpoint *e = s->endpoint;
  shm_cell *cells = atomic_load(&s->ends[0].cells);
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < s->params.depth && status >= 0; ++i) {
    shm_slot *slot = &s->ends[0].slots[i];
    opipe_shared shared;
    status = e->backend->event_create_shared(e->device, &slot->moved, &shared, err);
    if (status >= 0) {
      slot->lent = true;
      cells[i].event = shared;
    }
  }
  for (uint32_t i = 0; i < s->params.depth && status < 0; ++i) {
    shm_slot *slot = &s->ends[0].slots[i];
    e->backend->event_destroy(slot->moved);
    slot->moved = NULL;
    slot->lent = false;
  }
  return status;
}

/* May messages go straight to the receiver's device memory? Else `why` says what stands in the way.
 */
static bool borrows(opipe_stream *s, const shm_note *receiver) {
  opipe_endpoint *e = s->endpoint;
  const opipe_endpoint *here = atomic_load(&e->world->seats[s->params.dst_rank].endpoint);
  opipe_error err = OPIPE_ERROR_INIT;
  const char *why = NULL;
  char lends[64];
  (void)snprintf(lends, sizeof lends, "rank %u lends no device memory", s->params.dst_rank);
  if (!e->has_remote || (receiver->turn & SHM_REMOTE) == 0)
    why = "the two devices are of different kinds";
  else if (!can_share(e->backend) || e->device_index == OPIPE_NONE)
    why = "the sender's backend opens no memory of processes";
  else if ((receiver->turn & SHM_LENDS) == 0)
    why = here != NULL && here->why_not[0] != '\0' ? here->why_not : lends;
  opipe_status status =
      why == NULL ? open_all(s, &err) : opipe_fail(&err, OPIPE_E_INVALID, "%s", why);
  if (status >= 0 && here == NULL)
    status = lend_events(s, &err);
  if (status < 0)
    (void)snprintf(s->why, sizeof s->why, "%.150s", err.message);
  return status >= 0;
}

opipe_status shm_decide_way(opipe_stream *s, const shm_note *receiver, opipe_error *err) {
  const opipe_endpoint *e = s->endpoint;
  const opipe_endpoint *here = atomic_load(&e->world->seats[s->params.dst_rank].endpoint);
  shm_cell *cells = atomic_load(&s->ends[0].cells);
  (void)err;
  if (s->way != OPIPE_WAY_NONE)
    return OPIPE_OK;
  if (s->params.n_bytes == 0 || (!e->has_remote && (receiver->turn & SHM_REMOTE) == 0)) {
    s->way = OPIPE_WAY_HOST;
  } else if (s->params.kind == OPIPE_STREAM_CONTROL) {
    s->way = OPIPE_WAY_PAGEABLE;
    (void)snprintf(s->why, sizeof s->why, "letters are not pinned");
  } else if (borrows(s, receiver)) {
    s->way = here == NULL                            ? OPIPE_WAY_SHARED
             : here->device_index == e->device_index ? OPIPE_WAY_DEVICE
                                                     : OPIPE_WAY_PEER;
  } else {
    s->way = OPIPE_WAY_STAGED;
  }
  if (!is_lent_way(s->way))
    memcpy(cells[0].why, s->why, sizeof s->why);
  atomic_store_explicit(&cells[0].way, s->way, memory_order_release);
  shm_ring_rank(e->world, s->params.dst_rank);
  return OPIPE_OK;
}

opipe_status shm_take_way(opipe_stream *s, opipe_error *err) {
  opipe_endpoint *e = s->endpoint;
  shm_cell *cells = atomic_load(&s->ends[1].cells);
  const uint32_t way = atomic_load_explicit(&cells[0].way, memory_order_acquire);
  if (way == OPIPE_WAY_NONE)
    return OPIPE_PENDING;
  if (way > OPIPE_WAY_PAGEABLE || (is_lent_way(way) && atomic_load(&e->lent) == NULL)) {
    return opipe_fail(err, OPIPE_E_PEER,
                      "rank %u says that messages to rank %u travel by way %u, of %d",
                      s->params.src_rank, e->rank, way, OPIPE_WAY_PAGEABLE);
  }
  if (!is_lent_way(way)) {
    memcpy(s->why, cells[0].why, sizeof s->why);
    s->why[sizeof s->why - 1] = '\0';
    for (char *at = s->why; *at != '\0'; ++at)
      *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
  }
  s->way = way;
  return way == OPIPE_WAY_STAGED && e->has_remote ? shm_stream_bounce(s, err) : OPIPE_OK;
}

opipe_status shm_way(opipe_instance *self, const char *options, const opipe_way_params *params,
                     opipe_way *io_way, opipe_error *err) {
  opipe_way way = {.struct_size = (uint32_t)sizeof way};
  opipe_way_found found;
  (void)self;
  opipe_status status = shm_check_options(options, err);
  if (status >= 0)
    status = opipe_way_find(params, OPIPE_REACH_SHARED, &found, err);
  if (status < 0)
    return status;
  const opipe_backend *stager = found.dst_remote ? params->dst_backend : params->src_backend;
  way.way = found.way;
  (void)snprintf(way.why, sizeof way.why, "%s", found.why);
  if (found.way == OPIPE_WAY_STAGED && !opipe_ring_pins(stager))
    way.way = OPIPE_WAY_PAGEABLE;
  else if (found.way == OPIPE_WAY_STAGED && found.dst_remote)
    way.dst_bytes = opipe_ring_bytes(params->stream->depth, params->stream->n_bytes);
  return opipe_way_tell(io_way, &way, err);
}

opipe_status shm_stream_way(opipe_stream *s, opipe_way *io_way, opipe_error *err) {
  opipe_way way = {.struct_size = (uint32_t)sizeof way};
  pthread_mutex_lock(&s->endpoint->world->lock);
  way.way = s->way;
  (void)snprintf(way.why, sizeof way.why, "%s", s->why);
  if ((s->sides & 2u) != 0 && s->ends[1].ring != NULL && s->ends[1].pinned)
    way.dst_bytes = s->ends[1].ring->n_bytes;
  pthread_mutex_unlock(&s->endpoint->world->lock);
  return opipe_way_tell(io_way, &way, err);
}
