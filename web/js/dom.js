// Elements, made in a line.

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
  else if (name.includes('-') || name === 'role' || element.namespaceURI !== 'http://www.w3.org/1999/xhtml') {
    element.setAttribute(name, value);
  } else if (name in element) element[name] = value;
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

// A labelled control.
export function field(label, control, hint) {
  return h('label', { class: 'field' }, h('span', {}, label), control, hint && h('small', {}, hint));
}

export function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => h('option', { value, selected: value === chosen }, text)));
}

// Says it to who cannot see it.
let saying;
export function say(text) {
  clearTimeout(saying);
  saying = setTimeout(() => (document.getElementById('news').textContent = text), 50);
}

// Buttons of which one is pressed; told to `choose`. entries: [value, label].
export function choice(label, entries, chosen, choose) {
  const press = (value) => {
    for (const button of group.children) button.setAttribute('aria-pressed', button.dataset.value === value);
  };
  const group = h('div', { class: 'choice', role: 'group', 'aria-label': label }, entries.map(([value, text]) => {
    const button = h('button', { type: 'button', onclick: () => (press(value), choose(value)) }, text);
    button.dataset.value = value;
    return button;
  }));
  press(chosen);
  return group;
}
