// amqp-connection-manager: channels that set themselves up again, and keep what was published while there was no broker.

import { connect } from 'amqp-connection-manager';
import amqplib from 'amqplib';
import { RUN, URL_TEXT, control, equal, eventually, run } from './report.js';

const got = [];
const queue = `${RUN}.manager`;
let setups = 0;
const connection = connect([URL_TEXT], { heartbeatIntervalInSeconds: 2, reconnectTimeInSeconds: 0.3 });
connection.on('connectFailed', ({ err }) => console.log('not yet:', err.message));
const channel = connection.createChannel({
  json: true,
  setup: async (raw) => {
    setups += 1;
    await raw.assertQueue(queue, { durable: true });
    await raw.prefetch(5);
    await raw.consume(queue, (message) => {
      got.push(JSON.parse(message.content).n);
      raw.ack(message);
    });
  },
});

const lostBroker = (command, n) => async () => {
  const before = setups;
  const sent = control(command).then(() => undefined);
  // While there is no connection the library keeps what is published.
  await eventually('the loss of the connection', () => !connection.isConnected() || setups > before);
  const kept = channel.sendToQueue(queue, { n }, { persistent: true, timeout: 30_000 });
  await sent;
  await kept;
  await eventually('the message after it came back', () => got.includes(n), 20_000);
  equal('set up again', true, setups > before);
};

await run({
  confirms: async () => {
    await channel.waitForConnect();
    await Promise.all(Array.from({ length: 50 }, (_, n) => channel.sendToQueue(queue, { n }, { persistent: true })));
    await eventually('50 messages', () => got.length === 50);
  },
  'added-setup': async () => {
    const exchange = `${RUN}.added`;
    await channel.addSetup((raw) => raw.assertExchange(exchange, 'fanout', { durable: true }));
    await channel.addSetup((raw) => raw.bindQueue(queue, exchange, ''));
    await channel.publish(exchange, '', { n: 'added' });
    await eventually('the message', () => got.includes('added'));
  },
  restart: lostBroker('restart', 'restart'),
  kill: lostBroker('kill', 'kill'),
  'clean-up': async () => {
    await connection.close();
    const plain = await amqplib.connect(URL_TEXT);
    const deleting = await plain.createChannel();
    await deleting.deleteQueue(queue);
    await deleting.deleteExchange(`${RUN}.added`);
    await plain.close();
  },
});
