/* Prints the constants and sizes of gpu/src/opencl_api.h; with HVDC_OPENCL_SYSTEM_HEADERS those of Khronos' headers, against
 * which it also checks the prototypes when it is compiled. */
#ifdef HVDC_OPENCL_SYSTEM_HEADERS
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#endif
#include "opencl_api.h"

#include <stdio.h>

#ifdef HVDC_OPENCL_SYSTEM_HEADERS
#define CHECK(result, name, arguments) \
    extern __typeof__(name) *const check_##name; \
    extern result(*const check_##name) arguments;
HVDC_OPENCL_FUNCTIONS(CHECK)
HVDC_OPENCL_OPTIONAL_FUNCTIONS(CHECK)
#endif

#define NUMBER(name) printf("%s %llu\n", #name, (unsigned long long)(name))
#define SIGNED(name) printf("%s %d\n", #name, (int)(name))
#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define PLACE(type, member) printf("%s.%s %zu\n", #type, #member, offsetof(type, member))

int main(void) {
    SIGNED(CL_SUCCESS), SIGNED(CL_DEVICE_NOT_FOUND), SIGNED(CL_MEM_OBJECT_ALLOCATION_FAILURE);
    SIGNED(CL_OUT_OF_RESOURCES), SIGNED(CL_OUT_OF_HOST_MEMORY), SIGNED(CL_BUILD_PROGRAM_FAILURE);
    SIGNED(CL_INVALID_BUFFER_SIZE), NUMBER(CL_TRUE), NUMBER(CL_FALSE);
    NUMBER(CL_PLATFORM_NAME), NUMBER(CL_DEVICE_TYPE_CPU), NUMBER(CL_DEVICE_TYPE_GPU);
    NUMBER(CL_DEVICE_TYPE_ALL), NUMBER(CL_DEVICE_TYPE), NUMBER(CL_DEVICE_MAX_WORK_GROUP_SIZE);
    NUMBER(CL_DEVICE_MAX_MEM_ALLOC_SIZE), NUMBER(CL_DEVICE_NAME), NUMBER(CL_DRIVER_VERSION);
    NUMBER(CL_DEVICE_EXTENSIONS), NUMBER(CL_MEM_READ_WRITE), NUMBER(CL_MEM_READ_ONLY);
    NUMBER(CL_MEM_USE_HOST_PTR), NUMBER(CL_PROGRAM_BINARY_SIZES), NUMBER(CL_PROGRAM_BINARIES);
    NUMBER(CL_PROGRAM_BUILD_LOG), NUMBER(CL_KERNEL_WORK_GROUP_SIZE), NUMBER(CL_MEM_EXT_HOST_PTR_QCOM);
    NUMBER(CL_MEM_HOST_UNCACHED_QCOM), NUMBER(CL_MEM_HOST_WRITEBACK_QCOM), NUMBER(CL_MEM_ION_HOST_PTR_QCOM);
    NUMBER(CL_MEM_HOST_IOCOHERENT_QCOM), NUMBER(CL_IMPORT_TYPE_ARM), NUMBER(CL_IMPORT_TYPE_DMA_BUF_ARM);
    NUMBER(CL_EXTERNAL_MEMORY_HANDLE_DMA_BUF_KHR);
    SIZE(cl_int), SIZE(cl_uint), SIZE(cl_ulong), SIZE(cl_bool), SIZE(cl_mem_flags), SIZE(cl_device_type);
    SIZE(cl_mem_properties), SIZE(cl_import_properties_arm), SIZE(cl_mem_ext_host_ptr), SIZE(cl_mem_ion_host_ptr);
    PLACE(cl_mem_ext_host_ptr, allocation_type), PLACE(cl_mem_ext_host_ptr, host_cache_policy);
    PLACE(cl_mem_ion_host_ptr, ion_filedesc), PLACE(cl_mem_ion_host_ptr, ion_hostptr);
    return 0;
}
