/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options: each reader takes the option's name for its message and returns CLI_DONE, or
 * CLI_USAGE with the message printed. */
#ifndef CLI_VALUES_H
#define CLI_VALUES_H

#include "cli.h"

/* Digits only, at most max. */
bool cli_parse_u64(const char *text, uint64_t max, uint64_t *out);
int cli_take_count(const char *name, const char *text, uint64_t min, uint64_t max, uint32_t *out);
int cli_take_number(const char *name, const char *text, uint64_t *out); /* above 0 */
/* Bytes: 300MiB, 1GB, 4096. */
int cli_take_size(const char *name, const char *text, uint64_t *out);
int cli_take_memory(const char *name, const char *text, uint64_t *out); /* the same, above 0 */
int cli_take_double(const char *name, const char *text, double *out);   /* >= 0 */
/* One of "a|b|c": its index. */
int cli_take_choice(const char *name, const char *text, const char *choices, uint32_t *out);
/* Adds a value of a repeatable option; text is not copied. */
int cli_take_item(const char *name, const char *text, cli_list *list);

#endif /* CLI_VALUES_H */
