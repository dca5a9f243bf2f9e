// NestJS microservices over RabbitMQ: request and response, events, manual acks, a client and a server that come back.

import 'reflect-metadata';
import { Controller, Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { ClientProxyFactory, Ctx, EventPattern, MessagePattern, Payload, Transport } from '@nestjs/microservices';
import { firstValueFrom, timeout } from 'rxjs';
import { RUN, URL_TEXT, control, equal, eventually, run } from './report.js';

const events = [];
const redelivered = [];

class Jobs {
  sum(numbers, context) {
    context.getChannelRef().ack(context.getMessage());
    return numbers.reduce((total, n) => total + n, 0);
  }

  created(event, context) {
    events.push(event);
    context.getChannelRef().ack(context.getMessage());
  }

  again(event, context) {
    const message = context.getMessage();
    redelivered.push(message.fields.redelivered);
    if (redelivered.length === 1) context.getChannelRef().nack(message, false, true);
    else context.getChannelRef().ack(message);
  }
}

// What a compiler makes of the decorators.
function decorate(method, decorator) {
  Payload()(Jobs.prototype, method, 0);
  Ctx()(Jobs.prototype, method, 1);
  decorator(Jobs.prototype, method, Object.getOwnPropertyDescriptor(Jobs.prototype, method));
}
decorate('sum', MessagePattern('sum'));
decorate('created', EventPattern('created'));
decorate('again', EventPattern('again'));
Controller()(Jobs);
class App {}
Module({ controllers: [Jobs] })(App);

const queue = `${RUN}.nest`;
const options = { urls: [URL_TEXT], queue, queueOptions: { durable: true }, socketOptions: { reconnectTimeInSeconds: 0.3, heartbeatIntervalInSeconds: 2 } };
const server = await NestFactory.createMicroservice(App, { transport: Transport.RMQ, options: { ...options, noAck: false, prefetchCount: 5 }, logger: false });
await server.listen();
const client = ClientProxyFactory.create({ transport: Transport.RMQ, options: { ...options, persistent: true } });
await client.connect();
const sum = (...numbers) => firstValueFrom(client.send('sum', numbers).pipe(timeout(3000)));

const lostBroker = (command) => async () => {
  await control(command);
  equal('answer after it came back', 7, await eventually('an answer', () => sum(3, 4).catch((error) => void console.log('not yet:', error.message)), 30_000));
  client.emit('created', command);
  await eventually('the event', () => events.includes(command));
};

await run({
  'request-response': async () => equal('sums', Array.from({ length: 20 }, (_, n) => 2 * n), await Promise.all(Array.from({ length: 20 }, (_, n) => sum(n, n)))),
  events: async () => {
    await firstValueFrom(client.emit('created', { id: 1 }), { defaultValue: null });
    await eventually('the event', () => events.length === 1);
    equal('event', { id: 1 }, events[0]);
  },
  requeue: async () => {
    client.emit('again', 1);
    await eventually('two deliveries', () => redelivered.length === 2);
    equal('redelivered', [false, true], redelivered);
  },
  restart: lostBroker('restart'),
  kill: lostBroker('kill'),
  'clean-up': async () => {
    await client.close();
    await server.close();
    const { connect } = await import('amqplib');
    const connection = await connect(URL_TEXT);
    await (await connection.createChannel()).deleteQueue(queue);
    await connection.close();
  },
});
