/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of sequences, as the host calls them. */
#include <string.h>

#include "runtime/generate/generator.h"

enum { SAMPLING_ROOM = 1 << 20 }; /* bytes of the lists that a sampling's text may become */

opipe_status opi_generator_check(const opi_generator *g, const char *call, opipe_error *err) {
  if (!g->stopping)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_CANCELLED, "%s: the session is being closed", call);
}

/* ---- while telling: ends that wait for their time ---- */

/* Ends a turn: as failed with s->wish, or as cancelled. */
static void end_by_wish(opi_host_sequence *s) {
  if (s->end == OPIPE_END_NONE)
    (void)opi_turns_cancel(s->home->turns, s->number, NULL);
  s->wish = (opipe_error)OPIPE_ERROR_INIT;
  s->gives_up = false;
}

/* The turn that a fork was opened with is over. */
static void tell_late(opi_host_sequence *s) {
  const uint32_t ends = s->ends;
  s->ends = OPI_TURN_GOES_ON;
  opi_generator_events.on_end(s->home, s->number, ends, NULL);
}

static void close_sequence(opi_host_sequence *s) {
  end_by_wish(s);
  (void)opi_turns_release(s->home->turns, s->number, NULL);
  s->open = s->leaves = false;
  s->deadline_ns = UINT64_MAX;
}

void opi_generator_grant(opi_generator *g) {
  bool any = true;
  while (any) { /* an end may be told to a host that cancels another turn */
    any = false;
    for (uint32_t i = 0; i < g->n_sequences; ++i) {
      opi_host_sequence *s = &g->sequences[i];
      const bool ends = s->wish.status < 0 || s->gives_up;
      any = any || ends || s->leaves || s->ends != OPI_TURN_GOES_ON;
      if (s->ends != OPI_TURN_GOES_ON)
        tell_late(s);
      else if (ends)
        end_by_wish(s);
      else if (s->leaves)
        close_sequence(s);
    }
  }
}

void opi_generator_expire(opi_generator *g) {
  const uint64_t now = opi_clock_ns();
  g->next_deadline_ns = UINT64_MAX;
  for (uint32_t i = 0; i < g->n_sequences; ++i) {
    opi_host_sequence *s = &g->sequences[i];
    if (s->deadline_ns <= now) {
      (void)opi_fail(&s->wish, OPIPE_E_TIMEOUT, "the deadline passed after %u tokens", s->n_tokens);
      end_by_wish(s);
    }
    if (s->deadline_ns < g->next_deadline_ns)
      g->next_deadline_ns = s->deadline_ns;
  }
}

/* ---- opening ---- */

void opi_sequence_begin(opi_home *home, uint32_t number, const opi_host_sequence *as) {
  opi_host_sequence *s = &home->sequences[number];
  s->open = true;
  s->end = as->end;
  s->why = as->why;
  s->wish = (opipe_error)OPIPE_ERROR_INIT;
  s->gives_up = s->leaves = false;
  s->ends = OPI_TURN_GOES_ON;
  s->n_prompt = as->n_prompt;
  s->n_tokens = as->n_tokens;
  s->deadline_ns = as->deadline_ns;
  s->own = as->own;
  s->handle = opi_handle_pointer(opi_handle_slot_arm(s->slot));
}

/* A turn has been asked for. */
static void begin_turn(opi_generator *g, opi_host_sequence *s,
                       const opipe_generate_params *params) {
  const uint64_t now = params->deadline_ns == 0 ? 0 : opi_clock_ns();
  s->end = OPIPE_END_NONE;
  s->why = s->wish = (opipe_error)OPIPE_ERROR_INIT;
  s->gives_up = false;
  s->own = *params;
  s->n_prompt = opi_batch_info(opi_turns_batch(s->home->turns), s->number).n_ids;
  s->n_tokens = 0;
  s->deadline_ns = params->deadline_ns == 0 ? UINT64_MAX : opi_later_ns(now, params->deadline_ns);
  if (s->deadline_ns < g->next_deadline_ns)
    g->next_deadline_ns = s->deadline_ns;
}

static opipe_status read_sampling(const opi_generator *g, const opipe_generate_params *params,
                                  const char *call, opi_arena *arena, opi_sampling *out,
                                  opipe_error *err) {
  *out = opi_sampling_default;
  if (params->sampling == NULL)
    return OPIPE_OK;
  if (opi_sampling_read(params->sampling, strlen(params->sampling), g->params.facts.n_vocab, arena,
                        out, err) < 0)
    return opi_error_prefix(err, "%s: sampling: ", call);
  if (out->n > 1 && params->on_answer == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %u answers are asked for, but on_answer is NULL",
                    call, out->n);
  }
  return OPIPE_OK;
}

