/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a session: devices, message world, the plan's own shape, threads; and closes it in reverse
 * order, also after a failure half-way. The plan's own shape is complete when open returns.
 */
#include "runtime/session/session.h"

#include <stdio.h>
#include <string.h>

#include "partition/memory/caps.h"
#include "partition/plan/kernels.h"
#include "partition/program/batch.h"
#include "partition/program/states.h"
#include "runtime/session/agree.h"
#include "runtime/session/alike.h"
#include "runtime/session/members.h"

static const uint64_t WATCHDOG_NS = UINT64_C(60000000000);
enum { SHAPES = 8, IN_FLIGHT_MOST = 1 << 20 };
enum { PLACES_LEAST = 4 };
/* A pass is in flight until the ranks of all replicas have gone by it: one replica's long pass must
 * not hold up another's short ones. */
enum { HOMES_AHEAD = 8 };
/* If ranks outnumber cores a rank spins only for about as long as it takes to fall asleep and wake
 * up; the transport yields meanwhile. */
enum { SPIN_US = 50, SPIN_CROWDED_US = 5 };

/* ---- parameters ---- */

/* Do ranks compute on their own threads, from which spinning callers would take time? */
static bool ranks_compute(const opi_setup *s) {
  bool found = s->ranks == NULL;
  for (uint32_t i = 0; !found && i < s->n_here; ++i)
    found = (s->ranks[s->here[i]].device_flags & OPIPE_DEVICE_SYNCHRONOUS) != 0;
  return found;
}

/* Decides for how long ranks and callers spin: briefly if threads outnumber cores. */
static void share_cores(opi_session *session, uint32_t spin_us) {
  opi_setup *s = session->setup;
  uint64_t n_threads = s->env.budget == NULL ? 0 : opi_budget_all_threads(s->env.budget);
  n_threads += s->env.threads_elsewhere;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t threads = s->plan->decided.devices[s->here[i]].threads;
    n_threads += threads == 0 ? 1 : threads;
  }
  const uint32_t cores = s->env.cores != 0 ? s->env.cores : opi_cores_allowed();
  const bool crowded = n_threads > cores, chosen = spin_us != UINT32_MAX;
  s->spin_us = chosen ? spin_us : crowded ? (uint32_t)SPIN_CROWDED_US : (uint32_t)SPIN_US;
  s->worker_spin_us = crowded && !chosen ? 0 : s->spin_us;
  session->waits.spin_us = n_threads < cores ? s->spin_us : 0;
  session->waits.cores =
      n_threads < cores && !chosen && !ranks_compute(s) ? cores - (uint32_t)n_threads : 0;
}

/* A session with all ranks is process 0's, so nothing travels. */
static opipe_status read_travels(opi_setup *s, uint32_t flags, opipe_error *err) {
  const bool inputs = (flags & OPIPE_SESSION_INPUTS_OF_0) != 0;
  const bool outputs = (flags & OPIPE_SESSION_OUTPUTS_TO_0) != 0;
  if (!opi_is_shared(s))
    return OPIPE_OK;
  s->inputs_travel = inputs;
  s->outputs_travel = outputs;
  if (s->env.places != NULL || !(inputs || outputs))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "session_open: flags 0x%x: inputs and outputs travel between the processes of a "
                  "team, and none is given",
                  flags);
}

