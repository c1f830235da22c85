/* The part of QNN's C interface that loads and executes a context binary, in declarations of our own: no SDK header is
 * used. Written from the public documentation; sizes and offsets are asserted, and were exercised against QAIRT 2.51
 * (core API 2.40, System API 1.15). LP64 only. C11 and C++17.
 *
 * A table of functions only grows at its end, so this one may be read of any provider whose core API is 2.16 or a later
 * 2.x. Enums are 32 bits. An error is 64 bits, its code the low 16. */
#ifndef HVDC_QNN_ABI_H
#define HVDC_QNN_ABI_H

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QX_CORE_MAJOR 2u
#define QX_CORE_MINOR_LEAST 16u  /* the slots below exist */
#define QX_CORE_MINOR_BROKEN 33u /* of QAIRT 2.44, whose libQnnSystem has another layout */
#define QX_SYSTEM_MAJOR 1u
#define QX_SYSTEM_MINOR_LEAST 1u /* get_metadata exists */
#define QX_BACKEND_HTP 6u
#define QX_INFO_VERSION 3u /* of binaries and graphs; versions 1 and 2 are laid out differently */

#define QX_OK 0u
#define QX_NOT_SUPPORTED 1000u
#define QX_NO_MEMORY 1002u /* also: contexts that are loaded together need more than one process domain grants */

typedef uint64_t qx_error;
typedef void *qx_handle;
typedef void (*qx_unused)(void); /* a slot that is not called */

static inline unsigned qx_code(qx_error error) { return (unsigned)(error & 0xffffu); }

typedef struct qx_version {
    uint32_t major, minor, patch;
} qx_version;

/* --- tensors -------------------------------------------------------------------------------------------------- */

enum { QX_TENSOR_WRITE = 0, QX_TENSOR_READ = 1 }; /* by the application: an input, an output */
enum { QX_MEMORY_RAW = 0, QX_MEMORY_HANDLE = 1 };
enum { QX_QUANT_DEFINED = 1, QX_QUANT_SCALE_OFFSET = 0 };
enum { QX_UFIXED8 = 0x0408, QX_UFIXED16 = 0x0416 }; /* the low byte is bits, written as decimal digits */

typedef struct qx_quant { /* real = (stored + offset) * scale */
    uint32_t definition, encoding;
    union {
        struct {
            float scale;
            int32_t offset;
        } scale_offset;
        uint64_t widest[4];
    } u;
} qx_quant;
static_assert(sizeof(qx_quant) == 40, "qx_quant");

typedef struct qx_raw {
    void *data;
    uint32_t bytes;
} qx_raw;

/* Version 1 ends after `memory`, version 2 with `produced`; the stride is the same. */
typedef struct qx_tensor_body {
    uint32_t id; /* what the library matches by, alone */
    const char *name;
    uint32_t type, format, dtype;
    qx_quant quant;
    uint32_t rank;
    uint32_t *dims;
    uint32_t memory_type;
    union {
        qx_raw raw;
        qx_handle handle;
    } memory;
    uint8_t *dynamic_dims;
    uint32_t sparse[3];
    uint8_t produced;
} qx_tensor_body;
static_assert(offsetof(qx_tensor_body, quant) == 32, "quant");
static_assert(offsetof(qx_tensor_body, rank) == 72, "rank");
static_assert(offsetof(qx_tensor_body, dims) == 80, "dims");
static_assert(offsetof(qx_tensor_body, memory_type) == 88, "memory_type");
static_assert(offsetof(qx_tensor_body, memory) == 96, "memory");
static_assert(sizeof(qx_tensor_body) == 136, "qx_tensor_body");

typedef struct qx_tensor {
    uint32_t version;
    qx_tensor_body body;
} qx_tensor;
static_assert(sizeof(qx_tensor) == 144, "qx_tensor");

/* --- registered memory, devices, logging ------------------------------------------------------------------------ */

enum { QX_REGISTER_ION = 1 }; /* one descriptor for a tensor, on FastRPC of rpcmem */

typedef struct qx_memory {
    uint32_t rank;
    uint32_t *dims;
    const void *shape_config;
    uint32_t dtype, type;
    union {
        int32_t ion_fd;
        uint64_t widest[2];
    } u;
} qx_memory;
static_assert(sizeof(qx_memory) == 48 && offsetof(qx_memory, u) == 32, "qx_memory");

enum { QX_DEVICE_CUSTOM = 0, QX_HTP_SOC = 0, QX_HTP_ARCH = 1 };

typedef struct qx_htp_device {
    uint32_t option;
    union {
        uint32_t soc;
        struct {
            uint32_t device, arch;
        } arch;
        uint64_t widest;
    } u;
} qx_htp_device;
static_assert(sizeof(qx_htp_device) == 16 && offsetof(qx_htp_device, u) == 8, "qx_htp_device");

typedef struct qx_device_config {
    uint32_t option;
    void *value;
} qx_device_config;
static_assert(sizeof(qx_device_config) == 16, "qx_device_config");

enum { QX_LOG_ERROR = 1 };
typedef void (*qx_log_callback)(const char *format, uint32_t level, uint64_t timestamp, va_list arguments);

/* --- the backend ------------------------------------------------------------------------------------------------ */

