/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences and their states; pass.c chooses rows. */
#include <math.h>
#include <string.h>

#include "runtime/generate/schedule.h"

/* ---- opening ---- */

typedef struct batch_layout {
  uint64_t sequences, passes, entries, chosen, ids, drafts, n_bytes;
  uint32_t context;
} batch_layout;

static opipe_status check_params(const opi_batch_params *p, opipe_error *err) {
  bool times = isfinite(p->key_time) && p->key_time >= 0 && isfinite(p->gap) && p->gap >= 0 &&
               isfinite(p->slice_time) && p->slice_time >= 0;
  for (uint32_t c = 0; c < OPI_PASS_CLASSES; ++c)
    times = times && isfinite(p->class_time[c]) && p->class_time[c] >= 0;
  if (p->active == 0 || p->rows == 0 || p->rows > 1 << 20 || p->groups == 0 ||
      p->groups > 1 << 16 || p->draft > 1 << 16) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "passes of %u rows, %u sequences, %u in flight, drafts of %u: each but the "
                    "last must be at least 1, and rows at most 2^20, the others 2^16",
                    p->rows, p->active, p->groups, p->draft);
  }
  if (!times) {
    return opi_fail(err, OPIPE_E_INVALID, "times of passes must be numbers from 0 on, gap (%g) too",
                    p->gap);
  }
  return OPIPE_OK;
}

/* Everything but the pool. */
static opipe_status lay_out(const opi_batch_params *p, batch_layout *out, opipe_error *err) {
  batch_layout l = {.n_bytes = sizeof(opi_batch)};
  const uint64_t all = (uint64_t)p->pool.n_pages * p->pool.page;
  const uint64_t n = p->pool.n_sequences, slots = 2 * (uint64_t)p->groups;
  OPI_TRY(check_params(p, err));
  l.context = all < p->pool.context ? (uint32_t)all : p->pool.context;
  if (!opi_block_place(&l.n_bytes, n, 1, sizeof(opi_batch_sequence), &l.sequences) ||
      !opi_block_place(&l.n_bytes, slots, 1, sizeof(opi_pass), &l.passes) ||
      !opi_block_place(&l.n_bytes, slots, p->rows, sizeof(opi_pass_entry), &l.entries) ||
      !opi_block_place(&l.n_bytes, n, 1, sizeof(uint32_t), &l.chosen) ||
      !opi_block_place(&l.n_bytes, n, l.context, sizeof(uint32_t), &l.ids) ||
      !opi_block_place(&l.n_bytes, n, p->draft, sizeof(uint32_t), &l.drafts)) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u sequences of %u tokens: their tables exceed memory",
                    p->pool.n_sequences, l.context);
  }
  *out = l;
  return OPIPE_OK;
}

opipe_status opi_batch_bytes(const opi_batch_params *params, uint64_t *out_bytes,
                             opipe_error *err) {
  batch_layout l;
  uint64_t of_pool = 0;
  OPI_TRY(opi_kv_bytes(&params->pool, &of_pool, err));
  OPI_TRY(lay_out(params, &l, err));
  *out_bytes = l.n_bytes + of_pool;
  return OPIPE_OK;
}

opipe_status opi_batch_create(const opipe_allocator *allocator, const opi_batch_params *params,
                              opi_batch **out, opipe_error *err) {
  batch_layout l;
  opi_kv *pool = NULL;
  OPI_TRY(lay_out(params, &l, err));
  OPI_TRY(opi_kv_create(allocator, &params->pool, &pool, err));
  char *block = opi_alloc_zero(allocator, 1, (size_t)l.n_bytes);
  if (block == NULL) {
    opi_kv_free(pool);
    return opi_fail_nomem(err, l.n_bytes, "tables of sequences");
  }
  opi_batch *batch = (opi_batch *)(void *)block;
  batch->allocator = allocator;
  batch->params = *params;
  batch->n_bytes = l.n_bytes;
  batch->pool = pool;
  batch->context = l.context;
  batch->sequences = (opi_batch_sequence *)(void *)(block + l.sequences);
  batch->passes = (opi_pass *)(void *)(block + l.passes);
  batch->entries = (opi_pass_entry *)(void *)(block + l.entries);
  batch->chosen = (uint32_t *)(void *)(block + l.chosen);
  batch->ids = (uint32_t *)(void *)(block + l.ids);
  batch->drafts = (uint32_t *)(void *)(block + l.drafts);
  *out = batch;
  return OPIPE_OK;
}

void opi_batch_free(opi_batch *batch) {
  if (batch == NULL)
    return;
  opi_kv_free(batch->pool);
  opi_free(batch->allocator, batch, (size_t)batch->n_bytes);
}

uint32_t opi_batch_context(const opi_batch *batch) {
  return batch->context;
}