static opipe_status read_params(opi_session *session, const opipe_session_params *p,
                                opipe_error *err) {
  static const opipe_session_params none = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes), .spin_us = UINT32_MAX};
  opi_setup *s = session->setup;
  if (p == NULL)
    p = &none;
  if (p->max_in_flight > IN_FLIGHT_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "session_open: max_in_flight %u, at most %d",
                    p->max_in_flight, IN_FLIGHT_MOST);
  }
  s->threads = p->threads;
  s->flags = p->flags;
  s->reference = (p->flags & OPIPE_SESSION_REFERENCE) != 0;
  s->max_in_flight = p->max_in_flight != 0 ? p->max_in_flight : 2 * s->plan->decided.n_stages;
  s->watchdog_ns = p->watchdog_ns != 0 ? p->watchdog_ns : WATCHDOG_NS;
  s->shapes->n_places = p->max_shapes != 0 ? p->max_shapes : SHAPES;
  if (s->shapes->n_places < PLACES_LEAST)
    s->shapes->n_places = PLACES_LEAST;
  if (s->plan->decided.binding.generation.context != 0) {
    const uint32_t n = opi_generation_classes(&s->plan->decided.binding.generation) + 1;
    const uint32_t n_homes = opi_states_homes(&s->plan->decided);
    const uint32_t groups =
        s->plan->decided.binding.generation.groups * (n_homes == 1 ? 1 : n_homes * HOMES_AHEAD);
    s->shapes->n_places = n > s->shapes->n_places ? n : s->shapes->n_places;
    s->max_in_flight = groups > s->max_in_flight ? groups : s->max_in_flight;
  }
  if (s->shapes->n_places > 65535) {
    return opi_fail(err, OPIPE_E_INVALID, "session_open: max_shapes %u, at most 65535",
                    s->shapes->n_places);
  }
  if ((p->flags & OPIPE_SESSION_CHECK_FINITE) != 0)
    s->compile_flags |= OPIPE_COMPILE_CHECK_FINITE;
  if ((p->flags & OPIPE_SESSION_POISON) != 0)
    s->compile_flags |= OPIPE_COMPILE_POISON;
  if ((p->flags & OPIPE_SESSION_NO_BACKEND_FUSE) != 0)
    s->compile_flags |= OPIPE_COMPILE_NO_FUSE;
  share_cores(session, p->spin_us);
  return read_travels(s, p->flags, err);
}

static opipe_status list_ranks(opi_setup *s, opipe_error *err) {
  const uint32_t n = s->plan->decided.n_ranks;
  bool *local = OPI_ARENA_ARRAY(&s->arena, bool, n);
  uint32_t *here = OPI_ARENA_ARRAY(&s->arena, uint32_t, n);
  if (local == NULL || here == NULL)
    return opi_fail_nomem(err, n * sizeof *here, "ranks");
  for (uint32_t r = 0; r < n; ++r) {
    local[r] = s->env.local == NULL || s->env.local[r];
    if (local[r])
      here[s->n_here++] = r;
  }
  s->local = local;
  s->here = here;
  return OPIPE_OK;
}

static opipe_status list_inputs(opi_setup *s, opipe_error *err) {
  const opi_graph *g = s->env.model->graph;
  s->n_inputs = g->n_inputs;
  s->n_outputs = g->n_outputs;
  s->inputs = OPI_ARENA_ARRAY(&s->arena, opi_input, s->n_inputs);
  s->output_names = OPI_ARENA_ARRAY(&s->arena, const char *, s->n_outputs);
  s->output_dtypes = OPI_ARENA_ARRAY(&s->arena, uint32_t, s->n_outputs);
  if (s->inputs == NULL || s->output_names == NULL || s->output_dtypes == NULL)
    return opi_fail_nomem(err, s->n_inputs * sizeof(opi_input), "inputs");
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    opi_input *input = &s->inputs[i];
    input->value = &g->values[g->inputs[i]];
    input->name = input->value->name;
    if (input->value->rank < 0 || input->value->rank > OPIPE_MAX_RANK) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED, "input '%s' has rank %d; 0 to %d are accepted",
                      input->name, input->value->rank, OPIPE_MAX_RANK);
    }
    s->n_dims += (uint32_t)input->value->rank;
    input->batch_axis = s->plan->decided.binding.batch_dim == NULL
                            ? -1
                            : opi_batch_axis(s->env.model, s->plan->decided.binding.batch_dim, i);
    if (input->batch_axis >= 0)
      ++s->n_batch_inputs;
    for (uint32_t p = 0; p < s->plan->decided.binding.n_pins; ++p) {
      if (strcmp(s->plan->decided.binding.pins[p].input, input->name) == 0)
        input->pin = &s->plan->decided.binding.pins[p];
    }
    input->valued = input->pin != NULL;
  }
  for (uint32_t o = 0; o < s->n_outputs; ++o)
    s->output_names[o] = g->values[g->outputs[o]].name;
  return OPIPE_OK;
}

