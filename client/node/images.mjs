// SPDX-License-Identifier: Apache-2.0
// Checks that a model can complete an image.

// Throws TypeError where `image` is not of the model's shape, and warns of one that looks inverted.
// model: as the server describes it. hidden(i): whether the token at i is unknown.
export function checkImage(image, hidden, model) {
  if (!model.image) throw new TypeError(`model ${model.name} draws no images`);
  const { height, width, channels } = model.image;
  if (image.length !== height * width * channels) {
    const shape = [height, width, ...(channels > 1 ? [channels] : [])].join(' x ');
    throw new TypeError(
      `the image has ${image.length} tokens, model ${model.name} draws ${shape} = ${height * width * channels}`,
    );
  }
  if (channels === 1 && hasLightBorder(image, hidden, height, width)) {
    console.warn(
      "lintel: the image's border is light: a model that draws light on dark, as those of MNIST do, " +
        'takes it inverted (255 - pixel)',
    );
  }
}

// True if the known pixels of the border are light.
function hasLightBorder(image, hidden, height, width) {
  const known = [];
  for (let i = 0; i < image.length; ++i) {
    const [row, column] = [Math.floor(i / width), i % width];
    const border = row === 0 || row === height - 1 || column === 0 || column === width - 1;
    if (border && !hidden(i)) known.push(image[i]);
  }
  known.sort((a, b) => a - b);
  return known.length > 0 && known[Math.floor(known.length / 2)] > 127;
}
