// Servers of a test's own beside the stack's: their configurations are the stack's (STACK_FOLDER) with changes.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const { STACK_FOLDER: stack, BINARIES: binaries } = process.env;
const READY_MS = 30_000;

// Below the ephemeral ports, so that no connection takes it before its server has it.
async function freePort() {
  for (;;) {
    const port = randomInt(10000, 30000);
    const server = createServer().listen(port, '127.0.0.1');
    try {
      await once(server, 'listening');
    } catch {
      continue;
    }
    server.close();
    await once(server, 'close');
    return port;
  }
}

export const setting = (config, name) => config.match(new RegExp(`^${name}: *"([^"]*)"`, 'm'))[1];

export class Server {
  // `change(config)` gives the configuration of stack server `name` another shape; every address that it listens on
  // is replaced by a free one.
  static async start(binary, name, change = (config) => config) {
    const server = new Server();
    server.folder = mkdtempSync(join(tmpdir(), 'aludel-client-'));
    let config = readFileSync(join(stack, `${name}.textproto`), 'utf8');
    for (const listener of ['listen', 'admin_listen']) {
      if (!new RegExp(`^${listener}:`, 'm').test(config)) continue;
      const address = `127.0.0.1:${await freePort()}`;
      config = config.replace(new RegExp(`^${listener}: *"[^"]*"`, 'm'), `${listener}: "${address}"`);
    }
    server.config = change(config, server.folder);
    const file = join(server.folder, 'config.textproto');
    writeFileSync(file, server.config);
    const log = openSync(join(server.folder, 'log'), 'w');
    server.process = spawn(join(binaries, binary), ['--config', file], { stdio: ['ignore', log, log] });
    server.ended = once(server.process, 'exit');
    return server;
  }

  get address() {
    return setting(this.config, 'listen');
  }

  log() {
    return readFileSync(join(this.folder, 'log'), 'utf8');
  }

  async stop(signal = 'SIGTERM') {
    this.process.kill(signal);
    await this.ended;
  }

  async remove() {
    await this.stop('SIGKILL');
    rmSync(this.folder, { recursive: true });
  }
}

export async function until(what, done) {
  for (const deadline = Date.now() + READY_MS; ; await sleep(20)) {
    if (await done()) return;
    assert.ok(Date.now() < deadline, `not ${what} within ${READY_MS} ms`);
  }
}

// Whether a GET is answered with `status`; a server that does not listen yet answers with none.
export async function answers(address, status) {
  try {
    return (await fetch(address)).status === status;
  } catch {
    return false;
  }
}
