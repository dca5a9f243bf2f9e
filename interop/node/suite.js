// The features of ../FEATURES.md, for any library that an adapter wraps. What an adapter has is listed at the end.

import { createHash } from 'node:crypto';
import { BROKER, FULL, Mismatch, NotApplicable, RUN, TLS_URL, WAIT_LIMIT_MS, control, equal, eventually, run, sleep } from './report.js';

const SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
const LOGIN = 'ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.';
const PERSISTENT = { deliveryMode: 2 };

/** What an inbox holds when the broker cancelled the consumer. */
export const CANCELLED = Symbol('cancelled');

/** The deliveries of one consumer, in order of arrival. */
export class Inbox {
  waiting = [];

  async next(limitMs) {
    await eventually('a delivery', () => this.waiting.length, limitMs);
    return this.waiting.shift();
  }

  async nothing(forMs = 300) {
    await sleep(forMs);
    equal('deliveries waiting', [], this.waiting.map((message) => message.body?.toString() ?? 'cancelled'));
  }
}

export class Features {
  #opened = [];
  #used = new Set();

  constructor(library) {
    this.library = library;
  }

  run() {
    const names = ['connect', 'declare', 'confirms', 'properties', 'consume', 'get', 'tx', 'large', 'cancel-notify', 'channel-errors',
      'connection-errors', 'idle', 'frozen', 'stalled', 'blocked', 'restart', 'kill', 'consumer-timeout', 'concurrency', 'tls'];
    return run(Object.fromEntries(names.map((name) => [name, () => this.#guarded(name)])));
  }

  async #guarded(name) {
    if (this.library.unable?.[name]) throw new NotApplicable(this.library.unable[name]);
    try {
      await this[name]();
    } finally {
      await this.#cleanUp();
    }
  }

  async #cleanUp() {
    for (const connection of this.#opened) {
      try {
        await Promise.race([connection.close(), sleep(1000)]);
      } catch { /* closed before, or lost */ }
    }
    this.#opened = [];
    if (this.#used.size === 0) return;
    const connection = await this.library.connect({});
    const channel = await connection.channel();
    for (const queue of this.#used) await channel.queueDelete(queue).catch((error) => console.log('clean-up:', error.message));
    this.#used.clear();
    await connection.close();
  }

  async open(options = {}) {
    const connection = await this.library.connect(options);
    this.#opened.push(connection);
    return connection;
  }

  queue(role) {
    this.#used.add(`${RUN}.${role}`);
    return `${RUN}.${role}`;
  }

  async refused(what, code, text, action) {
    let error;
    try {
      await action();
    } catch (thrown) {
      if (thrown instanceof Mismatch) throw thrown;
      error = thrown;
    }
    if (!error) throw new Mismatch(`${what}: expected ${code} ${text}, got no error`);
    equal(what, [code, text], this.library.closed(error) ?? error);
  }

  async channelRefused(connection, what, code, text, action) {
    const channel = await connection.channel();
    await this.refused(what, code, text, async () => {
      await action(channel);
      // Publish and ack have no reply: the error comes as the channel's own event.
      const error = await eventually(`${what}: ${code}`, () => channel.ended, 3000);
      throw error;
    });
    equal(`${what}: the connection is open`, true, connection.isOpen());
  }

  async connect() {
    for (const mechanism of ['PLAIN', ...(this.library.mechanisms ?? [])]) {
      const connection = await this.open({ mechanism });
      if (connection.product) equal('product', 'RabbitMQ', connection.product());
      await (await connection.channel()).close();
      await connection.close();
      equal('open after close', false, connection.isOpen());
    }
    await this.refused('wrong password', 403, LOGIN, () => this.open({ password: 'wrong' }));
    if (this.library.tellsUnknownVhost === false) return;
    await this.refused('unknown vhost', 530, 'NOT_ALLOWED - vhost nowhere not found', () => this.open({ vhost: 'nowhere' }));
  }

  async declare() {
    const connection = await this.open();
    const channel = await connection.channel();
    const exchange = (role) => `${RUN}.x.${role}`;
    for (const type of ['direct', 'fanout', 'topic', 'headers']) {
      const options = { durable: type !== 'topic', autoDelete: type === 'fanout', internal: type === 'headers' };
      await channel.exchangeDeclare(exchange(type), type, options);
      await channel.exchangeDeclare(exchange(type), type, options);
      await channel.exchangePassive(exchange(type));
    }
    const queue = this.queue('durable');
    const args = { 'x-max-length': 100, 'x-message-ttl': 60000, 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'dead', 'x-max-priority': 5 };
    for (let again = 0; again < 2; again++) {
      equal('declare-ok', [queue, 0, 0], await channel.queueDeclare(queue, { durable: true, arguments: args }));
    }
    for (const options of [{ durable: true, exclusive: true }, { exclusive: true, autoDelete: true }, { durable: true, autoDelete: true }]) {
      const [name] = await channel.queueDeclare('', options);
      equal("prefix of a server's name", 'amq.gen-', name.slice(0, 8));
      this.#used.add(name);
    }
    const counts = (n) => eventually(`${n} messages`, async () => (await channel.queuePassive(queue))[1] === n);
    await channel.exchangeBind(exchange('fanout'), exchange('direct'), 'k', { note: 'any' });
    await channel.queueBind(queue, exchange('fanout'), '', {});
    await channel.publish(exchange('direct'), 'k', Buffer.from('through two exchanges'));
    await channel.publish(exchange('direct'), 'other', Buffer.from('nowhere'));
    await counts(1);
    await channel.exchangeUnbind(exchange('fanout'), exchange('direct'), 'k', { note: 'any' });
    await channel.publish(exchange('direct'), 'k', Buffer.from('unbound'));
    await channel.publish(exchange('fanout'), '', Buffer.from('second'));
    await counts(2);
    const match = { 'x-match': 'all', shape: 'round', size: 3 };
    await channel.exchangeDeclare(exchange('by-headers'), 'headers', { durable: true });
    await channel.queueBind(queue, exchange('by-headers'), '', match);
    await channel.publish(exchange('by-headers'), '', Buffer.from('no'), { headers: { shape: 'round', size: 4 } });
    await channel.publish(exchange('by-headers'), '', Buffer.from('yes'), { headers: { shape: 'round', size: 3, more: true } });
    await counts(3);
    await channel.queueUnbind(queue, exchange('by-headers'), '', match);
    await channel.publish(exchange('by-headers'), '', Buffer.from('yes'), { headers: { shape: 'round', size: 3 } });
    equal('purged', 3, await channel.queuePurge(queue));
    await channel.publish('', queue, Buffer.from('last'));
    await counts(1);
    equal('deleted with it', 1, await channel.queueDelete(queue));
    equal('deleted again', 0, await channel.queueDelete(queue));
    for (const role of ['by-headers', 'direct', 'fanout', 'topic', 'headers', 'headers']) await channel.exchangeDelete(exchange(role));
  }

  async confirms() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('confirms');
    const full = this.queue('full');
    await channel.queueDeclare(queue, { durable: true });
    await channel.queueDeclare(full, { durable: true, arguments: { 'x-max-length': 1, 'x-overflow': 'reject-publish' } });
    const sure = await connection.channel(true);
    equal('publish', 'ack', await sure.publish('', queue, Buffer.from('one'), PERSISTENT, true));
    const outcomes = await Promise.all(Array.from({ length: 200 }, (_, n) => sure.publish('', queue, Buffer.from(`${n}`), PERSISTENT)));
    equal('200 in flight', 200, outcomes.filter((outcome) => outcome === 'ack').length);
    equal('messages after all confirms', 201, (await channel.queuePassive(queue))[1]);
    equal('unroutable', 'ack', await sure.publish('', `${RUN}.nowhere`, Buffer.from('lost'), { correlationId: 'c' }, true));
    // A library may tell of the return after the confirm, though it came before.
    await eventually('the returned message', () => sure.returned.length);
    equal('returned', [[312, 'NO_ROUTE'], 'lost', 'c', `${RUN}.nowhere`],
      sure.returned.map((m) => [m.returned, m.body.toString(), m.properties.correlationId, m.key])[0]);
    equal('without mandatory', 'ack', await sure.publish('', `${RUN}.nowhere`, Buffer.from('lost')));
    equal('first in the small queue', 'ack', await sure.publish('', full, Buffer.from('1')));
    equal('second in the small queue', 'nack', await sure.publish('', full, Buffer.from('2')));
  }

  async properties() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('properties');
    await channel.queueDeclare(queue, { durable: true });
    const every = { contentType: 'text/plain', contentEncoding: 'utf-8', deliveryMode: 2, priority: 3, correlationId: 'corr', replyTo: 'reply',
      expiration: '60000', messageId: 'id', timestamp: 1709209815, type: 'kind', userId: 'guest', appId: 'app', clusterId: 'cluster',
      headers: this.library.headers };
    for (const name of this.library.noProperties ?? []) delete every[name];
    await channel.publish('', queue, Buffer.from('all'), every);
    await channel.publish('', queue, Buffer.from('none'));
    await channel.publish('', queue, Buffer.from('some'), { headers: { key: 'värde ✓' }, type: 't'.repeat(255) });
    const got = [];
    while (got.length < 3) got.push(await eventually('a message', () => channel.get(queue)));
    for (const [name, value] of Object.entries(every)) equal(name, value, got[0].properties[name]);
    for (const name of Object.keys(every)) {
      if ((this.library.always ?? []).includes(name)) continue;
      const none = got[1].properties[name];
      equal(`${name} where none was given`, true, none === undefined || none === null || Object.keys(none).length === 0);
    }
    equal('some', ['värde ✓', 't'.repeat(255)], [got[2].properties.headers.key, got[2].properties.type]);
  }

  async consume() {
    const connection = await this.open();
    const channel = await connection.channel();
    const [queue, other] = [this.queue('consume'), this.queue('second')];
    for (const name of [queue, other]) await channel.queueDeclare(name, { durable: true });
    for (let n = 0; n < 5; n++) await channel.publish('', queue, Buffer.from(`${n}`));
    await channel.qos(2);
    const inbox = await channel.consume(queue, { tag: 'interop-tag' });
    equal('consumer tag', 'interop-tag', inbox.tag);
    const seen = (message) => [message.body.toString(), message.redelivered];
    const first = await inbox.next();
    const second = await inbox.next();
    equal('first two', [['0', false], ['1', false]], [seen(first), seen(second)]);
    await inbox.nothing();
    await channel.ack(first);
    equal('after an ack', ['2', false], seen(await inbox.next()));
    await channel.nack(second, true);
    let again = await inbox.next();
    equal('after nack with requeue', ['1', true], seen(again));
    await channel.reject(again, true);
    again = await inbox.next();
    equal('after reject with requeue', ['1', true], seen(again));
    await channel.reject(again, false);
    const fourth = await inbox.next();
    equal('after reject', '3', fourth.body.toString());
    await channel.nack(fourth, false);
    const fifth = await inbox.next();
    equal('after nack', '4', fifth.body.toString());
    await channel.ack(fifth, true);
    await channel.qos(0);
    const unacked = await channel.consume(other, { noAck: true });
    await channel.publish('', other, Buffer.from('unasked'));
    equal('auto-ack consumer', 'unasked', (await unacked.next()).body.toString());
    await channel.cancel(inbox);
    await channel.publish('', queue, Buffer.from('after cancel'));
    await inbox.nothing();
    equal('left over', [queue, 1, 0], await channel.queuePassive(queue));
  }

  async get() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('get');
    await channel.queueDeclare(queue, { durable: true });
    equal('get from an empty queue', null, await channel.get(queue));
    await channel.publish('', queue, Buffer.from('a'));
    await channel.publish('', queue, Buffer.from('b'));
    await eventually('both', async () => (await channel.queuePassive(queue))[1] === 2);
    let message = await channel.get(queue);
    equal('get', ['a', false, '', queue, 1], [message.body.toString(), message.redelivered, message.exchange, message.key, message.count]);
    await channel.nack(message, true);
    message = await channel.get(queue);
    equal('get again', ['a', true], [message.body.toString(), message.redelivered]);
    await channel.ack(message);
    await channel.ack(await channel.get(queue));
    equal('empty again', null, await channel.get(queue));
  }

  async tx() {
    const channel = await (await this.open()).channel();
    const watcher = await (await this.open()).channel();
    const queue = this.queue('tx');
    await channel.queueDeclare(queue, { durable: true });
    await channel.txSelect();
    await channel.publish('', queue, Buffer.from('1'), PERSISTENT);
    await channel.publish('', queue, Buffer.from('2'), PERSISTENT);
    equal('before commit', 0, (await watcher.queuePassive(queue))[1]);
    await channel.txCommit();
    equal('after commit', 2, (await watcher.queuePassive(queue))[1]);
    await channel.publish('', queue, Buffer.from('3'), PERSISTENT);
    const message = await channel.get(queue);
    await channel.ack(message);
    await channel.txRollback();
    await channel.ack(message);
    await channel.txCommit();
    equal('after rollback, ack and commit', 1, (await watcher.queuePassive(queue))[1]);
  }

  async large() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('large');
    await channel.queueDeclare(queue, { durable: true });
    const inbox = await channel.consume(queue);
    for (const size of [0, 1, 131064, 131065, 1 << 20, 16 << 20]) {
      const body = createHash('shake128', { outputLength: Math.max(size, 1) }).update(`${size}`).digest().subarray(0, size);
      await channel.publish('', queue, body, PERSISTENT);
      const message = await inbox.next(30_000);
      equal(`size of ${size}`, size, message.body.length);
      equal(`contents of ${size}`, true, body.equals(message.body));
      await channel.ack(message);
    }
  }

