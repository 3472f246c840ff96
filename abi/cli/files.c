/* SPDX-License-Identifier: Apache-2.0 */
/* .npy files (versions 1 to 3, C order) and serialised TensorProtos. Both are untrusted: lengths
 * are checked before use. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "loader/base/sizes.h"

int cli_file_read(const char *path, void **out_data, size_t *out_n) {
  struct stat st;
  FILE *file = fopen(path, "rb");
  if (file == NULL || fstat(fileno(file), &st) != 0 || !S_ISREG(st.st_mode)) {
    const bool missing = file == NULL && cli_is_missing(errno);
    (void)fprintf(stderr, "onnx-pipe: cannot read %s: %s\n", path,
                  file == NULL ? strerror(errno) : "not a regular file");
    if (file != NULL)
      (void)fclose(file);
    return missing ? CLI_USAGE : CLI_FAILED;
  }
  const size_t n = (size_t)st.st_size;
  char *data = malloc(n + 1);
  const bool ok = data != NULL && fread(data, 1, n, file) == n;
  (void)fclose(file);
  if (!ok) {
    (void)fprintf(stderr, "onnx-pipe: cannot read the %s of %s\n", OPI_SIZE(n), path);
    free(data);
    return CLI_FAILED;
  }
  data[n] = '\0';
  *out_data = data;
  *out_n = n;
  return CLI_DONE;
}

static int bad_file(const char *path, const char *why) {
  (void)fprintf(stderr, "onnx-pipe: %s: %s\n", path, why);
  return CLI_FAILED;
}

/* ---- .npy ---- */

/* A reader's message; valid until the next one. */
static const char *say(const char *fmt, ...) OPIPE_PRINTF(1, 2);
static const char *say(const char *fmt, ...) {
  static char text[160];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof(text), fmt, args);
  va_end(args);
  return text;
}

static uint32_t dtype_of_descr(const char *descr) {
  for (uint32_t dtype = 0; dtype < OPIPE_N_DTYPES; ++dtype) {
    const char *known = opipe_dtype_row_of(dtype)->numpy;
    const size_t n = known == NULL ? 0 : strlen(known);
    if (n != 0 && strncmp(descr, known, n) == 0 && descr[n] == '\'')
      return dtype;
  }
  return OPIPE_UNDEFINED;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } */
static const char *parse_npy_header(char *header, cli_tensor *out) {
  const char *descr = strstr(header, "'descr':"), *order = strstr(header, "'fortran_order':"),
             *shape = strstr(header, "'shape':");
  if (descr == NULL || order == NULL || shape == NULL)
    return "its header lacks descr, fortran_order or shape";
  descr += strlen("'descr':");
  descr += strspn(descr, " ");
  if (*descr != '\'' || (out->dtype = dtype_of_descr(descr + 1)) == OPIPE_UNDEFINED) {
    return say("elements of type %.*s are not supported%s", (int)strcspn(descr, ",}\n"), descr,
               descr[0] == '\'' && descr[1] == '>' ? ": save them in little-endian order" : "");
  }
  order += 16;
  while (*order == ' ')
    ++order;
  if (strncmp(order, "False", 5) != 0)
    return "it is in Fortran order; save it in C order";
  shape = strchr(shape, '(');
  if (shape == NULL)
    return "its shape is malformed";
  for (const char *at = shape + 1; *at != ')';) {
    char *end = NULL;
    if (*at == ' ' || *at == ',') {
      ++at;
      continue;
    }
    const long long dim = strtoll(at, &end, 10);
    if (end == at || dim < 0 || out->rank == OPIPE_MAX_RANK)
      return "its shape is malformed";
    out->shape[out->rank++] = dim;
    at = end;
  }
  return NULL;
}

