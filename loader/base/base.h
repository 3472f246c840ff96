/* SPDX-License-Identifier: Apache-2.0 */
/* The small things that every folder of the library shares: errors, checked sizes, memory, arenas,
 * text, growing arrays.
 *
 * Memory comes from an opipe_allocator that the context carries (hosts may give their own); nothing
 * in the library calls malloc directly. An arena is for everything that lives and dies together (a
 * graph, a plan): allocate, never free singly.
 */
#ifndef OPI_BASE_H
#define OPI_BASE_H

#include <opipe/backend.h>
#include <stdarg.h>
#include <stdbool.h>

/* Runs `expr`; on a negative status returns it. Only in functions that own nothing at that point.
 */
#define OPI_TRY(expr)                   \
  do {                                  \
    const opipe_status opi_s_ = (expr); \
    if (opi_s_ < 0)                     \
      return opi_s_;                    \
  } while (0)

#define OPI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* -- errors -- */

/* Writes the message (the first detector does) and returns `status`. err may be NULL. */
opipe_status opi_fail(opipe_error *err, opipe_status status, const char *fmt, ...)
    OPIPE_PRINTF(3, 4);
/* The same for a failed system call: appends strerror(errno_value), sets domain and native. */
opipe_status opi_fail_errno(opipe_error *err, int errno_value, const char *fmt, ...)
    OPIPE_PRINTF(3, 4);
/* Out of memory: says how much was asked for and for what. */
opipe_status opi_fail_nomem(opipe_error *err, uint64_t n_bytes, const char *what);
/* Puts context before the message that is there ("stage 2: ..."); truncates at the end. Returns
 * err's status. */
opipe_status opi_error_prefix(opipe_error *err, const char *fmt, ...) OPIPE_PRINTF(2, 3);

/* What a slot of plugin `kind` 'id' answered, where it must have done its work or failed: any other
 * status is an error, and every error has a message that ends and is text; what is not so by itself
 * is told with the plugin's name. Returns what is to be handed on. */
opipe_status opi_answer_failed(opipe_status status, const char *kind, const char *id,
                               const char *slot, opipe_error *err);
static inline opipe_status opi_answer(opipe_status status, const char *kind, const char *id,
                                      const char *slot, opipe_error *err) {
  return status == OPIPE_OK ? status : opi_answer_failed(status, kind, id, slot, err);
}
/* Calls slot `slot` of a plugin that is opened as `ref` (with its table and id); the arguments
 * without the last one, which is err. OPI_POLL: of a slot that may also answer OPIPE_PENDING. */
