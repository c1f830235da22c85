#define _POSIX_C_SOURCE 200809L

#include "link.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote_error.h"

#define LIBRARY "libcdsprpc.so"
#define STACK_BYTES (256 << 10) /* as of the other threads that compute, pool_qurt.c; the default is 16 KiB */
#define URI "file:///hexagon-v%u-libhvdc_skel.so?hvdc_skel_handle_invoke&_modver=1.0&_dom=cdsp"

static_assert(sizeof HVDC_RUNTIME_VERSION <= HVDC_RPC_VERSION_BYTES, "hello has no room for the version");

static const uint32_t built_for[] = {HVDC_SKEL_ARCHITECTURES}; /* 73, 75, … */

/* Where the library's functions go: pointers' bits, since C has no cast from an object pointer to one of a function. */
static const struct {
    const char *name;
    size_t at;
} functions[] = {
    {"remote_handle64_open", offsetof(hvdc_rpc_link, open)},
    {"remote_handle64_invoke", offsetof(hvdc_rpc_link, invoke)},
    {"remote_handle64_close", offsetof(hvdc_rpc_link, close)},
    {"remote_session_control", offsetof(hvdc_rpc_link, session_control)},
    {"remote_handle_control", offsetof(hvdc_rpc_link, handle_control)},
    {"fastrpc_mmap", offsetof(hvdc_rpc_link, map)},
    {"fastrpc_munmap", offsetof(hvdc_rpc_link, unmap)},
};

static bool load(const char *name, hvdc_rpc_link *link, hvdc_failure *failure) {
    link->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (link->library == NULL)
        return hvdc_fail(
            failure, HVDC_FAILURE_DEVICE,
            "FastRPC's library %s cannot be loaded (%.200s): only a Snapdragon phone has it, in its vendor "
            "partition; elsewhere take --npu portable",
            name, dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(link->library, functions[i].name);
        if (symbol == NULL)
            return hvdc_fail(
                failure, HVDC_FAILURE_DEVICE,
                "FastRPC's library %s has no function %s: the phone's firmware is older than this program needs", name,
                functions[i].name);
        memcpy((char *)link + functions[i].at, (const void *)&symbol, sizeof symbol);
    }
    return true;
}

/* Which of the skels this DSP can execute. */
static bool ask_arch(const hvdc_rpc_link *link, uint32_t *arch, hvdc_failure *failure) {
    struct hvdc_remote_capability asked = {.domain = HVDC_REMOTE_CDSP, .attribute = HVDC_REMOTE_ARCH_VER};
    const int result = link->handle_control(HVDC_REMOTE_GET_DSP_INFO, &asked, sizeof asked);
    if (result != 0) return hvdc_remote_fail(failure, "say what it is", result);
    *arch = (asked.capability >> 4 & 15u) * 10u + (asked.capability & 15u);
    for (size_t i = 0; i < sizeof built_for / sizeof *built_for; i++)
        if (built_for[i] == *arch) return true;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                     "the DSP is a Hexagon v%u, and libhvdc_skel.so is built for v%u to v%u; take --npu portable",
                     (unsigned)*arch, (unsigned)built_for[0],
                     (unsigned)built_for[sizeof built_for / sizeof *built_for - 1u]);
}

static bool begin(const hvdc_dsp_options *options, hvdc_rpc_link *link, hvdc_failure *failure) {
    struct hvdc_remote_unsigned_module unsigned_module = {.domain = HVDC_REMOTE_CDSP, .enable = 1};
    struct hvdc_remote_thread_parameters threads = {
        .domain = HVDC_REMOTE_CDSP, .priority = -1, .stack_bytes = STACK_BYTES};
    uint32_t arch = 0;
    if (!load(options->library == NULL ? LIBRARY : options->library, link, failure)) return false;
    int result = link->session_control(HVDC_REMOTE_UNSIGNED_MODULE, &unsigned_module, sizeof unsigned_module);
    if (result != 0) return hvdc_remote_fail(failure, "grant an unsigned process", result);
    result = link->session_control(HVDC_REMOTE_THREAD_PARAMETERS, &threads, sizeof threads);
    if (result != 0) return hvdc_remote_fail(failure, "give its threads larger stacks", result);
    if (!ask_arch(link, &arch, failure)) return false;
    /* Read by FastRPC, in the call below. NOLINTNEXTLINE(concurrency-mt-unsafe) */
    if (options->skel_folder != NULL) (void)setenv("DSP_LIBRARY_PATH", options->skel_folder, 0);
    char uri[128];
    (void)snprintf(uri, sizeof uri, URI, (unsigned)arch);
    result = link->open(uri, &link->handle);
    if (result != 0) return hvdc_remote_fail(failure, "load the NPU executor", result);
    link->is_open = true;
    return true;
}

bool hvdc_link_open(const hvdc_dsp_options *options, hvdc_rpc_link *link, hvdc_failure *failure) {
    *link = (hvdc_rpc_link){.library = NULL};
    if (begin(options, link, failure)) return true;
    hvdc_link_close(link);
    return false;
}

void hvdc_link_close(hvdc_rpc_link *link) {
    if (link->is_open) (void)link->close(link->handle);
    if (link->library != NULL) (void)dlclose(link->library);
    *link = (hvdc_rpc_link){.library = NULL};
}

static enum hvdc_failure_kind kind_of(uint32_t kind) {
    return kind > HVDC_FAILURE_FILE ? HVDC_FAILURE_DEVICE : (enum hvdc_failure_kind)kind;
}

bool hvdc_link_call(hvdc_rpc_link *link, uint32_t method, void *in, void *out, const hvdc_remote_arg *buffers,
                    hvdc_failure *failure) {
    static const uint32_t abi = HVDC_RPC_ABI;
    const hvdc_rpc_shape *shape = hvdc_rpc_shape_of(method);
    char sentence[HVDC_RPC_SENTENCE_BYTES] = "";
    hvdc_remote_arg args[HVDC_RPC_ARGS_MAX];
    uint32_t kind;
    if (link->is_lost)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the session on the DSP was lost in a call before: start again");
    memcpy(in, &abi, sizeof abi);
    (void)hvdc_rpc_arguments(shape, in, out, buffers, sentence, args);
    const int result = link->invoke(link->handle, hvdc_rpc_scalars(method), args);
    if (result != 0) {
        char doing[32];
        link->is_lost = hvdc_remote_is_lost(result);
        (void)snprintf(doing, sizeof doing, "answer to %s", shape->name);
        return hvdc_remote_fail(failure, doing, result);
    }
    memcpy(&kind, out, sizeof kind);
    sentence[sizeof sentence - 1u] = 0;
    return kind == HVDC_FAILURE_NONE ||
           hvdc_fail(failure, kind_of(kind), "%s", sentence[0] == 0 ? "the DSP refuses, and says no reason" : sentence);
}
