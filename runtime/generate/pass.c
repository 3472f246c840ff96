/* SPDX-License-Identifier: Apache-2.0 */
/* Making a pass: rows of sequences that generate, sequences that enter, slices of prompts, and
 * drafts in what is left. */
#include <string.h>

#include "runtime/generate/schedule.h"

/* Rows up to its last id that no pass has. */
static uint32_t rows_left(const opi_batch_sequence *s) {
  return s->n_ids > s->n_rows ? s->n_ids - s->n_rows : 0;
}

static uint64_t keys_of(uint32_t first, uint32_t n_rows) {
  return (uint64_t)n_rows * first + (uint64_t)n_rows * ((uint64_t)n_rows + 1) / 2;
}

static double time_of(const opi_batch_params *p, uint32_t n_rows, uint64_t n_keys) {
  uint32_t c = 0;
  while (c + 1 < OPI_PASS_CLASSES && (UINT64_C(1) << c) < n_rows)
    ++c;
  return p->class_time[c] + p->key_time * (double)n_keys;
}

/* Most rows from `first` on, up to `most`, with which a pass that has n_rows and n_keys already
 * takes no longer than `limit`; 0: any. */
static uint32_t rows_within(const opi_batch_params *p, double limit, uint32_t n_rows,
                            uint64_t n_keys, uint32_t first, uint32_t most) {
  uint32_t low = 0, high = most;
  if (limit == 0)
    return most;
  while (low < high) {
    const uint32_t n = low + (high - low + 1) / 2;
    if (time_of(p, n_rows + n, n_keys + keys_of(first, n)) <= limit)
      low = n;
    else
      high = n - 1;
  }
  return low;
}

static uint32_t rows_in_gap(const opi_batch_params *p, const opi_pass *pass, uint32_t first,
                            uint32_t most) {
  return rows_within(p, p->gap, pass->n_rows, pass->n_keys, first, most);
}

/* Rows of a prompt's slice, by the plan's rule; one at least. */
static uint32_t slice_most(const opi_batch_params *p, uint32_t first, uint32_t most) {
  const uint32_t rows = p->slice_rows == 0 || p->slice_rows > most ? most : p->slice_rows;
  const uint32_t n = rows_within(p, p->slice_time, 0, 0, first, rows);
  return n == 0 && rows > 0 ? 1 : n;
}

/* The waiting (or active) sequence that has waited least or longest; OPI_NO_SEQUENCE: none. */
static uint32_t by_age(const opi_batch *batch, uint32_t state, bool youngest) {
  uint32_t found = OPI_NO_SEQUENCE;
  for (uint32_t i = 0; i < batch->params.pool.n_sequences; ++i) {
    const opi_batch_sequence *s = &batch->sequences[i];
    if (s->state == state &&
        (found == OPI_NO_SEQUENCE || (s->order > batch->sequences[found].order) == youngest))
      found = i;
  }
  return found;
}

static void evict(opi_batch *batch, uint32_t sequence) {
  opi_batch_sequence *s = &batch->sequences[sequence];
  opi_batch_leave(batch, sequence, true);
  s->state = OPI_SEQUENCE_WAITING;
  ++s->n_evicted;
  ++batch->n_evicted;
}

/* Orders an array of sequences. */
static void sort(const opi_batch *batch, uint32_t *chosen, uint32_t n, bool by_served) {
  for (uint32_t i = 1; i < n; ++i) {
    const uint32_t one = chosen[i];
    const opi_batch_sequence *a = &batch->sequences[one];
    uint32_t at = i;
    for (; at > 0; --at) {
      const opi_batch_sequence *b = &batch->sequences[chosen[at - 1]];
      const bool before =
          by_served && a->served != b->served ? a->served < b->served : a->order < b->order;
      if (!before)
        break;
      chosen[at] = chosen[at - 1];
    }
    chosen[at] = one;
  }
}