#define OPI_ASK(kind, ref, slot, err, ...) \
  opi_answer((ref)->table->slot(__VA_ARGS__, err), kind, (ref)->id, #slot, err)
/* The same of a slot that makes an object: all arguments but the last two, where the object goes
 * and err. An answer of OK without one is an error (DEVICE) that names plugin and slot. */
#define OPI_MAKE(kind, ref, slot, out, err, ...)                                                  \
  opi_made(OPI_ASK(kind, ref, slot, err, __VA_ARGS__, out), (const void *)(out), kind, (ref)->id, \
           #slot, err)
#define OPI_POLL(kind, ref, slot, err, ...) \
  opi_poll((ref)->table->slot(__VA_ARGS__, err), kind, (ref)->id, #slot, err)
/* out: the address of a pointer, looked at where status is OK. */
opipe_status opi_made(opipe_status status, const void *out, const char *kind, const char *id,
                      const char *slot, opipe_error *err);
static inline opipe_status opi_poll(opipe_status status, const char *kind, const char *id,
                                    const char *slot, opipe_error *err) {
  return status == OPIPE_PENDING ? status : opi_answer(status, kind, id, slot, err);
}

/* Numbers of a backend that are not what its interface says: INVALID. A device's alignment 0
 * becomes 1, rates that are no numbers become 0 (unknown), its name ends. */
#define OPI_PLUGIN_BYTES_MOST                                        \
  (UINT64_C(1) << 48) /* of one number; sums of many stay below 2^64 \
                       */
opipe_status opi_device_check(opipe_device_info *io_info, const char *id, uint32_t index,
                              opipe_error *err);
opipe_status opi_program_check(const opipe_program_info *info, const char *id, opipe_error *err);

/* -- arrays of structs that a caller gives, compiled with headers of its own -- */

/* Element `index` as far as both sides know it, the rest of `out` zero. */
void opi_array_get(const void *data, uint32_t stride, uint32_t index, void *out, size_t known);

/* -- sizes -- */

static inline bool opi_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
  return __builtin_mul_overflow(a, b, out);
}
static inline bool opi_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
  return __builtin_add_overflow(a, b, out);
}
/* Rounds up to a power of two; values within `align` of UINT64_MAX are the caller's to exclude. */
static inline uint64_t opi_align_up(uint64_t n, uint64_t align) {
  return (n + align - 1) & ~(align - 1);
}

/* Bits of one element of an ONNX type, 0 for unknown types and strings. */
uint32_t opi_dtype_bits(uint32_t dtype);
/* "float32", "int64", ...; "type 99" forms are never needed: unknown gives "unknown". */
const char *opi_dtype_name(uint32_t dtype);
bool opi_dtype_is_float(uint32_t dtype);    /* fp16, bf16, fp32, fp64 */
bool opi_dtype_is_integer(uint32_t dtype);  /* 8 to 64 bits, signed or not; not bool */
bool opi_dtype_is_unsigned(uint32_t dtype); /* of these */
/* Product of shape [rank]; false on overflow of int64 or a negative dimension. Rank 0 gives 1. */
bool opi_shape_elems(const int64_t *shape, uint32_t rank, uint64_t *out_elems);
/* Dense bytes of a tensor (sub-byte types packed, rounded up); false on overflow or unknown type.
 */
bool opi_tensor_bytes(uint32_t dtype, const int64_t *shape, uint32_t rank, uint64_t *out_bytes);

/* The host border's form of a type, and back (OPIPE_UNDEFINED: no such type here). DLPack has no 4-
 * or 2-bit integers of its own: they are (unsigned) integers of that many bits. */
opipe_dtype opi_dtype_to_dl(uint32_t dtype);
uint32_t opi_dtype_from_dl(opipe_dtype dtype);
/* Copies a strided host tensor into dense row-major order; `out` has room for all elements.
 * Whole-byte types only. */
void opi_tensor_pack(const opipe_tensor *tensor, void *out);

/* -- memory -- */

/* malloc/free behind the allocator form; what a context uses when the host gives none. */
const opipe_allocator *opi_allocator_system(void);
/* Uninitialised; NULL when out of memory or n_bytes is 0. */
void *opi_alloc(const opipe_allocator *allocator, size_t n_bytes);
/* n * size bytes of zeros; NULL when out of memory or on overflow. */
void *opi_alloc_zero(const opipe_allocator *allocator, size_t n, size_t size);
/* Grows or shrinks; NULL keeps the old block. */
void *opi_resize(const opipe_allocator *allocator, void *ptr, size_t old_bytes, size_t new_bytes);
/* ptr may be NULL. n_bytes: what was asked for. */
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
/* Zeroed, 16-byte aligned; NULL when out of memory or over the limit. n_bytes 0 gives a valid
 * unique pointer. */
void *opi_arena_alloc(opi_arena *arena, size_t n_bytes);
/* n * size zeroed bytes; NULL also on overflow. */
void *opi_arena_array(opi_arena *arena, size_t n, size_t size);
void *opi_arena_copy(opi_arena *arena, const void *src, size_t n_bytes);
char *opi_arena_strdup(opi_arena *arena, const char *text);
char *opi_arena_strndup(opi_arena *arena, const char *text, size_t n);
char *opi_arena_printf(opi_arena *arena, const char *fmt, ...) OPIPE_PRINTF(2, 3);

#define OPI_ARENA_NEW(arena, type) ((type *)opi_arena_array((arena), 1, sizeof(type)))
#define OPI_ARENA_ARRAY(arena, type, n) ((type *)opi_arena_array((arena), (n), sizeof(type)))

/* Makes room for `need` elements in an arena-held array by doubling; *io_array and *io_room are
 * updated. False when out of memory. */
bool opi_arena_grow(opi_arena *arena, void **io_array, uint32_t *io_room, uint32_t need,
                    size_t elem_size);

/* -- text -- */

/* Growing text. After an out-of-memory `failed` is set and further calls do nothing; check it once
 * at the end. */
typedef struct opi_text {
  const opipe_allocator *allocator;
  char *data; /* NUL-terminated once anything was added, else NULL */
  size_t n, room;
  bool failed;
} opi_text;
void opi_text_init(opi_text *text, const opipe_allocator *allocator);
void opi_text_release(opi_text *text);
void opi_text_add(opi_text *text, const char *data, size_t n);
void opi_text_puts(opi_text *text, const char *data);
void opi_text_printf(opi_text *text, const char *fmt, ...) OPIPE_PRINTF(2, 3);
/* "[2, 128, 768]" */
void opi_text_shape(opi_text *text, const int64_t *shape, uint32_t rank);
/* A JSON string literal, escaped. */
void opi_text_json(opi_text *text, const char *value);
bool opi_text_is_utf8(const char *text);
/* Text of somebody else's as one line: what is no UTF-8 and what controls a terminal becomes '?'.
 * In place, up to the first NUL, and n at most; true when anything was changed. */
bool opi_text_clean(char *text, size_t n);
/* Makes UTF-8 of a text: a character that its end cuts goes, other bytes that are none become '?'.
 * In place. */
void opi_text_mend(char *text);
/* The same as clean, copied: as much as there is room for; NULL gives "". Returns `line`. */
enum { OPI_LINE_ROOM = 256 };
const char *opi_text_line(char line[OPI_LINE_ROOM], const char *text);
/* Hands the text to a sink; OPIPE_E_NOMEM when building it failed. */
opipe_status opi_text_write(const opi_text *text, opipe_write_fn write, void *ctx,
                            opipe_error *err);

/* Formats "[2, 128, 768]" into a fixed buffer (truncated) and returns it: for error messages. */
const char *opi_shape_text(char *buffer, size_t room, const int64_t *shape, uint32_t rank);

/* Writes all of `data` to the file `fd`, whatever the system takes at once. Errors: IO. */
opipe_status opi_write_all(int fd, const void *data, uint64_t n_bytes, opipe_error *err);
/* Can a file be made beside `path` (below the folder `dir`, or AT_FDCWD), and is `path` no folder?
 * Nothing stays. */
opipe_status opi_try_file(int dir, const char *path, opipe_error *err);

/* A private mapping of a file, for reading alone: owned by whoever mapped it, listed here from add
 * to remove. [any-thread] */
typedef struct opi_pages opi_pages;
struct opi_pages {
  opi_pages *next, *before;
  const void *data; /* of a page's beginning */
  uint64_t n_bytes;
};
void opi_pages_add(opi_pages *pages, const void *data, uint64_t n_bytes);
void opi_pages_remove(opi_pages *pages); /* what was added; before it is unmapped */
/* Gives the pages that hold `n_bytes` at `data` back to the system where they are part of a listed
 * mapping, as far as that goes; does nothing to other memory. [any-thread] */
void opi_pages_drop(const void *data, uint64_t n_bytes);

/* Number of this process, right in a forked child too; asks the system only once. */
int32_t opi_process_id(void);

/* True when `text` matches a glob of '*' and '?'. */
bool opi_glob(const char *glob, const char *text);

/* Whole text as a decimal integer within [min, max]. */
bool opi_parse_int(const char *text, int64_t min, int64_t max, int64_t *out);

/* -- name -> index maps -- */

typedef struct opi_map opi_map;
opipe_status opi_map_create(const opipe_allocator *allocator, opi_map **out_map, opipe_error *err);
void opi_map_free(opi_map *map); /* accepts NULL */
/* Adds or replaces; the key is copied. */
opipe_status opi_map_set(opi_map *map, const char *key, uint32_t value, opipe_error *err);
/* The same without a copy of the key, which must outlive the map. */
opipe_status opi_map_keep(opi_map *map, const char *key, uint32_t value, opipe_error *err);
/* The same where nobody has the key; *out_value is what the map then says of it: `value`, or what
 * it said before. */
opipe_status opi_map_claim(opi_map *map, const char *key, uint32_t value, uint32_t *out_value,
                           opipe_error *err);
bool opi_map_get(const opi_map *map, const char *key, uint32_t *out_value);
void opi_map_remove(opi_map *map, const char *key);
uint32_t opi_map_count(const opi_map *map);
/* The index of every element of an array by its name, which is the first field of its struct
 * (stride: bytes of one). Of equal names the first counts. */
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
