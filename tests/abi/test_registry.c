/* SPDX-License-Identifier: Apache-2.0 */
/* The registry's rules for plugins: one rule broken at a time, files that are no plugins, names
 * that clash, memory that fails. A refusal must name the reason, leave nothing behind and not hide
 * the others.
 */
#include "abi/registry/registry.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/support.h"

static opipe_error err = OPIPE_ERROR_INIT;

typedef struct text {
  char data[65536];
  size_t n;
} text;

static opipe_status append(void *ctx, const void *data, size_t n) {
  text *t = ctx;
  if (t->n + n >= sizeof(t->data))
    return OPIPE_E_LIMIT;
  memcpy(t->data + t->n, data, n);
  t->n += n;
  t->data[t->n] = '\0';
  return OPIPE_OK;
}

static const char *mock(const char *name) {
  static char path[8][1024];
  static int at;
  char *room = path[at++ % 8];
  (void)snprintf(room, 1024, "%s/tests/abi/mocks/%s/opipe-schedule-%s.so", opi_test_build(""), name,
                 name);
  return room;
}

static opi_registry *open_paths(const char *const *paths, uint32_t n) {
  opi_registry *r = NULL;
  const opi_registry_params params = {
      .allocator = opi_allocator_system(), .paths = paths, .n_paths = n};
  OPI_ASSERT_OK_FATAL(opi_registry_create(&params, &r, &err), &err);
  return r;
}

/* The registry over one path: there is none, for that reason; or where only open() can tell,
 * finding "mock" fails, and the table of candidates gives the reason. */
static void expect_refused(const char *path, const char *reason) {
  static text described;
  opi_plugin_ref ref;
  opi_registry *r = NULL;
  const opi_registry_params params = {
      .allocator = opi_allocator_system(), .paths = &path, .n_paths = 1};
  if (opi_registry_create(&params, &r, &err) < 0) {
    opi_test_check(strstr(err.message, path) != NULL && strstr(err.message, reason) != NULL,
                   __FILE__, __LINE__, false, "%s: no '%s' in: %s", path, reason, err.message);
    return;
  }
  described.n = 0;
  const opipe_status status = opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err);
  if (status >= 0)
    OPI_FAIL("%s was taken", path);
  OPI_ASSERT_OK(opi_registry_describe(r, 0, append, &described, &err), &err);
  const char *line = strstr(described.data, path);
  if (line == NULL || strstr(line, reason) == NULL)
    OPI_FAIL("%s: no '%s' in: %s", path, reason, described.data);
  opi_registry_free(r);
}

static void test_a_good_plugin_is_opened_once(void) {
  const char *path = mock("good");
  opi_plugin_ref first, second;
  opi_registry *r = open_paths(&path, 1);
  OPI_ASSERT_OK_FATAL(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &first, &err), &err);
  OPI_ASSERT_OK(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &second, &err), &err);
  OPI_ASSERT(first.self == second.self && first.table == second.table);
  OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_BACKEND, "mock", &first, &err), OPIPE_E_NOTFOUND,
                   &err, "there is no backend 'mock'");
  OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mick", &first, &err),
                   OPIPE_E_NOTFOUND, &err, "found: mock");
  opi_registry_free(r);
}

