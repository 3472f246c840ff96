/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of unlike lengths in one session of a plan for generation: some come late, some are
 * cancelled, forked, cut and continued, some begin alike, pages are fewer than they want. Each
 * one's logits, token by token, are then compared with those of its ids alone, by the reference of
 * the same plan. */
#ifndef TESTS_ABI_MIXES_H
#define TESTS_ABI_MIXES_H

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/abi/host_kit.h"
#include "tests/abi/mix_cover.h"

enum { MIX_SEQUENCES = 24, MIX_FORKS = 3, MIX_ALL = MIX_SEQUENCES + MIX_FORKS, MIX_ROOM = 80 };

/* A file, below tests/data or (shared) in the folder beside the project, and the most tokens that
 * it has positions for. */
typedef struct mix_form {
  const char *name;
  uint32_t context;
  bool shared;
  bool one_head; /* of keys and values: no tensor groups */
} mix_form;

static const mix_form mix_forms[] = {
    {"rows/group_query", 80},
    {"rows/grown", 80},
    {"rows/few_bits", 80},
    {"llama_fp16", 80},
    {"rows/tensor_scatter", 80},
    {"rows/alibi", 80},
    {"gpt_bf16", 24},
    {"rows/whole", 80},
    {"rows/combined", 80},
    {"rows/merged", 80},
    {"rows/attention", 80},
    {"rows/scatter_nd", 80},
    {"rows/window", 80},
    {"rows/scatter_elements", 80},
    {"rows/multi_head", 80},
    {"rows/mask_given", 80},
    {"rows/last_sliced", 80},
    {"rows/last_gathered", 80},
    {"shared_buffer", 24},
    {"gpt_legacy", 24},
    {"gpt_past", 24},
    {"gpt_8block", 24},
    {"llama_8block", 80},
};
/* Small models of ten families, exported by transformers. */
static const mix_form mix_families[] = {
    {"bloom/infer", 20, true},        {"gemma2/infer", 20, true},
    {"gpt2/infer", 16, true},         {"gpt2/infer_bf16", 16, true},
    {"gpt2/infer_kv", 16, true},      {"gpt2/infer_legacy", 16, true},
    {"gpt2/infer_op23", 16, true},    {"gpt2/infer_op24", 16, true},
    {"gptneox/infer", 20, true},      {"llama/infer", 20, true},
    {"llama/infer_f16", 20, true},    {"llama/infer_kv", 20, true},
    {"llama/infer_legacy", 20, true}, {"llama/infer_op23_fused", 20, true},
    {"olmo2/infer", 20, true},        {"opt/infer", 16, true},
    {"phi3/infer", 20, true},         {"qwen2/infer", 20, true},
    {"qwen2_moe/infer", 20, true},
};
enum { MIX_FAMILIES = sizeof mix_families / sizeof mix_families[0] };
enum {
  MIX_FORMS = sizeof mix_forms / sizeof mix_forms[0],
  MIX_SHORT = MIX_FORMS - 4 /* the last four add nothing to a cover */
};

static const uint32_t mix_rows[] = {7, 64, 1, MIX_ROOM};
static const char *const mix_transports[] = {"local", "strict", "emulated", "shm"};
static const uint32_t mix_pages[] = {64, 128};

static inline uint32_t mix_ranks(const mix_way *w) {
  return (w->at[MIX_STAGES] + 1) * (w->at[MIX_COPIES] + 1) * (w->at[MIX_WIDTH] + 1);
}

/* Two processes have as many ranks each, which the library computes by its threads. ctx: the forms.
 */
static inline bool mix_may(const void *ctx, const mix_way *w) {
  const mix_form *forms = ctx;
  const bool apart = w->at[MIX_TRANSPORT] == MIX_SHM;
  return (!apart || (mix_ranks(w) % 2 == 0 && w->at[MIX_DRIVER] == 0)) &&
         (w->at[MIX_WIDTH] == 0 || !forms[w->at[MIX_FORM]].one_head);
}

/* A sequence as it was, or (forced) as it is to be. */
typedef struct mix_record {
  uint32_t ids[MIX_ROOM], n_ids, n_prompt;
  uint64_t hash[MIX_ROOM]; /* of the logits that chose the id at that place; 0: none */
  const uint32_t *forced;
  opipe_sequence *sequence;
} mix_record;

typedef struct mix_counts {
  uint64_t runs, evicted, reused, copied, accepted, compared;
} mix_counts;

