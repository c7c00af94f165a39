# SPDX-License-Identifier: Apache-2.0
# lintel_module(<folder>): a static library of the folder's sources. tests/layering/modules.txt says what it is
# linked with: the modules and packages that its files may include.
#
# With LINTEL_UNITY the files of a module are compiled together, which saves reading the same headers again: names in
# their anonymous namespaces differ. The presets dev and tidy compile each alone.
option(LINTEL_UNITY "Compile the files of a module together" ON)
option(LINTEL_OPTIMIZE_MODEL "Compile model/ with -O2, also where CMAKE_BUILD_TYPE's flags have less" OFF)
option(LINTEL_SANITIZE_KERNELS "Compile files of vector instructions with LINTEL_SANITIZE, too" ON)
set(LINTEL_MODULES ${PROJECT_SOURCE_DIR}/tests/layering/modules.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${LINTEL_MODULES})

# The packages of the table, as targets. Public, as our headers include them, but for those that come
# with compile options.
set(lintel_package_json nlohmann_json::nlohmann_json)
set(lintel_package_boost Boost::headers OpenSSL::SSL)  # Asio's TLS is OpenSSL's
set(lintel_package_cli CLI11::CLI11)
set(lintel_package_grpc gRPC::grpc++ lintel_health_proto)
set(lintel_package_hwy hwy::hwy)
set(lintel_package_openssl OpenSSL::Crypto)
set(lintel_package_png PNG::PNG ZLIB::ZLIB)
set(lintel_package_prometheus prometheus-cpp::core)
set(lintel_package_spdlog spdlog::spdlog)
set(lintel_package_curl CURL::libcurl)
set(lintel_package_edit Edit::Edit)
set(lintel_package_sqlite SQLite::SQLite3)
set(lintel_package_hiredis Hiredis::Hiredis OpenSSL::SSL)  # TLS to Redis is OpenSSL's
set(lintel_package_xxhash "")  # headers alone

# The target of a module: server/core is lintel_server_core.
function(lintel_module_target folder result)
  string(REPLACE "/" "_" name ${folder})
  set(${result} lintel_${name} PARENT_SCOPE)
endfunction()

# oneDNN's target comes with OpenMP's option. Only files that ask OpenMP for its threads are compiled with it: no
# precompiled header fits them.
function(lintel_link_dnnl target sources)
  if(NOT TARGET lintel_dnnl)
    add_library(lintel_dnnl INTERFACE)
    target_link_libraries(lintel_dnnl INTERFACE $<LINK_ONLY:DNNL::dnnl> $<LINK_ONLY:OpenMP::OpenMP_CXX>)
    target_include_directories(lintel_dnnl SYSTEM INTERFACE
      $<TARGET_PROPERTY:DNNL::dnnl,INTERFACE_INCLUDE_DIRECTORIES>)
  endif()
  target_link_libraries(${target} PRIVATE lintel_dnnl)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} includes REGEX "^#include <omp\\.h>" LIMIT_COUNT 1)
    if(includes)
      set_source_files_properties(${source} PROPERTIES
        COMPILE_OPTIONS "${OpenMP_CXX_FLAGS}" SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# Takes the files of vector instructions from the list named `list` into an object library, which `target` gets. Most of
# them are compiled for several sets of instructions: 7 minutes of CPU with AddressSanitizer, 3 without. Where they are
# not sanitized, their command lines are those of the preset ci to the letter, without a precompiled header or
# debugging information, so that ccache gives the presets asan and tsan the objects of ci.
function(lintel_split_kernels target top list)
  set(kernels)
  foreach(source IN LISTS ${list})
    file(STRINGS ${source} includes REGEX "^#include [\"<](hwy/foreach_target|immintrin)\\.h[\">]" LIMIT_COUNT 1)
    if(includes)
      list(APPEND kernels ${source})
    endif()
  endforeach()
  if(NOT kernels)
    return()
  endif()
  add_library(${target}_kernels OBJECT ${kernels})
  target_link_libraries(${target}_kernels PRIVATE $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
  set(is_plain OFF)
  if(LINTEL_SANITIZE AND NOT LINTEL_SANITIZE_KERNELS)
    set(is_plain ON)
  endif()
  set_target_properties(${target}_kernels PROPERTIES LINTEL_UNSANITIZED ${is_plain})
  if(is_plain OR (LINTEL_OPTIMIZE_MODEL AND top STREQUAL "model"))
    target_compile_options(${target}_kernels PRIVATE -O2)
  endif()
  list(REMOVE_ITEM ${list} ${kernels})
  set(${list} "${${list}}" PARENT_SCOPE)
  set(kernel_objects $<TARGET_OBJECTS:${target}_kernels> PARENT_SCOPE)
endfunction()

function(lintel_module folder)
  lintel_module_target(${folder} target)
  string(REGEX REPLACE "/.*" "" top ${folder})
  file(STRINGS ${LINTEL_MODULES} line REGEX "^${folder}:")
  if(NOT line)
    message(FATAL_ERROR "tests/layering/modules.txt has no module ${folder}")
  endif()
  string(REGEX REPLACE "^[^:]*: *" "" sees "${line}")
  separate_arguments(sees UNIX_COMMAND "${sees}")

  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  set(kernel_objects)
  if("<hwy>" IN_LIST sees)
    lintel_split_kernels(${target} ${top} sources)
  endif()
  add_library(${target} STATIC ${sources} ${kernel_objects})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)  # also of headers alone
  target_link_libraries(${target} PUBLIC lintel_options Threads::Threads)
  if(LINTEL_UNITY AND NOT "<hwy>" IN_LIST sees)  # kinds of attention have the same names
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
  set(headers)
  if("<grpc>" IN_LIST sees)
    list(APPEND headers wire)
  endif()
  if("<cli>" IN_LIST sees AND NOT LINTEL_OPTIMIZE_MODEL)  # never hot, and CLI11 takes the optimiser long
    list(APPEND headers lightly_optimized)
  elseif(LINTEL_OPTIMIZE_MODEL AND top STREQUAL "model")
    list(APPEND headers optimized)
  endif()
  lintel_precompile(${target} ${headers})
  foreach(seen IN LISTS sees)
    if(seen STREQUAL "<dnnl>")
      lintel_link_dnnl(${target} "${sources}")
    elseif(seen MATCHES "^<(.*)>$")
      target_link_libraries(${target} PUBLIC ${lintel_package_${CMAKE_MATCH_1}})
    elseif(seen STREQUAL top)  # its modules so far
      get_property(modules GLOBAL PROPERTY LINTEL_MODULES_OF_${top})
      target_link_libraries(${target} PUBLIC ${modules})
    else()
      lintel_module_target(${seen} other)
      target_link_libraries(${target} PUBLIC ${other})
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY LINTEL_MODULES_OF_${top} ${target})
endfunction()

# lintel_modules(<folder> <module>...): the modules in the folder, lowest first.
function(lintel_modules top)
  foreach(module IN LISTS ARGN)
    lintel_module(${top}/${module})
  endforeach()
endfunction()
