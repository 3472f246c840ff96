/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, contexts, memory and modules of the double; streams and events are in streams.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "double.h"

enum { ZONE = 256, ZONE_BYTE = 0xa5, FRESH_BYTE = 0xcb, DEAD_BYTE = 0xdd };

struct CUctx_st {
  int device;
  uint64_t retained;
  bool peers[CUDA_DOUBLE_DEVICES]; /* whose memory its work gets at */
};

typedef cuda_double_block block;

pthread_mutex_t cuda_double_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner;
static uint64_t n_forked;
static struct CUctx_st contexts[CUDA_DOUBLE_DEVICES];
static _Thread_local CUcontext stack[32];
static _Thread_local uint32_t depth;
static block *blocks;
static uint64_t live_bytes, live_blocks, live_pinned;
CUresult cuda_double_fault;
_Thread_local bool cuda_double_in_host_function;
_Thread_local bool cuda_double_captures;

static uint64_t from_environment(const char *name, uint64_t fallback) {
  const char *text = getenv(name);
  return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : fallback;
}

uint64_t cuda_double_option(const char *name, uint64_t fallback) {
  return from_environment(name, fallback);
}

int cuda_double_chip(void) {
  return (int)from_environment("OPIPE_CUDA_DOUBLE_CHIP", 9);
}

int cuda_double_ptx(void) {
  return (int)from_environment("OPIPE_CUDA_DOUBLE_PTX", 10 * (uint64_t)cuda_double_chip());
}

void cuda_double_die(const char *what) {
  (void)fprintf(stderr, "cuda double: %s\n", what);
  abort();
}

/* ---- entry: initialised, in the process that did, no fault, a current context ---- */

static CUresult ready(void) {
  if (cuda_double_in_host_function)
    cuda_double_die("a host function calls the driver");
  if (owner != 0 && owner != getpid())
    (void)__atomic_add_fetch(&n_forked, 1, __ATOMIC_RELAXED);
  if (owner == 0 || owner != getpid())
    return CUDA_NOT_INITIALIZED;
  return CUDA_OK;
}

/* Under the lock. */
static void wait_for_all(const char *who) {
  char text[120];
  if (cuda_double_is_stopped()) {
    (void)snprintf(text, sizeof text, "%s waits for work that has come to a stop", who);
    cuda_double_die(text);
  }
}

void cuda_double_note_call(void) {
  (void)ready();
}

void cuda_double_wait_for_all(const char *who) {
  (void)ready();
  (void)pthread_mutex_lock(&cuda_double_lock);
  wait_for_all(who);
  (void)pthread_mutex_unlock(&cuda_double_lock);
}

CUresult cuda_double_enter(void) {
  const CUresult result = ready();
  if (result != CUDA_OK)
    return result;
  if (depth == 0)
    return CUDA_INVALID_CONTEXT;
  return __atomic_load_n(&cuda_double_fault, __ATOMIC_ACQUIRE);
}

CUresult cuda_double_enter_apart(void) {
  const CUresult result = cuda_double_enter();
  return result == CUDA_OK && cuda_double_captures ? CUDA_STREAM_CAPTURE_UNSUPPORTED : result;
}

CUresult cuInit(unsigned flags) {
  if (owner != 0 && owner != getpid())
    return CUDA_NOT_INITIALIZED;
  owner = getpid();
  return flags == 0 ? CUDA_OK : CUDA_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version) {
  *version = (int)from_environment("OPIPE_CUDA_DOUBLE_VERSION", 13000);
  return CUDA_OK;
}

