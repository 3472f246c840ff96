/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of two processes, here threads with a team: each writes what its rank owns and reads
 * what it holds; one refusal, one damaged shard, one other folder or one death is everybody's, and
 * the earlier checkpoint stays whole. ctest: timeout=120 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "runtime/checkpoint/checkpoint.h"
#include "tests/runtime/launch/team_kit.h"
#include "tests/runtime/weights/toy_weights.h"

enum { MEMBERS = 2, NEVER = 1000, FILES = 1 + 2 * MEMBERS };
static const uint64_t position[OPI_POSITION] = {3, 14, 15, 92};

static void adam(tw_place_set *t, uint32_t n_versions) {
  tw_setup(t, 2, 1);
  t->optimizer = (opi_optimizer){.kind = OPIPE_OPTIMIZER_ADAMW,
                                 .lr = 0.1,
                                 .beta1 = 0.9,
                                 .beta2 = 0.99,
                                 .epsilon = 1e-3,
                                 .decay = 0.5};
  t->options.n_versions = n_versions;
}

/* One of the processes: rank `rank` is here, the other one elsewhere. */
static void open_part(tw_place_set *t, uint32_t rank, uint32_t n_versions) {
  adam(t, n_versions);
  for (uint32_t i = 0; i < 2; ++i) {
    if (t->instances[i].rank == rank)
      continue;
    t->instances[i].elsewhere = 1;
    t->instances[i].alignment = TW_ALIGN;
    t->instances[i].device = NULL;
    t->instances[i].queue = NULL;
    t->instances[i].programs = NULL;
    t->instances[i].n_programs = 0;
  }
  tw_open(t);
}

/* Every state of every parameter of `from` to `to`, as far as its rank is there. */
static void copy_all(tw_place_set *from, tw_place_set *to) {
  static const uint32_t states[] = {OPI_TENSOR_FIRST, OPI_TENSOR_SECOND, OPI_TENSOR_MASTER};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_weights_clock clock;
  float values[16];
  for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
    for (uint32_t s = 0; s < 3; ++s) {
      for (uint32_t v = 0; v < (s == 2 ? to->options.n_versions : 1); ++v) {
        const uint64_t n_bytes = tw_elems(slot) * sizeof(float);
        OPI_ASSERT_OK(
            opi_weights_get(from->weights, tw_names[slot], states[s], v, values, n_bytes, &err),
            &err);
        OPI_ASSERT_OK(
            opi_weights_set(to->weights, tw_names[slot], states[s], v, values, n_bytes, &err),
            &err);
      }
    }
  }
  opi_weights_get_clock(from->weights, &clock);
  opi_weights_set_clock(to->weights, &clock);
}

/* Compares every state that `part` holds; returns how many. */
static uint32_t expect_equal(tw_place_set *whole, tw_place_set *part) {
  static const uint32_t states[] = {OPI_TENSOR_FIRST, OPI_TENSOR_SECOND, OPI_TENSOR_MASTER};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_weight_info info;
  uint32_t n = 0;
  for (uint32_t i = 0; opi_weights_info(part->weights, i, &info); ++i) {
    const uint64_t n_bytes = info.source->n_bytes;
    for (uint32_t s = 0; info.trained != 0 && info.owned != 0 && s < 3; ++s) {
      for (uint32_t v = 0; v < (s == 2 ? part->options.n_versions : 1); ++v, ++n) {
        float x[16], y[16];
        OPI_ASSERT_OK(
            opi_weights_get(whole->weights, info.source->name, states[s], v, x, n_bytes, &err),
            &err);
        OPI_ASSERT_OK(
            opi_weights_get_own(part->weights, info.source->name, states[s], v, y, n_bytes, &err),
            &err);
        OPI_ASSERT(memcmp(x, y, (size_t)n_bytes) == 0);
      }
    }
  }
  return n;
}

/* ---- two processes ---- */

typedef struct pair pair;
typedef enum action { SAVES, LOADS, TRIES } action;

typedef struct member {
  pair *all;
  tw_place_set t;
  const char *folder;
  opi_team *team;
  uint32_t n_calls, dies_at; /* collective calls so far; the one at which it dies */
  opi_checkpoint_info info;
} member;

