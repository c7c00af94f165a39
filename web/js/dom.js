// SPDX-License-Identifier: Apache-2.0
// Elements: those of index.html by their names, and new ones in a line.

export const byId = (id) => document.getElementById(id);

// A child of an element: a node, or text.
function append(parent, child) {
  if (child === null || child === undefined || child === false) return;
  if (Array.isArray(child)) child.forEach((c) => append(parent, c));
  else parent.append(child);
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name === 'class') element.setAttribute('class', value);
  else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
  else if (name in element && element.namespaceURI === 'http://www.w3.org/1999/xhtml') element[name] = value;
  else element.setAttribute(name, value);
}

// h('button', { class: 'primary', onclick: go }, 'Go')
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  append(element, children);
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  append(element, children);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  return element;
}

// entries: [[value, label], ...]
export function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => h('option', { value, selected: value === chosen }, text)));
}

// The value of the checked radio button in `fieldset`.
export const chosen = (fieldset) => fieldset.querySelector(':checked').value;

// A status line: an event, or a failure, which looks like one.
export function tell(status, text) {
  delete status.dataset.state;
  status.textContent = text;
}
export function tellFailure(status, text) {
  status.dataset.state = 'bad';
  status.textContent = text;
}
// Shows an error; a call that was stopped has not failed.
export function tellError(status, error) {
  if (error.code === 'canceled') tell(status, 'stopped');
  else tellFailure(status, error.message);
}

// Says it to who cannot see it.
let saying;
export function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => (byId('news').textContent = text), 50);
}
