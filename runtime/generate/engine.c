/* SPDX-License-Identifier: Apache-2.0 */
/* Passes from the scheduler to the runner and back, and the thread that does it. */
#include "runtime/generate/generator.h"

/* While more passes could be in flight, the thread looks for new requests this often. */
static const uint64_t look_ns = 1000000;

/* ---- one pass ---- */

/* Adds an entry of the pass: its rows, its table and its copy. */
static void describe_entry(opi_home *home, const opi_pass_entry *e, opi_pass_rows *io_rows) {
  const opi_batch *batch = opi_turns_batch(home->turns);
  const uint32_t index = io_rows->n_sequences++, table_room = home->generator->table_room;
  int64_t *table = home->table + (size_t)index * table_room;
  uint32_t n_pages = 0;
  opi_batch_row_ids(batch, e, home->row_ids);
  for (uint32_t i = 0; i < e->n_rows; ++i) {
    const uint32_t row = io_rows->n_rows++;
    home->ids[row] = home->row_ids[i];
    home->positions[row] = (int64_t)e->first + i;
    home->of_sequence[row] = index;
    if (i >= e->n_rows - e->n_wanted)
      home->wanted[io_rows->n_wanted++] = row;
  }
  const uint32_t *pages = opi_kv_table(opi_batch_pool(batch), e->sequence, &n_pages);
  for (uint32_t i = 0; i < table_room; ++i)
    table[i] = i < n_pages ? (int64_t)pages[i] : -1;
  if (e->copy.to != OPI_NO_PAGE)
    home->copies[io_rows->n_copies++] = e->copy;
}

void opi_home_describe(opi_home *home, const opi_pass *pass, opi_pass_rows *out) {
  *out = (opi_pass_rows){.number = home->n_taken + 1,
                         .table_room = home->generator->table_room,
                         .ids = home->ids,
                         .position = home->positions,
                         .sequence = home->of_sequence,
                         .wanted = home->wanted,
                         .table = home->table,
                         .copies = home->copies};
  for (uint32_t i = 0; i < pass->n_entries; ++i)
    describe_entry(home, &pass->entries[i], out);
}

static opi_flight *flight_of(opi_home *h, uint64_t pass) {
  return &h->flights[pass % h->generator->params.facts.batch.groups];
}

/* Gives the runner passes until there is nothing to do or enough are in flight. A pass that it
 * refuses stays in order: it ends as failed when its turn comes. */
static void begin_passes(opi_home *h) {
  opi_generator *g = h->generator;
  while (!g->stopping) {
    opi_pass_rows rows = h->stalled;
    const opi_pass *pass = rows.number != 0 ? NULL : opi_turns_next(h->turns);
    opi_flight *flight = flight_of(h, h->n_begun + 1);
    if (pass != NULL)
      opi_home_describe(h, pass, &rows);
    if (rows.number == 0)
      return;
    flight->why = (opipe_error)OPIPE_ERROR_INIT;
    const opipe_status status = h->runner.begin(h->runner.ctx, &rows, &flight->why);
    h->stalled = status == OPIPE_PENDING ? rows : (opi_pass_rows){.number = 0};
    if (status == OPIPE_PENDING)
      return;
    flight->begun = status == OPIPE_OK;
    h->n_taken += flight->begun;
    ++h->n_begun;
    if (g->n_flying++ == 0)
      g->working_since = opi_clock_ns();
  }
}

/* The oldest pass has ended. failed NULL: logits are there. */
static void finish_pass(opi_home *h, void *logits, const opipe_error *failed) {
  opi_generator *g = h->generator;
  const opi_pass_facts *facts = &g->params.facts;
  const bool begun = flight_of(h, h->n_ended + 1)->begun;
  if (!g->params.driven)
    opi_generator_tell(g);
  (void)opi_turns_done(h->turns, logits, facts->dtype, facts->row_bytes, failed);
  if (begun)
    h->runner.finish(h->runner.ctx);
  ++h->n_ended;
  if (--g->n_flying == 0)
    g->working_ns += opi_clock_ns() - g->working_since;
  if (g->params.driven)
    opi_generator_grant(g);
  else
    opi_generator_told(g);
}

static bool has_expired(const opi_generator *g) {
  return g->next_deadline_ns != UINT64_MAX && opi_clock_ns() >= g->next_deadline_ns;
}

/* ---- driven by the host ---- */

