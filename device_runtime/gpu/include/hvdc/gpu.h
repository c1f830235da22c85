/* The engine of the GPU: OpenCL, INT8 GEMMs on the artifact's own pages. Its numbers are those of quant/paths/gpu.py.
 *
 * OpenCL is loaded when an engine opens. An engine keeps the hidden state of one video, keys and values of self-attention
 * and of the text for every block and expert, and scratch for `max_rows` tokens: its memory grows with the number of
 * tokens, not with its square. */
#ifndef HVDC_GPU_H
#define HVDC_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/engine.h"
#include "hvdc/failure.h"
#include "hvdc/partner.h"
#include "hvdc/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How four INT8 products are summed: see kernels/dot.cl. */
enum hvdc_gpu_dot {
    HVDC_GPU_DOT_ANY = 0, /* the first of the following that compiles and gives the right values */
    HVDC_GPU_DOT_KHR,
    HVDC_GPU_DOT_QCOM,
    HVDC_GPU_DOT_NVIDIA,
    HVDC_GPU_DOT_PLAIN
};

/* How the device sees pages that another process filled: in the order in which they are tried. */
enum hvdc_gpu_import {
    HVDC_GPU_IMPORT_ANY = 0,
    HVDC_GPU_IMPORT_KHR_DMA_BUF,  /* cl_khr_external_memory_dma_buf */
    HVDC_GPU_IMPORT_QCOM_DMABUF,  /* cl_qcom_dmabuf_host_ptr */
    HVDC_GPU_IMPORT_QCOM_ION,     /* cl_qcom_ion_host_ptr */
    HVDC_GPU_IMPORT_QCOM_AHB,     /* cl_qcom_android_ahardwarebuffer_host_ptr */
    HVDC_GPU_IMPORT_ARM_DMA_BUF,  /* cl_arm_import_memory_dma_buf */
    HVDC_GPU_IMPORT_HOST_POINTER, /* CL_MEM_USE_HOST_PTR */
    HVDC_GPU_IMPORT_COPY          /* none of these: weights are copied, and count in memory_bytes */
};

/* Shared memory of the same kind as the weights', but writable, by which ways of importing are judged: at least one page
 * at `data`; its descriptor or -1; its AHardwareBuffer or NULL. */
typedef struct hvdc_gpu_probe {
    void *data;
    uint64_t bytes;
    int fd;
    void *hardware_buffer;
} hvdc_gpu_probe;

/* Zeros mean: choose. Everything that is pointed at outlives the engine. */
typedef struct hvdc_gpu_options {
    uint32_t grid[3];            /* tokens: frames, rows, columns; all 0: the artifact's own */
    const char *library;         /* file of the OpenCL library */
    const char *platform;        /* its index, or a part of its name */
    const char *device;          /* the same, within the platforms that fit; NULL: the first GPU, or what there is */
    const char *cache_directory; /* of compiled programs and tuning results; NULL: nothing is kept */
    enum hvdc_gpu_dot dot;
    bool profile;        /* wait for each launch, so that hvdc_gpu_profile can tell which kernel took how long */
    bool emulate_dot;    /* for tests: C in the place of the instruction of `dot` */
    bool as_gpu;         /* for tests: take a CPU for a GPU, so that its kernels' shapes are those of one */
    uint32_t gemm_shape; /* for tests: only this shape of the GEMM, counted from 1 */
    enum hvdc_gpu_import import;   /* only this way */
    uint64_t max_buffer_bytes;     /* of one buffer; 0: what the device allows, below 1 GiB */
    uint32_t max_rows;             /* tokens that one launch computes, a multiple of 32; 0: 1024 */
    const hvdc_gpu_probe *probe;   /* while the engine opens; NULL: descriptors are not imported */
    void *const *hardware_buffers; /* AHardwareBuffer of data file i; NULL: none */
} hvdc_gpu_options;

/* What was chosen. */
typedef struct hvdc_gpu_description {
    char platform[64], device[128], driver[64];
    enum hvdc_gpu_dot dot;
    enum hvdc_gpu_import import;
    char gemm[64];              /* the GEMM's shape, as options of the compiler */
    uint32_t programs_compiled; /* from source; the others came from the cache */
    uint32_t attention_rows;    /* query rows whose scores exist at once */
    uint64_t largest_buffer_bytes;
    uint64_t imported_bytes; /* pages seen through imports */
    uint64_t copied_bytes;   /* weights copied instead; memory_bytes holds them */
} hvdc_gpu_description;

/* Opens an engine; `options` may be NULL. An artifact without activation scales is refused. On failure *engine is NULL. */
bool hvdc_gpu_open(const hvdc_weights *weights, const hvdc_gpu_options *options, hvdc_engine **engine,
                   hvdc_failure *failure);

/* What such an engine's memory_bytes will be, as far as it is known without a device: of one whose buffers may have 1 GiB
 * (or options->max_buffer_bytes), whose GEMM needs no scratch of its own (on CPUs it does, and, little, in the form
 * "qcom"), and which imports weights unless options->import is COPY. Allocates none of it. */
bool hvdc_gpu_forecast(const hvdc_artifact *artifact, const hvdc_gpu_options *options, uint64_t *bytes,
                       hvdc_failure *failure);

/* A slice of a linear for an engine that computes the rest: exchange->input, quantised with the activation scale of its
 * step, to exchange->output. Of an engine that hvdc_gpu_open opened; it needs no text. Fails for a slice that is none of
 * the artifact, or does not fit the exchange. */
bool hvdc_gpu_multiply(hvdc_engine *engine, const hvdc_slice *slice, const hvdc_exchange *exchange,
                       hvdc_failure *failure);

/* Of an engine that hvdc_gpu_open opened; valid until it closes. */
const hvdc_gpu_description *hvdc_gpu_describe(const hvdc_engine *engine);

/* Of an engine that was opened with `profile`: what its kernels took, `index` from 0; false beyond the last. */
typedef struct hvdc_gpu_kernel {
    const char *name;
    double seconds;
    uint64_t launches;
} hvdc_gpu_kernel;
bool hvdc_gpu_profile(const hvdc_engine *engine, uint32_t index, hvdc_gpu_kernel *kernel);

/* "khr", "qcom", …; "host-pointer", … */
const char *hvdc_gpu_dot_name(enum hvdc_gpu_dot dot);
const char *hvdc_gpu_import_name(enum hvdc_gpu_import import);

#ifdef __cplusplus
}
#endif

#endif