static void test_each_broken_rule_is_named(void) {
  static const char *const cases[][2] = {
      {"magic", "magic 0x00000001"},
      {"size", "its descriptor has 40 bytes"},
      {"major", "ABI major 2, this library has 1"},
      {"needs-newer", "it needs ABI 1.7, this library has 1.5"},
      {"kind", "its kind 9 is unknown"},
      {"layout", "struct opipe_error out in 512 bytes with fingerprint 0000000000000001"},
      {"build", "another sanitizer"},
      {"id", "its id 'no spaces please'"},
      {"null-id", "lacks an id"},
      {"reserved-id", "its id 'gems' is taken by a schedule of the library"},
      {"null-open", "no open function"},
      {"null-slot", "slot 2 of its interface 'opipe.schedule/1' is NULL"},
      {"no-table", "it has no interface 'opipe.schedule/1'"},
      {"short-table", "has 16 bytes"},
      {"open-fails", "the mock's device is on fire"},
      {"open-silent", "without a message"},
      {"open-pending", "its open() answered 1"},
      {"no-symbol", "it defines no symbol opipe_plugin_v1"},
      {"dependent", "comes from a library that it depends on"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    expect_refused(mock(cases[i][0]), cases[i][1]);
}

/* Built for a newer minor but content with this one: its table is longer than ours, and is cut. */
static void test_a_newer_plugin_that_can_live_with_us_is_taken(void) {
  const char *path = mock("newer");
  opi_plugin_ref ref;
  opi_registry *r = open_paths(&path, 1);
  OPI_ASSERT_OK_FATAL(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err), &err);
  OPI_ASSERT(((const opipe_schedule *)ref.table)->plan != NULL);
  opi_registry_free(r);
}

/* A backend may end at `run`: what it lacks is NULL; one slot less is refused. */
static void test_a_backend_that_ends_at_run_cannot_train(void) {
  opipe_backend full, copy;
  void (*slot)(void) = test_a_newer_plugin_that_can_live_with_us_is_taken;
  for (size_t at = 8; at < sizeof full; at += sizeof slot)
    memcpy((char *)&full + at, &slot, sizeof slot);
  full.struct_size = (uint32_t)OPIPE_END(opipe_backend, run);
  full.reserved = 0;
  memset(&copy, 0xff, sizeof copy);
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_BACKEND, &full, &copy, &err), &err);
  OPI_ASSERT(copy.run != NULL && copy.params_create_owned == NULL && copy.update == NULL);
  OPI_ASSERT_INT(copy.struct_size, OPIPE_END(opipe_backend, run));
  full.struct_size = (uint32_t)OPIPE_END(opipe_backend, update);
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_BACKEND, &full, &copy, &err), &err);
  OPI_ASSERT(copy.params_create_owned != NULL && copy.update != NULL);
  /* A newer table: the copy does not promise what it cannot hold. */
  struct {
    opipe_backend known;
    void (*newer[2])(void);
  } longer = {.known = full, .newer = {slot, slot}};
  longer.known.struct_size = (uint32_t)sizeof longer;
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_BACKEND, &longer, &copy, &err), &err);
  OPI_ASSERT_INT(copy.struct_size, sizeof copy);
  full.struct_size = (uint32_t)OPIPE_END(opipe_backend, binding_free);
  OPI_ASSERT_ERROR(opi_table_copy(OPIPE_KIND_BACKEND, &full, &copy, &err), OPIPE_E_ABI, &err,
                   "bytes, it needs");
}

/* A transport may end at `abort`; the slots behind it may be missing in a longer table too. */
static void test_a_transport_that_ends_at_abort_has_one_info(void) {
  opipe_transport full, copy;
  void (*slot)(void) = test_a_newer_plugin_that_can_live_with_us_is_taken;
  for (size_t at = 8; at < sizeof full; at += sizeof slot)
    memcpy((char *)&full + at, &slot, sizeof slot);
  full.reserved = 0;
  full.struct_size = (uint32_t)OPIPE_END(opipe_transport, abort);
  memset(&copy, 0xff, sizeof copy);
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), &err);
  OPI_ASSERT(copy.abort != NULL && copy.world_info == NULL);
  full.struct_size = (uint32_t)OPIPE_END(opipe_transport, world_info);
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), &err);
  OPI_ASSERT(copy.world_info != NULL);
  full.world_info = NULL;
  full.group_open = NULL;
  full.group_close = NULL;
  full.all_reduce = NULL;
  full.group_test = NULL;
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), &err);
  full.abort = NULL;
  OPI_ASSERT_ERROR(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), OPIPE_E_ABI, &err,
                   "is NULL");
}

