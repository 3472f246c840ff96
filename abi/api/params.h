/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of structs that hosts fill in, by tables, before anything in them is used. Each field has
 * a row, and the rows of a struct follow each other without a gap (a test checks it), so a new
 * field without a row is noticed.
 *
 * These are refused with the path of the field and its value: a struct_size below 1.0's or inside a
 * field, unknown flags and choices, reserved fields that are not 0, counts without a list, NULL for
 * a required name or function, strides shorter than 1.0's elements, and non-zero bytes beyond the
 * known part of a struct or element, where a caller with newer headers asks for something. Infos,
 * which the library fills in, are not read beyond struct_size.
 */
#ifndef OPI_API_PARAMS_H
#define OPI_API_PARAMS_H

#include <opipe/host.h>

#include "loader/base/base.h"

enum {
  OPI_CHECK_SIZE,    /* struct_size */
  OPI_CHECK_ANY,     /* any value: numbers (the callee checks the range), optional pointers */
  OPI_CHECK_NEEDED,  /* a pointer or function, not NULL */
  OPI_CHECK_FLAGS,   /* bits of `known` */
  OPI_CHECK_CHOICE,  /* 0 .. known */
  OPI_CHECK_ONE_OF,  /* n with bit n of `known` */
  OPI_CHECK_ZERO,    /* reserved */
  OPI_CHECK_PART,    /* a struct by value */
  OPI_CHECK_OTHER,   /* a struct by pointer, NULL: none */
  OPI_CHECK_NUMBERS, /* [count] */
  OPI_CHECK_NAMES,   /* [count] const char *, none NULL */
  OPI_CHECK_LIST     /* [count] structs, `stride` bytes from one to the next */
};

typedef struct opi_struct opi_struct;

typedef struct opi_field {
  const char *name;
  uint16_t offset, size;
  uint16_t kind;          /* OPI_CHECK_* */
  uint16_t count, stride; /* offsets of these fields; stride 0: dense */
  uint16_t n_count;       /* bytes of the count; a count of 4 bytes is signed when `is_signed` */
  uint32_t is_signed;
  uint64_t known;
  const opi_struct *inner; /* PART, OTHER, LIST */
} opi_field;

struct opi_struct {
  const char *name;
  const opi_field *fields;
  uint32_t n_fields;
  uint32_t size;  /* in this library */
  uint32_t least; /* in 1.0; with struct_size: the least accepted */
};

/* Every struct that hosts fill in. */
extern const opi_struct opi_struct_context_params, opi_struct_load_params, opi_struct_bind_options,
    opi_struct_train_options, opi_struct_train_clock, opi_struct_order_costs,
    opi_struct_plan_params, opi_struct_session_params, opi_struct_submit_params,
    opi_struct_order_params, opi_struct_play_params, opi_struct_state_params,
    opi_struct_build_graph, opi_struct_build_params, opi_struct_profile_params,
    opi_struct_strategy_params, opi_struct_machine_params, opi_struct_tuning_params,
    opi_struct_read_params, opi_struct_team_params, opi_struct_gather_params,
    opi_struct_share_params, opi_struct_generate_params;
/* The same and those inside them, for tests; ends with NULL. */
extern const opi_struct *const opi_structs[];

/* Checks `given` and copies the part that both sides know over `own`, which holds the defaults.
 * NULL: own stays as it is. Errors: INVALID, ABI. */
opipe_status opi_params_read(const opi_struct *s, const char *call, const void *given, void *own,
                             opipe_error *err);
/* Only checks. `given` is not NULL. */
opipe_status opi_params_check(const opi_struct *s, const char *call, const void *given,
                              opipe_error *err);

/* An argument that is a choice 0 .. most, or flags. */
opipe_status opi_choice_check(const char *call, const char *name, uint32_t value, uint32_t most,
                              opipe_error *err);
/* Text, JSON or a page. */
opipe_status opi_form_check(const char *call, uint32_t format, opipe_error *err);
opipe_status opi_flags_check(const char *call, const char *name, uint32_t value, uint32_t known,
                             opipe_error *err);

/* Infos, which the library fills in. Before: checks that it is there and has at least `least`
 * bytes. After: copies the part that both sides know (struct_size, the first field, stays the
 * caller's). */
opipe_status opi_info_check(const char *call, const void *io_info, size_t least, opipe_error *err);
void opi_info_write(void *io_info, const void *info, size_t size);

#endif /* OPI_API_PARAMS_H */