/* ---- devices ---- */

/* The plan decides offsets of buffers, and which ranks write into each other's memory, for devices
 * of this alignment and kind of memory. */
static opipe_status check_device(const opi_device_spec *spec, const opipe_device_info *info,
                                 opipe_error *err) {
  const uint32_t host = OPIPE_DEVICE_HOST_MEMORY;
  if (spec->alignment != 0 && spec->alignment != info->alignment) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "the plan aligns buffers to %u bytes, the device to %u: make the plan again",
                    spec->alignment, info->alignment);
  }
  if ((spec->flags & host) != 0 && (info->flags & host) == 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "the plan counts on host memory (flags 0x%x), the device has none (flags "
                    "0x%x): make the plan again",
                    spec->flags, info->flags);
  }
  return OPIPE_OK;
}

static opipe_status open_rank(opi_setup *s, uint32_t place, opipe_error *err) {
  const uint32_t r = s->here[place];
  const opi_device_spec *spec = &s->plan->decided.devices[r];
  opi_rank *rank = &s->ranks[r];
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .index = spec->index,
      .memory_bytes = s->reference ? 0 : spec->memory_bytes,
      .threads = spec->threads,
      .spin_us = s->worker_spin_us,
      .options = spec->options == NULL || spec->options[0] == '\0' ? NULL : spec->options};
  rank->setup = s;
  rank->index = r;
  rank->place = place;
  rank->backend = s->env.backends[r].table;
  rank->instance = s->env.backends[r].self;
  OPI_TRY(opi_device_ask(&s->env.backends[r], spec->index, &info, err));
  OPI_TRY(check_device(spec, &info, err));
  rank->device_flags = info.flags;
  rank->alignment = info.alignment;
  OPI_TRY(OPI_MAKE_RANK(rank, device_open, &rank->device, err, rank->instance, &params));
  OPI_TRY(opi_rank_give_kernels(rank, err));
  OPI_TRY(OPI_MAKE_RANK(rank, queue_open, &rank->queue, err, rank->device));
  OPI_TRY(opi_lent_open(rank, err));
  if (s->plan->decided.n_offload != 0 && !s->reference)
    OPI_TRY(opi_mover_open(rank, err));
  if ((info.flags & OPIPE_DEVICE_SYNCHRONOUS) != 0)
    return OPIPE_OK;
  OPI_TRY(OPI_MAKE_RANK(rank, event_create, &rank->event, err, rank->device));
  return opi_ahead_open(rank, err);
}

/* Holds caps that several ranks have together, since a device knows only its own rank. A device on
 * which a rank has no cap is not limited. */
static opipe_status cap_together(opi_session *session, opipe_error *err) {
  opi_setup *s = session->setup;
  const opi_device_spec *devices = s->plan->decided.devices;
  const uint32_t n = s->plan->decided.n_ranks;
  bool shared = false;
  for (uint32_t r = 0; r < n; ++r)
    shared = shared || devices[r].memory_with != 0;
  if (!shared || s->reference)
    return OPIPE_OK;
  OPI_TRY(opi_budget_create(s->allocator, &session->caps, err));
  opi_budget_put_within(session->caps, s->env.budget);
  s->env.budget = session->caps;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    uint64_t sum = 0;
    bool capped = true;
    for (uint32_t other = 0; other < n; ++other) {
      if (!opi_is_one_device(&devices[other], &devices[r]))
        continue;
      capped = capped && devices[other].memory_bytes != 0;
      if (devices[other].memory_with == 0 && opi_add_u64(sum, devices[other].memory_bytes, &sum))
        sum = UINT64_MAX;
    }
    if (capped)
      OPI_TRY(opi_budget_cap(session->caps, s->env.backends[r].id, devices[r].index, sum, err));
  }
  return OPIPE_OK;
}

