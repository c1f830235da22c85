/* FastRPC as both ends of a call see it, in declarations of our own. Source: inc/remote.h and inc/AEEStdErr.h of
 * qualcomm/fastrpc; what open and close look like at the DSP's end: skels that Qualcomm's interface compiler made and
 * others have published. */
#ifndef HVDC_RPC_REMOTE_H
#define HVDC_RPC_REMOTE_H

#include <stddef.h>
#include <stdint.h>

/* 16 bytes on a 64-bit CPU, 8 on the DSP: FastRPC translates. */
typedef union hvdc_remote_arg {
    struct {
        void *data;
        size_t bytes;
    } buffer;
    uint64_t handle;
} hvdc_remote_arg;

/* What a call consists of: attributes, method, buffers in, buffers out, handles in, handles out. */
#define HVDC_REMOTE_SCALARS(attributes, method, in, out, handles_in, handles_out) \
    (((uint32_t)(attributes)&7u) << 29 | ((uint32_t)(method)&31u) << 24 | ((uint32_t)(in)&255u) << 16 | \
     ((uint32_t)(out)&255u) << 8 | ((uint32_t)(handles_in)&15u) << 4 | ((uint32_t)(handles_out)&15u))
#define HVDC_REMOTE_METHOD(scalars) ((scalars) >> 24 & 31u)
#define HVDC_REMOTE_IN(scalars) ((scalars) >> 16 & 255u)
#define HVDC_REMOTE_OUT(scalars) ((scalars) >> 8 & 255u)
#define HVDC_REMOTE_HANDLES(scalars) (((scalars) >> 4 & 15u) + ((scalars)&15u))

/* What the DSP's shell calls in a skel when a handle is opened and closed: [bytes of the URI][URI] to a handle, and a
 * handle alone. */
#define HVDC_REMOTE_OPEN HVDC_REMOTE_SCALARS(0, 0, 2, 0, 0, 1)
#define HVDC_REMOTE_CLOSE HVDC_REMOTE_SCALARS(0, 1, 0, 0, 1, 0)

/* REMOTE(code, name, what it means to whom reads it, what to do). Codes of the DSP have an offset. */
#define HVDC_REMOTE_DSP_OFFSET 0x80000400u
#if defined(__hexagon__)
#define HVDC_REMOTE_OFFSET HVDC_REMOTE_DSP_OFFSET
#else
#define HVDC_REMOTE_OFFSET 0u
#endif

enum {
    HVDC_AEE_SUCCESS = 0,
    HVDC_AEE_FAILED = 0x01,
    HVDC_AEE_NO_MEMORY = 0x02,
    HVDC_AEE_VERSION = 0x04,
    HVDC_AEE_UNABLE_TO_LOAD = 0x06,
    HVDC_AEE_BAD_STATE = 0x0d,
    HVDC_AEE_BAD_PARAMETER = 0x0e,
    HVDC_AEE_UNSUPPORTED = 0x14,
    HVDC_AEE_PRIVILEGE = 0x15,
    HVDC_AEE_NOT_ALLOWED = 0x2b,
    HVDC_AEE_INVALID_HANDLE = 0x2c,
    HVDC_AEE_OUT_OF_HANDLES = 0x2d,
    HVDC_AEE_CPU_EXCEPTION = 0x30,
    HVDC_AEE_INVALID_SIGNATURE = 0x38,
    HVDC_AEE_INVALID_DOMAIN = 0x39,
    HVDC_AEE_INVALID_DEVICE = 0x3b,
    HVDC_AEE_NO_SUCH_MODULE = 0x3e,
    HVDC_AEE_NO_SUCH_PROCESS = 0x41,
    HVDC_AEE_NO_SUCH_SYMBOL = 0x42,
    HVDC_AEE_NO_SUCH_FILE = 0x45,
    HVDC_AEE_NO_SUCH_HANDLE = 0x46,
    HVDC_AEE_BAD_DOMAIN = 0x4b,
    HVDC_AEE_BAD_ELF = 0x52,
    HVDC_AEE_FILE_OPEN = 0x57,
    HVDC_AEE_MAP = 0x65,
    HVDC_AEE_CONNECTION_REFUSED = 0x72,
    HVDC_AEE_UNSIGNED_MODULE = 0x81,
    HVDC_AEE_INVALID_HASH = 0x82,
    HVDC_AEE_NO_SESSION = 0x8a,
    HVDC_AEE_RPC = 0x200,
    HVDC_AEE_NO_SUCH_NAME = 39,
    HVDC_AEE_CONNECTION_RESET = 104,
};

/* A skel's answer. */
static inline int hvdc_remote_result(uint32_t code) { return (int)(HVDC_REMOTE_OFFSET + code); }

/* remote_session_control, remote_handle_control, fastrpc_mmap */
#define HVDC_REMOTE_CDSP 3
#define HVDC_REMOTE_THREAD_PARAMETERS 1u /* FASTRPC_THREAD_PARAMS */
#define HVDC_REMOTE_UNSIGNED_MODULE 2u   /* DSPRPC_CONTROL_UNSIGNED_MODULE */
#define HVDC_REMOTE_GET_DSP_INFO 2u      /* DSPRPC_GET_DSP_INFO */
#define HVDC_REMOTE_ARCH_VER 6u          /* of enum remote_dsp_attributes; the answer's low byte is 0x79 for V79 */
#define HVDC_REMOTE_MAP_FD_DELAYED 3     /* FASTRPC_MAP_FD_DELAYED: the DSP maps it with HAP_mmap */

struct hvdc_remote_unsigned_module {
    int domain, enable;
};

/* Of the DSP's threads that execute calls; -1: as it is. */
struct hvdc_remote_thread_parameters {
    int domain, priority, stack_bytes;
};

struct hvdc_remote_capability {
    uint32_t domain, attribute, capability;
};

#endif
