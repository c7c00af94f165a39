// SPDX-License-Identifier: Apache-2.0
// Copies a text. A page that comes from another machine without TLS has no navigator.clipboard.
import { h, say } from '../dom.js';

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = h('textarea', { class: 'unseen', value: text });
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand('copy');
  field.remove();
  focused?.focus();
  if (!isDone) throw new Error('the browser does not copy');
}

// text(): what is copied.
export function copyButton(what, text) {
  const button = h('button', { type: 'button', 'aria-label': what, class: 'small' }, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await copy(text());
      button.textContent = 'Copied';
      say('Copied');
    } catch {
      button.textContent = 'Not copied';
    }
    setTimeout(() => (button.textContent = 'Copy'), 2000);
  });
  return button;
}
