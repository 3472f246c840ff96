/* SPDX-License-Identifier: Apache-2.0 */
/* onnx-pipe ABI, common part: status codes, errors, host services, the plugin descriptor.
 *
 * Standalone: only standard headers. Compiles as C11 and C++17. 64-bit targets only.
 * Stability: major 1 from the first release; tables and parameter structs only grow at their end.
 * Unsettled interfaces are reached through get_interface() under an id that ends in "/0". No struct
 * here has implicit padding, bit-fields, enums or bool members.
 *
 * Thread tags used in all opipe headers:
 *   [any-thread]   may be called by any thread at any time while the object lives
 *   [control]      one thread at a time per object; may block and allocate
 *   [step:<obj>]   at most one thread at a time per <obj>; neither allocates nor blocks
 *   [callback]     called by the library, on the thread named in the comment
 */
#ifndef OPIPE_ABI_H
#define OPIPE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of onnx-pipe as a whole; the build reads it from here. */
#define OPIPE_VERSION "0.1.0"

#define OPIPE_ABI_MAJOR 1
#define OPIPE_ABI_MINOR 4
/* An author may pin an older minor. Later additions stand within `#if OPIPE_TARGET_MINOR >= N`, so
 * tables and structs then end where that minor ended. */
#ifndef OPIPE_TARGET_MINOR
#define OPIPE_TARGET_MINOR OPIPE_ABI_MINOR
#endif

#if defined(__GNUC__)
#define OPIPE_EXPORT __attribute__((visibility("default")))
#define OPIPE_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define OPIPE_EXPORT
#define OPIPE_PRINTF(fmt, args)
#endif

/* OPIPE_CDEF: declarations only; the build makes opipe/cdef.h from them (for Python's cffi). */
#if defined(OPIPE_CDEF)
#define OPIPE_STATIC_ASSERT(cond, msg)
#elif defined(__cplusplus)
#define OPIPE_STATIC_ASSERT(cond, msg) static_assert(cond, msg)
#else
#define OPIPE_STATIC_ASSERT(cond, msg) _Static_assert(cond, msg)
#endif

/* End offset of a field. Struct sizes are given by the end of the last field, so trailing padding
 * never counts. */
#define OPIPE_END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
/* True when the caller's or callee's struct reaches as far as `field`. */
#define OPIPE_HAS(ptr, type, field) ((ptr)->struct_size >= OPIPE_END(type, field))

OPIPE_STATIC_ASSERT(sizeof(void *) == 8, "onnx-pipe's ABI is defined for 64-bit targets");

/* For structs without struct_size, whose size therefore never changes: elements of arrays that
 * plugins walk, and members of other structs. */
