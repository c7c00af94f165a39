// SPDX-License-Identifier: Apache-2.0
// A photographed digit, put as MNIST puts its own.
#pragma once

#include "client/image/image.h"

namespace lintel {

// Finds what is drawn on paper, or on the colour of the picture's border, and makes of it an image
// as MNIST's are: light on black, in 20/28 of the smaller side with its aspect kept, its centre of
// mass in the middle (LeCun et al. 1998, section III.A). On the way:
//
//   - light that falls from a side is taken away: a plane through the greys of the border
//   - what is ink is what is further from it than Otsu's threshold (1979) between ink and paper;
//     specks that are small beside the largest stroke are left out
//   - lines thinner than MNIST's are made as wide as those
//
// The border says if the ink is darker or lighter than the ground. Throws
// std::invalid_argument where there is nothing but ground. REQUIRES: height and width 1 or more,
// the photo not empty.
GrayImage fit_digit(const GrayImage& photo, int height, int width);

}  // namespace lintel
