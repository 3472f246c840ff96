/* SPDX-License-Identifier: Apache-2.0 */
/* Exact orders: torch's published files, and the papers' rules written down a second time, as
 * loops over phases where the plugins count slots or positions.
 */
#include <dirent.h>
#include <stdarg.h>

#include "tests/plugins/schedules/kit.h"

enum { TEXT = 1 << 16 };

static asked_order o;
static char found[TEXT], wanted[TEXT];

static bool ask(const char *schedule, uint32_t ranks, uint32_t m) {
  const kit_request q = {schedule, OPIPE_MODE_TRAIN, ranks, 0, m, 0, 0};
  asked_end(&o);
  return OPI_ASSERT_OK(kit_ask(&q, &o), &asked_err);
}

static void add(const char *fmt, ...) OPIPE_PRINTF(1, 2);
static void add(const char *fmt, ...) {
  const size_t n = strlen(wanted);
  va_list args;
  va_start(args, fmt);
  if (n > 0 && n + 1 < TEXT)
    wanted[n] = ' ', wanted[n + 1] = '\0';
  (void)vsnprintf(wanted + n + (n > 0), TEXT - n - 1, fmt, args);
  va_end(args);
}

/* Compares `wanted` with the order of a rank, and empties it. */
static void compare(const char *schedule, uint32_t rank) {
  kit_text(&o, rank, found, TEXT);
  if (!OPI_ASSERT_STR(found, wanted)) {
    fprintf(stderr, "  %s, %u ranks, rank %u, %u micro-batches\n", schedule, o.layout.n_ranks, rank,
            o.n_microbatches);
  }
  wanted[0] = '\0';
}

/* ---- torch ---- */

/* One row of the file per rank; empty cells are idle. */
static void compare_file(const char *path, const char *schedule, uint32_t ranks, uint32_t m) {
  size_t n = 0;
  char *text = opi_test_read_file(path, &n);
  if (!OPI_ASSERT(text != NULL) || !ask(schedule, ranks, m))
    return;
  char *line = text;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    char *end = line + strcspn(line, "\n");
    OPI_ASSERT_FATAL(*line != '\0');
    for (char *cell = line; cell < end;) {
      const size_t length = strcspn(cell, ",\r\n");
      if (length > 0)
        add("%.*s", (int)length, cell);
      cell += length + 1;
    }
    compare(schedule, rank);
    line = end + (*end == '\n');
  }
  OPI_ASSERT_STR(line, "");
  free(text);
}

static uint32_t number_after(const char *name, const char *mark) {
  const char *at = strstr(name, mark);
  return at == NULL ? 0 : (uint32_t)strtoul(at + strlen(mark), NULL, 10);
}

static void test_torch_files(void) {
  static const struct {
    const char *prefix, *schedule; /* the chunks come after it */
  } families[] = {{"gpipe_", "gpipe"},
                  {"loopedbfs_", "looped-bfs:chunks="},
                  {"interleaved1f1b_", "interleaved:warmup=torch,chunks="}};
  const char *folder = opi_test_shared("oracles/schedules/torch/generated");
  char path[1024], schedule[64];
  uint32_t n_files = 0;
  if (folder == NULL)
    return;
  DIR *dir = opendir(folder);
  OPI_ASSERT_FATAL(dir != NULL);
  for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; ++i) {
      if (strncmp(e->d_name, families[i].prefix, strlen(families[i].prefix)) != 0 ||
          strstr(e->d_name, "_compute.csv") == NULL)
        continue;
      const uint32_t v = number_after(e->d_name, "_v");
      (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
      if (v == 0)
        (void)snprintf(schedule, sizeof schedule, "%s", families[i].schedule);
      else
        (void)snprintf(schedule, sizeof schedule, "%s%u", families[i].schedule, v);
      compare_file(path, schedule, number_after(e->d_name, "_r"), number_after(e->d_name, "_m"));
      ++n_files;
    }
  }
  (void)closedir(dir);
  OPI_ASSERT_INT(n_files, 12);
}

/* ---- 1F1B ---- */

/* K_i forwards, then (B, F) until the forwards run out, then the backwards that are left. */
static void check_dapple(const char *schedule, uint32_t s, uint32_t m, uint32_t after_times,
                         uint32_t cap) {
  if (!ask(schedule, s, m))
    return;
  for (uint32_t i = 0; i < s; ++i) {
    uint32_t k = after_times * (s - i - 1) + 1, f = 0, b = 0;
    k = k < cap ? k : cap;
    for (; f < k && f < m; ++f)
      add("%uF%u", i, f);
    for (; f < m; ++f, ++b) {
      add("%uB%u", i, b);
      add("%uF%u", i, f);
    }
    for (; b < m; ++b)
      add("%uB%u", i, b);
    compare(schedule, i);
  }
}

