/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the three conformance programs: opening the plugin as the library would, host services
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

/* Host services given to the plugin; allocations are counted, and never zeroed. */
extern const opipe_host conf_host;
uint64_t conf_allocations(void); /* calls that allocated or grew */
uint64_t conf_live_bytes(void);

/* Opens the backend of `path` for plugins that stand on another one (opipe.backends/1); before
 * conf_open, which finds it by its id. */
void conf_lend(const char *path);
/* Opens the plugin of `path` and its table; ends the program with 2 when that is not possible. */
conf_plugin conf_open(const char *path, uint32_t kind, const char *interface_id);
/* Closes it and checks that all memory came back. */
void conf_close(conf_plugin *plugin);

void conf_case(const char *name); /* names what follows in the report */
bool conf_check(bool passed, const char *fmt, ...) OPIPE_PRINTF(2, 3);
/* status is `wanted`, and the message tells of it. */
bool conf_error(opipe_status status, opipe_status wanted, const opipe_error *err, const char *what);
/* Some error with a message. */
bool conf_refused(opipe_status status, const opipe_error *err, const char *what);
bool conf_ok(opipe_status status, const opipe_error *err, const char *what);
/* OK, and the object is there. out: where the call puts it. */
bool conf_made(opipe_status status, const void *out, const opipe_error *err, const char *what);
void conf_skip(const char *fmt, ...) OPIPE_PRINTF(1, 2);
unsigned conf_failures(void); /* so far */
/* Prints "N passed, N failed, N skipped"; the exit status. */
int conf_finish(void);
/* For a program that ends at once: a failure and the summary. Returns the length. */
int conf_last_words(char *out, size_t room, const char *why, int number);
/* How long a peer, a thread or a device may take for what takes no time. */
uint64_t conf_patience_ns(void);

#endif /* CONFORMANCE_H */