typedef struct qx_api {
    qx_unused property_has_capability; /* 0 */
    qx_error (*backend_create)(qx_handle log, const void *const *config, qx_handle *backend);
    qx_unused backend_set_config, backend_get_api_version;
    qx_error (*backend_get_build_id)(const char **id); /* 4 */
    qx_unused backend_register_op_package, backend_get_supported_ops, backend_validate_op;
    qx_error (*backend_free)(qx_handle backend); /* 8 */
    qx_unused context_create, context_set_config, context_get_binary_size, context_get_binary;
    qx_error (*context_from_binary)(qx_handle backend, qx_handle device, const void *const *config, const void *binary,
                                    uint64_t bytes, qx_handle *context, qx_handle profile); /* 13 */
    qx_error (*context_free)(qx_handle context, qx_handle profile);
    qx_unused graph_create, graph_create_subgraph, graph_set_config, graph_add_node, graph_finalize;
    qx_error (*graph_retrieve)(qx_handle context, const char *name, qx_handle *graph); /* 20 */
    qx_error (*graph_execute)(qx_handle graph, const qx_tensor *inputs, uint32_t input_count, qx_tensor *outputs,
                              uint32_t output_count, qx_handle profile, qx_handle signal);
    qx_unused graph_execute_async, tensor_create_context, tensor_create_graph;
    qx_error (*log_create)(qx_log_callback callback, uint32_t most, qx_handle *log); /* 25 */
    qx_unused log_set_level;
    qx_error (*log_free)(qx_handle log);
    qx_unused profile[7]; /* 28 */
    qx_error (*memory_register)(qx_handle context, const qx_memory *memory, uint32_t count,
                                qx_handle *handles); /* 35 */
    qx_error (*memory_deregister)(const qx_handle *handles, uint32_t count);
    qx_unused device_get_platform_info, device_free_platform_info, device_get_infrastructure;
    qx_error (*device_create)(qx_handle log, const qx_device_config *const *config, qx_handle *device); /* 40 */
    qx_unused device_set_config, device_get_info;
    qx_error (*device_free)(qx_handle device); /* 43 */
    qx_unused signal[4];
    qx_error (*error_get_message)(qx_error error, const char **message); /* 48 */
    qx_unused error_verbose[2], graph_env[3], context_validate_binary, context_from_binary_with_signal;
} qx_api;
static_assert(sizeof(void *) == 8, "LP64 only");
static_assert(offsetof(qx_api, backend_free) == 8 * 8, "backend_free");
static_assert(offsetof(qx_api, context_from_binary) == 13 * 8, "context_from_binary");
static_assert(offsetof(qx_api, graph_retrieve) == 20 * 8, "graph_retrieve");
static_assert(offsetof(qx_api, log_create) == 25 * 8, "log_create");
static_assert(offsetof(qx_api, memory_register) == 35 * 8, "memory_register");
static_assert(offsetof(qx_api, device_create) == 40 * 8, "device_create");
static_assert(offsetof(qx_api, device_free) == 43 * 8, "device_free");
static_assert(offsetof(qx_api, error_get_message) == 48 * 8, "error_get_message");
static_assert(sizeof(qx_api) == 56 * 8, "qx_api");

typedef struct qx_provider {
    uint32_t backend_id;
    const char *name;
    qx_version core, backend;
    qx_api api;
} qx_provider;
static_assert(offsetof(qx_provider, core) == 16 && offsetof(qx_provider, api) == 40, "qx_provider");

#define QX_PROVIDERS "QnnInterface_getProviders"
typedef qx_error (*qx_get_providers)(const qx_provider ***providers, uint32_t *count);

/* --- what a binary says of itself ------------------------------------------------------------------------------- */

typedef struct qx_graph_info {
    uint32_t version;
    const char *name;
    uint32_t input_count;
    qx_tensor *inputs;
    uint32_t output_count;
    qx_tensor *outputs;
    uint32_t updatable_count;
    qx_tensor *updatable;
    uint32_t blob_bytes;
    void *blob; /* qx_htp_graph */
    uint32_t start, end;
} qx_graph_info;
static_assert(sizeof(qx_graph_info) == 88 && offsetof(qx_graph_info, blob) == 72, "qx_graph_info");

typedef struct qx_htp_graph {
    uint32_t version;
    uint64_t spill_fill_bytes;
    uint32_t vtcm_bytes, optimization;
    uint8_t dlbc;
    uint64_t hvx_threads;
} qx_htp_graph;
static_assert(sizeof(qx_htp_graph) == 40, "qx_htp_graph");

typedef struct qx_htp_context {
    uint32_t version, arch;
} qx_htp_context;

typedef struct qx_binary_body {
    uint32_t backend_id;
    const char *build_id;
    qx_version core, backend;
    const char *soc_name;
    qx_version blob;
    uint64_t blob_bytes;
    uint32_t context_tensor_count;
    qx_tensor *context_tensors;
    uint32_t graph_count;
    qx_graph_info *graphs;
    void *platform;
    uint32_t metadata_bytes;
    void *metadata; /* qx_htp_context */
    uint32_t soc;
} qx_binary_body;
static_assert(sizeof(qx_binary_body) == 136, "qx_binary_body");

typedef struct qx_binary {
    uint32_t version;
    qx_binary_body body;
} qx_binary;
static_assert(sizeof(qx_binary) == 144, "qx_binary");

typedef struct qx_system_provider {
    uint32_t backend_id;
    const char *name;
    qx_version version;
    qx_error (*context_create)(qx_handle *context);
    qx_unused get_binary_info;
    qx_error (*get_metadata)(qx_handle context, const void *binary, uint64_t bytes, const qx_binary **info);
    qx_error (*context_free)(qx_handle context);
} qx_system_provider;
static_assert(offsetof(qx_system_provider, context_create) == 32, "qx_system_provider");

#define QX_SYSTEM_PROVIDERS "QnnSystemInterface_getProviders"
typedef qx_error (*qx_get_system_providers)(const qx_system_provider ***providers, uint32_t *count);

#ifdef __cplusplus
}
#endif

#endif
