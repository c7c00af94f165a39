// SPDX-License-Identifier: Apache-2.0
// A library of products that sums in another order for other numbers of rows, as real ones do on
// machines the tests do not run on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "model/ops/product_library.h"

namespace lintel::testing {

// bf16 sums from the first input to the last, from the last to the first, and so on, by the number
// of rows and the row's place; int8 sums are exact. Counts what it is asked for.
class NondeterministicGemm : public ProductLibrary {
 public:
  // Selects the order in which a row is summed.
  using OrderOf = std::function<int(std::size_t rows, std::size_t row)>;

  explicit NondeterministicGemm(OrderOf order_of) : order_of_(std::move(order_of)) {}

  std::string name() const override { return "odd"; }
  // int8 in batches, as on AMX oneDNN would be beside kernels without it.
  std::size_t worthwhile_rows(WeightType type) const override {
    return type == WeightType::kF32 ? SIZE_MAX : type == WeightType::kBf16 ? 1 : 16;
  }
  std::unique_ptr<LibraryMatrix> new_matrix(const ProductShape& shape) const override;

  // Products by their number of rows since forget().
  std::map<std::size_t, int> products() const;
  void forget();
  // The first weight of an int8 matrix is off by one: a library that is wrong.
  bool is_wrong_in_int8 = false;

 private:
  friend class OddMatrix;

  const OrderOf order_of_;
  mutable std::mutex mutex_;
  mutable std::map<std::size_t, int> products_;
};

}  // namespace lintel::testing
