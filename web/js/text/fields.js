// SPDX-License-Identifier: Apache-2.0
// The fields of a form as those of a GenerateRequest.

// The name of a field's input: messages may have fields of the same name.
export const inputName = ({ message, name }) => (message ? `${message}.${name}` : name);

// The value that an input has; undefined: the server's default.
function valueOf(type, { value, checked }) {
  if (type === 'flag') return checked || undefined;
  if (value === '') return undefined;
  return type === 'text' || type === 'position' ? value : Number(value); // 64 bits are more than a Number has
}

// The request with what the inputs say, each field in its message beside what is there. fields: as fields.js has
// them; inputs: by their names.
export function withFields(request, fields, inputs) {
  const out = { ...request };
  for (const field of fields) {
    const value = valueOf(field.type, inputs[inputName(field)]);
    if (value === undefined) continue;
    if (field.message) out[field.message] = { ...out[field.message], [field.name]: value };
    else out[field.name] = value;
  }
  return out;
}
