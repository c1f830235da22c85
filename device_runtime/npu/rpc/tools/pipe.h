/* Marshalled calls through a stream, for a stand-in of FastRPC whose DSP is another process. All integers are those of
 * both machines: little-endian.
 *
 *   question   hvdc_pipe_call, hvdc_pipe_bytes of each buffer in, then out, bytes of those in
 *   answer     hvdc_pipe_answer, bytes of those out if the result is 0 */
#ifndef HVDC_RPC_PIPE_H
#define HVDC_RPC_PIPE_H

#include <stdint.h>

#define HVDC_PIPE_MAGIC 0x43505248u /* "HRPC" */
#define HVDC_PIPE_BYTES_MAX (UINT32_C(1) << 28)

typedef struct hvdc_pipe_call {
    uint32_t magic, scalars;
    uint64_t handle; /* of the session; of HVDC_REMOTE_CLOSE: what is closed */
} hvdc_pipe_call;

typedef uint32_t hvdc_pipe_bytes;

typedef struct hvdc_pipe_answer {
    uint32_t magic;
    int32_t result;
    uint64_t handle; /* of HVDC_REMOTE_OPEN */
} hvdc_pipe_answer;

#endif
