/* One client's state on the DSP, and what each method does with it. */
#ifndef HVDC_RPC_SESSION_H
#define HVDC_RPC_SESSION_H

#include "dsp.h"
#include "marshal.h"

typedef struct hvdc_rpc_region {
    uint8_t *data; /* NULL: free */
    uint64_t bytes;
    bool writable;
    uint32_t users; /* files of the artifact, rotations */
} hvdc_rpc_region;

typedef struct hvdc_rpc_session {
    bool open, greeted, powered;
    uint32_t generation; /* of its place in the table, so that a handle that was closed is none */
    uint8_t index_sha256[HVDC_RPC_SHA256_BYTES];
    hvdc_rpc_region regions[HVDC_RPC_REGIONS];
    void *index;
    uint32_t *file_regions; /* [files] */
    uint32_t files;
    hvdc_artifact *artifact;
    hvdc_dsp_units units; /* held, and the matrix unit open on them, as long as there is an engine */
    uint32_t rotations_region;
    uint32_t tokens;
    hvdc_engine *engine;
} hvdc_rpc_session;

void hvdc_session_begin(hvdc_rpc_session *session);
/* Engine, artifact, regions, power: everything is given back. */
void hvdc_session_end(hvdc_rpc_session *session);

/* False, with a sentence, where the engine or the session refuses. */
#define HVDC_SESSION_DECLARE(name) \
    bool hvdc_session_##name(hvdc_rpc_session *session, const hvdc_rpc_##name##_in *in, hvdc_rpc_##name##_out *out, \
                             const hvdc_rpc_parts *parts, hvdc_failure *failure);
HVDC_RPC_METHODS(HVDC_SESSION_DECLARE)
#undef HVDC_SESSION_DECLARE

#endif