static opipe_status open_ranks(opi_setup *s, opipe_error *err) {
  s->ranks = opi_alloc_zero(s->allocator, s->plan->decided.n_ranks, sizeof *s->ranks);
  if (s->ranks == NULL)
    return opi_fail_nomem(err, s->plan->decided.n_ranks * sizeof *s->ranks, "ranks");
  for (uint32_t r = 0; r < s->plan->decided.n_ranks; ++r)
    s->ranks[r].worker = &s->engine->workers[r];
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    const opipe_status status = open_rank(s, i, err);
    if (status < 0) {
      (void)opi_error_prefix(err, "rank %u (device %s:%u): ", r, s->env.backends[r].id,
                             s->plan->decided.devices[r].index);
      return status;
    }
  }
  return OPIPE_OK;
}

static void close_rank(opi_rank *rank) {
  const opi_setup *s = rank->setup;
  if (s == NULL)
    return;
  opi_ahead_close(rank);
  opi_mover_close(rank);
  rank->backend->params_free(rank->params);
  opi_rank_give(rank, &rank->packed);
  opi_free(s->allocator, rank->packed_host, (size_t)rank->packed_host_bytes);
  rank->backend->event_destroy(rank->event);
  rank->backend->queue_close(rank->queue);
  for (opi_staging *at = rank->stagings; at != NULL; at = at->next)
    opi_pinned_give(opi_rank_backend(rank), rank->device, s->allocator, &at->memory);
  rank->backend->device_close(rank->device);
  if (s->env.budget != NULL) {
    opi_budget_release(s->env.budget, s->env.backends[rank->index].id,
                       s->plan->decided.devices[rank->index].index, rank->charged_bytes);
  }
}

/* ---- messages ---- */

static opipe_status open_world(opi_setup *s, opipe_error *err) {
  const opipe_world_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_world_params, board),
      .n_ranks = s->plan->decided.n_ranks,
      .options = s->env.transport_options,
      .local_ranks = s->here,
      .n_local_ranks = s->n_here == s->plan->decided.n_ranks ? 0 : s->n_here,
      .job = s->env.job,
      .board = s->env.board};
  OPI_TRY(OPI_MAKE_WIRE(s, world_open, &s->world, err, s->env.transport.self, &params));
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    const opipe_endpoint_params end = {
        .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved2),
        .rank = r,
        .backend = s->ranks[r].backend,
        .device = s->ranks[r].device,
        .queue = s->ranks[r].queue,
        .backend_self = s->env.backends[r].self,
        .backend_id = s->env.backends[r].id,
        .spin_us = s->spin_us,
        .device_index = s->plan->decided.devices[r].index};
    OPI_TRY(OPI_MAKE_WIRE(s, endpoint_open, &s->ranks[r].endpoint, err, s->world, &end));
  }
  return OPIPE_OK;
}

/* Ranks of other sessions bring plans of their own: are they the same? */
static opipe_status agree(opi_setup *s, opipe_error *err) {
  const uint32_t n = s->n_here;
  opi_agree_rank *ranks = opi_alloc_zero(s->allocator, n, sizeof *ranks);
  if (ranks == NULL)
    return opi_fail_nomem(err, n * sizeof *ranks, "ranks");
  for (uint32_t i = 0; i < n; ++i) {
    const opi_rank *rank = &s->ranks[s->here[i]];
    ranks[i] = (opi_agree_rank){
        .backend = opi_rank_backend(rank),
        .device = rank->device,
        .queue = rank->queue,
        .event = rank->event,
        .endpoint = rank->endpoint,
        .plan = {s->plan->hash[0], s->plan->hash[1]},
        .kernels = {s->plan->predicted.kernels == NULL ? 0 : s->plan->predicted.kernels->hash[0],
                    s->plan->predicted.kernels == NULL ? 0 : s->plan->predicted.kernels->hash[1]},
        .index = rank->index,
        .alignment = rank->alignment};
  }
  const opi_agree_params params = {.transport = &s->env.transport,
                                   .world = s->world,
                                   .ranks = ranks,
                                   .n_ranks_here = n,
                                   .n_ranks = s->plan->decided.n_ranks,
                                   .timeout_ns = s->watchdog_ns,
                                   .together = s->env.together,
                                   .allocator = s->allocator};
  const opipe_status status = opi_agree(&params, err);
  opi_free(s->allocator, ranks, n * sizeof *ranks);
  return status;
}