/* A transport of minor 0 has no batches; a later one has both slots, or neither. */
static void test_batches_of_a_transport_come_in_pairs(void) {
  opipe_transport full, copy;
  void (*slot)(void) = test_a_newer_plugin_that_can_live_with_us_is_taken;
  for (size_t at = 8; at < sizeof full; at += sizeof slot)
    memcpy((char *)&full + at, &slot, sizeof slot);
  full.reserved = 0;
  full.struct_size = (uint32_t)OPIPE_END(opipe_transport, notify);
  memset(&copy, 0xff, sizeof copy);
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), &err);
  OPI_ASSERT(copy.notify != NULL && copy.batch_begin == NULL && copy.batch_end == NULL);
  full.struct_size = (uint32_t)sizeof full;
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), &err);
  OPI_ASSERT(copy.batch_begin != NULL && copy.batch_end != NULL);
  full.batch_end = NULL;
  OPI_ASSERT_ERROR(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), OPIPE_E_ABI, &err,
                   "others that belong with it are not");
  full.batch_begin = NULL;
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), &err);
  full.memory_free = NULL;
  OPI_ASSERT_ERROR(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), OPIPE_E_ABI, &err,
                   "others that belong with it are not");
  full.memory_alloc = NULL;
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_TRANSPORT, &full, &copy, &err), &err);
}

/* A table that ends within a slot ends before it; of the slots for training all are there, or none.
 */
static void test_a_table_is_cut_at_whole_slots(void) {
  opipe_backend full, copy;
  void (*slot)(void) = test_a_newer_plugin_that_can_live_with_us_is_taken;
  for (size_t at = 8; at < sizeof full; at += sizeof slot)
    memcpy((char *)&full + at, &slot, sizeof slot);
  full.reserved = 0;
  full.struct_size = (uint32_t)OPIPE_END(opipe_backend, run) + 4;
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_BACKEND, &full, &copy, &err), &err);
  OPI_ASSERT(copy.run != NULL && copy.params_create_owned == NULL);
  full.struct_size = (uint32_t)OPIPE_END(opipe_backend, update);
  full.gradients_fold = NULL;
  OPI_ASSERT_ERROR(opi_table_copy(OPIPE_KIND_BACKEND, &full, &copy, &err), OPIPE_E_ABI, &err,
                   "others that belong with it are not");
}

/* Slots that a backend may lack only together: a table that ends before them, or has NULL there, is
 * accepted; one that has some of them is not. */
static void test_optional_slots_of_a_backend_come_together(void) {
  static const struct {
    size_t first, last; /* offsets */
  } groups[] = {
      {offsetof(opipe_backend, host_alloc), offsetof(opipe_backend, host_free)},
      {offsetof(opipe_backend, update_many), offsetof(opipe_backend, sum_squares_many)},
      {offsetof(opipe_backend, kernels_fit), offsetof(opipe_backend, kernel_tune)},
      {offsetof(opipe_backend, event_create_timed), offsetof(opipe_backend, event_elapsed)}};
  opipe_backend full, part, copy;
  void (*slot)(void) = test_a_newer_plugin_that_can_live_with_us_is_taken;
  for (size_t at = 8; at < sizeof full; at += sizeof slot)
    memcpy((char *)&full + at, &slot, sizeof slot);
  full.struct_size = (uint32_t)sizeof full;
  full.reserved = 0;
  OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_BACKEND, &full, &copy, &err), &err);
  OPI_ASSERT(copy.update_many != NULL && copy.kernel_tune != NULL && copy.event_elapsed != NULL);
  for (size_t g = 0; g < OPI_COUNT(groups); ++g) {
    part = full;
    part.struct_size = (uint32_t)groups[g].first;
    OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_BACKEND, &part, &copy, &err), &err);
    for (size_t at = groups[g].first; at <= groups[g].last; at += sizeof slot) {
      part = full;
      memset((char *)&part + at, 0, sizeof slot);
      OPI_ASSERT_ERROR(opi_table_copy(OPIPE_KIND_BACKEND, &part, &copy, &err), OPIPE_E_ABI, &err,
                       "others that belong with it are not");
    }
    part = full;
    memset((char *)&part + groups[g].first, 0, groups[g].last + sizeof slot - groups[g].first);
    OPI_ASSERT_OK(opi_table_copy(OPIPE_KIND_BACKEND, &part, &copy, &err), &err);
  }
}

