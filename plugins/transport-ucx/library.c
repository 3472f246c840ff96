/* SPDX-License-Identifier: Apache-2.0 */
/* libucp in a host's process. UCX reads most settings when it is loaded, from the environment; it
 * sees a copy with ours, and the host's own is put back, the same array, whatever happened. Its
 * threads are made with all signals blocked. It stays loaded: threads and tables of its own end
 * with the process.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ucx.h"

#define FILE_NAME "libucp.so.0"
enum { MAJOR = 1, MINOR_LEAST = 10 };

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* the library, the environment */
static ucx_library the_library;
static bool is_loaded;

opipe_status ucx_failed(const opipe_world *world, const char *call, ucp_code code,
                        opipe_error *err) {
  const ucx_library *lib = world->library;
  return opipe_fail(err, OPIPE_E_DEVICE, "UCX %u.%u.%u: %s: %s", lib->major, lib->minor,
                    lib->release, call, lib->ucp.status_string(code));
}

/* ---- the environment ---- */

/* Without these UCX replaces signal handlers and patches the functions by which memory is mapped.
 */
static const char *const forced[] = {"UCX_HANDLE_ERRORS=none", "UCX_DEBUG_SIGNO=0",
                                     "UCX_MEM_EVENTS=n", "UCX_VFS_ENABLE=n"};
/* Where the user has not chosen. The first are read for each context, the rest once. */
static const char *const chosen[] = {"UCX_TCP_CONN_NB=y",          "UCX_KEEPALIVE_INTERVAL=inf",
                                     "UCX_POSIX_ERROR_HANDLING=y", "UCX_SYSV_ERROR_HANDLING=y",
                                     "UCX_LOG_FILE=stderr",        "UCX_LOG_LEVEL=error",
                                     "UCX_WARN_UNUSED_ENV_VARS=n"};
enum {
  N_FORCED = sizeof forced / sizeof forced[0],
  N_CHOSEN = sizeof chosen / sizeof chosen[0],
  N_OF_CONTEXTS = 2
};

static bool is_set(const char *const *list, uint64_t n, const char *entry) {
  const size_t length = strcspn(entry, "=") + 1;
  for (uint64_t i = 0; i < n; ++i) {
    if (strncmp(list[i], entry, length) == 0)
      return true;
  }
  return false;
}

/* The host's environment with ours; was_there: somebody else loaded UCX, whose process-wide
 * settings stay as they are. */
static opipe_status make_environment(opipe_world *world, bool was_there, opipe_error *err) {
  uint64_t n = 0, count = 0;
  while (environ != NULL && environ[n] != NULL)
    ++n;
  world->n_environment = (n + N_FORCED + N_CHOSEN + 1) * sizeof(char *);
  const char **list = ucx_new(world->host, "settings of UCX", world->n_environment, err);
  world->environment = list;
  if (list == NULL)
    return OPIPE_E_NOMEM;
  for (uint64_t i = 0; i < n; ++i) {
    if (was_there || !is_set(forced, N_FORCED, environ[i]))
      list[count++] = environ[i];
  }
  for (int i = 0; i < N_FORCED && !was_there; ++i)
    list[count++] = forced[i];
  for (int i = 0; i < (was_there ? N_OF_CONTEXTS : N_CHOSEN); ++i) {
    if (!is_set(list, count, chosen[i]))
      list[count++] = chosen[i];
  }
  return OPIPE_OK;
}

/* The host's own array again. Where another thread has called setenv meanwhile, that has replaced
 * ours: then what is ours is taken out. */
static void restore_environment(const opipe_world *world, char **host_environ) {
  char name[64];
  if (environ == world->environment) {
    environ = host_environ;
    return;
  }
  for (int i = 0; i < N_FORCED + N_CHOSEN; ++i) {
    const char *entry = i < N_FORCED ? forced[i] : chosen[i - N_FORCED];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
    const char *value = secure_getenv(name);
    if (value == entry + strlen(name) + 1)
      (void)unsetenv(name);
  }
}