const char *cli_npy_header(const uint8_t *bytes, size_t n, cli_tensor *out, size_t *out_start) {
  char text[4096];
  memset(out, 0, sizeof(*out));
  if (n < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0)
    return "it is not a .npy file";
  if (bytes[6] < 1 || bytes[6] > 3)
    return say("version %u of the .npy format, 1 to 3 are known", bytes[6]);
  const size_t start = bytes[6] == 1 ? 10 : 12;
  const size_t length = bytes[6] == 1 ? (size_t)bytes[8] | (size_t)bytes[9] << 8
                                      : (size_t)bytes[8] | (size_t)bytes[9] << 8 |
                                            (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
  if (length > n - start || length == 0 || length >= sizeof(text))
    return "its header is longer than the file";
  memcpy(text, bytes + start, length);
  text[length] = '\0';
  *out_start = start + length;
  return parse_npy_header(text, out);
}

const char *cli_npy_misfit(const cli_tensor *form, size_t n_bytes) {
  size_t n = cli_dtype_bytes(form->dtype);
  for (uint32_t d = 0; d < form->rank; ++d) {
    if (__builtin_mul_overflow(n, (size_t)form->shape[d], &n))
      return "its shape is too large";
  }
  return n == n_bytes ? NULL : say("%zu bytes behind its header, its shape takes %zu", n_bytes, n);
}

int cli_npy_read(const char *path, cli_tensor *out) {
  uint8_t *data = NULL;
  size_t n = 0, start = 0;
  memset(out, 0, sizeof(*out));
  const int status = cli_file_read(path, (void **)&data, &n);
  if (status != CLI_DONE)
    return status;
  const char *why = cli_npy_header(data, n, out, &start);
  if (why == NULL)
    why = cli_npy_misfit(out, n - start);
  if (why == NULL && !cli_tensor_alloc(out))
    why = "out of memory";
  if (why == NULL)
    memcpy(out->data, data + start, out->n_bytes);
  free(data);
  if (why == NULL)
    return CLI_DONE;
  cli_tensor_free(out);
  return bad_file(path, why);
}

int cli_npy_write(const char *path, const cli_tensor *t) {
  char header[1024];
  int n = snprintf(header, sizeof(header), "{'descr': '%s', 'fortran_order': False, 'shape': (",
                   opipe_dtype_row_of(t->dtype)->numpy);
  for (uint32_t d = 0; d < t->rank; ++d) {
    n += snprintf(header + n, sizeof(header) - (size_t)n, d == 0 ? "%lld" : ", %lld",
                  (long long)t->shape[d]);
  }
  n += snprintf(header + n, sizeof(header) - (size_t)n, t->rank == 1 ? ",), }" : "), }");
  const size_t total = (10 + (size_t)n + 1 + 63) / 64 * 64;
  char *file = malloc(total + t->n_bytes);
  if (file == NULL)
    return bad_file(path, "out of memory");
  memset(file, ' ', total);
  memcpy(file, "\x93NUMPY\x01\x00", 8);
  file[8] = (char)((total - 10) & 255);
  file[9] = (char)((total - 10) >> 8);
  memcpy(file + 10, header, (size_t)n);
  file[total - 1] = '\n';
  if (t->n_bytes != 0)
    memcpy(file + total, t->data, t->n_bytes);
  const int status = cli_write_file(path, file, total + t->n_bytes);
  free(file);
  return status;
}

/* ---- TensorProto ---- */

typedef struct proto {
  const uint8_t *at, *end;
  bool bad;
} proto;

static uint64_t take_varint(proto *p) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (p->at == p->end)
      break;
    const uint8_t byte = *p->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if ((byte & 128) == 0)
      return value;
  }
  p->bad = true;
  return 0;
}

/* Content of a length-delimited field. */
static proto take_bytes(proto *p) {
  const uint64_t n = take_varint(p);
  proto inner = {p->at, p->at, false};
  if (p->bad || n > (uint64_t)(p->end - p->at)) {
    p->bad = true;
    return inner;
  }
  inner.end = p->at + n;
  p->at += n;
  return inner;
}

typedef struct typed {
  proto raw; /* field 9 */
  bool has_raw;
  uint64_t *
      numbers; /* varints of int32_data, int64_data, uint64_data; bits of float_data, double_data */
  size_t n, room;
  uint32_t width; /* bytes of one number in float_data (4) and double_data (8), 0: integers */
} typed;

static bool add_number(typed *t, uint64_t value) {
  if (t->n == t->room) {
    const size_t room = t->room == 0 ? 64 : t->room * 2;
    uint64_t *numbers = realloc(t->numbers, room * sizeof(*numbers));
    if (numbers == NULL)
      return false;
    t->numbers = numbers;
    t->room = room;
  }
  t->numbers[t->n++] = value;
  return true;
}

static void take_fixed(proto *p, typed *t, uint32_t width) {
  uint64_t value = 0;
  if ((size_t)(p->end - p->at) < width) {
    p->bad = true;
    return;
  }
  memcpy(&value, p->at, width);
  p->at += width;
  t->width = width;
  if (!add_number(t, value))
    p->bad = true;
}

