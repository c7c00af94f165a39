// SPDX-License-Identifier: Apache-2.0
// Catch2, version 2 or 3, under the names that tests use: those of version 2.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)

#include <catch2/catch_approx.hpp>
#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>
#include <cstdint>
#include <string>

namespace Catch {
namespace Matchers {

inline StringContainsMatcher Contains(const std::string& text) { return ContainsSubstring(text); }

}  // namespace Matchers

using namespace Matchers;

inline std::uint32_t rngSeed() { return getSeed(); }

}  // namespace Catch

using Catch::Approx;

#else

#include <catch2/catch.hpp>

#endif
