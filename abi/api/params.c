/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a host's struct by its rows. The path of a field is only assembled for a message: on the
 * way down each struct, list and element leaves a place on the stack. */
#include "abi/api/params.h"

#include <stdio.h>
#include <string.h>

enum { SIZE_MOST = 4096 /* of a struct or element; no ABI 1 struct is longer */ };

typedef struct place {
  const struct place *outer; /* NULL: the argument itself */
  const char *call;
  const opi_struct *s;
  const char *field; /* of the outer struct; NULL: the argument */
  int64_t element;   /* -1: no list */
} place;

/* "session_submit: opipe_submit_params.inputs[2].tensor" */
static void path(opi_text *t, const place *p) {
  if (p->outer == NULL) {
    opi_text_printf(t, "%s: %s", p->call, p->s->name);
    return;
  }
  path(t, p->outer);
  opi_text_printf(t, ".%s", p->field);
  if (p->element >= 0)
    opi_text_printf(t, "[%lld]", (long long)p->element);
}

/* Refuses field `name` of the struct at `p` (NULL: the struct) for the reason in `text`. */
static opipe_status refuse(const place *p, const char *name, opipe_status status, opipe_error *err,
                           const char *fmt, ...) OPIPE_PRINTF(5, 6);
static opipe_status refuse(const place *p, const char *name, opipe_status status, opipe_error *err,
                           const char *fmt, ...) {
  opi_text where;
  char what[256];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  opi_text_init(&where, opi_allocator_system());
  path(&where, p);
  status = opi_fail(err, status, "%s%s%s%s", where.data == NULL ? p->call : where.data,
                    name == NULL ? "" : ".", name == NULL ? "" : name, what);
  opi_text_release(&where);
  return status;
}

static uint64_t number_at(const char *base, size_t offset, size_t size) {
  uint64_t u64 = 0;
  uint32_t u32 = 0;
  uint16_t u16 = 0;
  if (size == sizeof u64) {
    memcpy(&u64, base + offset, sizeof u64);
    return u64;
  }
  if (size == sizeof u32) {
    memcpy(&u32, base + offset, sizeof u32);
    return u32;
  }
  memcpy(&u16, base + offset, sizeof u16);
  return u16;
}

static const void *pointer_at(const char *base, size_t offset) {
  const void *value = NULL;
  memcpy(&value, base + offset, sizeof value);
  return value;
}

static opipe_status check_struct(const place *p, const char *base, uint32_t size, opipe_error *err);

/* ---- beyond the known part ---- */

static opipe_status check_tail(const place *p, const char *base, uint32_t size, opipe_error *err) {
  for (uint32_t i = p->s->size; i < size; ++i) {
    if (base[i] != 0) {
      return refuse(p, NULL, OPIPE_E_ABI, err,
                    " has %u at byte %u, this library knows %u bytes of it: use a newer library",
                    (unsigned char)base[i], i, p->s->size);
    }
  }
  return OPIPE_OK;
}

/* The size must not end inside a field. */
static opipe_status check_end(const place *p, const char *name, uint32_t size, opipe_error *err) {
  for (uint32_t f = 0; f < p->s->n_fields; ++f) {
    const opi_field *field = &p->s->fields[f];
    if (field->offset < size && size < field->offset + (uint32_t)field->size) {
      return refuse(p, name, OPIPE_E_ABI, err, " is %u, which ends inside '%s' (bytes %u to %u)",
                    size, field->name, field->offset, field->offset + field->size);
    }
  }
  return OPIPE_OK;
}

/* A struct that begins with struct_size. */
static opipe_status check_sized(const place *p, const char *base, opipe_error *err) {
  const uint32_t size = (uint32_t)number_at(base, 0, sizeof(uint32_t));
  if (size < p->s->least || size > SIZE_MOST) {
    return refuse(p, NULL, OPIPE_E_ABI, err, " struct_size is %u; %u to %d are accepted", size,
                  p->s->least, SIZE_MOST);
  }
  OPI_TRY(check_end(p, "struct_size", size, err));
  OPI_TRY(check_struct(p, base, size, err));
  return check_tail(p, base, size, err);
}

