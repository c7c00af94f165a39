// PrefixCache: states behind prompts that came before.
#pragma once

namespace lintel {

class PrefixCache;

}  // namespace lintel
