/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the engine: ring, cursors, threads. */
#include <stdio.h>

#include "partition/program/states.h"
#include "runtime/executor/steps.h"

/* Room for the requests that may be under way at once, and one more. Training may need two entries
 * for each: a body, and the epilogue that ends it. */
static uint32_t ring_room(const opi_setup *s) {
  if (s->plan->decided.n_states != 0 || s->plan->rows != NULL)
    return s->max_in_flight * opi_states_homes(&s->plan->decided) + 1; /* with gaps */
  return s->engine->runner->n_items * (s->max_in_flight + 1);
}

opipe_status opi_engine_open(opi_engine *engine, opi_setup *s, opipe_error *err) {
  const uint32_t n_ranks = s->plan->decided.n_ranks;
  engine->setup = s;
  s->engine = engine;
  engine->runner = opi_session_trains(s) ? &opi_step_runner : &opi_request_runner;
  engine->ring_room = ring_room(s);
  engine->ring = OPI_ARENA_ARRAY(&s->arena, opi_request *, engine->ring_room);
  engine->items = OPI_ARENA_ARRAY(&s->arena, opi_item, engine->ring_room);
  engine->cursors = OPI_ARENA_ARRAY(&s->arena, opi_cursor, n_ranks);
  engine->workers = OPI_ARENA_ARRAY(&s->arena, opi_worker, n_ranks);
  if (engine->ring == NULL || engine->items == NULL || engine->cursors == NULL ||
      engine->workers == NULL)
    return opi_fail_nomem(err, engine->ring_room * sizeof *engine->items, "requests");
  for (uint32_t r = 0; r < n_ranks; ++r) {
    engine->workers[r].cursor = &engine->cursors[r];
    engine->workers[r].peer = OPIPE_NONE;
    atomic_init(&engine->workers[r].fd, -1);
    atomic_init(&engine->workers[r].driven_ns, opi_clock_ns());
  }
  s->above = (opi_device_above){.watch = opi_watch};
  return OPIPE_OK;
}

opipe_status opi_engine_build(opi_engine *engine, opipe_error *err) {
  opi_setup *s = engine->setup;
  const uint32_t n = s->shapes->list[0]->compiled->n_instances;
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    engine->cursors[r].reducing = OPI_ARENA_ARRAY(&s->arena, uint32_t, n);
    if (engine->cursors[r].reducing == NULL)
      return opi_fail_nomem(err, n * sizeof(uint32_t), "sums");
  }
  return OPIPE_OK;
}

opipe_status opi_session_start(opi_setup *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const uint32_t r = s->here[i];
    char name[16];
    (void)snprintf(name, sizeof name, "opipe-r%u", r % 100000);
    OPI_TRY(
        opi_thread_start(&s->engine->workers[r].thread, name, opi_rank_thread, &s->ranks[r], err));
  }
  return OPIPE_OK;
}

void opi_session_join(opi_setup *s) {
  for (uint32_t i = 0; s->ranks != NULL && i < s->n_here; ++i)
    opi_thread_join(&s->engine->workers[s->here[i]].thread);
}

void opi_rank_rest(opi_rank *rank) {
  opi_rank_note(rank, OPI_DOING_NOTHING, NULL, 0);
}
