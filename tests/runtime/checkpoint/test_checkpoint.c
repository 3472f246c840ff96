/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what is saved comes back bit for bit, a process killed while saving leaves the old
 * or the new one, a full disk the old one, files that lie or have one wrong bit are refused by
 * tensor name and both numbers. ctest: timeout=120 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/runtime/weights/toy_weights.h"

static const uint64_t position[OPI_POSITION] = {3, 14, 15, 92};

static void adam(tw_place_set *t, uint32_t n_stages, uint32_t n_replicas, uint32_t n_versions) {
  tw_setup(t, n_stages, n_replicas);
  t->optimizer = (opi_optimizer){.kind = OPIPE_OPTIMIZER_ADAMW,
                                 .lr = 0.1,
                                 .beta1 = 0.9,
                                 .beta2 = 0.99,
                                 .epsilon = 1e-3,
                                 .decay = 0.5};
  t->options.n_versions = n_versions;
  tw_open(t);
}

static void save(tw_place_set *t, const char *folder) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_checkpoint_save(&t->memory.allocator, t->weights, folder, position, &err),
                      &err);
}

/* Every state of every trained parameter, one after the other. */
static size_t collect(tw_place_set *t, float *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  static const uint32_t states[] = {OPI_TENSOR_FIRST, OPI_TENSOR_SECOND, OPI_TENSOR_MASTER};
  size_t n = 0;
  for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
    for (uint32_t s = 0; s < 3; ++s) {
      for (uint32_t v = 0; v < (s == 2 ? t->options.n_versions : 1); ++v) {
        OPI_ASSERT_OK(opi_weights_get(t->weights, tw_names[slot], states[s], v, &out[n],
                                      tw_elems(slot) * sizeof(float), &err),
                      &err);
        n += tw_elems(slot);
      }
    }
  }
  return n;
}

static void expect_equal(tw_place_set *a, tw_place_set *b) {
  float x[512], y[512];
  const size_t n = collect(a, x);
  OPI_ASSERT_INT(n, collect(b, y));
  OPI_ASSERT(memcmp(x, y, n * sizeof *x) == 0);
}

static void test_training_continues_bit_equal(void) {
  for (uint32_t versions = 1; versions <= 2; ++versions) {
    tw_place_set a, b;
    opi_checkpoint_info info;
    opipe_error err = OPIPE_ERROR_INIT;
    const char *folder = opi_test_tmp(versions == 1 ? "one" : "two");
    adam(&a, 2, 2, versions);
    for (uint32_t step = 0; step < 3; ++step)
      tw_step(&a, step, 1);
    save(&a, folder);
    adam(&b, 2, 2, versions);
    OPI_ASSERT_OK_FATAL(opi_checkpoint_load(&b.memory.allocator, b.weights, folder, &info, &err),
                        &err);
    OPI_ASSERT(memcmp(info.position, position, sizeof position) == 0);
    OPI_ASSERT_INT(info.clock.n_steps, 3);
    expect_equal(&a, &b);
    tw_step(&a, 3, 1);
    tw_step(&b, 3, 1);
    expect_equal(&a, &b);
    tw_end(&a);
    tw_end(&b);
  }
}

/* A checkpoint as sessions of one process have written it since there are hashes. */
static void test_version_2_stays_readable(void) {
  tw_place_set loaded, replay;
  opi_checkpoint_info info = {.clock = {.n_steps = 0}};
  opipe_error err = OPIPE_ERROR_INIT;
  adam(&loaded, 2, 1, 2);
  adam(&replay, 2, 1, 2);
  for (uint32_t step = 0; step < 3; ++step)
    tw_step(&replay, step, 1);
  OPI_ASSERT_OK(
      opi_checkpoint_load(&loaded.memory.allocator, loaded.weights,
                          opi_test_source("tests/runtime/checkpoint/version2"), &info, &err),
      &err);
  OPI_ASSERT(memcmp(info.position, position, sizeof position) == 0);
  OPI_ASSERT_INT(info.clock.n_steps, 3);
  expect_equal(&loaded, &replay);
  tw_end(&loaded);
  tw_end(&replay);
}