static void test_dapple_policies(void) {
  for (uint32_t s = 1; s <= 6; ++s) {
    for (uint32_t m = 1; m <= 12; ++m) {
      check_dapple("1f1b", s, m, 1, UINT32_MAX);
      check_dapple("1f1b:policy=pa", s, m, 1, UINT32_MAX);
      check_dapple("1f1b:policy=pb", s, m, 2, UINT32_MAX);
      check_dapple("1f1b:eager=1", s, m, 2, UINT32_MAX);
      check_dapple("1f1b:policy=pb,depth=3", s, m, 2, 3);
      check_dapple("1f1b:depth=1", s, m, 1, 1);
    }
  }
}

/* 1000 bytes a micro-batch on ranks with 3500 bytes left: D_mem = 3. */
static void test_memory_bounds_the_stash(void) {
  const kit_request q = {"1f1b:policy=pb", OPIPE_MODE_TRAIN, 4, 0, 9, 1000, 3500};
  const kit_costs costs = {1, 2, 0};
  asked_end(&o);
  if (!OPI_ASSERT_OK(kit_ask(&q, &o), &asked_err))
    return;
  const kit_times t = kit_replay_order(&o, &costs);
  OPI_ASSERT_INT(t.n_left + t.n_wrong + t.n_missing, 0);
  OPI_ASSERT_INT(t.peak[0], 3);
  OPI_ASSERT_INT(t.peak[2], 3);
  OPI_ASSERT_INT(t.peak[3], 1);
}

/* ---- interleaved ---- */

static void megatron_pass(uint32_t k, bool forward, uint32_t rank, uint32_t p, uint32_t v) {
  const uint32_t in_group = k % (p * v), chunk = in_group / p;
  const uint32_t microbatch = k / (p * v) * p + in_group % p;
  add("%u%c%u", (forward ? chunk : v - 1 - chunk) * p + rank, forward ? 'F' : 'B', microbatch);
}

/* The list of one rank as Megatron-LM makes it, beside what the schedule made. */
static void check_megatron_rank(const char *schedule, uint32_t rank, uint32_t p, uint32_t v,
                                uint32_t m) {
  uint32_t w = (p - rank - 1) * 2 + (v - 1) * p;
  w = m == p || w > m * v ? m * v : w;
  for (uint32_t k = 0; k < w; ++k)
    megatron_pass(k, true, rank, p, v);
  for (uint32_t i = 0; i < m * v; ++i) {
    if (w + i < m * v)
      megatron_pass(w + i, true, rank, p, v);
    megatron_pass(i, false, rank, p, v);
  }
  compare(schedule, rank);
}

static void test_megatron_order(void) {
  char schedule[64];
  for (uint32_t p = 1; p <= 6; ++p) {
    for (uint32_t v = 2; v <= 4; ++v) {
      for (uint32_t m = p; m <= 4 * p; m += p) {
        (void)snprintf(schedule, sizeof schedule, "interleaved:chunks=%u", v);
        if (!ask(schedule, p, m))
          return;
        for (uint32_t rank = 0; rank < p; ++rank)
          check_megatron_rank(schedule, rank, p, v, m);
      }
    }
  }
}

/* One chunk is 1F1B. */
static void test_one_chunk(void) {
  for (uint32_t p = 1; p <= 6; ++p) {
    for (uint32_t m = 1; m <= 9; ++m)
      check_dapple("interleaved:chunks=1", p, m, 1, UINT32_MAX);
  }
}

/* ---- Chimera ---- */

/* The two directions of one rank: which stage, which micro-batches come next. */
typedef struct side {
  uint32_t stage, first, n, forward, backward; /* first and n: of a unit */
  uint32_t unit_size;
} side;

static void side_pass(side *s, bool forward) {
  const uint32_t k = forward ? s->forward++ : s->backward++;
  add("%u%c%u", s->stage, forward ? 'F' : 'B', k / s->n * s->unit_size + s->first + k % s->n);
}

