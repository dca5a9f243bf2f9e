// RabbitMQ's tutorial patterns with amqplib, every result checked. See ../README.md.

import {
  arrives,
  connect,
  equal,
  Inbox,
  Mismatch,
  main,
  open,
  publishConfirmed,
  readyCount,
  refused,
  text,
  URL_TEXT,
  USER,
  VHOST,
} from './harness.js';

const AUTO_ACK = { noAck: true };
const noQueue = (name) => `NOT_FOUND - no queue '${name}' in vhost '${VHOST}'`;

async function workQueue(names) {
  const queue = names.queue('tasks');
  const [leaving, staying] = [await connect(), await connect()];
  let channel = await open(leaving);
  const declared = await channel.assertQueue(queue, { durable: true });
  equal('declare-ok', { queue, messageCount: 0, consumerCount: 0 }, declared);
  const tasks = Array.from({ length: 10 }, (_, n) => `task ${n}`);
  await publishConfirmed(leaving, queue, tasks, { persistent: true, contentType: 'text/plain' });

  await channel.prefetch(1);
  const left = await Inbox.consume(channel, queue);
  const first = await left.take();
  equal('first task', 'task 0', text(first));
  equal(
    'first delivery',
    { consumerTag: left.tag, deliveryTag: 1, redelivered: false, exchange: '', routingKey: queue },
    { ...first.fields },
  );
  equal('first task: mode, type', [2, 'text/plain'], [first.properties.deliveryMode, first.properties.contentType]);

  // The first consumer holds its one message all the while, so the order at the second is exact.
  channel = await open(staying);
  await channel.prefetch(1);
  const stayed = await Inbox.consume(channel, queue);
  for (let n = 1; n < 10; n += 1) {
    let task = await stayed.take();
    equal('task', [`task ${n}`, false], [text(task), task.fields.redelivered]);
    equal('waiting behind prefetch 1', 0, stayed.waiting.length);
    if (n === 1) equal('ready behind two prefetches of 1', 8, await readyCount(staying, queue));
    if (n === 5) {
      channel.nack(task, false, true);
      task = await stayed.take();
      equal('after nack', ['task 5', true], [text(task), task.fields.redelivered]);
    }
    stayed.ack(task);
  }

  equal('ready tasks', 0, await readyCount(leaving, queue));
  equal('second task at prefetch 1', 0, left.waiting.length);
  await leaving.close();
  const task = await stayed.take();
  equal('after its consumer left', ['task 0', true], [text(task), task.fields.redelivered]);
  stayed.ack(task);
  // amqplib lets the connection's close overtake what its channels have still to send.
  await channel.close();
  await staying.close();

  const connection = await connect();
  const after = await (await open(connection)).assertQueue(queue, { durable: true });
  equal('left over', { queue, messageCount: 0, consumerCount: 0 }, after);
  await connection.close();
}

async function subscribe(connection, exchange) {
  const channel = await open(connection);
  const { queue } = await channel.assertQueue('', { exclusive: true });
  equal("prefix of a server's name", 'amq.gen-', queue.slice(0, 8));
  await channel.bindQueue(queue, exchange, '');
  return [queue, await Inbox.consume(channel, queue, AUTO_ACK)];
}