/* While telling. */
static void pump_home(opi_home *h) {
  for (;;) {
    if (has_expired(h->generator))
      opi_generator_expire(h->generator);
    begin_passes(h);
    if (h->n_begun == h->n_ended)
      return;
    const opi_flight *flight = flight_of(h, h->n_ended + 1);
    opipe_error err = flight->why;
    void *logits = NULL;
    opipe_status status =
        flight->begun ? h->runner.end(h->runner.ctx, 0, &logits, &err) : err.status;
    if (status == OPIPE_PENDING)
      return;
    finish_pass(h, logits, status == OPIPE_OK ? NULL : &err);
  }
}

void opi_generator_pump(opi_generator *g) {
  g->again = true;
  while (g->again && !g->telling) { /* else whoever tells pumps next */
    g->again = false;
    opi_generator_tell(g);
    for (uint32_t i = 0; i < g->params.n_runners; ++i)
      pump_home(&g->homes[i]);
    opi_generator_told(g);
  }
}

void opi_generator_step(opi_generator *g) {
  if (g == NULL || !g->params.driven)
    return;
  opi_lock_take(&g->lock);
  opi_generator_pump(g);
  opi_lock_give(&g->lock);
}

void opi_generator_kick(opi_generator *g) {
  if (g->params.driven)
    opi_generator_pump(g);
  else
    opi_lock_signal(&g->lock);
}

/* ---- by a thread ---- */

/* How long the runner may be waited for without a look at requests and deadlines. */
static uint64_t patience(const opi_home *h) {
  const opi_generator *g = h->generator;
  const bool full = h->n_begun - h->n_ended == g->params.facts.batch.groups;
  const uint64_t now = opi_clock_ns(), at = g->next_deadline_ns;
  const uint64_t left = at == UINT64_MAX ? UINT64_MAX : at > now ? at - now : 0;
  return !full && left > look_ns ? look_ns : left;
}

static void *run(void *arg) {
  opi_home *h = arg;
  opi_generator *g = h->generator;
  opi_lock_take(&g->lock);
  for (;;) {
    if (has_expired(g)) {
      opi_generator_tell(g);
      opi_generator_expire(g);
      opi_generator_told(g);
    }
    begin_passes(h);
    if (h->n_begun == h->n_ended) {
      if (g->stopping)
        break;
      opi_lock_wait(&g->lock, g->next_deadline_ns);
      continue;
    }
    const opi_flight *flight = flight_of(h, h->n_ended + 1);
    opipe_error err = flight->why;
    opipe_status status = err.status;
    void *logits = NULL;
    if (flight->begun) {
      const uint64_t timeout_ns = patience(h);
      opi_lock_give(&g->lock);
      status = h->runner.end(h->runner.ctx, timeout_ns, &logits, &err);
      opi_lock_take(&g->lock);
    }
    if (status != OPIPE_PENDING)
      finish_pass(h, logits, status == OPIPE_OK ? NULL : &err);
  }
  opi_lock_give(&g->lock);
  return NULL;
}

/* ---- opening and closing ---- */

static opi_turns_params turns_params(const opi_generator_params *p) {
  opi_turns_params out = {.batch = p->facts.batch,
                          .n_vocab = p->facts.n_vocab,
                          .n_known = p->facts.n_known == 0 ? p->facts.n_vocab : p->facts.n_known,
                          .events = opi_generator_events};
  out.ngrams = (opi_ngrams){.shortest = 2, .longest = 8, .most = p->facts.batch.draft};
  return out;
}

/* Offsets in one block; from `flights` on one of each for every home. */
typedef struct generator_layout {
  uint64_t homes, sequences, flights, ids, positions, of_sequence, wanted, table, row_ids, copies;
  uint64_t n_bytes;
  uint32_t table_room, n_sequences;
} generator_layout;

static opipe_status lay_out(const opi_generator_params *p, generator_layout *out,
                            opipe_error *err) {
  const opi_batch_params *b = &p->facts.batch;
  const uint64_t n = p->n_runners, of_all = n * b->pool.n_sequences;
  generator_layout l = {.n_bytes = sizeof(opi_generator), .n_sequences = (uint32_t)of_all};
  if (b->pool.page == 0 || n == 0 || of_all > INT32_MAX) {
    return opi_fail(err, OPIPE_E_INVALID, "%u replicas, %u sequences each, pages of %u tokens",
                    p->n_runners, b->pool.n_sequences, b->pool.page);
  }
  l.table_room = b->pool.context / b->pool.page + (b->pool.context % b->pool.page != 0);
  if (!opi_block_place(&l.n_bytes, n, 1, sizeof(opi_home), &l.homes) ||
      !opi_block_place(&l.n_bytes, of_all, 1, sizeof(opi_host_sequence), &l.sequences) ||
      !opi_block_place(&l.n_bytes, b->groups, n, sizeof(opi_flight), &l.flights) ||
      !opi_block_place(&l.n_bytes, b->rows, n, sizeof(int64_t), &l.ids) ||
      !opi_block_place(&l.n_bytes, b->rows, n, sizeof(int64_t), &l.positions) ||
      !opi_block_place(&l.n_bytes, b->rows, n, sizeof(int64_t), &l.of_sequence) ||
      !opi_block_place(&l.n_bytes, b->rows, n, sizeof(int64_t), &l.wanted) ||
      !opi_block_place(&l.n_bytes, n * b->active, l.table_room, sizeof(int64_t), &l.table) ||
      !opi_block_place(&l.n_bytes, b->rows, n, sizeof(uint32_t), &l.row_ids) ||
      !opi_block_place(&l.n_bytes, b->active, n, sizeof(opi_page_copy), &l.copies)) {
    return opi_fail(err, OPIPE_E_LIMIT, "tables of %u sequences with %u pages exceed memory",
                    b->active, l.table_room);
  }
  *out = l;
  return OPIPE_OK;
}

