/* SPDX-License-Identifier: Apache-2.0 */
/* Basics shared by every folder of the library: errors, checked sizes, memory, arenas, text,
 * growing arrays.
 *
 * Memory comes from the opipe_allocator of the context, which the host may supply; nothing in the
 * library calls malloc directly. An arena holds things that live and die together (a graph, a
 * plan): they are allocated one by one and freed all at once.
 */
#ifndef OPI_BASE_H
#define OPI_BASE_H

#include <opipe/backend.h>
#include <stdarg.h>
#include <stdbool.h>

/* Runs `expr` and returns its status if that is negative. Only for use where the function owns
 * nothing.
 */
#define OPI_TRY(expr)                   \
  do {                                  \
    const opipe_status opi_s_ = (expr); \
    if (opi_s_ < 0)                     \
      return opi_s_;                    \
  } while (0)

#define OPI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* -- errors -- */

/* Writes the message and returns `status`. The first to detect an error calls it. err may be NULL.
 */
opipe_status opi_fail(opipe_error *err, opipe_status status, const char *fmt, ...)
    OPIPE_PRINTF(3, 4);
/* The same for a failed system call: appends strerror(errno_value), sets domain and native. */
opipe_status opi_fail_errno(opipe_error *err, int errno_value, const char *fmt, ...)
    OPIPE_PRINTF(3, 4);
/* Out of memory: names the bytes requested and their purpose. */
opipe_status opi_fail_nomem(opipe_error *err, uint64_t n_bytes, const char *what);
/* Puts context before the existing message ("stage 2: ..."); truncates at the end. Returns err's
 * status. */
opipe_status opi_error_prefix(opipe_error *err, const char *fmt, ...) OPIPE_PRINTF(2, 3);

/* Checks the status of a slot of plugin `kind` 'id' that must succeed or fail. Any other status is
 * an error, and every error gets a message that is terminated and text; if the plugin did not
 * provide one, it names the plugin. Returns the status to pass on. */
opipe_status opi_answer_failed(opipe_status status, const char *kind, const char *id,
                               const char *slot, opipe_error *err);
static inline opipe_status opi_answer(opipe_status status, const char *kind, const char *id,
                                      const char *slot, opipe_error *err) {
  return status == OPIPE_OK ? status : opi_answer_failed(status, kind, id, slot, err);
}
/* Calls slot `slot` of the plugin opened as `ref` (its table and id). The arguments exclude err,
 * which comes last. OPI_POLL: for slots that may also return OPIPE_PENDING. */
