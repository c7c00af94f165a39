# SPDX-License-Identifier: Apache-2.0
# Packages of Debian 12 and 13; scripts/setup.sh installs them.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(dnnl CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
if(LINTEL_TESTS)
  find_package(Catch2 CONFIG REQUIRED)  # 2 or 3
endif()
find_package(Protobuf REQUIRED)  # module mode, and before gRPC
find_package(gRPC CONFIG REQUIRED)
if(CMAKE_CROSSCOMPILING)  # generators of sources run on this machine
  foreach(plugin grpc_cpp_plugin grpc_python_plugin)
    find_program(LINTEL_HOST_${plugin} ${plugin} REQUIRED)
    set_target_properties(gRPC::${plugin} PROPERTIES IMPORTED_LOCATION_NONE ${LINTEL_HOST_${plugin}})
  endforeach()
endif()
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
find_package(SQLite3 REQUIRED)
# hiredis, whose package file is of no use to CMake: it reads what Redis servers answer.
find_path(LINTEL_HIREDIS_INCLUDE hiredis/hiredis.h REQUIRED)
find_library(LINTEL_HIREDIS_LIBRARY hiredis REQUIRED)
add_library(Hiredis::Hiredis UNKNOWN IMPORTED)
set_target_properties(Hiredis::Hiredis PROPERTIES
  IMPORTED_LOCATION ${LINTEL_HIREDIS_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${LINTEL_HIREDIS_INCLUDE})
find_package(Boost 1.74 CONFIG REQUIRED)  # headers alone: Beast and Asio
find_package(prometheus-cpp CONFIG REQUIRED)  # its configuration asks for civetweb, which nothing here uses
find_package(CURL 7.85 REQUIRED)  # `lintel pull`, `lintel-bench load`
# libedit, which has no module: lines that are typed to `lintel generate --interactive`.
find_path(LINTEL_EDIT_INCLUDE histedit.h REQUIRED)
find_library(LINTEL_EDIT_LIBRARY edit REQUIRED)
add_library(Edit::Edit UNKNOWN IMPORTED)
set_target_properties(Edit::Edit PROPERTIES
  IMPORTED_LOCATION ${LINTEL_EDIT_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${LINTEL_EDIT_INCLUDE})