opipe_status opi_generator_bytes(const opi_generator_params *params, uint64_t *out_bytes,
                                 opipe_error *err) {
  const opi_turns_params turns = turns_params(params);
  generator_layout l = {.n_bytes = 0};
  uint64_t of_turns = 0;
  OPI_TRY(opi_turns_bytes(&turns, &of_turns, err));
  OPI_TRY(lay_out(params, &l, err));
  *out_bytes = params->n_runners * of_turns + l.n_bytes;
  return OPIPE_OK;
}

static void place_home(opi_generator *g, const generator_layout *l, uint32_t i) {
  const opi_batch_params *b = &g->params.facts.batch;
  char *block = (char *)g;
  const size_t row = (size_t)i * b->rows;
  opi_home *h = &g->homes[i];
  h->generator = g;
  h->runner = g->params.runners[i];
  h->sequences = g->sequences + (size_t)i * b->pool.n_sequences;
  h->flights = (opi_flight *)(void *)(block + l->flights) + (size_t)i * b->groups;
  h->ids = (int64_t *)(void *)(block + l->ids) + row;
  h->positions = (int64_t *)(void *)(block + l->positions) + row;
  h->of_sequence = (int64_t *)(void *)(block + l->of_sequence) + row;
  h->wanted = (int64_t *)(void *)(block + l->wanted) + row;
  h->table = (int64_t *)(void *)(block + l->table) + (size_t)i * b->active * l->table_room;
  h->row_ids = (uint32_t *)(void *)(block + l->row_ids) + row;
  h->copies = (opi_page_copy *)(void *)(block + l->copies) + (size_t)i * b->active;
}

static void place(opi_generator *g, const generator_layout *l) {
  char *block = (char *)g;
  g->n_bytes = l->n_bytes;
  g->table_room = l->table_room;
  g->n_sequences = l->n_sequences;
  g->homes = (opi_home *)(void *)(block + l->homes);
  g->sequences = (opi_host_sequence *)(void *)(block + l->sequences);
  for (uint32_t i = 0; i < g->params.n_runners; ++i)
    place_home(g, l, i);
  g->params.runners = NULL; /* the caller's */
}

static opipe_status begin_home(opi_home *h, opipe_error *err) {
  const opi_generator_params *p = &h->generator->params;
  opi_turns_params turns = turns_params(p);
  turns.events.ctx = h;
  OPI_TRY(opi_turns_create(p->allocator, &turns, &h->turns, err));
  for (uint32_t i = 0; i < p->facts.batch.pool.n_sequences; ++i) {
    opi_host_sequence *s = &h->sequences[i];
    s->generator = h->generator;
    s->home = h;
    s->number = i;
    s->slot = opi_handle_slot_take(OPI_HANDLE_SEQUENCE, s, opi_sequence_end, p->owner, err);
    if (s->slot == NULL)
      return OPIPE_E_NOMEM;
  }
  return OPIPE_OK;
}

/* The steps of opening that may fail. */
static opipe_status begin(opi_generator *g, opipe_error *err) {
  OPI_TRY(opi_lock_init(&g->lock, err));
  g->lock_made = true;
  for (uint32_t i = 0; i < g->params.n_runners; ++i)
    OPI_TRY(begin_home(&g->homes[i], err));
  for (uint32_t i = 0; i < g->params.n_runners && !g->params.driven; ++i)
    OPI_TRY(opi_thread_start(&g->homes[i].thread, "opipe-generate", run, &g->homes[i], err));
  return OPIPE_OK;
}

