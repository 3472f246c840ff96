/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and events that other processes open. A handle names a descriptor of the process that made
 * it; behind the memory lies a page that both see: who has it open, and whether it was freed.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "double.h"

enum { PAGE = 4096, MOST_OPEN = 32, REFUSES_EXPORT = 2, REFUSES_OPEN = 3 };
#define MAGIC UINT64_C(0x6f70697063646f75)

/* In the last page of what is shared. */
struct cuda_double_told {
  uint64_t magic, serial;
  cuda_double_state state; /* if it is an event */
  uint32_t freed;
  uint32_t n_open;
  int32_t open[MOST_OPEN]; /* processes that have it open; 0: free */
};

typedef struct handle {
  uint64_t magic, serial;
  uint64_t n_bytes;          /* size of the file, with that page */
  uint64_t offset, n_memory; /* of the memory in it */
  int32_t process, fd;
  int32_t device; /* by its place on the machine */
  int32_t reserved;
} handle;
_Static_assert(sizeof(handle) <= sizeof(CUipcMemHandle), "a handle is too large");

static uint64_t last_serial, n_exported, n_opened, n_events_opened;

void cuda_double_count_shared(cuda_double_facts *io_facts) {
  io_facts->exported = n_exported;
  io_facts->opened = n_opened;
  io_facts->events_opened = n_events_opened;
}

/* A file of n_bytes of memory and that page; the page is mapped. */
static struct cuda_double_told *make(size_t n_bytes, int *out_fd) {
  const int fd = memfd_create("cuda double", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)(n_bytes + PAGE)) != 0)
    return NULL;
  struct cuda_double_told *told =
      mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)n_bytes);
  if (told == MAP_FAILED) {
    (void)close(fd);
    return NULL;
  }
  told->magic = MAGIC;
  told->serial = ((uint64_t)getpid() << 32) | ++last_serial;
  *out_fd = fd;
  return told;
}

/* Zombies have nothing open. */
static bool is_alive(int32_t process) {
  char path[64], text[256] = "";
  (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  const ssize_t n = read(fd, text, sizeof text - 1);
  (void)close(fd);
  const char *end = n > 0 ? strrchr(text, ')') : NULL;
  return end != NULL && end[1] == ' ' && end[2] != 'Z' && end[2] != 'X';
}

static void note_open(struct cuda_double_told *told, bool is_open) {
  const int32_t own = (int32_t)getpid();
  for (int i = 0; i < MOST_OPEN; ++i) {
    int32_t was = is_open ? 0 : own;
    if (__atomic_compare_exchange_n(&told->open[i], &was, is_open ? own : 0, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      return;
  }
  cuda_double_die(is_open ? "more processes open it than the double counts"
                          : "it is closed more often than opened");
}

/* The file that a handle names; NULL: there is none any more. */
static struct cuda_double_told *find(const handle *h, int *out_fd) {
  char path[64];
  struct stat facts;
  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h->process, (int)h->fd);
  const int fd = h->magic == MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0)
    return NULL;
  struct cuda_double_told *told = MAP_FAILED;
  if (fstat(fd, &facts) == 0 && (uint64_t)facts.st_size == h->n_bytes && h->n_bytes >= PAGE)
    told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(h->n_bytes - PAGE));
  if (told != MAP_FAILED && (told->magic != MAGIC || told->serial != h->serial ||
                             __atomic_load_n(&told->freed, __ATOMIC_ACQUIRE) != 0)) {
    (void)munmap(told, PAGE);
    told = MAP_FAILED;
  }
  if (told == MAP_FAILED) {
    (void)close(fd);
    return NULL;
  }
  *out_fd = fd;
  return told;
}

/* ---- memory ---- */

