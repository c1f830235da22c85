#include "marshal.h"

#define BUFFER_COUNT(name, element, least, most) +1u
#define BUFFER_SHAPE(name, element, least, most) {#name, (uint32_t)(element), (uint32_t)(least), (uint32_t)(most)},

static const hvdc_rpc_shape shapes[] = {
#define SHAPE(name) \
    {#name, \
     sizeof(hvdc_rpc_##name##_in), \
     sizeof(hvdc_rpc_##name##_out), \
     0u HVDC_RPC_GIVEN_##name(BUFFER_COUNT), \
     0u HVDC_RPC_TAKEN_##name(BUFFER_COUNT), \
     {HVDC_RPC_GIVEN_##name(BUFFER_SHAPE) HVDC_RPC_TAKEN_##name(BUFFER_SHAPE){NULL, 0, 0, 0}}},
    HVDC_RPC_METHODS(SHAPE)
#undef SHAPE
};

const hvdc_rpc_shape *hvdc_rpc_shape_of(uint32_t method) {
    return method < HVDC_RPC_FIRST || method >= HVDC_RPC_END ? NULL : &shapes[method - HVDC_RPC_FIRST];
}

uint32_t hvdc_rpc_scalars(uint32_t method) {
    const hvdc_rpc_shape *shape = hvdc_rpc_shape_of(method);
    return HVDC_REMOTE_SCALARS(0, method, 1u + shape->given, 2u + shape->taken, 0, 0);
}

static hvdc_remote_arg bytes_at(const void *data, size_t bytes) {
    return (hvdc_remote_arg){.buffer = {.data = (void *)(uintptr_t)data, .bytes = bytes}};
}

uint32_t hvdc_rpc_arguments(const hvdc_rpc_shape *shape, const void *in, void *out, const hvdc_remote_arg *buffers,
                            char *sentence, hvdc_remote_arg args[HVDC_RPC_ARGS_MAX]) {
    uint32_t n = 0;
    args[n++] = bytes_at(in, shape->in_bytes);
    for (uint32_t i = 0; i < shape->given; i++) args[n++] = buffers[i];
    args[n++] = bytes_at(out, shape->out_bytes);
    for (uint32_t i = 0; i < shape->taken; i++) args[n++] = buffers[shape->given + i];
    args[n++] = bytes_at(sentence, HVDC_RPC_SENTENCE_BYTES);
    return n;
}

static bool is_buffer(const hvdc_remote_arg *arg, size_t bytes) {
    return arg->buffer.data != NULL && arg->buffer.bytes == bytes;
}

static bool are_buffers(const hvdc_rpc_shape *shape, uint32_t first, uint32_t count, const hvdc_remote_arg *args) {
    for (uint32_t i = 0; i < count; i++) {
        const size_t bytes = args[i].buffer.bytes;
        if (args[i].buffer.data == NULL || bytes < shape->buffers[first + i].least_bytes ||
            bytes > shape->buffers[first + i].most_bytes || bytes % shape->buffers[first + i].element_bytes != 0)
            return false;
    }
    return true;
}

uint32_t hvdc_rpc_take_apart(uint32_t scalars, const hvdc_remote_arg *args, hvdc_rpc_parts *parts) {
    const uint32_t method = HVDC_REMOTE_METHOD(scalars);
    const hvdc_rpc_shape *shape = hvdc_rpc_shape_of(method);
    if (shape == NULL) return HVDC_AEE_UNSUPPORTED;
    if (scalars != hvdc_rpc_scalars(method) || args == NULL) return HVDC_AEE_BAD_PARAMETER;
    const hvdc_remote_arg *given = args + 1, *out = given + shape->given, *taken = out + 1;
    const hvdc_remote_arg *sentence = taken + shape->taken;
    if (!is_buffer(args, shape->in_bytes) || !is_buffer(out, shape->out_bytes) ||
        !is_buffer(sentence, HVDC_RPC_SENTENCE_BYTES) || !are_buffers(shape, 0, shape->given, given) ||
        !are_buffers(shape, shape->given, shape->taken, taken))
        return HVDC_AEE_BAD_PARAMETER;
    *parts = (hvdc_rpc_parts){.shape = shape,
                              .in = args->buffer.data,
                              .out = out->buffer.data,
                              .given = given,
                              .taken = taken,
                              .sentence = sentence->buffer.data};
    return HVDC_AEE_SUCCESS;
}
