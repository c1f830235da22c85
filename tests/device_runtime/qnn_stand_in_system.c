/* The stand-in's binaries, and libQnnSystem, which describes them. qnn_stand_in.c says what they look like. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qnn_stand_in.h"

/* The number behind "name=" in STAND_IN, or `otherwise`; *more is what follows it. */
unsigned long stand_in_setting(const char *name, unsigned long otherwise, const char **more) {
    const char *all = getenv("STAND_IN"), *at = all == NULL ? NULL : strstr(all, name);
    if (at == NULL) return otherwise;
    char *end = NULL;
    unsigned long value = strtoul(at + strlen(name), &end, 10);
    if (more != NULL) *more = end;
    return value;
}

void stand_in_die(const char *what) {
    fprintf(stderr, "stand-in: %s\n", what);
    abort();
}

/* --- binaries ---------------------------------------------------------------------------------------------------- */

static bool parse_tensor(char *line, struct tensors *side, uint32_t type) {
    uint32_t i = side->count, id, dtype;
    float scale;
    int32_t offset;
    int used = 0;
    if (i == MAX_TENSORS || sscanf(line, "%99s %" SCNu32 " %" SCNx32 " %f %" SCNd32 " %" SCNu64 "%n", side->name[i],
                                   &id, &dtype, &scale, &offset, &side->number[i], &used) != 6)
        return false;
    qx_tensor_body *body = &side->tensor[i].body;
    side->tensor[i].version = 1;
    *body = (qx_tensor_body){.id = id, .name = side->name[i], .type = type, .dtype = dtype, .dims = side->dims[i]};
    body->quant.definition = QX_QUANT_DEFINED;
    body->quant.u.scale_offset.scale = scale;
    body->quant.u.scale_offset.offset = offset;
    for (line += used; sscanf(line, " %" SCNu32 "%n", &side->dims[i][body->rank], &used) == 1; line += used)
        body->rank++;
    side->count++;
    return true;
}

static bool parse_line(char *line, struct binary *binary) {
    struct graph *graph = binary->graph_count == 0 ? NULL : &binary->graph[binary->graph_count - 1u];
    qx_binary_body *body = &binary->described.body;
    if (strncmp(line, "binary ", 7) == 0)
        return sscanf(line + 7, "%99s %" SCNu32 " %" SCNu32 " %" SCNu32, binary->build, &body->soc, &binary->htp.arch,
                      &binary->described.version) == 4;
    if (strncmp(line, "graph ", 6) == 0 && binary->graph_count < MAX_GRAPHS) {
        graph = &binary->graph[binary->graph_count++];
        return sscanf(line + 6, "%99s %" SCNu32 " %" SCNu32 " %" SCNu64, graph->name, &graph->htp.vtcm_bytes,
                      &graph->htp.optimization, &graph->htp.spill_fill_bytes) == 4;
    }
    if (graph != NULL && strncmp(line, "in ", 3) == 0) return parse_tensor(line + 3, &graph->side[0], QX_TENSOR_WRITE);
    if (graph != NULL && strncmp(line, "out ", 4) == 0) return parse_tensor(line + 4, &graph->side[1], QX_TENSOR_READ);
    return false;
}

static void describe(struct binary *binary) {
    for (uint32_t i = 0; i < binary->graph_count; i++) {
        struct graph *graph = &binary->graph[i];
        binary->info[i] = (qx_graph_info){
            .version = QX_INFO_VERSION,
            .name = graph->name,
            .input_count = graph->side[0].count,
            .inputs = graph->side[0].tensor,
            .output_count = graph->side[1].count,
            .outputs = graph->side[1].tensor,
            .blob_bytes = sizeof graph->htp,
            .blob = &graph->htp,
        };
    }
    qx_binary_body *body = &binary->described.body;
    body->backend_id = QX_BACKEND_HTP;
    body->build_id = binary->build;
    body->graph_count = binary->graph_count;
    body->graphs = binary->info;
    body->metadata = &binary->htp;
    body->metadata_bytes = sizeof binary->htp;
}

struct binary *stand_in_parse(const void *data, uint64_t size) {
    struct binary *binary = calloc(1, sizeof *binary);
    char *text = calloc(1, size + 1u), *rest = NULL;
    if (binary == NULL || text == NULL) stand_in_die("no memory");
    memcpy(text, data, size);
    bool good = size > 0;
    for (char *line = strtok_r(text, "\n", &rest); good && line != NULL; line = strtok_r(NULL, "\n", &rest))
        good = parse_line(line, binary);
    free(text);
    if (good) describe(binary);
    if (good) return binary;
    free(binary);
    return NULL;
}

/* --- libQnnSystem ------------------------------------------------------------------------------------------------- */

static qx_error system_create(qx_handle *context) {
    *context = calloc(1, sizeof(struct binary *));
    return *context == NULL ? QX_NO_MEMORY : QX_OK;
}

static qx_error system_get_metadata(qx_handle context, const void *data, uint64_t size, const qx_binary **info) {
    struct binary **binary = context;
    *binary = stand_in_parse(data, size);
    if (*binary == NULL) return 30010;
    *info = &(*binary)->described;
    return QX_OK;
}

static qx_error system_free(qx_handle context) {
    free(*(struct binary **)context);
    free(context);
    return QX_OK;
}

qx_error QnnSystemInterface_getProviders(const qx_system_provider ***providers, uint32_t *count);
qx_error QnnSystemInterface_getProviders(const qx_system_provider ***providers, uint32_t *count) {
    static qx_system_provider provider = {
        .name = "STAND_IN_SYSTEM",
        .context_create = system_create,
        .get_metadata = system_get_metadata,
        .context_free = system_free,
    };
    static const qx_system_provider *list[] = {&provider};
    const char *minor = ".15";
    provider.version.major = (uint32_t)stand_in_setting("system=", 1, &minor);
    provider.version.minor = (uint32_t)strtoul(minor + 1, NULL, 10);
    *providers = list;
    *count = 1;
    return QX_OK;
}