/* From two versions to one, and back: the newest counts. */
static void test_another_number_of_versions(void) {
  tw_place_set two, one, again;
  opipe_error err = OPIPE_ERROR_INIT;
  float x[16], y[16];
  adam(&two, 2, 1, 2);
  tw_step(&two, 0, 1);
  save(&two, opi_test_tmp("versions"));
  adam(&one, 2, 2, 1);
  OPI_ASSERT_OK(
      opi_checkpoint_load(&one.memory.allocator, one.weights, opi_test_tmp("versions"), NULL, &err),
      &err);
  save(&one, opi_test_tmp("versions"));
  adam(&again, 2, 1, 2);
  OPI_ASSERT_OK(opi_checkpoint_load(&again.memory.allocator, again.weights,
                                    opi_test_tmp("versions"), NULL, &err),
                &err);
  OPI_ASSERT_OK(opi_weights_get(two.weights, "a", OPI_TENSOR_MASTER, 0, x, 60, &err), &err);
  for (uint32_t v = 0; v < 2; ++v) {
    OPI_ASSERT_OK(opi_weights_get(again.weights, "a", OPI_TENSOR_MASTER, v, y, 60, &err), &err);
    OPI_ASSERT(memcmp(x, y, 60) == 0);
  }
  tw_end(&two);
  tw_end(&one);
  tw_end(&again);
}

static void test_what_does_not_fit_is_refused(void) {
  tw_place_set a, b;
  opipe_error err = OPIPE_ERROR_INIT;
  const char *folder = opi_test_tmp("refused");
  adam(&a, 2, 1, 1);
  OPI_ASSERT_ERROR(
      opi_checkpoint_load(&a.memory.allocator, a.weights, opi_test_tmp("nothing"), NULL, &err),
      OPIPE_E_IO, &err, "nothing");
  tw_setup(&b, 2, 1); /* sgd, "b" frozen */
  b.trained[TW_B] = false;
  tw_open(&b);
  save(&b, folder);
  OPI_ASSERT_ERROR(opi_checkpoint_load(&a.memory.allocator, a.weights, folder, NULL, &err),
                   OPIPE_E_INVALID, &err, "lacks 1 of the 3 trained parameters, the first is 'b'");
  save(&a, folder);
  OPI_ASSERT_ERROR(opi_checkpoint_load(&b.memory.allocator, b.weights, folder, NULL, &err),
                   OPIPE_E_INVALID, &err, "3 tensors for 2 trained parameters; 'b'");
  b.trained[TW_B] = true;
  opi_weights_close(b.weights);
  tw_open(&b);
  OPI_ASSERT_ERROR(opi_checkpoint_load(&b.memory.allocator, b.weights, folder, NULL, &err),
                   OPIPE_E_INVALID, &err, "2 moments per parameter, this one's 1");
  tw_end(&a);
  tw_end(&b);
}

/* ---- damage ---- */

static void flip(const char *folder, const char *file, uint64_t bit) {
  char path[512];
  unsigned char byte = 0;
  (void)snprintf(path, sizeof path, "%s/%s", folder, file);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  OPI_ASSERT_FATAL(fd >= 0 && pread(fd, &byte, 1, (off_t)(bit / 8)) == 1);
  byte ^= (unsigned char)(1u << bit % 8);
  OPI_ASSERT(pwrite(fd, &byte, 1, (off_t)(bit / 8)) == 1);
  (void)close(fd);
}

static uint64_t size_of(const char *folder, const char *file) {
  char path[512];
  struct stat st = {.st_size = 0};
  (void)snprintf(path, sizeof path, "%s/%s", folder, file);
  OPI_ASSERT(stat(path, &st) == 0);
  return (uint64_t)st.st_size;
}