#define OPI_ASK(kind, ref, slot, err, ...) \
  opi_answer((ref)->table->slot(__VA_ARGS__, err), kind, (ref)->id, #slot, err)
/* The same for a slot that creates an object; the arguments exclude the last two, the output and
 * err. OK without an object is an error (DEVICE) that names plugin and slot. */
#define OPI_MAKE(kind, ref, slot, out, err, ...)                                                  \
  opi_made(OPI_ASK(kind, ref, slot, err, __VA_ARGS__, out), (const void *)(out), kind, (ref)->id, \
           #slot, err)
#define OPI_POLL(kind, ref, slot, err, ...) \
  opi_poll((ref)->table->slot(__VA_ARGS__, err), kind, (ref)->id, #slot, err)
/* out: address of the object's pointer, read if status is OK. */
opipe_status opi_made(opipe_status status, const void *out, const char *kind, const char *id,
                      const char *slot, opipe_error *err);
static inline opipe_status opi_poll(opipe_status status, const char *kind, const char *id,
                                    const char *slot, opipe_error *err) {
  return status == OPIPE_PENDING ? status : opi_answer(status, kind, id, slot, err);
}

/* Checks numbers of a backend against its interface. Errors: INVALID. Fixes up a device: alignment
 * 0 becomes 1, rates that are not numbers become 0 (unknown), the name is terminated. */
#define OPI_PLUGIN_BYTES_MOST \
  (UINT64_C(1) << 48) /* limit for one number; sums of many stay below 2^64 */
opipe_status opi_device_check(opipe_device_info *io_info, const char *id, uint32_t index,
                              opipe_error *err);
opipe_status opi_program_check(const opipe_program_info *info, const char *id, opipe_error *err);

/* -- arrays of caller's structs, whose size depends on the caller's headers -- */

/* Copies element `index` as far as both sides know it; the rest of `out` is zero. */
void opi_array_get(const void *data, uint32_t stride, uint32_t index, void *out, size_t known);

/* -- sizes -- */

static inline bool opi_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
  return __builtin_mul_overflow(a, b, out);
}
static inline bool opi_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
  return __builtin_add_overflow(a, b, out);
}
/* Rounds up to a power of two. The caller excludes values within `align` of UINT64_MAX. */
static inline uint64_t opi_align_up(uint64_t n, uint64_t align) {
  return (n + align - 1) & ~(align - 1);
}

/* Bits of one element of an ONNX type, 0 for unknown types and strings. */
uint32_t opi_dtype_bits(uint32_t dtype);
/* "float32", "int64", ...; "unknown" for any other number. */
const char *opi_dtype_name(uint32_t dtype);
bool opi_dtype_is_float(uint32_t dtype);    /* fp16, bf16, fp32, fp64 */
bool opi_dtype_is_integer(uint32_t dtype);  /* 8 to 64 bits, signed or not; not bool */
bool opi_dtype_is_unsigned(uint32_t dtype); /* of the integers */
/* Product of shape [rank]; false on int64 overflow or a negative dimension. Rank 0 gives 1. */
bool opi_shape_elems(const int64_t *shape, uint32_t rank, uint64_t *out_elems);
/* Dense bytes of a tensor (sub-byte types packed and rounded up); false on overflow or an unknown
 * type.
 */
bool opi_tensor_bytes(uint32_t dtype, const int64_t *shape, uint32_t rank, uint64_t *out_bytes);

/* A type in the host interface's form, and back (OPIPE_UNDEFINED: unsupported). DLPack has no 4- or
 * 2-bit types of its own; they are integers with that many bits. */
opipe_dtype opi_dtype_to_dl(uint32_t dtype);
uint32_t opi_dtype_from_dl(opipe_dtype dtype);
/* Copies a strided host tensor into dense row-major order; `out` has room for all elements.
 * Whole-byte types only. */
void opi_tensor_pack(const opipe_tensor *tensor, void *out);

/* -- memory -- */

/* malloc and free as an allocator; the default of a context. */
const opipe_allocator *opi_allocator_system(void);
/* Uninitialised; NULL if out of memory or n_bytes is 0. */
void *opi_alloc(const opipe_allocator *allocator, size_t n_bytes);
/* n * size zeroed bytes; NULL if out of memory or on overflow. */
void *opi_alloc_zero(const opipe_allocator *allocator, size_t n, size_t size);
/* Grows or shrinks; on NULL the old block is still valid. */
void *opi_resize(const opipe_allocator *allocator, void *ptr, size_t old_bytes, size_t new_bytes);
/* ptr may be NULL. n_bytes: the size requested. */
void opi_free(const opipe_allocator *allocator, void *ptr, size_t n_bytes);

/* Chunks of doubling size; all freed at once. Not thread-safe. */
typedef struct opi_arena_chunk opi_arena_chunk;
typedef struct opi_arena {
  const opipe_allocator *allocator;
  opi_arena_chunk *head;
  size_t used, room;    /* in the newest chunk */
  uint64_t total_bytes; /* of all chunks */
  uint64_t limit_bytes; /* 0: none */
} opi_arena;
void opi_arena_init(opi_arena *arena, const opipe_allocator *allocator, uint64_t limit_bytes);
void opi_arena_release(opi_arena *arena); /* frees all; the arena may be used again */
/* Zeroed, 16-byte aligned; NULL if out of memory or over the limit. n_bytes 0 gives a valid unique
 * pointer. */
void *opi_arena_alloc(opi_arena *arena, size_t n_bytes);
/* n * size zeroed bytes; NULL also on overflow. */
void *opi_arena_array(opi_arena *arena, size_t n, size_t size);
void *opi_arena_copy(opi_arena *arena, const void *src, size_t n_bytes);
char *opi_arena_strdup(opi_arena *arena, const char *text);
char *opi_arena_strndup(opi_arena *arena, const char *text, size_t n);
char *opi_arena_printf(opi_arena *arena, const char *fmt, ...) OPIPE_PRINTF(2, 3);

#define OPI_ARENA_NEW(arena, type) ((type *)opi_arena_array((arena), 1, sizeof(type)))
#define OPI_ARENA_ARRAY(arena, type, n) ((type *)opi_arena_array((arena), (n), sizeof(type)))

/* Grows an arena-held array to at least `need` elements by doubling; updates *io_array and
 * *io_room. False if out of memory. */
bool opi_arena_grow(opi_arena *arena, void **io_array, uint32_t *io_room, uint32_t need,
                    size_t elem_size);

/* -- text -- */

/* Growing text. When out of memory, `failed` is set and further calls do nothing, so it is enough
 * to check once at the end. */
typedef struct opi_text {
  const opipe_allocator *allocator;
  char *data; /* NUL-terminated, or NULL while nothing was added */
  size_t n, room;
  bool failed;
} opi_text;
void opi_text_init(opi_text *text, const opipe_allocator *allocator);
void opi_text_release(opi_text *text);
void opi_text_add(opi_text *text, const char *data, size_t n);
void opi_text_puts(opi_text *text, const char *data);
void opi_text_printf(opi_text *text, const char *fmt, ...) OPIPE_PRINTF(2, 3);
/* Appends "[2, 128, 768]". */
void opi_text_shape(opi_text *text, const int64_t *shape, uint32_t rank);
/* Appends a JSON string literal, escaped. */
void opi_text_json(opi_text *text, const char *value);
bool opi_text_is_utf8(const char *text);
/* Turns untrusted text into one line, in place: invalid UTF-8 and control characters become '?'.
 * Stops at the first NUL, after n bytes at most. True if anything was changed. */
bool opi_text_clean(char *text, size_t n);
/* Turns text into valid UTF-8, in place: drops a character truncated by the end and replaces other
 * invalid bytes by '?'. */
void opi_text_mend(char *text);
/* Cleans a copy, truncated to fit; NULL gives "". Returns `line`. */
enum { OPI_LINE_ROOM = 256 };
const char *opi_text_line(char line[OPI_LINE_ROOM], const char *text);
/* Passes the text to a sink; NOMEM if building it failed. */
opipe_status opi_text_write(const opi_text *text, opipe_write_fn write, void *ctx,
                            opipe_error *err);

/* Formats "[2, 128, 768]" into a fixed buffer, truncated, and returns it: for error messages. */
const char *opi_shape_text(char *buffer, size_t room, const int64_t *shape, uint32_t rank);

/* Writes all of `data` to `fd`, repeating partial writes. Errors: IO. */
opipe_status opi_write_all(int fd, const void *data, uint64_t n_bytes, opipe_error *err);
/* Checks that a file can be created beside `path` (below the folder `dir`, or AT_FDCWD) and that
 * `path` is not a folder. Leaves nothing behind. */
opipe_status opi_try_file(int dir, const char *path, opipe_error *err);

/* A private, read-only mapping of a file. Owned by its creator; listed here from add to remove.
 * [any-thread] */
typedef struct opi_pages opi_pages;
struct opi_pages {
  opi_pages *next, *before;
  const void *data; /* page-aligned */
  uint64_t n_bytes;
};
void opi_pages_add(opi_pages *pages, const void *data, uint64_t n_bytes);
void opi_pages_remove(opi_pages *pages); /* call before unmapping */
/* Returns the pages that hold `n_bytes` at `data` to the system if they are part of a listed
 * mapping, on a best-effort basis; does nothing to other memory. [any-thread] */
void opi_pages_drop(const void *data, uint64_t n_bytes);

/* Number of this process, correct in a forked child too; makes one system call only. */
int32_t opi_process_id(void);

/* True if `text` matches a glob of '*' and '?'. */
bool opi_glob(const char *glob, const char *text);

/* Parses the whole text as a decimal integer within [min, max]. */
bool opi_parse_int(const char *text, int64_t min, int64_t max, int64_t *out);

/* -- name -> index maps -- */

typedef struct opi_map opi_map;
opipe_status opi_map_create(const opipe_allocator *allocator, opi_map **out_map, opipe_error *err);
void opi_map_free(opi_map *map); /* accepts NULL */
/* Adds or replaces; the key is copied. */
opipe_status opi_map_set(opi_map *map, const char *key, uint32_t value, opipe_error *err);
/* The same without copying the key, which must outlive the map. */
opipe_status opi_map_keep(opi_map *map, const char *key, uint32_t value, opipe_error *err);
/* The same unless the key exists. *out_value: the map's value for the key, new or old. */
opipe_status opi_map_claim(opi_map *map, const char *key, uint32_t value, uint32_t *out_value,
                           opipe_error *err);
bool opi_map_get(const opi_map *map, const char *key, uint32_t *out_value);
void opi_map_remove(opi_map *map, const char *key);
uint32_t opi_map_count(const opi_map *map);
/* Maps the names of an array's elements to their indices. The name is the first field of the struct
 * (stride: its size in bytes). The first of equal names counts. */
opipe_status opi_map_names(const opipe_allocator *allocator, const void *elements, uint32_t n,
                           size_t stride, opi_map **out_map, opipe_error *err);

/* -- logging -- */

typedef struct opi_logger {
  void *ctx;
  void (*log)(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg);
  uint32_t level; /* messages above it are dropped */
} opi_logger;
void opi_log(const opi_logger *logger, uint32_t level, const char *fmt, ...)
    OPIPE_PRINTF(3, 4); /* logger may be NULL */

#endif /* OPI_BASE_H */
