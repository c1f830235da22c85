# Hexagon, with upstream clang and lld (Debian's packages clang-22, lld-22), or with the compiler of Qualcomm's Hexagon
# SDK where HEXAGON_SDK_ROOT names one. Upstream's compiler has no C library: npu/hexagon/libc takes its place.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR hexagon)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

if(NOT HEXAGON_SDK_ROOT)
  set(HEXAGON_SDK_ROOT "$ENV{HEXAGON_SDK_ROOT}" CACHE PATH "Qualcomm's Hexagon SDK, or nothing: upstream clang")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEXAGON_SDK_ROOT)

if(HEXAGON_SDK_ROOT)
  file(GLOB found "${HEXAGON_SDK_ROOT}/tools/HEXAGON_Tools/*/Tools/bin")
  list(SORT found COMPARE NATURAL ORDER DESCENDING)
  if(NOT found)
    message(FATAL_ERROR "HEXAGON_SDK_ROOT (${HEXAGON_SDK_ROOT}) has no tools/HEXAGON_Tools/*/Tools/bin")
  endif()
  list(GET found 0 tools)
  set(CMAKE_C_COMPILER "${tools}/hexagon-clang")
  set(CMAKE_CXX_COMPILER "${tools}/hexagon-clang++")
else()
  find_program(CMAKE_C_COMPILER NAMES clang-22 REQUIRED)
  find_program(CMAKE_CXX_COMPILER NAMES clang++-22 REQUIRED)
  find_program(HVDC_LLD NAMES ld.lld-22 REQUIRED)
  set(CMAKE_C_COMPILER_TARGET hexagon-unknown-elf)
  set(CMAKE_CXX_COMPILER_TARGET hexagon-unknown-elf)
  # Through the driver, lld is called as another linker and refuses.
  set(CMAKE_C_LINK_EXECUTABLE "${HVDC_LLD} -static -z noexecstack <OBJECTS> -o <TARGET> <LINK_LIBRARIES>")
  set(CMAKE_C_CREATE_SHARED_LIBRARY
      "${HVDC_LLD} -shared -z noexecstack -z norelro --hash-style=sysv <LINK_FLAGS> <OBJECTS> -o <TARGET> <LINK_LIBRARIES>")
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