/* Any bit of any file: seeded places, every bit of the last bytes (data of the tensors there, the
 * manifest's own hash), and of the first (the header's length). */
static void test_every_wrong_bit_is_noticed(void) {
  static const char *const files[] = {"manifest.json", "weights-1.safetensors",
                                      "state-1.safetensors"};
  const char *folder = opi_test_tmp("flips");
  opi_test_random random = {.state = 11};
  opipe_error err = OPIPE_ERROR_INIT;
  tw_place_set t;
  adam(&t, 2, 1, 1);
  tw_step(&t, 0, 1);
  save(&t, folder);
  for (size_t f = 0; f < OPI_COUNT(files); ++f) {
    const uint64_t n_bits = size_of(folder, files[f]) * 8;
    uint32_t missed = 0;
    for (uint64_t i = 0; i < 400; ++i) {
      const uint64_t bit = i < 64    ? i
                           : i < 128 ? n_bits - 1 - (i - 64)
                                     : (uint64_t)opi_test_uniform(&random, 0, (double)n_bits - 1);
      flip(folder, files[f], bit);
      missed += opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, &err) == OPIPE_OK;
      flip(folder, files[f], bit);
    }
    if (missed != 0)
      OPI_FAIL("%s: %u of 400 wrong bits were not noticed", files[f], missed);
  }
  flip(folder, files[1], (size_of(folder, files[1]) - 2) * 8);
  OPI_ASSERT_ERROR(opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, &err),
                   OPIPE_E_INVALID, &err,
                   "weights-1.safetensors is damaged: tensor 'tied' has XXH3");
  OPI_ASSERT(strstr(err.message, "manifest.json says ") != NULL);
  flip(folder, files[1], (size_of(folder, files[1]) - 2) * 8);
  OPI_ASSERT_OK(opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, &err), &err);
  tw_end(&t);
}

static void write_text(const char *folder, const char *file, const char *text) {
  char path[512];
  (void)snprintf(path, sizeof path, "%s/%s", folder, file);
  FILE *out = fopen(path, "wb");
  OPI_ASSERT_FATAL(out != NULL);
  (void)fputs(text, out);
  (void)fclose(out);
}

/* A damaged checkpoint of ours is replaced, under new names; what is not ours is left alone. */
static void test_what_may_be_replaced(void) {
  const char *folder = opi_test_tmp("replaced");
  opipe_error err = OPIPE_ERROR_INIT;
  tw_place_set t;
  adam(&t, 2, 1, 1);
  save(&t, folder);
  save(&t, folder);
  write_text(folder, "weights-mine.safetensors", "stays");
  flip(folder, "manifest.json", 8000 % (size_of(folder, "manifest.json") * 8));
  OPI_ASSERT_OK(opi_checkpoint_try(&t.memory.allocator, folder, &err), &err);
  save(&t, folder);
  OPI_ASSERT_OK(opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, &err), &err);
  OPI_ASSERT(size_of(folder, "weights-3.safetensors") > 0);
  OPI_ASSERT_INT(size_of(folder, "weights-mine.safetensors"), 5);
  write_text(folder, "manifest.json", "{\"format\": \"another\"}");
  OPI_ASSERT_ERROR(opi_checkpoint_try(&t.memory.allocator, folder, &err), OPIPE_E_INVALID, &err,
                   "format is 'another'");
  OPI_ASSERT_ERROR(opi_checkpoint_save(&t.memory.allocator, t.weights, folder, position, &err),
                   OPIPE_E_INVALID, &err, "that is to be replaced");
  tw_end(&t);
}

static uint32_t n_files(const char *folder) {
  uint32_t n = 0;
  DIR *list = opendir(folder);
  for (const struct dirent *e = list == NULL ? NULL : readdir(list); e != NULL; e = readdir(list))
    n += e->d_name[0] != '.';
  if (list != NULL)
    (void)closedir(list);
  return n;
}

