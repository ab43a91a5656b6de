# Finds cuda.h and cudaTypedefs.h of CUDA 13.0 or newer (the hook table's types come from them) and
# cupti_driver_cbid.h (the denominator of the coverage test).  Order: VRAMCAP_CUDA_INCLUDE as given, an
# installed toolkit, else NVIDIA's header wheels from the Python package index, pinned by version and
# hash and unpacked into the build folder.  Nothing of NVIDIA's is committed.
set(VRAMCAP_CUDA_INCLUDE "" CACHE PATH "Folder with cuda.h and cudaTypedefs.h of CUDA 13.0 or newer")
set(VRAMCAP_CUPTI_INCLUDE "" CACHE PATH "Folder with cupti_driver_cbid.h (for the coverage test)")
set(VRAMCAP_CUDA_STUB "" CACHE FILEPATH "The toolkit's stub libcuda.so (for the coverage test; optional)")

function(vramcap_cuda_version dir out)
  set(${out} 0 PARENT_SCOPE)
  if(EXISTS "${dir}/cuda.h" AND EXISTS "${dir}/cudaTypedefs.h")
    file(STRINGS "${dir}/cuda.h" line REGEX "^#define CUDA_VERSION [0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE "[^0-9]*([0-9]+).*" "\\1" version "${line}")
    if(version)
      set(${out} ${version} PARENT_SCOPE)
    endif()
  endif()
endfunction()

if(NOT VRAMCAP_CUDA_INCLUDE)
  file(GLOB candidates /usr/local/cuda/include /usr/local/cuda-*/include /opt/cuda/include /usr/include
       /usr/local/include)
  foreach(dir IN LISTS candidates)
    vramcap_cuda_version("${dir}" version)
    if(version GREATER_EQUAL 13000)
      set(VRAMCAP_CUDA_INCLUDE "${dir}" CACHE PATH "" FORCE)
      break()
    endif()
  endforeach()
endif()
if(NOT VRAMCAP_CUDA_INCLUDE)
  execute_process(
    COMMAND sh ${CMAKE_SOURCE_DIR}/preload/fetch_cuda_headers.sh ${CMAKE_BINARY_DIR}/cuda-headers
    RESULT_VARIABLE rc)
  if(rc)
    message(FATAL_ERROR "No CUDA 13.0 (or newer) headers: none installed and the header wheels could not "
      "be fetched (see above). Install a CUDA toolkit >= 13.0, or give -DVRAMCAP_CUDA_INCLUDE=DIR with "
      "cuda.h and cudaTypedefs.h.")
  endif()
  set(VRAMCAP_CUDA_INCLUDE ${CMAKE_BINARY_DIR}/cuda-headers/include CACHE PATH "" FORCE)
endif()
vramcap_cuda_version("${VRAMCAP_CUDA_INCLUDE}" VRAMCAP_CUDA_VERSION)
if(VRAMCAP_CUDA_VERSION LESS 13000)
  message(FATAL_ERROR "VRAMCAP_CUDA_INCLUDE=${VRAMCAP_CUDA_INCLUDE}: cuda.h and cudaTypedefs.h of CUDA 13.0 "
    "or newer are needed, found version '${VRAMCAP_CUDA_VERSION}'")
endif()
message(STATUS "CUDA headers: ${VRAMCAP_CUDA_INCLUDE} (CUDA_VERSION ${VRAMCAP_CUDA_VERSION})")

if(NOT VRAMCAP_CUPTI_INCLUDE AND EXISTS "${VRAMCAP_CUDA_INCLUDE}/cupti_driver_cbid.h")
  set(VRAMCAP_CUPTI_INCLUDE "${VRAMCAP_CUDA_INCLUDE}" CACHE PATH "" FORCE)
endif()
if(NOT VRAMCAP_CUDA_STUB)
  get_filename_component(root "${VRAMCAP_CUDA_INCLUDE}" DIRECTORY)
  foreach(lib lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib)
    if(EXISTS "${root}/${lib}/stubs/libcuda.so")
      set(VRAMCAP_CUDA_STUB "${root}/${lib}/stubs/libcuda.so" CACHE FILEPATH "" FORCE)
      break()
    endif()
  endforeach()
endif()

add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE ${VRAMCAP_CUDA_INCLUDE})
