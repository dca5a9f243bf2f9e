// The features of ../FEATURES.md with rabbitmq-client; recovery with its Consumer and Publisher.

import { readFileSync } from 'node:fs';
import { Connection as Library } from 'rabbitmq-client';
import { CA_FILE, TLS_URL, URL_TEXT, within } from './report.js';
import { CANCELLED, Features, Inbox } from './suite.js';

const CODES = { NO_ROUTE: 312, CONNECTION_FORCED: 320, ACCESS_REFUSED: 403, NOT_FOUND: 404, RESOURCE_LOCKED: 405, PRECONDITION_FAILED: 406,
  NOT_ALLOWED: 530, NOT_IMPLEMENTED: 540 };

function decoded(raw) {
  const { deliveryTag, redelivered, exchange, routingKey, messageCount, replyCode, replyText, body, ...properties } = raw;
  // A text/plain body comes as a string.
  return { body: Buffer.from(body), properties, tag: deliveryTag, redelivered, exchange, key: routingKey, count: messageCount,
    returned: replyCode && [CODES[replyCode] ?? replyCode, replyText], raw };
}

const outcome = (sent) => sent.then(() => 'ack', (error) => {
  if (error.code === 'NACK') return 'nack';
  throw error;
});

class Connection {
  events = [];
  #channels = [];

  constructor(opened) {
    this.opened = opened;
    opened.on('error', (error) => (this.ended ??= error));
    opened.on('connection.blocked', () => this.events.push('blocked'));
    opened.on('connection.unblocked', () => this.events.push('unblocked'));
  }

  async channel(confirms = false) {
    const channel = new Channel(await this.opened.acquire({ emitErrorsFromChannel: true }), confirms);
    this.#channels.push(channel.opened);
    if (confirms) await channel.opened.confirmSelect();
    return channel;
  }

  /** The library waits until all channels that it gave out are closed. */
  async close() {
    await Promise.all(this.#channels.filter((channel) => channel.active).map((channel) => channel.close()));
    await this.opened.close();
  }

  isOpen() {
    return this.opened.ready;
  }
}

class Channel {
  returned = [];
  #inboxes = new Map();

  constructor(opened, confirms) {
    this.opened = opened;
    this.confirms = confirms;
    opened.on('error', (error) => (this.ended = error));
    opened.on('basic.return', (raw) => this.returned.push(decoded(raw)));
    opened.on('basic.cancel', (tag) => this.#inboxes.get(tag)?.waiting.push(CANCELLED));
  }

  close() {
    return this.opened.close();
  }

  exchangeDeclare(exchange, type, options) {
    return this.opened.exchangeDeclare({ exchange, type, ...options });
  }

  exchangePassive(exchange) {
    return this.opened.exchangeDeclare({ exchange, passive: true });
  }

  exchangeDelete(exchange) {
    return this.opened.exchangeDelete({ exchange });
  }

  exchangeBind(destination, source, routingKey, args) {
    return this.opened.exchangeBind({ destination, source, routingKey, arguments: args });
  }

  exchangeUnbind(destination, source, routingKey, args) {
    return this.opened.exchangeUnbind({ destination, source, routingKey, arguments: args });
  }

  async queueDeclare(queue, options) {
    const ok = await this.opened.queueDeclare({ queue, ...options });
    return [ok.queue, ok.messageCount, ok.consumerCount];
  }

  queuePassive(queue) {
    return this.queueDeclare(queue, { passive: true });
  }

  queueBind(queue, exchange, routingKey, args) {
    return this.opened.queueBind({ queue, exchange, routingKey, arguments: args });
  }

  queueUnbind(queue, exchange, routingKey, args) {
    return this.opened.queueUnbind({ queue, exchange, routingKey, arguments: args });
  }

  async queuePurge(queue) {
    return (await this.opened.queuePurge({ queue })).messageCount;
  }

  async queueDelete(queue, options = {}) {
    return (await this.opened.queueDelete({ queue, ...options })).messageCount;
  }

  qos(prefetchCount) {
    return this.opened.basicQos({ prefetchCount });
  }

  async consume(queue, { tag, noAck = false, exclusive = false } = {}) {
    const inbox = new Inbox();
    const ok = await this.opened.basicConsume({ queue, consumerTag: tag, noAck, exclusive }, (raw) => inbox.waiting.push(decoded(raw)));
    inbox.tag = ok.consumerTag;
    this.#inboxes.set(inbox.tag, inbox);
    return inbox;
  }

  cancel(inbox) {
    return this.opened.basicCancel({ consumerTag: inbox.tag });
  }

  async get(queue) {
    const raw = await this.opened.basicGet({ queue });
    return raw ? decoded(raw) : null;
  }

  ack(message, multiple) {
    this.opened.basicAck({ deliveryTag: message.tag, multiple });
  }

  nack(message, requeue) {
    this.opened.basicNack({ deliveryTag: message.tag, requeue });
  }

  /** There is no basic.reject. */
  reject(message, requeue) {
    this.nack(message, requeue);
  }

  ackTag(deliveryTag) {
    this.opened.basicAck({ deliveryTag });
  }

  txSelect() {
    return this.opened.txSelect();
  }

  txCommit() {
    return this.opened.txCommit();
  }

  txRollback() {
    return this.opened.txRollback();
  }

  async publish(exchange, routingKey, body, properties = {}, mandatory = false) {
    const sent = this.opened.basicPublish({ exchange, routingKey, mandatory, ...properties }, body);
    return this.confirms ? outcome(sent) : void (await sent);
  }
}

class RabbitmqClient {
  headers = {
    int32: -2_000_000_000, int64: 2 ** 40, double: 0.1, yes: true, no: false, text: 'text ✓', empty: '',
    void: null, table: { inner: { deep: 1 }, empty: {} }, array: [1, 'two', [0.1, null], { four: true }],
  };