/* ---- the library ---- */

static opipe_status find_calls(void *handle, ucp_calls *out, opipe_error *err) {
  const struct {
    const char *name;
    void *place;
  } calls[] = {{"ucp_get_version", &out->get_version},
               {"ucs_status_string", &out->status_string},
               {"ucp_config_read", &out->config_read},
               {"ucp_config_modify", &out->config_modify},
               {"ucp_config_release", &out->config_release},
               {"ucp_init_version", &out->init_version},
               {"ucp_context_query", &out->context_query},
               {"ucp_cleanup", &out->cleanup},
               {"ucp_worker_create", &out->worker_create},
               {"ucp_worker_destroy", &out->worker_destroy},
               {"ucp_worker_get_address", &out->worker_get_address},
               {"ucp_worker_release_address", &out->worker_release_address},
               {"ucp_worker_get_efd", &out->worker_get_efd},
               {"ucp_worker_arm", &out->worker_arm},
               {"ucp_worker_signal", &out->worker_signal},
               {"ucp_worker_progress", &out->worker_progress},
               {"ucp_ep_create", &out->ep_create},
               {"ucp_ep_close_nbx", &out->ep_close},
               {"ucp_ep_flush_nbx", &out->ep_flush},
               {"ucp_tag_send_nbx", &out->tag_send},
               {"ucp_tag_recv_nbx", &out->tag_recv},
               {"ucp_request_cancel", &out->request_cancel},
               {"ucp_request_check_status", &out->request_check},
               {"ucp_request_free", &out->request_free}};
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; ++i) {
    void *found = dlsym(handle, calls[i].name);
    if (found == NULL) {
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "transport 'ucx': %s has no function %s",
                        FILE_NAME, calls[i].name);
    }
    memcpy(calls[i].place, &found, sizeof found);
  }
  return OPIPE_OK;
}

static opipe_status check_version(ucx_library *lib, void *handle, opipe_error *err) {
  void *found = dlsym(handle, "ucp_get_version");
  if (found == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "transport 'ucx': %s has no function %s", FILE_NAME,
                      "ucp_get_version");
  }
  memcpy(&lib->ucp.get_version, &found, sizeof found);
  lib->ucp.get_version(&lib->major, &lib->minor, &lib->release);
  if (lib->major == MAJOR && lib->minor >= MINOR_LEAST)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport 'ucx': %s is UCX %u.%u.%u; it takes %d.%d or later of major version "
                    "%d",
                    FILE_NAME, lib->major, lib->minor, lib->release, MAJOR, MINOR_LEAST, MAJOR);
}

/* This code stays loaded as long as libucp does: until the process ends. */
static void stay(void) {
  Dl_info own;
  if (dladdr(&the_library, &own) != 0 && own.dli_fname != NULL)
    (void)dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

static opipe_status load(const opipe_host *host, bool was_there, opipe_error *err) {
  ucx_library lib = {.was_there = was_there};
  char words[160];
  void *handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    return opipe_fail(err, OPIPE_E_NOTFOUND,
                      "transport 'ucx' needs UCX's %s (Debian: libucx0): %.200s", FILE_NAME,
                      dlerror());
  }
  opipe_status status = check_version(&lib, handle, err);
  if (status == OPIPE_OK)
    status = find_calls(handle, &lib.ucp, err);
  if (status < 0) {
    (void)dlclose(handle);
    return status;
  }
  /* 1.16 to 1.21 crash when a peer fails while a large message is under way, without the hooks that
   * are turned off here. */
  lib.error_mode =
      lib.minor >= 16 && lib.minor <= 21 ? UCP_ERRORS_NONE : (uint32_t)UCP_ERRORS_OF_PEERS;
  the_library = lib;
  is_loaded = true;
  stay();
  (void)snprintf(words, sizeof words, "UCX %u.%u.%u %s", lib.major, lib.minor, lib.release,
                 was_there ? "is in the process already: its process-wide settings (signals, "
                             "memory hooks) stay as they are"
                           : "is loaded");
  host->log(host->ctx, was_there ? OPIPE_LOG_WARN : OPIPE_LOG_DEBUG, NULL, 0, words);
  return OPIPE_OK;
}