/* Adds n_rows of a sequence, which has places for them. */
static opi_pass_entry *add(opi_batch *batch, opi_pass *pass, uint32_t sequence, uint32_t n_rows,
                           const opi_page_copy *copy) {
  opi_batch_sequence *s = &batch->sequences[sequence];
  opi_pass_entry *e = &pass->entries[pass->n_entries++];
  *e = (opi_pass_entry){.sequence = sequence,
                        .turn = s->turn,
                        .stay = s->stay,
                        .first = s->n_rows,
                        .n_rows = n_rows,
                        .n_wanted = s->n_rows + n_rows == s->n_ids ? 1 : 0,
                        .copy = *copy};
  pass->n_rows += n_rows;
  pass->n_keys += keys_of(s->n_rows, n_rows);
  s->n_rows += n_rows;
  s->served = pass->number;
  ++s->n_in_flight;
  return e;
}

/* A place for the last id of an active sequence; others and at last itself are evicted for it.
 * False: it was evicted. */
static bool make_place(opi_batch *batch, uint32_t sequence, opi_page_copy *out_copy) {
  const opi_batch_sequence *s = &batch->sequences[sequence];
  const uint32_t *id = opi_batch_ids(batch, sequence) + s->n_ids - 1;
  *out_copy = (opi_page_copy){OPI_NO_PAGE, OPI_NO_PAGE, 0};
  if (opi_kv_tokens(batch->pool, sequence) == s->n_ids)
    return true;
  while (opi_kv_append(batch->pool, sequence, id, 1, out_copy, NULL) == OPIPE_PENDING) {
    const uint32_t victim = by_age(batch, OPI_SEQUENCE_ACTIVE, true);
    evict(batch, victim);
    if (victim == sequence)
      return false;
  }
  return true;
}

/* One row of each sequence that generates, at most its share of those that do, the least recently
 * served first. Places are given to the oldest first, so nobody in the pass is evicted for it. */
static void add_last_rows(opi_batch *batch, opi_pass *pass) {
  const opi_batch_params *p = &batch->params;
  uint32_t n = 0, n_generating = 0, n_prompts = 0;
  for (uint32_t i = 0; i < p->pool.n_sequences; ++i) {
    const opi_batch_sequence *s = &batch->sequences[i];
    if (s->state != OPI_SEQUENCE_ACTIVE)
      continue;
    n_generating += rows_left(s) <= 1;
    n_prompts += rows_left(s) > 1;
    if (rows_left(s) == 1)
      batch->chosen[n++] = i;
  }
  const uint32_t share = (n_generating + p->groups - 1) / p->groups;
  const uint32_t room = n_prompts > 0 && p->rows > 1 ? p->rows - 1 : p->rows;
  const uint32_t most = share < room ? share : room;
  sort(batch, batch->chosen, n, true);
  n = n < most ? n : most;
  sort(batch, batch->chosen, n, false);
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t sequence = batch->chosen[i];
    opi_page_copy copy;
    if (batch->sequences[sequence].state == OPI_SEQUENCE_ACTIVE &&
        make_place(batch, sequence, &copy))
      (void)add(batch, pass, sequence, 1, &copy);
  }
}

/* Drafts behind last rows that the pass has, where there are rows, places and time left. */
static void add_drafts(opi_batch *batch, opi_pass *pass) {
  const opi_batch_params *p = &batch->params;
  for (uint32_t i = 0; i < pass->n_entries; ++i) {
    opi_pass_entry *e = &pass->entries[i];
    opi_batch_sequence *s = &batch->sequences[e->sequence];
    const uint32_t *draft = batch->drafts + (size_t)e->sequence * p->draft;
    opi_page_copy copy;
    uint32_t n = s->n_draft;
    if (e->n_wanted == 0)
      continue;
    n = n < p->rows - pass->n_rows ? n : p->rows - pass->n_rows;
    n = n < batch->context - s->n_ids ? n : batch->context - s->n_ids;
    n = rows_in_gap(p, pass, s->n_rows, n);
    if (n > 0 && opi_kv_append(batch->pool, e->sequence, draft, n, &copy, NULL) != OPIPE_OK)
      n = 0;
    pass->n_rows += n;
    pass->n_keys += keys_of(s->n_rows, n);
    s->n_rows += n;
    s->n_draft = n;
    e->n_rows += n;
    e->n_draft = n;
    e->n_wanted += n;
  }
}