typedef struct mix {
  host_kit k;
  opipe_team *team; /* NULL: one process */
  pid_t follower;   /* process 1; 0: none */
  const mix_form *form;
  uint32_t n_ranks, n_vocab;
  bool driven;
  mix_record records[MIX_ALL];
  mix_counts *counts;
} mix;

static inline uint64_t mix_hash(const void *data, size_t n) {
  const unsigned char *at = data;
  uint64_t hash = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < n; ++i)
    hash = (hash ^ at[i]) * UINT64_C(1099511628211);
  return hash == 0 ? 1 : hash;
}

static inline opipe_status mix_on_logits(void *ctx, opipe_sequence *sequence, uint32_t position,
                                         void *row, uint32_t n_vocab, uint32_t dtype,
                                         int64_t *io_id, opipe_error *err) {
  mix_record *r = ctx;
  (void)sequence, (void)err;
  if (position >= MIX_ROOM)
    return OPIPE_E_LIMIT;
  r->hash[position] = mix_hash(row, n_vocab * (dtype == OPIPE_FLOAT ? sizeof(float) : 2));
  if (r->forced != NULL)
    *io_id = r->forced[position];
  return OPIPE_OK;
}

/* ---- opening ---- */

static inline opipe_status mix_plan(mix *m, const mix_way *w, bool reference) {
  const uint32_t page = mix_pages[w->at[MIX_PAGE]];
  const bool queues = w->at[MIX_TRANSPORT] == 2; /* devices that queue work, too */
  const opipe_device_choice device = {
      .kind = queues ? "emulated" : "cpu", .options = queues ? "async=1" : NULL, .threads = 1};
  /* pages of 1.2 contexts, rounded up */
  const opipe_generation_params generation = {
      .struct_size = sizeof generation,
      .context = m->form->context,
      .n_tokens = (m->form->context > page ? 3 : 2) * (uint64_t)page,
      .page = page,
      .rows = mix_rows[w->at[MIX_ROWS]],
      .active = 8,
      .groups = w->at[MIX_GROUPS] + 1,
      .draft = 3};
  const opipe_plan_params params = {
      .struct_size = sizeof params,
      .n_stages = w->at[MIX_STAGES] + 1,
      .replicas = w->at[MIX_COPIES] + 1,
      .tensor = w->at[MIX_WIDTH] + 1,
      .devices = &device,
      .n_devices = 1,
      .devices_stride = sizeof device,
      .transport = mix_transports[reference && m->follower != 0 ? 0 : w->at[MIX_TRANSPORT]],
      .team = reference ? NULL : m->team,
      .generation = &generation};
  return m->k.api->plan_make(m->k.model, &params, &m->k.plan, &m->k.err);
}

/* Joins the team of two processes. */
static inline opipe_status mix_join(mix *m, const char *job, uint32_t rank) {
  opipe_team_params params = opipe_team_params_init();
  params.rank = rank;
  params.size = 2;
  params.job = job;
  params.launcher = "none";
  return m->k.api->team_open(m->k.context, &params, &m->team, &m->k.err);
}

/* job NULL: one process. */
static inline opipe_status mix_open(mix *m, const mix_way *w, const char *job, uint32_t rank) {
  static char own[512], strict[512];
  const char *plugins[2] = {own, strict};
  char file[128];
  (void)snprintf(own, sizeof own, "%s", opi_test_build("lib/onnx-pipe"));
  (void)snprintf(strict, sizeof strict, "%s",
                 opi_test_build("tests/plugins/opipe-transport-strict.so"));
  (void)snprintf(file, sizeof file, "%s/%s/model.onnx",
                 m->form->shared ? "models/modern" : "tests/data", m->form->name);
  const opipe_context_params context = {
      .struct_size = sizeof context, .plugin_paths = plugins, .n_plugin_paths = 2};
  m->n_ranks = mix_ranks(w);
  m->driven = w->at[MIX_DRIVER] == 1;
  opipe_status status =
      kit_load(&m->k, &context, m->form->shared ? opi_test_shared(file) : opi_test_source(file));
  if (status == OPIPE_OK && job != NULL)
    status = mix_join(m, job, rank);
  return status == OPIPE_OK ? mix_plan(m, w, false) : status;
}

