// The features of ../FEATURES.md with amqplib, its promise API (or, with the word callback, its callback API).

import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import promises from 'amqplib';
import callbacks from 'amqplib/callback_api';
import { CA_FILE, TLS_URL, URL_TEXT } from './report.js';
import { CANCELLED, Features, Inbox } from './suite.js';

const callback = process.argv[2] === 'callback' && process.argv.splice(2, 1).length === 1;

/** `object.method(…)` as a promise, in either API. */
const call = (object, method, ...args) => (callback ? promisify(object[method].bind(object))(...args) : object[method](...args));

function decoded(raw) {
  const { deliveryTag, redelivered, exchange, routingKey, messageCount, replyCode, replyText } = raw.fields;
  return { body: raw.content, properties: raw.properties, tag: deliveryTag, redelivered, exchange, key: routingKey, count: messageCount,
    returned: replyCode && [replyCode, replyText], raw };
}

class Connection {
  events = [];
  #open = true;

  constructor(opened) {
    this.opened = opened;
    opened.on('error', (error) => (this.ended ??= error));
    opened.on('close', (error) => {
      this.#open = false;
      this.ended ??= error;
    });
    opened.on('blocked', () => this.events.push('blocked'));
    opened.on('unblocked', () => this.events.push('unblocked'));
  }

  async channel(confirms = false) {
    return new Channel(await call(this.opened, confirms ? 'createConfirmChannel' : 'createChannel'), confirms);
  }

  close() {
    return call(this.opened, 'close');
  }

  isOpen() {
    return this.#open;
  }

  product() {
    return (this.opened.connection ?? this.opened).serverProperties.product;
  }
}

class Channel {
  returned = [];

  constructor(opened, confirms) {
    this.opened = opened;
    this.confirms = confirms;
    opened.on('error', (error) => (this.ended = error));
    opened.on('return', (raw) => this.returned.push(decoded(raw)));
  }

  close() {
    return call(this.opened, 'close');
  }

  exchangeDeclare(name, type, options) {
    return call(this.opened, 'assertExchange', name, type, options);
  }

  exchangePassive(name) {
    return call(this.opened, 'checkExchange', name);
  }

  exchangeDelete(name) {
    return call(this.opened, 'deleteExchange', name, {});
  }

  exchangeBind(to, source, key, args) {
    return call(this.opened, 'bindExchange', to, source, key, args);
  }

  exchangeUnbind(to, source, key, args) {
    return call(this.opened, 'unbindExchange', to, source, key, args);
  }

  async queueDeclare(name, options) {
    const ok = await call(this.opened, 'assertQueue', name, { durable: false, ...options });
    return [ok.queue, ok.messageCount, ok.consumerCount];
  }

  async queuePassive(name) {
    const ok = await call(this.opened, 'checkQueue', name);
    return [ok.queue, ok.messageCount, ok.consumerCount];
  }

  queueBind(queue, exchange, key, args) {
    return call(this.opened, 'bindQueue', queue, exchange, key, args);
  }

  queueUnbind(queue, exchange, key, args) {
    return call(this.opened, 'unbindQueue', queue, exchange, key, args);
  }

  async queuePurge(queue) {
    return (await call(this.opened, 'purgeQueue', queue)).messageCount;
  }

  async queueDelete(queue, options = {}) {
    return (await call(this.opened, 'deleteQueue', queue, options)).messageCount;
  }

  qos(count) {
    return callback ? this.opened.prefetch(count, false) : this.opened.prefetch(count);
  }

  async consume(queue, { tag, noAck = false, exclusive = false } = {}) {
    const inbox = new Inbox();
    const arrived = (raw) => inbox.waiting.push(raw === null ? CANCELLED : decoded(raw));
    const ok = await call(this.opened, 'consume', queue, arrived, { consumerTag: tag, noAck, exclusive });
    inbox.tag = ok.consumerTag;
    return inbox;
  }

  cancel(inbox) {
    return call(this.opened, 'cancel', inbox.tag);
  }

  async get(queue) {
    const raw = await call(this.opened, 'get', queue, {});
    return raw ? decoded(raw) : null;
  }

  ack(message, multiple) {
    this.opened.ack(message.raw, multiple);
  }

  nack(message, requeue) {
    this.opened.nack(message.raw, false, requeue);
  }

  reject(message, requeue) {
    this.opened.reject(message.raw, requeue);
  }

  ackTag(deliveryTag) {
    this.opened.ack({ fields: { deliveryTag } });
  }

  async publish(exchange, key, body, { clusterId, ...properties } = {}, mandatory = false) {
    if (!this.confirms) return void this.opened.publish(exchange, key, body, { ...properties, mandatory });
    return new Promise((resolve, reject) => {
      this.opened.publish(exchange, key, body, { ...properties, mandatory }, (error) => {
        if (error && error.message !== 'message nacked') reject(error);
        else resolve(error ? 'nack' : 'ack');
      });
    });
  }
}

class Amqplib {
  headers = {
    int8: -100, int16: -30000, int32: -2_000_000_000, int64: 2 ** 40, double: 0.1, yes: true, no: false, text: 'text ✓', empty: '',
    bytes: Buffer.from([255, 0, 1]), time: { '!': 'timestamp', value: 1709208000 }, decimal: { '!': 'decimal', value: { digits: 12345, places: 2 } },
    void: null, table: { inner: { deep: 1 }, empty: {} }, array: [1, 'two', [0.1, null], { four: true }],
  };

  noProperties = ['clusterId'];

  mechanisms = ['AMQPLAIN'];

  tellsUnknownVhost = false;

  unable = { tx: 'library has no tx' };

  async connect({ user = 'guest', password = 'guest', vhost, mechanism = 'PLAIN', heartbeat = 0, tls = false }) {
    const url = new URL(tls ? TLS_URL : URL_TEXT);
    url.username = user;
    url.password = password;
    if (vhost) url.pathname = vhost;
    url.searchParams.set('heartbeat', heartbeat);
    const options = { timeout: 10_000, clientProperties: { connection_name: 'interop' } };
    if (tls) options.ca = [readFileSync(CA_FILE)];
    if (mechanism === 'AMQPLAIN') options.credentials = promises.credentials.amqplain(user, password);
    return new Connection(await call(callback ? callbacks : promises, 'connect', url.href, options));
  }

  closed(error) {
    const found = /with message "(.*)"$/s.exec(error.message) ?? /"(.*)"$/s.exec(error.message);
    const code = error.code ?? Number(/(\d{3}) \(/.exec(error.message)?.[1]);
    return found && code ? [code, found[1]] : null;
  }

  async provoke(channel, queue) {
    channel.opened.consume(queue, () => {}, { consumerTag: 'twice' });
    channel.opened.consume(queue, () => {}, { consumerTag: 'twice' });
    return [530, "NOT_ALLOWED - attempt to reuse consumer tag 'twice'"];
  }
}

await new Features(new Amqplib()).run();
