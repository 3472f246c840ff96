/* SPDX-License-Identifier: Apache-2.0 */
/* Passes from the scheduler to the runner and back, and the thread that does it. */
#include "runtime/generate/generator.h"

/* While more passes could be in flight, the thread looks for new requests this often. */
static const uint64_t look_ns = 1000000;

/* ---- one pass ---- */

/* Adds an entry of the pass: its rows, its table and its copy. */
static void describe_entry(opi_generator *g, const opi_pass_entry *e, opi_pass_rows *io_rows) {
  const opi_batch *batch = opi_turns_batch(g->turns);
  const uint32_t index = io_rows->n_sequences++;
  int64_t *table = g->table + (size_t)index * g->table_room;
  uint32_t n_pages = 0;
  opi_batch_row_ids(batch, e, g->row_ids);
  for (uint32_t i = 0; i < e->n_rows; ++i) {
    const uint32_t row = io_rows->n_rows++;
    g->ids[row] = g->row_ids[i];
    g->positions[row] = (int64_t)e->first + i;
    g->of_sequence[row] = index;
    if (i >= e->n_rows - e->n_wanted)
      g->wanted[io_rows->n_wanted++] = row;
  }
  const uint32_t *pages = opi_kv_table(opi_batch_pool(batch), e->sequence, &n_pages);
  for (uint32_t i = 0; i < g->table_room; ++i)
    table[i] = i < n_pages ? (int64_t)pages[i] : -1;
  if (e->copy.to != OPI_NO_PAGE)
    g->copies[io_rows->n_copies++] = e->copy;
}

void opi_generator_describe(opi_generator *g, const opi_pass *pass, opi_pass_rows *out) {
  *out = (opi_pass_rows){.number = g->n_taken + 1,
                         .table_room = g->table_room,
                         .ids = g->ids,
                         .position = g->positions,
                         .sequence = g->of_sequence,
                         .wanted = g->wanted,
                         .table = g->table,
                         .copies = g->copies};
  for (uint32_t i = 0; i < pass->n_entries; ++i)
    describe_entry(g, &pass->entries[i], out);
}

static opi_flight *flight_of(opi_generator *g, uint64_t pass) {
  return &g->flights[pass % g->params.facts.batch.groups];
}

/* Gives the runner passes until there is nothing to do or enough are in flight. A pass that it
 * refuses stays in order: it ends as failed when its turn comes. */
static void begin_passes(opi_generator *g) {
  const opi_pass_runner *runner = &g->params.runner;
  const opi_pass *pass = NULL;
  while (!g->stopping && (pass = opi_turns_next(g->turns)) != NULL) {
    opi_flight *flight = flight_of(g, pass->number);
    opi_pass_rows rows;
    opi_generator_describe(g, pass, &rows);
    if (g->n_begun++ == g->n_ended)
      g->working_since = opi_clock_ns();
    flight->why = (opipe_error)OPIPE_ERROR_INIT;
    flight->begun = runner->begin(runner->ctx, &rows, &flight->why) == OPIPE_OK;
    g->n_taken += flight->begun;
  }
}

/* The oldest pass has ended. failed NULL: logits are there. */
static void finish_pass(opi_generator *g, void *logits, const opipe_error *failed) {
  const opi_pass_runner *runner = &g->params.runner;
  const opi_pass_facts *facts = &g->params.facts;
  const bool begun = flight_of(g, g->n_ended + 1)->begun;
  (void)opi_turns_done(g->turns, logits, facts->dtype, facts->row_bytes, failed);
  if (begun)
    runner->finish(runner->ctx);
  if (++g->n_ended == g->n_begun)
    g->working_ns += opi_clock_ns() - g->working_since;
  opi_generator_grant(g);
  opi_generator_fork_due(g);
  opi_lock_signal(&g->lock);
}

/* ---- driven by the host ---- */

