# lintel_room(<folder>): a static library of the folder's sources. tests/layering/rooms.txt says what it is
# linked with: the rooms and packages that its files may include.
#
# The files of a room are compiled together, up to ten at a time, which saves reading the same headers again: names in
# their anonymous namespaces differ. -DLINTEL_UNITY=OFF builds each alone: for who changes one file often, and
# as the preset `tidy` does, to prove that each is complete. Highway's files include themselves and stay alone.
option(LINTEL_UNITY "Compile the files of a room together" ON)
set(LINTEL_ROOMS ${PROJECT_SOURCE_DIR}/tests/layering/rooms.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${LINTEL_ROOMS})

# The packages of the table, as targets. Public, as our headers include them, but for those that come
# with compile options.
set(lintel_package_json nlohmann_json::nlohmann_json)
set(lintel_package_boost Boost::headers OpenSSL::SSL)  # Asio's TLS is OpenSSL's
set(lintel_package_cli CLI11::CLI11)
set(lintel_package_grpc gRPC::grpc++ lintel_health_proto)
set(lintel_package_hwy hwy::hwy)
set(lintel_package_openssl OpenSSL::Crypto)
set(lintel_package_png PNG::PNG ZLIB::ZLIB)
set(lintel_package_prometheus prometheus-cpp::core civetweb::civetweb-cpp)
set(lintel_package_spdlog spdlog::spdlog)
set(lintel_package_edit Edit::Edit)
set(lintel_package_sqlite SQLite::SQLite3)
set(lintel_package_hiredis Hiredis::Hiredis OpenSSL::SSL)  # TLS to Redis is OpenSSL's
set(lintel_package_xxhash "")  # headers alone
set(lintel_package_dnnl DNNL::dnnl OpenMP::OpenMP_CXX)

# The target of a room: server/base is lintel_server_base.
function(lintel_room_target folder result)
  string(REPLACE "/" "_" name ${folder})
  set(${result} lintel_${name} PARENT_SCOPE)
endfunction()

function(lintel_room folder)
  lintel_room_target(${folder} target)
  string(REGEX REPLACE "/.*" "" house ${folder})
  file(STRINGS ${LINTEL_ROOMS} line REGEX "^${folder}:")
  if(NOT line)
    message(FATAL_ERROR "tests/layering/rooms.txt has no room ${folder}")
  endif()
  string(REGEX REPLACE "^[^:]*: *" "" sees "${line}")
  separate_arguments(sees UNIX_COMMAND "${sees}")

  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  add_library(${target} STATIC ${sources})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)  # also of headers alone
  target_link_libraries(${target} PUBLIC lintel_options Threads::Threads)
  if(LINTEL_UNITY AND NOT "<hwy>" IN_LIST sees)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
  endif()
  if("<cli>" IN_LIST sees)  # never hot, and CLI11 takes the optimiser long
    target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  endif()
  if("<dnnl>" IN_LIST sees)
    # Compiled for OpenMP: no precompiled header fits.
  elseif("<grpc>" IN_LIST sees)
    lintel_precompile(${target} wire)
  else()
    lintel_precompile(${target})
  endif()
  foreach(seen IN LISTS sees)
    if(seen STREQUAL "<dnnl>")
      target_link_libraries(${target} PRIVATE ${lintel_package_dnnl})
    elseif(seen MATCHES "^<(.*)>$")
      target_link_libraries(${target} PUBLIC ${lintel_package_${CMAKE_MATCH_1}})
    elseif(seen STREQUAL house)  # its rooms so far
      get_property(rooms GLOBAL PROPERTY LINTEL_ROOMS_OF_${house})
      target_link_libraries(${target} PUBLIC ${rooms})
    else()
      lintel_room_target(${seen} other)
      target_link_libraries(${target} PUBLIC ${other})
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY LINTEL_ROOMS_OF_${house} ${target})
endfunction()

# lintel_house(<name> <room>...): the rooms, lowest first, and lintel_<name>, all of them.
function(lintel_house name)
  add_library(lintel_${name} INTERFACE)
  foreach(room IN LISTS ARGN)
    lintel_room(${name}/${room})
    lintel_room_target(${name}/${room} target)
    target_link_libraries(lintel_${name} INTERFACE ${target})
  endforeach()
endfunction()
