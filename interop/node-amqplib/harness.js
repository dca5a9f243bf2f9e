// What the patterns stand on: connections, checks with messages, time limits, clean-up.

import { randomBytes } from 'node:crypto';
import { inspect, isDeepStrictEqual } from 'node:util';
import amqp from 'amqplib';

const PATTERN_LIMIT_MS = 40_000;
const WAIT_LIMIT_MS = 10_000;

export const URL_TEXT = process.env.AMQP_URL ?? 'amqp://guest:guest@127.0.0.1:5672/';
export const USER = decodeURIComponent(new URL(URL_TEXT).username) || 'guest';
export const VHOST = decodeURIComponent(new URL(URL_TEXT).pathname.slice(1)) || '/';
const RUN = `interop.amqplib.${randomBytes(4).toString('hex')}`;

/** A check failed; the message says what was expected and what came. */
export class Mismatch extends Error {}

const show = (value) => inspect(value, { depth: 6, breakLength: Infinity, maxStringLength: 300 });

export function equal(what, expected, got) {
  if (!isDeepStrictEqual(expected, got)) {
    throw new Mismatch(`${what}: expected ${show(expected)}, got ${show(got)}`);
  }
}

async function within(limitMs, failure, coming) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Mismatch(`${failure} within ${limitMs / 1000} s, got nothing`)), limitMs);
  });
  try {
    return await Promise.race([coming, limit]);
  } finally {
    clearTimeout(timer);
  }
}

export const arrives = (what, coming) => within(WAIT_LIMIT_MS, `expected ${what}`, coming);

export async function connect(url = URL_TEXT) {
  const connection = await amqp.connect(url, { timeout: WAIT_LIMIT_MS });
  // Without a listener an error ends the process; the pending calls report it as well.
  connection.on('error', () => {});
  return connection;
}

export async function open(connection, kind = 'createChannel') {
  const channel = await connection[kind]();
  channel.on('error', () => {});
  return channel;
}

/** Names that no other run uses, and what has to be deleted at the end. */
export class Names {
  #prefix;
  #queues = [];
  #exchanges = [];

  constructor(pattern) {
    this.#prefix = `${RUN}.${pattern}`;
  }

  queue(role) {
    const name = `${this.#prefix}.${role}`;
    this.#queues.push(name);
    return name;
  }

  exchange(role) {
    const name = `${this.#prefix}.${role}`;
    this.#exchanges.push(name);
    return name;
  }

  async deleteAll() {
    const connection = await connect();
    const channel = await open(connection);
    for (const queue of this.#queues) await channel.deleteQueue(queue);
    for (const exchange of this.#exchanges) await channel.deleteExchange(exchange);
    await connection.close();
  }
}

/** The deliveries of one consumer, in order of arrival; null is the server's cancel. */
export class Inbox {
  waiting = [];
  #wake = () => {};

  static async consume(channel, queue, options) {
    const inbox = new Inbox();
    inbox.channel = channel;
    const consumed = await channel.consume(queue, (message) => inbox.#arrived(message), options);
    inbox.tag = consumed.consumerTag;
    return inbox;
  }

  #arrived(message) {
    this.waiting.push(message);
    this.#wake();
  }

  async next() {
    if (this.waiting.length === 0) {
      await arrives('a delivery', new Promise((resolve) => (this.#wake = resolve)));
    }
    return this.waiting.shift();
  }

  async take() {
    const message = await this.next();
    if (message === null) throw new Mismatch("expected a delivery, got the consumer's cancel");
    equal('consumer tag', this.tag, message.fields.consumerTag);
    return message;
  }

  ack(message) {
    this.channel.ack(message);
  }
}

export const text = (message) => message.content.toString();

/** Sends to a queue and returns once the broker has it, so that counts are exact afterwards. */
export async function publishConfirmed(connection, queue, bodies, options = {}) {
  const channel = await open(connection, 'createConfirmChannel');
  let returned = 0;
  channel.on('return', () => (returned += 1));
  for (const body of bodies) channel.sendToQueue(queue, Buffer.from(body), { ...options, mandatory: true });
  await arrives('all confirms', channel.waitForConfirms());
  equal('returned messages', 0, returned);
  await channel.close();
}

export async function readyCount(connection, queue) {
  const channel = await open(connection);
  const { messageCount } = await channel.checkQueue(queue);
  await channel.close();
  return messageCount;
}

/** `step` must close its channel, and only that, with this code and text. */
export async function refused(connection, code, reason, step) {
  const channel = await open(connection);
  const closed = new Promise((resolve) => channel.once('error', resolve));
  // A call that has a reply is rejected too; the event comes for those without one as well.
  const rejected = Promise.resolve(step(channel)).catch(() => {});
  const error = await arrives(`channel error ${code} ${reason}`, closed);
  await rejected;
  equal('channel error', [code, reason], [error.code, /with message "(.*)"$/s.exec(error.message)?.[1]]);
}

async function attempt(step) {
  try {
    await within(PATTERN_LIMIT_MS, 'expected an end', step());
    return null;
  } catch (error) {
    return error instanceof Mismatch ? error.message : `expected no error, got ${error?.stack ?? error}`;
  }
}

export async function main(patterns) {
  let failed = false;
  for (const [name, pattern] of Object.entries(patterns)) {
    const names = new Names(name);
    const wrong = await attempt(() => pattern(names));
    const leftOver = await attempt(() => names.deleteAll());
    failed ||= (wrong ?? leftOver) !== null;
    console.log((wrong ?? leftOver) === null ? `ok ${name}` : `fail ${name}: ${wrong ?? leftOver}`);
  }
  // A connection that a failed pattern left open would keep the process alive.
  process.exit(failed ? 1 : 0);
}
