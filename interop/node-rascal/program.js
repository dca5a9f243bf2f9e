// rascal: topology from a configuration, publications with confirms, republish and dead-letter recovery, reconnection.

import rascal from 'rascal';
import { RUN, URL_TEXT, control, equal, eventually, run } from './report.js';

const { BrokerAsPromised: Broker, withDefaultConfig } = rascal;
const url = new URL(URL_TEXT);
const got = [];
const tries = [];
const dead = [];
const broker = await Broker.create(withDefaultConfig({
  vhosts: {
    '/': {
      connection: { hostname: url.hostname, port: Number(url.port), user: 'guest', password: 'guest', retry: { min: 200, max: 500 }, options: { heartbeat: 2 } },
      exchanges: { [`${RUN}.jobs`]: { type: 'topic' }, [`${RUN}.dlx`]: { type: 'topic' } },
      queues: {
        [`${RUN}.work`]: { options: { arguments: { 'x-dead-letter-exchange': `${RUN}.dlx` } } },
        [`${RUN}.dead`]: {},
      },
      bindings: {
        work: { source: `${RUN}.jobs`, destination: `${RUN}.work`, bindingKey: 'job.#' },
        dead: { source: `${RUN}.dlx`, destination: `${RUN}.dead`, bindingKey: '#' },
      },
      publications: { job: { exchange: `${RUN}.jobs`, confirm: true } },
      subscriptions: { work: { queue: `${RUN}.work`, prefetch: 5 }, dead: { queue: `${RUN}.dead` } },
    },
  },
}));
broker.on('error', (error) => console.log('not yet:', error.message));

(await broker.subscribe('work')).on('message', (message, content, ackOrNack) => {
  if (content.fails) {
    tries.push(content.fails);
    ackOrNack(new Error('as it should'), [{ strategy: 'republish', defer: 100, attempts: 2 }, { strategy: 'nack' }]);
    return;
  }
  got.push(content.n);
  ackOrNack();
}).on('error', (error) => console.log('subscription:', error.message));
(await broker.subscribe('dead')).on('message', (message, content, ackOrNack) => {
  dead.push(content.fails);
  ackOrNack();
}).on('error', (error) => console.log('subscription:', error.message));

async function send(content, routingKey = 'job.any') {
  const publication = await broker.publish('job', content, { routingKey });
  return new Promise((resolve, reject) => publication.on('success', resolve).on('error', reject).on('return', () => reject(new Error('returned'))));
}

const lostBroker = (command) => async () => {
  await control(command);
  await eventually('a confirm', () => send({ n: command }).then(() => true, (error) => void console.log('not yet:', error.message)), 20_000);
  await eventually('the message after it came back', () => got.includes(command), 20_000);
};

await run({
  publications: async () => {
    await Promise.all(Array.from({ length: 30 }, (_, n) => send({ n })));
    await eventually('30 messages', () => got.length === 30);
  },
  'republish-and-dead-letter': async () => {
    await send({ fails: 'once' });
    await eventually('the dead letter', () => dead.length === 1);
    equal('tries', 3, tries.length);
  },
  restart: lostBroker('restart'),
  kill: lostBroker('kill'),
  'clean-up': () => broker.nuke(),
});