/* ---- a context ---- */

static opipe_status set(const opipe_world *world, ucp_handle config, const char *key,
                        const char *value, opipe_error *err) {
  char call[64 + UCX_WORDS];
  if (value[0] == '\0')
    return OPIPE_OK;
  const ucp_code code = world->library->ucp.config_modify(config, key, value);
  (void)snprintf(call, sizeof call, "the setting %s=%s", key, value);
  return code == UCP_FINE ? OPIPE_OK : ucx_failed(world, call, code, err);
}

static opipe_status open_context(opipe_world *world, opipe_error *err) {
  const ucp_calls *ucp = &world->library->ucp;
  ucp_context_want want = {.mask = UCP_CONTEXT_FEATURES,
                           .features = UCP_FEATURE_TAGS | UCP_FEATURE_WAKES};
  ucp_context_told told = {.mask = UCP_TOLD_REQUEST_SIZE};
  ucp_handle config = NULL;
  char call[96 + 2 * UCX_WORDS];
  ucp_code code = ucp->config_read(NULL, NULL, &config);
  if (code != UCP_FINE)
    return ucx_failed(world, "reading its settings (UCX_...)", code, err);
  opipe_status status = set(world, config, "TLS", world->options.tls, err);
  if (status == OPIPE_OK)
    status = set(world, config, "NET_DEVICES", world->options.net, err);
  if (status == OPIPE_OK)
    status = set(world, config, "RNDV_THRESH", "8192", err);
  if (status == OPIPE_OK) {
    code = ucp->init_version(MAJOR, MINOR_LEAST, &want, config, &world->context);
    (void)snprintf(call, sizeof call, "ucp_init with devices '%s' and transports '%s'",
                   world->options.net, world->options.tls);
    status = code == UCP_FINE ? OPIPE_OK : ucx_failed(world, call, code, err);
  }
  ucp->config_release(config);
  if (status < 0)
    return status;
  code = ucp->context_query(world->context, &told);
  if (code != UCP_FINE)
    return ucx_failed(world, "ucp_context_query", code, err);
  world->request_bytes = (told.request_size + MACHINE_LINE - 1) / MACHINE_LINE * MACHINE_LINE;
  return OPIPE_OK;
}

static opipe_status open_all(opipe_world *world, bool was_there, opipe_error *err) {
  opipe_status status = is_loaded ? OPIPE_OK : load(world->host, was_there, err);
  if (status < 0)
    return status;
  world->library = &the_library;
  status = open_context(world, err);
  for (uint32_t r = 0; r < world->n_ranks && status == OPIPE_OK; ++r) {
    if (world->seats[r].local)
      status = ucx_worker_make(world, r, err);
  }
  return status;
}

opipe_status ucx_start(opipe_world *world, opipe_error *err) {
  sigset_t all, before;
  (void)pthread_mutex_lock(&opening);
  void *there = dlopen(FILE_NAME, RTLD_NOW | RTLD_NOLOAD);
  const bool was_there = is_loaded ? the_library.was_there : there != NULL;
  if (there != NULL)
    (void)dlclose(there);
  opipe_status status = make_environment(world, was_there, err);
  if (status == OPIPE_OK) {
    char **host_environ = environ;
    ucx_files *files = ucx_files_before(world->host);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    environ = world->environment;
    status = open_all(world, was_there, err);
    restore_environment(world, host_environ);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    ucx_files_after(world, files, true);
  }
  (void)pthread_mutex_unlock(&opening);
  return status;
}
