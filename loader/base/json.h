/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for parsing hostile JSON with jansson, and for writing deterministic JSON with opi_text.
 */
#ifndef OPI_JSON_H
#define OPI_JSON_H

#include <jansson.h>

#include "loader/base/base.h"

/* Appends a double with enough digits to read back the same number; null if not finite. */
void opi_json_double(opi_text *text, double value);

/* Parses after bounding size (256 MiB) and depth (32). The caller owns *out_root (json_decref).
 * Messages name the file as `what`. */
opipe_status opi_json_parse(const void *bytes, uint64_t n_bytes, const char *what,
                            json_t **out_root, opipe_error *err);

/* Members of an object by name. Missing members and wrong types are errors that name `what` and the
 * member.
 */
opipe_status opi_json_get_string(const json_t *object, const char *what, const char *name,
                                 const char **out, opipe_error *err);
opipe_status opi_json_get_u64(const json_t *object, const char *what, const char *name,
                              uint64_t max, uint64_t *out, opipe_error *err);
opipe_status opi_json_get_number(const json_t *object, const char *what, const char *name,
                                 double *out, opipe_error *err);
/* Parses numbers such as "18446744073709551615", which exceed the 63 bits of a JSON integer. */
bool opi_json_parse_u64(const char *text, uint64_t *out);
/* Reads a value of the array or member `name`: nanoseconds, 0 to 1e18 (32 years). */
opipe_status opi_json_time(const json_t *value, const char *what, const char *name, double *out,
                           opipe_error *err);
opipe_status opi_json_get_array(const json_t *object, const char *what, const char *name,
                                const json_t **out, opipe_error *err);

#endif /* OPI_JSON_H */
