// SPDX-License-Identifier: Apache-2.0
// Sessions of the server.
import { unary } from './rpc.js';

// One that is in use is so for a moment only: its last call was stopped.
export async function deleteSession(id, options = {}, tries = 20) {
  try {
    await unary('SessionService/Delete', { id }, options);
  } catch (error) {
    if (error.code !== 'aborted' || tries === 0) throw error;
    await new Promise((resolve) => setTimeout(resolve, 100));
    await deleteSession(id, options, tries - 1);
  }
}
