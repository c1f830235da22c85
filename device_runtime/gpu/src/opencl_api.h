/* The part of OpenCL's C interface that the engine uses, declared here so that building needs no headers of a vendor.
 * Sources: Khronos' CL/cl.h and CL/cl_ext.h (3.0); the four constants and the struct of cl_qcom_dmabuf_host_ptr and
 * cl_qcom_android_ahardwarebuffer_host_ptr are from Qualcomm's cl_ext_qcom.h. A test compares values, sizes and
 * prototypes with Khronos' headers where those are installed. */
#ifndef HVDC_GPU_OPENCL_API_H
#define HVDC_GPU_OPENCL_API_H

#include <stddef.h>
#include <stdint.h>

#ifndef HVDC_OPENCL_SYSTEM_HEADERS

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef cl_uint cl_bool;
typedef cl_ulong cl_bitfield;
typedef cl_bitfield cl_mem_flags;
typedef cl_bitfield cl_device_type;
typedef cl_bitfield cl_command_queue_properties;
typedef cl_ulong cl_mem_properties;
typedef intptr_t cl_context_properties;
typedef intptr_t cl_import_properties_arm;
typedef cl_uint cl_platform_info;
typedef cl_uint cl_device_info;
typedef cl_uint cl_program_info;
typedef cl_uint cl_program_build_info;
typedef cl_uint cl_kernel_work_group_info;

typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_event *cl_event;

#define CL_CALLBACK

#define CL_SUCCESS 0
#define CL_DEVICE_NOT_FOUND (-1)
#define CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)
#define CL_OUT_OF_RESOURCES (-5)
#define CL_OUT_OF_HOST_MEMORY (-6)
#define CL_BUILD_PROGRAM_FAILURE (-11)
#define CL_INVALID_BUFFER_SIZE (-61)
#define CL_TRUE 1
#define CL_FALSE 0

#define CL_PLATFORM_NAME 0x0902
#define CL_DEVICE_TYPE_CPU (1 << 1)
#define CL_DEVICE_TYPE_GPU (1 << 2)
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFF
#define CL_DEVICE_TYPE 0x1000
#define CL_DEVICE_MAX_WORK_GROUP_SIZE 0x1004
#define CL_DEVICE_MAX_MEM_ALLOC_SIZE 0x1010
#define CL_DEVICE_NAME 0x102B
#define CL_DRIVER_VERSION 0x102D
#define CL_DEVICE_EXTENSIONS 0x1030
#define CL_MEM_READ_WRITE (1 << 0)
#define CL_MEM_READ_ONLY (1 << 2)
#define CL_MEM_USE_HOST_PTR (1 << 3)
#define CL_PROGRAM_BINARY_SIZES 0x1165
#define CL_PROGRAM_BINARIES 0x1166
#define CL_PROGRAM_BUILD_LOG 0x1183
#define CL_KERNEL_WORK_GROUP_SIZE 0x11B0

/* cl_qcom_ext_host_ptr, cl_qcom_ion_host_ptr */
#define CL_MEM_EXT_HOST_PTR_QCOM (1 << 29)
#define CL_MEM_HOST_UNCACHED_QCOM 0x40A4
#define CL_MEM_HOST_WRITEBACK_QCOM 0x40A5
#define CL_MEM_ION_HOST_PTR_QCOM 0x40A8
#define CL_MEM_HOST_IOCOHERENT_QCOM 0x40A9
typedef struct _cl_mem_ext_host_ptr {
    cl_uint allocation_type;
    cl_uint host_cache_policy;
} cl_mem_ext_host_ptr;
typedef struct _cl_mem_ion_host_ptr {
    cl_mem_ext_host_ptr ext_host_ptr;
    int ion_filedesc;
    void *ion_hostptr;
} cl_mem_ion_host_ptr;

/* cl_arm_import_memory, cl_khr_external_memory_dma_buf */
#define CL_IMPORT_TYPE_ARM 0x40B2
#define CL_IMPORT_TYPE_DMA_BUF_ARM 0x40B4
#define CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR 0x2067

#endif

