/* SPDX-License-Identifier: Apache-2.0 */
/* Compares a node's attributes with what its operator's row lists; see form.h. */
#include "loader/ops/form.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *opi_attr_kind_name(uint32_t kind) {
  switch (kind) {
    case OPIPE_ATTR_INT:
      return "INT";
    case OPIPE_ATTR_FLOAT:
      return "FLOAT";
    case OPIPE_ATTR_STRING:
      return "STRING";
    case OPIPE_ATTR_INTS:
      return "INTS";
    case OPIPE_ATTR_FLOATS:
      return "FLOATS";
    case OPIPE_ATTR_STRINGS:
      return "STRINGS";
    case OPIPE_ATTR_TENSOR:
      return "TENSOR";
    case OPI_ATTR_GRAPH:
      return "GRAPH";
    default:
      return "?";
  }
}

static bool is_list(uint32_t kind) {
  return kind == OPIPE_ATTR_INTS || kind == OPIPE_ATTR_FLOATS || kind == OPIPE_ATTR_STRINGS;
}

/* Files without types of attributes hold empty lists as INTS. */
static bool kind_fits(const opi_attr_rule *rule, const opipe_attr *attr) {
  return attr->kind == rule->kind ||
         (attr->kind == OPIPE_ATTR_INTS && attr->n == 0 && is_list(rule->kind));
}

static bool name_fits(const char *pattern, const char *name) {
  const size_t n = strlen(pattern);
  return n > 0 && pattern[n - 1] == '*' ? strncmp(pattern, name, n - 1) == 0
                                        : strcmp(pattern, name) == 0;
}

const opi_attr_rule *opi_attr_rule_of(const opi_attr_rule *attrs, const char *name, uint32_t kind,
                                      uint32_t version) {
  const opi_attr_rule *best = NULL;
  int best_fit = -1;
  for (const opi_attr_rule *rule = attrs; rule->name != NULL; ++rule) {
    if (!name_fits(rule->name, name))
      continue;
    const int fit = (opi_attr_in_version(rule, version) ? 2 : 0) + (rule->kind == kind ? 1 : 0);
    if (fit > best_fit)
      best = rule;
    best_fit = fit > best_fit ? fit : best_fit;
  }
  return best;
}

/* Is `text` one of the words of `texts`? first: only the first word counts. */
static bool has_word(const char *texts, const char *text, bool first) {
  const size_t n = strlen(text);
  for (const char *at = texts; *at != '\0';) {
    const size_t word = strcspn(at, " ");
    if (word == n && memcmp(at, text, n) == 0)
      return true;
    if (first)
      return false;
    at += word + strspn(at + word, " ");
  }
  return false;
}

/* Numbers and texts of an attribute, one or a list. */
static uint32_t entries_of(const opipe_attr *attr) {
  return is_list(attr->kind) ? attr->n : 1;
}

static double number_at(const opipe_attr *attr, uint32_t i) {
  switch (attr->kind) {
    case OPIPE_ATTR_INT:
      return (double)attr->i;
    case OPIPE_ATTR_FLOAT:
      return attr->f;
    case OPIPE_ATTR_INTS:
      return (double)((const int64_t *)attr->data)[i];
    default:
      return (double)((const float *)attr->data)[i];
  }
}

static const char *text_at(const opipe_attr *attr, uint32_t i) {
  return attr->kind == OPIPE_ATTR_STRING ? attr->data : ((const char *const *)attr->data)[i];
}

static bool is_numeric(uint32_t kind) {
  return kind == OPIPE_ATTR_INT || kind == OPIPE_ATTR_FLOAT || kind == OPIPE_ATTR_INTS ||
         kind == OPIPE_ATTR_FLOATS;
}