static inline void mix_session(mix *m, bool reference) {
  const opipe_session_params params = {
      .struct_size = sizeof params,
      .threads = m->driven && !reference ? OPIPE_THREADS_HOST : OPIPE_THREADS_LIBRARY,
      .team = reference ? NULL : m->team,
      .flags = reference ? OPIPE_SESSION_REFERENCE : 0};
  opipe_generation_info info = opipe_generation_info_init();
  OPI_ASSERT_OK_FATAL(kit_open(&m->k, &params), &m->k.err);
  OPI_ASSERT_OK_FATAL(m->k.api->session_generation(m->k.session, &info, &m->k.err), &m->k.err);
  m->n_vocab = info.n_vocab;
}

/* Closes the session, and what was there for more than one process. */
static inline opipe_status mix_leave(mix *m) {
  opipe_gather_params end = opipe_gather_params_init();
  opipe_status status = OPIPE_OK;
  end.name = "end";
  m->k.api->session_close(m->k.session);
  m->k.session = NULL;
  if (m->team == NULL)
    return OPIPE_OK;
  status = m->k.api->team_gather(m->team, &end, &m->k.err);
  m->k.api->plan_destroy(m->k.plan);
  m->k.plan = NULL;
  m->k.api->team_close(m->team);
  m->team = NULL;
  return status;
}

/* Process 1, from beginning to end. */
static inline void mix_follow(mix *m, const mix_way *w, const char *job) {
  opipe_session_params params = opipe_session_params_init();
  opipe_status status = mix_open(m, w, job, 1);
  params.team = m->team;
  if (status == OPIPE_OK)
    status = kit_open(&m->k, &params);
  if (status == OPIPE_OK)
    status = m->k.api->session_follow(m->k.session, &m->k.err);
  if (status == OPIPE_OK)
    status = mix_leave(m);
  if (status < 0)
    (void)fprintf(stderr, "process 1: %d: %s\n", (int)status, m->k.err.message);
  kit_close(&m->k);
  _exit(status < 0 ? 1 : 0);
}

/* Opens what a way needs: process 1 is forked before there is anything that it must not have. */
static inline void mix_begin_all(mix *m, const mix_way *w, uint64_t run) {
  char job[64];
  (void)snprintf(job, sizeof job, "mix-%d-%lu", (int)getpid(), run);
  if (w->at[MIX_TRANSPORT] == MIX_SHM) {
    (void)fflush(NULL);
    m->follower = fork();
    OPI_ASSERT_FATAL(m->follower >= 0);
    if (m->follower == 0)
      mix_follow(m, w, job);
  }
  OPI_ASSERT_OK_FATAL(mix_open(m, w, m->follower == 0 ? NULL : job, 0), &m->k.err);
  mix_session(m, false);
}

/* Ends it; the same plan's reference is open then. */
static inline void mix_end_all(mix *m, const mix_way *w) {
  int status = 0;
  OPI_ASSERT_OK(mix_leave(m), &m->k.err);
  if (m->follower != 0) {
    OPI_ASSERT(waitpid(m->follower, &status, 0) == m->follower);
    OPI_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OPI_ASSERT_OK_FATAL(mix_plan(m, w, true), &m->k.err);
  }
  mix_session(m, true);
}

/* Every rank as far as it goes; sleeps a moment if none does. */
static inline void mix_drive(mix *m) {
  bool moved = !m->driven;
  for (uint32_t r = 0; m->driven && r < m->n_ranks; ++r) {
    const opipe_status status = m->k.api->session_drive(m->k.session, r, 0, &m->k.err);
    moved = moved || status == OPIPE_OK;
    if (status < 0)
      OPI_ASSERT_OK_FATAL(status, &m->k.err);
  }
  if (!moved)
    (void)m->k.api->session_drive(m->k.session, 0, 50000, &m->k.err);
}

/* Until the turn has so many tokens, or has ended. */
static inline void mix_until(mix *m, const mix_record *r, uint32_t n_tokens) {
  opipe_sequence_info info = opipe_sequence_info_init();
  if (!m->driven) {
    const opipe_status status =
        m->k.api->sequence_wait(r->sequence, n_tokens, UINT64_C(30000000000), &m->k.err);
    OPI_ASSERT_FATAL(status == OPIPE_OK || status == OPIPE_E_CANCELLED);
    return;
  }
  do {
    mix_drive(m);
    OPI_ASSERT_OK_FATAL(m->k.api->sequence_info(r->sequence, &info, &m->k.err), &m->k.err);
  } while (info.end == OPIPE_END_NONE && info.n_tokens < n_tokens);
}

/* ---- the mix ---- */

/* A third of them begin with the same page and a little more, a third will soon fill a page, as far
 * as the context has room. */
