// SPDX-License-Identifier: Apache-2.0
// XMLHttpRequest over fetch, as far as Google's gRPC-Web client uses it: Node has none, and those on npm tell no text
// before the answer's end. https://xhr.spec.whatwg.org

export class XMLHttpRequest {
  readyState = 0;
  status = 0;
  statusText = '';
  responseText = '';
  response = null;
  responseType = '';
  onreadystatechange = () => {};
  #headers = new Headers();
  #answered = new Headers();
  #leave = new AbortController();

  open(method, url) {
    Object.assign(this, { method, url });
    this.#become(1);
  }
  setRequestHeader(name, value) {
    this.#headers.append(name, value);
  }
  getResponseHeader(name) {
    return this.#answered.get(name);
  }
  getAllResponseHeaders() {
    return [...this.#answered].map(([name, value]) => `${name}: ${value}\r\n`).join('');
  }
  abort() {
    this.#leave.abort();
  }

  async send(body) {
    try {
      const { method, url } = this;
      const response = await fetch(url, { method, headers: this.#headers, body, signal: this.#leave.signal });
      this.#answered = response.headers;
      [this.status, this.statusText] = [response.status, response.statusText];
      this.#become(2);
      if (this.responseType === 'arraybuffer') {
        this.response = await response.arrayBuffer();
      } else {
        for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
          this.response = this.responseText += piece;
          this.#become(3);
        }
      }
    } catch {
      this.status = 0; // of what did not come to its end
    }
    this.#become(4);
  }

  #become(state) {
    this.readyState = state;
    if (!this.#leave.signal.aborted) this.onreadystatechange?.();
  }
}