/* ---- descriptors that are linked in ---- */

static opipe_status open_status;
static uint32_t n_opened_badly;
static bool endless_message;

static opipe_status open_badly(const opipe_host *host, opipe_instance **out_self, opipe_error *e) {
  (void)host;
  (void)out_self;
  ++n_opened_badly;
  if (endless_message) {
    e->status = open_status;
    memset(e->message, 'x', sizeof e->message);
  }
  return open_status;
}

static void close_nothing(opipe_instance *self) {
  (void)self;
}

static const void *no_interface(opipe_instance *self, const char *id) {
  (void)self;
  (void)id;
  return NULL;
}

static const opipe_plugin bad = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_SCHEDULE, 0),
                                 "bad",
                                 "1\n2",
                                 "\x1b[2J",
                                 "no \xff text",
                                 open_badly,
                                 close_nothing,
                                 no_interface};

static void expect_bad_open(opipe_status status, bool endless, opipe_status wanted,
                            const char *reason) {
  opi_plugin_ref ref;
  opi_registry *r = open_paths(NULL, 0);
  open_status = status;
  endless_message = endless;
  OPI_ASSERT_OK_FATAL(opi_registry_add_static(r, &bad, &err), &err);
  OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "bad", &ref, &err), wanted, &err,
                   reason);
  OPI_ASSERT_INT(err.status, wanted);
  OPI_ASSERT(strstr(err.message, "schedule 'bad'") != NULL);
  opi_registry_free(r);
}

static void test_what_open_answers_is_no_status(void) {
  expect_bad_open(-99, false, OPIPE_E_INVALID, "-99");
  expect_bad_open(77, false, OPIPE_E_INVALID, "its open() answered 77");
  expect_bad_open(OPIPE_E_DEVICE, false, OPIPE_E_DEVICE, "without a message");
  expect_bad_open(OPIPE_E_DEVICE, true, OPIPE_E_DEVICE, "xxx");
}

/* Backends that stand on each other: each asks for the one behind it in `circle` of so many. */
enum { CIRCLE_MOST = 3 };
static uint32_t n_circle, n_circle_opens;

static opipe_status open_next(const opipe_host *host, uint32_t own, opipe_instance **out_self,
                              opipe_error *e) {
  static const char *const ids[CIRCLE_MOST] = {"one", "two", "three"};
  const opipe_backend *table = NULL;
  const opipe_backend_lookup *lookup = host->get_interface(host->ctx, OPIPE_BACKEND_LOOKUP_ID);
  *out_self = NULL;
  if (++n_circle_opens > 2 * CIRCLE_MOST)
    return opi_fail(e, OPIPE_E_LIMIT, "opened again and again");
  return lookup->find(host->ctx, ids[(own + 1) % n_circle], &table, out_self, e);
}

#define CIRCLE(name, own)                                                                          \
  static opipe_status open_##name(const opipe_host *host, opipe_instance **self, opipe_error *e) { \
    return open_next(host, own, self, e);                                                          \
  }                                                                                                \
  static const opipe_plugin circle_##name = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0),             \
                                             #name,                                                \
                                             "1",                                                  \
                                             "Apache-2.0",                                         \
                                             "stands on another",                                  \
                                             open_##name,                                          \
                                             close_nothing,                                        \
                                             no_interface};
CIRCLE(one, 0)
CIRCLE(two, 1)
CIRCLE(three, 2)

static void test_backends_that_stand_on_each_other_are_refused(void) {
  static const opipe_plugin *const circle[] = {&circle_one, &circle_two, &circle_three};
  for (n_circle = 1; n_circle <= CIRCLE_MOST; ++n_circle) {
    opi_plugin_ref ref;
    opi_registry *r = open_paths(NULL, 0);
    n_circle_opens = 0;
    for (uint32_t i = 0; i < n_circle; ++i)
      OPI_ASSERT_OK_FATAL(opi_registry_add_static(r, circle[i], &err), &err);
    OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_BACKEND, "one", &ref, &err), OPIPE_E_STATE,
                     &err, "backend 'one' is being opened: its open() depends on itself");
    OPI_ASSERT(n_circle == 1 || strstr(err.message, "through 'two'") != NULL);
    OPI_ASSERT(n_circle < 3 || strstr(err.message, "through 'two', 'three'") != NULL);
    OPI_ASSERT_INT(n_circle_opens, n_circle);
    OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_BACKEND, "one", &ref, &err), OPIPE_E_STATE,
                     &err, "depends on itself");
    OPI_ASSERT_INT(n_circle_opens, n_circle);
    opi_registry_free(r);
  }
}