const opi_kv *opi_batch_pool(const opi_batch *batch) {
  return batch->pool;
}

uint32_t *opi_batch_ids(opi_batch *batch, uint32_t sequence) {
  return batch->ids + (size_t)sequence * batch->context;
}

/* ---- sequences ---- */

static const char *const states[] = {"not open", "idle", "waiting", "active"};

static opipe_status get(opi_batch *batch, uint32_t sequence, opi_batch_sequence **out,
                        opipe_error *err) {
  if (sequence >= batch->params.pool.n_sequences ||
      batch->sequences[sequence].state == OPI_SEQUENCE_FREE)
    return opi_fail(err, OPIPE_E_STATE, "sequence %u is not open", sequence);
  *out = &batch->sequences[sequence];
  return OPIPE_OK;
}

static opipe_status get_idle(opi_batch *batch, uint32_t sequence, opi_batch_sequence **out,
                             opipe_error *err) {
  OPI_TRY(get(batch, sequence, out, err));
  if ((*out)->state == OPI_SEQUENCE_IDLE)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_STATE, "sequence %u is %s, its turn has to end first", sequence,
                  states[(*out)->state]);
}

static opipe_status find_free(const opi_batch *batch, uint32_t *out, opipe_error *err) {
  const uint32_t n = batch->params.pool.n_sequences;
  for (*out = 0; *out < n; ++*out) {
    if (batch->sequences[*out].state == OPI_SEQUENCE_FREE)
      return OPIPE_OK;
  }
  return opi_fail(err, OPIPE_E_LIMIT, "%u sequences are open, no more are possible", n);
}

/* n_old ids and n_ids more, behind which one is sampled. */
static opipe_status check_ids(const opi_batch *batch, uint32_t n_old, uint32_t n_ids,
                              opipe_error *err) {
  const uint64_t n = (uint64_t)n_old + n_ids + 1;
  if (n_ids == 0)
    return opi_fail(err, OPIPE_E_INVALID, "a prompt without ids");
  if (n <= batch->context)
    return OPIPE_OK;
  if (batch->context < batch->params.pool.context) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "a prompt that makes %llu tokens with the first of its answer, all %u pages "
                    "hold %u",
                    (unsigned long long)n, batch->params.pool.n_pages, batch->context);
  }
  return opi_fail(err, OPIPE_E_LIMIT,
                  "a prompt that makes %llu tokens with the first of its answer, the context has "
                  "%u",
                  (unsigned long long)n, batch->context);
}

static void wait_with(opi_batch *batch, opi_batch_sequence *s) {
  s->state = OPI_SEQUENCE_WAITING;
  s->order = ++batch->last_order;
}

/* A free one keeps its counters of turns and stays, since passes in flight may know them. */
static void clear(opi_batch_sequence *s) {
  *s = (opi_batch_sequence){.turn = s->turn + 1, .stay = s->stay + 1};
}

opipe_status opi_batch_submit(opi_batch *batch, const uint32_t *ids, uint32_t n_ids, uint64_t salt,
                              uint32_t *out_sequence, opipe_error *err) {
  uint32_t sequence = 0;
  OPI_TRY(check_ids(batch, 0, n_ids, err));
  OPI_TRY(find_free(batch, &sequence, err));
  opi_batch_sequence *s = &batch->sequences[sequence];
  memcpy(opi_batch_ids(batch, sequence), ids, n_ids * sizeof *ids);
  clear(s);
  s->n_ids = n_ids;
  s->salt = salt;
  wait_with(batch, s);
  *out_sequence = sequence;
  return OPIPE_OK;
}

opipe_status opi_batch_extend(opi_batch *batch, uint32_t sequence, const uint32_t *ids,
                              uint32_t n_ids, opipe_error *err) {
  opi_batch_sequence *s = NULL;
  OPI_TRY(get_idle(batch, sequence, &s, err));
  OPI_TRY(check_ids(batch, s->n_ids, n_ids, err));
  memcpy(opi_batch_ids(batch, sequence) + s->n_ids, ids, n_ids * sizeof *ids);
  s->n_ids += n_ids;
  wait_with(batch, s);
  return OPIPE_OK;
}

opipe_status opi_batch_truncate(opi_batch *batch, uint32_t sequence, uint32_t n_ids,
                                opipe_error *err) {
  opi_batch_sequence *s = NULL;
  OPI_TRY(get_idle(batch, sequence, &s, err));
  if (n_ids == 0 || n_ids > s->n_ids) {
    return opi_fail(err, OPIPE_E_INVALID, "sequence %u is to keep %u tokens, it has %u", sequence,
                    n_ids, s->n_ids);
  }
  s->n_ids = n_ids;
  return OPIPE_OK;
}