void opi_generator_pump(opi_generator *g) {
  const opi_pass_runner *runner = &g->params.runner;
  for (;;) {
    opi_generator_expire(g);
    begin_passes(g);
    if (g->n_begun == g->n_ended)
      return;
    const opi_flight *flight = flight_of(g, g->n_ended + 1);
    opipe_error err = flight->why;
    void *logits = NULL;
    opipe_status status = flight->begun ? runner->end(runner->ctx, 0, &logits, &err) : err.status;
    if (status == OPIPE_PENDING)
      return;
    finish_pass(g, logits, status == OPIPE_OK ? NULL : &err);
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
static uint64_t patience(const opi_generator *g) {
  const bool full = g->n_begun - g->n_ended == g->params.facts.batch.groups;
  const uint64_t now = opi_clock_ns(), at = g->next_deadline_ns;
  const uint64_t left = at == UINT64_MAX ? UINT64_MAX : at > now ? at - now : 0;
  return !full && left > look_ns ? look_ns : left;
}

static void *run(void *arg) {
  opi_generator *g = arg;
  const opi_pass_runner *runner = &g->params.runner;
  opi_lock_take(&g->lock);
  for (;;) {
    opi_generator_expire(g);
    begin_passes(g);
    if (g->n_begun == g->n_ended) {
      if (g->stopping)
        break;
      opi_lock_wait(&g->lock, g->next_deadline_ns);
      continue;
    }
    const opi_flight *flight = flight_of(g, g->n_ended + 1);
    opipe_error err = flight->why;
    opipe_status status = err.status;
    void *logits = NULL;
    if (flight->begun) {
      const uint64_t timeout_ns = patience(g);
      opi_lock_give(&g->lock);
      status = runner->end(runner->ctx, timeout_ns, &logits, &err);
      opi_lock_take(&g->lock);
    }
    if (status != OPIPE_PENDING)
      finish_pass(g, logits, status == OPIPE_OK ? NULL : &err);
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

typedef struct generator_layout {
  uint64_t sequences, flights, ids, positions, of_sequence, wanted, table, row_ids, copies, n_bytes;
  uint32_t table_room;
} generator_layout;

static opipe_status lay_out(const opi_generator_params *p, generator_layout *out,
                            opipe_error *err) {
  const opi_batch_params *b = &p->facts.batch;
  generator_layout l = {.n_bytes = sizeof(opi_generator)};
  if (b->pool.page == 0)
    return opi_fail(err, OPIPE_E_INVALID, "pages of 0 tokens");
  l.table_room = b->pool.context / b->pool.page + (b->pool.context % b->pool.page != 0);
  if (!opi_block_place(&l.n_bytes, b->pool.n_sequences, 1, sizeof(opi_host_sequence),
                       &l.sequences) ||
      !opi_block_place(&l.n_bytes, b->groups, 1, sizeof(opi_flight), &l.flights) ||
      !opi_block_place(&l.n_bytes, b->rows, 1, sizeof(int64_t), &l.ids) ||
      !opi_block_place(&l.n_bytes, b->rows, 1, sizeof(int64_t), &l.positions) ||
      !opi_block_place(&l.n_bytes, b->rows, 1, sizeof(int64_t), &l.of_sequence) ||
      !opi_block_place(&l.n_bytes, b->rows, 1, sizeof(int64_t), &l.wanted) ||
      !opi_block_place(&l.n_bytes, b->active, l.table_room, sizeof(int64_t), &l.table) ||
      !opi_block_place(&l.n_bytes, b->rows, 1, sizeof(uint32_t), &l.row_ids) ||
      !opi_block_place(&l.n_bytes, b->active, 1, sizeof(opi_page_copy), &l.copies)) {
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
  *out_bytes = of_turns + l.n_bytes;
  return OPIPE_OK;
}

static void place(opi_generator *g, const generator_layout *l) {
  char *block = (char *)g;
  g->n_bytes = l->n_bytes;
  g->table_room = l->table_room;
  g->sequences = (opi_host_sequence *)(void *)(block + l->sequences);
  g->flights = (opi_flight *)(void *)(block + l->flights);
  g->ids = (int64_t *)(void *)(block + l->ids);
  g->positions = (int64_t *)(void *)(block + l->positions);
  g->of_sequence = (int64_t *)(void *)(block + l->of_sequence);
  g->wanted = (int64_t *)(void *)(block + l->wanted);
  g->table = (int64_t *)(void *)(block + l->table);
  g->row_ids = (uint32_t *)(void *)(block + l->row_ids);
  g->copies = (opi_page_copy *)(void *)(block + l->copies);
}

/* The steps of opening that may fail. */
static opipe_status begin(opi_generator *g, opipe_error *err) {
  opi_turns_params turns = turns_params(&g->params);
  turns.events.ctx = g;
  OPI_TRY(opi_lock_init(&g->lock, err));
  g->lock_made = true;
  OPI_TRY(opi_turns_create(g->params.allocator, &turns, &g->turns, err));
  for (uint32_t i = 0; i < g->params.facts.batch.pool.n_sequences; ++i) {
    opi_host_sequence *s = &g->sequences[i];
    s->generator = g;
    s->number = i;
    s->slot = opi_handle_slot_take(OPI_HANDLE_SEQUENCE, s, opi_sequence_end, g->params.owner, err);
    if (s->slot == NULL)
      return OPIPE_E_NOMEM;
  }
  if (g->params.driven)
    return OPIPE_OK;
  return opi_thread_start(&g->thread, "opipe-generate", run, g, err);
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
  if (g == NULL || g->turns == NULL)
    return;
  opi_lock_take(&g->lock);
  for (uint32_t i = 0; i < g->params.facts.batch.pool.n_sequences && !g->stopping; ++i) {
    if (g->sequences[i].open)
      (void)opi_turns_cancel(g->turns, i, NULL);
  }
  g->stopping = true;
  opi_generator_fork_due(g);
  opi_lock_signal(&g->lock);
  opi_lock_give(&g->lock);
}

/* The runner is told that nobody waits for its passes any more. */
static void drop_passes(opi_generator *g) {
  const opi_pass_runner *runner = &g->params.runner;
  for (; g->n_ended < g->n_begun; ++g->n_ended) {
    void *logits = NULL;
    if (!flight_of(g, g->n_ended + 1)->begun)
      continue;
    (void)runner->end(runner->ctx, 0, &logits, NULL);
    runner->finish(runner->ctx);
  }
}

void opi_generator_close(opi_generator *g) {
  if (g == NULL)
    return;
  const uint32_t n = g->params.facts.batch.pool.n_sequences;
  opi_generator_stop(g);
  for (uint32_t i = 0; i < n && g->sequences[i].slot != NULL; ++i)
    opi_handle_slot_disarm(g->sequences[i].slot);
  for (uint32_t i = 0; i < n && g->sequences[i].slot != NULL; ++i)
    opi_handle_slot_drain(g->sequences[i].slot, 0);
  opi_thread_join(&g->thread);
  drop_passes(g);
  for (uint32_t i = 0; i < n; ++i)
    opi_handle_slot_give(g->sequences[i].slot);
  opi_turns_free(g->turns);
  if (g->lock_made)
    opi_lock_destroy(&g->lock);
  opi_free(g->params.allocator, g, (size_t)g->n_bytes);
}

void opi_generator_info(opi_generator *g, opipe_generation_info *out) {
  const opi_batch_params *p = &g->params.facts.batch;
  opi_lock_take(&g->lock);
  const opi_batch *batch = opi_turns_batch(g->turns);
  const opi_batch_counts counts = opi_batch_count(batch);
  const opi_kv_counts pages = opi_kv_count(opi_batch_pool(batch));
  const opi_turns_counts turns = opi_turns_count(g->turns);
  const bool works = g->n_begun > g->n_ended;
  *out = (opipe_generation_info){
      .rows = p->rows,
      .groups = p->groups,
      .page = p->pool.page,
      .n_pages = p->pool.n_pages,
      .context = opi_batch_context(batch),
      .n_sequences = p->pool.n_sequences,
      .n_active = p->active,
      .n_vocab = g->params.facts.n_vocab,
      .dtype = g->params.facts.dtype,
      .open = counts.open,
      .waiting = counts.waiting,
      .active = counts.active,
      .in_flight = counts.in_flight,
      .free_pages = pages.free,
      .kept_pages = pages.kept,
      .passes = counts.passes,
      .computed = counts.rows,
      .tokens = turns.tokens,
      .asked = pages.asked_tokens,
      .reused = pages.reused_tokens,
      .evicted = counts.evicted,
      .forgotten = pages.evicted,
      .copied = pages.copied,
      .drafted = turns.drafted,
      .accepted = turns.accepted,
      .working_ns = g->working_ns + (works ? opi_clock_ns() - g->working_since : 0)};
  opi_lock_give(&g->lock);
}