/* ---- lists ---- */

static opipe_status check_names(const place *p, const opi_field *f, const char *const *names,
                                uint64_t n, opipe_error *err) {
  for (uint64_t i = 0; i < n; ++i) {
    if (names[i] == NULL)
      return refuse(p, f->name, OPIPE_E_INVALID, err, "[%llu] is NULL", (unsigned long long)i);
  }
  return OPIPE_OK;
}

static opipe_status check_elements(const place *p, const opi_field *f, const char *first,
                                   uint32_t stride, uint64_t n, opipe_error *err) {
  place element = {p, p->call, f->inner, f->name, -1};
  if (stride < f->inner->least || stride > SIZE_MOST) {
    return refuse(p, f->name, OPIPE_E_ABI, err,
                  " has a stride of %u bytes from element to element; %u to %d are accepted",
                  stride, f->inner->least, SIZE_MOST);
  }
  OPI_TRY(check_end(&element, "stride", stride, err));
  for (uint64_t i = 0; i < n; ++i) {
    element.element = (int64_t)i;
    OPI_TRY(check_struct(&element, first + i * stride, stride, err));
    OPI_TRY(check_tail(&element, first + i * stride, stride, err));
  }
  return OPIPE_OK;
}

/* A count or stride beyond the caller's struct is 0. */
static opipe_status check_list(const place *p, const opi_field *f, const char *base, uint32_t size,
                               opipe_error *err) {
  const char *list = pointer_at(base, f->offset);
  const uint64_t n = f->count + f->n_count <= size ? number_at(base, f->count, f->n_count) : 0;
  uint32_t stride = f->stride == 0 && f->inner != NULL ? f->inner->size : 0;
  if (f->stride != 0 && f->stride + sizeof stride <= size)
    stride = (uint32_t)number_at(base, f->stride, sizeof stride);
  if (n == 0 || (f->is_signed != 0 && (int32_t)n < 0))
    return OPIPE_OK;
  if (list == NULL) {
    return refuse(p, f->name, OPIPE_E_INVALID, err, " is NULL, but should list its %llu elements",
                  (unsigned long long)n);
  }
  switch (f->kind) {
    case OPI_CHECK_NAMES:
      return check_names(p, f, (const char *const *)(const void *)list, n, err);
    case OPI_CHECK_LIST:
      return check_elements(p, f, list, stride, n, err);
    default:
      return OPIPE_OK;
  }
}

/* ---- fields ---- */

static opipe_status check_value(const place *p, const opi_field *f, uint64_t value,
                                opipe_error *err) {
  const unsigned long long v = value, known = f->known;
  switch (f->kind) {
    case OPI_CHECK_NEEDED:
      return value != 0 ? OPIPE_OK : refuse(p, f->name, OPIPE_E_INVALID, err, " is NULL");
    case OPI_CHECK_FLAGS:
      return (value & ~f->known) == 0
                 ? OPIPE_OK
                 : refuse(p, f->name, OPIPE_E_INVALID, err,
                          " is 0x%llx: the bits 0x%llx are unknown (known: 0x%llx)", v, v & ~known,
                          known);
    case OPI_CHECK_CHOICE:
      return value <= f->known ? OPIPE_OK
                               : refuse(p, f->name, OPIPE_E_INVALID, err,
                                        " is %llu, known are 0 to %llu", v, known);
    case OPI_CHECK_ONE_OF:
      return value < 64 && (f->known >> value & 1) != 0
                 ? OPIPE_OK
                 : refuse(p, f->name, OPIPE_E_INVALID, err,
                          " is %llu, which is not one of its values (a bit each: 0x%llx)", v,
                          known);
    case OPI_CHECK_ZERO:
      return value == 0 ? OPIPE_OK
                        : refuse(p, f->name, OPIPE_E_INVALID, err,
                                 " is %llu: it is reserved and must be 0", v);
    default:
      return OPIPE_OK;
  }
}