/* Is home a better one than home b for these ids? The one that knows more of their beginning,
 * unless it has so many turns more that its next ones have to wait; else the one with fewer turns.
 */
static bool is_better(const opi_home *a, const opi_home *b, const opipe_generate_params *params) {
  const opi_batch *of[2] = {opi_turns_batch(a->turns), opi_turns_batch(b->turns)};
  uint32_t known[2], turns[2];
  for (uint32_t i = 0; i < 2; ++i) {
    const opi_batch_counts counts = opi_batch_count(of[i]);
    turns[i] = counts.waiting + counts.active;
    known[i] = opi_kv_known(opi_batch_pool(of[i]), params->ids, params->n_ids, params->salt);
  }
  const uint32_t most = a->generator->params.facts.batch.active;
  if (known[0] != known[1] && turns[0] < most && turns[1] < most)
    return known[0] > known[1];
  return turns[0] < turns[1] || (turns[0] == turns[1] && known[0] > known[1]);
}

/* The best home that has not refused; NULL: all have. */
static opi_home *next_home(opi_generator *g, const opipe_generate_params *params) {
  opi_home *best = NULL;
  for (uint32_t i = 0; i < g->params.n_runners; ++i) {
    opi_home *h = &g->homes[i];
    const bool better = best == NULL || (params->n_ids > 0 && is_better(h, best, params));
    best = !h->refused && better ? h : best;
  }
  return best;
}

/* At the best home; where that has no room, at the next. */
static opipe_status submit(opi_generator *g, const opipe_generate_params *params,
                           const opi_sampling *sampling, opi_home **out_home, uint32_t *out_number,
                           opipe_error *err) {
  opipe_status status = OPIPE_E_LIMIT;
  for (uint32_t i = 0; i < g->params.n_runners; ++i)
    g->homes[i].refused = false;
  for (opi_home *h = NULL; status == OPIPE_E_LIMIT && (h = next_home(g, params)) != NULL;) {
    *out_home = h;
    h->refused = true;
    status = opi_turns_submit(h->turns, params->ids, params->n_ids, params->salt, sampling,
                              out_number, err);
  }
  return status;
}

static opipe_status open_locked(opi_generator *g, const opipe_generate_params *params,
                                const opi_sampling *sampling, opipe_sequence **out_sequence,
                                opipe_error *err) {
  uint32_t number = 0;
  opi_home *home = NULL;
  opi_host_sequence as = {.deadline_ns = UINT64_MAX};
  OPI_TRY(opi_generator_check(g, "session_generate", err));
  if (submit(g, params, sampling, &home, &number, err) < 0)
    return opi_error_prefix(err, "session_generate: ");
  opi_sequence_begin(home, number, &as);
  begin_turn(g, &home->sequences[number], params);
  *out_sequence = home->sequences[number].handle;
  opi_generator_kick(g);
  return OPIPE_OK;
}

opipe_status opi_sequence_open(opi_generator *g, const opipe_generate_params *params,
                               opipe_sequence **out_sequence, opipe_error *err) {
  opi_arena arena;
  opi_sampling sampling;
  opi_arena_init(&arena, g->params.allocator, SAMPLING_ROOM);
  opipe_status status = read_sampling(g, params, "session_generate", &arena, &sampling, err);
  if (status == OPIPE_OK)
    status = opi_generator_enter(g, "session_generate", err);
  if (status == OPIPE_OK) {
    status = open_locked(g, params, &sampling, out_sequence, err);
    opi_generator_leave(g);
  }
  opi_arena_release(&arena);
  return status;
}

static opipe_status append_locked(opi_host_sequence *s, const opipe_generate_params *params,
                                  const opi_sampling *sampling, opipe_error *err) {
  opi_generator *g = s->generator;
  OPI_TRY(opi_generator_check(g, "sequence_append", err));
  if (s->end == OPIPE_END_NONE) /* the scheduler may think it idle: its last tokens are told */
    return opi_fail(err, OPIPE_E_STATE, "sequence_append: a turn is under way");
  if (opi_turns_extend(s->home->turns, s->number, params->ids, params->n_ids, sampling, err) < 0)
    return opi_error_prefix(err, "sequence_append: ");
  begin_turn(g, s, params);
  opi_generator_kick(g);
  return OPIPE_OK;
}