static void take_numbers(proto *p, uint32_t wire, uint32_t width, typed *t) {
  proto inner = *p;
  if (wire == 2)
    inner = take_bytes(p);
  do {
    if (wire == 2 && inner.at == inner.end)
      break;
    proto *from = wire == 2 ? &inner : p;
    if (width != 0)
      take_fixed(from, t, width);
    else if (!add_number(t, take_varint(from)))
      from->bad = true;
    if (from->bad)
      p->bad = true;
  } while (wire == 2 && !p->bad);
}

static void skip_field(proto *p, uint32_t wire) {
  if (wire == 0)
    (void)take_varint(p);
  if (wire == 2)
    (void)take_bytes(p);
  const size_t width = wire == 1 ? 8 : wire == 5 ? 4 : 0;
  if (width > (size_t)(p->end - p->at) || wire == 3 || wire == 4 || wire > 5)
    p->bad = true;
  else
    p->at += width;
}

static void take_dims(proto *p, uint32_t wire, cli_tensor *out) {
  proto inner = *p;
  if (wire == 2)
    inner = take_bytes(p);
  do {
    if (wire == 2 && inner.at == inner.end)
      break;
    proto *from = wire == 2 ? &inner : p;
    if (out->rank == OPIPE_MAX_RANK) {
      p->bad = true;
      return;
    }
    out->shape[out->rank++] = (int64_t)take_varint(from);
    p->bad |= from->bad;
  } while (wire == 2 && !p->bad);
}

static void take_tensor(proto *p, cli_tensor *out, typed *t) {
  while (p->at < p->end && !p->bad) {
    const uint64_t key = take_varint(p);
    const uint32_t wire = (uint32_t)(key & 7);
    switch (key >> 3) {
      case 1:
        take_dims(p, wire, out);
        break;
      case 2:
        out->dtype = (uint32_t)take_varint(p);
        break;
      case 4:
        take_numbers(p, wire, 4, t);
        break;
      case 5:
      case 7:
      case 11:
        take_numbers(p, wire, 0, t);
        break;
      case 8: {
        const proto name = take_bytes(p);
        if (!cli_tensor_name(out, (const char *)name.at,
                             strnlen((const char *)name.at, (size_t)(name.end - name.at))))
          p->bad = true;
        break;
      }
      case 9:
        t->raw = take_bytes(p);
        t->has_raw = true;
        break;
      case 10:
        take_numbers(p, wire, 8, t);
        break;
      default:
        skip_field(p, wire);
        break;
    }
  }
}

static const char *fill_tensor(cli_tensor *out, const typed *t) {
  if (cli_dtype_bytes(out->dtype) == 0)
    return "its element type is not supported";
  if (!cli_tensor_alloc(out))
    return "its shape is not valid";
  if (t->has_raw) {
    if ((size_t)(t->raw.end - t->raw.at) != out->n_bytes)
      return "its size does not fit its shape";
    if (out->n_bytes != 0)
      memcpy(out->data, t->raw.at, out->n_bytes);
    return NULL;
  }
  const size_t size = cli_dtype_bytes(out->dtype);
  if (t->n != cli_elems(out))
    return "its number of elements does not fit its shape";
  if (t->width != 0 && t->width != size)
    return "its data field does not fit its type";
  for (size_t i = 0; i < t->n; ++i)
    memcpy((char *)out->data + i * size, &t->numbers[i], size);
  return NULL;
}

int cli_pb_read(const char *path, cli_tensor *out) {
  uint8_t *data = NULL;
  size_t n = 0;
  typed t = {{NULL, NULL, false}, false, NULL, 0, 0, 0};
  memset(out, 0, sizeof(*out));
  const int status = cli_file_read(path, (void **)&data, &n);
  if (status != CLI_DONE)
    return status;
  proto p = {data, data + n, false};
  take_tensor(&p, out, &t);
  const char *why = p.bad ? "it is not a serialised tensor" : fill_tensor(out, &t);
  free(t.numbers);
  free(data);
  if (why == NULL)
    return CLI_DONE;
  cli_tensor_free(out);
  return bad_file(path, why);
}

bool cli_is_plan_file(const char *path) {
  FILE *file = path == NULL ? NULL : fopen(path, "rb");
  int c = file == NULL ? EOF : fgetc(file);
  while (c == ' ' || c == '\n' || c == '\r' || c == '\t')
    c = fgetc(file);
  if (file != NULL)
    (void)fclose(file);
  return c == '{';
}
