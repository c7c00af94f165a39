// SPDX-License-Identifier: Apache-2.0
// Files of the page at /: those of web/, which are part of the program
// (cmake/embed_page.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace lintel {

struct PageFile {
  std::string_view path;   // "/" for index.html, else "/js/main.js"
  std::string_view type;   // of its content
  std::string_view etag;   // with its quotes
  std::string_view bytes;  // live as long as the program
};

// The files, sorted by name. Thread-safe.
const std::vector<PageFile>& page_files();

}  // namespace lintel