/* A limit on the size of files stands for a full disk: wherever it is hit, the old checkpoint is
 * there and nothing else. */
static void test_a_full_disk_leaves_the_old_one(void) {
  static const char *const says[] = {"state-", "weights-", "manifest.json.new"};
  const char *folder = opi_test_tmp("full"), *new_folder = opi_test_tmp("full_new");
  opipe_error err = OPIPE_ERROR_INIT;
  struct rlimit before;
  bool said[3] = {false};
  tw_place_set t;
  adam(&t, 2, 1, 1);
  save(&t, folder);
  OPI_ASSERT(getrlimit(RLIMIT_FSIZE, &before) == 0);
  (void)signal(SIGXFSZ, SIG_IGN);
  for (rlim_t most = 0; most < 4096; most += 50) {
    const struct rlimit limit = {.rlim_cur = most, .rlim_max = before.rlim_max};
    OPI_ASSERT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const opipe_status status =
        opi_checkpoint_save(&t.memory.allocator, t.weights, folder, position, &err);
    const opipe_status other =
        opi_checkpoint_save(&t.memory.allocator, t.weights, new_folder, position, NULL);
    OPI_ASSERT(setrlimit(RLIMIT_FSIZE, &before) == 0);
    OPI_ASSERT_INT(status, other);
    if (status == OPIPE_OK)
      break;
    OPI_ASSERT(strstr(err.message, folder) != NULL && strstr(err.message, " bytes") != NULL);
    for (uint32_t i = 0; i < 3; ++i)
      said[i] = said[i] || strstr(err.message, says[i]) != NULL;
    OPI_ASSERT_INT(n_files(folder), 3);
    OPI_ASSERT(access(new_folder, F_OK) != 0);
    OPI_ASSERT_OK(opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, &err), &err);
  }
  (void)signal(SIGXFSZ, SIG_DFL);
  OPI_ASSERT(said[0] && said[1] && said[2]);
  OPI_ASSERT_INT(n_files(new_folder), 3);
  tw_end(&t);
}

/* ---- several at once ---- */

static int save_often(const char *folder, uint32_t n) {
  tw_place_set t;
  int failed = 0;
  adam(&t, 2, 1, 1);
  for (uint32_t i = 0; i < n; ++i) {
    failed += opi_checkpoint_try(&t.memory.allocator, folder, NULL) != OPIPE_OK;
    failed +=
        opi_checkpoint_save(&t.memory.allocator, t.weights, folder, position, NULL) != OPIPE_OK;
    failed += opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, NULL) != OPIPE_OK;
  }
  tw_end(&t);
  return failed;
}

/* Three processes try, save and load in one folder, which none of them found: nobody takes away
 * what another one writes. */
static void test_savers_of_one_folder_wait(void) {
  enum { SAVERS = 3, ROUNDS = 20, SAVES = 5 };
  for (uint32_t round = 0; round < ROUNDS; ++round) {
    char name[32];
    pid_t savers[SAVERS];
    opipe_error err = OPIPE_ERROR_INIT;
    tw_place_set t;
    (void)snprintf(name, sizeof name, "shared_%u", round);
    const char *folder = opi_test_tmp(name);
    for (uint32_t i = 0; i < SAVERS; ++i) {
      savers[i] = fork();
      OPI_ASSERT_FATAL(savers[i] >= 0);
      if (savers[i] == 0)
        _exit(save_often(folder, SAVES));
    }
    for (uint32_t i = 0; i < SAVERS; ++i) {
      int status = -1;
      OPI_ASSERT(waitpid(savers[i], &status, 0) == savers[i]);
      OPI_ASSERT(WIFEXITED(status));
      OPI_ASSERT_INT(WEXITSTATUS(status), 0);
    }
    adam(&t, 2, 1, 1);
    OPI_ASSERT_OK(opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, &err), &err);
    OPI_ASSERT_INT(n_files(folder), 3);
    OPI_ASSERT(size_of(folder, "weights-15.safetensors") > 0);
    tw_end(&t);
  }
}

