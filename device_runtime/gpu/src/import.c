#include "import.h"

#include <stdio.h>

static bool has_khr(const hvdc_device *d) {
    return hvdc_device_has(d, "cl_khr_external_memory_dma_buf") && d->cl.clCreateBufferWithProperties != NULL &&
           d->cl.clEnqueueAcquireExternalMemObjectsKHR != NULL && d->cl.clEnqueueReleaseExternalMemObjectsKHR != NULL;
}

static bool make_khr(hvdc_device *d, const hvdc_pages *pages, cl_mem_flags access, cl_mem *memory, cl_int *code) {
    const cl_mem_properties properties[] = {CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR, (cl_mem_properties)pages->fd, 0};
    *memory = d->cl.clCreateBufferWithProperties(d->context, properties, access, (size_t)pages->bytes, NULL, code);
    if (*code == CL_SUCCESS) {
        *code = d->cl.clEnqueueAcquireExternalMemObjectsKHR(d->queue, 1, memory, 0, NULL, NULL);
    }
    return *code == CL_SUCCESS;
}

static bool make_qcom(hvdc_device *d, const hvdc_import *import, const hvdc_pages *pages, cl_mem_flags access,
                      cl_mem *memory, cl_int *code) {
    const cl_mem_flags flags = access | CL_MEM_USE_HOST_PTR | CL_MEM_EXT_HOST_PTR_QCOM;
    hvdc_cl_mem_dmabuf_host_ptr dmabuf = {{HVDC_CL_MEM_DMABUF_HOST_PTR_QCOM, import->policy}, pages->fd, pages->data};
    cl_mem_ion_host_ptr ion = {{CL_MEM_ION_HOST_PTR_QCOM, import->policy}, pages->fd, pages->data};
    hvdc_cl_mem_ahardwarebuffer_host_ptr ahb = {{HVDC_CL_MEM_ANDROID_AHARDWAREBUFFER_HOST_PTR_QCOM, import->policy},
                                                pages->hardware_buffer};
    void *object = import->way == HVDC_GPU_IMPORT_QCOM_DMABUF ? (void *)&dmabuf
                   : import->way == HVDC_GPU_IMPORT_QCOM_ION  ? (void *)&ion
                                                              : (void *)&ahb;
    *memory = d->cl.clCreateBuffer(d->context, flags, (size_t)pages->bytes, object, code);
    return *code == CL_SUCCESS;
}

static bool make_arm(hvdc_device *d, const hvdc_pages *pages, cl_mem_flags access, cl_mem *memory, cl_int *code) {
    const cl_import_properties_arm properties[] = {CL_IMPORT_TYPE_ARM, CL_IMPORT_TYPE_DMA_BUF_ARM, 0};
    int fd = pages->fd; /* the interface wants its address */
    *memory = d->cl.clImportMemoryARM(d->context, access, properties, &fd, (size_t)pages->bytes, code);
    return *code == CL_SUCCESS;
}

bool hvdc_import_is_whole(const hvdc_import *import) { return import->way < HVDC_GPU_IMPORT_HOST_POINTER; }

bool hvdc_import_make(hvdc_device *d, const hvdc_import *import, const hvdc_pages *pages, bool writable, cl_mem *memory,
                      hvdc_failure *failure) {
    const cl_mem_flags access = writable ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    cl_int code = CL_SUCCESS;
    bool good = false;
    *memory = NULL;
    switch (import->way) {
        case HVDC_GPU_IMPORT_KHR_DMA_BUF: good = make_khr(d, pages, access, memory, &code); break;
        case HVDC_GPU_IMPORT_QCOM_DMABUF:
        case HVDC_GPU_IMPORT_QCOM_ION:
        case HVDC_GPU_IMPORT_QCOM_AHB: good = make_qcom(d, import, pages, access, memory, &code); break;
        case HVDC_GPU_IMPORT_ARM_DMA_BUF: good = make_arm(d, pages, access, memory, &code); break;
        case HVDC_GPU_IMPORT_HOST_POINTER:
            *memory = d->cl.clCreateBuffer(d->context, access | CL_MEM_USE_HOST_PTR, (size_t)pages->bytes, pages->data,
                                           &code);
            good = code == CL_SUCCESS;
            break;
        case HVDC_GPU_IMPORT_ANY:
        case HVDC_GPU_IMPORT_COPY: break;
    }
    if (!good) {
        char what[96];
        (void)snprintf(what, sizeof what, "to import %llu bytes as %s", (unsigned long long)pages->bytes,
                       hvdc_gpu_import_name(import->way));
        if (*memory != NULL) {
            d->cl.clReleaseMemObject(*memory);
            *memory = NULL;
        }
        return hvdc_opencl_fail(failure, code, what);
    }
    return true;
}

void hvdc_import_release(hvdc_device *d, const hvdc_import *import, cl_mem memory) {
    if (memory == NULL) {
        return;
    }
    if (import->way == HVDC_GPU_IMPORT_KHR_DMA_BUF) {
        d->cl.clEnqueueReleaseExternalMemObjectsKHR(d->queue, 1, &memory, 0, NULL, NULL);
    }
    d->cl.clReleaseMemObject(memory);
}

bool hvdc_import_is_possible(const hvdc_device *d, enum hvdc_gpu_import way, const hvdc_pages *pages) {
    switch (way) {
        case HVDC_GPU_IMPORT_KHR_DMA_BUF: return pages->fd >= 0 && has_khr(d);
        case HVDC_GPU_IMPORT_QCOM_DMABUF: return pages->fd >= 0 && hvdc_device_has(d, "cl_qcom_dmabuf_host_ptr");
        case HVDC_GPU_IMPORT_QCOM_ION: return pages->fd >= 0 && hvdc_device_has(d, "cl_qcom_ion_host_ptr");
        case HVDC_GPU_IMPORT_QCOM_AHB:
            return pages->hardware_buffer != NULL && hvdc_device_has(d, "cl_qcom_android_ahardwarebuffer_host_ptr");
        case HVDC_GPU_IMPORT_ARM_DMA_BUF:
            return pages->fd >= 0 && hvdc_device_has(d, "cl_arm_import_memory_dma_buf") &&
                   d->cl.clImportMemoryARM != NULL;
        case HVDC_GPU_IMPORT_HOST_POINTER: return pages->data != NULL;
        case HVDC_GPU_IMPORT_ANY:
        case HVDC_GPU_IMPORT_COPY: break;
    }
    return false;
}