struct pair {
  member members[MEMBERS];
  kit_team kit;
  action does;
};

static opipe_status gather(void *ctx, const opipe_gather_params *params, opipe_error *err) {
  member *m = ctx;
  if (m->n_calls++ == m->dies_at)
    return opi_team_abort(m->team, "it dies", err) < 0 ? err->status : opi_team_check(m->team, err);
  return opi_team_gather(m->team, params, err);
}

static opipe_status check(void *ctx, opipe_error *err) {
  return opi_team_check(((member *)ctx)->team, err);
}

static opipe_status run(kit_member *k) {
  pair *p = k->kit->ctx;
  member *m = &p->members[k->rank];
  const opipe_allocator *allocator = &m->t.memory.allocator;
  const opi_checkpoint_group group = {k->rank, MEMBERS, gather, check, m};
  m->team = k->team;
  m->n_calls = 0;
  switch (p->does) {
    case SAVES:
      return opi_checkpoint_save_shards(allocator, m->t.weights, &group, m->folder, position,
                                        OPIPE_OK, &k->err);
    case LOADS:
      return opi_checkpoint_load_shards(allocator, m->t.weights, &group, m->folder, OPIPE_OK,
                                        &m->info, &k->err);
    default:
      return opi_checkpoint_try_shards(allocator, &group, m->folder, OPIPE_OK, &k->err);
  }
}

static void pair_open(pair *p, const char *folder, uint32_t n_versions) {
  memset(p, 0, sizeof *p);
  for (uint32_t r = 0; r < MEMBERS; ++r) {
    open_part(&p->members[r].t, r, n_versions);
    p->members[r].folder = folder;
    p->members[r].dies_at = NEVER;
  }
}

/* Both do it; the status of each is in its kit's member. */
static void both(pair *p, action does) {
  static uint32_t n;
  char name[32];
  (void)snprintf(name, sizeof name, "shards-%u", ++n);
  p->does = does;
  p->kit = (kit_team){
      .size = MEMBERS, .timeout_ns = 20 * OPI_SECOND, .job = kit_job(name), .run = run, .ctx = p};
  kit_run(&p->kit);
}

static void both_ok(pair *p, action does) {
  both(p, does);
  for (uint32_t r = 0; r < MEMBERS; ++r)
    OPI_ASSERT_OK(p->kit.members[r].status, &p->kit.members[r].err);
}

/* Both refuse, and say all of this. */
static void both_say(pair *p, action does, const char *one, const char *other) {
  both(p, does);
  for (uint32_t r = 0; r < MEMBERS; ++r) {
    const kit_member *m = &p->kit.members[r];
    if (m->status >= 0 || strstr(m->err.message, one) == NULL ||
        strstr(m->err.message, other) == NULL) {
      OPI_FAIL("process %u answers %d '%s', not '%s' and '%s'", r, (int)m->status, m->err.message,
               one, other);
    }
  }
}

static void pair_end(pair *p) {
  for (uint32_t r = 0; r < MEMBERS; ++r)
    tw_end(&p->members[r].t);
}

/* ---- files ---- */

static uint32_t n_files(const char *folder) {
  uint32_t n = 0;
  DIR *list = opendir(folder);
  for (const struct dirent *e = list == NULL ? NULL : readdir(list); e != NULL; e = readdir(list))
    n += e->d_name[0] != '.';
  if (list != NULL)
    (void)closedir(list);
  return n;
}

static const char *path_of(const char *folder, const char *file) {
  static char path[600];
  (void)snprintf(path, sizeof path, "%s/%s", folder, file);
  return path;
}

static size_t read_bytes(const char *folder, const char *file, char out[8192]) {
  FILE *in = fopen(path_of(folder, file), "rb");
  OPI_ASSERT_FATAL(in != NULL);
  const size_t n = fread(out, 1, 8192, in);
  (void)fclose(in);
  OPI_ASSERT_FATAL(n < 8192);
  return n;
}

static void write_bytes(const char *folder, const char *file, const char *bytes, size_t n) {
  FILE *out = fopen(path_of(folder, file), "wb");
  OPI_ASSERT_FATAL(out != NULL && fwrite(bytes, 1, n, out) == n);
  (void)fclose(out);
}