static inline void mix_make_prompt(mix *m, uint32_t i, uint32_t context) {
  mix_record *r = &m->records[i];
  const bool alike = i % 6 < 2 && context == MIX_ROOM, near = i % 6 < 4;
  r->n_ids = alike                ? 66 + i / 6
             : context < MIX_ROOM ? (near ? context / 2 - i % 2 : 1 + 3 * i % 9)
             : near               ? MIX_ROOM - 17 - i % 2
                                  : 1 + 13 * i % 47;
  for (uint32_t n = 0; n < r->n_ids; ++n)
    r->ids[n] = alike && n < 65 ? n * n % 23 : (5 * i + n * (i + 3)) % 23;
  r->n_prompt = r->n_ids;
}

static inline void mix_begin(mix *m, uint32_t first, uint32_t end, uint32_t context) {
  for (uint32_t i = first; i < end; ++i) {
    mix_record *r = &m->records[i];
    opipe_generate_params p = opipe_generate_params_init();
    char sampling[96];
    mix_make_prompt(m, i, context);
    (void)snprintf(sampling, sizeof sampling, "temperature=%s,seed=%u,top_k=9,max_tokens=%u",
                   i % 2 == 0 ? "0" : "0.9", i, 6 + i % 5);
    p.ids = r->ids;
    p.n_ids = r->n_ids;
    p.sampling = sampling;
    p.ctx = r;
    p.on_logits = mix_on_logits;
    OPI_ASSERT_OK_FATAL(m->k.api->session_generate(m->k.session, &p, &r->sequence, &m->k.err),
                        &m->k.err);
  }
}

/* The branch has its own random numbers, and what the other's logits were before. */
static inline void mix_fork(mix *m, uint32_t of, uint32_t fork, const uint64_t *seed) {
  mix_record *r = &m->records[of], *other = &m->records[MIX_SEQUENCES + fork];
  mix_until(m, r, 1);
  OPI_ASSERT_OK_FATAL(
      m->k.api->sequence_fork(r->sequence, seed, other, &other->sequence, &m->k.err), &m->k.err);
  other->n_prompt = r->n_prompt;
}

/* A draft of the host's, right or not; too late if rows are on their way. */
static inline void mix_draft(mix *m, uint32_t i) {
  const uint32_t draft[3] = {i % 23, (i + 4) % 23, 7};
  const opipe_status status = m->k.api->sequence_draft(m->records[i].sequence, draft, 3, &m->k.err);
  OPI_ASSERT(status == OPIPE_OK || status == OPIPE_E_STATE);
}

static inline void mix_again(mix *m, uint32_t i, uint32_t context) {
  static const uint32_t more[3] = {3, 1, 4};
  mix_record *r = &m->records[i];
  opipe_sequence_info info = opipe_sequence_info_init();
  opipe_generate_params p = opipe_generate_params_init();
  OPI_ASSERT_OK_FATAL(m->k.api->sequence_info(r->sequence, &info, &m->k.err), &m->k.err);
  const uint32_t most = context - 5, less = info.n_ids > 2 ? info.n_ids - 2 : 1;
  const uint32_t keep = less < most ? less : most;
  OPI_ASSERT_OK(m->k.api->sequence_truncate(r->sequence, keep, &m->k.err), &m->k.err);
  for (uint32_t n = keep; n < MIX_ROOM; ++n)
    r->hash[n] = 0;
  p.ids = more;
  p.n_ids = 3;
  p.ctx = r;
  p.on_logits = mix_on_logits;
  p.sampling = "temperature=0,max_tokens=3";
  OPI_ASSERT_OK(m->k.api->sequence_append(r->sequence, &p, &m->k.err), &m->k.err);
}

static inline void mix_collect(mix *m) {
  opipe_generation_info info = opipe_generation_info_init();
  for (uint32_t i = 0; i < MIX_ALL; ++i) {
    mix_record *r = &m->records[i];
    opipe_sequence_info of = opipe_sequence_info_init();
    mix_until(m, r, UINT32_MAX);
    OPI_ASSERT_OK_FATAL(m->k.api->sequence_info(r->sequence, &of, &m->k.err), &m->k.err);
    OPI_ASSERT(of.end != OPIPE_END_FAILED);
    r->n_ids = of.n_ids;
    OPI_ASSERT_OK_FATAL(m->k.api->sequence_ids(r->sequence, 0, of.n_ids, r->ids, &m->k.err),
                        &m->k.err);
  }
  OPI_ASSERT_OK(m->k.api->session_generation(m->k.session, &info, &m->k.err), &m->k.err);
  m->counts->evicted += info.evicted;
  m->counts->reused += info.reused;
  m->counts->copied += info.copied;
  m->counts->accepted += info.accepted;
}