opipe_status opi_batch_fork(opi_batch *batch, uint32_t sequence, uint32_t *out_sequence,
                            opipe_error *err) {
  opi_batch_sequence *s = NULL;
  uint32_t other = 0;
  OPI_TRY(get(batch, sequence, &s, err));
  if (s->n_in_flight > 0) {
    return opi_fail(err, OPIPE_E_STATE, "sequence %u has rows in %u passes in flight", sequence,
                    s->n_in_flight);
  }
  OPI_TRY(find_free(batch, &other, err));
  opi_batch_sequence *o = &batch->sequences[other];
  const uint32_t turn = o->turn + 1, stay = o->stay + 1;
  /* Before the last row of a prompt both would fill the same pages. */
  const bool filled = s->due || opi_kv_tokens(batch->pool, sequence) < s->n_ids;
  const bool fits = batch->n_active < batch->params.active && filled;
  if (s->state == OPI_SEQUENCE_ACTIVE && fits)
    OPI_TRY(opi_kv_fork(batch->pool, sequence, other, err));
  *o = *s;
  o->turn = turn;
  o->stay = stay;
  o->n_evicted = o->n_reused = 0;
  o->order = ++batch->last_order;
  memcpy(opi_batch_ids(batch, other), opi_batch_ids(batch, sequence), s->n_ids * sizeof(uint32_t));
  memcpy(batch->drafts + (size_t)other * batch->params.draft,
         batch->drafts + (size_t)sequence * batch->params.draft, s->n_draft * sizeof(uint32_t));
  if (s->state == OPI_SEQUENCE_ACTIVE && fits)
    ++batch->n_active;
  if (s->state == OPI_SEQUENCE_ACTIVE && !fits) {
    o->state = OPI_SEQUENCE_WAITING;
    o->n_rows = 0;
    o->due_stays = false;
  }
  *out_sequence = other;
  return OPIPE_OK;
}

/* Shares pages with `from` up to all but the last of n_ids, if their rows have been computed. */
static bool share_pages(opi_batch *batch, uint32_t from, uint32_t to, uint32_t n_ids) {
  const opi_batch_sequence *s = &batch->sequences[from];
  const uint32_t n_computed = s->due && s->due_stays ? opi_kv_tokens(batch->pool, from)
                                                     : opi_kv_computed(batch->pool, from);
  if (s->state != OPI_SEQUENCE_ACTIVE || batch->n_active >= batch->params.active || n_ids < 2 ||
      n_computed < n_ids - 1 || opi_kv_fork(batch->pool, from, to, NULL) != OPIPE_OK)
    return false;
  opi_kv_truncate(batch->pool, to, n_ids - 1);
  return true;
}

opipe_status opi_batch_branch(opi_batch *batch, uint32_t sequence, uint32_t n_ids, bool goes_on,
                              uint32_t *out_sequence, opipe_error *err) {
  const opi_batch_params *p = &batch->params;
  opi_batch_sequence *s = NULL;
  uint32_t other = 0;
  OPI_TRY(get(batch, sequence, &s, err));
  OPI_TRY(find_free(batch, &other, err));
  opi_batch_sequence *o = &batch->sequences[other];
  clear(o);
  memcpy(opi_batch_ids(batch, other), opi_batch_ids(batch, sequence), n_ids * sizeof(uint32_t));
  o->n_ids = n_ids;
  o->salt = s->salt;
  o->state = OPI_SEQUENCE_IDLE;
  *out_sequence = other;
  if (!goes_on)
    return OPIPE_OK;
  if (n_ids == s->n_ids && s->n_draft > 0) {
    o->n_draft = s->n_draft;
    memcpy(batch->drafts + (size_t)other * p->draft, batch->drafts + (size_t)sequence * p->draft,
           s->n_draft * sizeof(uint32_t));
  }
  wait_with(batch, o);
  if (share_pages(batch, sequence, other, n_ids)) {
    o->state = OPI_SEQUENCE_ACTIVE;
    o->n_rows = n_ids - 1;
    ++batch->n_active;
  }
  return OPIPE_OK;
}

void opi_batch_leave(opi_batch *batch, uint32_t sequence, bool keep) {
  opi_batch_sequence *s = &batch->sequences[sequence];
  if (s->state == OPI_SEQUENCE_ACTIVE)
    --batch->n_active;
  opi_kv_end(batch->pool, sequence, keep);
  ++s->stay;
  s->n_rows = 0;
  s->due_stays = false;
}

/* The turn has ended: nothing of it is in flight or due. */
static void rest(opi_batch *batch, uint32_t sequence, bool keep) {
  opi_batch_sequence *s = &batch->sequences[sequence];
  opi_batch_leave(batch, sequence, keep);
  s->state = OPI_SEQUENCE_IDLE;
  ++s->turn;
  s->n_in_flight = 0;
  s->n_draft = 0;
  s->due = false;
}