/* Does the attribute hold its default? A list does when each entry is the default. */
static bool is_preset(const opi_attr_rule *rule, const opipe_attr *attr) {
  if (attr->kind != rule->kind)
    return false;
  if (rule->has_preset && is_numeric(attr->kind)) {
    const uint32_t n = entries_of(attr);
    const bool single = attr->kind == OPIPE_ATTR_FLOAT || attr->kind == OPIPE_ATTR_FLOATS;
    for (uint32_t i = 0; i < n; ++i) {
      const double value = number_at(attr, i);
      if (single ? (float)value != (float)rule->preset : value != rule->preset)
        return false;
    }
    return n > 0;
  }
  return rule->texts != NULL && attr->kind == OPIPE_ATTR_STRING &&
         has_word(rule->texts, text_at(attr, 0), true);
}

static bool is_honoured(const opi_attr_rule *rule, const opipe_attr *attr) {
  const uint32_t n = entries_of(attr);
  switch (rule->honours) {
    case OPI_HONOURS_ALL:
      return true;
    case OPI_HONOURS_RANGE:
      for (uint32_t i = 0; i < n; ++i) {
        const double value = number_at(attr, i);
        if (!(value >= rule->low && value <= rule->high))
          return false;
      }
      return true;
    case OPI_HONOURS_TEXTS:
      for (uint32_t i = 0; i < n; ++i) {
        if (!has_word(rule->texts, text_at(attr, i), false))
          return false;
      }
      return true;
    default:
      return is_list(attr->kind) && n == 0;
  }
}

/* Letters to change, add or drop to make one name of the other; names longer than 63 differ. */
static uint32_t distance(const char *a, const char *b) {
  uint32_t row[64];
  const size_t n_a = strlen(a), n_b = strlen(b);
  if (n_a > 63 || n_b > 63)
    return UINT32_MAX;
  for (size_t j = 0; j <= n_b; ++j)
    row[j] = (uint32_t)j;
  for (size_t i = 1; i <= n_a; ++i) {
    uint32_t corner = row[0];
    row[0] = (uint32_t)i;
    for (size_t j = 1; j <= n_b; ++j) {
      const uint32_t change = corner + (a[i - 1] == b[j - 1] ? 0 : 1);
      const uint32_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
      corner = row[j];
      row[j] = change < other ? change : other;
    }
  }
  return row[n_b];
}

/* The listed attribute that `name` is probably meant for; NULL: none is near. */
static const opi_attr_rule *nearest(const opi_attr_rule *attrs, const opi_node *node,
                                    const char *name) {
  const opi_attr_rule *best = NULL;
  uint32_t least = strlen(name) < 4 ? 2 : 3;
  for (const opi_attr_rule *rule = attrs; rule->name != NULL; ++rule) {
    const uint32_t d = opi_attr_in_version(rule, node->version) ? distance(rule->name, name) : 99;
    if (d < least)
      best = rule;
    least = d < least ? d : least;
  }
  return best;
}

/* "2", "'up'", "[1, 2, ...]" */
static void value_text(const opipe_attr *attr, char *text, size_t room) {
  const uint32_t n = entries_of(attr), most = 6;
  size_t used = 0;
  if (attr->kind == OPIPE_ATTR_TENSOR || attr->kind == OPI_ATTR_GRAPH ||
      strcmp(opi_attr_kind_name(attr->kind), "?") == 0) {
    (void)snprintf(text, room, "a %s",
                   attr->kind == OPIPE_ATTR_TENSOR ? "tensor" : "graph or list");
    return;
  }
  text[0] = '\0';
  for (uint32_t i = 0; i <= n && used < room; ++i) {
    const char *lead = i == 0 && is_list(attr->kind) ? "[" : i > 0 && i < n ? ", " : "";
    int wrote = 0;
    if (i == n || i == most) {
      wrote = snprintf(text + used, room - used, "%s%s",
                       i < n    ? ", ..."
                       : n == 0 ? "["
                                : "",
                       is_list(attr->kind) ? "]" : "");
      i = n;
    } else if (attr->kind == OPIPE_ATTR_STRING || attr->kind == OPIPE_ATTR_STRINGS) {
      wrote = snprintf(text + used, room - used, "%s'%.40s'", lead, text_at(attr, i));
    } else if (attr->kind == OPIPE_ATTR_INT) {
      wrote = snprintf(text + used, room - used, "%" PRId64, attr->i);
    } else {
      wrote = snprintf(text + used, room - used, "%s%.9g", lead, number_at(attr, i));
    }
    used += wrote > 0 ? (size_t)wrote : 0;
  }
}

