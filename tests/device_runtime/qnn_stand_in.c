/* A stand-in for QNN's two libraries. Its "context binaries" are text, written by qnn_stand_in.py, which also
 * computes what its graphs compute. It follows the interface where tests need it, and is stricter than the real
 * library, which takes nearly everything: a tensor of a wrong size, a handle that is not one, or something freed too
 * early or never is an error here, or the end of the process.
 *
 *   binary BUILD SOC ARCH INFO_VERSION
 *   graph NAME VTCM_BYTES OPTIMISATION SPILL_FILL_BYTES
 *   in|out NAME ID DTYPE SCALE OFFSET NUMBER DIMENSIONS…
 *
 * Element j of an output: (NUMBER + 5 j + the sum over inputs of NUMBER * input[j mod its elements]) mod 2^bits.
 *
 * STAND_IN, of the environment, is how it differs: "core=2.15 context=5005 …", see stand_in_setting. */
#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "qnn_stand_in.h"

#define MAX_HANDLES 64u

/* Registered memory: a mapping of its own of the descriptor, as a driver has one. */
struct memory {
    void *data;
    uint64_t bytes;
    const void *context;
};

static qx_log_callback logger;
static unsigned live_contexts, live_backends, live_devices;
static struct memory memories[MAX_HANDLES];
static int backend_token, device_token, log_token;

static void report(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (logger != NULL) logger(format, QX_LOG_ERROR, 0, arguments);
    va_end(arguments);
}

static uint64_t elements(const qx_tensor_body *body) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < body->rank; i++) count *= body->dims[i];
    return count;
}

static uint64_t bytes(const qx_tensor_body *body) { return elements(body) * (body->dtype == QX_UFIXED8 ? 1u : 2u); }

/* --- libQnnHtp: everything but execution -------------------------------------------------------------------------- */

static qx_error log_create(qx_log_callback callback, uint32_t most, qx_handle *log) {
    (void)most;
    logger = callback;
    *log = &log_token;
    return QX_OK;
}

static qx_error log_free(qx_handle log) {
    if (log != &log_token || live_backends != 0 || live_devices != 0) stand_in_die("the log is freed before what logs");
    logger = NULL;
    return QX_OK;
}

static qx_error backend_create(qx_handle log, const void *const *config, qx_handle *backend) {
    (void)log, (void)config;
    *backend = &backend_token;
    if (stand_in_setting("backend=", QX_OK, NULL) != QX_OK) return stand_in_setting("backend=", QX_OK, NULL);
    live_backends++;
    return QX_OK;
}

static qx_error backend_get_build_id(const char **id) {
    static char build[MAX_NAME];
    const char *more = ".51.0.260929181845";
    unsigned long major = stand_in_setting("build=v", 2, &more);
    snprintf(build, sizeof build, "v%lu%.*s", major, (int)strcspn(more, " "), more);
    *id = build;
    return QX_OK;
}

static qx_error backend_free(qx_handle backend) {
    if (backend != &backend_token || live_contexts != 0 || live_devices != 0)
        stand_in_die("the backend is freed too early");
    live_backends--;
    return QX_OK;
}

/* "device=E": refused with error E, "any=E": refused without a SoC. */
static qx_error device_create(qx_handle log, const qx_device_config *const *config, qx_handle *device) {
    (void)log;
    *device = &device_token;
    qx_error error = stand_in_setting("device=", config == NULL ? stand_in_setting("any=", QX_OK, NULL) : QX_OK, NULL);
    if (error != QX_OK) return error;
    if (config != NULL && (((const qx_htp_device *)config[0]->value)->u.soc != 69 ||
                           ((const qx_htp_device *)config[1]->value)->u.arch.arch != 79 || config[2] != NULL))
        return 14001;
    live_devices++;
    return QX_OK;
}

static qx_error device_free(qx_handle device) {
    if (device != &device_token) stand_in_die("no device");
    live_devices--;
    return QX_OK;
}

