# SPDX-License-Identifier: Apache-2.0
# lintel_options: what every target of ours is compiled with.
add_library(lintel_options INTERFACE)
target_include_directories(lintel_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(lintel_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                                -Wno-missing-field-initializers)
# Promise 1 needs the same bits from the same source: no contraction that depends on inlining.
target_compile_options(lintel_options INTERFACE -ffp-contract=off)
# Some packages ask for it: so that all have it, and one precompiled header serves them.
target_compile_options(lintel_options INTERFACE -pthread)
# A target with LINTEL_UNSANITIZED is compiled as by the preset ci, in sanitized builds, too.
set(unsanitized $<BOOL:$<TARGET_PROPERTY:LINTEL_UNSANITIZED>>)
target_compile_options(lintel_options INTERFACE $<$<OR:$<BOOL:${LINTEL_WERROR}>,${unsanitized}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(lintel_options INTERFACE -Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC collects its garbage from 512 MB on and not from 128 MB, which takes a tenth of a build.
  add_compile_options("SHELL:--param ggc-min-heapsize=524288")
endif()
if(LINTEL_ASSERTIONS)
  # CMake's optimised build types define NDEBUG; this comes after them.
  add_compile_options(-UNDEBUG)
endif()
if(LINTEL_SANITIZE)
  set(sanitized -g1 -fsanitize=${LINTEL_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LINTEL_SANITIZE})
  if(LINTEL_SANITIZE MATCHES undefined)
    list(APPEND sanitized -fno-sanitize-recover=undefined)
    add_link_options(-fno-sanitize-recover=undefined)
  endif()
  add_compile_options("$<$<NOT:${unsanitized}>:${sanitized}>")
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache caches files that start from a precompiled header only with this setting.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM AND NOT CMAKE_CROSSCOMPILING)  # a cross compiler looks for a linker of its own
  add_link_options(-fuse-ld=mold)
endif()