static opipe_status check_field(const place *p, const opi_field *f, const char *base, uint32_t size,
                                opipe_error *err) {
  const place inner = {p, p->call, f->inner, f->name, -1};
  switch (f->kind) {
    case OPI_CHECK_PART:
      return check_struct(&inner, base + f->offset, f->size, err);
    case OPI_CHECK_OTHER: {
      const char *other = pointer_at(base, f->offset);
      if (other == NULL)
        return OPIPE_OK;
      return f->inner->fields[0].kind == OPI_CHECK_SIZE
                 ? check_sized(&inner, other, err)
                 : check_struct(&inner, other, f->inner->size, err);
    }
    case OPI_CHECK_NUMBERS:
    case OPI_CHECK_NAMES:
    case OPI_CHECK_LIST:
      return check_list(p, f, base, size, err);
    default:
      return check_value(p, f, number_at(base, f->offset, f->size), err);
  }
}

/* Checks the fields within `size`. */
static opipe_status check_struct(const place *p, const char *base, uint32_t size,
                                 opipe_error *err) {
  for (uint32_t i = 0; i < p->s->n_fields; ++i) {
    const opi_field *f = &p->s->fields[i];
    if ((uint32_t)f->offset + f->size > size)
      break;
    if (f->kind > OPI_CHECK_ANY)
      OPI_TRY(check_field(p, f, base, size, err));
  }
  return OPIPE_OK;
}

/* ---- interface ---- */

opipe_status opi_params_check(const opi_struct *s, const char *call, const void *given,
                              opipe_error *err) {
  const place p = {NULL, call, s, NULL, -1};
  return check_sized(&p, given, err);
}

opipe_status opi_params_read(const opi_struct *s, const char *call, const void *given, void *own,
                             opipe_error *err) {
  if (given == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_params_check(s, call, given, err));
  const uint32_t size = (uint32_t)number_at(given, 0, sizeof(uint32_t));
  memcpy(own, given, size < s->size ? size : s->size);
  memcpy(own, &s->size, sizeof s->size); /* later code sees a whole struct */
  return OPIPE_OK;
}

opipe_status opi_choice_check(const char *call, const char *name, uint32_t value, uint32_t most,
                              opipe_error *err) {
  return value <= most ? OPIPE_OK
                       : opi_fail(err, OPIPE_E_INVALID, "%s: %s is %u, known are 0 to %u", call,
                                  name, value, most);
}

opipe_status opi_form_check(const char *call, uint32_t format, opipe_error *err) {
  return format <= OPIPE_FORMAT_JSON || format == OPIPE_FORMAT_HTML
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "%s: format is %u, known are %d, %d and %d", call,
                        format, OPIPE_FORMAT_TEXT, OPIPE_FORMAT_JSON, OPIPE_FORMAT_HTML);
}

opipe_status opi_flags_check(const char *call, const char *name, uint32_t value, uint32_t known,
                             opipe_error *err) {
  return (value & ~known) == 0 ? OPIPE_OK
                               : opi_fail(err, OPIPE_E_INVALID,
                                          "%s: %s is 0x%x: the bits 0x%x are unknown (known: 0x%x)",
                                          call, name, value, value & ~known, known);
}

opipe_status opi_info_check(const char *call, const void *io_info, size_t least, opipe_error *err) {
  if (io_info == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: the struct to fill in is NULL", call);
  const uint32_t size = (uint32_t)number_at(io_info, 0, sizeof(uint32_t));
  return size >= least
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_ABI, "%s: struct_size is %u, at least %zu are needed", call,
                        size, least);
}

void opi_info_write(void *io_info, const void *info, size_t size) {
  const size_t room = (size_t)number_at(io_info, 0, sizeof(uint32_t)), head = sizeof(uint32_t);
  memcpy((char *)io_info + head, (const char *)info + head, (room < size ? room : size) - head);
}
