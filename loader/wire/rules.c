/* SPDX-License-Identifier: Apache-2.0 */
/* The structure of the format, one table per message, as far as the loader reads it. Other fields
 * (documentation, metadata, value_info, training_info, ...) are skipped: only their length is
 * checked and they are never unpacked. Numbers and names are the format's.
 */
#include "loader/wire/scan.h"
#include "onnx_model.pb-c.h"

#define ONE(number, kind, name) \
  { number, OPI_FIELD_##kind, 0, 0, 0, name }
#define MANY(number, kind, name) \
  { number, OPI_FIELD_##kind, 1, 0, 0, name }
#define SUB(number, child, name) \
  { number, OPI_FIELD_MESSAGE, 0, OPI_MSG_##child, 0, name }
#define SUBS(number, child, name) \
  { number, OPI_FIELD_MESSAGE, 1, OPI_MSG_##child, 0, name }
#define EITHER(number, kind, child, name) \
  { number, OPI_FIELD_##kind, 0, OPI_MSG_##child, 1, name }

static const opi_field_rule model[] = {
    ONE(1, INT, "ir_version"),
    ONE(2, TEXT, "producer_name"),
    ONE(3, TEXT, "producer_version"),
    SUB(7, GRAPH, "graph"),
    SUBS(8, OPSET, "opset_import"),
    SUBS(25, FUNCTION, "functions"),
    SUBS(26, CONFIGURATION, "configuration"),
};
static const opi_field_rule opset[] = {ONE(1, TEXT, "domain"), ONE(2, INT, "version")};
static const opi_field_rule configuration[] = {ONE(1, TEXT, "name"), ONE(2, INT, "num_devices")};
static const opi_field_rule node_configuration[] = {ONE(1, TEXT, "configuration_id"),
                                                    SUBS(2, SHARDING, "sharding_spec"),
                                                    ONE(3, INT, "pipeline_stage")};
static const opi_field_rule sharding[] = {ONE(1, TEXT, "tensor_name"), MANY(2, INTS, "device"),
                                          SUBS(3, DEVICE_GROUP, "index_to_device_group_map"),
                                          SUBS(4, SHARDED_DIM, "sharded_dim")};
static const opi_field_rule device_group[] = {ONE(1, INT, "key")};
static const opi_field_rule sharded_dim[] = {ONE(1, INT, "axis"),
                                             SUBS(2, SIMPLE_SHARDING, "simple_sharding")};
static const opi_field_rule simple_sharding[] = {ONE(1, INT, "dim_value"),
                                                 ONE(3, INT, "num_shards")};
static const opi_field_rule graph[] = {
    SUBS(1, NODE, "node"),          ONE(2, TEXT, "name"),
    SUBS(5, TENSOR, "initializer"), SUBS(11, VALUE_INFO, "input"),
    SUBS(12, VALUE_INFO, "output"), SUBS(15, SPARSE_TENSOR, "sparse_initializer"),
};
static const opi_field_rule node[] = {
    MANY(1, TEXT, "input"),
    MANY(2, TEXT, "output"),
    ONE(3, TEXT, "name"),
    ONE(4, TEXT, "op_type"),
    SUBS(5, ATTRIBUTE, "attribute"),
    ONE(7, TEXT, "domain"),
    ONE(8, TEXT, "overload"),
    SUBS(10, NODE_CONFIGURATION, "device_configurations"),
};
static const opi_field_rule attribute[] = {
    ONE(1, TEXT, "name"),
    ONE(2, FIXED32, "f"),
    ONE(3, INT, "i"),
    ONE(4, BYTES, "s"),
    SUB(5, TENSOR, "t"),
    SUB(6, GRAPH, "g"),
    MANY(7, FLOATS, "floats"),
    MANY(8, INTS, "ints"),
    MANY(9, BYTES, "strings"),
    SUBS(10, TENSOR, "tensors"),
    SUBS(11, GRAPH, "graphs"),
    SUB(14, TYPE, "tp"),
    SUBS(15, TYPE, "type_protos"),
    ONE(20, INT, "type"),
    ONE(21, TEXT, "ref_attr_name"),
    SUB(22, SPARSE_TENSOR, "sparse_tensor"),
    SUBS(23, SPARSE_TENSOR, "sparse_tensors"),
};
static const opi_field_rule tensor[] = {
    MANY(1, INTS, "dims"),
    ONE(2, INT, "data_type"),
    MANY(4, CONTENT, "float_data"),
    MANY(5, CONTENT, "int32_data"),
    MANY(6, CONTENT, "string_data"),
    MANY(7, CONTENT, "int64_data"),
    ONE(8, TEXT, "name"),
    ONE(9, CONTENT, "raw_data"),
    MANY(10, CONTENT, "double_data"),
    MANY(11, CONTENT, "uint64_data"),
    SUBS(13, ENTRY, "external_data"),
    ONE(14, INT, "data_location"),
};
static const opi_field_rule sparse_tensor[] = {SUB(1, TENSOR, "values"), SUB(2, TENSOR, "indices"),
                                               MANY(3, INTS, "dims")};
static const opi_field_rule entry[] = {ONE(1, TEXT, "key"), ONE(2, TEXT, "value")};
static const opi_field_rule value_info[] = {ONE(1, TEXT, "name"), SUB(2, TYPE, "type")};
static const opi_field_rule type[] = {
    EITHER(1, MESSAGE, TYPE_TENSOR, "tensor_type"),
    EITHER(4, MESSAGE, TYPE_SEQUENCE, "sequence_type"),
    EITHER(5, MESSAGE, TYPE_MAP, "map_type"),
    EITHER(8, MESSAGE, TYPE_TENSOR, "sparse_tensor_type"),
    EITHER(9, MESSAGE, TYPE_OPTIONAL, "optional_type"),
};
static const opi_field_rule type_tensor[] = {ONE(1, INT, "elem_type"), SUB(2, SHAPE, "shape")};
static const opi_field_rule type_of_elements[] = {SUB(1, TYPE, "elem_type")};
static const opi_field_rule type_map[] = {SUB(2, TYPE, "value_type")};
static const opi_field_rule shape[] = {SUBS(1, DIMENSION, "dim")};
static const opi_field_rule dimension[] = {EITHER(1, INT, TYPE, "dim_value"),
                                           EITHER(2, TEXT, TYPE, "dim_param")};
static const opi_field_rule function[] = {
    ONE(1, TEXT, "name"),      MANY(4, TEXT, "input"),
    MANY(5, TEXT, "output"),   MANY(6, TEXT, "attribute"),
    SUBS(7, NODE, "node"),     SUBS(9, OPSET, "opset_import"),
    ONE(10, TEXT, "domain"),   SUBS(11, ATTRIBUTE, "attribute_proto"),
    ONE(13, TEXT, "overload"),
};

#define RULES(message, fields, type) \
  [OPI_MSG_##message] = {#message, fields, OPI_COUNT(fields), (uint32_t)sizeof(type)}

static const opi_message_rule rules[OPI_MSG_COUNT] = {
    RULES(MODEL, model, OpiOnnx__ModelProto),
    RULES(OPSET, opset, OpiOnnx__OperatorSetIdProto),
    RULES(CONFIGURATION, configuration, OpiOnnx__DeviceConfigurationProto),
    RULES(NODE_CONFIGURATION, node_configuration, OpiOnnx__NodeDeviceConfigurationProto),
    RULES(SHARDING, sharding, OpiOnnx__ShardingSpecProto),
    RULES(DEVICE_GROUP, device_group, OpiOnnx__IntIntListEntryProto),
    RULES(SHARDED_DIM, sharded_dim, OpiOnnx__ShardedDimProto),
    RULES(SIMPLE_SHARDING, simple_sharding, OpiOnnx__SimpleShardedDimProto),
    RULES(GRAPH, graph, OpiOnnx__GraphProto),
    RULES(NODE, node, OpiOnnx__NodeProto),
    RULES(ATTRIBUTE, attribute, OpiOnnx__AttributeProto),
    RULES(TENSOR, tensor, OpiOnnx__TensorProto),
    RULES(SPARSE_TENSOR, sparse_tensor, OpiOnnx__SparseTensorProto),
    RULES(ENTRY, entry, OpiOnnx__StringStringEntryProto),
    RULES(VALUE_INFO, value_info, OpiOnnx__ValueInfoProto),
    RULES(TYPE, type, OpiOnnx__TypeProto),
    RULES(TYPE_TENSOR, type_tensor, OpiOnnx__TypeProto__Tensor),
    RULES(TYPE_SEQUENCE, type_of_elements, OpiOnnx__TypeProto__Sequence),
    RULES(TYPE_MAP, type_map, OpiOnnx__TypeProto__Map),
    RULES(TYPE_OPTIONAL, type_of_elements, OpiOnnx__TypeProto__Optional),
    RULES(SHAPE, shape, OpiOnnx__TensorShapeProto),
    RULES(DIMENSION, dimension, OpiOnnx__TensorShapeProto__Dimension),
    RULES(FUNCTION, function, OpiOnnx__FunctionProto),
};

const opi_message_rule *opi_message_rules(opi_message message) {
  return &rules[message];
}

const opi_field_rule *opi_message_field(opi_message message, uint32_t number) {
  const opi_message_rule *rule = &rules[message];
  for (uint32_t i = 0; i < rule->n_fields; ++i) {
    if (rule->fields[i].number == number)
      return &rule->fields[i];
  }
  return NULL;
}
