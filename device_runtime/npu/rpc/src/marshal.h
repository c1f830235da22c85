/* Calls as FastRPC's arguments, for both ends. */
#ifndef HVDC_RPC_MARSHAL_H
#define HVDC_RPC_MARSHAL_H

#include <stdbool.h>

#include "interface.h"
#include "remote.h"

#define HVDC_RPC_BUFFERS_MAX 2u /* of a method, given and taken, without the sentence */
#define HVDC_RPC_ARGS_MAX (HVDC_RPC_BUFFERS_MAX + 3u)

typedef struct hvdc_rpc_shape {
    const char *name;
    uint32_t in_bytes, out_bytes; /* of its records */
    uint32_t given, taken;        /* how many of its buffers */
    struct {
        const char *name;
        uint32_t element_bytes, least_bytes, most_bytes;
    } buffers[HVDC_RPC_BUFFERS_MAX + 1u]; /* those given first; the last is nothing */
} hvdc_rpc_shape;

/* NULL for what is no number of a method of ours. */
const hvdc_rpc_shape *hvdc_rpc_shape_of(uint32_t method);

uint32_t hvdc_rpc_scalars(uint32_t method);

/* The arguments of a call in their order; `buffers` are those of the method. Returns how many. */
uint32_t hvdc_rpc_arguments(const hvdc_rpc_shape *shape, const void *in, void *out, const hvdc_remote_arg *buffers,
                            char *sentence, hvdc_remote_arg args[HVDC_RPC_ARGS_MAX]);

/* The parts of a call that arrived, after everything that its sizes can be wrong in was checked. */
typedef struct hvdc_rpc_parts {
    const hvdc_rpc_shape *shape;
    const void *in;
    void *out;
    const hvdc_remote_arg *given, *taken;
    char *sentence; /* [HVDC_RPC_SENTENCE_BYTES] */
} hvdc_rpc_parts;

/* 0, or one of HVDC_AEE_…. */
uint32_t hvdc_rpc_take_apart(uint32_t scalars, const hvdc_remote_arg *args, hvdc_rpc_parts *parts);

#endif
