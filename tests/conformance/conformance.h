/* SPDX-License-Identifier: Apache-2.0 */
/* What the three conformance programs share: opening the plugin as the library would, host services
 * that count, and checks that go on after a failure. Built against opipe/ headers and libc alone,
 * so that plugin writers can build them too: cc -std=c11 -I<prefix>/include backend.c conformance.c
 * -ldl -lpthread -lm -o conformance-backend
 *   ./conformance-backend path/to/opipe-backend-x.so
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <opipe/abi.h>
#include <stdbool.h>

typedef struct conf_plugin {
  const opipe_plugin *plugin;
  opipe_instance *self;
  const void *table;
} conf_plugin;

/* Host services given to the plugin; allocations are counted. */
extern const opipe_host conf_host;
uint64_t conf_allocations(void); /* calls that allocated or grew */
uint64_t conf_live_bytes(void);

/* Opens the backend of `path` for plugins that stand on another one (opipe.backends/1); before
 * conf_open, which finds it by its id. */
void conf_lend(const char *path);
/* What a kind's table must have: bytes, and no NULL among its slots but [may_lack, may_lack_end).
 */
typedef struct conf_table {
  const char *id;
  size_t least_bytes;
  size_t may_lack, may_lack_end;
} conf_table;
/* Opens the plugin of `path` and its table; ends the program with 2 when that is not possible. */
conf_plugin conf_open(const char *path, uint32_t kind, const conf_table *rule);
/* Closes it and checks that all memory came back. */
void conf_close(conf_plugin *plugin);

void conf_case(const char *name); /* names what follows in the report */
bool conf_check(bool passed, const char *fmt, ...) OPIPE_PRINTF(2, 3);
/* status is `wanted`, and the message is not empty. */
bool conf_error(opipe_status status, opipe_status wanted, const opipe_error *err, const char *what);
bool conf_ok(opipe_status status, const opipe_error *err, const char *what);
/* What a slot that makes an object answered; OK without one, and what is neither done nor failed,
 * is a failure and handed on as an error. made.h */
opipe_status conf_made(opipe_status status, const void *object, opipe_error *err, const char *slot);
void conf_skip(const char *fmt, ...) OPIPE_PRINTF(1, 2);
/* Prints "N passed, N failed, N skipped"; the exit status. */
int conf_finish(void);

#endif /* CONFORMANCE_H */
