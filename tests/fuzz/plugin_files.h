/* SPDX-License-Identifier: Apache-2.0 */
/* Files that may be plugins: a small ELF file with bytes changed, looked at as the registry does
 * before it loads; and a real plugin whose descriptor has other numbers, loaded. A file that is
 * loaded stays, so only a few are.
 */
#ifndef TESTS_FUZZ_PLUGIN_FILES_H
#define TESTS_FUZZ_PLUGIN_FILES_H

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/registry/registry.h"
#include "tests/fuzz/plugin_bytes.h"
#include "tests/fuzz/plugin_run.h"

enum { LOADS_MOST = 48 };

static struct { uint64_t read, refused, loaded; } files;

typedef struct small_elf {
  Elf64_Ehdr head;
  Elf64_Phdr phdrs[3];
  Elf64_Dyn dynamic[5];
  char strings[64];
} small_elf;

static small_elf right_elf(void) {
  small_elf f = {
      .head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB},
               .e_type = ET_DYN,
#if defined(__aarch64__)
               .e_machine = EM_AARCH64,
#else
               .e_machine = EM_X86_64,
#endif
               .e_phoff = offsetof(small_elf, phdrs),
               .e_phentsize = sizeof(Elf64_Phdr),
               .e_phnum = 3},
      .phdrs = {{.p_type = PT_LOAD, .p_filesz = sizeof f, .p_vaddr = 4096},
                {.p_type = PT_DYNAMIC,
                 .p_offset = offsetof(small_elf, dynamic),
                 .p_filesz = sizeof f.dynamic},
                {.p_type = PT_NULL}},
      .dynamic = {{.d_tag = DT_NEEDED, .d_un.d_val = 1},
                  {.d_tag = DT_NEEDED, .d_un.d_val = 11},
                  {.d_tag = DT_STRTAB, .d_un.d_ptr = 4096 + offsetof(small_elf, strings)},
                  {.d_tag = DT_NULL}},
      .strings = "\0libm.so.6\0libtsan.so.2\0libclang_rt.asan-x86_64.so"};
  return f;
}

/* 2, 4 or 8 bytes anywhere become a number of interest. */
static void change_bytes(input *in, char *data, size_t n) {
  for (uint32_t k = take(in, 5); k > 0; --k) {
    const size_t width = (size_t)2 << take(in, 3);
    const size_t at = (((size_t)take8(in) << 8) | take8(in)) % (n - 7);
    uint64_t value = 0;
    memcpy(&value, data + at, width);
    value = take(in, 3) == 0 ? take8(in) : take_number(in, value);
    memcpy(data + at, &value, width);
  }
}

/* The text of the file's refusal by the registry. */
static void look_at(const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = opi_elf_check(path, &err);
  ++files.read;
  if (status == OPIPE_OK)
    return;
  ++files.refused;
  must_refuse(status, &err, path);
}

static void file_of_small_elf(input *in) {
  char path[64];
  small_elf f = right_elf();
  const int fd = memfd_create("small", MFD_CLOEXEC);
  must(fd >= 0, "no file in memory");
  change_bytes(in, (char *)&f, sizeof f);
  const size_t n = take(in, 3) == 0 ? (((size_t)take8(in) << 2) + take8(in)) % sizeof f : sizeof f;
  must(write(fd, &f, n) == (ssize_t)n, "a file in memory cannot be written");
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  look_at(path);
  (void)close(fd);
}

/* ---- a real plugin ---- */

static char *real_file(size_t *out_n, size_t *out_descriptor) {
  static char *data;
  static size_t n, descriptor;
  const uint32_t head[] = {OPIPE_PLUGIN_MAGIC, (uint32_t)OPIPE_END(opipe_plugin, get_interface)};
  if (data == NULL) {
    data = opi_test_read_file(opi_test_build("lib/onnx-pipe/opipe-schedule-gpipe.so"), &n);
    must(data != NULL, "schedule gpipe is not built");
    while (descriptor + sizeof head < n && memcmp(data + descriptor, head, sizeof head) != 0)
      ++descriptor;
    must(descriptor + sizeof head < n, "no descriptor in schedule gpipe");
  }
  *out_n = n;
  *out_descriptor = descriptor;
  return data;
}

static void file_of_plugin(input *in) {
  char path[64], numbers[offsetof(opipe_plugin, id)];
  size_t n = 0, at = 0;
  char *data = real_file(&n, &at);
  text t = {NULL, 0};
  opi_registry *r = NULL;
  opi_plugin_ref ref;
  opipe_error err = OPIPE_ERROR_INIT;
  if (files.loaded >= LOADS_MOST)
    return;
  ++files.loaded;
  memcpy(numbers, data + at, sizeof numbers);
  change_bytes(in, data + at, sizeof numbers);
  const int fd = memfd_create("plugin", MFD_CLOEXEC);
  must(fd >= 0 && write(fd, data, n) == (ssize_t)n, "a file in memory cannot be written");
  /* A name of its own for each: what has the name of a loaded file is not read again. */
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 100 + (int)files.loaded);
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", own);
  const bool same = memcmp(numbers, data + at, sizeof numbers) == 0;
  memcpy(data + at, numbers, sizeof numbers);
  const char *paths[] = {path};
  const opi_registry_params params = {
      .allocator = opi_allocator_system(), .paths = paths, .n_paths = 1};
  opipe_status status = opi_registry_create(&params, &r, &err);
  if (status == OPIPE_OK) {
    status = opi_registry_find(r, OPIPE_KIND_SCHEDULE, "gpipe", &ref, &err);
    must(opi_registry_describe(r, 1, append, &t, &err) == OPIPE_OK, err.message);
    must(strstr(t.data, path) != NULL, "a list without the file");
    must_read(&t, true, "plugins");
  }
  if (status != OPIPE_OK)
    must_refuse(status, &err, r == NULL ? path : "gpipe");
  must(status == OPIPE_OK || !same, err.message);
  opi_registry_free(r);
  (void)close(own);
  (void)close(fd);
}

static void file_read(input *in) {
  if (take(in, 64) == 1)
    file_of_plugin(in);
  else
    file_of_small_elf(in);
}

#endif /* TESTS_FUZZ_PLUGIN_FILES_H */