  async 'cancel-notify'() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('deleted');
    await channel.queueDeclare(queue, { durable: true });
    const inbox = await channel.consume(queue);
    await (await (await this.open()).channel()).queueDelete(queue);
    equal('cancelled by the broker', true, (await inbox.next()) === CANCELLED);
    await channel.queueDeclare(queue, { durable: true });
  }

  async 'channel-errors'() {
    const connection = await this.open();
    const holder = await this.open();
    const channel = await holder.channel();
    const [queue, exchange, nowhere] = [this.queue('errors'), `${RUN}.x.errors`, `${RUN}.nowhere`];
    await channel.queueDeclare(queue, { durable: true });
    await channel.exchangeDeclare(exchange, 'direct', { durable: true });
    const [exclusive] = await channel.queueDeclare('', { exclusive: true });
    const refused = (what, code, text, action) => this.channelRefused(connection, what, code, text, action);
    await refused('no queue', 404, `NOT_FOUND - no queue '${nowhere}' in vhost '/'`, (c) => c.queuePassive(nowhere));
    await refused('no queue to get from', 404, `NOT_FOUND - no queue '${nowhere}' in vhost '/'`, (c) => c.get(nowhere));
    await refused('no exchange', 404, `NOT_FOUND - no exchange '${nowhere}' in vhost '/'`, (c) => c.publish(nowhere, '', Buffer.from('x')));
    await refused('other queue', 406, `PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '${queue}' in vhost '/': ` +
      "received 'true' but current is 'false'", (c) => c.queueDeclare(queue, { durable: true, autoDelete: true }));
    await refused('other exchange', 406, `PRECONDITION_FAILED - inequivalent arg 'type' for exchange '${exchange}' in vhost '/': ` +
      "received 'fanout' but current is 'direct'", (c) => c.exchangeDeclare(exchange, 'fanout', { durable: true }));
    await refused('unknown tag', 406, 'PRECONDITION_FAILED - unknown delivery tag 99', (c) => c.ackTag(99));
    await refused('exclusive', 405, `RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '${exclusive}' in vhost '/'. ` +
      'It could be originally declared on another connection or the exclusive property value does not match that of the original ' +
      'declaration.', (c) => c.queuePassive(exclusive));
    await refused('reserved name', 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
      (c) => c.exchangeDeclare('amq.mine', 'direct', { durable: true }));
    await refused('bad argument', 406, `PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '${nowhere}' in vhost '/': ` +
      '{value_negative,-1}', (c) => c.queueDeclare(nowhere, { durable: true, arguments: { 'x-message-ttl': -1 } }));
    await channel.publish('', queue, Buffer.from('x'));
    await eventually('a message', async () => (await channel.queuePassive(queue))[1] === 1);
    await refused('not empty', 406, `PRECONDITION_FAILED - queue '${queue}' in vhost '/' not empty`, (c) => c.queueDelete(queue, { ifEmpty: true }));
    await channel.consume(queue, { exclusive: true });
    await refused('in use', 406, `PRECONDITION_FAILED - queue '${queue}' in vhost '/' in use`, (c) => c.queueDelete(queue, { ifUnused: true }));
    await refused('exclusive consumer', 403, `ACCESS_REFUSED - queue '${queue}' in vhost '/' in exclusive use`, (c) => c.consume(queue));
    await channel.exchangeDelete(exchange);
  }

  async 'connection-errors'() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('refused');
    await channel.queueDeclare(queue, { durable: true });
    const expected = await this.library.provoke(channel, queue);
    const error = await eventually('the end of the connection', () => connection.ended);
    equal('end of the connection', expected, this.library.closed(error) ?? error);
  }

  async idle() {
    const connection = await this.open({ heartbeat: 1 });
    const channel = await connection.channel();
    await sleep(3500);
    equal('open after 3.5 s', true, connection.isOpen());
    await channel.queueDeclare('', { exclusive: true });
  }

  async frozen() {
    const connection = await this.open({ heartbeat: 1 });
    const [queue] = await (await connection.channel()).queueDeclare('', { exclusive: true });
    await control('freeze 5');
    await this.channelRefused(await this.open(), 'the queue of the frozen connection', 404, `NOT_FOUND - no queue '${queue}' in vhost '/'`,
      (c) => c.queuePassive(queue));
  }

  async stalled() {
    const connection = await this.open({ heartbeat: 1 });
    await connection.channel();
    await control('stall');
    try {
      await eventually('the library to notice', () => connection.ended, 15_000);
    } finally {
      await control('resume');
    }
  }

  async blocked() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('blocked');
    await channel.queueDeclare(queue, { durable: true });
    const inbox = await (await (await this.open()).channel()).consume(queue, { noAck: true });
    await control('block');
    let sent;
    try {
      sent = channel.publish('', queue, Buffer.from('while blocked'));
      await eventually('the library to say blocked', () => connection.events.includes('blocked'));
    } finally {
      await control('unblock');
    }
    await eventually('the library to say unblocked', () => connection.events.includes('unblocked'));
    await sent;
    equal('what was published while blocked', 'while blocked', (await inbox.next()).body.toString());
  }

  restart() {
    return this.#lostBroker('restart');
  }

  kill() {
    return this.#lostBroker('kill');
  }

  async #lostBroker(command) {
    const connection = await this.open();
    const queue = this.queue(command);
    await (await connection.channel()).queueDeclare(queue, { durable: true });
    const recovering = await this.library.recovering?.(queue);
    if (recovering) this.#opened.push(recovering);
    const pair = async (conn) => {
      const [publishing, consuming] = [await conn.channel(true), await conn.channel()];
      await consuming.qos(10);
      return { publish: (...all) => publishing.publish(...all), inbox: await consuming.consume(queue), ack: (message) => consuming.ack(message) };
    };
    let used = recovering ?? (await pair(connection));
    equal('confirmed before', 'ack', await used.publish('', queue, Buffer.from('before'), PERSISTENT));
    const before = await used.inbox.next();
    equal('before', ['before', false], [before.body.toString(), before.redelivered]);
    await control(command);
    const error = await eventually('the end of the connection', () => connection.ended);
    if (command === 'restart') equal('end of the connection', [320, SHUTDOWN], this.library.closed(error) ?? error);
    if (!recovering) used = await pair(await this.open());
    const message = await used.inbox.next(25_000);
    equal('after it came back', ['before', true], [message.body.toString(), message.redelivered]);
    await used.ack(message);
    equal('confirmed afterwards', 'ack', await eventually('a confirm', async () => {
      try {
        return await used.publish('', queue, Buffer.from('after'), PERSISTENT);
      } catch (thrown) {
        console.log('not yet:', thrown.message);
        return null;
      }
    }, 25_000));
    const after = await used.inbox.next();
    equal('published afterwards', 'after', after.body.toString());
    await used.ack(after);
  }

  async 'consumer-timeout'() {
    const connection = await this.open();
    const channel = await connection.channel();
    const queue = this.queue('timeout');
    await channel.queueDeclare(queue, { durable: true, arguments: { 'x-consumer-timeout': 1000 } });
    const inbox = await channel.consume(queue);
    await channel.publish('', queue, Buffer.from('slow'));
    equal('first delivery', 'slow', (await inbox.next()).body.toString());
    const error = await eventually("the channel's end", () => channel.ended, BROKER === 'leveret' ? WAIT_LIMIT_MS : 130_000);
    const [code, text] = this.library.closed(error) ?? [0, String(error)];
    equal('end of the channel', [406, 'PRECONDITION_FAILED - delivery acknowledgement on channel N timed out. Timeout value used: 1000 ms. ' +
      'This timeout value can be configured, see consumers doc guide to learn more'], [code, text.replace(/on channel \d+/, 'on channel N')]);
    const again = await connection.channel();
    const message = await (await again.consume(queue)).next();
    equal('on a new channel', ['slow', true], [message.body.toString(), message.redelivered]);
    await again.ack(message);
  }

  async concurrency() {
    const queue = this.queue('many');
    const connection = await this.open();
    await (await connection.channel()).queueDeclare(queue, { durable: true });
    const until = Date.now() + (FULL ? 60_000 : 4000);
    const sent = new Set();
    const fresh = new Map();
    const seen = new Set();
    let publishing = 50;
    const task = async (number) => {
      const sure = await connection.channel(true);
      const consuming = await connection.channel();
      await consuming.qos(20);
      const inbox = await consuming.consume(queue);
      const take = async () => {
        while (inbox.waiting.length) {
          const message = inbox.waiting.shift();
          const body = message.body.toString();
          seen.add(body);
          if (!message.redelivered) fresh.set(body, (fresh.get(body) ?? 0) + 1);
          await consuming.ack(message);
        }
      };
      for (let n = 0; Date.now() < until; n++) {
        const body = `${number} ${n}`;
        equal('publish', 'ack', await sure.publish('', queue, Buffer.from(body)));
        sent.add(body);
        await take();
      }
      publishing -= 1;
      await eventually('everything sent', async () => {
        await take();
        return publishing === 0 && seen.size >= sent.size;
      }, 2 * WAIT_LIMIT_MS);
    };
    await Promise.all(Array.from({ length: 50 }, (_, number) => task(number)));
    equal('lost', [], [...sent].filter((body) => !seen.has(body)));
    equal('doubled', [], [...fresh].filter(([, count]) => count > 1));
    console.log(`concurrency: ${sent.size} messages`);
  }

  async tls() {
    if (!TLS_URL) throw new NotApplicable('the broker has no TLS listener yet');
    const channel = await (await this.open({ tls: true })).channel();
    const [queue] = await channel.queueDeclare('', { exclusive: true });
    await channel.publish('', queue, Buffer.from('secret'));
    await eventually('the message', () => channel.get(queue));
  }
}

