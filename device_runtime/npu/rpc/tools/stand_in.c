/* A stand-in of libcdsprpc.so, for machines without a DSP: FastRPC's functions, as far as hvdc calls them, over the
 * skel in this library, or, where HVDC_STAND_IN_DSP names a command, over that command's standard input and output.
 *
 * HVDC_STAND_IN_FAULT names what is wrong with this DSP: "offline", "unsigned", "no-domain", "stacks", "no-skel",
 * "version", "abi", "map", "deaf" (it reads and writes nothing of what it has mapped), "lost:N": in its Nth call after
 * the opening its process dies, "hangs:N": its Nth call of `run` never returns, "hangs-unmap": no call of `unmap` does,
 * or "vtcm:KIB": others hold so much of it. With HVDC_STAND_IN_UNIT engines in this process compute with the model of the matrix unit. HVDC_STAND_IN_ARCH is
 * its architecture, 79 unless it is set: it has the skel of that one alone. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dsp.h"
#include "marshal.h"
#include "skel.h"
#include "stand_in_pipe.h"

#define EXPORT __attribute__((visibility("default")))
#define MAPPED_MAX 256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of what follows: FastRPC may be called by many threads */
static int mapped[MAPPED_MAX], mapped_count;              /* descriptors */
static unsigned calls, runs;
static bool is_unsigned, has_stacks;

static const char *fault(void) {
    const char *name = getenv("HVDC_STAND_IN_FAULT");
    return name == NULL ? "" : name;
}

static bool has_fault(const char *name) { return strcmp(fault(), name) == 0; }

static const char *arch(void) {
    const char *name = getenv("HVDC_STAND_IN_ARCH");
    return name == NULL ? "79" : name;
}

static const char *command(void) { return getenv("HVDC_STAND_IN_DSP"); }

EXPORT int remote_session_control(uint32_t request, void *data, uint32_t bytes);
EXPORT int remote_handle_control(uint32_t request, void *data, uint32_t bytes);
EXPORT int remote_handle64_open(const char *name, uint64_t *handle);
EXPORT int remote_handle64_invoke(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args);
EXPORT int remote_handle64_close(uint64_t handle);
EXPORT int fastrpc_mmap(int domain, int fd, void *address, int offset, size_t bytes, int flags);
EXPORT int fastrpc_munmap(int domain, int fd, void *address, size_t bytes);

static int set_threads(const struct hvdc_remote_thread_parameters *threads, uint32_t bytes) {
    if (bytes != sizeof *threads || threads->domain != HVDC_REMOTE_CDSP || threads->priority != -1)
        return HVDC_AEE_BAD_PARAMETER;
    (void)pthread_mutex_lock(&mutex);
    has_stacks = threads->stack_bytes >= 65536;
    (void)pthread_mutex_unlock(&mutex);
    return has_fault("stacks") ? HVDC_AEE_UNSUPPORTED : 0;
}

int remote_session_control(uint32_t request, void *data, uint32_t bytes) {
    const struct hvdc_remote_unsigned_module *module = data;
    if (has_fault("offline")) return HVDC_AEE_CONNECTION_REFUSED;
    if (request == HVDC_REMOTE_THREAD_PARAMETERS) return set_threads(data, bytes);
    if (request != HVDC_REMOTE_UNSIGNED_MODULE || bytes != sizeof *module) return HVDC_AEE_BAD_PARAMETER;
    if (module->domain != HVDC_REMOTE_CDSP || has_fault("no-domain")) return HVDC_AEE_INVALID_DOMAIN;
    if (has_fault("unsigned")) return HVDC_AEE_PRIVILEGE;
    (void)pthread_mutex_lock(&mutex);
    is_unsigned = module->enable == 1;
    (void)pthread_mutex_unlock(&mutex);
    return 0;
}

int remote_handle_control(uint32_t request, void *data, uint32_t bytes) {
    struct hvdc_remote_capability *asked = data;
    if (request != HVDC_REMOTE_GET_DSP_INFO || bytes != sizeof *asked || asked->domain != HVDC_REMOTE_CDSP ||
        asked->attribute != HVDC_REMOTE_ARCH_VER)
        return HVDC_AEE_BAD_PARAMETER;
    asked->capability = 0x8c00u | (uint32_t)strtoul(arch(), NULL, 16); /* the low byte, above which others are set */
    return 0;
}

/* Whether the session may be opened at all. */
static bool begin(void) {
    (void)pthread_mutex_lock(&mutex);
    const bool begun = is_unsigned && has_stacks;
    calls = runs = 0;
    (void)pthread_mutex_unlock(&mutex);
    return begun;
}