opipe_status opi_sequence_append(opi_host_sequence *s, const opipe_generate_params *params,
                                 opipe_error *err) {
  opi_generator *g = s->generator;
  opi_arena arena;
  opi_sampling sampling;
  if (params->salt != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "sequence_append: salt is %llu, but a sequence keeps its "
                    "first one",
                    (unsigned long long)params->salt);
  }
  opi_arena_init(&arena, g->params.allocator, SAMPLING_ROOM);
  opipe_status status = read_sampling(g, params, "sequence_append", &arena, &sampling, err);
  if (status == OPIPE_OK)
    status = opi_generator_enter(g, "sequence_append", err);
  if (status == OPIPE_OK) {
    status = append_locked(s, params, params->sampling == NULL ? NULL : &sampling, err);
    opi_generator_leave(g);
  }
  opi_arena_release(&arena);
  return status;
}

/* ---- the rest ---- */

static opipe_status fork_locked(opi_host_sequence *s, const uint64_t *seed, void *ctx,
                                opipe_sequence **out_sequence, opipe_error *err) {
  opi_generator *g = s->generator;
  uint32_t number = 0, ends = OPI_TURN_GOES_ON;
  OPI_TRY(opi_generator_check(g, "sequence_fork", err));
  if (opi_turns_fork(s->home->turns, s->number, seed, &number, &ends, err) < 0)
    return opi_error_prefix(err, "sequence_fork: ");
  opi_host_sequence *other = &s->home->sequences[number];
  opi_sequence_begin(s->home, number, s);
  if (s->end == OPIPE_END_NONE) {
    other->n_tokens = opi_batch_info(opi_turns_batch(s->home->turns), number).n_ids - s->n_prompt -
                      opi_turns_info(s->home->turns, number).n_held;
  }
  other->ends = ends;
  other->own.ctx = ctx;
  *out_sequence = other->handle;
  opi_generator_kick(g);
  return OPIPE_OK;
}

opipe_status opi_sequence_fork(opi_host_sequence *s, const uint64_t *seed, void *ctx,
                               opipe_sequence **out_sequence, opipe_error *err) {
  OPI_TRY(opi_generator_enter(s->generator, "sequence_fork", err));
  const opipe_status status = fork_locked(s, seed, ctx, out_sequence, err);
  opi_generator_leave(s->generator);
  return status;
}

static opipe_status truncate_locked(opi_host_sequence *s, uint32_t n_ids, opipe_error *err) {
  OPI_TRY(opi_generator_check(s->generator, "sequence_truncate", err));
  if (s->end == OPIPE_END_NONE)
    return opi_fail(err, OPIPE_E_STATE, "sequence_truncate: a turn is under way");
  if (opi_turns_truncate(s->home->turns, s->number, n_ids, err) < 0)
    return opi_error_prefix(err, "sequence_truncate: ");
  return OPIPE_OK;
}

opipe_status opi_sequence_truncate(opi_host_sequence *s, uint32_t n_ids, opipe_error *err) {
  OPI_TRY(opi_generator_enter(s->generator, "sequence_truncate", err));
  const opipe_status status = truncate_locked(s, n_ids, err);
  opi_generator_leave(s->generator);
  return status;
}

opipe_status opi_sequence_draft(opi_host_sequence *s, const uint32_t *ids, uint32_t n_ids,
                                opipe_error *err) {
  opi_generator *g = s->generator;
  OPI_TRY(opi_generator_enter(g, "sequence_draft", err));
  opipe_status status = opi_generator_check(g, "sequence_draft", err);
  if (status == OPIPE_OK && opi_turns_draft(s->home->turns, s->number, ids, n_ids, err) < 0)
    status = opi_error_prefix(err, "sequence_draft: ");
  opi_generator_leave(g);
  return status;
}

opipe_status opi_sequence_cancel(opi_host_sequence *s, opipe_error *err) {
  opi_generator *g = s->generator;
  opipe_status status = OPIPE_OK;
  OPI_TRY(opi_generator_enter(g, "sequence_cancel", err));
  if (g->telling) {
    s->gives_up = s->end == OPIPE_END_NONE;
  } else {
    opi_generator_tell(g);
    status = opi_turns_cancel(s->home->turns, s->number, err);
    opi_generator_told(g);
  }
  opi_generator_kick(g);
  opi_generator_leave(g);
  return status;
}

void opi_sequence_leave(opi_host_sequence *s) {
  opi_generator *g = s->generator;
  opi_lock_take(&g->lock);
  if (g->telling && opi_generator_in_callback()) {
    s->gives_up = s->end == OPIPE_END_NONE;
  } else {
    opi_generator_tell(g);
    (void)opi_turns_cancel(s->home->turns, s->number, NULL);
    opi_generator_told(g);
  }
  opi_generator_kick(g);
  opi_lock_give(&g->lock);
}

