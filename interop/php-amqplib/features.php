<?php
// The features of ../FEATURES.md with php-amqplib.

require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPSSLConnection;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPConnectionClosedException;
use PhpAmqpLib\Exception\AMQPHeartbeatMissedException;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Exception\AMQPProtocolConnectionException;
use PhpAmqpLib\Exception\AMQPTimeoutException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPDecimal;
use PhpAmqpLib\Wire\AMQPTable;

require __DIR__ . '/../php/report.php';

const SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
$opened = [];
$queues = [];

function connect(array $options = []): AMQPStreamConnection
{
    global $opened;
    [$host, $port] = address();
    $o = $options + ['user' => 'guest', 'password' => 'guest', 'vhost' => '/', 'method' => 'AMQPLAIN', 'heartbeat' => 0];
    // The read timeout must be twice the heartbeat at least.
    $opened[] = $connection = new AMQPStreamConnection($host, $port, $o['user'], $o['password'], $o['vhost'], false, $o['method'], null, 'en_US',
        10.0, 10.0, null, false, $o['heartbeat'], 10.0);
    return $connection;
}

function queue_name(string $role): string
{
    global $queues;
    return $queues[] = RUN . ".$role";
}

function durable($channel, string $queue, array $arguments = []): array
{
    return $channel->queue_declare($queue, false, true, false, false, false, new AMQPTable($arguments));
}

function persistent(string $body): AMQPMessage
{
    return new AMQPMessage($body, ['delivery_mode' => 2]);
}

/** Collects deliveries; wait_for takes the next. */
function consume($channel, string $queue, string $tag = '', bool $exclusive = false): ArrayObject
{
    $inbox = new ArrayObject();
    $channel->basic_consume($queue, $tag, false, false, $exclusive, false, fn ($message) => $inbox->append($message));
    return $inbox;
}

function wait_for($channel, ArrayObject $inbox, int $limit = 10): AMQPMessage
{
    $deadline = microtime(true) + $limit;
    while (count($inbox) === 0) {
        if (microtime(true) > $deadline) {
            throw new Mismatch("expected a delivery within $limit s, got nothing");
        }
        try {
            $channel->wait(null, false, 0.1);
        } catch (AMQPTimeoutException) {
        }
    }
    $all = $inbox->getArrayCopy();
    $first = array_shift($all);
    $inbox->exchangeArray($all);
    return $first;
}

function taken($channel, string $queue): AMQPMessage
{
    return eventually('a message', fn () => $channel->basic_get($queue));
}

function ready($channel, string $queue): int
{
    return $channel->queue_declare($queue, true)[1];
}

function refused($connection, int $code, string $text, callable $action): void
{
    $channel = $connection->channel();
    try {
        $action($channel);
        // Publish and ack have no answer: the error shows at a call that has one.
        for ($n = 0; $n < 50; $n++) {
            usleep(10000);
            $channel->basic_qos(0, 1, false);
        }
    } catch (AMQPProtocolChannelException $closed) {
        equal('channel error', [$code, $text], [$closed->amqp_reply_code, $closed->amqp_reply_text]);
        equal('the connection is open', true, $connection->isConnected());
        return;
    }
    throw new Mismatch("expected $code $text, got no exception");
}

/** Waits until the library notices that its connection is lost. */
function lost($channel, int $limit = 15): Throwable
{
    $deadline = microtime(true) + $limit;
    while (microtime(true) < $deadline) {
        try {
            $channel->getConnection()->checkHeartBeat();
            $channel->wait(null, false, 0.2);
        } catch (AMQPTimeoutException) {
        } catch (Throwable $error) {
            return $error;
        }
    }
    throw new Mismatch("expected the library to notice that its connection is lost within $limit s");
}

function lost_broker(string $command): void
{
    $connection = connect();
    $channel = $connection->channel();
    $queue = queue_name($command);
    durable($channel, $queue);
    $channel->confirm_select();
    $channel->basic_publish(persistent('before'), '', $queue);
    $channel->wait_for_pending_acks(10);
    $inbox = consume($channel, $queue);
    equal('before', 'before', wait_for($channel, $inbox)->body);
    control($command);
    $error = lost($channel);
    // A broken pipe while it answers the broker's close hides what that said.
    if ($command === 'restart' && $error->getCode() !== 32) {
        equal('end of the connection', [320, SHUTDOWN], [$error->getCode(), $error->getMessage()]);
    }
    $connection->reconnect();
    $channel = $connection->channel();
    $inbox = consume($channel, $queue);
    $message = wait_for($channel, $inbox, 25);
    equal('after it came back', ['before', true], [$message->body, $message->isRedelivered()]);
    $message->ack();
    $channel->basic_publish(persistent('after'), '', $queue);
    equal('after', 'after', wait_for($channel, $inbox)->body);
}