/* "context=E": refused; "contexts=N": no more than N at a time. What is handed out of a refusal is no handle. */
static qx_error context_from_binary(qx_handle backend, qx_handle device, const void *const *config, const void *data,
                                    uint64_t size, qx_handle *context, qx_handle profile) {
    (void)config, (void)profile;
    if (backend != &backend_token || device != &device_token) stand_in_die("no backend or no device");
    *context = &backend_token;
    qx_error error = stand_in_setting("context=", QX_OK, NULL);
    if (error == QX_OK && live_contexts >= stand_in_setting("contexts=", 64, NULL)) error = QX_NO_MEMORY;
    if (error != QX_OK) {
        report("Failed to find available PD for %u contexts\n", live_contexts + 1u);
        return error;
    }
    *context = stand_in_parse(data, size);
    if (*context == NULL) return 5005;
    live_contexts++;
    return QX_OK;
}

static qx_error context_free(qx_handle context, qx_handle profile) {
    (void)profile;
    for (unsigned i = 0; i < MAX_HANDLES; i++)
        if (memories[i].context == context) stand_in_die("memory is registered in a context that is freed");
    live_contexts--;
    free(context);
    return QX_OK;
}

static qx_error graph_retrieve(qx_handle context, const char *name, qx_handle *graph) {
    struct binary *binary = context;
    for (uint32_t i = 0; i < binary->graph_count; i++)
        if (strcmp(binary->graph[i].name, name) == 0 && stand_in_setting("retrieve=", QX_OK, NULL) == QX_OK) {
            *graph = &binary->graph[i];
            return QX_OK;
        }
    return 6003;
}

static qx_error error_get_message(qx_error error, const char **message) {
    *message = "a message of the stand-in";
    return error == 30010 ? 1u : QX_OK; /* the real one has no text for some */
}

/* "memory=N": N registrations are taken, all others refused. */
static qx_error memory_register(qx_handle context, const qx_memory *memory, uint32_t count, qx_handle *handles) {
    static unsigned taken;
    if (taken >= stand_in_setting("memory=", 0, NULL)) return QX_NOT_SUPPORTED;
    if (count != 1 || memory->type != QX_REGISTER_ION || memory->u.ion_fd < 0) stand_in_die("memory that is none");
    const qx_tensor_body body = {.rank = memory->rank, .dims = memory->dims, .dtype = memory->dtype};
    for (unsigned i = 0; i < MAX_HANDLES; i++)
        if (memories[i].data == NULL) {
            void *data = mmap(NULL, bytes(&body), PROT_READ | PROT_WRITE, MAP_SHARED, memory->u.ion_fd, 0);
            if (data == MAP_FAILED) return 8000;
            memories[i] = (struct memory){data, bytes(&body), context};
            *handles = &memories[i];
            taken++;
            return QX_OK;
        }
    return 8000;
}

static qx_error memory_deregister(const qx_handle *handles, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        struct memory *memory = handles[i];
        if (memory < memories || memory >= memories + MAX_HANDLES || memory->data == NULL)
            stand_in_die("no registered memory");
        munmap(memory->data, memory->bytes);
        *memory = (struct memory){NULL, 0, NULL};
    }
    return QX_OK;
}

/* --- execution ---------------------------------------------------------------------------------------------------- */

/* The memory of a side's tensors, in the binary's order; false if one of them is not what the binary says.
 * STAND_IN_TRACE names a file that gets a line for each: graph, tensor, number of the memory. */
