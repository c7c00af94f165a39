# SPDX-License-Identifier: Apache-2.0
# The scripts that Redis servers run, as C++: run with -DSCRIPTS=<folder of *.lua> -DOUT=<file>.
cmake_minimum_required(VERSION 3.22)

file(GLOB names RELATIVE ${SCRIPTS} ${SCRIPTS}/*.lua)
list(SORT names)
set(cases "")
foreach(name IN LISTS names)
  file(READ ${SCRIPTS}/${name} text)
  string(REGEX REPLACE "\\.lua$" "" script ${name})
  string(APPEND cases "  if (std::string_view(name) == \"${script}\") return R\"lua(${text})lua\";\n")
endforeach()

file(WRITE ${OUT} "// Made by cmake/embed_scripts.cmake.
#include <cstdlib>
#include <string_view>

#include \"server/sessions/storage/redis/redis_protocol.h\"

namespace lintel {

const char* redis_script_text(const char* name) {
${cases}  std::abort();
}

}  // namespace lintel
")