$features = [
    'connect' => function () {
        foreach (['PLAIN', 'AMQPLAIN'] as $method) {
            $connection = connect(['method' => $method]);
            equal('product', 'RabbitMQ', $connection->getServerProperties()['product'][1]);
            $connection->channel()->close();
            $connection->close();
            equal('closed', false, $connection->isConnected());
        }
        try {
            connect(['password' => 'wrong', 'method' => 'PLAIN']);
            throw new Mismatch('expected an error for the wrong password');
        } catch (AMQPConnectionClosedException | AMQPProtocolConnectionException $error) {
            equal('wrong password', [403, 'ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.'],
                [$error->getCode(), preg_replace('/\(\d+, \d+\)$/', '', $error->getMessage())]);
        }
        try {
            connect(['vhost' => 'nowhere']);
            throw new Mismatch('expected an error for the unknown vhost');
        } catch (AMQPConnectionClosedException | AMQPProtocolConnectionException $error) {
            equal('unknown vhost', [530, 'NOT_ALLOWED - vhost nowhere not found'], [$error->getCode(), preg_replace('/\(\d+, \d+\)$/', '', $error->getMessage())]);
        }
    },
    'declare' => function () {
        $channel = connect()->channel();
        foreach (['direct', 'fanout', 'topic', 'headers'] as $type) {
            for ($n = 0; $n < 2; $n++) {
                $channel->exchange_declare(RUN . ".$type", $type, false, $type !== 'topic', $type === 'fanout', $type === 'headers');
            }
            $channel->exchange_declare(RUN . ".$type", $type, true);
        }
        $queue = queue_name('durable');
        $arguments = ['x-max-length' => 100, 'x-message-ttl' => 60000, 'x-dead-letter-exchange' => '', 'x-max-priority' => 5];
        for ($n = 0; $n < 2; $n++) {
            equal('declare-ok', [$queue, 0, 0], durable($channel, $queue, $arguments));
        }
        equal("a server's name", 'amq.gen-', substr($channel->queue_declare('', false, false, true)[0], 0, 8));
        $channel->exchange_bind(RUN . '.fanout', RUN . '.direct', 'k', false, new AMQPTable(['note' => 'any']));
        $channel->queue_bind($queue, RUN . '.fanout');
        $channel->basic_publish(new AMQPMessage('through two exchanges'), RUN . '.direct', 'k');
        $channel->basic_publish(new AMQPMessage('nowhere'), RUN . '.direct', 'other');
        eventually('a message', fn () => ready($channel, $queue) === 1);
        $channel->exchange_unbind(RUN . '.fanout', RUN . '.direct', 'k', false, new AMQPTable(['note' => 'any']));
        $channel->basic_publish(new AMQPMessage('unbound'), RUN . '.direct', 'k');
        $channel->basic_publish(new AMQPMessage('second'), RUN . '.fanout');
        eventually('two messages', fn () => ready($channel, $queue) === 2);
        equal('purged', 2, $channel->queue_purge($queue));
        equal('deleted', 0, $channel->queue_delete($queue));
        equal('deleted again', 0, $channel->queue_delete($queue));
        foreach (['direct', 'fanout', 'topic', 'headers'] as $type) {
            $channel->exchange_delete(RUN . ".$type");
        }
    },
    'confirms' => function () {
        $channel = connect()->channel();
        [$queue, $full] = [queue_name('confirms'), queue_name('full')];
        durable($channel, $queue);
        durable($channel, $full, ['x-max-length' => 1, 'x-overflow' => 'reject-publish']);
        [$acks, $nacks, $returned] = [0, 0, []];
        $channel->set_ack_handler(function () use (&$acks) { $acks++; });
        $channel->set_nack_handler(function () use (&$nacks) { $nacks++; });
        $channel->set_return_listener(function ($code, $text, $exchange, $key, $message) use (&$returned) { $returned[] = [$code, $text, $key, $message->body]; });
        $channel->confirm_select();
        for ($n = 0; $n < 201; $n++) {
            $channel->basic_publish(persistent("$n"), '', $queue, true);
        }
        $channel->wait_for_pending_acks_returns(10);
        equal('acks, messages', [201, 201], [$acks, ready($channel, $queue)]);
        $channel->basic_publish(new AMQPMessage('lost'), '', RUN . '.nowhere', true);
        $channel->wait_for_pending_acks_returns(10);
        equal('returned', [[312, 'NO_ROUTE', RUN . '.nowhere', 'lost']], $returned);
        $channel->basic_publish(new AMQPMessage('1'), '', $full);
        $channel->basic_publish(new AMQPMessage('2'), '', $full);
        $channel->wait_for_pending_acks(10);
        equal('acks, nacks', [203, 1], [$acks, $nacks]);
    },
    'properties' => function () {
        $channel = connect()->channel();
        $queue = queue_name('properties');
        durable($channel, $queue);
        $headers = ['int32' => -2000000000, 'int64' => 1 << 40, 'double' => 0.5, 'decimal' => new AMQPDecimal(12345, 2), 'yes' => true, 'no' => false,
            'text' => 'text ✓', 'empty' => '', 'time' => new DateTime('@1709208000'), 'void' => null, 'table' => ['inner' => ['deep' => 1]],
            'array' => [1, 'two', [0.5, null]]];
        $every = ['content_type' => 'text/plain', 'content_encoding' => 'utf-8', 'delivery_mode' => 2, 'priority' => 3, 'correlation_id' => 'corr',
            'reply_to' => 'reply', 'expiration' => '60000', 'message_id' => 'id', 'timestamp' => 1709209815, 'type' => 'kind', 'user_id' => 'guest',
            'app_id' => 'app', 'cluster_id' => 'cluster'];
        $channel->basic_publish(new AMQPMessage('all', $every + ['application_headers' => new AMQPTable($headers)]), '', $queue);
        $channel->basic_publish(new AMQPMessage('none'), '', $queue);
        $message = taken($channel, $queue);
        $properties = $message->get_properties();
        $back = $properties['application_headers']->getNativeData();
        unset($properties['application_headers']);
        ksort($every);
        ksort($properties);
        equal('properties', $every, $properties);
        equal('decimal', [12345, 2], [$back['decimal']->getN(), $back['decimal']->getE()]);
        equal('time', 1709208000, $back['time'] instanceof DateTimeInterface ? $back['time']->getTimestamp() : $back['time']);
        // And the broker's double as text.
        [$back['double'], $back['array'][2][0]] = [(float) $back['double'], (float) $back['array'][2][0]];
        unset($headers['decimal'], $headers['time'], $back['decimal'], $back['time']);
        equal('headers', $headers, $back);
        equal('none', [], taken($channel, $queue)->get_properties());
    },
    'consume' => function () {
        $channel = connect()->channel();
        $queue = queue_name('consume');
        durable($channel, $queue);
        for ($n = 0; $n < 5; $n++) {
            $channel->basic_publish(new AMQPMessage("$n"), '', $queue);
        }
        $channel->basic_qos(0, 2, false);
        $inbox = consume($channel, $queue, 'interop-tag');
        $first = wait_for($channel, $inbox);
        $second = wait_for($channel, $inbox);
        equal('first two', [['0', false, 'interop-tag'], ['1', false, 'interop-tag']],
            array_map(fn ($m) => [$m->body, $m->isRedelivered(), $m->getConsumerTag()], [$first, $second]));
        equal('no third', 1, count(array_filter([1], function () use ($channel) {
            try {
                $channel->wait(null, false, 0.3);
                return false;
            } catch (AMQPTimeoutException) {
                return true;
            }
        })));
        $first->ack();
        equal('after an ack', '2', wait_for($channel, $inbox)->body);
        $second->nack(true);
        $again = wait_for($channel, $inbox);
        equal('after nack with requeue', ['1', true], [$again->body, $again->isRedelivered()]);
        $again->reject(true);
        $again = wait_for($channel, $inbox);
        equal('after reject with requeue', ['1', true], [$again->body, $again->isRedelivered()]);
        $again->reject(false);
        $fourth = wait_for($channel, $inbox);
        equal('after reject', '3', $fourth->body);
        $fourth->nack(false);
        wait_for($channel, $inbox)->ack(true);
        $channel->basic_cancel('interop-tag');
        $channel->basic_publish(new AMQPMessage('after cancel'), '', $queue);
        eventually('the message after cancel', fn () => ready($channel, $queue) === 1);
    },
    'get' => function () {
        $channel = connect()->channel();
        $queue = queue_name('get');
        durable($channel, $queue);
        equal('empty', null, $channel->basic_get($queue));
        $channel->basic_publish(new AMQPMessage('a'), '', $queue);
        $channel->basic_publish(new AMQPMessage('b'), '', $queue);
        eventually('both', fn () => ready($channel, $queue) === 2);
        $message = $channel->basic_get($queue);
        equal('get', ['a', false, 1], [$message->body, $message->isRedelivered(), $message->getMessageCount()]);
        $message->nack(true);
        $message = taken($channel, $queue);
        equal('get again', ['a', true], [$message->body, $message->isRedelivered()]);
    },
    'tx' => function () {
        [$channel, $watcher] = [connect()->channel(), connect()->channel()];
        $queue = queue_name('tx');
        durable($channel, $queue);
        $channel->tx_select();
        $channel->basic_publish(persistent('1'), '', $queue);
        $channel->basic_publish(persistent('2'), '', $queue);
        equal('before commit', 0, ready($watcher, $queue));
        $channel->tx_commit();
        equal('after commit', 2, ready($watcher, $queue));
        $channel->basic_publish(persistent('3'), '', $queue);
        $message = taken($channel, $queue);
        $channel->basic_ack($message->getDeliveryTag());
        $channel->tx_rollback();
        $channel->basic_ack($message->getDeliveryTag());
        $channel->tx_commit();
        equal('after rollback, ack and commit', 1, ready($watcher, $queue));
    },
    'large' => function () {
        $channel = connect()->channel();
        $queue = queue_name('large');
        durable($channel, $queue);
        foreach ([0, 1, 131064, 131065, 1 << 20, 16 << 20] as $size) {
            $body = substr(str_repeat('leveret', intdiv($size, 7) + 1), 0, $size);
            $channel->basic_publish(persistent($body), '', $queue);
            $message = eventually('the message', fn () => $channel->basic_get($queue, true), 30);
            equal("contents of $size", [strlen($body), md5($body)], [strlen($message->body), md5($message->body)]);
        }
    },
    'cancel-notify' => function () {
        $channel = connect()->channel();
        $queue = queue_name('deleted');
        durable($channel, $queue);
        consume($channel, $queue, 'tag');
        connect()->channel()->queue_delete($queue);
        try {
            $channel->wait(null, false, 10);
            throw new Mismatch('expected the exception of a cancelled consumer');
        } catch (PhpAmqpLib\Exception\AMQPBasicCancelException $cancel) {
            equal('cancelled', 'tag', $cancel->consumerTag);
        }
    },
    'channel-errors' => function () {
        [$connection, $holder] = [connect(), connect()];
        $channel = $holder->channel();
        [$queue, $nowhere] = [queue_name('errors'), RUN . '.nowhere'];
        durable($channel, $queue);
        $exclusive = $channel->queue_declare('', false, false, true)[0];
        refused($connection, 404, "NOT_FOUND - no queue '$nowhere' in vhost '/'", fn ($c) => $c->queue_declare($nowhere, true));
        refused($connection, 404, "NOT_FOUND - no exchange '$nowhere' in vhost '/'", fn ($c) => $c->basic_publish(new AMQPMessage('x'), $nowhere));
        refused($connection, 406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '$queue' in vhost '/': received 'true' but current is 'false'",
            fn ($c) => $c->queue_declare($queue, false, true, false, true));
        refused($connection, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'",
            fn ($c) => $c->exchange_declare('amq.direct', 'fanout', false, true, false));
        refused($connection, 406, 'PRECONDITION_FAILED - unknown delivery tag 99', fn ($c) => $c->basic_ack(99));
        refused($connection, 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '$exclusive' in vhost '/'. It could be originally declared on " .
            'another connection or the exclusive property value does not match that of the original declaration.', fn ($c) => $c->queue_declare($exclusive, true));
        refused($connection, 403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
            fn ($c) => $c->exchange_declare('amq.mine', 'direct', false, true, false));
        $channel->basic_publish(new AMQPMessage('x'), '', $queue);
        eventually('a message', fn () => ready($channel, $queue) === 1);
        refused($connection, 406, "PRECONDITION_FAILED - queue '$queue' in vhost '/' not empty", fn ($c) => $c->queue_delete($queue, false, true));
        consume($channel, $queue, '', true);
        refused($connection, 406, "PRECONDITION_FAILED - queue '$queue' in vhost '/' in use", fn ($c) => $c->queue_delete($queue, true));
        refused($connection, 403, "ACCESS_REFUSED - queue '$queue' in vhost '/' in exclusive use", fn ($c) => consume($c, $queue));
    },
    'connection-errors' => function () {
        $channel = connect()->channel();
        $queue = queue_name('immediate');
        durable($channel, $queue);
        $channel->basic_publish(new AMQPMessage('now'), '', $queue, false, true);
        $error = lost($channel);
        equal('end of the connection', [540, 'NOT_IMPLEMENTED - immediate=true'], [$error->getCode(), preg_replace('/\(\d+, \d+\)$/', '', $error->getMessage())]);
    },
    'idle' => function () {
        $connection = connect(['heartbeat' => 1]);
        $channel = $connection->channel();
        consume($channel, $channel->queue_declare('', false, false, true)[0]);
        for ($until = microtime(true) + 3.5; microtime(true) < $until;) {
            try {
                $channel->wait(null, false, 0.2);
            } catch (AMQPTimeoutException) {
            }
            $connection->checkHeartBeat();
        }
        $channel->queue_declare('', false, false, true);
    },
    'frozen' => function () {
        $queue = connect(['heartbeat' => 1])->channel()->queue_declare('', false, false, true)[0];
        control('freeze 5');
        refused(connect(), 404, "NOT_FOUND - no queue '$queue' in vhost '/'", fn ($c) => $c->queue_declare($queue, true));
    },
    'stalled' => function () {
        $channel = connect(['heartbeat' => 1])->channel();
        consume($channel, $channel->queue_declare('', false, false, true)[0]);
        control('stall');
        try {
            $error = lost($channel);
            equal('exception', true, $error instanceof AMQPHeartbeatMissedException || $error instanceof AMQPConnectionClosedException);
        } finally {
            control('resume');
        }
    },
    'blocked' => function () {
        $connection = connect();
        $channel = $connection->channel();
        $queue = queue_name('blocked');
        durable($channel, $queue);
        consume($channel, $channel->queue_declare('', false, false, true)[0]);
        $said = [];
        $connection->set_connection_block_handler(function () use (&$said) { $said[] = 'blocked'; });
        $connection->set_connection_unblock_handler(function () use (&$said) { $said[] = 'unblocked'; });
        $look = function () use ($channel) {
            try {
                $channel->wait(null, false, 0.1);
            } catch (AMQPTimeoutException) {
            }
        };
        control('block');
        try {
            $channel->basic_publish(new AMQPMessage('while blocked'), '', $queue);
            eventually('blocked', function () use (&$said, $look) { $look(); return $said === ['blocked']; });
        } finally {
            control('unblock');
        }
        eventually('unblocked', function () use (&$said, $look) { $look(); return $said === ['blocked', 'unblocked']; });
        eventually('the message', fn () => ready($channel, $queue) === 1);
    },
    'restart' => fn () => lost_broker('restart'),
    'kill' => fn () => lost_broker('kill'),
    'consumer-timeout' => function () {
        $connection = connect();
        $channel = $connection->channel();
        $queue = queue_name('timeout');
        durable($channel, $queue, ['x-consumer-timeout' => 1000]);
        $inbox = consume($channel, $queue);
        $channel->basic_publish(new AMQPMessage('slow'), '', $queue);
        wait_for($channel, $inbox);
        $error = lost($channel, getenv('INTEROP_BROKER') === 'leveret' ? 10 : 130);
        equal('end of the channel', [406, 'PRECONDITION_FAILED - delivery acknowledgement on channel N timed out. Timeout value used: 1000 ms. ' .
            'This timeout value can be configured, see consumers doc guide to learn more'], [$error->amqp_reply_code, preg_replace('/on channel \d+/', 'on channel N', $error->amqp_reply_text)]);
        $message = taken($connection->channel(), $queue);
        equal('on a new channel', ['slow', true], [$message->body, $message->isRedelivered()]);
    },
    'concurrency' => function () {
        throw new NotApplicable('one thread; see the features of other languages');
    },
    'tls' => function () {
        if (!getenv('AMQPS_URL')) {
            throw new NotApplicable('the broker has no TLS listener yet');
        }
        $url = parse_url(getenv('AMQPS_URL'));
        $connection = new AMQPSSLConnection($url['host'], $url['port'], 'guest', 'guest', '/', ['cafile' => getenv('INTEROP_CA'), 'verify_peer' => true]);
        $channel = $connection->channel();
        $queue = $channel->queue_declare('', false, false, true)[0];
        $channel->basic_publish(new AMQPMessage('secret'), '', $queue);
        equal('body', 'secret', taken($channel, $queue)->body);
    },
];

run($features, function () use (&$opened, &$queues) {
    foreach ($opened as $connection) {
        try {
            $connection->close();
        } catch (Throwable) {
        }
    }
    $opened = [];
    $channel = connect()->channel();
    foreach ($queues as $queue) {
        $channel->queue_delete($queue);
    }
    $queues = [];
    $opened[0]->close();
    $opened = [];
});