static inline void mix_run(mix *m, uint32_t context) {
  static const uint64_t seed = 77;
  mix_begin(m, 0, 12, context);
  mix_until(m, &m->records[0], 2);
  mix_draft(m, 2);
  mix_begin(m, 12, 18, context);
  OPI_ASSERT_OK(m->k.api->sequence_cancel(m->records[3].sequence, &m->k.err), &m->k.err);
  mix_fork(m, 5, 0, &seed);
  mix_fork(m, 13, 1, NULL);
  mix_draft(m, 14);
  mix_begin(m, 18, MIX_SEQUENCES, context);
  mix_fork(m, 4, 2, &seed);
  OPI_ASSERT_OK(m->k.api->sequence_cancel(m->records[19].sequence, &m->k.err), &m->k.err);
  static const uint32_t twice[] = {1, 7, 17};
  for (size_t i = 0; i < sizeof twice / sizeof *twice; ++i) {
    mix_until(m, &m->records[twice[i]], UINT32_MAX);
    mix_again(m, twice[i], context);
  }
  mix_collect(m);
}

/* ---- alone ---- */

static inline void mix_compare(mix *m, const mix_way *w, uint32_t i) {
  const mix_record *r = &m->records[i];
  mix_record alone = {.forced = r->ids};
  char sampling[64];
  opipe_generate_params p = opipe_generate_params_init();
  if (r->n_ids == r->n_prompt)
    return; /* cancelled before its first token */
  (void)snprintf(sampling, sizeof sampling, "max_tokens=%u", r->n_ids - r->n_prompt);
  p.ids = r->ids;
  p.n_ids = r->n_prompt;
  p.sampling = sampling;
  p.ctx = &alone;
  p.salt = i + 1; /* finds no pages of others */
  p.on_logits = mix_on_logits;
  OPI_ASSERT_OK_FATAL(m->k.api->session_generate(m->k.session, &p, &alone.sequence, &m->k.err),
                      &m->k.err);
  OPI_ASSERT_OK_FATAL(
      m->k.api->sequence_wait(alone.sequence, UINT32_MAX, UINT64_C(30000000000), &m->k.err),
      &m->k.err);
  m->k.api->sequence_release(alone.sequence);
  for (uint32_t n = r->n_prompt; n < r->n_ids; ++n) {
    m->counts->compared += r->hash[n] != 0;
    (void)opi_test_check(
        r->hash[n] == 0 || r->hash[n] == alone.hash[n], __FILE__, __LINE__, false,
        "%s, stages %u, copies %u, width %u, groups %u, rows %u, %s, %s, pages of %u: sequence %u "
        "has other logits than alone for token %u",
        m->form->name, w->at[MIX_STAGES] + 1, w->at[MIX_COPIES] + 1, w->at[MIX_WIDTH] + 1,
        w->at[MIX_GROUPS] + 1, mix_rows[w->at[MIX_ROWS]], m->driven ? "host" : "library",
        mix_transports[w->at[MIX_TRANSPORT]], mix_pages[w->at[MIX_PAGE]], i, n);
  }
}

/* Compares one of `each` sequences, others in every run. */
static inline void mix_try(const mix_form *forms, const mix_way *w, uint32_t each,
                           mix_counts *io_counts) {
  static mix m;
  memset(&m, 0, sizeof m);
  m.counts = io_counts;
  m.form = &forms[w->at[MIX_FORM]];
  mix_begin_all(&m, w, io_counts->runs);
  mix_run(&m, m.form->context);
  mix_end_all(&m, w);
  for (uint32_t i = (uint32_t)(io_counts->runs % each); i < MIX_ALL; i += each)
    mix_compare(&m, w, i);
  kit_close(&m.k);
  ++io_counts->runs;
}

/* The runs have brought about all that they were to. */
static inline void mix_check(const mix_counts *c) {
  printf("%lu runs, %lu logits, %lu evictions, %lu ids reused, %lu pages copied, %lu drafted\n",
         c->runs, c->compared, c->evicted, c->reused, c->copied, c->accepted);
  OPI_ASSERT(c->compared > 40 * c->runs);
  OPI_ASSERT(c->evicted > 0 && c->reused > 0 && c->copied > 0 && c->accepted > 0);
}

#endif /* TESTS_ABI_MIXES_H */
