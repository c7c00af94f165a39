# SPDX-License-Identifier: Apache-2.0
# lintel_precompile(<target> [wire] [catch] [unoptimized|lightly_optimized|optimized]): the target's files start from
# headers that were compiled once: the standard library, and with `wire` gRPC and what protoc made of lintel.v1, with
# `catch` Catch2. Two thirds of a build are otherwise spent reading these again and again. `unoptimized` is -O0,
# `lightly_optimized` -O1, `optimized` -O2: each has headers of its own, as GCC optimises a file as its precompiled
# header was and not as the file's own option says.
#
# Every file still includes what it uses: -DLINTEL_PRECOMPILE=OFF must build, and does in CI.
option(LINTEL_PRECOMPILE "Compile the headers that many files include only once" ON)

set(lintel_precompiled_std
  <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cmath> <condition_variable> <cstddef> <cstdint> <cstring>
  <deque> <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <optional> <set> <span> <sstream>
  <stdexcept> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
set(lintel_precompiled_wire
  <grpcpp/grpcpp.h> <lintel/v1/admin.grpc.pb.h> <lintel/v1/generation.grpc.pb.h> <lintel/v1/model.grpc.pb.h>
  <lintel/v1/session.grpc.pb.h>)
set(lintel_precompiled_catch "${PROJECT_SOURCE_DIR}/tests/support/catch.h")
set(lintel_precompiled_wire_links lintel_proto)
set(lintel_precompiled_catch_links Catch2::Catch2)

function(lintel_precompile target)
  set(level)
  if(unoptimized IN_LIST ARGN)
    set(level -O0)
  elseif(lightly_optimized IN_LIST ARGN)
    set(level $<$<NOT:$<CONFIG:Debug>>:-O1>)
  elseif(optimized IN_LIST ARGN)
    set(level -O2)
  endif()
  target_compile_options(${target} PRIVATE ${level})
  if(NOT LINTEL_PRECOMPILE)
    return()
  endif()
  set(parts std ${ARGN})
  list(REMOVE_ITEM parts unoptimized lightly_optimized optimized)
  string(JOIN "_" host lintel_precompiled std ${ARGN})
  if(NOT TARGET ${host})  # the first to ask for this set
    set(source ${CMAKE_BINARY_DIR}/precompiled/${host}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(${host} OBJECT EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${host} PRIVATE lintel_options)
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)  # ccache hands one out in folders where headers have other times
      target_compile_options(${host} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
    endif()
    target_compile_options(${host} PRIVATE ${level})
    foreach(part IN LISTS parts)
      target_link_libraries(${host} PRIVATE ${lintel_precompiled_${part}_links})
      target_precompile_headers(${host} PRIVATE ${lintel_precompiled_${part}})
    endforeach()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${host})
  # A precompiled header fits one kind of position-independent code, and an executable has another.
  target_compile_options(${target} PRIVATE -fPIC)
endfunction()
