#include "remote_error.h"

#include <stddef.h>

#include "remote.h"

#define SKEL_REMEDY \
    "put the libhvdc_skel.so of the artifact's runtime/ folder, built for this DSP, where DSP_LIBRARY_PATH points"
#define SIGNATURE_REMEDY \
    "unsigned modules run in an unsigned process only, which this phone's firmware does not grant: use another " \
    "phone, " \
    "or --npu portable"
#define OFFLINE_REMEDY "restart the phone, and look at `adb logcat` and `dmesg` for the DSP's crash"
#define CALLER_REMEDY "take the CPU's program and the skel from one build"
#define LOST_REMEDY \
    "its session is over, with all memory in it: start again; `adb logcat` may hold why (a fault of the code, or the " \
    "system needed its memory)"

static const struct {
    uint32_t code;
    bool is_lost;
    const char *meaning, *remedy;
} codes[] = {
    {HVDC_AEE_FAILED, false, "a general failure", "look at `adb logcat`"},
    {HVDC_AEE_NO_MEMORY, false, "it has no memory left",
     "close other programs that use the DSP, or make a smaller clip"},
    {HVDC_AEE_VERSION, false, "the skel is of another version of the interface", CALLER_REMEDY},
    {HVDC_AEE_UNABLE_TO_LOAD, false, "the skel cannot be loaded: a symbol or an architecture that this DSP lacks",
     SKEL_REMEDY},
    {HVDC_AEE_BAD_STATE, true, "its process is not in a state to answer", LOST_REMEDY},
    {HVDC_AEE_BAD_PARAMETER, false, "it takes the call for malformed", CALLER_REMEDY},
    {HVDC_AEE_UNSUPPORTED, false, "it has no such method", CALLER_REMEDY},
    {HVDC_AEE_PRIVILEGE, false, "this process may not use the DSP", SIGNATURE_REMEDY},
    {HVDC_AEE_NOT_ALLOWED, false, "this process may not use the DSP", SIGNATURE_REMEDY},
    {HVDC_AEE_INVALID_HANDLE, true, "it does not know the session", LOST_REMEDY},
    {HVDC_AEE_OUT_OF_HANDLES, false, "it has as many sessions as it takes", "close the others"},
    {HVDC_AEE_CPU_EXCEPTION, true, "its process died of a fault", LOST_REMEDY},
    {HVDC_AEE_INVALID_SIGNATURE, false, "it refuses the skel's signature", SIGNATURE_REMEDY},
    {HVDC_AEE_INVALID_DOMAIN, false, "there is no compute DSP (domain cdsp) here",
     "a Snapdragon with a Hexagon NPU is needed; elsewhere take --npu portable"},
    {HVDC_AEE_INVALID_DEVICE, false, "its device cannot be opened by this program",
     "run it as adb's shell user or as an app whose manifest names libcdsprpc.so"},
    {HVDC_AEE_NO_SUCH_MODULE, false, "it finds no skel of ours", SKEL_REMEDY},
    {HVDC_AEE_NO_SUCH_PROCESS, true, "its process is gone", LOST_REMEDY},
    {HVDC_AEE_NO_SUCH_SYMBOL, false, "the skel lacks its entry", SKEL_REMEDY},
    {HVDC_AEE_NO_SUCH_FILE, false, "it finds no skel of ours", SKEL_REMEDY},
    {HVDC_AEE_NO_SUCH_HANDLE, true, "it does not know the session", LOST_REMEDY},
    {HVDC_AEE_BAD_DOMAIN, false, "there is no compute DSP (domain cdsp) here",
     "a Snapdragon with a Hexagon NPU is needed; elsewhere take --npu portable"},
    {HVDC_AEE_BAD_ELF, false, "the skel is no library that it can load", SKEL_REMEDY},
    {HVDC_AEE_FILE_OPEN, false,
     "a file or device cannot be opened: the skel is not found, or the DSP is not for this "
     "program",
     SKEL_REMEDY},
    {HVDC_AEE_MAP, false, "memory cannot be mapped", "a session maps 3.2 GiB at most: take a smaller clip"},
    {HVDC_AEE_CONNECTION_REFUSED, false, "it is offline", OFFLINE_REMEDY},
    {HVDC_AEE_UNSIGNED_MODULE, false, "it refuses an unsigned skel", SIGNATURE_REMEDY},
    {HVDC_AEE_INVALID_HASH, false, "it refuses the skel's signature", SIGNATURE_REMEDY},
    {HVDC_AEE_NO_SESSION, false, "it has no session left", "close other programs that use the DSP"},
    {HVDC_AEE_RPC, true, "FastRPC failed", LOST_REMEDY},
    {HVDC_AEE_NO_SUCH_NAME, true, "FastRPC does not know the session", LOST_REMEDY},
    {HVDC_AEE_CONNECTION_RESET, true, "the connection was reset: its process died, or the DSP restarted", LOST_REMEDY},
};

/* A code by both of its names; NULL for one that the table lacks. */
static size_t find(int result) {
    const uint32_t code = (uint32_t)result, plain = code - HVDC_REMOTE_DSP_OFFSET;
    size_t i = 0;
    while (i < sizeof codes / sizeof *codes && codes[i].code != code && codes[i].code != plain) i++;
    return i;
}

bool hvdc_remote_is_lost(int result) {
    const size_t i = find(result);
    return i < sizeof codes / sizeof *codes && codes[i].is_lost;
}

bool hvdc_remote_fail(hvdc_failure *failure, const char *doing, int result) {
    const size_t i = find(result);
    if (i == sizeof codes / sizeof *codes)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "the DSP does not %s: FastRPC's code 0x%x, which this program does not know; see "
                         "AEEStdErr.h, and `adb logcat`",
                         doing, (unsigned)result);
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the DSP does not %s: %s (0x%x); %s", doing, codes[i].meaning,
                     (unsigned)result, codes[i].remedy);
}