static void test_texts_of_a_descriptor_are_listed_as_lines(void) {
  for (uint32_t format = 0; format < 2; ++format) {
    static text described;
    opi_registry *r = open_paths(NULL, 0);
    described.n = 0;
    open_status = OPIPE_E_DEVICE;
    endless_message = true;
    OPI_ASSERT_OK_FATAL(opi_registry_add_static(r, &bad, &err), &err);
    OPI_ASSERT_OK(opi_registry_describe(r, format, append, &described, &err), &err);
    OPI_ASSERT(strstr(described.data, "1?2") != NULL);
    OPI_ASSERT(strchr(described.data, '\x1b') == NULL && strchr(described.data, '\xff') == NULL);
    opi_registry_free(r);
  }
}

/* Only what the size covers is read. */
static void test_a_descriptor_of_eight_bytes(void) {
  const uint32_t head[] = {OPIPE_PLUGIN_MAGIC, 8};
  void *small = malloc(sizeof head);
  OPI_ASSERT_FATAL(small != NULL);
  memcpy(small, head, sizeof head);
  OPI_ASSERT_ERROR(opi_descriptor_check(small, &err), OPIPE_E_ABI, &err,
                   "its descriptor has 8 bytes");
  free(small);
}

/* Built against the frozen headers of every released minor. */
static void test_old_plugins_are_taken(void) {
  glob_t minors;
  if (glob(opi_test_source("tests/abi/v*"), 0, NULL, &minors) != 0)
    OPI_SKIP("no minor is frozen");
  for (size_t i = 0; i < minors.gl_pathc; ++i) {
    const char *path = mock(strrchr(minors.gl_pathv[i], '/') + 1);
    opi_plugin_ref ref;
    opi_registry *r = open_paths(&path, 1);
    OPI_ASSERT_OK_FATAL(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err), &err);
    OPI_ASSERT(((const opipe_schedule *)ref.table)->layout != NULL);
    opi_registry_free(r);
  }
  globfree(&minors);
}

static void test_a_sanitized_plugin_is_refused_before_it_is_loaded(void) {
  if (access(mock("asan"), R_OK) != 0)
    OPI_SKIP("this build is sanitized itself");
  expect_refused(mock("asan"), "AddressSanitizer");
}

/* ---- files that are no plugins ---- */

static const char *write_file(const char *name, const void *data, size_t n) {
  const char *path = opi_test_tmp(name);
  OPI_ASSERT_FATAL(opi_test_write_file(path, data, n));
  return path;
}

static unsigned char *read_good(size_t *out_n) {
  char *data = opi_test_read_file(mock("good"), out_n);
  OPI_ASSERT_FATAL(data != NULL);
  return (unsigned char *)data;
}

static void test_files_that_are_no_plugins(void) {
  size_t n = 0;
  unsigned char *data = read_good(&n);
  expect_refused(write_file("opipe-schedule-text.so", "hello", 5), "is not an ELF file");
  expect_refused(write_file("opipe-schedule-empty.so", "", 0), "is not an ELF file");
  data[18] = 183; /* e_machine: AArch64 */
  data[19] = 0;
  expect_refused(write_file("opipe-schedule-machine.so", data, n), "another machine");
  free(data);
}

/* Cut short anywhere, a plugin is refused or (when only what dlopen does not map is missing) still
 * loads; it never ends the process. */
