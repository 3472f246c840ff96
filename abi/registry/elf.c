/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a shared object before dlopen: a truncated file would raise SIGBUS, a sanitizer's runtime
 * would end the process. Reads only headers, the dynamic section and the names of needed libraries,
 * each by a bounded pread. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "abi/registry/registry.h"

enum { PHDRS_MOST = 64, DYNS_MOST = 4096 };

#if defined(__x86_64__)
enum { OWN_MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { OWN_MACHINE = EM_AARCH64 };
#elif defined(__riscv)
enum { OWN_MACHINE = EM_RISCV };
#else
enum { OWN_MACHINE = EM_PPC64 };
#endif

typedef struct elf_file {
  const char *path;
  int fd;
  uint64_t n_bytes;
  Elf64_Phdr phdrs[PHDRS_MOST];
  uint32_t n_phdrs;
  opipe_error *err;
} elf_file;

static bool read_at(const elf_file *f, void *out, uint64_t offset, uint64_t n) {
  uint64_t end = 0;
  if (opi_add_u64(offset, n, &end) || end > f->n_bytes)
    return false;
  return pread(f->fd, out, (size_t)n, (off_t)offset) == (ssize_t)n;
}

static opipe_status truncated(const elf_file *f, uint64_t need) {
  return opi_fail(f->err, OPIPE_E_INVALID,
                  "%s is truncated: it has %llu bytes, its headers need %llu", f->path,
                  (unsigned long long)f->n_bytes, (unsigned long long)need);
}

static opipe_status read_headers(elf_file *f) {
  Elf64_Ehdr head;
  if (!read_at(f, &head, 0, sizeof(head)) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
    return opi_fail(f->err, OPIPE_E_INVALID, "%s is not an ELF file", f->path);
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != OWN_MACHINE ||
      head.e_type != ET_DYN) {
    return opi_fail(
        f->err, OPIPE_E_ABI,
        "%s is built for another machine or is not a shared object (class %d, machine %d, type %d; "
        "here %d, %d, %d)",
        f->path, head.e_ident[EI_CLASS], head.e_machine, head.e_type, ELFCLASS64, OWN_MACHINE,
        ET_DYN);
  }
  if (head.e_phnum > PHDRS_MOST || head.e_phentsize != sizeof(Elf64_Phdr)) {
    return opi_fail(f->err, OPIPE_E_INVALID, "%s has %d program headers of %d bytes", f->path,
                    head.e_phnum, head.e_phentsize);
  }
  f->n_phdrs = head.e_phnum;
  const uint64_t n = (uint64_t)f->n_phdrs * sizeof(Elf64_Phdr);
  if (!read_at(f, f->phdrs, head.e_phoff, n))
    return truncated(f, head.e_phoff + n);
  for (uint32_t i = 0; i < f->n_phdrs; ++i) {
    uint64_t end = 0;
    const Elf64_Phdr *p = &f->phdrs[i];
    if (opi_add_u64(p->p_offset, p->p_filesz, &end) || end > f->n_bytes)
      return truncated(f, end);
  }
  return OPIPE_OK;
}

/* File offset of a virtual address; UINT64_MAX if no loaded part contains it. */
static uint64_t offset_of(const elf_file *f, uint64_t address) {
  for (uint32_t i = 0; i < f->n_phdrs; ++i) {
    const Elf64_Phdr *p = &f->phdrs[i];
    if (p->p_type == PT_LOAD && address >= p->p_vaddr && address - p->p_vaddr < p->p_filesz)
      return p->p_offset + (address - p->p_vaddr);
  }
  return UINT64_MAX;
}

static const char *sanitizer_of(const char *library) {
  static const char *const names[][2] = {{"libasan", "AddressSanitizer"},
                                         {"libclang_rt.asan", "AddressSanitizer"},
                                         {"libtsan", "ThreadSanitizer"},
                                         {"libclang_rt.tsan", "ThreadSanitizer"}};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    if (strncmp(library, names[i][0], strlen(names[i][0])) == 0)
      return names[i][1];
  }
  return NULL;
}

static const char *own_sanitizer(void) {
  if (OPIPE_BUILD_FLAGS == OPIPE_BUILD_ASAN)
    return "AddressSanitizer";
  return OPIPE_BUILD_FLAGS == OPIPE_BUILD_TSAN ? "ThreadSanitizer" : NULL;
}

static opipe_status check_needed(const elf_file *f, const Elf64_Phdr *dynamic) {
  uint64_t strings = UINT64_MAX;
  const uint64_t n = dynamic->p_filesz / sizeof(Elf64_Dyn);
  for (int pass = 0; pass < 2; ++pass) {
    for (uint64_t i = 0; i < n && i < DYNS_MOST; ++i) {
      Elf64_Dyn entry;
      char name[64] = "";
      if (!read_at(f, &entry, dynamic->p_offset + i * sizeof(entry), sizeof(entry)))
        return truncated(f, dynamic->p_offset);
      if (entry.d_tag == DT_NULL)
        break;
      if (pass == 0 && entry.d_tag == DT_STRTAB)
        strings = offset_of(f, entry.d_un.d_ptr);
      if (pass == 0 || entry.d_tag != DT_NEEDED || strings == UINT64_MAX)
        continue;
      uint64_t at = 0;
      if (opi_add_u64(strings, entry.d_un.d_val, &at) || at >= f->n_bytes)
        return truncated(f, at);
      const uint64_t room = f->n_bytes - at < sizeof(name) - 1 ? f->n_bytes - at : sizeof(name) - 1;
      if (!read_at(f, name, at, room))
        return truncated(f, at);
      const char *sanitizer = sanitizer_of(name);
      if (sanitizer != NULL &&
          (own_sanitizer() == NULL || strcmp(sanitizer, own_sanitizer()) != 0)) {
        return opi_fail(
            f->err, OPIPE_E_ABI,
            "%s is built with %s, this process is not: loading it would end the process", f->path,
            sanitizer);
      }
    }
  }
  return OPIPE_OK;
}

static opipe_status check_file(elf_file *f) {
  OPI_TRY(read_headers(f));
  for (uint32_t i = 0; i < f->n_phdrs; ++i) {
    if (f->phdrs[i].p_type == PT_DYNAMIC)
      return check_needed(f, &f->phdrs[i]);
  }
  return opi_fail(f->err, OPIPE_E_INVALID, "%s has no dynamic section", f->path);
}

opipe_status opi_elf_check(const char *path, opipe_error *err) {
  struct stat st;
  elf_file f = {.path = path, .err = err};
  f.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (f.fd < 0)
    return opi_fail_errno(err, errno, "cannot open %s", path);
  opipe_status status = OPIPE_OK;
  if (fstat(f.fd, &st) != 0) {
    status = opi_fail_errno(err, errno, "cannot stat %s", path);
  } else if (!S_ISREG(st.st_mode)) {
    status = opi_fail(err, OPIPE_E_INVALID, "%s is not a regular file", path);
  } else {
    f.n_bytes = (uint64_t)st.st_size;
    status = check_file(&f);
  }
  (void)close(f.fd);
  return status;
}
