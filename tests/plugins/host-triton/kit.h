/* SPDX-License-Identifier: Apache-2.0 */
/* The backend in the stand-in for a server: from its initialization to its end. */
#ifndef TESTS_TRITON_KIT_H
#define TESTS_TRITON_KIT_H

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/plugins/host-triton/double.h"
#include "tests/support/support.h"

/* Writes the model of the repository; the test's own. */
bool save_model(const char *path);

typedef tri_error *(*backend_fn)(tri_backend *);
typedef tri_error *(*model_fn)(tri_model *);
typedef tri_error *(*instance_fn)(tri_instance *);
typedef tri_error *(*execute_fn)(tri_instance *, tri_request **, uint32_t);

typedef struct server {
  void *library;
  tri_backend backend;
  tri_model model;
  tri_instance instance;
  tri_error *error; /* of the first step that failed */
  backend_fn backend_end;
  model_fn model_end;
  instance_fn instance_end;
  execute_fn execute;
  char config[1024], command_line[1024];
} server;

static void *symbol(const server *s, const char *name) {
  void *found = dlsym(s->library, name);
  OPI_ASSERT_FATAL(found != NULL);
  return found;
}

static bool begin(server *s, const char *options) {
  backend_fn initialize = NULL;
  memset(s, 0, sizeof *s);
  double_log[0] = '\0';
  double_major = double_major == 0 ? TRI_BACKEND_MAJOR : double_major;
  s->library =
      dlopen(opi_test_build("lib/triton/onnxpipe/libtriton_onnxpipe.so"), RTLD_NOW | RTLD_LOCAL);
  OPI_ASSERT_FATAL(s->library != NULL);
  *(void **)&initialize = symbol(s, "TRITONBACKEND_Initialize");
  *(void **)&s->backend_end = symbol(s, "TRITONBACKEND_Finalize");
  *(void **)&s->model_end = symbol(s, "TRITONBACKEND_ModelFinalize");
  *(void **)&s->instance_end = symbol(s, "TRITONBACKEND_ModelInstanceFinalize");
  *(void **)&s->execute = symbol(s, "TRITONBACKEND_ModelInstanceExecute");
  (void)snprintf(s->command_line, sizeof s->command_line,
                 "{\"cmdline\":{\"auto-complete-config\":\"true\",\"library\":\"%s\"%s}}",
                 opi_test_build("lib/libonnxpipe.so"), options);
  s->backend.config.text = s->command_line;
  s->error = initialize(&s->backend);
  return s->error == NULL;
}

/* config: the rest of it, ",..." */
static bool load(server *s, const char *config) {
  model_fn model_begin = NULL;
  instance_fn instance_begin = NULL;
  *(void **)&model_begin = symbol(s, "TRITONBACKEND_ModelInitialize");
  *(void **)&instance_begin = symbol(s, "TRITONBACKEND_ModelInstanceInitialize");
  (void)snprintf(s->config, sizeof s->config, "{\"name\":\"model\"%s}", config);
  s->model.backend = &s->backend;
  s->model.name = "model";
  s->model.folder = opi_test_tmpdir();
  s->model.config = s->config;
  s->instance.model = &s->model;
  if (mkdir(opi_test_tmp("1"), 0700) == 0)
    OPI_ASSERT_FATAL(save_model(opi_test_tmp("1/model.onnx")));
  s->error = model_begin(&s->model);
  if (s->error == NULL)
    s->error = instance_begin(&s->instance);
  return s->error == NULL;
}

/* As the server does, also where a beginning failed. */
static void end(server *s) {
  if (s->error != NULL)
    TRITONSERVER_ErrorDelete(s->error);
  if (s->instance.model != NULL)
    OPI_ASSERT(s->instance_end(&s->instance) == NULL);
  if (s->model.backend != NULL)
    OPI_ASSERT(s->model_end(&s->model) == NULL);
  OPI_ASSERT(s->backend_end(&s->backend) == NULL);
  free(s->model.completed);
  OPI_ASSERT_INT(double_live, 0); /* whatever was made or given was given back */
  double_live = 0;
}

static void wait_for(const tri_request *r) {
  while (__atomic_load_n(&r->n_released, __ATOMIC_ACQUIRE) == 0)
    (void)usleep(200);
}

static void forget(tri_request *r) {
  while (r->response != NULL) {
    tri_response *own = r->response;
    r->response = own->before;
    for (uint32_t i = 0; i < own->n_outputs; ++i)
      free(own->outputs[i].data);
    if (own->error != NULL)
      TRITONSERVER_ErrorDelete(own->error);
    free(own);
  }
}

#endif /* TESTS_TRITON_KIT_H */
