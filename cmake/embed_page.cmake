# SPDX-License-Identifier: Apache-2.0
# The page as C++: run with -DROOT=<repository> -DMARKED=<file> -DPURIFY=<file> -DOUT=<file>. Each file of web/ becomes an
# array with its path, its type and an ETag made of its bytes; weights/demo-digits.png is digits.png, Debian's scripts
# MARKED and PURIFY are lib/marked.js and lib/purify.js, and icon.svg is favicon.ico, too, which browsers ask for on pages
# without an icon of their own, such as answers in JSON.
cmake_minimum_required(VERSION 3.22)

set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_png "image/png")

file(GLOB_RECURSE names RELATIVE ${ROOT}/web ${ROOT}/web/*)
list(REMOVE_ITEM names package.json)  # for Node alone
list(SORT names)
set(arrays "")
set(entries "")
set(number 0)
foreach(name IN LISTS names ITEMS digits.png favicon.ico lib/marked.js lib/purify.js)
  set(file ${ROOT}/web/${name})
  set(path /${name})
  if(name STREQUAL "digits.png")
    set(file ${ROOT}/weights/demo-digits.png)
  elseif(name STREQUAL "favicon.ico")
    set(file ${ROOT}/web/icon.svg)
  elseif(name STREQUAL "lib/marked.js")
    set(file ${MARKED})
  elseif(name STREQUAL "lib/purify.js")
    set(file ${PURIFY})
  elseif(name STREQUAL "index.html")
    set(path /)
  endif()
  string(REGEX REPLACE ".*\\." "" extension ${file})
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "web/${name}: of no type that embed_page.cmake knows")
  endif()
  file(READ ${file} hex HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {\n${hex}};\n")
  string(APPEND entries "    {\"${path}\", \"${type_${extension}}\", \"\\\"${hash}\\\"\", view(kFile${number})},\n")
  math(EXPR number "${number} + 1")
endforeach()

file(WRITE ${OUT} "// Made by cmake/embed_page.cmake.
#include \"server/http/ui/page_files.h\"

namespace lintel {
namespace {

${arrays}
template <std::size_t kSize>
std::string_view view(const unsigned char (&bytes)[kSize]) {
  return {reinterpret_cast<const char*>(bytes), kSize};
}

}  // namespace

const std::vector<PageFile>& page_files() {
  static const std::vector<PageFile> files = {
${entries}  };
  return files;
}

}  // namespace lintel
")
