// SPDX-License-Identifier: Apache-2.0
// How tokens are sampled: the fields of lintel.v1.Sampling that the page has. Made by scripts/fields.py.
export const samplingFields = [
  {
    name: 'temperature',
    label: 'Temperature',
    default: '1',
    help: '0: the most likely token; 1: the model\'s distribution',
    whole: false,
    low: 0,
    high: 1000,
  },
  {
    name: 'topK',
    label: 'Top k',
    default: 'all',
    help: 'Keep the K most likely tokens; 0: all',
    whole: true,
    low: 0,
  },
  {
    name: 'topP',
    label: 'Top p',
    default: '1',
    help: 'Keep the smallest set of tokens with this probability',
    whole: false,
    low: 0,
    high: 1,
  },
  {
    name: 'minP',
    label: 'Min p',
    default: '0',
    help: 'Drop tokens below this share of the most likely one\'s probability',
    whole: false,
    low: 0,
    high: 1,
  },
  {
    name: 'repetitionPenalty',
    label: 'Repetition',
    default: '1',
    help: 'Divides (multiplies) positive (negative) logits of tokens that occurred',
    whole: false,
    low: 0.001,
    high: 1000,
  },
];
