// SPDX-License-Identifier: Apache-2.0
// A question before something is lost.
import { byId } from './dom.js';

// Asks, and resolves to true if the answer is yes.
export function confirm(text, yes) {
  const dialog = byId('question');
  byId('question-text').textContent = text;
  byId('question-yes').textContent = yes;
  dialog.returnValue = 'no';
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true });
    dialog.showModal();
  });
}