  // The time and the delivery mode are written on every message.
  always = ['timestamp', 'deliveryMode'];

  async connect({ user = 'guest', password = 'guest', vhost, heartbeat = 0, tls = false }) {
    const url = new URL(tls ? TLS_URL : URL_TEXT);
    const opened = new Library({
      hostname: url.hostname, port: url.port, username: user, password, vhost: vhost ?? decodeURIComponent(url.pathname.slice(1)),
      heartbeat, connectionName: 'interop', retryLow: 300, retryHigh: 600, ...(tls && { tls: { ca: readFileSync(CA_FILE) } }),
    });
    try {
      await within('a connection', new Promise((resolve, reject) => opened.once('connection', resolve).once('error', reject)));
    } catch (error) {
      opened.unsafeDestroy();
      throw error;
    }
    return new Connection(opened);
  }

  closed(error) {
    // The message begins with the method that was refused.
    return CODES[error.code] ? [CODES[error.code], error.message.replace(/^[A-Za-z]+: /, '')] : null;
  }

  async provoke(channel, queue) {
    await channel.opened.basicPublish({ routingKey: queue, immediate: true }, Buffer.from('now'));
    return [540, 'NOT_IMPLEMENTED - immediate=true'];
  }

  async recovering(queue) {
    const connection = await this.connect({});
    const inbox = new Inbox();
    const working = new Set();
    const consumer = connection.opened.createConsumer({ queue, queueOptions: { durable: true }, qos: { prefetchCount: 10 } }, (raw) => {
      const message = decoded(raw);
      inbox.waiting.push(message);
      return new Promise((resolve) => {
        message.done = resolve;
        working.add(resolve);
      });
    });
    // It consumes again once the handlers from before are through.
    connection.opened.on('error', () => working.forEach((resolve) => resolve()));
    consumer.on('error', (error) => console.log('consumer:', error.message));
    const publisher = connection.opened.createPublisher({ confirm: true, maxAttempts: 1 });
    return {
      inbox,
      publish: (exchange, routingKey, body, properties) => outcome(publisher.send({ exchange, routingKey, ...properties }, body)),
      // The library acks once the handler's promise is kept.
      ack: (message) => message.done(),
      close: async () => {
        await publisher.close();
        await consumer.close();
        await connection.close();
      },
    };
  }
}

await new Features(new RabbitmqClient()).run();