static void load_whole(tw_place_set *t, const char *folder, opi_checkpoint_info *info) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_checkpoint_load(&t->memory.allocator, t->weights, folder, info, &err),
                      &err);
}

/* ---- tests ---- */

static void test_each_writes_and_reads_its_own(void) {
  for (uint32_t versions = 1; versions <= 2; ++versions) {
    const char *folder = opi_test_tmp(versions == 1 ? "one" : "two");
    tw_place_set whole, again;
    opi_checkpoint_info info = {.clock = {.n_steps = 0}};
    opipe_error err = OPIPE_ERROR_INIT;
    char text[8192];
    pair p;
    adam(&whole, versions);
    tw_open(&whole);
    for (uint32_t step = 0; step < 3; ++step)
      tw_step(&whole, step, 1);
    pair_open(&p, folder, versions);
    for (uint32_t r = 0; r < MEMBERS; ++r)
      copy_all(&whole, &p.members[r].t);
    both_ok(&p, TRIES);
    OPI_ASSERT(access(folder, F_OK) != 0);
    both_ok(&p, SAVES);
    OPI_ASSERT_INT(n_files(folder), FILES);
    /* "b" is in stage 1 alone, "a" and "tied" are of stage 0 first */
    text[read_bytes(folder, "weights-1-1.safetensors", text)] = '\0';
    OPI_ASSERT(strstr(text + 8, "\"b\"") != NULL && strstr(text + 8, "\"tied\"") == NULL);
    adam(&again, versions);
    tw_open(&again);
    load_whole(&again, folder, &info);
    OPI_ASSERT(memcmp(info.position, position, sizeof position) == 0 && info.clock.n_steps == 3);
    OPI_ASSERT(expect_equal(&whole, &again) == 3 * (2 + versions));
    /* the same by two, also of a file that one wrote */
    for (uint32_t by_one = 0; by_one < 2; ++by_one) {
      pair q;
      if (by_one == 1) {
        OPI_ASSERT_OK(
            opi_checkpoint_save(&whole.memory.allocator, whole.weights, folder, position, &err),
            &err);
        OPI_ASSERT_INT(n_files(folder), 3);
      }
      pair_open(&q, folder, versions);
      both_ok(&q, LOADS);
      OPI_ASSERT_INT(q.members[1].info.clock.n_steps, 3);
      OPI_ASSERT_INT(expect_equal(&whole, &q.members[0].t), 2 * (2 + versions));
      OPI_ASSERT_INT(expect_equal(&whole, &q.members[1].t), 2 + versions);
      pair_end(&q);
    }
    both_ok(&p, SAVES);
    OPI_ASSERT_INT(n_files(folder), FILES);
    OPI_ASSERT(access(path_of(folder, "state-3-1.safetensors"), F_OK) == 0);
    pair_end(&p);
    tw_end(&whole);
    tw_end(&again);
  }
}

static void test_every_wrong_bit_is_noticed(void) {
  static const char *const files[FILES] = {"manifest.json", "weights-1-0.safetensors",
                                           "state-1-0.safetensors", "weights-1-1.safetensors",
                                           "state-1-1.safetensors"};
  const char *folder = opi_test_tmp("flips");
  opi_test_random random = {.state = 11};
  tw_place_set whole;
  pair p;
  pair_open(&p, folder, 1);
  both_ok(&p, SAVES);
  adam(&whole, 1);
  tw_open(&whole);
  for (uint32_t f = 0; f < FILES; ++f) {
    char bytes[8192];
    const size_t n = read_bytes(folder, files[f], bytes);
    uint32_t missed = 0;
    for (uint32_t i = 0; i < 150; ++i) {
      const size_t bit =
          i < 64 ? n * 8 - 1 - i : (size_t)opi_test_uniform(&random, 0, (double)(n * 8) - 1);
      bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
      write_bytes(folder, files[f], bytes, n);
      missed += opi_checkpoint_load(&whole.memory.allocator, whole.weights, folder, NULL, NULL) ==
                OPIPE_OK;
      if (i % 50 == 0) { /* one of them reads the bytes, and both refuse */
        both(&p, LOADS);
        missed += p.kit.members[0].status == OPIPE_OK || p.kit.members[1].status == OPIPE_OK;
      }
      bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
    }
    write_bytes(folder, files[f], bytes, n);
    if (missed != 0)
      OPI_FAIL("%s: %u of 150 wrong bits were not noticed", files[f], missed);
  }
  both_ok(&p, LOADS);
  tw_end(&whole);
  pair_end(&p);
}