void opi_sequence_end(void *sequence) {
  opi_host_sequence *s = sequence;
  opi_generator *g = s->generator;
  opi_lock_take(&g->lock);
  s->leaves = true;
  if (!g->telling) {
    opi_generator_tell(g);
    opi_generator_told(g);
  }
  opi_generator_kick(g);
  opi_lock_give(&g->lock);
}

opipe_status opi_sequence_wait(opi_host_sequence *s, uint32_t n_tokens, uint64_t timeout_ns,
                               opipe_error *err) {
  opi_generator *g = s->generator;
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  opipe_status status = OPIPE_OK;
  opi_lock_take(&g->lock);
  for (;;) {
    if (g->params.driven)
      opi_generator_pump(g);
    if (s->says == OPI_SAYS_NOTHING && (s->end != OPIPE_END_NONE || s->n_tokens >= n_tokens))
      break; /* and its callbacks have returned */
    status = opi_generator_check(g, "sequence_wait", err);
    if (status == OPIPE_OK && opi_clock_ns() >= until) {
      status =
          opi_fail(err, OPIPE_E_TIMEOUT, "sequence_wait: %u tokens after %llu ms, waited for %u",
                   s->n_tokens, (unsigned long long)(timeout_ns / 1000000), n_tokens);
    }
    if (status < 0)
      break;
    opi_lock_wait(&g->lock, until < g->next_deadline_ns ? until : g->next_deadline_ns);
  }
  if (status == OPIPE_OK && s->n_tokens < n_tokens && s->end == OPIPE_END_FAILED)
    status = opi_fail(err, s->why.status, "sequence_wait: %s", s->why.message);
  if (status == OPIPE_OK && s->n_tokens < n_tokens && s->end == OPIPE_END_CANCELLED)
    status = opi_fail(err, OPIPE_E_CANCELLED, "sequence_wait: the turn was cancelled");
  opi_lock_give(&g->lock);
  return status;
}

opipe_status opi_sequence_describe(opi_host_sequence *s, opipe_sequence_info *out,
                                   opipe_error *err) {
  static const uint32_t states[] = {[OPI_SEQUENCE_FREE] = OPIPE_SEQUENCE_IDLE,
                                    [OPI_SEQUENCE_IDLE] = OPIPE_SEQUENCE_IDLE,
                                    [OPI_SEQUENCE_WAITING] = OPIPE_SEQUENCE_WAITING,
                                    [OPI_SEQUENCE_ACTIVE] = OPIPE_SEQUENCE_ACTIVE};
  opi_generator *g = s->generator;
  OPI_TRY(opi_generator_enter(g, "sequence_info", err));
  const opi_sequence_info info = opi_batch_info(opi_turns_batch(s->home->turns), s->number);
  const opi_turn_info turn = opi_turns_info(s->home->turns, s->number);
  /* Others see what callbacks have been told once these have returned. */
  const uint32_t hidden = opi_generator_in_callback() ? OPI_SAYS_NOTHING : s->says;
  const uint32_t end = hidden == OPI_SAYS_END ? OPIPE_END_NONE : s->end;
  *out = (opipe_sequence_info){.state = states[info.state],
                               .end = end,
                               .status = end == OPIPE_END_FAILED ? s->why.status : OPIPE_OK,
                               .n_ids = info.n_ids,
                               .n_prompt = s->n_prompt,
                               .n_tokens = s->n_tokens - (hidden == OPI_SAYS_TOKEN),
                               .branch = turn.branch,
                               .n_evicted = info.n_evicted,
                               .n_reused = info.n_reused,
                               .n_drafted = turn.n_drafted,
                               .n_accepted = turn.n_accepted};
  opi_generator_leave(g);
  return OPIPE_OK;
}

opipe_status opi_sequence_ids(opi_host_sequence *s, uint32_t first, uint32_t n_ids, uint32_t *out,
                              opipe_error *err) {
  opi_generator *g = s->generator;
  uint32_t n = 0;
  opipe_status status = OPIPE_OK;
  OPI_TRY(opi_generator_enter(g, "sequence_ids", err));
  const uint32_t *ids = opi_turns_ids(s->home->turns, s->number, &n);
  if (first > n || n_ids > n - first) {
    status = opi_fail(err, OPIPE_E_INVALID, "sequence_ids: %u ids from %u on, it has %u", n_ids,
                      first, n);
  } else if (n_ids > 0) {
    memcpy(out, ids + first, n_ids * sizeof *out);
  }
  opi_generator_leave(g);
  return status;
}
