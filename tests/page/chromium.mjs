// SPDX-License-Identifier: Apache-2.0
// A headless Chromium, driven by the DevTools protocol over a pipe: no package is needed.
// https://chromedevtools.github.io/devtools-protocol
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// On a machine that is busy with other things, in ms: for what must happen soon, for Chromium's answer to a command,
// and for each part of the account of one that has none. All of it together stays below the test's own time limit.
export const PATIENCE = 120_000;
const ANSWER = 60_000;
const ACCOUNT = 5_000;

class Late extends Error {}

function within(time, promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Late(`${what} within ${time / 1000} s`)), time);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export class Chromium {
  #next = 0;
  #waiting = new Map(); // id -> {resolve, reject, sessionId}
  #pages = new Map(); // session id -> Page
  #over; // why there is no Chromium any more
  #rest = '';

  // `more`: flags of Chromium's.
  static async start(more = [], binary = process.env.LINTEL_CHROMIUM ?? 'chromium') {
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
      ...more,
      'about:blank',
    ];
    const child = spawn(binary, flags, { stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'] });
    browser.child = child;
    browser.log = '';
    child.stderr.on('data', (data) => (browser.log += data));
    // Waits for all its processes: they share its standard error, and still write to the profile when the first has
    // exited.
    browser.ended = new Promise((resolve) => child.once('close', resolve));
    child.once('error', (error) => browser.#end(error));
    child.once('exit', () => browser.#end(new Error(`Chromium ended\n${browser.#account()}`)));
    child.stdio[3].on('error', () => {});
    child.stdio[4].setEncoding('utf8').on('data', (data) => browser.#read(data));
    await browser.send('Browser.getVersion');
    return browser;
  }

  #end(error) {
    this.#over = error;
    this.#fail(error, () => true);
  }

  #fail(error, isMeant) {
    for (const [id, waiting] of this.#waiting) {
      if (!isMeant(waiting)) continue;
      this.#waiting.delete(id);
      waiting.reject(error);
    }
  }

  #read(data) {
    const messages = (this.#rest + data).split('\0');
    this.#rest = messages.pop();
    for (const text of messages) {
      const { id, sessionId, method, params, result, error } = JSON.parse(text);
      if (id === undefined) {
        if (method === 'Inspector.targetCrashed') {
          this.#fail(new Error(`a page crashed\n${this.#account()}`), (waiting) => waiting.sessionId === sessionId);
        }
        this.#pages.get(sessionId)?.event(method, params);
        continue;
      }
      const { resolve, reject } = this.#waiting.get(id) ?? {};
      this.#waiting.delete(id);
      if (error) reject?.(new Error(`${error.message} ${error.data ?? ''}`));
      else resolve?.(result);
    }
  }

  // A command's result. Where none comes in `patience` ms it fails with an account of what its page was like.
  async send(method, params = {}, sessionId, patience = ANSWER) {
    if (this.#over) throw this.#over;
    const id = ++this.#next;
    const answer = new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, sessionId });
      this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
    try {
      return await within(patience, answer, `Chromium did not answer ${method}`);
    } catch (error) {
      if (!(error instanceof Late) || patience === ACCOUNT) throw error;
      const page = await this.#pages.get(sessionId)?.account();
      error.message += `: ${JSON.stringify(params).slice(0, 500)}\n${page ?? ''}\n${this.#account()}`;
      throw error;
    }
  }

  #account() {
    return `Chromium's log ends with:\n${this.log.slice(-2000)}`;
  }

  // A page of its own browser context: nothing is shared with others, but with `beside`, a page, if that is given.
  async page({ width = 1280, height = 900, scheme = 'light', mobile = false, beside } = {}) {
    const { browserContextId } = beside
      ? { browserContextId: beside.contextId }
      : await this.send('Target.createBrowserContext');
    const { targetId } = await this.send('Target.createTarget', { url: 'about:blank', browserContextId });
    const { sessionId } = await this.send('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId, browserContextId);
    this.#pages.set(sessionId, page);
    for (const domain of ['Inspector', 'Page', 'Runtime', 'Network', 'Log']) await page.send(`${domain}.enable`);
    const { LINTEL_MUTATION } = process.env; // a defect of scripts/mutate.py
    if (LINTEL_MUTATION) {
      const source = `globalThis.LINTEL_MUTATION = (name) => name === ${JSON.stringify(LINTEL_MUTATION)}`;
      await page.send('Page.addScriptToEvaluateOnNewDocument', { source });
    }
    await page.send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile });
    await page.send('Emulation.setEmulatedMedia', {
      features: [{ name: 'prefers-color-scheme', value: scheme }],
    });
    return page;
  }

  async stop() {
    this.child.kill('SIGTERM');
    // Nothing of it is needed any more.
    await within(ANSWER, this.ended, 'Chromium did not end').catch(() => (this.child.kill('SIGKILL'), this.ended));
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
  #last = []; // what happened last, for the account of a page that hangs

  constructor(browser, sessionId, contextId) {
    Object.assign(this, { browser, sessionId, contextId });
  }

  send(method, params) {
    return this.browser.send(method, params, this.sessionId);
  }

  event(method, params) {
    this.#last.push(`${method} ${JSON.stringify(params).slice(0, 200)}`);
    if (this.#last.length > 20) this.#last.shift();
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

  // An account of the page, of which no part may be had where it hangs: its state, whether it paints, its picture,
  // and the last events.
  async account() {
    const part = async (name, make) => {
      try {
        return `${name}: ${await make()}`;
      } catch (error) {
        return `${name}: ${error.message}`;
      }
    };
    const evaluate = async (expression) => {
      const params = { expression, awaitPromise: true, returnByValue: true };
      const { result } = await this.browser.send('Runtime.evaluate', params, this.sessionId, ACCOUNT);
      return result.value;
    };
    const file = join(process.env.LINTEL_SCREENSHOTS ?? tmpdir(), `hung-${process.pid}.png`);
    return [
      await part('page', () =>
        evaluate(`[location.href, document.readyState, document.visibilityState, document.hasFocus() ? 'focused' : 'unfocused',
          document.body?.innerText.slice(0, 1000)].join('\\n')`),
      ),
      await part('frames', () =>
        evaluate(`Promise.race([new Promise((resolve) => requestAnimationFrame(() => resolve('are painted'))),
          new Promise((resolve) => setTimeout(resolve, 2000, 'none in 2 s'))])`),
      ),
      await part('picture', () => this.screenshot(file, ACCOUNT).then(() => file)),
      `complaints: ${this.complaints.join('\n')}`,
      `last events:\n${this.#last.join('\n')}`,
    ].join('\n');
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
        assert.fail(`${what} did not come about\n${await this.account()}`);
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

  // The middle of an element, in view.
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
  async screenshot(file, patience = ANSWER) {
    const send = (method, params) => this.browser.send(method, params, this.sessionId, patience);
    const { cssContentSize } = await send('Page.getLayoutMetrics');
    const clip = { x: 0, y: 0, width: cssContentSize.width, height: cssContentSize.height, scale: 1 };
    const { data } = await send('Page.captureScreenshot', { format: 'png', clip, captureBeyondViewport: true });
    writeFileSync(file, Buffer.from(data, 'base64'));
  }

  close() {
    return this.browser.send('Target.disposeBrowserContext', { browserContextId: this.contextId });
  }
}
