/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are chosen by measuring: four slots that a backend may lack. */
#ifndef CONFORMANCE_BACKEND_KERNELS_H
#define CONFORMANCE_BACKEND_KERNELS_H

#include <stdio.h>

#include "backend_shared.h"

#if OPIPE_ABI_MINOR >= 3

enum { KERNELS_MOST = 8, ROWS = 4, DEEP = 96, WIDE = 8 };

/* y [4, 8] = x [4, 96] w [96, 8] */
typedef struct product {
  int64_t shapes[3][2];
  float weights[DEEP * WIDE];
  opipe_value values[3];
  opipe_node node;
  opipe_graph graph;
} product;

static void make_product(product *g) {
  static const uint32_t in[] = {0, 1}, out[] = {2};
  static const char *const names[] = {"x", "w", "y"};
  static const uint32_t roles[] = {OPIPE_VALUE_INPUT, OPIPE_VALUE_CONSTANT, OPIPE_VALUE_OUTPUT},
                        slots[] = {0, OPIPE_NONE, 1};
  static const int64_t extents[3][2] = {{ROWS, DEEP}, {DEEP, WIDE}, {ROWS, WIDE}};
  memset(g, 0, sizeof *g);
  memcpy(g->shapes, extents, sizeof extents);
  for (uint32_t i = 0; i < 3; ++i) {
    g->values[i] = (opipe_value){.name = names[i],
                                 .shape = g->shapes[i],
                                 .data = roles[i] == OPIPE_VALUE_CONSTANT ? g->weights : NULL,
                                 .n_bytes = (uint64_t)(extents[i][0] * extents[i][1]) * 4,
                                 .dtype = OPIPE_FLOAT,
                                 .rank = 2,
                                 .role = roles[i],
                                 .slot = slots[i]};
  }
  g->node = node("MatMul", in, 2, out, 13);
  g->graph = (opipe_graph){.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars),
                           .n_values = 3,
                           .values = g->values,
                           .nodes = &g->node,
                           .n_nodes = 1,
                           .n_boundaries = 2};
}

/* How many kernels the program has; kernels [KERNELS_MOST] gets them. */
static uint32_t kernels_of(const subject *s, const opipe_program *program, opipe_kernel *kernels) {
  uint32_t n = 0, room = KERNELS_MOST;
  conf_ok(s->t->program_kernels(program, NULL, &n, &err), &err, "program_kernels, how many");
  for (uint32_t i = 0; i < KERNELS_MOST; ++i)
    kernels[i] = (opipe_kernel){.struct_size = sizeof kernels[i]};
  if (!conf_check(n <= KERNELS_MOST, "%u kernels of one product", n))
    return 0;
  conf_ok(s->t->program_kernels(program, kernels, &room, &err), &err, "program_kernels");
  conf_check(room == n, "%u kernels, then %u", n, room);
  for (uint32_t i = 0; i < room; ++i) {
    conf_check(kernels[i].what[0] != '\0' && kernels[i].choice[0] != '\0',
               "kernel %u: '%.255s' is computed by '%.127s'", i, kernels[i].what,
               kernels[i].choice);
  }
  return room;
}

static opipe_program *compile_product(const subject *s, const product *g) {
  const opipe_compile_params params = {(uint32_t)OPIPE_END(opipe_compile_params, graph), 0,
                                       &g->graph};
  opipe_program *program = NULL;
  conf_made(s->t->compile(s->device, &params, &program, &err), &program, &err, "compile");
  return program;
}

static void check_fit(const subject *s) {
  char text[512], again[512], tiny[2];
  conf_ok(s->t->kernels_fit(s->device, text, sizeof text, &err), &err, "kernels_fit");
  conf_ok(s->t->kernels_fit(s->device, again, sizeof again, &err), &err, "kernels_fit again");
  conf_check(text[0] != '\0' && strchr(text, '\n') == NULL && strcmp(text, again) == 0,
             "choices fit '%s', then '%s'", text, again);
  err.message[0] = '\0';
  conf_error(s->t->kernels_fit(s->device, tiny, sizeof tiny, &err), OPIPE_E_LIMIT, &err,
             "kernels_fit without room");
}

/* One of them is measured; it is then what programs are compiled with, until nothing is given. */
static void check_choice(const subject *s, const product *g, opipe_program *program,
                         opipe_kernel *kernel) {
  const opipe_tune_params few = {(uint32_t)OPIPE_END(opipe_tune_params, reserved), 4, 3, 0};
  opipe_kernel found[KERNELS_MOST], other = *kernel, twice[2] = {*kernel, *kernel};
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  (void)s->t->device_usage(s->device, &usage, &err);
  const uint64_t before = usage.live_bytes[OPIPE_BUFFER_STAGING];
  if (!conf_ok(s->t->kernel_tune(program, &few, kernel, &err), &err, "kernel_tune"))
    return;
  (void)s->t->device_usage(s->device, &usage, &err);
  conf_check(usage.live_bytes[OPIPE_BUFFER_STAGING] == before, "kernel_tune keeps memory");
  conf_check(kernel->n_tried > kernel->n_dropped && kernel->n_tried <= 4,
             "%u candidates tried, %u dropped", kernel->n_tried, kernel->n_dropped);
  conf_check(strcmp(kernel->what, other.what) == 0, "kernel_tune changes what it was asked");
  err.message[0] = '\0';
  (void)snprintf(other.what, sizeof other.what, "nothing of the kind");
  conf_error(s->t->kernel_tune(program, &few, &other, &err), OPIPE_E_NOTFOUND, &err,
             "kernel_tune of another kernel");
  err.message[0] = '\0';
  conf_error(s->t->kernels_use(s->device, twice, 2, &err), OPIPE_E_INVALID, &err,
             "kernels_use, twice the same");
  (void)snprintf(other.choice, sizeof other.choice, "?");
  err.message[0] = '\0';
  conf_error(s->t->kernels_use(s->device, &other, 1, &err), OPIPE_E_INVALID, &err,
             "kernels_use of a choice that is none");
  for (uint32_t given = 1; given < 2; --given) { /* with it, then without */
    conf_ok(s->t->kernels_use(s->device, kernel, given, &err), &err, "kernels_use");
    opipe_program *again = compile_product(s, g);
    const uint32_t n = again == NULL ? 0 : kernels_of(s, again, found);
    for (uint32_t i = 0; i < n; ++i) {
      conf_check(((found[i].flags & OPIPE_KERNEL_GIVEN) != 0) ==
                     (given == 1 && strcmp(found[i].what, kernel->what) == 0),
                 "'%.255s' is %s", found[i].what, given ? "not as given" : "still given");
      conf_check(!given || strcmp(found[i].choice, kernel->choice) == 0,
                 "given '%.127s', taken '%.127s'", kernel->choice, found[i].choice);
    }
    s->t->program_free(again);
  }
}

static void check_kernels(const subject *s) {
  opipe_kernel kernels[KERNELS_MOST];
  product g;
  conf_case("kernels that are chosen");
  if (!HAS_SLOT(s, kernel_tune)) {
    conf_skip("the backend has no kernels to choose from");
    return;
  }
  check_fit(s);
  make_product(&g);
  opipe_program *program = compile_product(s, &g);
  if (program == NULL)
    return;
  const uint32_t n = kernels_of(s, program, kernels);
  if (n != 0)
    check_choice(s, &g, program, &kernels[0]);
  else
    conf_skip("a product has no choice");
  s->t->program_free(program);
}
#else
static void check_kernels(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_BACKEND_KERNELS_H */