opipe_status opi_batch_stop(opi_batch *batch, uint32_t sequence, bool keep, opipe_error *err) {
  opi_batch_sequence *s = NULL;
  OPI_TRY(get(batch, sequence, &s, err));
  rest(batch, sequence, keep);
  return OPIPE_OK;
}

opipe_status opi_batch_release(opi_batch *batch, uint32_t sequence, opipe_error *err) {
  opi_batch_sequence *s = NULL;
  OPI_TRY(get(batch, sequence, &s, err));
  rest(batch, sequence, true);
  clear(s);
  return OPIPE_OK;
}

opipe_status opi_batch_draft(opi_batch *batch, uint32_t sequence, const uint32_t *ids,
                             uint32_t n_ids, opipe_error *err) {
  opi_batch_sequence *s = NULL;
  OPI_TRY(get(batch, sequence, &s, err));
  if (s->due || s->n_in_flight > 0 || s->state == OPI_SEQUENCE_IDLE) {
    return opi_fail(err, OPIPE_E_STATE, "a draft for sequence %u, which is %s", sequence,
                    s->state == OPI_SEQUENCE_IDLE ? "idle" : "being computed");
  }
  if (n_ids > batch->params.draft) {
    return opi_fail(err, OPIPE_E_LIMIT, "a draft of %u ids, at most %u are possible", n_ids,
                    batch->params.draft);
  }
  if (n_ids > 0)
    memcpy(batch->drafts + (size_t)sequence * batch->params.draft, ids, n_ids * sizeof *ids);
  s->n_draft = n_ids;
  return OPIPE_OK;
}

opi_sequence_info opi_batch_info(const opi_batch *batch, uint32_t sequence) {
  const opi_batch_sequence *s = &batch->sequences[sequence];
  return (opi_sequence_info){.state = s->state,
                             .n_ids = s->n_ids,
                             .n_computed = s->n_rows,
                             .n_in_flight = s->n_in_flight,
                             .n_draft = s->n_draft,
                             .due = s->due,
                             .n_evicted = s->n_evicted,
                             .n_reused = s->n_reused};
}

opi_batch_counts opi_batch_count(const opi_batch *batch) {
  opi_batch_counts counts = {.active = batch->n_active,
                             .in_flight = (uint32_t)(batch->n_made - batch->n_done),
                             .passes = batch->n_made,
                             .rows = batch->n_rows,
                             .evicted = batch->n_evicted};
  for (uint32_t i = 0; i < batch->params.pool.n_sequences; ++i) {
    counts.open += batch->sequences[i].state != OPI_SEQUENCE_FREE;
    counts.waiting += batch->sequences[i].state == OPI_SEQUENCE_WAITING;
  }
  return counts;
}

/* ---- ends of passes ---- */

const opi_pass *opi_batch_done(opi_batch *batch) {
  if (batch->n_done == batch->n_made)
    return NULL;
  opi_pass *pass = &batch->passes[++batch->n_done % (2 * batch->params.groups)];
  for (uint32_t i = 0; i < pass->n_entries; ++i) {
    opi_pass_entry *e = &pass->entries[i];
    opi_batch_sequence *s = &batch->sequences[e->sequence];
    e->live = e->turn == s->turn;
    if (!e->live)
      continue;
    --s->n_in_flight;
    if (e->n_wanted > 0) {
      s->due = true;
      s->due_stays = e->stay == s->stay;
    } else if (e->stay == s->stay) {
      opi_kv_commit(batch->pool, e->sequence, e->first + e->n_rows);
    }
  }
  return pass;
}

opipe_status opi_batch_accept(opi_batch *batch, uint32_t sequence, const uint32_t *ids,
                              uint32_t n_ids, bool goes_on, opipe_error *err) {
  opi_batch_sequence *s = NULL;
  OPI_TRY(get(batch, sequence, &s, err));
  if (!s->due)
    return opi_fail(err, OPIPE_E_STATE, "no ids of sequence %u are due", sequence);
  if (n_ids == 0 || n_ids > s->n_draft + 1 || n_ids > batch->context - s->n_ids) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "%u ids for sequence %u, which had a draft of %u and has %u of %u tokens",
                    n_ids, sequence, s->n_draft, s->n_ids, batch->context);
  }
  memmove(opi_batch_ids(batch, sequence) + s->n_ids, ids, n_ids * sizeof *ids);
  s->n_ids += n_ids;
  s->n_draft = 0;
  s->due = false;
  if (s->due_stays) { /* its rows up to the last id that was right */
    opi_kv_truncate(batch->pool, sequence, s->n_ids - 1);
    opi_kv_commit(batch->pool, sequence, s->n_ids - 1);
    s->n_rows = s->n_ids - 1;
    s->due_stays = false;
  }
  if (!goes_on)
    rest(batch, sequence, true);
  return OPIPE_OK;
}