async function publishSubscribe(names) {
  const exchange = names.exchange('logs');
  const [publisher, first, second] = [await connect(), await connect(), await connect()];
  const channel = await open(publisher);
  await channel.assertExchange(exchange, 'fanout', { durable: false });
  const [firstQueue, firstInbox] = await subscribe(first, exchange);
  const [secondQueue, secondInbox] = await subscribe(second, exchange);
  equal('two different names', true, firstQueue !== secondQueue);

  for (let n = 0; n < 5; n += 1) channel.publish(exchange, 'any key', Buffer.from(`log ${n}`));
  for (const inbox of [firstInbox, secondInbox]) {
    for (let n = 0; n < 5; n += 1) {
      const log = await inbox.take();
      const { exchange: from, routingKey, redelivered } = log.fields;
      equal('log', [`log ${n}`, exchange, 'any key', false], [text(log), from, routingKey, redelivered]);
    }
  }

  await secondInbox.channel.unbindQueue(secondQueue, exchange, '');
  channel.publish(exchange, '', Buffer.from('for the bound one'));
  channel.sendToQueue(secondQueue, Buffer.from('end'));
  equal('bound subscriber', 'for the bound one', text(await firstInbox.take()));
  equal('unbound subscriber', 'end', text(await secondInbox.take()));

  await refused(
    publisher,
    405,
    `RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '${firstQueue}' in vhost '${VHOST}'. ` +
      'It could be originally declared on another connection or the exclusive property value does not match ' +
      'that of the original declaration.',
    (other) => other.checkQueue(firstQueue),
  );
  await first.close();
  await refused(publisher, 404, noQueue(firstQueue), (other) => other.checkQueue(firstQueue));
  await second.close();
  await publisher.close();
}

/**
 * Publishes one message per key; each queue must get the expected ones, in order, and no other.
 * `routes` maps a queue's role to its binding keys and the routing keys that it must get.
 */
async function checkRoutes(names, type, keys, routes) {
  const exchange = names.exchange(type);
  const connection = await connect();
  const channel = await open(connection);
  await channel.assertExchange(exchange, type, { durable: true });
  const inboxes = [];
  for (const [role, [bindingKeys, expected]] of Object.entries(routes)) {
    const { queue } = await channel.assertQueue('', { exclusive: true });
    for (const key of bindingKeys) await channel.bindQueue(queue, exchange, key);
    inboxes.push([role, queue, await Inbox.consume(channel, queue, AUTO_ACK), expected]);
  }
  for (const key of keys) channel.publish(exchange, key, Buffer.from(key));
  for (const [role, queue, inbox, expected] of inboxes) {
    // Sent last, so what comes before it is all that there is.
    channel.sendToQueue(queue, Buffer.from('end'));
    const got = [];
    for (let message = await inbox.take(); text(message) !== 'end'; message = await inbox.take()) {
      equal('routing key', text(message), message.fields.routingKey);
      got.push(message.fields.routingKey);
    }
    equal(`routing keys at queue '${role}'`, expected, got);
  }
  await connection.close();
}

const routing = (names) =>
  checkRoutes(names, 'direct', ['info', 'debug', 'error', 'warning', 'error'], {
    all: [
      ['info', 'warning', 'error'],
      ['info', 'error', 'warning', 'error'],
    ],
    // "error" twice: the same binding again is no second binding.
    errors: [
      ['error', 'error'],
      ['error', 'error'],
    ],
  });

async function topics(names) {
  const keys = [
    'quick.orange.rabbit',
    'lazy.orange.elephant',
    'quick.orange.fox',
    'lazy.brown.fox',
    'lazy.pink.rabbit',
    'quick.brown.fox',
    'orange',
    'quick.orange.new.rabbit',
    'lazy.orange.new.rabbit',
    'lazy',
    'quick.rabbit',
    '',
  ];
  const lazy = [
    'quick.orange.rabbit',
    'lazy.orange.elephant',
    'lazy.brown.fox',
    'lazy.pink.rabbit',
    'lazy.orange.new.rabbit',
    'lazy',
  ];
  await checkRoutes(names, 'topic', keys, {
    orange: [['*.orange.*'], ['quick.orange.rabbit', 'lazy.orange.elephant', 'quick.orange.fox']],
    lazy: [['*.*.rabbit', 'lazy.#'], lazy],
    one: [['*'], ['orange', 'lazy']],
    ends: [['quick.#.rabbit'], ['quick.orange.rabbit', 'quick.orange.new.rabbit', 'quick.rabbit']],
    all: [['#'], keys],
  });
}