static void test_truncated_files_never_crash(void) {
  size_t n = 0;
  uint32_t refused = 0;
  unsigned char *data = read_good(&n);
  for (size_t length = 0; length < n; length += n / 23 + 1) {
    char name[64];
    opi_plugin_ref ref;
    (void)snprintf(name, sizeof(name), "opipe-schedule-cut%zu.so", length);
    const char *path = write_file(name, data, length);
    const opi_registry_params params = {
        .allocator = opi_allocator_system(), .paths = &path, .n_paths = 1};
    opi_registry *r = NULL;
    refused += opi_registry_create(&params, &r, &err) < 0 ||
               opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err) < 0;
    opi_registry_free(r);
  }
  OPI_ASSERT(refused > 10);
  free(data);
}

static void test_a_fifo_does_not_hang(void) {
  char path[1024];
  (void)snprintf(path, sizeof(path), "%s/opipe-schedule-fifo.so", opi_test_tmpdir());
  (void)unlink(path);
  OPI_ASSERT_FATAL(mkfifo(path, 0600) == 0);
  expect_refused(path, "is not a regular file");
}

static void test_a_given_path_must_exist(void) {
  const char *path = "/nowhere/opipe-schedule-x.so";
  opi_registry *r = NULL;
  const opi_registry_params params = {
      .allocator = opi_allocator_system(), .paths = &path, .n_paths = 1};
  OPI_ASSERT_ERROR(opi_registry_create(&params, &r, &err), OPIPE_E_IO, &err, "/nowhere/");
}

/* ---- names ---- */

static void test_a_later_twin_is_shadowed(void) {
  static text described;
  const char *paths[] = {mock("good"), mock("twin")};
  opi_plugin_ref ref;
  opi_registry *r = open_paths(paths, 2);
  described.n = 0;
  OPI_ASSERT_OK(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err), &err);
  OPI_ASSERT_OK(opi_registry_describe(r, 1, append, &described, &err), &err);
  OPI_ASSERT(strstr(described.data, "shadowed by ") != NULL);
  opi_registry_free(r);
}

static void copy_file(const char *from, const char *to) {
  char command[4096];
  (void)snprintf(command, sizeof(command), "cp '%s' '%s'", from, to);
  OPI_ASSERT_INT(system(command), 0);
}

/* A folder of that name with copies: of `plugin` called opipe-schedule-NAME.so each. */
static const char *folder_of(const char *folder, const char *const (*copies)[2], size_t n) {
  const char *path = opi_test_tmp(folder);
  char to[1200];
  (void)mkdir(path, 0700);
  for (size_t i = 0; i < n; ++i) {
    (void)snprintf(to, sizeof to, "%s/opipe-schedule-%s.so", path, copies[i][1]);
    copy_file(mock(copies[i][0]), to);
  }
  return path;
}

static void test_twins_in_one_folder_are_all_refused(void) {
  static const char *const copies[][2] = {
      {"good", "one"}, {"twin", "two"}, {"v1.0", "three"}, {"newer", "four"}};
  for (size_t n = 2; n <= OPI_COUNT(copies); ++n) {
    char name[16]; /* one each: what is loaded is not written over */
    (void)snprintf(name, sizeof name, "twins%zu", n);
    const char *folder = folder_of(name, copies, n);
    opi_plugin_ref ref;
    opi_registry *r = open_paths(&folder, 1);
    OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err),
                     OPIPE_E_UNSUPPORTED, &err, "two plugins are called schedule 'mock'");
    opi_registry_free(r);
  }
}

static void test_bad_neighbours_do_not_hide_good_ones(void) {
  static const char *const copies[][2] = {
      {"magic", "magic"}, {"no-symbol", "no-symbol"}, {"good", "mock"}};
  const char *folder = folder_of("neighbours", copies, 3);
  opi_plugin_ref ref;
  opi_registry *r = open_paths(&folder, 1);
  OPI_ASSERT_OK(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err), &err);
  opi_registry_free(r);
}

