package interop;

import static interop.Broker.VHOST;
import static interop.Broker.bytes;
import static interop.Broker.connect;
import static interop.Broker.declareDurable;
import static interop.Broker.noQueue;
import static interop.Broker.publish;
import static interop.Broker.publishConfirmed;
import static interop.Broker.readyCount;
import static interop.Broker.refused;
import static interop.Broker.text;
import static interop.Checks.equal;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.Envelope;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/** Work queue, publish/subscribe, routing, topics, RPC. */
final class Patterns {
    static void workQueue(Names names) throws Exception {
        String queue = names.queue("tasks");
        Connection leaving = connect();
        Connection staying = connect();
        Channel channel = leaving.createChannel();
        var declared = declareDurable(channel, queue);
        equal("declare-ok", List.of(queue, 0, 0),
                List.of(declared.getQueue(), declared.getMessageCount(), declared.getConsumerCount()));
        BasicProperties persistent = new BasicProperties.Builder().contentType("text/plain").deliveryMode(2).build();
        publishConfirmed(leaving, queue, persistent, IntStream.range(0, 10).mapToObj(n -> "task " + n).toList());

        channel.basicQos(1);
        Inbox left = Inbox.acking(channel, queue);
        Delivery first = left.take();
        Envelope envelope = first.getEnvelope();
        equal("first task", List.of("task 0", 1L, false, "", queue),
                List.of(text(first.getBody()), envelope.getDeliveryTag(), envelope.isRedeliver(),
                        envelope.getExchange(), envelope.getRoutingKey()));
        equal("first task's properties", persistent, first.getProperties());

        // The first consumer holds its one message all the while, so the order at the second is exact.
        channel = staying.createChannel();
        channel.basicQos(1);
        Inbox stayed = Inbox.acking(channel, queue);
        for (int n = 1; n < 10; n++) {
            Delivery task = stayed.take();
            equal("task", List.of("task " + n, false), List.of(text(task.getBody()), task.getEnvelope().isRedeliver()));
            equal("nothing behind prefetch 1", true, stayed.isEmpty());
            if (n == 1) {
                equal("ready behind two prefetches of 1", 8, readyCount(staying, queue));
            }
            if (n == 5) {
                channel.basicNack(task.getEnvelope().getDeliveryTag(), false, true);
                task = stayed.take();
                equal("after nack", List.of("task 5", true),
                        List.of(text(task.getBody()), task.getEnvelope().isRedeliver()));
            }
            stayed.ack(task);
        }

        equal("ready tasks", 0, readyCount(leaving, queue));
        equal("no second task at prefetch 1", true, left.isEmpty());
        leaving.close();
        Delivery task = stayed.take();
        equal("after its consumer left", List.of("task 0", true),
                List.of(text(task.getBody()), task.getEnvelope().isRedeliver()));
        stayed.ack(task);
        staying.close();

        try (Connection connection = connect()) {
            declared = declareDurable(connection.createChannel(), queue);
            equal("left over: messages, consumers", List.of(0, 0),
                    List.of(declared.getMessageCount(), declared.getConsumerCount()));
        }
    }

    static void publishSubscribe(Names names) throws Exception {
        String exchange = names.exchange("logs");
        Connection publisher = connect();
        Channel channel = publisher.createChannel();
        channel.exchangeDeclare(exchange, BuiltinExchangeType.FANOUT);
        List<Connection> subscribers = List.of(connect(), connect());
        List<String> queues = new ArrayList<>();
        List<Inbox> inboxes = new ArrayList<>();
        for (Connection subscriber : subscribers) {
            Channel subscribed = subscriber.createChannel();
            String queue = subscribed.queueDeclare().getQueue();
            equal("prefix of a server's name", true, queue.startsWith("amq.gen-"));
            subscribed.queueBind(queue, exchange, "");
            queues.add(queue);
            inboxes.add(Inbox.autoAck(subscribed, queue));
        }
        equal("two different names", 2L, queues.stream().distinct().count());

        for (int n = 0; n < 5; n++) {
            publish(channel, exchange, "any key", "log " + n);
        }
        for (Inbox inbox : inboxes) {
            for (int n = 0; n < 5; n++) {
                Delivery log = inbox.take();
                Envelope envelope = log.getEnvelope();
                equal("log", List.of("log " + n, exchange, "any key", false),
                        List.of(text(log.getBody()), envelope.getExchange(), envelope.getRoutingKey(),
                                envelope.isRedeliver()));
            }
        }

        inboxes.get(1).channel.queueUnbind(queues.get(1), exchange, "");
        publish(channel, exchange, "", "for the bound one");
        publish(channel, "", queues.get(1), "end");
        equal("bound subscriber", "for the bound one", text(inboxes.get(0).take().getBody()));
        equal("unbound subscriber", "end", text(inboxes.get(1).take().getBody()));

        String first = queues.get(0);
        refused(publisher, 405,
                "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '" + first + "' in vhost '" + VHOST
                        + "'. It could be originally declared on another connection or the exclusive property value"
                        + " does not match that of the original declaration.",
                other -> other.queueDeclarePassive(first));
        subscribers.get(0).close();
        refused(publisher, 404, noQueue(first), other -> other.queueDeclarePassive(first));
        subscribers.get(1).close();
        publisher.close();
    }

    /** One queue: its role, its binding keys, and the routing keys that it must get. */
    private record Route(String role, List<String> bindingKeys, List<String> expected) {}

