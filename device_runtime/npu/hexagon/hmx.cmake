# The matrix unit that reads VTCM alone, and what stands below it in each build.
set(HVDC_VTCM_KIB "" CACHE STRING "VTCM that the matrix unit uses at most; empty: what a V79 has, 8192")
set(dir ${CMAKE_CURRENT_LIST_DIR}/src)
set(HVDC_HMX_STAGED_INCLUDE ${dir})
set(HVDC_HMX_STAGED ${dir}/hmx_staged.c ${dir}/halves.c ${dir}/vtcm.c ${dir}/vtcm_products.c)
set(HVDC_HMX_STAGED_HOST ${HVDC_HMX_STAGED} ${dir}/dma_copy.c ${dir}/fault_program.c ${dir}/unit_lock_posix.c
  ${dir}/unit_model.c)
set(HVDC_HMX_STAGED_EMULATED ${HVDC_HMX_STAGED} ${dir}/dma_engine_model.c ${dir}/dma_user.c ${dir}/fault_program.c
  ${dir}/unit_lock_none.c ${dir}/unit_model.c)
set(HVDC_HMX_STAGED_DEVICE ${HVDC_HMX_STAGED} ${dir}/dma_engine_device.c ${dir}/dma_user.c ${dir}/fault_device.c
  ${dir}/hmx_for_device.c ${dir}/unit_lock_qurt.c ${dir}/unit_words.c)