/** Answers the next request with its number squared; gives the address it answered to. */
async function serveOne(requests) {
  const request = await requests.take();
  const { replyTo, correlationId } = request.properties;
  requests.channel.sendToQueue(replyTo, Buffer.from(String(Number(text(request)) ** 2)), { correlationId });
  requests.ack(request);
  return replyTo;
}

async function rpc(names) {
  const DIRECT = 'amq.rabbitmq.reply-to';
  const queue = names.queue('requests');
  const [server, client] = [await connect(), await connect()];
  const serving = await open(server);
  await serving.assertQueue(queue, { durable: true });
  await serving.prefetch(1);
  const requests = await Inbox.consume(serving, queue);
  const calling = await open(client);
  const call = (n, replyTo) =>
    calling.sendToQueue(queue, Buffer.from(String(n)), { replyTo, correlationId: `call ${n}` });

  const { queue: callback } = await calling.assertQueue('', { exclusive: true });
  const replies = await Inbox.consume(calling, callback, AUTO_ACK);
  for (let n = 0; n < 5; n += 1) call(n, callback);
  for (let n = 0; n < 5; n += 1) equal('reply_to', callback, await serveOne(requests));
  for (let n = 0; n < 5; n += 1) {
    const reply = await replies.take();
    equal('reply', [String(n * n), `call ${n}`], [text(reply), reply.properties.correlationId]);
  }

  const direct = await Inbox.consume(calling, DIRECT, AUTO_ACK);
  for (let n = 5; n < 8; n += 1) call(n, DIRECT);
  for (let n = 5; n < 8; n += 1) {
    equal('rewritten reply_to', 'amq.rabbitmq.reply-to.', (await serveOne(requests)).slice(0, 22));
  }
  for (let n = 5; n < 8; n += 1) {
    const reply = await direct.take();
    equal(
      'direct reply',
      [String(n * n), `call ${n}`, '', false],
      [text(reply), reply.properties.correlationId, reply.fields.exchange, reply.fields.redelivered],
    );
  }

  await refused(client, 406, 'PRECONDITION_FAILED - reply consumer cannot acknowledge', (other) =>
    other.consume(DIRECT, () => {}, { noAck: false }),
  );
  await refused(client, 406, 'PRECONDITION_FAILED - fast reply consumer does not exist', (other) =>
    other.sendToQueue(queue, Buffer.from('1'), { replyTo: DIRECT }),
  );
  await server.close();
  await client.close();
}

async function confirms(names) {
  const [queue, short] = [names.queue('confirmed'), names.queue('short')];
  const nowhere = `${queue}.none`;
  const connection = await connect();
  const channel = await open(connection, 'createConfirmChannel');
  await channel.assertQueue(queue, { durable: true });
  await channel.assertQueue(short, { durable: true, arguments: { 'x-max-length': 1, 'x-overflow': 'reject-publish' } });
  const events = [];
  channel.on('return', (message) => events.push(message));
  // amqplib passes an error to the callback of a nacked message.
  const send = (to, body, options = {}) =>
    arrives(
      `a confirm for ${body}`,
      new Promise((resolve) => {
        channel.sendToQueue(to, Buffer.from(body), { persistent: true, ...options }, (error) => {
          events.push(error ? 'nack' : 'ack');
          resolve();
        });
      }),
    );

  await send(queue, 'single');
  equal('single', ['ack'], events);
  equal('messages after one confirm', 1, await readyCount(connection, queue));

  events.length = 0;
  const batch = [];
  for (let n = 0; n < 1000; n += 1) batch.push(send(queue, `batch ${n}`));
  await Promise.all(batch);
  equal('confirms of the batch', Array(1000).fill('ack'), events);
  equal('messages after the batch', { messageCount: 1 + 1000 }, await channel.purgeQueue(queue));

  events.length = 0;
  await send(nowhere, 'lost', { mandatory: true });
  equal('return before its ack', ['object', 'ack'], [typeof events[0], events[1]]);
  const [lost] = events;
  const { replyCode, replyText, exchange, routingKey } = lost.fields;
  equal(
    'returned message',
    [312, 'NO_ROUTE', '', nowhere, 'lost', 2],
    [replyCode, replyText, exchange, routingKey, text(lost), lost.properties.deliveryMode],
  );
  events.length = 0;
  await send(nowhere, 'lost');
  await send(short, 'fits');
  await send(short, 'one too many');
  equal('unroutable but not mandatory, fits, one too many', ['ack', 'ack', 'nack'], events);
  await connection.close();
}