/* Sequences enter in order, each with pages for all its ids; a page for each active one is left.
 * One that was evicted waits until nothing of it is in flight or due. */
static void admit(opi_batch *batch) {
  while (batch->n_active < batch->params.active) {
    const uint32_t first = by_age(batch, OPI_SEQUENCE_WAITING, false);
    uint32_t n_reused = 0;
    if (first == OPI_NO_SEQUENCE)
      return;
    opi_batch_sequence *s = &batch->sequences[first];
    if (s->due || s->n_in_flight > 0 ||
        opi_kv_begin(batch->pool, first, opi_batch_ids(batch, first), s->n_ids, s->salt,
                     batch->n_active, &n_reused, NULL) != OPIPE_OK)
      return;
    s->state = OPI_SEQUENCE_ACTIVE;
    s->n_rows = n_reused;
    s->n_reused += n_reused;
    ++batch->n_active;
  }
}

/* Slices of prompts, the oldest first. The first takes a row at least, so that it gets on. */
static void add_slices(opi_batch *batch, opi_pass *pass) {
  const opi_batch_params *p = &batch->params;
  const opi_page_copy none = {OPI_NO_PAGE, OPI_NO_PAGE, 0};
  uint32_t n_prompts = 0;
  for (uint32_t i = 0; i < p->pool.n_sequences; ++i) {
    const opi_batch_sequence *s = &batch->sequences[i];
    if (s->state == OPI_SEQUENCE_ACTIVE && rows_left(s) > 0 && s->served < pass->number &&
        opi_kv_tokens(batch->pool, i) == s->n_ids)
      batch->chosen[n_prompts++] = i;
  }
  sort(batch, batch->chosen, n_prompts, false);
  for (uint32_t i = 0; i < n_prompts && pass->n_rows < p->rows; ++i) {
    const opi_batch_sequence *s = &batch->sequences[batch->chosen[i]];
    const uint32_t left = rows_left(s), room = p->rows - pass->n_rows;
    uint32_t n = slice_most(p, s->n_rows, left < room ? left : room);
    n = rows_in_gap(p, pass, s->n_rows, n);
    n = n == 0 && i == 0 ? 1 : n;
    if (n == 0)
      return;
    (void)add(batch, pass, batch->chosen[i], n, &none);
  }
}

const opi_pass *opi_batch_next(opi_batch *batch) {
  const opi_batch_params *p = &batch->params;
  if (batch->n_made - batch->n_done == p->groups)
    return NULL;
  const uint64_t number = batch->n_made + 1;
  const size_t slot = (size_t)(number % (2 * p->groups));
  opi_pass *pass = &batch->passes[slot];
  *pass = (opi_pass){.number = number, .entries = batch->entries + slot * p->rows};
  add_last_rows(batch, pass);
  admit(batch);
  add_slices(batch, pass);
  add_drafts(batch, pass);
  if (pass->n_rows == 0)
    return NULL;
  pass->time = time_of(p, pass->n_rows, pass->n_keys);
  batch->n_made = number;
  batch->n_rows += pass->n_rows;
  return pass;
}

void opi_batch_row_ids(const opi_batch *batch, const opi_pass_entry *entry, uint32_t *out) {
  const uint32_t *ids = batch->ids + (size_t)entry->sequence * batch->context;
  const uint32_t *draft = batch->drafts + (size_t)entry->sequence * batch->params.draft;
  const uint32_t n_known = entry->n_rows - entry->n_draft;
  for (uint32_t i = 0; i < entry->n_rows; ++i)
    out[i] = i < n_known ? ids[entry->first + i] : draft[i - n_known];
}

void opi_batch_draft_ids(const opi_batch *batch, const opi_pass_entry *entry, uint32_t *out) {
  const uint32_t *draft = batch->drafts + (size_t)entry->sequence * batch->params.draft;
  if (entry->n_draft > 0)
    memcpy(out, draft, entry->n_draft * sizeof *out);
}