/* The block's pages become a file's, with what is in them. Under the lock: nothing writes there. */
static bool export(cuda_double_block *b) {
  int fd = -1;
  struct cuda_double_told *told = make(b->base_bytes, &fd);
  if (told == NULL)
    return false;
  for (size_t done = 0; done < b->base_bytes;) {
    const ssize_t n = pwrite(fd, b->base + done, b->base_bytes - done, (off_t)done);
    if (n <= 0)
      cuda_double_die("the memory cannot be copied");
    done += (size_t)n;
  }
  if (mmap(b->base, b->base_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
      b->base)
    cuda_double_die("the memory cannot be mapped");
  b->fd = fd;
  b->told = told;
  ++n_exported;
  return true;
}

void cuda_double_end_export(cuda_double_block *b) {
  if (b->told == NULL)
    return;
  __atomic_store_n(&b->told->freed, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < MOST_OPEN; ++i) {
    const int32_t process = __atomic_load_n(&b->told->open[i], __ATOMIC_ACQUIRE);
    if (process != 0 && is_alive(process))
      cuda_double_die("memory is freed that another process has open");
  }
  (void)munmap(b->told, PAGE);
  (void)close(b->fd);
  /* the allocator gets pages that are nobody else's */
  if (mmap(b->base, b->base_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
           -1, 0) != b->base)
    cuda_double_die("the memory cannot be mapped");
  b->told = NULL;
  --n_exported;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  cuda_double_block *b = cuda_double_find((uintptr_t)address, 1);
  const uint64_t how = cuda_double_option("OPIPE_CUDA_DOUBLE_IPC", 1);
  if (b == NULL || b->first != (uintptr_t)address || b->pinned || b->opened)
    result = CUDA_INVALID_VALUE;
  else if (how == 0 || how == REFUSES_EXPORT || (b->told == NULL && !export(b)))
    result = CUDA_NOT_SUPPORTED;
  if (result == CUDA_OK) {
    const handle h = {.magic = MAGIC,
                      .serial = b->told->serial,
                      .n_bytes = b->base_bytes + PAGE,
                      .offset = b->first - (uintptr_t)b->base,
                      .n_memory = b->n_bytes,
                      .process = (int32_t)getpid(),
                      .fd = b->fd,
                      .device = cuda_double_place(b->device)};
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* Opened before by this context: the same address, once more. */
static cuda_double_block *opened_before(const handle *h) {
  for (cuda_double_block *b = cuda_double_first(); b != NULL; b = b->next) {
    if (b->opened && b->told->serial == h->serial && b->device == cuda_double_device())
      return b;
  }
  return NULL;
}

static CUresult open_memory(const handle *h, cuda_double_block **out) {
  int fd = -1;
  struct cuda_double_told *told = find(h, &fd);
  if (told == NULL)
    return CUDA_MAP_FAILED;
  const size_t n_bytes = (size_t)(h->n_bytes - PAGE);
  void *data = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  cuda_double_block *b = calloc(1, sizeof *b);
  (void)close(fd);
  if (data == MAP_FAILED || b == NULL || h->offset > n_bytes || h->n_memory > n_bytes - h->offset)
    cuda_double_die("a handle that was tampered with");
  *b = (cuda_double_block){.base = data,
                           .base_bytes = n_bytes,
                           .first = (uintptr_t)data + h->offset,
                           .n_bytes = (size_t)h->n_memory,
                           .opened = true,
                           .device = cuda_double_device(),
                           .fd = -1,
                           .told = told};
  note_open(told, true);
  cuda_double_add(b);
  ++n_opened;
  *out = b;
  return CUDA_OK;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle opaque, unsigned flags) {
  CUresult result = cuda_double_enter_apart();
  handle h;
  memcpy(&h, &opaque, sizeof h);
  if (result != CUDA_OK || flags != CUDA_IPC_LAZY_PEERS)
    return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
  (void)pthread_mutex_lock(&cuda_double_lock);
  cuda_double_block *b = NULL;
  if (h.process == (int32_t)getpid())
    result = CUDA_INVALID_CONTEXT;
  else if (cuda_double_option("OPIPE_CUDA_DOUBLE_IPC", 1) == REFUSES_OPEN)
    result = CUDA_MAP_FAILED;
  else if (h.device != cuda_double_place(cuda_double_device()) &&
           cuda_double_option("OPIPE_CUDA_DOUBLE_PEERS", 0) != 1)
    result = CUDA_PEER_UNSUPPORTED;
  else if ((b = opened_before(&h)) == NULL)
    result = open_memory(&h, &b);
  if (result == CUDA_OK) {
    ++b->opens;
    *address = b->first;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  cuda_double_block *b = cuda_double_find((uintptr_t)address, 1);
  if (b == NULL || !b->opened || b->first != (uintptr_t)address) {
    result = CUDA_INVALID_VALUE;
  } else if (--b->opens == 0) {
    if (cuda_double_uses(b->first, b->n_bytes))
      cuda_double_die("memory of another process is closed that queued work uses");
    note_open(b->told, false);
    (void)munmap(b->told, PAGE);
    (void)munmap(b->base, b->base_bytes);
    cuda_double_remove(b);
    --n_opened;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* ---- events ---- */

cuda_double_state *cuda_double_state_share(int *out_fd, struct cuda_double_told **out_told) {
  *out_told = make(0, out_fd);
  return *out_told == NULL ? NULL : &(*out_told)->state;
}

void cuda_double_state_end(int fd, struct cuda_double_told *told, bool opened) {
  if (opened)
    (void)__atomic_sub_fetch(&n_events_opened, 1, __ATOMIC_RELAXED);
  else
    __atomic_store_n(&told->freed, 1, __ATOMIC_RELEASE);
  (void)munmap(told, PAGE);
  if (fd >= 0)
    (void)close(fd);
}

CUresult cuda_double_state_handle(int fd, const struct cuda_double_told *told, void *out_handle) {
  const uint64_t how = cuda_double_option("OPIPE_CUDA_DOUBLE_IPC", 1);
  const handle h = {.magic = MAGIC,
                    .serial = told->serial,
                    .n_bytes = PAGE,
                    .process = (int32_t)getpid(),
                    .fd = fd};
  if (how == 0 || how == REFUSES_EXPORT)
    return CUDA_NOT_SUPPORTED;
  memset(out_handle, 0, sizeof(CUipcEventHandle));
  memcpy(out_handle, &h, sizeof h);
  return CUDA_OK;
}

CUresult cuda_double_state_open(const void *opaque, cuda_double_state **out_state,
                                struct cuda_double_told **out_told) {
  int fd = -1;
  handle h;
  memcpy(&h, opaque, sizeof h);
  if (h.process == (int32_t)getpid())
    return CUDA_INVALID_CONTEXT;
  if (cuda_double_option("OPIPE_CUDA_DOUBLE_IPC", 1) == REFUSES_OPEN)
    return CUDA_MAP_FAILED;
  struct cuda_double_told *told = find(&h, &fd);
  if (told == NULL)
    return CUDA_MAP_FAILED;
  (void)close(fd);
  (void)__atomic_add_fetch(&n_events_opened, 1, __ATOMIC_RELAXED);
  *out_told = told;
  *out_state = &told->state;
  return CUDA_OK;
}

void cuda_double_state_check(const struct cuda_double_told *told) {
  if (__atomic_load_n(&told->freed, __ATOMIC_ACQUIRE) != 0)
    cuda_double_die("an event is used that its process has destroyed");
}