/*
An adapter (`library`) has
  headers, noProperties, always, unable, mechanisms, tellsUnknownVhost   as in ../python/adapter.py
  closed(error)      [code, text] in the library's own error, or null
  provoke(channel, queue)  does what ends the connection; gives the [code, text] expected
  recovering(queue)  where the library recovers by itself: { publish, inbox, ack, close } on such a connection
  connect({ user, password, vhost, mechanism, heartbeat, tls }) gives a connection with
    channel(confirms) close() isOpen() product() ended (the error it ended with) events ("blocked", "unblocked")
  and its channel with
    close() ended returned exchangeDeclare(name, type, options) exchangePassive(name) exchangeDelete(name) exchangeBind(to, source, key, args)
    exchangeUnbind(same) queueDeclare(name, options) → [name, messages, consumers] queuePassive(name) → the same queueBind(queue, exchange,
    key, args) queueUnbind(same) queuePurge(queue) → n queueDelete(queue, options) → n qos(n) consume(queue, options) → Inbox cancel(inbox)
    get(queue) → message or null ack(message, multiple) nack(message, requeue) reject(message, requeue) ackTag(tag) txSelect() txCommit()
    txRollback() publish(exchange, key, body, properties, mandatory) → "ack" or "nack" on a channel with confirms
  where a message is { body, properties, redelivered, exchange, key, count, returned, raw }; timestamps are seconds.
*/