static void close_world(opi_setup *s) {
  for (uint32_t i = 0; s->ranks != NULL && i < s->n_here; ++i)
    s->transport->endpoint_close(s->ranks[s->here[i]].endpoint);
  s->transport->world_close(s->world);
}

/* ---- open and close ---- */

/* The layers' parts, in one block of memory. */
typedef struct whole {
  opi_session session;
  opi_setup setup;
  opi_shapes shapes;
  opi_engine engine;
} whole;

/* `own`, or why another session that holds ranks of this plan refuses. Others may wait for one that
 * refuses in the transport: they find the reason on the board, and have none of their own then. */
static opipe_status together(const opi_setup *s, const char *what, opipe_status own,
                             opipe_error *err) {
  const opi_together *t = &s->env.together;
  const opipe_board *board = s->env.board;
  const bool follows = own == OPIPE_E_PEER;
  opipe_error why = OPIPE_ERROR_INIT;
  if (t->agree == NULL)
    return own;
  if (own < 0 && !follows && board != NULL && err != NULL)
    (void)board->post(board->ctx, OPI_READY_REFUSED, err->message, strlen(err->message), NULL);
  const opipe_status status =
      t->agree(t->ctx, what, follows ? OPIPE_OK : own, follows ? &why : err);
  if (follows && status < 0)
    return opi_fail(err, status, "%s", why.message);
  return follows ? own : status;
}

/* Parameters, inputs, the engine, devices. */
static opipe_status open_parts(opi_session *session, const opipe_session_params *params,
                               opipe_error *err) {
  opi_setup *s = session->setup;
  const uint32_t spin_us = params == NULL ? UINT32_MAX : params->spin_us;
  OPI_TRY(list_ranks(s, err));
  OPI_TRY(read_params(session, params, err));
  OPI_TRY(opi_peers_check(s, err));
  OPI_TRY(list_inputs(s, err));
  OPI_TRY(opi_engine_open(session->engine, s, err));
  OPI_TRY(cap_together(session, err));
  OPI_TRY(open_ranks(s, err));
  OPI_TRY(opi_members_check(s, err));
  share_cores(session, spin_us); /* again, since devices may have taken cores */
  return OPIPE_OK;
}

/* The plan's own shape, and the requests that will run it. */
static opipe_status open_shape(opi_session *session, opipe_error *err) {
  opi_setup *s = session->setup;
  session->shapes->periodic =
      s->plan->decided.versions == OPIPE_VERSIONS_DOUBLE_BUFFERED && !s->reference;
  OPI_TRY(opi_streams_open(s, err));
  OPI_TRY(opi_shapes_open(session->shapes, err));
  OPI_TRY(opi_shapes_open_all(session->shapes, err));
  return opi_engine_build(session->engine, err);
}

static opipe_status open_requests(opi_session *session, opipe_error *err) {
  OPI_TRY(opi_session_ready(session->setup, err));
  for (uint32_t i = 0; i < session->shapes->n_places; ++i) {
    if (session->shapes->list[i] != NULL)
      OPI_TRY(opi_ways_find(session->shapes->list[i], err));
  }
  return opi_requests_open(session, err);
}

static opipe_status open_all(opi_session *session, const opipe_session_params *params,
                             opipe_error *err) {
  opi_setup *s = session->setup;
  OPI_TRY(together(s, "devices", open_parts(session, params, err), err));
  if (!s->reference)
    OPI_TRY(together(s, "transport", open_world(s, err), err));
  /* The processes of a team have compared plans and kernels already, and one that refuses says so
   * at the next call of all; here it would be waited for. */
  const bool compared = s->reference || s->env.together.agree != NULL;
  opipe_status status = compared ? OPIPE_OK : agree(s, err);
  if (status == OPIPE_OK)
    status = open_shape(session, err);
  OPI_TRY(together(s, "memory", status, err));
  status = opi_alike_check(session, err);
  if (status == OPIPE_OK)
    status = opi_peers_open(session, err);
  OPI_TRY(together(s, "letters", status, err));
  OPI_TRY(together(s, "requests", open_requests(session, err), err));
  if (s->env.together.told != NULL)
    s->env.together.told(s->env.together.ctx, opi_watch_tell, s);
  opi_model_relax(s->env.model); /* packed weights have been read */
  session->opened = true;
  return s->threads == OPIPE_THREADS_HOST || s->reference ? OPIPE_OK : opi_session_start(s, err);
}