/* A plugin that the host named is not replaced by one in a later place. */
static void test_a_refused_plugin_that_was_given_is_not_replaced(void) {
  static const char *const ill[][2] = {{"magic", "mock"}}, *const good[][2] = {{"good", "mock"}};
  const char *folders[] = {folder_of("bad", ill, 1), folder_of("good", good, 1)};
  const char *file = opi_test_tmp("bad/opipe-schedule-mock.so");
  opi_plugin_ref ref;
  opi_registry *r = open_paths(folders, 2);
  OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err),
                   OPIPE_E_UNSUPPORTED, &err, "magic 0x00000001");
  opi_registry_free(r);
  const opi_registry_params params = {
      .allocator = opi_allocator_system(), .paths = &file, .n_paths = 1};
  OPI_ASSERT_ERROR(opi_registry_create(&params, &r, &err), OPIPE_E_ABI, &err,
                   "opipe-schedule-mock.so");
}

static text logged;

static void note_warning(void *ctx, uint32_t level, const char *file, uint32_t line,
                         const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  if (level <= OPIPE_LOG_WARN)
    (void)append(&logged, msg, strlen(msg));
}

/* The same holds for plugins that the environment names; entries in which nothing can be found
 * cause a warning. */
static void test_the_environment_is_not_passed_over_in_silence(void) {
  static const char *const ill[][2] = {{"magic", "mock"}}, *const good[][2] = {{"good", "mock"}};
  static const opi_logger logger = {.log = note_warning, .level = OPIPE_LOG_WARN};
  char list[8192];
  const char *before = getenv("OPIPE_PLUGIN_PATH");
  char *kept = before == NULL ? NULL : strdup(before);
  const opi_registry_params params = {.allocator = opi_allocator_system(), .logger = &logger};
  opi_plugin_ref ref;
  opi_registry *r = NULL;
  (void)snprintf(list, sizeof list, "%s:%s::relative/folder:%s:%s", folder_of("env-bad", ill, 1),
                 folder_of("env-good", good, 1), folder_of("env-empty", NULL, 0),
                 "/nowhere/at/all");
  OPI_ASSERT_FATAL(setenv("OPIPE_PLUGIN_PATH", list, 1) == 0);
  logged.n = 0;
  OPI_ASSERT_OK_FATAL(opi_registry_create(&params, &r, &err), &err);
  OPI_ASSERT_ERROR(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err),
                   OPIPE_E_UNSUPPORTED, &err, "magic 0x00000001");
  opi_registry_free(r);
  OPI_ASSERT(strstr(logged.data, "opipe-schedule-mock.so refused") != NULL);
  OPI_ASSERT(strstr(logged.data, "relative/folder: OPIPE_PLUGIN_PATH takes absolute") != NULL);
  OPI_ASSERT(strstr(logged.data, "env-empty: no file in it is called opipe-*.so") != NULL);
  OPI_ASSERT(strstr(logged.data, "/nowhere/at/all: No such file") != NULL);
  OPI_ASSERT_FATAL(
      (kept == NULL ? unsetenv("OPIPE_PLUGIN_PATH") : setenv("OPIPE_PLUGIN_PATH", kept, 1)) == 0);
  free(kept);
}

/* Whatever the loader would find under that name elsewhere. */
static void test_a_name_without_a_slash_is_a_file_here(void) {
  static const char *const good[][2] = {{"good", "mock"}};
  const char *path = "opipe-schedule-mock.so";
  char before[4096];
  opi_plugin_ref ref;
  OPI_ASSERT_FATAL(getcwd(before, sizeof before) != NULL);
  OPI_ASSERT_FATAL(chdir(folder_of("here", good, 1)) == 0);
  opi_registry *r = open_paths(&path, 1);
  OPI_ASSERT_FATAL(chdir(before) == 0);
  OPI_ASSERT_OK(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err), &err);
  opi_registry_free(r);
}

static opipe_status count_one(void *ctx, const opipe_plugin *plugin, const opi_plugin_ref *ref,
                              opipe_error *e) {
  (void)plugin;
  (void)ref;
  (void)e;
  ++*(uint32_t *)ctx;
  return OPIPE_OK;
}