static void test_shards_that_are_not_there(void) {
  const char *folder = opi_test_tmp("shards"), *other = opi_test_tmp("others");
  char own[8192], foreign[8192];
  opi_weights_clock clock = {.n_steps = 5, .loss_scale = 1};
  opipe_error err = OPIPE_ERROR_INIT;
  pair p;
  pair_open(&p, folder, 1);
  both_ok(&p, SAVES);
  const size_t n = read_bytes(folder, "state-1-1.safetensors", own);
  write_bytes(folder, "state-1-1.safetensors", own, n - 4);
  both_say(&p, LOADS, "shard 2 of 2: state-1-1.safetensors: tensor 'second/b' ends at byte 56, ",
           "the file has 52 bytes of data");
  (void)unlink(path_of(folder, "state-1-1.safetensors"));
  both_say(&p, LOADS, "shard 2 of 2: opening state-1-1.safetensors", "No such file");
  for (uint32_t r = 0; r < MEMBERS; ++r) {
    float b[7] = {1, 2, 3, 4, 5, 6, 7};
    p.members[r].folder = other;
    OPI_ASSERT_OK(
        opi_weights_set(p.members[r].t.weights, "b", OPI_TENSOR_FIRST, 0, b, sizeof b, &err), &err);
  }
  both_ok(&p, SAVES);
  const size_t n_foreign = read_bytes(other, "state-1-1.safetensors", foreign);
  OPI_ASSERT(n_foreign == n && memcmp(own, foreign, n) != 0);
  write_bytes(folder, "state-1-1.safetensors", foreign, n);
  p.members[0].folder = p.members[1].folder = folder;
  both_say(&p, LOADS, "state-1-1.safetensors is damaged: tensor 'first/b' has XXH3 ",
           ", manifest.json says ");
  write_bytes(folder, "state-1-1.safetensors", own, n);
  /* one process reads another checkpoint */
  p.members[1].folder = other;
  both_say(&p, LOADS, "manifest.json of process 0 has generation 1, step 0 and XXH3 ",
           "that of process 1 generation 1, step 0 and XXH3 ");
  /* or is at another step */
  p.members[1].folder = folder;
  opi_weights_set_clock(p.members[1].t.weights, &clock);
  both_say(&p, SAVES, "process 0 has done 0 steps, process 1 5", folder);
  both_ok(&p, LOADS);
  pair_end(&p);
}

static void test_the_folder_is_one(void) {
  const char *folder = opi_test_tmp("common"), *other = opi_test_tmp("another");
  pair p;
  pair_open(&p, folder, 1);
  p.members[1].folder = other;
  both_say(&p, TRIES, "opening the folder", "/another");
  both_say(&p, SAVES, "/common of process 0", "/another");
  OPI_ASSERT(access(folder, F_OK) != 0 && access(other, F_OK) != 0);
  OPI_ASSERT(mkdir(other, 0777) == 0);
  both_say(&p, TRIES, "/another is another folder than", "and none is here");
  write_bytes(other, "folder.token", "0123456789abcdef0123456789abcdef", 32);
  both_say(&p, SAVES, "/common of process 0: process 0 has written the token",
           "and 0123456789abcdef0123456789abcdef is here");
  OPI_ASSERT(access(folder, F_OK) != 0);
  OPI_ASSERT_INT(n_files(other), 1);
  pair_end(&p);
}

/* One process cannot write its shard, or a full disk stops all: both say so, and the earlier
 * checkpoint is there and nothing else. */