static bool find_data(const struct graph *graph, const struct tensors *side, const qx_tensor *given, uint32_t count,
                      void **data) {
    const char *trace = getenv("STAND_IN_TRACE");
    if (count != side->count) return false;
    for (uint32_t i = 0; i < count; i++) {
        const qx_tensor_body *due = &side->tensor[i].body, *found = NULL;
        for (uint32_t g = 0; g < count; g++)
            if (given[g].body.id == due->id) found = &given[g].body;
        if (found == NULL || found->rank != due->rank || found->dtype != due->dtype || found->type != due->type ||
            memcmp(found->dims, due->dims, due->rank * sizeof *due->dims) != 0)
            return false;
        const struct memory *memory = found->memory.handle;
        bool registered = found->memory_type == QX_MEMORY_HANDLE;
        data[i] = registered ? memory->data : found->memory.raw.data;
        if (data[i] == NULL || (registered ? memory->bytes : found->memory.raw.bytes) != bytes(due)) return false;
        FILE *file = trace == NULL ? NULL : fopen(trace, "a");
        if (file != NULL) fprintf(file, "%s %s %p\n", graph->name, due->name, found->memory.handle);
        if (file != NULL) fclose(file);
    }
    return true;
}

static uint64_t code_at(const qx_tensor_body *body, const void *data, uint64_t j) {
    j %= elements(body);
    return body->dtype == QX_UFIXED8 ? ((const uint8_t *)data)[j] : ((const uint16_t *)data)[j];
}

/* "execute=E after=N": graph number N refuses with error E. */
static qx_error graph_execute(qx_handle handle, const qx_tensor *inputs, uint32_t input_count, qx_tensor *outputs,
                              uint32_t output_count, qx_handle profile, qx_handle signal) {
    static unsigned long executed;
    const struct graph *graph = handle;
    const struct tensors *reads = &graph->side[0], *writes = &graph->side[1];
    void *from[MAX_TENSORS], *to[MAX_TENSORS];
    (void)profile, (void)signal;
    if (executed++ >= stand_in_setting("after=", 0, NULL) && stand_in_setting("execute=", QX_OK, NULL) != QX_OK) {
        report("the DSP is gone\n");
        return stand_in_setting("execute=", QX_OK, NULL);
    }
    if (!find_data(graph, reads, inputs, input_count, from) || !find_data(graph, writes, outputs, output_count, to)) {
        report("tensors that do not fit graph %s\n", graph->name);
        return 6004;
    }
    for (uint32_t o = 0; o < writes->count; o++) {
        const qx_tensor_body *body = &writes->tensor[o].body;
        for (uint64_t j = 0; j < elements(body); j++) {
            uint64_t sum = writes->number[o] + 5u * j;
            for (uint32_t i = 0; i < reads->count; i++)
                sum += reads->number[i] * code_at(&reads->tensor[i].body, from[i], j);
            if (body->dtype == QX_UFIXED8)
                ((uint8_t *)to[o])[j] = (uint8_t)sum;
            else
                ((uint16_t *)to[o])[j] = (uint16_t)sum;
        }
    }
    return QX_OK;
}

/* As the real one does when it is loaded. */
__attribute__((constructor)) static void greet(void) { puts("# LIBNATIVE of the stand-in"); }

/* "core=MAJOR.MINOR", "id=BACKEND". */
qx_error QnnInterface_getProviders(const qx_provider ***providers, uint32_t *count);
qx_error QnnInterface_getProviders(const qx_provider ***providers, uint32_t *count) {
    static qx_provider provider = {
        .name = "STAND_IN",
        .api =
            {
                .backend_create = backend_create,
                .backend_get_build_id = backend_get_build_id,
                .backend_free = backend_free,
                .context_from_binary = context_from_binary,
                .context_free = context_free,
                .graph_retrieve = graph_retrieve,
                .graph_execute = graph_execute,
                .log_create = log_create,
                .log_free = log_free,
                .memory_register = memory_register,
                .memory_deregister = memory_deregister,
                .device_create = device_create,
                .device_free = device_free,
                .error_get_message = error_get_message,
            },
    };
    static const qx_provider *list[] = {&provider};
    const char *minor = ".40";
    provider.backend_id = (uint32_t)stand_in_setting("id=", QX_BACKEND_HTP, NULL);
    provider.core.major = (uint32_t)stand_in_setting("core=", QX_CORE_MAJOR, &minor);
    provider.core.minor = (uint32_t)strtoul(minor + 1, NULL, 10);
    *providers = list;
    *count = 1;
    return QX_OK;
}