    /** Publishes one message per key; each queue must get the expected ones, in order, and no other. */
    private static void checkRoutes(Names names, BuiltinExchangeType type, List<String> keys, Route... routes)
            throws Exception {
        String exchange = names.exchange(type.getType());
        try (Connection connection = connect()) {
            Channel channel = connection.createChannel();
            channel.exchangeDeclare(exchange, type, true);
            List<String> queues = new ArrayList<>();
            List<Inbox> inboxes = new ArrayList<>();
            for (Route route : routes) {
                String queue = channel.queueDeclare().getQueue();
                for (String key : route.bindingKeys) {
                    channel.queueBind(queue, exchange, key);
                }
                queues.add(queue);
                inboxes.add(Inbox.autoAck(channel, queue));
            }
            for (String key : keys) {
                publish(channel, exchange, key, key);
            }
            for (int i = 0; i < routes.length; i++) {
                // Sent last, so what comes before it is all that there is.
                publish(channel, "", queues.get(i), "end");
                List<String> got = new ArrayList<>();
                Delivery message = inboxes.get(i).take();
                while (!text(message.getBody()).equals("end")) {
                    equal("routing key", text(message.getBody()), message.getEnvelope().getRoutingKey());
                    got.add(message.getEnvelope().getRoutingKey());
                    message = inboxes.get(i).take();
                }
                equal("routing keys at queue '" + routes[i].role + "'", routes[i].expected, got);
            }
        }
    }

    static void routing(Names names) throws Exception {
        checkRoutes(names, BuiltinExchangeType.DIRECT, List.of("info", "debug", "error", "warning", "error"),
                new Route("all", List.of("info", "warning", "error"), List.of("info", "error", "warning", "error")),
                // "error" twice: the same binding again is no second binding.
                new Route("errors", List.of("error", "error"), List.of("error", "error")));
    }

    static void topics(Names names) throws Exception {
        List<String> keys = List.of(
                "quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy.brown.fox", "lazy.pink.rabbit",
                "quick.brown.fox", "orange", "quick.orange.new.rabbit", "lazy.orange.new.rabbit", "lazy",
                "quick.rabbit", "");
        checkRoutes(names, BuiltinExchangeType.TOPIC, keys,
                new Route("orange", List.of("*.orange.*"),
                        List.of("quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox")),
                new Route("lazy", List.of("*.*.rabbit", "lazy.#"),
                        List.of("quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox", "lazy.pink.rabbit",
                                "lazy.orange.new.rabbit", "lazy")),
                new Route("one", List.of("*"), List.of("orange", "lazy")),
                new Route("ends", List.of("quick.#.rabbit"),
                        List.of("quick.orange.rabbit", "quick.orange.new.rabbit", "quick.rabbit")),
                new Route("all", List.of("#"), keys));
    }

    /** Answers the next request with its number squared; gives the address it answered to. */
    private static String serveOne(Inbox requests) throws Exception {
        Delivery request = requests.take();
        int number = Integer.parseInt(text(request.getBody()));
        BasicProperties asked = request.getProperties();
        BasicProperties answered = new BasicProperties.Builder().correlationId(asked.getCorrelationId()).build();
        requests.channel.basicPublish("", asked.getReplyTo(), answered, bytes(Integer.toString(number * number)));
        requests.ack(request);
        return asked.getReplyTo();
    }

    private static void call(Channel channel, String queue, int number, String replyTo) throws Exception {
        BasicProperties asking =
                new BasicProperties.Builder().replyTo(replyTo).correlationId("call " + number).build();
        channel.basicPublish("", queue, asking, bytes(Integer.toString(number)));
    }

    static void rpc(Names names) throws Exception {
        String direct = "amq.rabbitmq.reply-to";
        String queue = names.queue("requests");
        try (Connection server = connect(); Connection client = connect()) {
            Channel serving = server.createChannel();
            declareDurable(serving, queue);
            serving.basicQos(1);
            Inbox requests = Inbox.acking(serving, queue);
            Channel calling = client.createChannel();

            String callback = calling.queueDeclare().getQueue();
            Inbox replies = Inbox.autoAck(calling, callback);
            for (int n = 0; n < 5; n++) {
                call(calling, queue, n, callback);
            }
            for (int n = 0; n < 5; n++) {
                equal("reply_to", callback, serveOne(requests));
            }
            for (int n = 0; n < 5; n++) {
                Delivery reply = replies.take();
                equal("reply", List.of(Integer.toString(n * n), "call " + n),
                        List.of(text(reply.getBody()), reply.getProperties().getCorrelationId()));
            }

            replies = Inbox.autoAck(calling, direct);
            for (int n = 5; n < 8; n++) {
                call(calling, queue, n, direct);
            }
            for (int n = 5; n < 8; n++) {
                equal("rewritten reply_to", true, serveOne(requests).startsWith(direct + "."));
            }
            for (int n = 5; n < 8; n++) {
                Delivery reply = replies.take();
                equal("direct reply", List.of(Integer.toString(n * n), "call " + n, "", false),
                        List.of(text(reply.getBody()), reply.getProperties().getCorrelationId(),
                                reply.getEnvelope().getExchange(), reply.getEnvelope().isRedeliver()));
            }

            refused(client, 406, "PRECONDITION_FAILED - reply consumer cannot acknowledge",
                    other -> Inbox.acking(other, direct));
            refused(client, 406, "PRECONDITION_FAILED - fast reply consumer does not exist",
                    other -> call(other, queue, 1, direct));
        }
    }

    private Patterns() {}
}
