// SPDX-License-Identifier: Apache-2.0
// Shows what happens between a question and its answer's first token: the model loads, or reads.
import { isLoaded, models, stateName } from '../wire/models.js';

const EVERY = 1000; // ms

// show(text): called now and each second, until the function that this gives is called.
export function watchWaiting(model, show) {
  const start = performance.now();
  let loads = !isLoaded(model);
  let timer;
  let isOver = false;
  async function look() {
    const seconds = Math.floor((performance.now() - start) / 1000);
    const what = loads ? `${model.name} is being loaded` : 'waiting for the first token';
    show(seconds > 0 ? `${what}, ${seconds} s` : what);
    if (loads) {
      const now = await models(true).catch(() => []);
      loads = now.some((each) => each.name === model.name && stateName(each) !== 'loaded');
    }
    if (!isOver) timer = setTimeout(look, EVERY);
  }
  look();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}
