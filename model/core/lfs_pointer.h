// SPDX-License-Identifier: Apache-2.0
// Pointers of Git LFS: what a clone has in the place of a large file.
#pragma once

#include <string>
#include <string_view>

namespace lintel {

// Throws ModelError where a file that begins so is a pointer: a few lines of text that Git leaves
// where Git LFS keeps the file elsewhere
// (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
void refuse_lfs_pointer(std::string_view begin, const std::string& file);

}  // namespace lintel