static void test_a_shard_that_cannot_be_written(void) {
  const char *folder = opi_test_tmp("full"), *new_folder = opi_test_tmp("full_new");
  struct rlimit before;
  uint32_t n_refused = 0;
  pair p;
  pair_open(&p, folder, 1);
  both_ok(&p, SAVES);
  OPI_ASSERT(mkdir(path_of(folder, "state-2-1.safetensors"), 0777) == 0); /* a sweep leaves it */
  both_say(&p, SAVES, "process 1 (pid", "state-2-1.safetensors");
  OPI_ASSERT_INT(n_files(folder), FILES + 1);
  OPI_ASSERT(rmdir(path_of(folder, "state-2-1.safetensors")) == 0);
  both_ok(&p, LOADS);
  OPI_ASSERT(getrlimit(RLIMIT_FSIZE, &before) == 0);
  (void)signal(SIGXFSZ, SIG_IGN);
  for (rlim_t most = 0; most < 4096; most += 200) {
    const struct rlimit limit = {.rlim_cur = most, .rlim_max = before.rlim_max};
    OPI_ASSERT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    p.members[0].folder = p.members[1].folder = new_folder;
    both(&p, SAVES);
    const bool made = p.kit.members[0].status == OPIPE_OK;
    p.members[0].folder = p.members[1].folder = folder;
    both(&p, SAVES);
    OPI_ASSERT(setrlimit(RLIMIT_FSIZE, &before) == 0);
    OPI_ASSERT_INT(p.kit.members[0].status, p.kit.members[1].status);
    OPI_ASSERT(made == (p.kit.members[0].status == OPIPE_OK));
    OPI_ASSERT_INT(n_files(folder), FILES);
    if (made)
      break;
    ++n_refused;
    OPI_ASSERT(strstr(p.kit.members[1].err.message, "process ") != NULL);
    OPI_ASSERT(access(new_folder, F_OK) != 0);
    both_ok(&p, LOADS);
  }
  (void)signal(SIGXFSZ, SIG_DFL);
  OPI_ASSERT(n_refused > 4);
  OPI_ASSERT_INT(n_files(new_folder), FILES);
  pair_end(&p);
}

/* Either process dies at each of the calls that they make together: the other ends, the old or the
 * new checkpoint is whole, and the next save leaves nothing of the one that failed. */
static void test_a_death_at_every_step(void) {
  enum { CALLS = 4 };
  const char *folder = opi_test_tmp("deaths");
  uint32_t n_new = 0;
  for (uint32_t victim = 0; victim < MEMBERS; ++victim) {
    for (uint32_t at = 0; at < CALLS; ++at) {
      opi_checkpoint_info info = {.clock = {.n_steps = 0}};
      opi_weights_clock clock = {.n_steps = 1, .loss_scale = 1};
      tw_place_set whole;
      pair p;
      pair_open(&p, folder, 1);
      for (uint32_t r = 0; r < MEMBERS; ++r)
        opi_weights_set_clock(p.members[r].t.weights, &clock);
      both_ok(&p, SAVES);
      clock.n_steps = 2;
      for (uint32_t r = 0; r < MEMBERS; ++r)
        opi_weights_set_clock(p.members[r].t.weights, &clock);
      p.members[victim].dies_at = at;
      both(&p, SAVES);
      OPI_ASSERT_INT(p.kit.members[0].status, OPIPE_E_PEER);
      OPI_ASSERT_INT(p.kit.members[1].status, OPIPE_E_PEER);
      OPI_ASSERT(strstr(p.kit.members[1 - victim].err.message, "it dies") != NULL);
      adam(&whole, 1);
      tw_open(&whole);
      load_whole(&whole, folder, &info);
      OPI_ASSERT(info.clock.n_steps == 1 || (info.clock.n_steps == 2 && at == 3));
      n_new += info.clock.n_steps == 2;
      p.members[victim].dies_at = NEVER;
      both_ok(&p, SAVES);
      OPI_ASSERT_INT(n_files(folder), FILES);
      load_whole(&whole, folder, &info);
      OPI_ASSERT_INT(info.clock.n_steps, 2);
      tw_end(&whole);
      pair_end(&p);
    }
  }
  OPI_ASSERT(n_new >= 1); /* process 0 died after the rename */
}

OPI_TEST_MAIN("shards", OPI_TEST(test_each_writes_and_reads_its_own),
              OPI_TEST(test_every_wrong_bit_is_noticed), OPI_TEST(test_shards_that_are_not_there),
              OPI_TEST(test_the_folder_is_one), OPI_TEST(test_a_shard_that_cannot_be_written),
              OPI_TEST(test_a_death_at_every_step))