/* In no header of Khronos. */
#define HVDC_CL_MEM_DMABUF_HOST_PTR_QCOM 0x411D
#define HVDC_CL_MEM_ANDROID_AHARDWAREBUFFER_HOST_PTR_QCOM 0x4119
typedef struct hvdc_cl_mem_dmabuf_host_ptr {
    cl_mem_ext_host_ptr ext_host_ptr;
    int dmabuf_filedesc;
    void *dmabuf_hostptr;
} hvdc_cl_mem_dmabuf_host_ptr;
typedef struct hvdc_cl_mem_ahardwarebuffer_host_ptr {
    cl_mem_ext_host_ptr ext_host_ptr;
    void *ahb_ptr;
} hvdc_cl_mem_ahardwarebuffer_host_ptr;

/* X(result, name, arguments): what every driver of OpenCL 1.2 has. */
#define HVDC_OPENCL_FUNCTIONS(X) \
    X(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *)) \
    X(cl_int, clGetPlatformInfo, (cl_platform_id, cl_platform_info, size_t, void *, size_t *)) \
    X(cl_int, clGetDeviceIDs, (cl_platform_id, cl_device_type, cl_uint, cl_device_id *, cl_uint *)) \
    X(cl_int, clGetDeviceInfo, (cl_device_id, cl_device_info, size_t, void *, size_t *)) \
    X(cl_context, clCreateContext, \
      (const cl_context_properties *, cl_uint, const cl_device_id *, \
       void(CL_CALLBACK *)(const char *, const void *, size_t, void *), void *, cl_int *)) \
    X(cl_int, clReleaseContext, (cl_context)) \
    X(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_command_queue_properties, cl_int *)) \
    X(cl_int, clReleaseCommandQueue, (cl_command_queue)) \
    X(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char **, const size_t *, cl_int *)) \
    X(cl_program, clCreateProgramWithBinary, \
      (cl_context, cl_uint, const cl_device_id *, const size_t *, const unsigned char **, cl_int *, cl_int *)) \
    X(cl_int, clBuildProgram, \
      (cl_program, cl_uint, const cl_device_id *, const char *, void(CL_CALLBACK *)(cl_program, void *), void *)) \
    X(cl_int, clGetProgramInfo, (cl_program, cl_program_info, size_t, void *, size_t *)) \
    X(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_program_build_info, size_t, void *, size_t *)) \
    X(cl_int, clReleaseProgram, (cl_program)) \
    X(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *)) \
    X(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *)) \
    X(cl_int, clGetKernelWorkGroupInfo, \
      (cl_kernel, cl_device_id, cl_kernel_work_group_info, size_t, void *, size_t *)) \
    X(cl_int, clReleaseKernel, (cl_kernel)) \
    X(cl_mem, clCreateBuffer, (cl_context, cl_mem_flags, size_t, void *, cl_int *)) \
    X(cl_int, clReleaseMemObject, (cl_mem)) \
    X(cl_int, clEnqueueNDRangeKernel, \
      (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, \
       const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueReadBuffer, \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void *, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueWriteBuffer, \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void *, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueFillBuffer, \
      (cl_command_queue, cl_mem, const void *, size_t, size_t, size_t, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clFlush, (cl_command_queue)) \
    X(cl_int, clFinish, (cl_command_queue)) \
    X(void *, clGetExtensionFunctionAddressForPlatform, (cl_platform_id, const char *))

/* What only some have: NULL without. */
#define HVDC_OPENCL_OPTIONAL_FUNCTIONS(X) \
    X(cl_mem, clCreateBufferWithProperties, \
      (cl_context, const cl_mem_properties *, cl_mem_flags, size_t, void *, cl_int *)) \
    X(cl_mem, clImportMemoryARM, \
      (cl_context, cl_mem_flags, const cl_import_properties_arm *, void *, size_t, cl_int *)) \
    X(cl_int, clEnqueueAcquireExternalMemObjectsKHR, \
      (cl_command_queue, cl_uint, const cl_mem *, cl_uint, const cl_event *, cl_event *)) \
    X(cl_int, clEnqueueReleaseExternalMemObjectsKHR, \
      (cl_command_queue, cl_uint, const cl_mem *, cl_uint, const cl_event *, cl_event *))

#endif
