// The features of ../FEATURES.md with @cloudamqp/amqp-client; recovery with its AMQPSession.

import { AMQPClient, AMQPSession } from '@cloudamqp/amqp-client';
import { readFileSync } from 'node:fs';
import { CA_FILE, TLS_URL, URL_TEXT } from './report.js';
import { CANCELLED, Features, Inbox } from './suite.js';

function decoded(raw) {
  const properties = { ...raw.properties };
  if (properties.timestamp) properties.timestamp = properties.timestamp.getTime() / 1000;
  return { body: Buffer.from(raw.body ?? []), properties, tag: raw.deliveryTag, redelivered: raw.redelivered, exchange: raw.exchange,
    key: raw.routingKey, count: raw.messageCount, returned: raw.replyCode && [raw.replyCode, raw.replyText], raw };
}

function encoded({ timestamp, clusterId, ...properties } = {}) {
  return timestamp ? { ...properties, timestamp: new Date(timestamp * 1000) } : properties;
}

const outcome = (sent) => sent.then(() => 'ack', (error) => {
  if (error.message === 'Message rejected') return 'nack';
  throw error;
});

class Connection {
  events = [];

  constructor(opened) {
    this.opened = opened;
    opened.onerror = (error) => (this.ended ??= error);
    opened.ondisconnect = (error) => (this.ended ??= error);
    opened.onblocked = () => this.events.push('blocked');
    opened.onunblocked = () => this.events.push('unblocked');
  }

  async channel(confirms = false) {
    const channel = new Channel(await this.opened.channel(), confirms);
    if (confirms) await channel.opened.confirmSelect();
    return channel;
  }

  close() {
    return this.opened.close();
  }

  isOpen() {
    return !this.opened.closed;
  }
}

class Channel {
  returned = [];

  constructor(opened, confirms) {
    this.opened = opened;
    this.confirms = confirms;
    opened.onerror = (reason) => (this.ended = new Error(reason));
    opened.onReturn = (raw) => this.returned.push(decoded(raw));
  }

  close() {
    return this.opened.close();
  }

  exchangeDeclare(name, type, options) {
    return this.opened.exchangeDeclare(name, type, { autoDelete: false, internal: false, durable: false, ...options });
  }

  exchangePassive(name) {
    return this.opened.exchangeDeclare(name, '', { passive: true });
  }

  exchangeDelete(name) {
    return this.opened.exchangeDelete(name);
  }

  exchangeBind(to, source, key, args) {
    return this.opened.exchangeBind(to, source, key, args);
  }

  exchangeUnbind(to, source, key, args) {
    return this.opened.exchangeUnbind(to, source, key, args);
  }

  async queueDeclare(name, { durable = false, autoDelete = false, exclusive = false, passive = false, arguments: args = {} } = {}) {
    const ok = await this.opened.queueDeclare(name, { durable, autoDelete, exclusive, passive }, args);
    return [ok.name, ok.messageCount, ok.consumerCount];
  }

  queuePassive(name) {
    return this.queueDeclare(name, { passive: true });
  }

  queueBind(queue, exchange, key, args) {
    return this.opened.queueBind(queue, exchange, key, args);
  }

  queueUnbind(queue, exchange, key, args) {
    return this.opened.queueUnbind(queue, exchange, key, args);
  }

  async queuePurge(queue) {
    return (await this.opened.queuePurge(queue)).messageCount;
  }

  async queueDelete(queue, options) {
    return (await this.opened.queueDelete(queue, options)).messageCount;
  }

  qos(count) {
    return this.opened.basicQos(count);
  }

  async consume(queue, { tag = '', noAck = false, exclusive = false } = {}) {
    const inbox = new Inbox();
    const consumer = await this.opened.basicConsume(queue, { tag, noAck, exclusive }, (raw) => void inbox.waiting.push(decoded(raw)));
    consumer.wait().catch((error) => /cancelled by the server/.test(error.message) && inbox.waiting.push(CANCELLED));
    inbox.tag = consumer.tag;
    return inbox;
  }

  cancel(inbox) {
    return this.opened.basicCancel(inbox.tag);
  }

  async get(queue) {
    const raw = await this.opened.basicGet(queue, { noAck: false });
    return raw ? decoded(raw) : null;
  }

  ack(message, multiple) {
    return this.opened.basicAck(message.tag, multiple);
  }

  nack(message, requeue) {
    return this.opened.basicNack(message.tag, requeue);
  }

  reject(message, requeue) {
    return this.opened.basicReject(message.tag, requeue);
  }

  ackTag(tag) {
    return this.opened.basicAck(tag);
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

  async publish(exchange, key, body, properties, mandatory = false) {
    const sent = this.opened.basicPublish(exchange, key, body, encoded(properties), mandatory);
    return this.confirms ? outcome(sent) : void (await sent);
  }
}

class CloudAmqp {
  headers = {
    int8: -100, int32: -2_000_000_000, int64: 2 ** 40, float: 0.5, yes: true, no: false, text: 'text ✓', empty: '',
    time: new Date(1709208000_000), void: null, table: { inner: { deep: 1 }, empty: {} }, array: [1, 'two', [0.5, null], { four: true }],
  };

  noProperties = ['clusterId'];

  async connect({ user = 'guest', password = 'guest', vhost, heartbeat = 0, tls = false }) {
    const url = new URL(tls ? TLS_URL : URL_TEXT);
    url.username = user;
    url.password = password;
    if (vhost) url.pathname = vhost;
    url.search = `heartbeat=${heartbeat}&name=interop`;
    const client = new AMQPClient(url.href, tls ? { ca: readFileSync(CA_FILE) } : undefined);
    client.logger = undefined;
    const connection = new Connection(client);
    await client.connect();
    return connection;
  }

  closed(error) {
    const found = /^(?:Channel 0 closed: )?(?:connection|channel \d+) closed: (.*) \((\d+)\)$/s.exec(error.message);
    return found && [Number(found[2]), found[1]];
  }

  async provoke(channel, queue) {
    await channel.opened.basicPublish('', queue, 'now', {}, false, true);
    return [540, 'NOT_IMPLEMENTED - immediate=true'];
  }

  async recovering(name) {
    const session = await AMQPSession.connect(URL_TEXT, { reconnectInterval: 300, logger: null, name: 'interop' });
    const queue = await session.queue(name, { durable: true });
    const inbox = new Inbox();
    await queue.subscribe({ prefetch: 10, noAck: false, manualAck: true }, (raw) => void inbox.waiting.push(decoded(raw)));
    return {
      inbox,
      publish: (exchange, key, body, properties) => outcome(queue.publish(body, encoded(properties))),
      ack: (message) => message.raw.ack(),
      close: () => session.stop(),
    };
  }
}

await new Features(new CloudAmqp()).run();