/* A host's numbers have 64 bits, more than a JSON integer. */
static void test_positions_of_64_bits(void) {
  static const uint64_t far[OPI_POSITION] = {UINT64_MAX, 0, (uint64_t)INT64_MAX + 1, INT64_MAX};
  const char *folder = opi_test_tmp("far");
  opipe_error err = OPIPE_ERROR_INIT;
  opi_checkpoint_info info = {.clock = {.n_steps = 0}};
  tw_place_set t;
  adam(&t, 2, 1, 1);
  OPI_ASSERT_OK(opi_checkpoint_save(&t.memory.allocator, t.weights, folder, far, &err), &err);
  OPI_ASSERT_OK(opi_checkpoint_load(&t.memory.allocator, t.weights, folder, &info, &err), &err);
  OPI_ASSERT(memcmp(info.position, far, sizeof far) == 0);
  tw_end(&t);
}

static void scaling(tw_place_set *t, uint32_t loss_scaling) {
  tw_setup(t, 2, 1);
  t->optimizer.loss_scaling = loss_scaling;
  tw_open(t);
}

static opi_weights_clock load_clock(tw_place_set *t, const char *folder) {
  opi_weights_clock clock;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_checkpoint_load(&t->memory.allocator, t->weights, folder, NULL, &err),
                      &err);
  opi_weights_get_clock(t->weights, &clock);
  return clock;
}

/* The manifest as it was before it said who scales. */
static void make_older(const char *folder) {
  char path[512], text[8192];
  (void)snprintf(path, sizeof path, "%s/manifest.json", folder);
  FILE *in = fopen(path, "rb");
  OPI_ASSERT_FATAL(in != NULL);
  text[fread(text, 1, sizeof text - 1, in)] = '\0';
  (void)fclose(in);
  char *line = strstr(text, ",\n  \"loss_scaling\""),
       *last = strstr(text, ",\n  \"manifest_xxh3\"");
  OPI_ASSERT_FATAL(line != NULL && last != NULL);
  *last = '\0';
  const char *rest = strchr(line + 1, ',');
  memmove(line, rest, strlen(rest) + 1);
  (void)snprintf(text + strlen(text), sizeof text - strlen(text),
                 ",\n  \"manifest_xxh3\": \"%016llx\"\n}\n",
                 (unsigned long long)opi_tensors_hash(text, strlen(text)));
  write_text(folder, "manifest.json", text);
}

/* It goes on between sessions that scale; others have 1, and one that finds none has its first. */
static void test_loss_scales_of_other_sessions(void) {
  const char *folder = opi_test_tmp("scaled");
  for (uint32_t older = 0; older < 2; ++older) {
    tw_place_set scaled, plain;
    opi_weights_clock clock = {.n_steps = 9, .n_good = 7, .loss_scale = 512, .scales = 1};
    scaling(&scaled, 1);
    scaling(&plain, 0);
    opi_weights_set_clock(scaled.weights, &clock);
    save(&scaled, folder);
    if (older != 0)
      make_older(folder);
    clock = load_clock(&plain, folder);
    OPI_ASSERT(clock.loss_scale == 1 && clock.n_good == 0 && clock.n_steps == 9);
    save(&plain, folder);
    clock = load_clock(&scaled, folder);
    OPI_ASSERT(clock.loss_scale == 65536 && clock.n_good == 0 && clock.n_steps == 9);
    clock = (opi_weights_clock){.n_steps = 9, .n_good = older, .loss_scale = 1, .scales = 1};
    opi_weights_set_clock(scaled.weights, &clock); /* as far as it falls */
    save(&scaled, folder);
    if (older != 0)
      make_older(folder);
    tw_end(&scaled);
    scaling(&scaled, 1);
    clock = load_clock(&scaled, folder);
    OPI_ASSERT(clock.loss_scale == 1 && clock.n_good == older);
    tw_end(&scaled);
    tw_end(&plain);
  }
}