/* The authors' phases for f = 1; `per` micro-batches in a forward slot. */
static void chimera_rank(uint32_t d, uint32_t rank, uint32_t units, uint32_t per) {
  const uint32_t h = d / 2, n = h * per;
  const side down = {rank, 0, n, 0, 0, 2 * n}, up = {d - 1 - rank, n, n, 0, 0, 2 * n};
  side x = rank < h ? down : up, y = rank < h ? up : down;
  const uint32_t a = rank < h ? h - rank : rank - h + 1, b = h - a;
  for (uint32_t u = 0; u < units; ++u) {
    for (uint32_t i = 0; i < a; ++i) {
      if (u > 0)
        side_pass(&x, false);
      for (uint32_t k = 0; k < per; ++k)
        side_pass(&x, true);
    }
    for (uint32_t i = 0; i < b; ++i) {
      for (uint32_t k = 0; k < per; ++k)
        side_pass(&y, true);
      for (uint32_t k = 0; k < per; ++k)
        side_pass(&x, true);
    }
    for (uint32_t i = 0; i < a; ++i) {
      for (uint32_t k = 0; k < per; ++k)
        side_pass(&y, true);
      side_pass(&y, false);
    }
    for (uint32_t i = 0; i < (per == 1 ? b : b + h); ++i) {
      side_pass(&x, false);
      side_pass(&y, false);
    }
  }
  for (uint32_t i = 0; i < a; ++i)
    side_pass(&x, false);
}

static void check_chimera(const char *schedule, uint32_t d, uint32_t units, uint32_t per) {
  if (!ask(schedule, d, units * d * per))
    return;
  for (uint32_t rank = 0; rank < d; ++rank) {
    chimera_rank(d, rank, units, per);
    compare(schedule, rank);
  }
}

static void test_chimera_phases(void) {
  static const uint32_t sizes[] = {2, 4, 6, 8, 16, 32};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    for (uint32_t units = 1; units <= 3; ++units) {
      check_chimera("chimera", sizes[i], units, 1);
      check_chimera("chimera:concat=doubling", sizes[i], units, 2);
    }
  }
  check_chimera("chimera:concat=doubling", 8, 1, 1); /* N = D: nothing to double */
}

/* The slot of a pass, from where the pipeline and its share of the micro-batches begin. */
static uint32_t slot_of(const opipe_action *a, uint32_t d, const uint32_t *first) {
  const uint32_t k = a->microbatch - first[a->replica];
  return 2 * k + (a->pass == OPIPE_PASS_FORWARD ? a->stage : 2 * d - a->stage - 1);
}

/* 2 f pipelines: shifted by D / f, mirrored; every rank by strictly rising slots. */
static void test_chimera_slots(void) {
  char schedule[64];
  for (uint32_t d = 2; d <= 24; d += 2) {
    for (uint32_t f = 1; f <= d / 2; ++f) {
      uint32_t first[ASKED_RANKS];
      (void)snprintf(schedule, sizeof schedule, "chimera:pipelines=%u", 2 * f);
      if (d / 2 % f != 0 || !ask(schedule, d, d))
        continue;
      OPI_ASSERT_INT(o.layout.n_replicas, 2 * f);
      for (uint32_t x = 0; x < 2 * f; ++x) {
        first[x] = x * (d / (2 * f));
        for (uint32_t s = 0; s < d; ++s) {
          const uint32_t shift = x / 2 * (d / f);
          const uint32_t rank = x % 2 == 0 ? (s + shift) % d : (2 * d - 1 - s - shift) % d;
          OPI_ASSERT_INT(o.instance_rank[s * 2 * f + x], rank);
        }
      }
      for (uint32_t rank = 0; rank < d; ++rank) {
        OPI_ASSERT_INT(o.first[rank + 1] - o.first[rank], 2 * d);
        for (uint32_t i = o.first[rank] + 1; i < o.first[rank + 1]; ++i)
          OPI_ASSERT(slot_of(&o.actions[i - 1], d, first) < slot_of(&o.actions[i], d, first));
      }
    }
  }
}

/* Fewer than D, more than D, odd: the first pipelines take the extra ones. */
static void test_chimera_shares(void) {
  for (uint32_t f = 1; f <= 2; ++f) {
    for (uint32_t m = 1; m <= 21; ++m) {
      uint32_t n[4] = {0};
      if (!ask(f == 1 ? "chimera" : "chimera:pipelines=4", 4, m))
        return;
      for (uint32_t i = 0; i < o.n; ++i) {
        n[o.actions[i].replica] +=
            o.actions[i].stage == 2 && o.actions[i].pass == OPIPE_PASS_FORWARD;
      }
      const uint32_t down = n[0] + n[2], up = n[1] + n[3];
      OPI_ASSERT_INT(down + up, m);
      OPI_ASSERT_INT(down - up, m % 2);
    }
  }
}