#ifdef OPIPE_UNFROZEN
#define OPIPE_FROZEN_SIZE(type, n_bytes) OPIPE_STATIC_ASSERT(sizeof(type) != 0, #type)
#else
#define OPIPE_FROZEN_SIZE(type, n_bytes) \
  OPIPE_STATIC_ASSERT(sizeof(type) == (n_bytes), #type " is frozen at " #n_bytes " bytes")
#endif

/* 0: done; > 0: not yet; < 0: failed. */
typedef int32_t opipe_status;
enum {
  OPIPE_OK = 0,
  OPIPE_PENDING = 1,        /* not finished; ask again */
  OPIPE_E_INVALID = -1,     /* an argument, a file or a plan breaks a rule; the message names it */
  OPIPE_E_NOMEM = -2,       /* host or device memory exhausted */
  OPIPE_E_UNSUPPORTED = -3, /* well-formed, but outside what this build or plugin can do */
  OPIPE_E_ABI = -4,         /* versions or layouts do not fit */
  OPIPE_E_DEVICE = -5,      /* the device or its driver failed; see `domain` and `native` */
  OPIPE_E_NOTFOUND = -6,    /* no such file, plugin, tensor, option */
  OPIPE_E_IO = -7,          /* the system refused an I/O operation; native = errno */
  OPIPE_E_LIMIT = -8,       /* a declared limit (memory cap, depth, count) would be exceeded */
  OPIPE_E_TIMEOUT = -9,     /* a deadline passed */
  OPIPE_E_CANCELLED = -10,  /* the caller cancelled, or the object is being closed */
  OPIPE_E_STATE = -11,   /* the call is valid but not now: double wait, destroyed plan, forked child
                          */
  OPIPE_E_PEER = -12,    /* another rank failed first; the message names it */
  OPIPE_E_INTERNAL = -13 /* an invariant of the library does not hold: a bug to report */
};

enum {
  OPIPE_DOMAIN_NONE = 0,
  OPIPE_DOMAIN_ERRNO = 1,
  OPIPE_DOMAIN_CUDA = 2,
  OPIPE_DOMAIN_CUBLAS = 3,
  OPIPE_DOMAIN_CUDNN = 4,
  OPIPE_DOMAIN_NCCL = 5,
  OPIPE_DOMAIN_MPI = 6,
  OPIPE_DOMAIN_INPUT =
      7 /* native: index of the model input whose value is needed before shapes can be known */
};

/* Always owned by the caller; 512 bytes. NULL is allowed wherever a function takes an `opipe_error
 * *`. Written only on failure. */
typedef struct opipe_error {
  uint32_t struct_size; /* set by the caller: sizeof(opipe_error) */
  int32_t status;       /* the status that was returned */
  uint32_t domain;      /* OPIPE_DOMAIN_*: the source of `native` */
  int32_t native;
  char message[496]; /* UTF-8, NUL-terminated, truncated if need be */
} opipe_error;
OPIPE_FROZEN_SIZE(opipe_error, 512);
#define OPIPE_ERROR_INIT                      \
  {                                           \
    (uint32_t)sizeof(opipe_error), 0, 0, 0, { \
      0                                       \
    }                                         \
  }

/* A sink for text or bytes (not terminated). It may be called many times, in order; it returns
 * OPIPE_OK, or a negative status, which ends the writing and is returned to the caller. `data` is
 * borrowed for the call. [callback: the caller's thread] */
typedef opipe_status (*opipe_write_fn)(void *ctx, const void *data, size_t n_bytes);

enum { OPIPE_LOG_ERROR = 0, OPIPE_LOG_WARN = 1, OPIPE_LOG_INFO = 2, OPIPE_LOG_DEBUG = 3 };

/* Memory services in one function, as Lua's lua_Alloc: ptr NULL allocates; new_size 0 frees and
 * returns NULL. Sizes are in bytes.
 *   old_size  the size given before, 0 with ptr NULL
 *   align     a power of two, at least 1; the same at every call for one block
 * Returns NULL when out of memory; the old block then stays valid. [any-thread] */
typedef struct opipe_allocator {
  void *ctx;
  void *(*realloc)(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align);
} opipe_allocator;
OPIPE_FROZEN_SIZE(opipe_allocator, 16);

/* Services of the host for a plugin. Valid from open() until close() has returned. */
typedef struct opipe_host {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;
  void *ctx;
  /* As opipe_allocator.realloc. [any-thread] */
  void *(*realloc)(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align);
  /* level: OPIPE_LOG_*; file may be NULL; msg: one line without newline, copied. [any-thread] */
  void (*log)(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg);
  /* Monotonic clock in nanoseconds. [any-thread] */
  uint64_t (*now_ns)(void *ctx);
  /* Returns another host service by id, NULL when unknown. [control] */
  const void *(*get_interface)(void *ctx, const char *id);
} opipe_host;

typedef struct opipe_instance opipe_instance; /* a plugin's own state, made by open() */

enum { OPIPE_KIND_BACKEND = 1, OPIPE_KIND_SCHEDULE = 2, OPIPE_KIND_TRANSPORT = 3 };
enum { OPIPE_BUILD_ASAN = 1u, OPIPE_BUILD_TSAN = 2u, OPIPE_BUILD_MSAN = 4u };

#define OPIPE_PLUGIN_MAGIC 0x4550504fu /* "OPPE" */

#if defined(__SANITIZE_ADDRESS__)
#define OPIPE_BUILD_FLAGS OPIPE_BUILD_ASAN
#elif defined(__SANITIZE_THREAD__)
#define OPIPE_BUILD_FLAGS OPIPE_BUILD_TSAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OPIPE_BUILD_FLAGS OPIPE_BUILD_ASAN
#elif __has_feature(thread_sanitizer)
#define OPIPE_BUILD_FLAGS OPIPE_BUILD_TSAN
#endif
#endif
#ifndef OPIPE_BUILD_FLAGS
#define OPIPE_BUILD_FLAGS 0u
#endif

/* ---- layout fingerprints ----
 *
 * Both sides of a border carry a constant array with a row for each struct that crosses it, as the
 * compiler laid it out: the size of the prefix that was released first, and a hash of the offsets
 * and sizes of its fields. The library compares the rows by name before it calls anything, and
 * refuses a plugin or host built with other headers, naming the struct. opipe/frozen (generated)
 * lists the fields; fields added to a struct later are in no list. */
typedef struct opipe_struct_row {
  const char *name; /* "opipe_region" */
  uint32_t n_bytes; /* end of the last listed field */
  uint32_t minor;   /* the first minor that has the struct */
  uint64_t hash;
} opipe_struct_row;
OPIPE_FROZEN_SIZE(opipe_struct_row, 24);

#define OPIPE_MIX(h, v) ((((uint64_t)(h)) ^ (uint64_t)(v)) * UINT64_C(1099511628211))
/* A field's share of the hash: its place in the list, its offset, its size. */
#define OPIPE_HASH_FIELD_(type, field)                                      \
  +OPIPE_MIX(OPIPE_MIX(OPIPE_MIX(UINT64_C(14695981039346656037),            \
                                 offsetof(struct type##_order, field) + 1), \
                       offsetof(type, field)),                              \
             sizeof(((type *)0)->field))
#define OPIPE_HASH(type) (UINT64_C(0) OPIPE_FIELDS_##type(OPIPE_HASH_FIELD_, type))
/* The list as a struct of bytes; offsets are places in the list. */
#define OPIPE_PLACE_(type, field) char field;
#ifdef OPIPE_CDEF
#define OPIPE_ORDER(type)
#else
#define OPIPE_ORDER(type)                   \
  struct type##_order {                     \
    OPIPE_FIELDS_##type(OPIPE_PLACE_, type) \
  };
#endif
#define OPIPE_ROW(type, last, minor_) \
  { #type, (uint32_t)OPIPE_END(type, last), (minor_), OPIPE_HASH(type) }
/* Released structs stay as they are. (Tests of the refusal build with OPIPE_UNFROZEN.) */
#if defined(OPIPE_UNFROZEN) || defined(OPIPE_CDEF)
#define OPIPE_FREEZE(type, last, n_bytes_, hash_)
#else
#define OPIPE_FREEZE(type, last, n_bytes_, hash_)                                         \
  OPIPE_STATIC_ASSERT(OPIPE_END(type, last) == (n_bytes_) && OPIPE_HASH(type) == (hash_), \
                      #type " is released: fields are added at its end only");
#endif
#if defined(__GNUC__)
#define OPIPE_UNUSED __attribute__((unused))
#else
#define OPIPE_UNUSED
#endif

/* The descriptor: the only data symbol that a plugin exports. It is const, so it lies in read-only
 * memory and can be read before any code of the plugin runs. A plugin has no constructors, no
 * destructors and no atexit handlers, and is never unloaded.
 *   abi_minor      the minor it was built against
 *   abi_minor_min  the lowest host minor it accepts
 *   structs        [n_structs] layout fingerprints of the structs that cross its border;
 *                  struct_row_bytes is sizeof(opipe_struct_row)
 *   id             "cpu", "gpipe", ...: letters, digits, '-', '_', '.'; unique per kind
 *   open           makes an instance; may be called several times, once per context. On failure
 *                  nothing is left behind. The host's table stays valid until close has returned.
 *                  Errors: the plugin's own, with a message. [control]
 *   close          ends an instance: joins its threads, frees everything. Accepts NULL. [control]
 *   get_interface  the kind's table by id ("opipe.backend/1", ...), NULL when unknown; valid until
 *                  close. [any-thread] */
typedef struct opipe_plugin {
  uint32_t magic;
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;
  uint16_t abi_minor_min;
  uint16_t kind;
  const opipe_struct_row *structs;
  uint32_t n_structs;
  uint32_t struct_row_bytes;
  uint32_t build_flags;
  uint32_t flags; /* 0 */
  const char *id;
  const char *version;
  const char *license;
  const char *summary; /* one line */
  opipe_status (*open)(const opipe_host *host, opipe_instance **out_self, opipe_error *err);
  void (*close)(opipe_instance *self);
  const void *(*get_interface)(opipe_instance *self, const char *id);
} opipe_plugin;

#if OPIPE_TARGET_MINOR >= 3
/* Optional interface that tells what an instance found when it was opened, such as libraries and
 * their versions; `onnx-pipe plugins --why` prints it. Not settled: the id ends in "/0". */
#define OPIPE_DETAILS_ID "opipe.details/0"
typedef struct opipe_details {
  uint32_t struct_size;
  uint32_t reserved;
  /* Returns line `index`; NULL: there are no more. Valid until close. [any-thread] */
  const char *(*line)(opipe_instance *self, uint32_t index);
} opipe_details;
#endif

/* The symbol's name. In static builds -DOPIPE_PLUGIN_STATIC_ID=backend_cpu renames it, so that
 * several plugins can be linked into one binary and registered with context_register_static as
 * &OPIPE_PLUGIN_STATIC(backend_cpu). */
#define OPIPE_PLUGIN_STATIC_(id) opipe_plugin_v1_##id
#define OPIPE_PLUGIN_STATIC(id) OPIPE_PLUGIN_STATIC_(id)
#ifdef OPIPE_PLUGIN_STATIC_ID
#define OPIPE_PLUGIN_SYMBOL OPIPE_PLUGIN_STATIC(OPIPE_PLUGIN_STATIC_ID)
#else
#define OPIPE_PLUGIN_SYMBOL opipe_plugin_v1
#endif

/* Fills the head of a descriptor. The kind is the name of its enumerator:
 *   const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0), "id", ...};
 */
#define OPIPE_PLUGIN_HEAD(kind_, min_minor_)                                             \
  OPIPE_PLUGIN_MAGIC, (uint32_t)OPIPE_END(opipe_plugin, get_interface), OPIPE_ABI_MAJOR, \
      OPIPE_TARGET_MINOR, (min_minor_), (kind_), opipe_rows_of_##kind_,                  \
      (uint32_t)(sizeof(opipe_rows_of_##kind_) / sizeof(opipe_struct_row)),              \
      (uint32_t)sizeof(opipe_struct_row), OPIPE_BUILD_FLAGS, 0

#include "frozen/abi.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_ABI_H */