/* A file that another saver has under the name that this one would take stays. */
static void test_a_file_of_another_stays(void) {
  const char *folder = opi_test_tmp("taken");
  opipe_error err = OPIPE_ERROR_INIT;
  tw_place_set t;
  char path[600];
  adam(&t, 2, 1, 1);
  save(&t, folder);
  (void)snprintf(path, sizeof path, "%s/state-2.safetensors", folder);
  OPI_ASSERT(mkdir(path, 0777) == 0); /* nor does a sweep remove it */
  OPI_ASSERT_ERROR(opi_checkpoint_save(&t.memory.allocator, t.weights, folder, position, &err),
                   OPIPE_E_IO, &err, "state-2.safetensors");
  OPI_ASSERT_OK(opi_checkpoint_load(&t.memory.allocator, t.weights, folder, NULL, &err), &err);
  OPI_ASSERT(access(path, F_OK) == 0);
  OPI_ASSERT_INT(n_files(folder), 4);
  tw_end(&t);
}

/* ---- existing files ---- */

/* Gradients go where a link leads, with the permissions of what is there; no device is replaced. */
static void test_gradients_through_a_link(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  const char *link = opi_test_tmp("link"), *pipe_path = opi_test_tmp("pipe");
  char target[600];
  struct stat st;
  tw_place_set t;
  tw_setup(&t, 2, 1);
  t.options.keep_gradients = 1;
  tw_open(&t);
  tw_step(&t, 0, 1);
  (void)snprintf(target, sizeof target, "%s.target", link);
  OPI_ASSERT(symlink(strrchr(target, '/') + 1, link) == 0);
  for (uint32_t pass = 0; pass < 2; ++pass) { /* without a target; onto the one that is there */
    OPI_ASSERT_OK(opi_checkpoint_gradients(&t.memory.allocator, t.weights, link, &err), &err);
    OPI_ASSERT(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    OPI_ASSERT(lstat(target, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 8);
    OPI_ASSERT(pass == 0 || (st.st_mode & 07777) == 0640);
    OPI_ASSERT(chmod(target, 0640) == 0);
  }
  OPI_ASSERT(mkfifo(pipe_path, 0666) == 0);
  OPI_ASSERT_ERROR(opi_checkpoint_gradients(&t.memory.allocator, t.weights, pipe_path, &err),
                   OPIPE_E_IO, &err, "is a pipe");
  OPI_ASSERT(lstat(pipe_path, &st) == 0 && S_ISFIFO(st.st_mode));
  tw_end(&t);
}

/* ---- kill -9 ---- */

/* Saves for ever, one mini-batch between two saves; the parent kills it. */
static void save_until_killed(const char *folder) {
  tw_place_set t;
  adam(&t, 2, 2, 1);
  for (uint32_t step = 0;; ++step) {
    tw_step(&t, step, 1);
    (void)opi_checkpoint_save(&t.memory.allocator, t.weights, folder, position, NULL);
  }
}

/* The checkpoint must be that of some whole number of steps: replayed here, bit for bit. */
static uint64_t expect_whole(const char *folder) {
  tw_place_set loaded, replay;
  opi_checkpoint_info info = {.clock = {.n_steps = 0}};
  opipe_error err = OPIPE_ERROR_INIT;
  adam(&loaded, 2, 2, 1);
  OPI_ASSERT_OK(opi_checkpoint_load(&loaded.memory.allocator, loaded.weights, folder, &info, &err),
                &err);
  adam(&replay, 2, 2, 1);
  for (uint32_t step = 0; step < info.clock.n_steps; ++step)
    tw_step(&replay, step, 1);
  expect_equal(&loaded, &replay);
  tw_end(&loaded);
  tw_end(&replay);
  return info.clock.n_steps;
}

static void test_kill_while_saving_loses_nothing(void) {
  const char *times = getenv("OPIPE_KILL_INSTANTS");
  const long n = times != NULL ? strtol(times, NULL, 10) : 5;
  const char *folder = opi_test_tmp("killed");
  opi_test_random random = {.state = 7};
  tw_place_set first;
  adam(&first, 2, 2, 1);
  tw_step(&first, 0, 1);
  save(&first, folder);
  tw_end(&first);
  for (long i = 0; i < n; ++i) {
    const long wait_us = (long)(opi_test_uniform(&random, 2, 40) * 1000);
    const struct timespec pause = {.tv_nsec = wait_us * 1000};
    const pid_t child = fork();
    if (child == 0) {
      save_until_killed(folder);
      _exit(1);
    }
    (void)nanosleep(&pause, NULL);
    (void)kill(child, SIGKILL);
    int status = 0;
    (void)waitpid(child, &status, 0);
    OPI_ASSERT(WIFSIGNALED(status));
    OPI_ASSERT(expect_whole(folder) >= 1);
  }
}

/* ---- files that lie ---- */

static opipe_status parse(const char *json, const char *data, size_t n_data, opipe_error *err) {
  char file[1024] = {0};
  opi_test_memory memory;
  opi_tensors *t = NULL;
  const size_t n = strlen(json);
  file[0] = (char)(n & 255);
  file[1] = (char)(n >> 8);
  memcpy(file + 8, json, n);
  memcpy(file + 8 + n, data, n_data);
  opi_test_memory_init(&memory);
  const opipe_status status =
      opi_tensors_parse(&memory.allocator, file, 8 + n + n_data, "x.safetensors", &t, err);
  opi_tensors_close(t);
  OPI_ASSERT(opi_test_memory_end(&memory));
  return status;
}

static void test_hostile_safetensors(void) {
  static const struct {
    const char *json, *says;
  } cases[] = {
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", "not valid JSON"},
      {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", "type F31"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}",
       "'a' has 8 bytes, its shape and type make 12"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,8]}}", "dimension 0"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}", "ends at byte 9"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", "not a range"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "begins at byte 4"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
       "have 4 bytes, the file has 8"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
       "'b' begins at byte 4"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]}}",
       "make 0"},
      {"{\"a\":[]}", "not an object"},
      {"[]", "not a JSON object"},
  };
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK(parse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                      "12345678", 8, &err),
                &err);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    const opipe_status status = parse(cases[i].json, "12345678", 8, &err);
    OPI_ASSERT(status < 0);
    if (strstr(err.message, cases[i].says) == NULL)
      OPI_FAIL("case %zu says: %s", i, err.message);
  }
  opi_tensors *t = NULL;
  OPI_ASSERT_ERROR(opi_tensors_parse(opi_allocator_system(), "\377\377\377\377\377\377\377\177 ", 9,
                                     "y", &t, &err),
                   OPIPE_E_INVALID, &err, "y: a header of 9223372036854775807 bytes");
}

OPI_TEST_MAIN("checkpoint", OPI_TEST(test_training_continues_bit_equal),
              OPI_TEST(test_version_2_stays_readable), OPI_TEST(test_another_number_of_versions),
              OPI_TEST(test_what_does_not_fit_is_refused),
              OPI_TEST(test_every_wrong_bit_is_noticed), OPI_TEST(test_what_may_be_replaced),
              OPI_TEST(test_a_full_disk_leaves_the_old_one),
              OPI_TEST(test_savers_of_one_folder_wait),
              OPI_TEST(test_loss_scales_of_other_sessions), OPI_TEST(test_positions_of_64_bits),
              OPI_TEST(test_a_file_of_another_stays), OPI_TEST(test_gradients_through_a_link),
              OPI_TEST(test_kill_while_saving_loses_nothing), OPI_TEST(test_hostile_safetensors))