/* The values that a rule honours, for people. */
static void honoured_text(const opi_attr_rule *rule, char *text, size_t room) {
  if (rule->honours == OPI_HONOURS_RANGE && rule->low == rule->high)
    (void)snprintf(text, room, "only %.10g is supported", rule->low);
  else if (rule->honours == OPI_HONOURS_RANGE)
    (void)snprintf(text, room, "%.10g to %.10g are supported", rule->low, rule->high);
  else if (rule->honours == OPI_HONOURS_TEXTS)
    (void)snprintf(text, room, "supported: %s", rule->texts);
  else if (rule->has_preset)
    (void)snprintf(text, room, "only %.10g is supported", rule->preset);
  else
    (void)snprintf(text, room, "no value is supported");
}

/* An attribute that no rule of this version lists. */
static opipe_status check_unlisted(const opi_attr_rule *attrs, const opi_node *node,
                                   const opipe_attr *attr, opipe_error *err) {
  char value[120], known[200] = "";
  size_t used = 0;
  const opi_attr_rule *meant = nearest(attrs, node, attr->name);
  if (meant != NULL && is_preset(meant, attr))
    return OPIPE_OK;
  value_text(attr, value, sizeof(value));
  for (const opi_attr_rule *rule = attrs; rule->name != NULL && used < sizeof(known); ++rule) {
    if (rule->honours == OPI_HONOURS_NOTHING || !opi_attr_in_version(rule, node->version))
      continue;
    const int wrote =
        snprintf(known + used, sizeof(known) - used, "%s%s", used == 0 ? "" : ", ", rule->name);
    used += wrote > 0 ? (size_t)wrote : 0;
  }
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "node '%.100s' (%.60s): attribute '%.60s' (%s) is not known in version %" PRIu32
                  "%s%s%s; known: %s",
                  node->name, node->op, attr->name, value, node->version,
                  meant != NULL ? ", perhaps '" : "", meant != NULL ? meant->name : "",
                  meant != NULL ? "' is meant" : "", used != 0 ? known : "none");
}

static opipe_status check_attr(const opi_attr_rule *attrs, const opi_node *node,
                               const opipe_attr *attr, opipe_error *err) {
  char value[120], honoured[160];
  const opi_attr_rule *rule = opi_attr_rule_of(attrs, attr->name, attr->kind, node->version);
  if (rule == NULL)
    return check_unlisted(attrs, node, attr, err);
  if (rule->honours == OPI_HONOURS_NOTHING || is_preset(rule, attr))
    return OPIPE_OK;
  const bool is_input = rule->input != 0 && opi_node_in(node, rule->input) == OPIPE_NONE;
  if (!opi_attr_in_version(rule, node->version) && !is_input)
    return check_unlisted(attrs, node, attr, err);
  if (!kind_fits(rule, attr)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "node '%.100s' (%.60s): attribute '%.60s' is of type %s, %s is needed",
                    node->name, node->op, attr->name, opi_attr_kind_name(attr->kind),
                    opi_attr_kind_name(rule->kind));
  }
  if (is_honoured(rule, attr))
    return OPIPE_OK;
  value_text(attr, value, sizeof(value));
  honoured_text(rule, honoured, sizeof(honoured));
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "node '%.100s' (%.60s): attribute '%.60s' is %s, %s",
                  node->name, node->op, attr->name, value, honoured);
}

opipe_status opi_check_attrs(const opi_attr_rule *attrs, const opi_node *node, opipe_error *err) {
  for (uint32_t a = 0; attrs != NULL && a < node->n_attrs; ++a) {
    if (strncmp(node->attrs[a].name, "__", 2) != 0)
      OPI_TRY(check_attr(attrs, node, &node->attrs[a], err));
  }
  return OPIPE_OK;
}
