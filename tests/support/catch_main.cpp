// SPDX-License-Identifier: Apache-2.0
// Catch's main, compiled once for all test executables; version 3 has it in a library.
#define CATCH_CONFIG_MAIN
#include "tests/support/catch.h"
