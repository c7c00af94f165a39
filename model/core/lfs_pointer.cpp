// SPDX-License-Identifier: Apache-2.0
#include "model/core/lfs_pointer.h"

#include "model/core/errors.h"

namespace lintel {

void refuse_lfs_pointer(std::string_view begin, const std::string& file) {
  if (!begin.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw ModelError(file +
                   ": is a pointer of Git LFS, a few lines in place of the file: `git lfs pull` "
                   "in its repository, or `lintel pull ORG/NAME`, fetches the file");
}

}  // namespace lintel