/* The URI goes on to the skel as FastRPC does it. */
int remote_handle64_open(const char *name, uint64_t *handle) {
    char due[128];
    (void)snprintf(due, sizeof due,
                   "file:///hexagon-v%.2s-libhvdc_skel.so?hvdc_skel_handle_invoke&_modver=1.0&_dom=cdsp", arch());
    if (!begin()) return HVDC_AEE_UNSIGNED_MODULE;
    if (strcmp(name, due) != 0) return HVDC_AEE_NO_SUCH_MODULE;
    if (has_fault("no-skel")) return (int)(HVDC_REMOTE_DSP_OFFSET + HVDC_AEE_NO_SUCH_FILE);
    if (command() != NULL && !stand_in_pipe_start(command())) return HVDC_AEE_FAILED;
    uint32_t length = (uint32_t)strlen(name) + 1u;
    hvdc_remote_arg args[] = {
        {.buffer = {&length, sizeof length}}, {.buffer = {(void *)(uintptr_t)name, length}}, {.handle = 0}};
    const int result = command() != NULL ? stand_in_pipe_call(0, HVDC_REMOTE_OPEN, args)
                                         : hvdc_skel_handle_invoke(0, HVDC_REMOTE_OPEN, args);
    *handle = args[2].handle;
    return result;
}

/* "version", "abi": what another build would say. */
static int invoke_changed(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args) {
    hvdc_rpc_hello_in in;
    memcpy(&in, args[0].buffer.data, sizeof in);
    if (has_fault("version")) in.version[0] ^= 1u;
    if (has_fault("abi")) in.abi++;
    args[0].buffer.data = &in;
    return command() != NULL ? stand_in_pipe_call(handle, scalars, args)
                             : hvdc_skel_handle_invoke(handle, scalars, args);
}

int remote_handle64_invoke(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args) {
    const char *lost = strncmp(fault(), "lost:", 5) == 0 ? fault() + 5 : NULL;
    const char *hangs = strncmp(fault(), "hangs:", 6) == 0 ? fault() + 6 : NULL;
    (void)pthread_mutex_lock(&mutex);
    const unsigned call = ++calls, run = runs += HVDC_REMOTE_METHOD(scalars) == HVDC_RPC_run;
    (void)pthread_mutex_unlock(&mutex);
    while (hangs != NULL && run == strtoul(hangs, NULL, 10)) (void)pause();
    while (has_fault("hangs-unmap") && HVDC_REMOTE_METHOD(scalars) == HVDC_RPC_unmap) (void)pause();
    if (lost != NULL && call == strtoul(lost, NULL, 10)) {
        if (command() == NULL) return HVDC_AEE_CONNECTION_RESET;
        stand_in_pipe_kill();
    }
    if (HVDC_REMOTE_METHOD(scalars) == HVDC_RPC_invert && has_fault("deaf")) {
        memset(args[1].buffer.data, 0, args[1].buffer.bytes); /* done, it says */
        return 0;
    }
    if (HVDC_REMOTE_METHOD(scalars) == HVDC_RPC_hello) return invoke_changed(handle, scalars, args);
    return command() != NULL ? stand_in_pipe_call(handle, scalars, args)
                             : hvdc_skel_handle_invoke(handle, scalars, args);
}

int remote_handle64_close(uint64_t handle) {
    hvdc_remote_arg arg = {.handle = handle};
    if (command() == NULL) return hvdc_skel_handle_invoke(0, HVDC_REMOTE_CLOSE, &arg);
    const int result = stand_in_pipe_call(handle, HVDC_REMOTE_CLOSE, &arg);
    stand_in_pipe_kill();
    return result;
}

int fastrpc_mmap(int domain, int fd, void *address, int offset, size_t bytes, int flags) {
    if (domain != HVDC_REMOTE_CDSP || address == NULL || offset != 0 || bytes == 0 ||
        flags != HVDC_REMOTE_MAP_FD_DELAYED || fcntl(fd, F_GETFD) < 0)
        return HVDC_AEE_BAD_PARAMETER;
    if (has_fault("map")) return HVDC_AEE_MAP;
    (void)pthread_mutex_lock(&mutex);
    const bool there = mapped_count < MAPPED_MAX;
    if (there) mapped[mapped_count++] = fd;
    (void)pthread_mutex_unlock(&mutex);
    return there ? 0 : HVDC_AEE_BAD_PARAMETER;
}

int fastrpc_munmap(int domain, int fd, void *address, size_t bytes) {
    (void)address;
    bool found = false;
    (void)pthread_mutex_lock(&mutex);
    for (int i = 0; !found && domain == HVDC_REMOTE_CDSP && bytes != 0 && i < mapped_count; i++) {
        found = mapped[i] == fd;
        if (found) mapped[i] = mapped[--mapped_count];
    }
    (void)pthread_mutex_unlock(&mutex);
    if (found) return 0;
    (void)fprintf(stderr, "stand-in: descriptor %d is unmapped, which was never mapped\n", fd);
    return HVDC_AEE_MAP;
}

__attribute__((constructor)) static void set_up(void) {
    if (strncmp(fault(), "vtcm:", 5) == 0) hvdc_dsp_lack_vtcm((uint32_t)strtoul(fault() + 5, NULL, 10) << 10);
    if (getenv("HVDC_STAND_IN_UNIT") != NULL) hvdc_dsp_use_unit();
}

__attribute__((destructor)) static void look_for_leaks(void) {
    if (mapped_count != 0) (void)fprintf(stderr, "stand-in: %d descriptors are mapped still\n", mapped_count);
}