static const struct {
  int error;
  const char *name;
} names[] = {{CUDA_OK, "CUDA_SUCCESS"},
             {CUDA_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
             {CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
             {CUDA_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
             {CUDA_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
             {CUDA_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
             {CUDA_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
             {CUDA_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
             {CUDA_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
             {CUDA_NOT_READY, "CUDA_ERROR_NOT_READY"},
             {CUDA_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
             {CUDA_MAP_FAILED, "CUDA_ERROR_MAP_FAILED"},
             {CUDA_PEER_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
             {CUDA_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
             {CUDA_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
             {CUDA_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}};

CUresult cuGetErrorName(CUresult error, const char **name) {
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    if (names[i].error == (int)error) {
      *name = names[i].name;
      return CUDA_OK;
    }
  }
  return CUDA_INVALID_VALUE;
}

/* ---- devices ---- */

static int count_all(void) {
  const uint64_t n = from_environment("OPIPE_CUDA_DOUBLE_DEVICES", 2);
  return n < CUDA_DOUBLE_DEVICES ? (int)n : CUDA_DOUBLE_DEVICES;
}

static bool is_slice(int device) {
  return from_environment("OPIPE_CUDA_DOUBLE_SLICE", CUDA_DOUBLE_DEVICES) == (uint64_t)device;
}

/* The device of an entry of CUDA_VISIBLE_DEVICES: a number, or how a uuid begins; -1: none. */
static int device_of(const char *entry, size_t n) {
  for (int i = 0; i < count_all(); ++i) {
    char number[16], uuid[48];
    (void)snprintf(number, sizeof number, "%d", i);
    (void)snprintf(uuid, sizeof uuid, "%s-%02x%02x%02x%02x-", is_slice(i) ? "MIG" : "GPU", 0xd0 + i,
                   0x0b, 0x1e, 0x55);
    if ((n == strlen(number) && strncmp(entry, number, n) == 0) ||
        (n > 4 && n < sizeof uuid &&
         strncmp(uuid, entry, strlen(uuid) < n ? strlen(uuid) : n) == 0))
      return i;
  }
  return -1;
}

/* The device that number `ordinal` is, after CUDA_VISIBLE_DEVICES, whose first entry that is none
 * ends it; -1: there are no more. */
static int visible(int ordinal) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  if (list == NULL)
    return ordinal < count_all() ? ordinal : -1;
  for (int n = 0; *list != '\0'; ++n) {
    const size_t length = strcspn(list, ",");
    const int device = device_of(list, length);
    if (device < 0 || n == ordinal)
      return device;
    list += length + (list[length] == ',');
  }
  return -1;
}

static int count_devices(void) {
  int n = 0;
  while (n < CUDA_DOUBLE_DEVICES && visible(n) >= 0)
    ++n;
  return n;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  memset(uuid, 0, sizeof *uuid);
  uuid->bytes[0] = (char)(0xd0 + visible(device));
  uuid->bytes[1] = 0x0b;
  uuid->bytes[2] = 0x1e;
  uuid->bytes[3] = 0x55;
  uuid->bytes[15] = (char)visible(device);
  return ready();
}

CUresult cuDeviceGetCount(int *count) {
  *count = count_devices();
  return ready();
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return ready() != CUDA_OK                          ? ready()
         : ordinal < 0 || ordinal >= count_devices() ? CUDA_INVALID_DEVICE
                                                     : CUDA_OK;
}

CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
  const char *chip = getenv("OPIPE_CUDA_DOUBLE_NAME");
  const int number = getenv("OPIPE_CUDA_DOUBLE_ALIKE") != NULL ? 0 : visible(device);
  (void)snprintf(name, (size_t)room, "%s %d%s", chip != NULL ? chip : "Double", number,
                 is_slice(visible(device)) ? " MIG 1g.10gb" : "");
  return ready();
}

static uint64_t device_bytes(void) {
  return from_environment("OPIPE_CUDA_DOUBLE_MEMORY", UINT64_C(1) << 30);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  (void)device;
  *bytes = (size_t)device_bytes();
  return ready();
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  static const struct {
    int attribute, value;
  } rows[] = {{CUDA_ATTRIBUTE_CLOCK_KHZ, 1980000},
              {CUDA_ATTRIBUTE_PROCESSORS, 132},
              {CUDA_ATTRIBUTE_MEMORY_CLOCK_KHZ, 2619000},
              {CUDA_ATTRIBUTE_MEMORY_BUS_BITS, 5120},
              {CUDA_ATTRIBUTE_MINOR, 0},

              {CUDA_ATTRIBUTE_SHARED_BYTES_OPTIN, CUDA_DOUBLE_SHARED_OPTIN}};
  (void)device;
  if (attribute == CUDA_ATTRIBUTE_MAJOR) {
    *value = cuda_double_chip();
    return ready();
  }
  if (attribute == (CUdevice_attribute)CUDA_ATTRIBUTE_IPC) {
    *value = from_environment("OPIPE_CUDA_DOUBLE_IPC", 1) != 0;
    return ready();
  }
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    if (rows[i].attribute == (int)attribute) {
      *value = rows[i].value;
      return ready();
    }
  }
  return CUDA_INVALID_VALUE;
}

/* ---- contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  if (ready() != CUDA_OK || device < 0 || device >= count_devices())
    return CUDA_INVALID_DEVICE;
  (void)pthread_mutex_lock(&cuda_double_lock);
  contexts[device].device = device;
  ++contexts[device].retained;
  *context = &contexts[device];
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return CUDA_OK;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUresult result = ready();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  if (contexts[device].retained == 0) {
    result = CUDA_INVALID_CONTEXT;
  } else if (--contexts[device].retained == 0) {
    wait_for_all("cuDevicePrimaryCtxRelease");
    memset(contexts[device].peers, 0, sizeof contexts[device].peers);
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (ready() != CUDA_OK)
    return ready();
  if (context == NULL || depth == sizeof stack / sizeof stack[0])
    return CUDA_INVALID_CONTEXT;
  stack[depth++] = context;
  return CUDA_OK;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  if (ready() != CUDA_OK)
    return ready();
  if (depth == 0)
    return CUDA_INVALID_CONTEXT;
  *context = stack[--depth];
  return CUDA_OK;
}

/* ---- peers ---- */

/* OPIPE_CUDA_DOUBLE_PEERS: 0 none, 1 all, 2 promised and then refused. */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  const int n = count_devices();
  if (device < 0 || peer < 0 || device >= n || peer >= n)
    return ready() != CUDA_OK ? ready() : CUDA_INVALID_DEVICE;
  *can = device != peer && !is_slice(visible(device)) && !is_slice(visible(peer)) &&
         from_environment("OPIPE_CUDA_DOUBLE_PEERS", 0) != 0;
  return ready();
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK || flags != 0 || peer == NULL || peer == stack[depth - 1])
    return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
  (void)pthread_mutex_lock(&cuda_double_lock);
  CUcontext own = stack[depth - 1];
  if (peer->retained == 0)
    result = CUDA_INVALID_CONTEXT;
  else if (from_environment("OPIPE_CUDA_DOUBLE_PEERS", 0) != 1)
    result = CUDA_PEER_UNSUPPORTED;
  else if (own->peers[peer->device])
    result = CUDA_PEER_ALREADY_ENABLED;
  else
    own->peers[peer->device] = true;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

int cuda_double_context_device(CUcontext context) {
  return context == NULL ? -1 : context->device;
}

bool cuda_double_has_peer(int device, int other) {
  return device == other || contexts[device].peers[other];
}

CUcontext cuda_double_current(void) {
  return depth == 0 ? NULL : stack[depth - 1];
}

void *cuda_double_handle(size_t n_bytes) {
  static void *newest[256];
  static unsigned n;
  void *handle = cuda_double_current() != NULL ? calloc(1, n_bytes) : NULL;
  const unsigned at = __atomic_fetch_add(&n, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&newest[at % (sizeof newest / sizeof newest[0])], handle, __ATOMIC_RELAXED);
  return handle;
}

bool cuda_double_has_fault(void) {
  return __atomic_load_n(&cuda_double_fault, __ATOMIC_ACQUIRE) != CUDA_OK;
}

bool cuda_double_finds_device(int *out_device) {
  if (depth > 0)
    *out_device = stack[depth - 1]->device;
  return depth > 0;
}

/* ---- memory ---- */

cuda_double_block *cuda_double_find(uintptr_t first, size_t n_bytes) {
  for (block *b = blocks; b != NULL; b = b->next) {
    if (first >= b->first && n_bytes <= b->n_bytes && first - b->first <= b->n_bytes - n_bytes)
      return b;
  }
  return NULL;
}

bool cuda_double_is_device(uintptr_t first, size_t n_bytes) {
  const block *b = cuda_double_find(first, n_bytes);
  return b != NULL && !b->pinned;
}

int cuda_double_device_of(uintptr_t first, size_t n_bytes) {
  const block *b = cuda_double_find(first, n_bytes);
  return b == NULL || b->pinned ? -1 : b->device;
}

int cuda_double_device(void) {
  return stack[depth - 1]->device;
}

cuda_double_block *cuda_double_first(void) {
  return blocks;
}

int cuda_double_place(int device) {
  return visible(device);
}

void cuda_double_add(cuda_double_block *b) {
  b->next = blocks;
  blocks = b;
}

void cuda_double_remove(cuda_double_block *b) {
  block **link = &blocks;
  while (*link != b)
    link = &(*link)->next;
  *link = b->next;
  free(b);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  const block *b = cuda_double_find((uintptr_t)address, 1);
  if (b != NULL && attribute == (CUpointer_attribute)CUDA_POINTER_DEVICE_ORDINAL)
    *(int *)data = b->device;
  else if (b != NULL && attribute == (CUpointer_attribute)CUDA_POINTER_MEMORY_TYPE)
    *(unsigned int *)data = b->pinned ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE;
  else
    result = CUDA_INVALID_VALUE;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* Whole pages, so that other processes can be given them (peers.c). */
static CUresult take(size_t n_bytes, bool pinned, uintptr_t *out) {
  enum { PAGE = 4096 };
  if (n_bytes == 0)
    return CUDA_INVALID_VALUE;
  const size_t base_bytes = (n_bytes + 3 * ZONE + PAGE - 1) / PAGE * PAGE;
  block *b = calloc(1, sizeof *b);
  unsigned char *base = aligned_alloc(PAGE, base_bytes);
  if (b == NULL || base == NULL) {
    free(b);
    free(base);
    return CUDA_OUT_OF_MEMORY;
  }
  *b = (block){.base = base,
               .base_bytes = base_bytes,
               .n_bytes = n_bytes,
               .pinned = pinned,
               .device = cuda_double_device(),
               .fd = -1};
  b->first = ((uintptr_t)base + 2 * ZONE - 1) & ~(uintptr_t)(ZONE - 1);
  memset(base, ZONE_BYTE, base_bytes);
  memset((void *)b->first, FRESH_BYTE, n_bytes);
  cuda_double_add(b);
  *out = b->first;
  return CUDA_OK;
}

static void check_zones(const block *b) {
  const unsigned char *first = (const unsigned char *)b->first;
  const unsigned char *end = b->base + b->base_bytes;
  for (const unsigned char *at = b->base; at < end; ++at) {
    if (at == first)
      at += b->n_bytes;
    if (at < end && *at != ZONE_BYTE)
      cuda_double_die("memory before or behind an allocation was written to");
  }
}

static CUresult give(uintptr_t first, bool pinned) {
  block *b = cuda_double_find(first, 1);
  if (b == NULL || b->first != first || b->pinned != pinned || b->opened)
    return CUDA_INVALID_VALUE;
  if (cuda_double_uses(b->first, b->n_bytes))
    cuda_double_die("memory is freed that queued work uses");
  wait_for_all("freeing memory");
  check_zones(b);
  cuda_double_end_export(b);
  memset((void *)b->first, DEAD_BYTE, b->n_bytes);
  if (pinned) {
    --live_pinned;
  } else {
    live_bytes -= b->n_bytes;
    --live_blocks;
  }
  free(b->base);
  cuda_double_remove(b);
  return CUDA_OK;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  uintptr_t first = 0;
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  result = bytes > device_bytes() - live_bytes ? CUDA_OUT_OF_MEMORY : take(bytes, false, &first);
  if (result == CUDA_OK) {
    live_bytes += bytes;
    ++live_blocks;
    *address = first;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  result = give((uintptr_t)address, false);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* Not of the plugin's functions: programs beside it ask. */
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  const CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  *total_bytes = (size_t)device_bytes();
  *free_bytes = (size_t)(device_bytes() - live_bytes);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return CUDA_OK;
}

CUresult cuMemHostAlloc(void **data, size_t bytes, unsigned flags) {
  uintptr_t first = 0;
  CUresult result = cuda_double_enter_apart();
  (void)flags;
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  result = take(bytes, true, &first);
  if (result == CUDA_OK) {
    ++live_pinned;
    *data = (void *)first;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

CUresult cuMemFreeHost(void *data) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  result = give((uintptr_t)data, true);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* ---- host memory that is pinned ---- */

typedef struct pinned {
  struct pinned *next;
  uintptr_t first;
  size_t n_bytes;
} pinned;
static pinned *pins;

bool cuda_double_is_pinned(uintptr_t first, size_t n_bytes) {
  const block *b = cuda_double_find(first, n_bytes);
  const pinned *p = pins;
  while (p != NULL && (first < p->first || first + n_bytes > p->first + p->n_bytes))
    p = p->next;
  return p != NULL || (b != NULL && b->pinned);
}

bool cuda_double_is_there(uintptr_t first, size_t n_bytes) {
  (void)pthread_mutex_lock(&cuda_double_lock);
  const bool is = cuda_double_is_device(first, n_bytes) || cuda_double_is_pinned(first, n_bytes);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return is;
}

CUresult cuMemHostRegister_v2(void *data, size_t bytes, unsigned flags) {
  const uintptr_t first = (uintptr_t)data;
  CUresult result = cuda_double_enter();
  (void)flags;
  if (result != CUDA_OK)
    return result;
  pinned *pin = calloc(1, sizeof *pin);
  if (pin == NULL || first == 0 || bytes == 0) {
    free(pin);
    return pin == NULL ? CUDA_OUT_OF_MEMORY : CUDA_INVALID_VALUE;
  }
  (void)pthread_mutex_lock(&cuda_double_lock);
  for (const pinned *p = pins; p != NULL; p = p->next) {
    if (first < p->first + p->n_bytes && p->first < first + bytes)
      result = CUDA_ALREADY_REGISTERED;
  }
  if (result == CUDA_OK) {
    *pin = (pinned){pins, first, bytes};
    pins = pin;
    ++live_pinned;
  } else {
    free(pin);
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

CUresult cuMemHostUnregister(void *data) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  result = CUDA_NOT_REGISTERED;
  (void)pthread_mutex_lock(&cuda_double_lock);
  for (pinned **link = &pins; *link != NULL && result != CUDA_OK; link = &(*link)->next) {
    pinned *pin = *link;
    if (pin->first != (uintptr_t)data)
      continue;
    if (cuda_double_uses(pin->first, pin->n_bytes))
      cuda_double_die("memory is unpinned that queued work uses");
    wait_for_all("unpinning memory");
    *link = pin->next;
    free(pin);
    --live_pinned;
    result = CUDA_OK;
    break;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* ---- for tests ---- */

void cuda_double_look(cuda_double_facts *out) {
  (void)pthread_mutex_lock(&cuda_double_lock);
  memset(out, 0, sizeof *out);
  out->live_bytes = live_bytes;
  out->live_blocks = live_blocks;
  out->live_pinned = live_pinned;
  out->contexts = depth;
  out->forked = __atomic_load_n(&n_forked, __ATOMIC_RELAXED);
  for (int i = 0; i < CUDA_DOUBLE_DEVICES; ++i)
    out->retained += contexts[i].retained;
  cuda_double_count(out);
  cuda_double_count_shared(out);
  (void)pthread_mutex_unlock(&cuda_double_lock);
}