opipe_status opi_session_open(const opi_session_env *env, const opipe_session_params *params,
                              opi_session **out_session, opipe_error *err) {
  whole *all = opi_alloc_zero(env->allocator, 1, sizeof *all);
  if (all == NULL)
    return opi_fail_nomem(err, sizeof *all, "a session");
  opi_session *session = &all->session;
  opi_setup *s = &all->setup;
  session->setup = all->shapes.setup = s;
  session->shapes = s->shapes = &all->shapes;
  session->engine = s->engine = &all->engine;
  all->shapes.labels_input = OPIPE_NONE;
  all->shapes.units_per_row = 1;
  s->env = *env;
  s->allocator = env->allocator;
  s->plan = env->plan;
  s->transport = env->transport.table;
  s->pid = opi_process_id();
  if (s->env.source.bind == NULL)
    s->env.source.bind = opi_bind;
  opi_arena_init(&s->arena, env->allocator, 0);
  opipe_status status = opi_requests_begin(session, err);
  if (status < 0) {
    opi_free(env->allocator, all, sizeof *all);
    return status;
  }
  status = open_all(session, params, err);
  if (status < 0) {
    opi_session_close(session);
    return status;
  }
  *out_session = session;
  return OPIPE_OK;
}

void opi_session_linger(opi_session *session) {
  opi_setup *s = session->setup;
  if (!session->opened || s->reference || opi_session_failed(s))
    return;
  if (session->shapes->weights != NULL)
    opi_train_leave_none(session);
  if (s->threads == OPIPE_THREADS_HOST) /* the host does not drive any more */
    session->lingers = opi_session_start(s, NULL) == OPIPE_OK;
}

void opi_session_stop(opi_session *session) {
  opi_setup *s = session->setup;
  opi_waits *waits = &session->waits;
  opipe_error why = OPIPE_ERROR_INIT;
  opi_peers_leave(session);
  (void)opi_fail(&why, OPIPE_E_CANCELLED, "the session was closed");
  atomic_store(&s->ending.closing, 1);
  opi_session_fail(s, s->n_here == 0 ? 0 : s->here[0], NULL, &why);
  opi_session_join(s);
  opi_session_settle(session);
  while (atomic_load(&waits->n_waiters) != 0) {
    opi_room_tell(session);
    opi_lock_take(&waits->lock);
    opi_lock_signal(&waits->lock);
    opi_lock_wait(&waits->lock, opi_clock_ns() + OPI_POLL_NS);
    opi_lock_give(&waits->lock);
  }
}

void opi_session_close(opi_session *session) {
  if (session == NULL || session->setup->pid != opi_process_id())
    return;
  opi_setup *s = session->setup;
  const opipe_allocator *allocator = s->allocator;
  /* Wait until no call is inside. */
  opi_session_stop(session);
  if (s->env.together.told != NULL)
    s->env.together.told(s->env.together.ctx, NULL, NULL);
  opi_requests_shut(session);
  opi_streams_shut(s);
  for (uint32_t i = 0; s->ranks != NULL && i < s->n_here; ++i)
    opi_ahead_end(&s->ranks[s->here[i]]);
  /* Free the backends' and the transport's objects, from the top down. */
  opi_streams_stop(s);
  opi_lent_stop_places(s);
  opi_requests_stop(session);
  opi_lent_stop_imports(s);
  opi_shapes_stop(session->shapes);
  opi_peers_close(session);
  close_world(s);
  opi_session_close_fds(session);
  for (uint32_t i = 0; s->ranks != NULL && i < s->n_here; ++i)
    close_rank(&s->ranks[s->here[i]]);
  /* Free host memory. */
  opi_shapes_free(session->shapes);
  opi_streams_free(s);
  opi_requests_end(session);
  opi_free(allocator, s->ranks, s->plan->decided.n_ranks * sizeof *s->ranks);
  opi_budget_free(session->caps);
  opi_arena_release(&s->arena);
  opi_free(allocator, session, sizeof(whole));
}
