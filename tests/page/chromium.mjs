// A headless Chromium, driven by the DevTools protocol over a pipe: no package is needed.
// https://chromedevtools.github.io/devtools-protocol
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const PATIENCE = 120_000; // ms for what must happen soon, on a machine that is busy with other things

export class Chromium {
  #next = 0;
  #waiting = new Map(); // id -> {resolve, reject}
  #pages = new Map(); // session id -> Page
  #rest = '';

  static async start(binary = process.env.LINTEL_CHROMIUM ?? 'chromium') {
    const browser = new Chromium();
    browser.profile = mkdtempSync(join(tmpdir(), 'lintel-page-'));
    // No sandbox: a test may run as root in a container. Nothing is loaded but what the test serves.
    const flags = [
      '--headless=new',
      '--no-sandbox',
      '--remote-debugging-pipe',
      '--disable-gpu',
      '--disable-dev-shm-usage',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-default-apps',
      '--disable-sync',
      '--hide-scrollbars',
      '--force-color-profile=srgb',
      `--user-data-dir=${browser.profile}`,
      'about:blank',
    ];
    const child = spawn(binary, flags, { stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'] });
    browser.child = child;
    browser.log = '';
    child.stderr.on('data', (data) => (browser.log += data));
    browser.ended = new Promise((resolve) => child.once('exit', resolve));
    child.once('error', (error) => browser.#fail(error));
    browser.ended.then(() => browser.#fail(new Error(`Chromium ended:\n${browser.log.slice(-2000)}`)));
    child.stdio[3].on('error', () => {});
    child.stdio[4].setEncoding('utf8').on('data', (data) => browser.#read(data));
    await browser.send('Browser.getVersion');
    return browser;
  }

  #fail(error) {
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }

  #read(data) {
    const messages = (this.#rest + data).split('\0');
    this.#rest = messages.pop();
    for (const text of messages) {
      const { id, sessionId, method, params, result, error } = JSON.parse(text);
      if (id === undefined) {
        this.#pages.get(sessionId)?.event(method, params);
        continue;
      }
      const { resolve, reject } = this.#waiting.get(id) ?? {};
      this.#waiting.delete(id);
      if (error) reject?.(new Error(`${error.message} ${error.data ?? ''}`));
      else resolve?.(result);
    }
  }

  send(method, params = {}, sessionId) {
    const id = ++this.#next;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  // A page of its own browser context: nothing is shared with others.
  async page({ width = 1280, height = 900, scheme = 'light', mobile = false } = {}) {
    const { browserContextId } = await this.send('Target.createBrowserContext');
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank', browserContextId });
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId, browserContextId);
    this.#pages.set(sessionId, page);
    for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await page.send(`${domain}.enable`);
    await page.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile });
    await page.send('Emulation.setEmulatedMedia', {
      features: [{ name: 'prefers-color-scheme', value: scheme }],
    });
    return page;
  }

  async stop() {
    this.child.kill('SIGTERM');
    await this.ended;
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }
}

const KEYS = {
  ' ': { code: 'Space', key: ' ', text: ' ', windowsVirtualKeyCode: 32 },
  Enter: { code: 'Enter', key: 'Enter', text: '\r', windowsVirtualKeyCode: 13 },
};

class Page {
  requests = []; // addresses of all that was asked for
  complaints = []; // of the console, exceptions, what was refused

  constructor(browser, sessionId, contextId) {
    Object.assign(this, { browser, sessionId, contextId });
  }

  send(method, params) {
    return this.browser.send(method, params, this.sessionId);
  }

  event(method, params) {
    if (method === 'Network.requestWillBeSent') this.requests.push(params.request.url);
    if (method === 'Runtime.exceptionThrown')
      this.complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === 'Runtime.consoleAPICalled' && ['error', 'warning', 'assert'].includes(params.type)) {
      this.complaints.push(params.args.map((a) => a.value ?? a.description).join(' '));
    }
    if (method === 'Log.entryAdded' && ['error', 'warning'].includes(params.entry.level)) {
      this.complaints.push(`${params.entry.text} ${params.entry.url ?? ''}`);
    }
  }

  async go(url) {
    const { errorText } = await this.send('Page.navigate', { url });
    assert.equal(errorText, undefined, url);
    await this.until(
      `location.href.split('#')[0] === ${JSON.stringify(url.split('#')[0])} && document.readyState === 'complete'`,
      `${url} to load`,
    );
  }

  // The value of an expression, awaited.
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send('Runtime.evaluate', {
      expression,
      awaitPromise: true,
      returnByValue: true,
      userGesture: true,
    });
    if (exceptionDetails)
      throw new Error(`${expression}\n${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  // Waits for an expression to be true, and gives its value.
  async until(expression, what = expression) {
    for (const end = Date.now() + PATIENCE; ;) {
      const value = await this.evaluate(expression);
      if (value) return value;
      if (Date.now() > end) {
        const seen = await this.evaluate('document.body.innerText');
        assert.fail(`${what} did not come about\ncomplaints: ${this.complaints.join('\n')}\npage:\n${seen}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async key(key, modifiers = 0) {
    const what = KEYS[key] ?? {
      key,
      code: key,
      windowsVirtualKeyCode: {
        ArrowLeft: 37,
        ArrowUp: 38,
        ArrowRight: 39,
        ArrowDown: 40,
        Tab: 9,
        Home: 36,
        End: 35,
        Escape: 27,
      }[key],
    };
    await this.send('Input.dispatchKeyEvent', { type: 'keyDown', modifiers, ...what });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', modifiers, ...what, text: undefined });
  }

  type(text) {
    return this.send('Input.insertText', { text });
  }

  // Where an element's middle is, in view.
  async middle(selector) {
    return this
      .evaluate(`(() => { const e = document.querySelector(${JSON.stringify(selector)}); e.scrollIntoView({ block: 'center' });
      const b = e.getBoundingClientRect(); return { x: b.x + b.width / 2, y: b.y + b.height / 2, width: b.width, height: b.height }; })()`);
  }

  async mouse(type, x, y, buttons = 0) {
    await this.send('Input.dispatchMouseEvent', {
      type,
      x,
      y,
      button: type === 'mouseMoved' && !buttons ? 'none' : 'left',
      buttons,
      clickCount: 1,
    });
  }

  async click(selector) {
    const { x, y } = await this.middle(selector);
    await this.mouse('mousePressed', x, y, 1);
    await this.mouse('mouseReleased', x, y);
  }

  // The whole page as a PNG.
  async screenshot(file) {
    const { cssContentSize } = await this.send('Page.getLayoutMetrics');
    const clip = { x: 0, y: 0, width: cssContentSize.width, height: cssContentSize.height, scale: 1 };
    const { data } = await this.send('Page.captureScreenshot', {
      format: 'png',
      clip,
      captureBeyondViewport: true,
    });
    writeFileSync(file, Buffer.from(data, 'base64'));
  }

  close() {
    return this.browser.send('Target.disposeBrowserContext', { browserContextId: this.contextId });
  }
}
