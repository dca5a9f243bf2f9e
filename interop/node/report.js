// The line protocol with the driver (see ../README.md): results of features, and commands for the broker.

import { randomBytes } from 'node:crypto';
import { createInterface } from 'node:readline';
import { isDeepStrictEqual, inspect } from 'node:util';

export const URL_TEXT = process.env.AMQP_URL ?? 'amqp://guest:guest@127.0.0.1:5672/%2F';
export const TLS_URL = process.env.AMQPS_URL;
export const CA_FILE = process.env.INTEROP_CA;
export const FULL = Boolean(process.env.INTEROP_FULL);
export const BROKER = process.env.INTEROP_BROKER ?? 'other';
export const RUN = `interop.${randomBytes(4).toString('hex')}`;
export const WAIT_LIMIT_MS = 10_000;

/** A check failed; the message says what was expected and what came. */
export class Mismatch extends Error {}

/** The library or the broker cannot be asked this; the message says why. */
export class NotApplicable extends Error {}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export function equal(what, expected, got) {
  if (!isDeepStrictEqual(expected, got)) {
    throw new Mismatch(`${what}: expected ${inspect(expected, { depth: 6 })}, got ${inspect(got, { depth: 6 })}`);
  }
}

/** Waits until `condition` gives something, and gives that. */
export async function eventually(what, condition, limitMs = WAIT_LIMIT_MS) {
  const deadline = Date.now() + limitMs;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > deadline) throw new Mismatch(`expected ${what} within ${limitMs} ms, got nothing`);
    await sleep(10);
  }
}

export async function within(what, promise, limitMs = WAIT_LIMIT_MS) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Mismatch(`expected ${what} within ${limitMs} ms, got nothing`)), limitMs);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

const answers = [];
const asking = [];
createInterface({ input: process.stdin }).on('line', (line) => (asking.length ? asking.shift()(line) : answers.push(line)));

/** Has the driver do something to the broker or to this process, and waits until it is done. */
export async function control(command) {
  console.log(`do ${command}`);
  const answer = answers.shift() ?? (await new Promise((resolve) => asking.push(resolve)));
  if (answer !== 'done') throw new NotApplicable(answer.replace(/^n\/a /, ''));
}

const oneLine = (text) => String(text).replace(/\s+/g, ' ');

/** Runs each feature and reports it; ends the process, with 1 if one failed. */
export async function run(features) {
  const only = process.argv.slice(2);
  let failed = false;
  process.on('uncaughtException', (error) => console.log('uncaught:', error));
  process.on('unhandledRejection', (error) => console.log('unhandled:', error));
  for (const [name, feature] of Object.entries(features)) {
    if (only.length && !only.includes(name)) continue;
    try {
      await within('its end', feature(), 150_000);
      console.log(`ok ${name}`);
    } catch (error) {
      if (error instanceof NotApplicable) {
        console.log(`n/a ${name}: ${oneLine(error.message)}`);
        continue;
      }
      failed = true;
      if (!(error instanceof Mismatch)) console.log(error);
      console.log(`fail ${name}: ${oneLine(error instanceof Mismatch ? error.message : `${error?.name}: ${error?.message}`)}`);
    }
  }
  // A connection that a failed feature left open would keep the process alive.
  process.exit(failed ? 1 : 0);
}
