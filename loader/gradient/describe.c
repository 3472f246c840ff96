/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `inspect --train`: every initializer, trained or not, and why. */
#include <inttypes.h>

#include "loader/gradient/gradient.h"

const char *opi_training_reason(uint32_t why) {
  switch (why) {
    case OPI_TRAINED:
      return "trained";
    case OPI_TRAINED_BY_GLOB:
      return "trained: asked for by name";
    case OPI_FROZEN_BY_GLOB:
      return "frozen: asked for by name";
    case OPI_NOT_FLOAT:
      return "not trained: no float type";
    case OPI_NOT_REACHED:
      return "not trained: no differentiable path to the loss";
    case OPI_NOT_LITERAL:
      return "not trained: one element, a literal";
    case OPI_NOT_MASK:
      return "not trained: a mask (two numbers only, or 0 and numbers of at most -100)";
    case OPI_NOT_TABLE:
      return "not trained: a table of positions (sines and cosines, affine, or coordinates)";
    case OPI_NOT_FACTOR:
      return "not trained: multiplies only values made of integers, is applied to a graph input, "
             "or is a factor of a few numbers that repeat";
    case OPI_NOT_NUMBER:
      return "not trained: an exponent, a bound or a value to fill in";
    case OPI_NOT_ASKED:
      return "not trained: no pattern of trainable names matches it";
    case OPI_NOT_HALF:
      return "not trained: of a half type and cast, among parameters of another type";
    case OPI_NOT_LISTED:
      return "not trained: the plan does not list it";
    case OPI_NOT_MADE:
      return "not trained: an exporter's constant, by its name and place";
    case OPI_NOT_BUFFER:
      return "not trained: a buffer (reaches the loss only through Sin, Cos or the tables of "
             "RotaryEmbedding, is a running statistic, or the file's nodes say so)";
    default:
      return "not trained";
  }
}

opipe_status opi_training_describe(const opi_training *training, opipe_write_fn write, void *ctx,
                                   opipe_error *err) {
  opi_text text;
  uint64_t trained = 0, n = 0;
  opi_text_init(&text, training->arena.allocator);
  for (uint32_t i = 0; i < training->n_params; ++i) {
    const opi_train_param *p = &training->params[i];
    opi_text_printf(&text, "%s", p->name);
    if (p->origin != NULL)
      opi_text_printf(&text, " (%s)", p->origin);
    if (p->value != OPIPE_NONE) {
      const opi_value *v = &training->graph->values[p->value];
      opi_text_printf(&text, "  %s ", opi_dtype_name(v->dtype));
      opi_text_shape(&text, v->shape, (uint32_t)v->rank);
      if (p->n_gradients != 0 && opi_shape_elems(v->shape, (uint32_t)v->rank, &n))
        trained += n;
    }
    opi_text_printf(&text, "  %s", opi_training_reason(p->why));
    if (p->n_gradients > 1)
      opi_text_printf(&text, " (tied: %" PRIu32 " uses)", p->n_gradients);
    if (p->doubt != NULL)
      opi_text_printf(&text, "; doubtful: %s", p->doubt);
    opi_text_puts(&text, "\n");
  }
  opi_text_printf(&text,
                  "%" PRIu32 " of %" PRIu32 " initializers are trained, %" PRIu64 " elements\n",
                  training->n_trained, training->n_params, trained);
  if (training->output != OPIPE_NONE && training->labels == OPIPE_NONE) {
    opi_text_printf(&text, "no loss is named: what leads to output '%s' is trained\n",
                    training->graph->values[training->output].name);
  }
  if (training->by_rows) {
    opi_text_puts(
        &text,
        "the loss is a scalar of the graph: a mean or a sum over rows, a ratio of sums, or a "
        "linear form of these takes any number of micro-batches; any other takes one\n");
  }
  const opipe_status status = opi_text_write(&text, write, ctx, err);
  opi_text_release(&text);
  return status;
}