async function connectionRefused(url, expected) {
  try {
    await (await connect(url)).close();
  } catch (error) {
    equal('connection refused', expected, error.message);
    return;
  }
  throw new Mismatch(`connection: expected ${expected}, got a connection`);
}

async function errors(names) {
  const [queue, missing] = [names.queue('durable'), names.queue('missing')];
  const connection = await connect();
  const channel = await open(connection);
  await channel.assertQueue(queue, { durable: true });
  await publishConfirmed(connection, queue, ['still here']);
  await refused(connection, 404, noQueue(missing), (other) => other.checkQueue(missing));
  await refused(connection, 404, noQueue(missing), (other) => other.consume(missing, () => {}));
  await refused(
    connection,
    406,
    `PRECONDITION_FAILED - inequivalent arg 'durable' for queue '${queue}' in vhost '${VHOST}': ` +
      "received 'false' but current is 'true'",
    (other) => other.assertQueue(queue, { durable: false }),
  );
  await refused(connection, 406, 'PRECONDITION_FAILED - unknown delivery tag 99', (other) =>
    other.ack({ fields: { deliveryTag: 99 } }),
  );
  await refused(connection, 404, `NOT_FOUND - no exchange '${missing}' in vhost '${VHOST}'`, (other) =>
    other.publish(missing, '', Buffer.from('lost')),
  );
  const after = await channel.get(queue, AUTO_ACK);
  equal('after the channel errors', ['still here', false], [text(after), after.fields.redelivered]);
  await connection.close();

  const url = new URL(URL_TEXT);
  url.password = 'wrong';
  await connectionRefused(
    url.href,
    'Handshake terminated by server: 403 (ACCESS-REFUSED) with message "ACCESS_REFUSED - Login was refused ' +
      'using authentication mechanism PLAIN. For details see the broker logfile."',
  );
  const elsewhere = new URL(URL_TEXT);
  elsewhere.pathname = `/${missing}`;
  await connectionRefused(elsewhere.href, 'Expected ConnectionOpenOk; got <ConnectionClose channel:0>');
}

const tagged = (type, value) => ({ '!': type, value });
const PROPERTIES = {
  contentType: 'application/octet-stream',
  contentEncoding: 'identity',
  headers: {
    text: 'snowman \u2603',
    flag: true,
    small: -7,
    big: 2 ** 41,
    double: 1.1,
    float: tagged('float', 0.5),
    decimal: tagged('decimal', { digits: 314, places: 2 }),
    bytes: Buffer.from([0, 255]),
    time: tagged('timestamp', 1709208000),
    nothing: null,
    table: { list: [1, 'two', false, { deep: 3 }] },
  },
  deliveryMode: 2,
  priority: 3,
  correlationId: 'correlation',
  replyTo: 'reply',
  expiration: '60000',
  messageId: 'message',
  timestamp: 1700000000,
  type: 'type',
  userId: USER,
  appId: 'app',
};
// amqplib gives a float as a plain number.
const RECEIVED_HEADERS = { ...PROPERTIES.headers, float: 0.5 };

