#include "skel.h"

#include <string.h>

#include "session.h"
#include "skel_lock.h"

/* A process of a client has one of these; more are for tests. */
#define SESSIONS 4u
#define PLACE_BITS 8u

/* All of it, and whatever calls do, is for one call at a time. */
static hvdc_rpc_session sessions[SESSIONS];

static uint64_t handle_of(uint32_t place) { return (uint64_t)sessions[place].generation << PLACE_BITS | (place + 1u); }

static hvdc_rpc_session *session_of(uint64_t handle) {
    for (uint32_t place = 0; place < SESSIONS; place++)
        if (sessions[place].open && handle_of(place) == handle) return &sessions[place];
    return NULL;
}

static int open_session(uint64_t *handle) {
    for (uint32_t place = 0; place < SESSIONS; place++) {
        if (sessions[place].open) continue;
        hvdc_session_begin(&sessions[place]);
        *handle = handle_of(place);
        return HVDC_AEE_SUCCESS;
    }
    return hvdc_remote_result(HVDC_AEE_OUT_OF_HANDLES);
}

static int close_session(uint64_t handle) {
    hvdc_rpc_session *session = session_of(handle);
    if (session == NULL) return hvdc_remote_result(HVDC_AEE_NO_SUCH_HANDLE);
    hvdc_session_end(session);
    return HVDC_AEE_SUCCESS;
}

static int invoke_open(hvdc_remote_arg *args) {
    uint32_t bytes;
    const hvdc_remote_arg *uri = args + 1;
    if (args[0].buffer.data == NULL || args[0].buffer.bytes < sizeof bytes || uri->buffer.data == NULL)
        return hvdc_remote_result(HVDC_AEE_BAD_PARAMETER);
    memcpy(&bytes, args[0].buffer.data, sizeof bytes);
    if (bytes == 0 || bytes > uri->buffer.bytes || ((const char *)uri->buffer.data)[bytes - 1u] != 0)
        return hvdc_remote_result(HVDC_AEE_BAD_PARAMETER);
    return open_session(&args[2].handle);
}

typedef bool serve(hvdc_rpc_session *session, const hvdc_rpc_parts *parts, hvdc_failure *failure);

/* Records may lie anywhere in memory. */
#define SERVE(name) \
    static bool serve_##name(hvdc_rpc_session *session, const hvdc_rpc_parts *parts, hvdc_failure *failure) { \
        hvdc_rpc_##name##_in in; \
        hvdc_rpc_##name##_out out; \
        memcpy(&in, parts->in, sizeof in); \
        memset(&out, 0, sizeof out); \
        const bool good = hvdc_session_##name(session, &in, &out, parts, failure); \
        out.kind = good ? HVDC_FAILURE_NONE : (uint32_t)failure->kind; \
        memcpy(parts->out, &out, sizeof out); \
        return good; \
    }
HVDC_RPC_METHODS(SERVE)
#undef SERVE

static serve *const serves[] = {
#define ENTRY(name) serve_##name,
    HVDC_RPC_METHODS(ENTRY)
#undef ENTRY
};

static int invoke(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args) {
    hvdc_rpc_parts parts;
    if (scalars == HVDC_REMOTE_OPEN && args != NULL) return invoke_open(args);
    if (scalars == HVDC_REMOTE_CLOSE && args != NULL) return close_session(args[0].handle);
    hvdc_rpc_session *session = session_of(handle);
    if (session == NULL) return hvdc_remote_result(HVDC_AEE_NO_SUCH_HANDLE);
    const uint32_t malformed = hvdc_rpc_take_apart(scalars, args, &parts);
    if (malformed != HVDC_AEE_SUCCESS) return hvdc_remote_result(malformed);
    const uint32_t method = HVDC_REMOTE_METHOD(scalars) - HVDC_RPC_FIRST;
    if (method >= sizeof serves / sizeof *serves) return hvdc_remote_result(HVDC_AEE_UNSUPPORTED);
    uint32_t abi;
    memcpy(&abi, parts.in, sizeof abi);
    if (abi != HVDC_RPC_ABI) return hvdc_remote_result(HVDC_AEE_VERSION);
    memset(parts.sentence, 0, HVDC_RPC_SENTENCE_BYTES);
    for (uint32_t i = 0; i < parts.shape->taken; i++)
        memset(parts.taken[i].buffer.data, 0, parts.taken[i].buffer.bytes);
    hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
    if (!serves[method](session, &parts, &failure)) memcpy(parts.sentence, failure.message, sizeof failure.message);
    return HVDC_AEE_SUCCESS;
}

int hvdc_open(const char *uri, uint64_t *handle) {
    (void)uri;
    hvdc_skel_lock();
    const int result = open_session(handle);
    hvdc_skel_unlock();
    return result;
}

int hvdc_close(uint64_t handle) {
    hvdc_skel_lock();
    const int result = close_session(handle);
    hvdc_skel_unlock();
    return result;
}

int hvdc_skel_handle_invoke(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args) {
    hvdc_skel_lock();
    const int result = invoke(handle, scalars, args);
    hvdc_skel_unlock();
    return result;
}