opipe_status opi_generator_open(const opi_generator_params *params, opi_generator **out,
                                opipe_error *err) {
  generator_layout l = {.n_bytes = 0};
  OPI_TRY(lay_out(params, &l, err));
  opi_generator *g = opi_alloc_zero(params->allocator, 1, (size_t)l.n_bytes);
  if (g == NULL)
    return opi_fail_nomem(err, l.n_bytes, "generation");
  g->params = *params;
  g->next_deadline_ns = UINT64_MAX;
  place(g, &l);
  const opipe_status status = begin(g, err);
  if (status < 0) {
    opi_generator_close(g);
    return status;
  }
  *out = g;
  return OPIPE_OK;
}

void opi_generator_stop(opi_generator *g) {
  if (g == NULL || !g->lock_made)
    return;
  opi_lock_take(&g->lock);
  const bool first = !g->stopping;
  g->stopping = true; /* nothing begins inside callbacks of ends */
  opi_generator_tell(g);
  for (uint32_t i = 0; i < g->n_sequences && first; ++i) {
    if (g->sequences[i].open)
      (void)opi_turns_cancel(g->sequences[i].home->turns, g->sequences[i].number, NULL);
  }
  opi_generator_told(g);
  opi_lock_give(&g->lock);
}

/* The runner is told that nobody waits for its passes any more. */
static void drop_passes(opi_home *h) {
  for (; h->n_ended < h->n_begun; ++h->n_ended) {
    void *logits = NULL;
    if (!flight_of(h, h->n_ended + 1)->begun)
      continue;
    (void)h->runner.end(h->runner.ctx, 0, &logits, NULL);
    h->runner.finish(h->runner.ctx);
  }
}

void opi_generator_close(opi_generator *g) {
  if (g == NULL)
    return;
  opi_generator_stop(g);
  for (uint32_t i = 0; i < g->n_sequences && g->sequences[i].slot != NULL; ++i)
    opi_handle_slot_disarm(g->sequences[i].slot);
  for (uint32_t i = 0; i < g->n_sequences && g->sequences[i].slot != NULL; ++i)
    opi_handle_slot_drain(g->sequences[i].slot, 0);
  for (uint32_t i = 0; i < g->params.n_runners; ++i) {
    opi_thread_join(&g->homes[i].thread);
    drop_passes(&g->homes[i]);
  }
  for (uint32_t i = 0; i < g->n_sequences; ++i)
    opi_handle_slot_give(g->sequences[i].slot);
  for (uint32_t i = 0; i < g->params.n_runners; ++i)
    opi_turns_free(g->homes[i].turns);
  if (g->lock_made)
    opi_lock_destroy(&g->lock);
  opi_free(g->params.allocator, g, (size_t)g->n_bytes);
}

/* Adds what one replica has done. */
static void add_home(const opi_home *h, opipe_generation_info *io) {
  const opi_batch_params *p = &h->generator->params.facts.batch;
  const opi_batch *batch = opi_turns_batch(h->turns);
  const opi_batch_counts counts = opi_batch_count(batch);
  const opi_kv_counts pages = opi_kv_count(opi_batch_pool(batch));
  const opi_turns_counts turns = opi_turns_count(h->turns);
  io->groups += p->groups;
  io->n_pages += p->pool.n_pages;
  io->n_sequences += p->pool.n_sequences;
  io->n_active += p->active;
  io->open += counts.open;
  io->waiting += counts.waiting;
  io->active += counts.active;
  io->in_flight += counts.in_flight;
  io->free_pages += pages.free;
  io->kept_pages += pages.kept;
  io->passes += counts.passes;
  io->computed += counts.rows;
  io->tokens += turns.tokens;
  io->asked += pages.asked_tokens;
  io->reused += pages.reused_tokens;
  io->evicted += counts.evicted;
  io->forgotten += pages.evicted;
  io->copied += pages.copied;
  io->drafted += turns.drafted;
  io->accepted += turns.accepted;
}

opipe_status opi_generator_info(opi_generator *g, opipe_generation_info *out, opipe_error *err) {
  const opi_pass_facts *facts = &g->params.facts;
  OPI_TRY(opi_generator_enter(g, "session_generation", err));
  *out = (opipe_generation_info){
      .rows = facts->batch.rows,
      .page = facts->batch.pool.page,
      .context = opi_batch_context(opi_turns_batch(g->homes[0].turns)),
      .n_vocab = facts->n_vocab,
      .dtype = facts->dtype,
      .working_ns = g->working_ns + (g->n_flying != 0 ? opi_clock_ns() - g->working_since : 0)};
  for (uint32_t i = 0; i < g->params.n_runners; ++i)
    add_home(&g->homes[i], out);
  opi_generator_leave(g);
  return OPIPE_OK;
}