async function messages(names) {
  const queue = names.queue('messages');
  const connection = await connect();
  const channel = await open(connection);
  await channel.assertQueue(queue, { durable: true });
  const inbox = await Inbox.consume(channel, queue);
  // A period that is no power of two, so that swapped or repeated frames show.
  const large = Buffer.from(Array.from({ length: 1024 * 1024 }, (_, i) => i % 251));
  for (const [what, body, sent, expected] of [
    ['1 MiB body', large, PROPERTIES, { ...PROPERTIES, headers: RECEIVED_HEADERS }],
    ['empty body', Buffer.alloc(0), PROPERTIES, { ...PROPERTIES, headers: RECEIVED_HEADERS }],
    // amqplib always sends a header table.
    ['no properties', Buffer.from('bare'), {}, { headers: {} }],
  ]) {
    channel.sendToQueue(queue, body, sent);
    const got = await inbox.take();
    equal(`bytes of ${what}`, body.length, got.content.length);
    equal(`${what} unchanged`, true, got.content.equals(body));
    const present = Object.entries(got.properties).filter(([, value]) => value !== undefined);
    equal(`properties with ${what}`, expected, Object.fromEntries(present));
    inbox.ack(got);
  }
  await channel.cancel(inbox.tag);

  await publishConfirmed(connection, queue, ['one', 'two', 'three']);
  for (const [body, redelivered, leftOver] of [
    ['one', false, 2],
    ['one', true, 2],
    ['two', false, 1],
    ['three', false, 0],
  ]) {
    const got = await channel.get(queue);
    if (!got) throw new Mismatch(`get: expected ${body}, got an empty queue`);
    equal(
      'get: body, redelivered, left over, exchange, routing key',
      [body, redelivered, leftOver, '', queue],
      [text(got), got.fields.redelivered, got.fields.messageCount, got.fields.exchange, got.fields.routingKey],
    );
    if (body === 'one' && !redelivered) channel.reject(got, true);
    else channel.ack(got);
  }
  equal('get from an empty queue', false, await channel.get(queue));
  await connection.close();
}

async function queues(names) {
  const [queue, autoDelete] = [names.queue('queue'), names.queue('auto-delete')];
  const [connection, other] = [await connect(), await connect()];
  const channel = await open(connection);
  await channel.assertQueue(queue, { durable: true });
  await publishConfirmed(connection, queue, ['held', 'purged', 'purged']);
  const held = await channel.get(queue);
  equal('purged: ready ones only', { messageCount: 2 }, await channel.purgeQueue(queue));
  channel.reject(held, true);
  // The next call is on another channel: wait until the message is back.
  await channel.checkQueue(queue);
  await refused(
    connection,
    406,
    `PRECONDITION_FAILED - queue '${queue}' in vhost '${VHOST}' not empty`,
    (refusing) => refusing.deleteQueue(queue, { ifEmpty: true }),
  );

  const inbox = await Inbox.consume(channel, queue);
  const again = await inbox.take();
  equal('held message', ['held', true], [text(again), again.fields.redelivered]);
  await refused(connection, 406, `PRECONDITION_FAILED - queue '${queue}' in vhost '${VHOST}' in use`, (refusing) =>
    refusing.deleteQueue(queue, { ifUnused: true }),
  );
  await publishConfirmed(other, queue, ['unacked too']);
  await inbox.take();
  const deleting = await open(other);
  equal('deleted: ready ones only', { messageCount: 0 }, await deleting.deleteQueue(queue));
  // amqplib tells of the server's cancel by a null message.
  equal('cancel notification', null, await inbox.next());
  equal('deleted once more', { messageCount: 0 }, await deleting.deleteQueue(queue));

  await channel.assertQueue(autoDelete, { exclusive: true, autoDelete: true });
  await channel.cancel((await Inbox.consume(channel, autoDelete)).tag);
  await refused(connection, 404, noQueue(autoDelete), (refusing) => refusing.checkQueue(autoDelete));
  await other.close();
  await connection.close();
}

await main({
  'work-queue': workQueue,
  'publish-subscribe': publishSubscribe,
  routing,
  topics,
  rpc,
  confirms,
  errors,
  messages,
  queues,
});