static void test_a_kind_is_listed_without_opening_others(void) {
  uint32_t n = 0;
  opi_registry *r = open_paths(NULL, 0);
  n_opened_badly = 0;
  open_status = OPIPE_E_DEVICE;
  OPI_ASSERT_OK_FATAL(opi_registry_add_static(r, &bad, &err), &err);
  OPI_ASSERT_OK(opi_registry_each(r, OPIPE_KIND_TRANSPORT, count_one, &n, &err), &err);
  OPI_ASSERT_INT(n_opened_badly, 0);
  OPI_ASSERT_OK(opi_registry_each(r, OPIPE_KIND_SCHEDULE, count_one, &n, &err), &err);
  OPI_ASSERT_INT(n_opened_badly, 1);
  opi_registry_free(r);
}

/* Asked for by name and not usable is an error: the twin that would work is no substitute. */
static void test_a_failing_plugin_is_not_replaced(void) {
  const char *paths[] = {mock("open-fails"), mock("good")};
  opi_plugin_ref ref;
  opi_registry *r = open_paths(paths, 2);
  OPI_ASSERT(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err) < 0);
  OPI_ASSERT(strstr(err.message, "the mock's device is on fire") != NULL);
  const opipe_error first = err;
  OPI_ASSERT_INT(opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err), first.status);
  OPI_ASSERT_STR(err.message, first.message);
  opi_registry_free(r);
}

/* ---- memory ---- */

static opipe_status open_and_describe(opi_test_memory *memory, void *arg) {
  static text described;
  const char *path = arg;
  opi_registry *r = NULL;
  opi_plugin_ref ref;
  const opi_registry_params params = {
      .allocator = &memory->allocator, .paths = &path, .n_paths = 1};
  opipe_status status = opi_registry_create(&params, &r, &err);
  if (status == OPIPE_OK)
    status = opi_registry_find(r, OPIPE_KIND_SCHEDULE, "mock", &ref, &err);
  described.n = 0;
  if (status == OPIPE_OK)
    status = opi_registry_describe(r, 1, append, &described, &err);
  opi_registry_free(r);
  return status;
}

static void test_every_failing_allocation_is_survived(void) {
  OPI_ASSERT(opi_test_every_allocation(open_and_describe, (void *)(uintptr_t)mock("good"), 1000) >
             4);
}

OPI_TEST_MAIN("registry", OPI_TEST(test_a_good_plugin_is_opened_once),
              OPI_TEST(test_each_broken_rule_is_named),
              OPI_TEST(test_a_newer_plugin_that_can_live_with_us_is_taken),
              OPI_TEST(test_old_plugins_are_taken),
              OPI_TEST(test_a_backend_that_ends_at_run_cannot_train),
              OPI_TEST(test_a_transport_that_ends_at_abort_has_one_info),
              OPI_TEST(test_batches_of_a_transport_come_in_pairs),
              OPI_TEST(test_a_table_is_cut_at_whole_slots),
              OPI_TEST(test_optional_slots_of_a_backend_come_together),
              OPI_TEST(test_what_open_answers_is_no_status),
              OPI_TEST(test_texts_of_a_descriptor_are_listed_as_lines),
              OPI_TEST(test_a_descriptor_of_eight_bytes),
              OPI_TEST(test_a_sanitized_plugin_is_refused_before_it_is_loaded),
              OPI_TEST(test_files_that_are_no_plugins), OPI_TEST(test_truncated_files_never_crash),
              OPI_TEST(test_a_fifo_does_not_hang), OPI_TEST(test_a_given_path_must_exist),
              OPI_TEST(test_a_later_twin_is_shadowed),
              OPI_TEST(test_twins_in_one_folder_are_all_refused),
              OPI_TEST(test_backends_that_stand_on_each_other_are_refused),
              OPI_TEST(test_the_environment_is_not_passed_over_in_silence),
              OPI_TEST(test_bad_neighbours_do_not_hide_good_ones),
              OPI_TEST(test_a_refused_plugin_that_was_given_is_not_replaced),
              OPI_TEST(test_a_name_without_a_slash_is_a_file_here),
              OPI_TEST(test_a_kind_is_listed_without_opening_others),
              OPI_TEST(test_a_failing_plugin_is_not_replaced),
              OPI_TEST(test_every_failing_allocation_is_survived))