static void test_chimera_halves(void) {
  if (!ask("chimera:concat=halving", 2, 3))
    return;
  OPI_ASSERT_INT(o.layout.n_parts, 2);
  kit_text(&o, 0, found, TEXT);
  OPI_ASSERT_STR(found, "0F0 1F1 1B1.0 0B0.0 1B1.1 0B0.1 0F2 0B2.0 0B2.1");
  kit_text(&o, 1, found, TEXT);
  OPI_ASSERT_STR(found, "0F1 1F0 1B0.0 0B1.0 1B0.1 0B1.1 1F2 1B2.0 1B2.1");
}

static void test_chimera_sync(void) {
  ask("chimera", 4, 4);
  OPI_ASSERT_INT(o.layout.sync, OPIPE_SYNC_END);
  ask("chimera:sync=end", 4, 4);
  OPI_ASSERT_INT(o.layout.sync, OPIPE_SYNC_END);
  ask("chimera:sync=eager", 4, 4);
  OPI_ASSERT_INT(o.layout.sync, OPIPE_SYNC_EAGER);
  ask("chimera:sync=eager-opt", 4, 4);
  OPI_ASSERT_INT(o.layout.sync, OPIPE_SYNC_EAGER_OPT);
}

/* ---- 2BW ---- */

/* The stream of five mini-batches on one rank: every pass of micro-batch k (from 1) sees version
 * max(floor((k - 1) / m) - 1, 0), and a rank is warm after d - r - 1 forwards. */
static void check_2bw_rank(uint32_t rank, uint32_t d, uint32_t m) {
  enum { STEPS = 5 };
  uint32_t n_forward = 0, n_backward = 0;
  for (int32_t body = -1; body < STEPS; ++body) { /* -1: the prologue */
    for (uint32_t i = o.first[rank]; i < o.first[rank + 1]; ++i) {
      const opipe_action *a = &o.actions[i];
      const bool next = (a->flags & OPIPE_ACTION_NEXT_STEP) != 0;
      if ((body < 0 && !next) || (body == STEPS - 1 && next))
        continue;
      const bool forward = a->pass == OPIPE_PASS_FORWARD;
      const uint32_t k = (uint32_t)(body + (next ? 1 : 0)) * m + a->microbatch + 1;
      const int32_t newest = body < 0 ? 0 : body; /* a step at the end of every body */
      const int32_t seen = newest - (int32_t)a->version;
      const int32_t rule = (int32_t)((k - 1) / m) - 1;
      OPI_ASSERT_INT(seen < 0 ? 0 : seen, rule < 0 ? 0 : rule);
      OPI_ASSERT(a->version <= 1);
      OPI_ASSERT_INT(k, forward ? ++n_forward : ++n_backward); /* first in, first out */
      if (!forward) { /* d - r in flight, until the stream ends */
        const uint32_t ahead = n_forward - n_backward + 1;
        const uint32_t left = STEPS * m - n_backward + 1;
        OPI_ASSERT_INT(ahead, d - rank < left ? d - rank : left);
      }
    }
  }
  OPI_ASSERT_INT(n_forward, STEPS * m);
  OPI_ASSERT_INT(n_backward, STEPS * m);
}

static void test_2bw_versions(void) {
  for (uint32_t d = 1; d <= 6; ++d) {
    for (uint32_t m = d; m <= 3 * d + 1; ++m) {
      if (!ask("2bw", d, m))
        return;
      OPI_ASSERT_INT(o.layout.versions, OPIPE_VERSIONS_DOUBLE_BUFFERED);
      for (uint32_t rank = 0; rank < d; ++rank)
        check_2bw_rank(rank, d, m);
    }
  }
}

OPI_TEST_MAIN("orders of schedules", OPI_TEST(test_torch_files), OPI_TEST(test_dapple_policies),
              OPI_TEST(test_memory_bounds_the_stash), OPI_TEST(test_megatron_order),
              OPI_TEST(test_one_chunk), OPI_TEST(test_chimera_phases), OPI_TEST(test_chimera_slots),
              OPI_TEST(test_chimera_shares), OPI_TEST(test_chimera_halves),
              OPI_TEST(test_chimera_sync), OPI_TEST(test_2bw_versions))
